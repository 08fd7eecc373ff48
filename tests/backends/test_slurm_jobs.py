"""Jobs on a real Slurm: the suite of every backend, and what concerns Slurm alone."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import slurm_cluster
from background import Collected, await_true
from conftest import LLAMA, ROOT, written
from job_suite import *  # noqa: F403  # with this module's stage
from job_suite import NODES, WORKER, OrderedStage, running
from log_texts import log_texts, shown

from launcher import pipeline
from launcher.backends.slurm import follow as following
from launcher.backends.slurm import run_files
from launcher.backends.slurm.backend import SlurmBackend
from launcher.backends.slurm.options import Settings
from launcher.backends.slurm.place import HERE
from launcher.backends.slurm.queue import queue_of
from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.job_spec import JobState, LogSelection

pytestmark = pytest.mark.whole_job
SCRIPT = (
    "recipes=training/custom/script",
    "cluster=slurm",
    "instance_type=m5.2xlarge",
    "recipes.training_config.mlflow.enabled=false",
    "training_cfg.run.ntasks_per_node=1",
)
TINY = (
    "recipes=training/tiny/tiny_lm_cpu",
    "cluster=slurm",
    "instance_type=m5.2xlarge",
    "recipes.training_config.mlflow.enabled=false",
    "recipes.elastic_policy.is_elastic=false",
    "recipes.trainer.devices=1",
    f"recipes.trainer.num_nodes={NODES}",
    "recipes.training_config.datasets.train_data.limit=640",
    "recipes.training_config.training_args.max_epochs=1",
)
END_TIMEOUT_S = 500.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.used(tmp_path_factory.mktemp("slurm"), num_nodes=8) as cluster:
        yield cluster


class SlurmStage(OrderedStage):
    """Jobs whose workers do as a file tells them."""

    def __init__(self, folder):
        self._folder = folder
        (folder / "worker.py").write_text(WORKER)

    def backend(self):
        return SlurmBackend()

    def bundle(self, name, *words):
        size = (f"training_cfg.run.nodes={NODES}", f"training_cfg.run.name={name}")
        return written(self._folder, *SCRIPT, "training_cfg.entry_script=worker.py", *size, *words)


@pytest.fixture(scope="module")
def stage(cluster, tmp_path_factory):
    return SlurmStage(tmp_path_factory.mktemp("conformance"))


def finished(record, state=JobState.SUCCEEDED):
    *_, status = SlurmBackend().wait(record.handle, timeout_s=END_TIMEOUT_S)
    assert status.state is state, f"{status}\n{written_by(record)}"
    return status


def written_by(record):
    """Return what a job, its nodes and its workers have written."""
    run_dir = record.handle.bundle_dir / RUN_DIR
    paths = [*run_dir.glob("slurm-*"), *run_dir.glob("slurm/*/events.jsonl"), *run_dir.glob("slurm/*/logs/**/*.log")]
    return "".join(f"--- {path}\n{path.read_text(errors='replace')}\n" for path in paths)


def headline(status):
    """Return why a job has ended, without what its batch script printed last."""
    return status.message.partition("\n")[0]


def refused(folder, *words):
    """Return the Problems of a submission; nothing of it is left."""
    bundle = written(folder, *words)
    with pytest.raises(ProblemsFound) as error:
        pipeline.submit(bundle, SlurmBackend())
    assert registry.read(bundle.directory) is None
    assert SlurmBackend().validate(bundle) == error.value.problems
    return error.value.problems


PLAIN = (*SCRIPT, "training_cfg.entry_module=json.tool", "training_cfg.run.nodes=1", "cluster.python=/bin/true")
"""A job of a program that succeeds at once."""


def test_a_job_s_size_is_fixed(stage, submitted):
    record = submitted["stays"]
    running(stage, record)
    with pytest.raises(ProblemsFound, match="E413") as error:
        stage.backend().scale(record.handle, 3)
    assert error.value.problems[0].allowed == str(NODES)


@pytest.mark.sample
def test_the_tiny_recipe_trains_on_two_nodes(cluster, tmp_path):
    record = pipeline.submit(written(tmp_path, *TINY), SlurmBackend())
    every = Collected(log_texts(SlurmBackend(), record.handle, LogSelection(ranks=None), follow=True))
    finished(record)
    lines = every.result()
    assert lines[-1] == "event  Completed: attempt 0 has completed"
    metrics = (record.handle.bundle_dir / RUN_DIR / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in metrics]
    assert steps == list(range(1, len(steps) + 1))
    assert [line for line in lines if line.startswith(f"rank 0 | finished at step {steps[-1]},")]


def test_the_open_trainer_rehearses_without_a_container(cluster, tmp_path):
    words = (
        *(f"recipes={LLAMA}", "cluster=slurm", "cluster.trainer=open", "container=null", "rehearse=true"),
        *("instance_type=ml.p5.48xlarge", "recipes.trainer.devices=1", f"recipes.trainer.num_nodes={NODES}"),
        "recipes.training_config.mlflow.enabled=false",
    )
    record = pipeline.submit(written(tmp_path, *words), SlurmBackend())
    finished(record)
    lines = list(log_texts(SlurmBackend(), record.handle, follow=False))
    assert any("world 2" in line for line in lines), lines
    assert (record.handle.bundle_dir / RUN_DIR / "model").is_dir()


def test_ten_jobs_at_once_need_one_poll_per_interval(cluster, tmp_path):
    records = [pipeline.submit(written(tmp_path / str(i), *PLAIN), SlurmBackend()) for i in range(10)]
    assert len({record.handle.native_id for record in records}) == 10
    before = queue_of(HERE).polls
    queue_of(HERE).forget()
    assert len([SlurmBackend().status(record.handle) for record in records]) == 10
    assert queue_of(HERE).polls - before <= 5  # not ten; several where the machine is so slow that answers grow old
    for record in records:
        finished(record)


@pytest.mark.parametrize(
    ("words", "code", "key", "message"),
    [
        (("cluster.partition=nope",), "E445", "cluster.partition", "nvalid partition"),
        (("cluster.nodelist=elsewhere",), "E445", "cluster.nodelist", "Invalid node name"),
        (("cluster.gres=nic:8",), "E445", "cluster.gres", "(gres)"),
        (("cluster.constraint=fast",), "E445", "cluster.constraint", "Invalid feature"),
        (("cluster.reservation=mine",), "E445", "cluster.reservation", "reservation is invalid"),
        (("training_cfg.run.nodes=9",), "E446", "recipes.training_cfg.run.nodes", "is more than partition main"),
        (("cluster.partition=small", "cluster.time=2:00:00"), "E446", "cluster.time", "pending for ever"),
        (("cluster.dependency='afterok:99999'",), "E446", "cluster.dependency", "would not wait"),
        (("env_vars={MY_TOKEN: {env: NOT_SET_ANYWHERE}}",), "E448", "env_vars.MY_TOKEN", "is not set"),
    ],
    ids=["partition", "node", "gres", "feature", "reservation", "nodes", "time", "dependency", "secret"],
)
def test_what_slurm_refuses_or_never_starts_is_a_problem_with_our_key(cluster, tmp_path, words, code, key, message):
    (problem,) = refused(tmp_path, *PLAIN, *words)
    assert (problem.code, problem.path) == (code, key)
    assert message in problem.message


@pytest.mark.sample
def test_a_killed_launch_finds_its_job(cluster, tmp_path):
    bundle = written(tmp_path, *PLAIN)
    backend = SlurmBackend()
    intent = backend.intent(bundle, None)
    assert not intent.native_id and backend.status(intent).state is JobState.DELETED
    first = backend.submit(bundle)  # and no record of it
    assert backend.status(intent).state in (JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED)
    again = SlurmBackend().submit(bundle)
    assert (again.native_id, again.is_new) == (first.native_id, False)
    *_, status = backend.wait(intent, timeout_s=END_TIMEOUT_S)
    assert status.state is JobState.SUCCEEDED
    backend.clear(again)
    third = backend.submit(bundle)
    assert third.is_new and third.native_id != first.native_id


def test_hostile_values_are_data(cluster, tmp_path):
    evil = "'\"; touch pwned; $(touch pwned) `touch pwned` \\ # packjob --time=1"
    folder = tmp_path / "it's a $(touch pwned) folder"
    words = [
        *PLAIN,
        f"cluster.comment={_typed(evil)}",
        f"env_vars={{EVIL: {_typed(evil)}}}",
        f"cluster.additional_parameters={{wckey: {_typed('x')}, nice: 3}}",
        f"cluster.mail_user={_typed(evil)}",
        f"cluster.container_mounts=[{_typed(evil)}]",
        f"++training_cfg.script_args=[{{--word: {_typed(evil)}}}]",
    ]
    words[words.index("cluster.python=/bin/true")] = f"cluster.python={_typed(str(folder / 'print $words'))}"
    folder.mkdir()
    program = folder / "print $words"
    program.write_text('#!/bin/sh\nenv -0 > "$RECIPES_RUN_DIR/env"; printf "%s\\0" "$@" > "$RECIPES_RUN_DIR/words"\n')
    program.chmod(0o755)
    record = pipeline.submit(written(folder, *words), SlurmBackend())
    finished(record)
    run = record.handle.bundle_dir / RUN_DIR
    assert f"EVIL={evil}" in (run / "env").read_text().split("\0")
    assert evil in (run / "words").read_text().split("\0")
    shown = cluster.command("scontrol", "--oneliner", "show", "job", record.handle.native_id)
    assert f"Comment={evil} " in shown and "Nice=3 " in shown
    assert not list(tmp_path.rglob("pwned"))


def _typed(text):
    """Return a text as a quoted word of an override. Source: Hydra, Override grammar, Quoted values."""
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def test_a_path_that_slurm_would_rewrite_is_refused(tmp_path):
    with pytest.raises(ProblemsFound, match="E444"):
        written(tmp_path / "%j", *PLAIN)


def test_without_sacct_an_end_is_known_after_slurm_has_forgotten_it(cluster, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name != "sacct":
            (programs / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(programs))
    record = pipeline.submit(written(tmp_path, *PLAIN, "cluster.python=/bin/false"), SlurmBackend())
    status = finished(record, JobState.FAILED)
    assert headline(status) == "exit code 1"
    own = run_files.jobs_folder(record.handle.bundle_dir) / record.handle.native_id
    own.rename(own.with_name("999999"))  # an id that this controller does not know
    found = SlurmBackend().status(replace(record.handle, native_id="999999"))
    assert (found.state, headline(found)) == (status.state, "exit code 1")


def test_a_requeued_job_is_followed_through_its_attempts(stage, cluster):
    record = pipeline.submit(stage.bundle("requeued"), SlurmBackend())
    running(stage, record)
    every = Collected(log_texts(stage.backend(), record.handle, LogSelection(has_headings=True), follow=True))
    stage.say(record.handle, 0, "once")
    await_true(lambda: "once" in every.got)
    (record.handle.bundle_dir / RUN_DIR / "orders-0").unlink()
    cluster.command("scontrol", "requeue", record.handle.native_id)
    await_true(lambda: "BeginTime" in SlurmBackend().status(record.handle).message)
    cluster.command("scontrol", "update", f"JobId={record.handle.native_id}", "StartTime=now")
    assert running(stage, record)
    stage.say(record.handle, 0, "twice")
    await_true(lambda: "twice" in every.got)
    stage.end(record.handle, JobState.SUCCEEDED)
    assert finished(record).restarts == 1
    lines = [line for line in every.result() if not line.startswith(("event  ", "fault  "))]
    assert lines == ["== attempt 0: 2 nodes", "once", "== attempt 1: 2 nodes", "twice"]
    assert list(log_texts(SlurmBackend(), record.handle, LogSelection(attempt=1), follow=False)) == ["twice"]


def test_log_files_that_appear_after_the_job_s_end_are_shown(stage, cluster):
    """A file system that nodes share shows a new folder late."""
    record = pipeline.submit(stage.bundle("late"), SlurmBackend())
    running(stage, record)
    stage.say(record.handle, 1, "late")
    stage.end(record.handle, JobState.SUCCEEDED)
    finished(record)
    logs = run_files.jobs_folder(record.handle.bundle_dir) / record.handle.native_id / "logs"
    hidden = logs.rename(logs.with_name("hidden"))
    job, looks = following.find(record.handle)[0], []

    def status():
        looks.append(1)
        return SlurmBackend().status(record.handle)

    follower = Collected(shown(job.lines(LogSelection(ranks=(1,)), status, follow=True)))
    await_true(lambda: len(looks) > 2 * following._LATE_LOOKS)
    hidden.rename(logs)
    assert "late" in follower.result()


def test_a_controller_that_restarts_is_waited_for(stage, cluster):
    record = pipeline.submit(stage.bundle("restarted"), SlurmBackend())
    running(stage, record)
    waiter = Collected(SlurmBackend().wait(record.handle))
    follower = Collected(log_texts(SlurmBackend(), record.handle, follow=True))
    await_true(lambda: waiter.got)
    cluster.stop("slurmctld")
    stage.say(record.handle, 0, "meanwhile")
    stage.end(record.handle, JobState.SUCCEEDED)
    cluster.start("slurmctld")
    assert waiter.result()[-1].state is JobState.SUCCEEDED
    assert "meanwhile" in follower.result()


def test_a_container_without_privileges_runs_the_program(cluster, tmp_path):
    """The image has no file of its own: this machine's system is mounted into it."""
    image = tmp_path / "image"
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "home", "var"):
        (image / name).mkdir(parents=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (image / "etc" / name).touch()
    for name in ("bin", "lib", "lib64", "sbin"):
        if os.path.islink(f"/{name}"):
            (image / name).symlink_to(f"usr/{name}")
    program = "import os; print(os.environ['RANK'], os.path.exists('/run'), os.environ['MINE'])"
    (tmp_path / "show.py").write_text(program)
    words = (
        *SCRIPT,
        f"container={image}",
        "cluster.container_runtime=charliecloud",
        f"cluster.container_mounts=[/usr,{sys.base_prefix},{ROOT},{tmp_path}]",
        f"cluster.python={sys.executable}",
        f"training_cfg.entry_script={tmp_path}/show.py",
        f"training_cfg.run.nodes={NODES}",
        "env_vars={MINE: 'a b'}",
    )
    record = pipeline.submit(written(tmp_path, *words), SlurmBackend())
    finished(record)
    lines = list(log_texts(SlurmBackend(), record.handle, LogSelection(ranks=(0, 1)), follow=False))
    assert lines == ["rank 0 | 0 False a b", "rank 1 | 1 False a b"]


def test_a_cancelled_job_leaves_no_process(stage, cluster):
    record = pipeline.submit(stage.bundle("killed"), SlurmBackend())
    running(stage, record)
    worker = str(record.handle.bundle_dir)
    await_true(lambda: _processes(worker))
    SlurmBackend().cancel(record.handle)
    assert SlurmBackend().status(record.handle).state is JobState.CANCELLED
    assert not _processes(worker)


def _processes(folder):
    """Return the processes of a job's bundle."""
    own = f"{folder}/{RUN_DIR}".encode()
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if own in _content(path)]


def _content(path):
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


COMMANDS = ("setup",)
"""Keys whose values are commands by intent."""
TEXTS = sorted(
    name for name, field in Settings.model_fields.items() if "str" in str(field.annotation) and name not in COMMANDS
)
RUN_TASK = """#!/bin/bash
while [[ $1 != bash ]]; do shift; done
SLURM_NODEID=0 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_ID=0 exec "$@"
"""
"""Stands for srun in a test of quoting."""


@pytest.mark.parametrize("key", TEXTS)
def test_a_hostile_value_of_any_key_is_data_or_refused(cluster, tmp_path, key):
    """Of every key that takes a text, alone or in a list; the scripts are run with programs that do nothing."""
    evil = "a'\"; touch pwned; $(touch pwned) `touch pwned` \\ # --time=1"
    evil = f"/{evil}" if key == "container_mounts" else evil
    kind = str(Settings.model_fields[key].annotation)
    value = {"additional_parameters": f"{{wckey: {_typed(evil)}}}"}.get(key, _typed(evil))
    value = f"[{value}]" if "list[" in kind else value
    image = ("container=/image", "cluster.container_runtime=apptainer")
    try:
        bundle = written(tmp_path, *PLAIN, *image, f"cluster.{key}={value}")
    except ProblemsFound as error:
        assert all(problem.path.startswith(f"cluster.{key}") for problem in error.problems)
        return
    SlurmBackend().validate(bundle)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "cksum", "cut", "date", "env", "grep", "mkdir", "timeout", "touch"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    for name, text in (("srun", RUN_TASK), ("squeue", "#!/bin/bash\n"), ("scontrol", "#!/bin/bash\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "apptainer").write_text('#!/bin/bash\nprintf "%s\\0" "$@" > started\n')
    (programs / "apptainer").chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(bundle.directory), "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}
    env = {"PATH": str(programs), "SLURM_JOB_NODELIST": "n1", **job}
    done = subprocess.run(
        ("/bin/bash", bundle.directory / "slurm/job.sh"), cwd=tmp_path, env=env, capture_output=True
    )
    assert (tmp_path / "started").exists(), done.stderr
    assert not list(tmp_path.rglob("pwned"))
    assert key not in ("python", "container_mounts") or evil in (tmp_path / "started").read_text()
