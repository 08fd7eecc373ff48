"""Sweeps as arrays, and chains of jobs, on a real Slurm."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
from background import await_true
from conftest import ROOT
from test_slurm_jobs import END_TIMEOUT_S, SCRIPT, TINY

import launcher
from launcher.backends.slurm.backend import SlurmBackend
from launcher.bundle import store as bundles
from launcher.cli import run_command
from launcher.common.names import RUN_DIR
from launcher.job_store import registry
from launcher.model.job_spec import JobState

pytestmark = pytest.mark.whole_job
PROGRAM = """\
#!/bin/sh
echo "$POINT" > "$RECIPES_RUN_DIR/point"
while [ ! -e "$RECIPES_RUN_DIR/go" ]; do sleep 0.1; done
exit "$(cat "$RECIPES_RUN_DIR/go")"
"""
"""Waits in place of torchrun until it may end, with an exit code."""
POINTS = "+env_vars.POINT=0,1,2"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.used(tmp_path_factory.mktemp("slurm"), num_nodes=4) as cluster:
        yield cluster


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Return the words of a job that runs PROGRAM; its bundle is written below the current folder."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return (*SCRIPT, "training_cfg.entry_module=json.tool", "training_cfg.run.nodes=1", f"cluster.python={program}")


def started(*words):
    """Run a command line of main.py in this process."""
    return run_command.run(words)


def folders():
    """Return the bundles in the order in which they were compiled."""
    return sorted(Path("results").glob("[!.]*/"), key=lambda folder: (folder / "bundle.json").stat().st_mtime_ns)


def records():
    found = [registry.read(folder) for folder in Path("results").glob("[!.]*/")]
    return sorted((each for each in found if each), key=lambda each: each.handle.native_id)


def state(record):
    return registry.status(registry.submitted(record.handle.bundle_dir), SlurmBackend())


def let(record, code):
    """Let a job end with an exit code, once it runs; return its status."""
    (record.handle.bundle_dir / RUN_DIR / "go").write_text(str(code))
    *_, status = SlurmBackend().wait(record.handle, timeout_s=END_TIMEOUT_S)
    return status


def queued(cluster):
    """Return the ids of jobs that have not ended."""
    return cluster.command("squeue", "--array", "--noheader", "--format=%i").split()


@pytest.mark.sample
def test_a_sweep_is_one_array_whose_tasks_are_jobs_of_their_own(cluster, words, capsys):
    sweep = "+env_vars.POINT=0,1,2,3"
    assert started("--multirun", *words, sweep, "cluster.array_parallelism=2") == 0
    every = records()
    array = every[0].handle.native_id.partition("_")[0]
    assert [each.handle.native_id for each in every] == [f"{array}_{task}" for task in range(4)]
    assert f"submitted Slurm job/{array}_3" in capsys.readouterr().out
    await_true(lambda: [state(each).state for each in every].count(JobState.RUNNING) == 2)
    assert all("waits: JobArrayTaskLimit: until another" in state(each).message for each in every[2:])
    for task, each in enumerate(every[:2]):
        run = each.handle.bundle_dir / RUN_DIR
        await_true(lambda run=run: (run / "point").exists() and (run / "point").read_text())
        assert (run / "point").read_text() == f"{task}\n"
        assert (run / f"slurm-{array}_{task}.log").exists()
    assert started("--name", "later", *words, f"after={every[3].handle.job_name}") == 0
    assert registry.cancel(every[3], SlurmBackend(), "ada").state is JobState.CANCELLED
    later = registry.submitted(bundles.locate("later"))
    *_, status = SlurmBackend().wait(later.handle, timeout_s=END_TIMEOUT_S)
    assert (status.state, "did not end as required" in status.message) == (JobState.CANCELLED, True)
    assert state(every[0]).state is JobState.RUNNING
    assert let(every[0], 0).state is JobState.SUCCEEDED
    assert let(every[1], 3).message.startswith("exit code 3\n")
    await_true(lambda: state(every[2]).state is JobState.RUNNING)
    SlurmBackend().cancel(every[2].handle)
    assert state(every[2]).state is JobState.CANCELLED
    events = [event.kind for event in SlurmBackend().events(every[0].handle, follow=True)]
    assert events == ["Started", "Completed"]


def test_the_grid_of_a_sweep_is_one_array_and_its_metrics_are_read(cluster, words):
    """`let` each job end; the objective is in its metrics file, which the cluster shares."""
    plan = launcher.compile("training/custom/script", list(words[1:]))
    sweep = launcher.sweep(plan, {"env_vars.POINT": [3, 1, 2]}, objective="loss", name="grid")
    rows = sweep.changes(timeout=END_TIMEOUT_S)
    assert [next(rows)["state"] for _ in range(3)] == ["running"] * 3
    every = records()
    array = every[0].handle.native_id.partition("_")[0]
    assert [each.handle.native_id for each in every] == [f"{array}_{task}" for task in range(3)]
    for each, loss in zip(every, (3.0, 1.0, 2.0), strict=True):
        (each.handle.bundle_dir / RUN_DIR).mkdir(exist_ok=True)
        (each.handle.bundle_dir / RUN_DIR / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": loss}) + "\n")
        (each.handle.bundle_dir / RUN_DIR / "go").write_text("0")
    assert {row["state"] for row in rows} == {"succeeded"}
    assert (sweep.best.value, sweep.best.overrides) == (1.0, ("++env_vars.POINT=1",))


def test_a_task_that_scancel_removed_before_it_started_was_cancelled(cluster, words):
    assert started("--multirun", *words, POINTS, "cluster.array_parallelism=1") == 0
    first, _, last = records()
    cluster.command("scancel", last.handle.native_id)
    await_true(lambda: state(last).state is JobState.CANCELLED)
    assert state(last).message == "cancelled before it started"
    for each in records()[:2]:
        SlurmBackend().cancel(each.handle)
    assert state(first).state is JobState.CANCELLED


def sbatch_that(does):
    """Write an sbatch that does something instead of a submission; return a search path that has it first."""
    program = Path("bin/sbatch")
    program.parent.mkdir()
    test_only = 'case "$*" in *--test-only*) exec "$REAL" "$@" ;; esac'
    program.write_text(f"#!/bin/sh\nREAL={shutil.which('sbatch')}\n{test_only}\n{does}\n")
    program.chmod(0o755)
    return f"{program.parent.resolve()}:{os.environ['PATH']}"


def test_a_launcher_that_was_killed_finds_its_array(cluster, words):
    """It is killed once Slurm has the array, before it could note that."""
    env = {**os.environ, "PATH": sbatch_that('"$REAL" "$@"; kill -9 $PPID')}
    command = [sys.executable, str(ROOT / "main.py"), "--multirun", *words, POINTS]
    assert subprocess.run(command, env=env, capture_output=True).returncode == -signal.SIGKILL
    (array,) = {line.partition("_")[0] for line in queued(cluster)}
    lost = [registry.submitted(folder) for folder in folders()]
    assert [(each.is_submitted, each.handle.native_id) for each in lost] == [(False, "")] * 3
    assert state(lost[2]).state in (JobState.PENDING, JobState.RUNNING)
    code, out = recipes("launch", *map(str, folders()))
    assert code == 0 and out.count("was already submitted from this bundle") == 3
    assert len(queued(cluster)) == 3
    found = [registry.submitted(folder).handle.native_id for folder in folders()]
    assert found == [f"{array}_{task}" for task in range(3)]
    for each in records():
        SlurmBackend().cancel(each.handle)


def recipes(*words):
    done = subprocess.run([sys.executable, "-m", "launcher", *words], capture_output=True, text=True, env=env_here())
    return done.returncode, done.stdout + done.stderr


def env_here():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_sweep_is_followed_to_its_end_and_launched_again(cluster, words, capsys):
    words = [word for word in words if not word.startswith("cluster.python")]
    assert started("--multirun", *words, "cluster.python=/bin/true,/bin/false", "wait=true") == 3
    printed = "".join(capsys.readouterr())
    assert re.search(r"^succeeded", printed, re.MULTILINE) and re.search(
        r"^failed  exit code 1", printed, re.MULTILINE
    )
    before = {each.handle.native_id for each in records()}
    code, out = recipes("launch", *map(str, folders()))
    assert code == 2 and out.count("E715") == 1 and "nothing was launched" in out
    code, out = recipes("launch", "--again", "--wait", *map(str, folders()))
    assert code == 3, out
    after = {each.handle.native_id for each in records()}
    assert len(before) == len(after) == 2 and not before & after


def test_jobs_whose_options_differ_become_several_arrays(cluster, words, capsys):
    assert started("--multirun", *words, POINTS, "training_cfg.run.nodes=1,2", "dry_run=true") == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.endswith("submits them together")]
    names = line.partition("  ")[0].split()[2:]
    assert len(names) == 6 and not records()
    code, out = recipes("launch", *names)
    assert code == 0, out
    assert "N176" in out and re.search(r"differ:\s+nodes", out)
    every = records()
    assert len({each.handle.native_id.partition("_")[0] for each in every}) == 2
    sizes = cluster.command("squeue", "--array", "--noheader", "--format=%D").split()
    assert sorted(sizes) == ["1"] * 3 + ["2"] * 3
    for each in every:
        SlurmBackend().cancel(each.handle)


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("training_cfg.run.nodes=1,0", "the compiled jobs were not submitted"),
        ("cluster.partition=main,nope", "nvalid partition"),
        ("cluster.partition=nope", "nvalid partition"),
        ("env_vars.MY_TOKEN={env: NOT_SET_ANYWHERE}", "is not set"),
    ],
    ids=["faulty", "refused", "all-refused", "secret"],
)
def test_a_sweep_is_submitted_whole_or_not_at_all(cluster, words, capsys, sweep, message):
    code = started("--multirun", *words, POINTS, f"+{sweep}" if sweep.startswith("env") else sweep)
    captured = capsys.readouterr()
    assert code == 2 and message in captured.err
    assert not records() and not queued(cluster)
    assert not list(Path("results").glob(".arrays/*"))


def test_an_array_is_taken_back_if_the_next_one_is_refused(cluster, words, capsys):
    refuses_second = (
        'if [ -e once ]; then echo "sbatch: error: no more" >&2; exit 1; fi; touch once; exec "$REAL" "$@"'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", sbatch_that(refuses_second.replace("once", str(Path.cwd() / "once"))))
        assert started("--multirun", *words, POINTS, "training_cfg.run.nodes=1,2") == 2
    assert "E445" in (err := capsys.readouterr().err) and "no more" in err
    assert not records() and not list(Path("results").glob(".arrays/*"))
    await_true(lambda: not queued(cluster))
    code, out = recipes("launch", *map(str, folders()))
    assert code == 0 and out.count("submitted Slurm job/") == 6 and "already" not in out
    for each in records():
        SlurmBackend().cancel(each.handle)


def test_a_chain_trains_evaluates_and_exports(cluster, words):
    assert started("--name", "train", *TINY) == 0
    assert started("--name", "evaluate", *words, "after=train") == 0
    assert started("--name", "export", *words, "after=[any:train,evaluate]") == 0
    train, evaluate, export = (registry.submitted(bundles.locate(name)) for name in ("train", "evaluate", "export"))
    ids = [each.handle.native_id for each in (train, evaluate)]
    shown = cluster.command("scontrol", "--oneliner", "show", "job", export.handle.native_id)
    assert f"Dependency=afterany:{ids[0]}" in shown and f"afterok:{ids[1]}" in shown
    assert state(evaluate).message.startswith("waits: Dependency: ")
    *_, status = SlurmBackend().wait(train.handle, timeout_s=END_TIMEOUT_S)
    assert status.state is JobState.SUCCEEDED
    assert (train.handle.bundle_dir / RUN_DIR / "checkpoints").exists() or list(train.handle.bundle_dir.rglob("*.pt"))
    assert state(export).state is JobState.PENDING
    assert let(evaluate, 0).state is JobState.SUCCEEDED
    assert let(export, 0).state is JobState.SUCCEEDED


def test_a_chain_ends_with_the_job_that_failed(cluster, words):
    assert started("--name", "first", *words) == 0
    assert started("--name", "second", *words, "after=first") == 0
    assert started("--name", "third", *words, "after=second") == 0
    assert started("--name", "cleaner", *words, "after=notok:first", "cluster.dependency=singleton") == 0
    first, *_ = named = [registry.submitted(bundles.locate(name)) for name in ("first", "second", "third", "cleaner")]
    assert let(first, 3).state is JobState.FAILED
    for each in named[1:3]:
        *_, status = SlurmBackend().wait(each.handle, timeout_s=END_TIMEOUT_S)
        assert status.state is JobState.CANCELLED
    assert let(named[3], 0).state is JobState.SUCCEEDED


def test_what_a_chain_adds_to_other_dependencies(cluster, words, capsys):
    assert started("--name", "first", *words) == 0
    first = registry.submitted(bundles.locate("first"))
    job_id = first.handle.native_id
    assert started(*words, "after=first", f"cluster.dependency='afterok:{job_id}?afterany:{job_id}'") == 2
    assert "E454 cluster.dependency" in capsys.readouterr().err
    keeps = "cluster.additional_parameters={kill-on-invalid-dep: no}"
    assert started("--name", "kept", *words, "after=first", keeps) == 0
    assert let(first, 3).state is JobState.FAILED
    kept = registry.submitted(bundles.locate("kept"))
    await_true(lambda: "never starts like this, see after" in state(kept).message)
    SlurmBackend().cancel(kept.handle)


@pytest.mark.parametrize(
    ("after", "code", "message"),
    [
        ("nowhere", "E451", "is not a job under results/"),
        ("rendered", "E451", "was never launched"),
        ("elsewhere", "E452", "is on another cluster"),
        ("failed", "E453", "has ended as failed: exit code 3"),
        ("notok:done", "E453", "has ended as succeeded"),
    ],
)
def test_a_job_that_cannot_be_waited_for_is_a_problem(cluster, words, capsys, after, code, message):
    name = after.rpartition(":")[2]
    if name == "rendered":
        assert started("--name", name, *words, "dry_run=true") == 0
    elif name != "nowhere":
        assert started("--name", name, *words) == 0
        registry.settled(records()[0], let(records()[0], 3 if name == "failed" else 0), SlurmBackend())
    if name == "elsewhere":
        (file,) = Path("results").glob("*/job.json")
        file.write_text(file.read_text().replace('"slurm"', '"k8s"'))
    capsys.readouterr()
    assert started(*words, f"after={after}") == 2
    assert code in (err := capsys.readouterr().err) and message in err
    assert not queued(cluster)


def test_a_job_that_has_ended_as_required_is_not_waited_for(cluster, words):
    assert started("--name", "done", *words) == 0
    done = registry.submitted(bundles.locate("done"))
    registry.settled(done, let(done, 0), SlurmBackend())
    assert started("--name", "next", *words, "after=[done,any:done]") == 0
    following = registry.submitted(bundles.locate("next"))
    shown = cluster.command("scontrol", "--oneliner", "show", "job", following.handle.native_id)
    assert "Dependency=(null)" in shown
    assert let(following, 0).state is JobState.SUCCEEDED
