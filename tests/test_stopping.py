"""How a pod ends: its grace period in every template, and its start script as a process tree that gets SIGTERM."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from conftest import ELASTIC, LLAMA_K8S
from contained import Contained
from manifest_schemas import TIERS, templates

from launcher.common import yaml_io

KUBEFLOW = "cluster.use_hyperpod_pytorch_job=false"
GRACEFUL = "recipes.elastic_policy.graceful_shutdown_timeout"
PROGRAM = """
import os, pathlib, signal, sys, time

def save(*_):
    os.write(1, b"saving\\n")  # at once: a second signal may come in the middle of a print
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    pathlib.Path("checkpoint").write_text("step 5")
    print("saved", flush=True)
    sys.exit(7)

signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while not pathlib.Path("done").exists():
    time.sleep(0.01)
sys.exit(3)
"""
IMAGE_SCRIPT = "#!/usr/bin/env bash\n{}{} {}\n"


def grace_periods(bundle):
    job = yaml_io.load(bundle.files["manifests/job.yaml"])
    return [template["spec"]["terminationGracePeriodSeconds"] for template in templates(job)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), [660]),
        ((ELASTIC, f"{GRACEFUL}=1200"), [1260]),
        ((ELASTIC, TIERS, f"{GRACEFUL}=900"), [960, 960]),
        ((ELASTIC, f"{GRACEFUL}=null"), [660]),
        ((ELASTIC, f"{GRACEFUL}=0"), [660]),
        ((f"++{GRACEFUL}=1200",), [1260]),
        (
            (
                KUBEFLOW,
                "recipes.trainer.num_nodes=2",
                "recipes.training_config.training_args.train_batch_size=16",
                f"++{GRACEFUL}=1200",
            ),
            [1260, 1260],
        ),
    ],
    ids=["static", "elastic", "two-parts", "no-timeout", "zero", "static-with-timeout", "kubeflow"],
)
def test_every_pod_template_has_the_graceful_timeout_and_a_margin(render, overrides, expected):
    assert grace_periods(render(*LLAMA_K8S, *overrides)) == expected


SCRIPT = (
    *("recipes=training/custom/script", "cluster=k8s", "container=me/image:1", "instance_type=ml.m5.2xlarge"),
    "training_cfg.entry_script=/app/train.py",
)


def test_agent_and_torchrun_wait_as_long_for_their_workers(render):
    def pod(*words):
        (template, *_) = templates(yaml_io.load(render(*SCRIPT, *words).files["manifests/job.yaml"]))
        return template["spec"]["containers"][0]

    timeout = f"++{GRACEFUL}=900"
    policy = "++recipes.elastic_policy={is_elastic: false, min_nodes: 1, max_nodes: 1, use_graceful_shutdown: true}"
    assert "--shutdown-timeout=900" in pod(policy, timeout)["command"]
    own = pod(policy, timeout, "cluster.runtime=launcher")
    assert {"name": "SHUTDOWN_TIMEOUT", "value": "900"} in own["env"]
    kubeflow = pod(policy, timeout, KUBEFLOW)
    assert {"name": "PET_SHUTDOWN_TIMEOUT", "value": "900"} in kubeflow["env"]
    assert "PET_SHUTDOWN_TIMEOUT" not in {entry["name"] for entry in pod()["env"]}


def test_a_command_of_the_users_own_stays_and_may_use_the_script(render):
    files = render(*LLAMA_K8S, "cluster.command=[/bin/bash, /config/start.sh, python, x.py]").files
    (template,) = templates(yaml_io.load(files["manifests/job.yaml"]))
    assert template["spec"]["containers"][0]["command"] == ["/bin/bash", "/config/start.sh", "python", "x.py"]
    assert "tee" not in yaml_io.load(files["manifests/configmap.yaml"])["data"]["start.sh"].replace(
        "tee outlives", ""
    )


@pytest.mark.parametrize("overrides", [(), (ELASTIC,), (KUBEFLOW,)], ids=["static", "elastic", "kubeflow"])
def test_shellcheck_finds_nothing_in_the_start_script(render, tmp_path, overrides, shellcheck):
    path = tmp_path / "start.sh"
    path.write_text(start_script(render(*LLAMA_K8S, DATA, *overrides)))
    shellcheck(path, exclude="SC2329")


# The script as a process tree


def start_script(bundle):
    return yaml_io.load(bundle.files["manifests/configmap.yaml"])["data"]["start.sh"]


DATA = "cluster.persistent_volume_claims=[{claimName: fsx, mountPath: /data}]"
VOLUME = "cluster.volumes=[{{volumeName: a, hostPath: /mnt, mountPath: {}}}]"
LOG = "/data/training.log"


@pytest.mark.parametrize(
    ("mounts", "is_kept"),
    [
        ((), False),
        ((DATA,), True),
        ((VOLUME.format("/data"),), True),
        ((VOLUME.format("/data/"),), True),
        ((VOLUME.format("//data"),), True),
        ((VOLUME.format("/database"),), False),
        ((VOLUME.format("/data/models"),), False),
        ((VOLUME.format("/data, readOnly: true"),), False),
        ((DATA, VOLUME.format("/data/training.log, readOnly: true")), False),
        ((VOLUME.format("/data, readOnly: true"), DATA.replace("/data", "/data/training.log")), True),
    ],
)
def test_the_image_s_log_file_is_written_where_it_outlives_the_pod(render, prepare, mounts, is_kept):
    script = start_script(render(*LLAMA_K8S, *mounts))
    noticed = [notice.message for notice in prepare(*LLAMA_K8S, *mounts).notices if notice.code == "N166"]
    assert (LOG in script) is is_kept
    assert [LOG in text and "mountPath: /data" in text for text in noticed] == ([] if is_kept else [True])


@pytest.mark.parametrize("own", ["cluster.command=[train]", "cluster.runtime=launcher"])
def test_a_command_without_the_image_s_log_file_gets_no_notice_of_it(prepare, own):
    codes = {notice.code for notice in prepare(*LLAMA_K8S, "container=me/image:1", own).notices}
    assert "N166" not in codes


def test_a_pod_without_the_log_s_folder_trains_and_prints_all_lines(render, image, tmp_path):
    with Container(render(*LLAMA_K8S), tmp_path, [image("exec ")]) as pod:
        pod.until(lambda: "training" in pod.log())
        (tmp_path / "done").touch()
        assert pod.wait() == 3
    assert pod.log() == "training\n"


class Container(Contained):
    """A pod's container: its rendered command."""

    def __init__(self, bundle, work, program, **variables):
        (container,) = templates(yaml_io.load(bundle.files["manifests/job.yaml"]))[0]["spec"]["containers"]
        assert container["command"][:2] == ["/bin/bash", "/config/start.sh"]
        script = work / "start.sh"
        script.write_text(start_script(bundle).replace("/data/training.log", str(work / "training.log")))
        super().__init__(work, ["/bin/bash", script, *program], {**os.environ, **variables})

    def terminate(self):
        """Send SIGTERM as the kubelet does: to process 1 alone."""
        self.main_process().send_signal(signal.SIGTERM)


@pytest.fixture
def image(tmp_path):
    """Return a function to the program of a published image: a script that starts the agent, with exec or not."""
    (tmp_path / "agent.py").write_text(PROGRAM)

    def made(word=""):
        path = tmp_path / "train-script-gpu.sh"
        path.write_text(IMAGE_SCRIPT.format(word, sys.executable, tmp_path / "agent.py"))
        path.chmod(0o755)
        return path

    return made


@pytest.mark.parametrize(
    ("word", "status"), [("exec ", 7), ("", 128 + signal.SIGTERM)], ids=["exec", "a-shell-that-waits"]
)
def test_sigterm_reaches_the_agent_behind_script_and_tee_and_the_pod_waits_for_its_checkpoint(
    render, image, tmp_path, word, status
):
    with Container(render(*LLAMA_K8S, DATA), tmp_path, [image(word)]) as pod:
        pod.until(lambda: "training" in pod.log())
        pod.terminate()
        pod.until(lambda: "saving" in pod.log())
        pod.terminate()  # a second SIGTERM must not cut the first one short
        # Python restores the default handlers while it exits: the signal has to arrive before.
        pod.until(lambda: pod.log().count("saving") == 2)
        assert not (tmp_path / "checkpoint").exists()
        (tmp_path / "go").touch()
        assert pod.wait() == status
    assert (tmp_path / "checkpoint").read_text() == "step 5"
    lines = re.sub("saving\n(?:saving\n)*", "saving\n", (tmp_path / "training.log").read_text())
    assert lines == "training\nsaving\nsaved\n"
    assert pod.log().endswith("saved\n")


@pytest.mark.parametrize("word", ["exec ", ""], ids=["exec", "a-shell-that-waits"])
def test_the_exit_status_of_training_comes_through_tee(render, image, tmp_path, word):
    (tmp_path / "training.log").write_text("earlier\n")
    with Container(render(*LLAMA_K8S, DATA), tmp_path, [image(word)]) as pod:
        pod.until(lambda: "training" in pod.log())
        (tmp_path / "done").touch()
        assert pod.wait() == 3
    assert (tmp_path / "training.log").read_text() == "earlier\ntraining\n"


def test_sigterm_reaches_a_program_without_a_log_file(render, image, tmp_path):
    with Container(render(*SCRIPT), tmp_path, [sys.executable, tmp_path / "agent.py"]) as pod:
        image()
        (tmp_path / "go").touch()
        pod.until(lambda: "training" in pod.log())
        pod.terminate()
        assert pod.wait() == 7
    assert (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("program", "status"), [(["no-such-program"], 127), (["true"], 0), (["bash", "-c", "exit 42"], 42)]
)
def test_the_status_of_a_program_is_the_pods(render, tmp_path, program, status):
    with Container(render(*SCRIPT), tmp_path, program) as pod:
        assert pod.wait() == status


def test_a_program_that_handles_no_signal_ends_at_once(render, tmp_path):
    with Container(render(*SCRIPT), tmp_path, ["bash", "-c", "echo up; exec sleep 600"]) as pod:
        pod.until(lambda: "up" in pod.log())
        pod.terminate()
        assert pod.wait() == 128 + signal.SIGTERM


def test_the_agents_own_timeout_replaces_the_30_s_of_torch(monkeypatch):
    hyperpodrun = pytest.importorskip("launcher.runtime.hyperpodrun")
    from hyperpod_elastic_agent.elastic_agent.plr_hyperpod_elastic_agent import PLRHyperPodElasticAgent

    monkeypatch.setattr(hyperpodrun, "run", lambda args: None)
    monkeypatch.setattr(hyperpodrun.HyperPodElasticAgent, "_shutdown_timeout", None, raising=False)
    hyperpodrun.main(["--shutdown-timeout=77", "train.py"])
    agent = PLRHyperPodElasticAgent.__new__(PLRHyperPodElasticAgent)
    agent._shutdown_timeout = 30  # as SimpleElasticAgent.__init__ does
    assert agent._shutdown_timeout == 77


@pytest.mark.parametrize(
    ("words", "env", "seconds"),
    [((), {}, 0.02), (("--monitor-interval=3",), {}, 3.0), ((), {"PET_MONITOR_INTERVAL": "2"}, 2.0)],
    ids=["default", "option", "variable"],
)
def test_the_agent_looks_at_its_workers_more_often_unless_told_otherwise(monkeypatch, words, env, seconds):
    hyperpodrun = pytest.importorskip("launcher.runtime.hyperpodrun")
    asked = []
    monkeypatch.setattr(hyperpodrun, "run", asked.append)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    hyperpodrun.main([*words, "train.py"])
    assert asked[0].monitor_interval == seconds


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


@pytest.mark.parametrize("has_handler", [True, False], ids=["reaped by the agent", "not reaped by it"])
@pytest.mark.parametrize(
    ("program", "timeout_s"),
    [("print(flush=True); import time; time.sleep(600)", 1e6), (STUBBORN, 0.0), ("print(flush=True)", 1e6)],
    ids=["obeys", "is killed", "has ended"],
)
def test_the_agent_waits_for_the_end_of_a_worker_it_stops(program, timeout_s, has_handler):
    hyperpodrun = pytest.importorskip("launcher.runtime.hyperpodrun")

    class Handler:
        """As torch's SubprocessHandler."""

        proc = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)

        def close(self, signum):
            os.killpg(self.proc.pid, signum)

    def reap(*_):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(Handler.proc.pid, os.WNOHANG)

    before = signal.getsignal(signal.SIGCHLD)
    if has_handler:
        signal.signal(signal.SIGCHLD, reap)
    try:
        with Handler.proc.stdout as output:
            assert output.readline() == b"\n"
            if "sleep" not in program:
                os.waitid(os.P_PID, Handler.proc.pid, os.WEXITED | os.WNOWAIT) if not has_handler else output.read()
            hyperpodrun.close_worker(Handler(), signal.SIGTERM, timeout_s)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not psutil.pid_exists(Handler.proc.pid)
