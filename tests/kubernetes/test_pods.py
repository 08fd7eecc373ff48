"""The pods of a job: what they are, a command in one, and a port that leads into one."""

import contextlib
import http.server
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import kube_api
import kubelet_streams
import pytest
from background import await_true, serving
from job_suite import write_bundle

from launcher import pipeline
from launcher.backends.kubernetes.api_objects import path
from launcher.cli import main as cli
from launcher.job_store import registry
from launcher.model import backend_registry
from launcher.model.job_spec import JobHandle

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"
BACKEND = backend_registry.load_backend("k8s")
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(space, bundle, monkeypatch):
    """A submitted job of the test's folder; its name."""
    monkeypatch.chdir(space.folder)
    made = pipeline.submit(bundle(), BACKEND)
    return made.handle.bundle_dir.name


@pytest.fixture
def pod(space, job):
    """The job's first pod, which runs."""
    name = space.pod(space.get(JOB, job))
    space.run_container(name)
    return name


def recipes(*words):
    """Return the command line of `recipes` in a process of its own."""
    return [sys.executable, "-m", "launcher", *words]


@pytest.fixture
def environment(space):
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), "KUBECONFIG": str(space.folder / "kubeconfig.json")}


@pytest.fixture
def run(space, environment):
    """Return a function that runs `recipes` in the test's folder to its end, with an input."""

    def finished(*words, given=b""):
        return subprocess.run(
            recipes(*words), input=given, capture_output=True, cwd=space.folder, env=environment, timeout=200
        )

    return finished


def test_pods_are_listed_with_ranks_nodes_and_reasons(space, job, capsys):
    resource = space.get(JOB, job)
    first, second, third = (space.pod(resource, index) for index in (0, 1, 10))
    space.run_container(first, restarts=2)
    space.end_container(second_started(space, second), exit_code=137)
    space.wait_container(third, "ImagePullBackOff", 'Back-off pulling image "me/image:1"')
    assert cli.run(["pods", job, "--json"]) == 0
    pods = json.loads(capsys.readouterr().out)
    assert [pod["ranks"] for pod in pods] == [[0, 7], [8, 15], [80, 87]]
    assert [pod["name"] for pod in pods] == [first, second, third]
    assert [pod["phase"] for pod in pods] == ["Running", "Failed", "Pending"]
    assert [pod["is_ready"] for pod in pods] == [True, False, False]
    assert [pod["restarts"] for pod in pods] == [2, 0, 0]
    assert pods[1]["reason"] == "ended, exit code 137 (SIGKILL)"
    assert pods[2]["reason"] == 'ImagePullBackOff: Back-off pulling image "me/image:1"'
    assert cli.run(["pods", job]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["ranks", "pod", "node", "phase", "ready", "restarts", "age", "reason"]
    assert rows[2].split()[:2] == ["80-87", third]


def second_started(space, pod):
    space.cluster.kubelet.start(pod)
    return pod


def test_a_job_without_pods_has_an_empty_list(job, capsys):
    assert cli.run(["pods", job, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cli.run(["pods", job]) == 0
    assert "has no pods now" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["pods"], ["exec"], ["port-forward"]], ids=["pods", "exec", "port-forward"])
def test_a_job_of_a_cluster_without_pods_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = write_bundle(tmp_path, "here", "local")
    registry.record(made, JobHandle("local", made.job_name, made.directory), "ada")
    assert cli.run([*words, made.job_name, *(["8080"] if words == ["port-forward"] else [])]) == 2
    assert "E380" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", [kubelet_streams.V4, kubelet_streams.V5], ids=["v4", "v5"])
def test_a_command_s_streams_and_exit_code_are_those_in_the_pod(space, job, pod, run, protocol, monkeypatch):
    monkeypatch.setattr(space.cluster.kubelet, "protocol", protocol)
    script = "read line; echo got $line; echo aside >&2; exit 7"
    done = run("exec", job, "--", "sh", "-c", script, given=b"hello\n")
    # On a slow machine a note that the input's end is not passed on may come first.
    assert (done.stdout, done.stderr.splitlines()[-1], done.returncode) == (b"got hello\n", b"aside", 7)
    (request,) = [each for each in space.cluster.kubelet.requests if each.startswith(f"/exec/{space.name}/{pod}/")]
    assert request.split("?")[0].endswith("/pytorch")


def test_input_and_output_of_any_size_pass_at_the_same_time(space, job, pod, run, monkeypatch):
    monkeypatch.setattr(space.cluster.kubelet, "protocol", kubelet_streams.V5)
    given = os.urandom(3 << 20)
    done = run("exec", job, "--", "cat", given=given)
    assert done.returncode == 0
    assert done.stdout == given


def test_words_of_a_command_are_passed_on_as_they_are(job, pod, run):
    words = ["a b", "$(id)", "&x=1#?%2F", "é", "-n", "--rank"]
    done = run("exec", job, "--", "printf", "%s|", *words)
    assert done.stdout.decode() == "".join(f"{word}|" for word in words)


def test_a_command_that_the_image_does_not_have_is_a_problem(job, pod, run):
    done = run("exec", job, "--", "no-such-program")
    assert done.returncode == 2
    assert b"E382" in done.stderr and b"executable file not found" in done.stderr


@pytest.mark.parametrize(
    ("rank", "code", "words"),
    [(8, "E381", "no pod runs this rank now"), (1000, "E707", "0 to 127")],
    ids=["no-pod", "no-rank"],
)
def test_a_rank_without_a_running_pod_is_refused(job, pod, capsys, rank, code, words):
    assert cli.run(["exec", job, "--rank", str(rank), "--", "true"]) == 2
    told = capsys.readouterr().err
    assert code in told and words in told


def test_a_pod_that_does_not_run_is_refused_with_its_reason(space, job, capsys):
    name = space.pod(space.get(JOB, job))
    space.wait_container(name, "ImagePullBackOff", "no such tag")
    assert cli.run(["exec", job, "--", "true"]) == 2
    told = capsys.readouterr().err
    assert "E381" in told and "ImagePullBackOff: no such tag" in told


def test_a_pod_that_takes_a_pod_s_place_is_the_one_that_is_used(space, job, pod, run):
    space.end_container(pod, exit_code=1)
    second = space.pod(space.get(JOB, job), suffix="-b7x")
    space.run_container(second)
    assert run("exec", job, "--", "true").returncode == 0
    assert any(f"/{second}/" in each for each in space.cluster.kubelet.requests if each.startswith("/exec/"))


def test_a_connection_that_breaks_is_not_taken_for_the_command_s_end(space, job, pod, run):
    space.cluster.proxy.fail(path="/exec[?]", cut_after=200_000)  # later than the first piece, however much that has
    done = run("exec", job, "--", "sh", "-c", "seq --format='line %g' 100000; read line")
    assert done.returncode == 2 and done.stdout.startswith(b"line 1\n")
    assert b"E382" in done.stderr and b"the command may still be running" in done.stderr


def test_an_input_whose_end_cannot_be_passed_on_is_noted(space, job, pod, environment):
    words, streams = recipes("exec", job, "--", "cat"), dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, cwd=space.folder, env=environment, **streams) as process:
        process.stdin.write(b"hello\n")
        process.stdin.close()
        assert process.stdout.readline() == b"hello\n"
        assert b"N151" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(200) == 130


@pytest.fixture
def frames(monkeypatch):
    """The opcodes that a node sends; pings are due at once, and a silence ends soon."""
    sent, send = [], kubelet_streams.Peer.send

    def recorded(peer, channel, data, opcode=kubelet_streams.BINARY):
        sent.append(opcode)
        send(peer, channel, data, opcode)

    monkeypatch.setattr(kubelet_streams.Peer, "send", recorded)
    monkeypatch.setattr("launcher.backends.kubernetes.pod_channels._PING_S", 0.05)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)  # pytest's own has no descriptor
        yield sent


def test_an_idle_connection_is_kept_alive(job, pod, frames, capfd):
    assert cli.run(["exec", job, "--", "sleep", "1"]) == 0
    assert kubelet_streams.PONG in frames


def test_a_connection_that_died_in_silence_is_noticed(job, pod, frames, capfd, monkeypatch):
    monkeypatch.setattr("launcher.backends.kubernetes.pod_channels._SILENCE_S", 1.0)
    send = kubelet_streams.Peer.send
    silent = (kubelet_streams.PONG,)
    monkeypatch.setattr(kubelet_streams.Peer, "send", lambda *sent: None if sent[3:] == silent else send(*sent))
    assert cli.run(["exec", job, "--", "sleep", "600"]) == 2
    assert "the command may still be running" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("fault", "code"), [({"status": 503}, "E342"), ({"is_refused": True}, "E342")], ids=["in-trouble", "no-answer"]
)
def test_a_cluster_that_does_not_answer_is_a_problem(space, job, pod, capsys, fault, code):
    space.cluster.proxy.fail(path="/exec[?]", **fault)
    assert cli.run(["exec", job, "--", "true"]) == 2
    assert code in capsys.readouterr().err


ROLE = "rbac.authorization.k8s.io"


def allow(space, *rules):
    """Give the user of USER_TOKEN a Role in the test's namespace."""
    where = f"/apis/{ROLE}/v1/namespaces/{space.name}"
    role = {"apiVersion": f"{ROLE}/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": list(rules)}
    space.admin.apply(f"{where}/roles/r", role, "test")
    binding = {
        "apiVersion": f"{ROLE}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": ROLE, "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": ROLE, "kind": "User", "name": "ada"}],
    }
    space.admin.apply(f"{where}/rolebindings/b", binding, "test")


READS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
READS_JOBS = {"apiGroups": ["sagemaker.amazonaws.com"], "resources": ["hyperpodpytorchjobs"], "verbs": ["get"]}


def test_exec_needs_its_own_permission_and_names_it(space, job, pod, run):
    allow(space, READS, READS_JOBS)
    space.kubeconfig(kube_api.USER_TOKEN)
    done = run("exec", job, "--", "true")
    assert done.returncode == 2
    assert b"E344" in done.stderr and b"pods/exec" in done.stderr
    assert kube_api.USER_TOKEN.encode() not in done.stderr
    allow(space, READS, READS_JOBS, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]})
    await_true(lambda: run("exec", job, "--", "true").returncode == 0)


class Terminal:
    """`recipes` in a terminal of its own, as a person sees it."""

    def __init__(self, words, folder, environment):
        self.output = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, {**environment, "TERM": "xterm"})
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while data := os.read(self.fd, 4096):
                self.output += data

    def type(self, text):
        os.write(self.fd, text.encode())

    def await_text(self, text):
        try:
            await_true(lambda: text.encode() in self.output)
        except AssertionError:
            raise AssertionError(f"{text!r} does not appear in {self.output.decode(errors='replace')!r}") from None

    def exit_code(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def set_size(terminal, rows, columns):
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_a_shell_has_a_terminal_its_size_and_every_key(space, job, pod, environment):
    import termios

    old_size = {"COLUMNS": "80", "LINES": "24"}  # as readline exports them
    terminal = Terminal(recipes("exec", job), space.folder, {**environment, **old_size})
    before = termios.tcgetattr(terminal.fd)
    set_size(terminal, 40, 100)
    await_true(lambda: any(f"/{pod}/" in each for each in space.cluster.kubelet.requests if "/exec/" in each))
    terminal.type("echo is-$((6*7)); test -t 0 && echo a-terminal\r")
    terminal.await_text("is-42")
    terminal.await_text("\na-terminal")
    set_size(terminal, 41, 101)
    terminal.type("until stty size | grep -q '41 101'; do :; done; echo re-sized | tr - _\r")
    terminal.await_text("re_sized")
    terminal.type("echo be-gun | tr - _; sleep 600\r")
    terminal.await_text("be_gun")
    terminal.type("\x03")  # Ctrl-C goes to the pod
    terminal.type("echo still-$((1+1)); exit 5\r")
    terminal.await_text("still-2")
    assert terminal.exit_code() == 5
    assert termios.tcgetattr(terminal.fd)[3] == before[3]


def test_a_terminal_is_as_it_was_where_the_command_is_ended(space, job, pod, environment):
    import termios

    terminal = Terminal(recipes("exec", job), space.folder, environment)
    before = termios.tcgetattr(terminal.fd)
    await_true(lambda: not termios.tcgetattr(terminal.fd)[3] & termios.ICANON)
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.exit_code() == 143
    assert termios.tcgetattr(terminal.fd)[3] == before[3]


@pytest.fixture
def service():
    """A web server of this machine, which stands for one in the pod; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield server.server_address[1]


@contextlib.contextmanager
def forwarding(space, environment, *words):
    """Run `recipes port-forward`; give its process and the local port that it prints."""
    process = subprocess.Popen(
        recipes("port-forward", *words),
        cwd=space.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("127.0.0.1:"), (line, process.stderr.read() if process.poll() is not None else "")
        yield process, int(line.split()[0].partition(":")[2])
    finally:
        process.kill()
        process.wait()


def post(port, body):
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}", body, timeout=60) as answer:
        return answer.read()


def test_a_forwarded_port_carries_several_connections_of_any_size(space, job, pod, environment, service):
    with forwarding(space, environment, job, f"0:{service}") as (process, port):
        body = os.urandom(1 << 20)
        assert post(port, body) == body[::-1]
        threads = [threading.Thread(target=post, args=(port, b"x")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        process.send_signal(signal.SIGINT)
        assert process.wait(200) == 130


def test_a_port_is_forwarded_from_the_loopback_address_only(space, job, pod, environment, service):
    with forwarding(space, environment, job, f"0:{service}") as (process, port):
        listening = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()
        own = [line.split()[1] for line in listening if line.split()[1].endswith(f":{port:04X}")]
        assert own == [f"0100007F:{port:04X}"]


def test_a_local_program_that_ends_its_side_first_gets_the_whole_answer(space, job, pod, environment):
    server = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"slowly " * 1000)

    threading.Thread(target=answer, daemon=True).start()
    with (
        forwarding(space, environment, job, f"0:{server.getsockname()[1]}") as (_, port),
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(b"ask")
        client.shutdown(socket.SHUT_WR)
        client.settimeout(60)
        assert b"".join(iter(lambda: client.recv(65536), b"")) == b"slowly " * 1000


def test_a_pod_that_refuses_a_connection_ends_that_connection_only(space, job, pod, environment, service):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = probe.getsockname()[1]  # bound, and nothing listens
        with forwarding(space, environment, job, f"0:{closed}") as (process, port):
            for _ in range(2):
                with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                    assert client.recv(1) == b""
            assert process.poll() is None
            told = [process.stderr.readline() for _ in range(2)]
            assert told[0].startswith(f"E382 {pod}:{closed}") and "inside the namespace" in told[1]


def test_a_local_port_that_is_taken_is_a_problem(job, pod, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.run(["port-forward", job, f"{port}:8080"]) == 2
    told = capsys.readouterr().err
    assert "E383" in told and f"127.0.0.1:{port}" in told and "remedy" in told


@pytest.mark.parametrize("words", ["x", "80:", "0", "1:0", "70000", "1:70000", "1:2:3", "-1:5"])
def test_what_are_not_ports_is_refused(job, capsys, words):
    assert cli.run(["port-forward", job, "--", words]) == 2
    assert "E384" in capsys.readouterr().err


def status(job, capsys, *words):
    capsys.readouterr()
    assert cli.run(["status", job, *words]) == 0
    return capsys.readouterr().out


def test_a_status_has_the_reasons_of_pods_that_restart_or_wait(space, job, capsys):
    resource = space.get(JOB, job)
    first, second, third = (space.pod(resource, index) for index in range(3))
    killed = {"exitCode": 137, "reason": "OOMKilled"}
    space.wait_container(first, "CrashLoopBackOff", "back-off 5m0s restarting", 3, killed)
    space.wait_container(second, "ImagePullBackOff", "no such tag")
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    space.set_status("Pod", third, {"phase": "Pending", "conditions": [unschedulable | {"message": message}]})
    space.conditions(job, "Created", "PodsRunning", "Running")
    shown = status(job, capsys)
    assert (
        f"pod       {first} on node-1:  CrashLoopBackOff: back-off 5m0s restarting; "
        "last run: OOMKilled, exit code 137 (SIGKILL)" in shown
    )
    assert f"pod       {second} on node-1:  ImagePullBackOff: no such tag" in shown
    assert "FailedScheduling: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu" in shown
    told = json.loads(status(job, capsys, "--json"))
    assert [pod["name"] for pod in told["troubled_pods"]] == [first, second, third]


@pytest.mark.parametrize(
    ("pod_status", "why"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "Evicted: The node was low on"),
        ({"containerStatuses": "OOMKilled"}, "OOMKilled, exit code 137 (SIGKILL)"),
        ({"containerStatuses": "Error"}, "Error, exit code 1: loss is nan"),
    ],
    ids=["evicted", "out-of-memory", "own-last-words"],
)
def test_a_failed_job_says_why_its_pods_failed_and_keeps_it(space, job, capsys, pod_status, why):
    pods = [space.pod(space.get(JOB, job), index) for index in range(2)]
    for name in pods:
        space.run_container(name)
        if reason := pod_status.get("containerStatuses"):
            words = {"message": "loss is nan\nmore"} if reason == "Error" else {}
            space.end_container(name, exit_code=1 if words else 137, reason=reason, **words)
        else:
            space.set_status("Pod", name, {"phase": "Failed", **pod_status})
    space.conditions(job, "Failed")
    shown = status(job, capsys)
    assert f"JobFailed: is Failed; {pods[0]} on node-1 and 1 more: {why}" in shown
    space.admin.delete(path(JOB, space.name, job), space.get(JOB, job)["metadata"]["uid"])
    assert why in status(job, capsys)


def test_a_pod_s_own_words_hold_no_secret_and_no_escape_sequences():
    from launcher.backends.kubernetes.pod_report import reason

    words = "bad token hf_" + "a" * 34 + " \x1b[2Jgone"
    pod = {"metadata": {"name": "p"}, "status": {"reason": "Evicted", "message": words}}
    assert reason(pod) == "Evicted: bad token …  [2Jgone"
