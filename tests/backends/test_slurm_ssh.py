"""Jobs that are launched from another machine: a real sshd in front of a real Slurm."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
import ssh_server
from background import Collected, await_true
from conftest import written
from job_suite import *  # noqa: F403  # with this module's stage
from job_suite import running
from log_texts import log_texts
from test_slurm_jobs import PLAIN, TINY, SlurmStage, finished, headline, refused

from launcher import pipeline
from launcher.backends.slurm import host, place
from launcher.backends.slurm.backend import SlurmBackend
from launcher.backends.slurm.host import place_of
from launcher.backends.slurm.ssh import ENV_CONFIG, Connection
from launcher.cli import main as cli
from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.job_spec import JobState, LogSelection

pytestmark = pytest.mark.whole_job
THERE = (f"cluster.ssh={ssh_server.NAME}", "cluster.ssh_folder='my jobs'", f"cluster.python={sys.executable}")
PATH = "/usr/local/bin:/usr/bin:/bin"
OWN_FOLDER = ("cluster.code=folder",)
"""For jobs without code of the user's own."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A login node; this process itself does not know the cluster."""
    if missing := [*slurm_cluster.absent(), *ssh_server.absent()]:
        pytest.skip(f"no {', '.join(missing)}: {slurm_cluster.INSTALL}")
    with (
        slurm_cluster.running(tmp_path_factory.mktemp("slurm"), num_nodes=8) as cluster,
        ssh_server.running(tmp_path_factory.mktemp("ssh"), cluster.conf) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.delenv("SLURM_CONF", raising=False)
        patch.setenv(ENV_CONFIG, str(server.config))
        server.cluster = cluster
        yield server


def there(bundle_dir):
    """Return the folder of a bundle's copy."""
    return Path(place_of({"ssh": ssh_server.NAME, "ssh_folder": "my jobs"}).folder_of(bundle_dir))


class SshStage(SlurmStage):
    """Jobs whose workers do as a file on the other machine tells them."""

    def __init__(self, folder):
        super().__init__(folder)
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)

    def bundle(self, name, *words):
        return super().bundle(name, *THERE, *words)

    def orders(self, handle, rank):
        return there(handle.bundle_dir) / RUN_DIR / f"orders-{rank}"


@pytest.fixture(scope="module")
def stage(server, tmp_path_factory):
    return SshStage(tmp_path_factory.mktemp("conformance"))


def test_the_copy_is_the_bundle_and_this_machine_has_what_the_job_wrote(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret value")
    words = [*PLAIN, *THERE, *OWN_FOLDER, "env_vars={HUB: {env: MY_TOKEN}}"]
    program = server.home / "show"
    program.write_text('#!/bin/sh\nprintf "%s" "$HUB" > "$RECIPES_RUN_DIR/hub"; pwd; exit 3\n')
    program.chmod(0o755)
    bundle = written(tmp_path, *words, f"cluster.python={program}")
    record = pipeline.submit(bundle, SlurmBackend())
    *_, status = SlurmBackend().wait(record.handle)
    assert (status.state, headline(status)) == (JobState.FAILED, "exit code 3")
    assert cli.run(("wait", str(bundle.directory))) == 3
    copy = there(bundle.directory)
    assert copy.parent == server.home / "my jobs" and copy.parent != bundle.directory.parent
    assert {name: (copy / name).read_text() for name in bundle.files} == dict(bundle.files)
    assert (copy / RUN_DIR / "hub").read_text() == "s3cret value"
    shown = (bundle.directory / RUN_DIR / f"slurm-{record.handle.native_id}.log").read_text()
    assert str(server.home / "my jobs") in shown.splitlines()
    everything = [path for path in server.home.rglob("*") if path.is_file() and path.name != "hub"]
    assert everything and not [path for path in everything if b"s3cret" in path.read_bytes()]


def test_the_tiny_recipe_trains_with_this_launcher_and_its_metrics_come_back(server, tmp_path):
    record = pipeline.submit(written(tmp_path, *TINY, *THERE, *OWN_FOLDER), SlurmBackend())
    lines = Collected(log_texts(SlurmBackend(), record.handle, follow=True))
    finished(record)
    metrics = (record.handle.bundle_dir / RUN_DIR / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in metrics]
    assert steps == list(range(1, len(steps) + 1))
    assert lines.result()[-1] == "event  Completed: attempt 0 has completed"
    shutil.rmtree(record.handle.bundle_dir / RUN_DIR)
    first = log_texts(SlurmBackend(), record.handle, LogSelection(attempt=0), follow=False)
    assert list(first) == [line for line in lines.result() if not line.startswith("event  ")]


def test_a_lost_connection_is_waited_for(stage, server):
    record = pipeline.submit(stage.bundle("lost"), SlurmBackend())
    running(stage, record)
    waiter = Collected(SlurmBackend().wait(record.handle))
    follower = Collected(log_texts(SlurmBackend(), record.handle, follow=True))
    stage.say(record.handle, 0, "before")
    await_true(lambda: "before" in follower.got and waiter.got)
    copy = there(record.handle.bundle_dir)
    server.stop()
    with (copy / RUN_DIR / "orders-0").open("a") as file:
        file.write("say meanwhile\n")
    with pytest.raises(ProblemsFound, match="E455"):
        SlurmBackend().status(record.handle)
    server.start()
    await_true(lambda: "meanwhile" in follower.got)
    stage.end(record.handle, JobState.SUCCEEDED)
    assert waiter.result()[-1].state is JobState.SUCCEEDED
    assert [line for line in follower.result() if not line.startswith("event  ")] == ["before", "meanwhile"]


def test_what_is_known_is_not_copied_again(stage, server, monkeypatch):
    record = pipeline.submit(stage.bundle("long"), SlurmBackend())
    running(stage, record)
    follower = Collected(log_texts(SlurmBackend(), record.handle, follow=True))
    stage.say(record.handle, 0, "x" * 100_000)
    await_true(lambda: "x" * 100_000 in follower.got)
    answers = []
    monkeypatch.setattr(Connection, "rsync", lambda *_words: False)
    monkeypatch.setattr(host, "_written", lambda *words: answers.append(len(words[0])) or _WRITTEN(*words))
    stage.say(record.handle, 0, "y")
    await_true(lambda: "y" in follower.got)
    assert answers and max(answers) < 10_000
    SlurmBackend().cancel(record.handle)
    assert follower.result()[-1].startswith(("fault  Stopped", "y"))


_WRITTEN = host._written


@pytest.fixture
def lossy_sbatch(server, tmp_path):
    """Return a function that makes sbatch end its connection after it has submitted, and the server if requested."""

    def install(*, ends_server):
        wrapper = tmp_path / "bin" / "sbatch"
        wrapper.parent.mkdir()
        wrapper.write_text(
            f'#!/bin/bash\nPATH={PATH}\n[[ $1 == --parsable ]] || exec sbatch "$@"\nsbatch "$@" > "$HOME/submitted"\n'
            "pid=$PPID; while [[ $(< /proc/$pid/comm) != sshd ]]; do pid=$(($(ps -o ppid= -p $pid))); done\n"
            + ("kill -9 $(ps -o ppid= -p $pid) $pid\n" if ends_server else "kill -9 $pid\n")
        )
        wrapper.chmod(0o755)
        (server.home / "path").write_text(f"{wrapper.parent}:{PATH}")

    yield install
    (server.home / "path").unlink()


def test_a_submission_whose_answer_was_lost_is_found_at_once(server, tmp_path, lossy_sbatch):
    lossy_sbatch(ends_server=False)
    bundle = written(tmp_path, *PLAIN, *THERE[:2], *OWN_FOLDER)
    record = pipeline.submit(bundle, SlurmBackend())
    assert record.handle.native_id == (server.home / "submitted").read_text().strip()
    finished(record)
    assert SlurmBackend().status(SlurmBackend().intent(bundle, None)).state is JobState.SUCCEEDED
    assert not SlurmBackend().submit(bundle).is_new


def test_a_submission_that_is_not_known_to_have_failed_is_not_repeated(server, tmp_path, lossy_sbatch):
    lossy_sbatch(ends_server=True)
    bundle = written(tmp_path, *PLAIN, *THERE[:2], *OWN_FOLDER, "training_cfg.run.name=unknown")
    with pytest.raises(ProblemsFound, match="E455") as error:
        pipeline.submit(bundle, SlurmBackend())
    server.processes.pop().wait()
    server.start()
    assert "finds or submits it" in error.value.outcome
    handle = registry.read(bundle.directory).handle  # recorded before
    assert SlurmBackend().status(handle).state is not JobState.DELETED
    again = SlurmBackend().submit(bundle)
    assert (again.native_id, again.is_new) == ((server.home / "submitted").read_text().strip(), False)


@pytest.mark.parametrize(
    ("words", "code", "key", "message"),
    [
        (("cluster.partition=nope",), "E445", "cluster.partition", "nvalid partition"),
        (("training_cfg.run.nodes=9",), "E446", "recipes.training_cfg.run.nodes", "more than partition main"),
    ],
    ids=["partition", "nodes"],
)
def test_what_keeps_a_job_from_being_submitted_is_a_problem(server, tmp_path, words, code, key, message):
    (problem,) = refused(tmp_path, *PLAIN, *THERE[:2], *OWN_FOLDER, *words)
    assert (problem.code, problem.path) == (code, key)
    assert message in problem.message


@pytest.mark.parametrize(
    ("name", "code", "message", "remedy"),
    [
        (ssh_server.NOBODY, "E455", "Connection refused", "must work without a question"),
        ("bad-host", "E455", "Could not resolve hostname", "correct the name"),
        (ssh_server.STRANGER, "E456", "Host key verification failed", "connect once by hand"),
        (ssh_server.REFUSED, "E456", "Permission denied", "ssh-add"),
    ],
    ids=["nobody", "unresolved", "host key", "key"],
)
def test_a_host_that_is_not_reached_is_a_problem(server, tmp_path, name, code, message, remedy):
    problem = unreached(tmp_path, f"cluster.ssh={name}")
    assert (problem.code, problem.path, problem.value) == (code, "cluster.ssh", name)
    assert message in problem.message and remedy in problem.remedy


def unreached(folder, *words):
    """Return the Problem of a submission and of a validation; nothing of them is left."""
    bundle = written(folder, *PLAIN, *THERE[:2], *OWN_FOLDER, *words)
    with pytest.raises(ProblemsFound) as error:
        pipeline.submit(bundle, SlurmBackend())
    with pytest.raises(ProblemsFound) as again:
        SlurmBackend().validate(bundle)
    assert error.value.problems[0].code == again.value.problems[0].code
    assert registry.read(bundle.directory) is None
    return error.value.problems[0]


def test_a_folder_that_cannot_be_written_is_a_problem(server, tmp_path):
    bundle = written(tmp_path, *PLAIN, THERE[0], *OWN_FOLDER, "cluster.ssh_folder=/proc/mine")
    with pytest.raises(ProblemsFound, match="E457") as error:
        pipeline.submit(bundle, SlurmBackend())
    assert error.value.problems[0].path == "cluster.ssh_folder"
    assert registry.read(bundle.directory) is None


def test_a_host_without_slurm_is_a_problem(server, tmp_path, monkeypatch):
    monkeypatch.setattr(place.RECENT, "_answers", {})
    (server.home / "path").write_text("/nowhere")
    try:
        problem = unreached(tmp_path)
    finally:
        (server.home / "path").unlink()
    assert problem.code == "E447" and "login node" in problem.remedy


def test_a_machine_without_ssh_is_a_problem(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = unreached(tmp_path)
    assert problem.code == "E455" and "install ssh" in problem.remedy


@pytest.mark.parametrize("name", ["-oProxyCommand=id", "me@-x", "a b", "a;id", "me@host@host", ""], ids=str)
def test_a_destination_is_a_name(tmp_path, name):
    with pytest.raises(ProblemsFound, match="E102"):
        written(tmp_path, *PLAIN, f"cluster.ssh={json.dumps(name)}")


def test_hostile_names_are_data(server, tmp_path):
    evil = "a 'b' \"c\" $(touch pwned) `touch pwned`; touch pwned"
    word = json.dumps(evil)
    folder = server.home / evil
    folder.mkdir()
    (folder / "print it").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > "$RECIPES_RUN_DIR/words"; pwd\n')
    (folder / "print it").chmod(0o755)
    words = [
        *PLAIN,
        THERE[0],
        *OWN_FOLDER,
        f"cluster.ssh_folder={word}",
        f"++training_cfg.script_args=[{{--w: {word}}}]",
    ]
    words.append(f"cluster.python={json.dumps(str(folder / 'print it'))}")
    record = pipeline.submit(written(tmp_path, *words), SlurmBackend())
    finished(record)
    copy = Path(place_of({"ssh": ssh_server.NAME, "ssh_folder": evil}).folder_of(record.handle.bundle_dir))
    assert evil in (copy / RUN_DIR / "words").read_text().split("\0")
    assert not [*server.home.rglob("pwned"), *tmp_path.rglob("pwned")]


def test_the_files_of_a_login_do_not_change_slurm_s_commands(server, tmp_path):
    profile = server.home / ".bash_profile"
    before = profile.read_text()
    profile.write_text(
        f"{before}export SQUEUE_PARTITION={slurm_cluster.SMALL} SQUEUE_STATES=CD SLURM_CLUSTERS=nowhere\n"
        "squeue() { echo wrapped; }\nexport -f squeue\n"
    )
    try:
        bundle = written(tmp_path, *PLAIN, *THERE[:2], *OWN_FOLDER, "cluster.additional_parameters={hold: true}")
        record = pipeline.submit(bundle, SlurmBackend())
        assert not SlurmBackend().submit(bundle).is_new
        assert SlurmBackend().status(SlurmBackend().intent(bundle, None)).state is JobState.PENDING
        SlurmBackend().cancel(record.handle)
    finally:
        profile.write_text(before)


def test_a_job_that_fails_before_its_ranks_write_says_why(server, tmp_path, capsys):
    bundle = written(tmp_path, *PLAIN[:-1], *THERE[:2], *OWN_FOLDER, "cluster.python=/nowhere/python")
    pipeline.submit(bundle, SlurmBackend())
    for command, code in (("wait", 3), ("logs", 0), ("status", 0)):
        assert cli.run((command, str(bundle.directory))) == code
        assert "/nowhere/python" in capsys.readouterr().out, command
