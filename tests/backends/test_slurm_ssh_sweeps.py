"""Sweeps that are launched from another machine: arrays, by a real sshd in front of a real Slurm."""

import re
from pathlib import Path

import pytest
from background import await_true
from conftest import written
from log_texts import log_texts
from test_slurm_arrays import PROGRAM, folders, queued, recipes, records, started, state
from test_slurm_jobs import END_TIMEOUT_S, PLAIN, SCRIPT
from test_slurm_ssh import OWN_FOLDER, THERE, lossy_sbatch, server, there

from launcher.backends.slurm import requests
from launcher.backends.slurm.backend import SlurmBackend
from launcher.common.names import RUN_DIR
from launcher.model.job_spec import JobState, LogSelection

__all__ = ["lossy_sbatch", "server"]
pytestmark = pytest.mark.whole_job
POINTS = "+env_vars.POINT=0,1,2"


@pytest.fixture
def words(server, tmp_path, monkeypatch):
    """Return the words of a job that runs PROGRAM there; its bundle is written below the current folder."""
    monkeypatch.chdir(tmp_path)
    program = server.home / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    size = ("training_cfg.entry_module=json.tool", "training_cfg.run.nodes=1")
    return (*SCRIPT, *size, *THERE[:2], *OWN_FOLDER, f"cluster.python={program}")


def run_dir(record):
    """Return the run folder of a job there."""
    return there(record.handle.bundle_dir) / RUN_DIR


def let(record, code):
    """Let a job end with an exit code, once it runs; return its status."""
    (run_dir(record) / "go").write_text(str(code))
    *_, status = SlurmBackend().wait(record.handle, timeout_s=END_TIMEOUT_S)
    return status


def test_a_sweep_is_one_array_whose_tasks_are_followed_by_themselves(server, words, capsys):
    assert started("--multirun", *words, POINTS, "cluster.array_parallelism=2") == 0
    assert "N176" not in "".join(capsys.readouterr())
    every = records()
    array = every[0].handle.native_id.partition("_")[0]
    assert [each.handle.native_id for each in every] == [f"{array}_{task}" for task in range(3)]
    await_true(lambda: [state(each).state for each in every].count(JobState.RUNNING) == 2)
    assert state(every[2]).message.startswith("waits: JobArrayTaskLimit: ")
    for task, each in enumerate(every[:2]):
        point = run_dir(each) / "point"
        await_true(lambda point=point: point.exists() and point.read_text())
        assert point.read_text() == f"{task}\n"
        state(each)
        assert (each.handle.bundle_dir / RUN_DIR / f"slurm-{array}_{task}.log").exists()
    SlurmBackend().cancel(every[2].handle)
    assert state(every[2]).state is JobState.CANCELLED
    assert state(every[0]).state is JobState.RUNNING
    assert let(every[0], 0).state is JobState.SUCCEEDED
    assert let(every[1], 3).message.startswith("exit code 3\n")
    assert [event.kind for event in SlurmBackend().events(every[0].handle, follow=True)] == ["Started", "Completed"]
    assert list(log_texts(SlurmBackend(), every[0].handle, LogSelection(attempt=0), follow=False)) == []
    code, out = recipes("launch", "--again", *map(str, folders()))
    assert code == 0, out
    again = records()
    assert len({each.handle.native_id.partition("_")[0] for each in again}) == 1
    assert not {each.handle.native_id for each in again} & {each.handle.native_id for each in every}
    for each in again:
        SlurmBackend().cancel(each.handle)


def test_each_task_gets_its_own_secrets(server, words, monkeypatch):
    for name in ("FIRST_TOKEN", "SECOND_TOKEN"):
        monkeypatch.setenv(name, f"s3cret of {name}")
    tokens = "+env_vars.TOKEN={env: FIRST_TOKEN},{env: SECOND_TOKEN}"
    program = server.home / "program"
    program.write_text('#!/bin/sh\nprintf "%s" "$TOKEN" > "$RECIPES_RUN_DIR/token"\n')
    assert started("--multirun", *words, tokens, "wait=true") == 0
    assert [(run_dir(each) / "token").read_text() for each in records()] == [
        "s3cret of FIRST_TOKEN",
        "s3cret of SECOND_TOKEN",
    ]
    others = [path for path in server.home.rglob("*") if path.is_file() and path.name != "token"]
    assert not [path for path in others if b"s3cret" in path.read_bytes()]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("training_cfg.run.nodes=1,0", "the compiled jobs were not submitted"),
        ("cluster.partition=main,nope", "nvalid partition"),
        ("cluster.ssh_folder=other,/proc/mine", "E457"),
    ],
    ids=["faulty", "refused", "unwritable"],
)
def test_a_sweep_is_submitted_whole_or_not_at_all(server, words, capsys, sweep, message):
    assert started("--multirun", *words, POINTS, sweep) == 2
    assert message in capsys.readouterr().err
    assert not records()
    await_true(lambda: not queued(server.cluster))
    assert not list(Path("results").glob(".arrays/*"))


def test_an_array_whose_answer_was_lost_is_found_at_once(server, words, lossy_sbatch):
    lossy_sbatch(ends_server=False)
    assert started("--multirun", *words, POINTS) == 0
    array = (server.home / "submitted").read_text().strip()
    assert [each.handle.native_id for each in records()] == [f"{array}_{task}" for task in range(3)]
    for each in records():
        SlurmBackend().cancel(each.handle)


def test_jobs_of_two_places_share_no_array(tmp_path):
    plain = [*PLAIN, *OWN_FOLDER]
    bundles = [
        written(tmp_path / str(number), *plain, f"cluster.ssh={name}", f"cluster.ssh_folder={folder}")
        for number, (name, folder) in enumerate([("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")])
    ]
    assert [len(group) for group in requests.grouped(bundles)] == [2, 1, 1]
    (notice,) = requests.notices(bundles)
    assert notice.code == "N176" and re.search("differ: .* or ssh", notice.message)
