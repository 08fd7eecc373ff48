"""Jobs as people run them on a real Slurm: a user's own environment, shared nodes, failures, time limits."""

import getpass
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import slurm_cluster
from background import await_true
from conftest import written
from log_texts import log_texts
from test_slurm_interruptions import PACED, SAMPLES, await_step, kinds, trained
from test_slurm_jobs import PLAIN, SCRIPT, SlurmBackend, finished
from test_slurm_rendering import ELASTIC

from launcher import pipeline
from launcher.backends.slurm import programs, run_files
from launcher.cli import main as cli
from launcher.common.names import RUN_DIR
from launcher.model.earlier_jobs import QueuedJob
from launcher.model.job_spec import JobState

pytestmark = pytest.mark.whole_job
MORE = """\
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
KillWait=1
"""
DEVICES = ("null", "zero", "full", "random")
"""Stand for the GPUs of a node."""
COMMANDS = ("squeue", "sacct", "sbatch", "scancel", "scontrol", "sinfo", "srun", "salloc", "sacctmgr")


PATIENCE_S = 120.0
WAITS = """\
#!/bin/bash
trap 'echo saved >> "$RECIPES_RUN_DIR/saved"; exit 1' TERM
echo "$SLURMD_NODENAME $RANK $SLURM_CPUS_ON_NODE ${CUDA_VISIBLE_DEVICES:-$SETUP}" >> "$RECIPES_RUN_DIR/started"
while [ ! -e "$RECIPES_RUN_DIR/go" ]; do sleep 0.1; done
exit "$(< "$RECIPES_RUN_DIR/go")"
"""
"""Runs in place of torchrun, notes where, and waits until it may end; saves when it is asked to end."""


@pytest.fixture
def words(tmp_path):
    """Return the words of a job that runs WAITS."""
    (tmp_path / "waits").write_text(WAITS)
    (tmp_path / "waits").chmod(0o755)
    script = (*SCRIPT, "training_cfg.entry_module=json.tool", "training_cfg.run.nodes=1")
    return (*script, f"cluster.python='{tmp_path}/waits'")


def submitted(folder, *words):
    return pipeline.submit(written(folder, *words), SlurmBackend())


def note(record, name, count=1):
    """Return the lines of a file that a job writes, once it has so many."""
    path = record.handle.bundle_dir / RUN_DIR / name
    await_true(lambda: path.exists() and path.read_text().count("\n") >= count, timeout_s=PATIENCE_S)
    return path.read_text().splitlines()


def let_end(record):
    (record.handle.bundle_dir / RUN_DIR / "go").write_text("0\n")


def forgotten(record):
    """Return the job's handle with an id that this controller does not know, and its files."""
    own = run_files.jobs_folder(record.handle.bundle_dir) / record.handle.native_id
    own.rename(own.with_name("999999"))
    return replace(record.handle, native_id="999999")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "gres.conf").write_text("".join(f"Name=gpu File=/dev/{name}\n" for name in DEVICES))
    with slurm_cluster.used(folder, num_nodes=4, more=MORE, of_nodes=f"Gres=gpu:{len(DEVICES)}") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def idle(cluster):
    """Leave no job to the next test."""
    yield
    cluster.command("scancel", f"--user={getpass.getuser()}")
    cluster.await_ready()


def variables():
    """Return the names of the variables that Slurm's installed commands read."""
    name = re.compile(rf"(?<=\x00)(?:{'|'.join(programs.PREFIXES)})[A-Z0-9_]+(?=\x00)".encode())
    found = {match.decode() for each in COMMANDS for match in name.findall(Path(shutil.which(each)).read_bytes())}
    return sorted(found - set(programs.KEPT))


def test_variables_of_slurm_s_commands_change_nothing(cluster, tmp_path, monkeypatch):
    """SQUEUE_PARTITION alone made a second launch submit a job that existed."""
    names = variables()
    assert {"SQUEUE_PARTITION", "SQUEUE_STATES", "SACCT_FORMAT", "SLURM_CLUSTERS", "SALLOC_QOS"} <= set(names)
    for name in names:
        monkeypatch.setenv(name, slurm_cluster.SMALL)
    bundle = written(tmp_path, *PLAIN, "cluster.additional_parameters={hold: true}")
    record = pipeline.submit(bundle, SlurmBackend())
    assert not SlurmBackend().submit(bundle).is_new
    intent = SlurmBackend().intent(bundle, None)
    assert SlurmBackend().status(intent).state is SlurmBackend().status(record.handle).state is JobState.PENDING
    assert cli.run(("wait", str(bundle.directory), "--timeout", "0.1")) == 2
    SlurmBackend().cancel(record.handle)
    assert SlurmBackend().status(record.handle).state is JobState.CANCELLED


NO_PYTHON = "cluster.python=/nowhere/python"


@pytest.mark.parametrize(
    ("words", "is_elastic"),
    [
        ((*PLAIN[:-1], NO_PYTHON), False),
        ((*ELASTIC, "recipes.training_config.mlflow.enabled=false", NO_PYTHON), True),
    ],
    ids=["fixed", "elastic"],
)
@pytest.mark.parametrize("errors", ["true", "false"], ids=["one-log", "two-logs"])
def test_a_job_that_fails_before_its_ranks_write_says_why(cluster, tmp_path, capsys, words, is_elastic, errors):
    record = submitted(tmp_path, *words, f"cluster.stderr_to_stdout={errors}")
    folder = str(record.handle.bundle_dir)
    assert cli.run(("wait", folder)) == 3
    assert "/nowhere/python" in capsys.readouterr().out
    for command in (("logs", folder), ("logs", "-f", folder), ("status", folder)):
        assert cli.run(command) == 0
        assert "/nowhere/python" in capsys.readouterr().out, command
    if is_elastic:
        return
    assert "/nowhere/python" in SlurmBackend().status(record.handle).message
    assert SlurmBackend().status(forgotten(record)).state is JobState.FAILED


def test_a_task_of_an_array_that_fails_says_why(cluster, tmp_path):
    places = [tmp_path / name for name in "ab"]
    bundles = [written(each, *PLAIN[:-1], f"cluster.python=/nowhere/{each.name}") for each in places]
    one, other = SlurmBackend().submit_all([QueuedJob(bundle) for bundle in bundles])
    for handle, name in ((one, "a"), (other, "b")):
        *_, status = SlurmBackend().wait(handle)
        assert status.state is JobState.FAILED and f"/nowhere/{name}" in status.message
        assert any(f"/nowhere/{name}" in line for line in log_texts(SlurmBackend(), handle, follow=False))


@pytest.mark.parametrize(
    "more",
    [(), ("cluster.mem=2GB",), ("cluster.mem_per_cpu=500M", "cluster.cpus_per_task=2")],
    ids=["default", "memory", "memory-per-cpu"],
)
def test_two_jobs_share_a_node(cluster, tmp_path, words, more):
    own = (*words, "cluster.exclusive=false", "cluster.nodelist=n1", "training_cfg.run.ntasks_per_node=2", *more)
    records = [submitted(tmp_path / name, *own) for name in "ab"]
    cpus = 4 if "cluster.cpus_per_task=2" in more else 2
    assert [note(record, "started") for record in records] == [[f"n1  {cpus} "]] * 2
    for record in records:
        assert SlurmBackend().status(record.handle).state is JobState.RUNNING
        let_end(record)
    for record in records:
        finished(record)
    assert ("MiB for each CPU" in records[0].handle.kind) == (not more)


@pytest.mark.parametrize(
    "more",
    [(), ("cluster.gpus_per_task=1", "cluster.mem_per_gpu=1GB"), ("cluster.gres=gpu:2", "cluster.mem=1GB")],
    ids=["default", "per-task", "gres"],
)
def test_two_jobs_share_the_gpus_of_a_node(cluster, tmp_path, words, more):
    gpus = ("instance_type=ml.p5.48xlarge", "training_cfg.run.ntasks_per_node=2", "cluster.nodelist=n1")
    own = (*words, *gpus, "cluster.exclusive=false", *more)
    records = [submitted(tmp_path / name, *own) for name in "ab"]
    assert sorted(note(record, "started")[0] for record in records) == ["n1  2 0,1", "n1  2 2,3"]


def test_srun_starts_the_ranks_of_mpi_on_shared_nodes(cluster, tmp_path, words):
    mpi = ("++recipes.distribution.mpi.enabled=true", "cluster.mpi=pmi2", "cluster.exclusive=false")
    size = ("training_cfg.run.ntasks_per_node=2", "training_cfg.run.nodes=2", "cluster.cpus_per_task=2")
    records = [submitted(tmp_path / name, *words, *mpi, *size, "cluster.nodelist='n[1-2]'") for name in "ab"]
    for record in records:
        assert sorted(note(record, "started", 4)) == [f"n{1 + rank // 2} {rank} 4 " for rank in range(4)]
    for record in records:
        let_end(record)
        finished(record)


LIMITED = ("cluster.time=30", "cluster.limit_notice=60")


def near_its_limit(cluster, record):
    """Move the time limit of a job to the time at which Slurm sends its notice, which it does every half minute."""
    cluster.command("scontrol", "update", f"JobId={record.handle.native_id}", "EndTime=now+60")


def test_a_job_saves_before_its_time_limit_and_returns_with_a_new_one(cluster, tmp_path):
    pace = "recipes.training_config.training_args.min_step_seconds=4"
    record = submitted(tmp_path, *PACED[:-2], pace, PACED[-1], *LIMITED, "cluster.limit_requeues=1")
    await_step(record, 1)
    near_its_limit(cluster, record)
    await_true(lambda: kinds(record).count("Started") == 2)
    cluster.command("scontrol", "update", f"JobId={record.handle.native_id}", "TimeLimit=30")  # as it was
    assert finished(record).restarts == 1
    assert trained(record) == dict.fromkeys(range(SAMPLES), 1)
    assert kinds(record) == ["Started", "Saving", "Stopped", "Started", "Completed"]


def test_a_job_returns_as_often_as_it_may(cluster, tmp_path, words):
    record = submitted(tmp_path, *words, *LIMITED, "cluster.limit_requeues=1")
    for number in (1, 2):
        note(record, "started", number)
        near_its_limit(cluster, record)
        note(record, "saved", number)
    status = finished(record, JobState.FAILED)
    assert (status.message.splitlines()[0], status.restarts) == ("attempt 1 has ended before its time limit", 1)
    assert kinds(record)[-3:] == ["Started", "Saving", "TimedOut"]
    assert SlurmBackend().status(forgotten(record)).state is JobState.FAILED


def batch_script(record):
    """Return the process of a job's batch script."""
    own = [
        each for each in psutil.process_iter(["cwd", "cmdline"]) if each.info["cwd"] == str(record.handle.bundle_dir)
    ]
    (script,) = (each.pid for each in own if "slurm_script" in " ".join(each.info["cmdline"][:2]))
    return script


STAYS = "#!/bin/bash\ntrap '' TERM\ntouch \"$RECIPES_RUN_DIR/started\"\nwhile :; do sleep 0.1; done\n"


@pytest.mark.parametrize(
    ("end", "state", "message"),
    [
        (("scontrol", "update", "JobId={}", "EndTime=now+1"), JobState.FAILED, "the time limit was reached"),
        (("scancel", "{}"), JobState.CANCELLED, "cancelled"),
        (None, JobState.FAILED, "ended by SIGKILL"),
    ],
    ids=["time limit", "cancelled", "killed"],
)
def test_the_end_is_known_of_a_batch_script_that_is_killed_at_once(cluster, tmp_path, words, end, state, message):
    """KillWait is a second here, and its processes do not end in that; Slurm then forgets the job."""
    (tmp_path / "waits").write_text(STAYS)
    record = submitted(tmp_path, *words)
    note(record, "started", 0)
    if end:
        cluster.command(*(word.format(record.handle.native_id) for word in end))
    else:
        os.kill(batch_script(record), signal.SIGKILL)
    listed = ("squeue", "--noheader", "--states=R,CG", f"--jobs={record.handle.native_id}")
    await_true(lambda: not cluster.command(*listed).strip(), timeout_s=PATIENCE_S)
    if not end:  # nothing was noted: only a command that looks before Slurm forgets the job keeps its end
        assert SlurmBackend().status(record.handle).state is state
    found = SlurmBackend().status(forgotten(record))
    assert (found.state, found.message.splitlines()[0]) == (state, message)


def test_commands_of_setup_act_in_the_job_s_shell(cluster, tmp_path, words):
    (tmp_path / "activate").write_text('export SETUP="$VALUE"\nunset MISSING; : $MISSING\n')
    lines = ['VALUE="it\'s"', f"source '{tmp_path}/activate'", "port=1; folder=/nowhere; job=2; cd /"]
    quoted = ",".join("'" + line.replace("'", "\\'") + "'" for line in lines)
    record = submitted(tmp_path, *words, f"cluster.setup=[{quoted}]")
    assert note(record, "started") == ["n1  8 it's"]
    let_end(record)
    finished(record)


@pytest.mark.parametrize("line", ["echo no module >&2; exit 7", "(echo no module >&2; exit 7)", "exit 0"])
@pytest.mark.parametrize("kind", ["fixed", "elastic"])
def test_a_command_of_setup_that_fails_ends_the_job(cluster, tmp_path, words, line, kind):
    elastic = (*ELASTIC, "recipes.training_config.mlflow.enabled=false")
    record = submitted(tmp_path, *(words if kind == "fixed" else elastic), f"cluster.setup=['{line}']")
    status = finished(record, JobState.FAILED)
    code = 1 if line == "exit 0" else 7
    assert status.message.startswith(f"exit code {code}\n")
    assert f"cluster.setup ended the job with exit code {code}" in status.message
    assert ("no module" in status.message) == (code == 7)
    assert SlurmBackend().status(forgotten(record)).message == f"exit code {code}"


def test_a_folder_may_have_a_quote(cluster, tmp_path, words):
    record = submitted(tmp_path / 'a "b', *words)
    note(record, "started")
    let_end(record)
    finished(record)


def test_a_requeued_job_without_a_release_waits(cluster, tmp_path, words):
    record = submitted(tmp_path, *words, "cluster.release.enabled=false")
    note(record, "started")
    cluster.command("scontrol", "requeue", record.handle.native_id)
    await_true(lambda: "BeginTime" in SlurmBackend().status(record.handle).message, timeout_s=PATIENCE_S)
    assert "two minutes" in SlurmBackend().status(record.handle).message
    assert cluster.command("squeue", "--noheader", "--format=%j").count("release") == 0
