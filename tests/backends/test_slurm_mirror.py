"""What is kept on this machine of a job that runs on another one, without the other one."""

import json
import os
import subprocess

import pytest
from test_slurm_jobs import PLAIN, written

from launcher.backends.slurm import mirror, submit
from launcher.backends.slurm.ssh import Session
from launcher.backends.slurm.written import Wanted, of_attempts
from launcher.bundle import store
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.operator.snapshot import Attempt


class LocalConnection:
    """Runs commands on this machine, with a search path of its own."""

    def __init__(self, *folders):
        self._env = {**os.environ, "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]])}

    def run(self, words, *, data=b"", timeout_s=None):
        done = subprocess.run(list(words), input=data, env=self._env, capture_output=True, timeout=timeout_s)
        return Session(done.returncode, done.stdout, done.stderr.decode())


@pytest.fixture
def run_dirs(tmp_path):
    """Return the run folder of a job, and that of its copy."""
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    return tmp_path / "there", tmp_path / "here"


def refreshed(run_dirs, names, *programs):
    mirror.refresh(LocalConnection(*programs), str(run_dirs[0]), run_dirs[1], Wanted(names, names))


@pytest.mark.parametrize("meanwhile", ["much longer than before", ""], ids=["longer", "empty"])
def test_a_file_that_is_replaced_while_it_is_copied_is_complete(run_dirs, tmp_path, meanwhile):
    """Its size was read before it was replaced."""
    (run_dirs[0] / "state.json").write_text(meanwhile)
    stale = tmp_path / "bin" / "find"
    stale.parent.mkdir()
    stale.write_text("#!/bin/sh\nprintf 'f 5 123.5 state.json\\0'\n")
    stale.chmod(0o755)
    refreshed(run_dirs, ("state.json",), stale.parent)
    assert (run_dirs[1] / "state.json").read_text() == meanwhile


def test_a_reader_of_a_replaced_file_sees_the_old_one_or_the_new_one(run_dirs):
    file = run_dirs[0] / "state.json"
    file.write_text("old")
    refreshed(run_dirs, (file.name,))
    with (run_dirs[1] / file.name).open() as reader:
        file.write_text("new")
        refreshed(run_dirs, (file.name,))
        assert reader.read() == "old"
    assert (run_dirs[1] / file.name).read_text() == "new"
    assert sorted(path.name for path in run_dirs[1].iterdir()) == [mirror._LOCK, file.name]


def test_files_that_grow_come_in_parts_and_others_at_once(run_dirs, monkeypatch):
    monkeypatch.setattr(mirror, "_MOST_BYTES", 10)
    texts = {"events.jsonl": "x" * 25, "state.json": "y" * 25}
    for name, text in texts.items():
        (run_dirs[0] / name).write_text(text)
    refreshed(run_dirs, tuple(texts))
    assert {name: (run_dirs[1] / name).read_text() for name in texts} == texts


def test_logs_of_an_elastic_job_s_ranks_are_those_of_the_nodes_that_had_them():
    attempts = (Attempt(0, 0, (0, 1), 1.0), Attempt(1, 2, (2,), 2.0))
    found = of_attempts(attempts, (0, 3), 2, "stdout.log")
    assert found.patterns[1:] == (
        "logs/node-0/*/attempt_0/0/stdout.log",
        "logs/node-1/*/attempt_0/1/stdout.log",
        "logs/node-2/*/attempt_1/0/stdout.log",
    )
    assert found.places[1:] == ("logs/node-0", "logs/node-1", "logs/node-2")


def test_a_bundle_s_place_is_parsed_once_while_the_bundle_is_unchanged(tmp_path, monkeypatch):
    folder = written(tmp_path, *PLAIN).directory
    here = submit.place_at(folder)
    with monkeypatch.context() as patch:
        patch.setattr(yaml_io, "load", None)
        assert submit.place_at(folder) is here
    file = folder / "recipe.yaml"
    config = store.composed(file.read_text())
    file.write_text(json.dumps({**config, "cluster": {**config["cluster"], "ssh": "elsewhere"}}))
    assert submit.place_at(folder).name == "elsewhere"
    file.unlink()
    with pytest.raises(ProblemsFound, match="E703"):
        submit.place_at(folder)
