"""What is kept on this machine of a job that runs on another one, without the other one."""

import json
import os
import shutil
import subprocess

import pytest
import ssh_server
from conftest import written
from test_slurm_jobs import PLAIN

from launcher.backends.slurm import host, ssh, submit
from launcher.backends.slurm.run_files import Wanted, of_attempts
from launcher.backends.slurm.ssh import ENV_CONFIG, RSYNC, Session
from launcher.bundle import store
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.operator.snapshot import Attempt


class LocalConnection:
    """Runs commands on this machine, with a search path of its own."""

    def __init__(self, *folders, has_rsync=False):
        self._has_rsync = has_rsync
        self._env = {**os.environ, "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]])}

    def run(self, words, *, data=b"", timeout_s=None):
        done = subprocess.run(list(words), input=data, env=self._env, capture_output=True, timeout=timeout_s)
        return Session(done.returncode, done.stdout, done.stderr.decode())

    def rsync(self, options, folder, target, names):
        words = ["rsync", *RSYNC, *options, f"{folder}/", f"{target}/"]
        return self._has_rsync and subprocess.run(words, input=names, capture_output=True).returncode == 0


@pytest.fixture(params=[False, True], ids=["script", "rsync"])
def has_rsync(request):
    if request.param and shutil.which("rsync") is None:
        pytest.skip("no rsync: apt-get install rsync")
    return request.param


@pytest.fixture
def run_dirs(tmp_path):
    """Return the run folder of a job, and that of its copy."""
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    return tmp_path / "there", tmp_path / "here"


def refreshed(run_dirs, names, *programs, patterns=None, has_rsync=False):
    connection = LocalConnection(*programs, has_rsync=has_rsync)
    host.refresh(connection, str(run_dirs[0]), run_dirs[1], Wanted(names, patterns or names))


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


@pytest.mark.slow
def test_a_reader_of_a_replaced_file_sees_the_old_one_or_the_new_one(run_dirs, has_rsync):
    file = run_dirs[0] / "state.json"
    file.write_text("old")
    refreshed(run_dirs, (file.name,), has_rsync=has_rsync)
    with (run_dirs[1] / file.name).open() as reader:
        file.write_text("newer")
        refreshed(run_dirs, (file.name,), has_rsync=has_rsync)
        assert reader.read() == "old"
    assert (run_dirs[1] / file.name).read_text() == "newer"
    assert sorted(path.name for path in run_dirs[1].iterdir()) == [host._LOCK, file.name]


def test_files_that_grow_come_in_parts_and_others_at_once(run_dirs, monkeypatch, has_rsync):
    monkeypatch.setattr(host, "_MOST_BYTES", 10)
    texts = {"events.jsonl": "x" * 25, "state.json": "y" * 25}
    for name, text in texts.items():
        (run_dirs[0] / name).write_text(text)
    refreshed(run_dirs, tuple(texts), has_rsync=has_rsync)
    assert {name: (run_dirs[1] / name).read_text() for name in texts} == texts


OWN = "slurm/7"
LOG = f"{OWN}/logs/attempt-0/node-0/x/attempt_0/0/stdout.log"
PATTERNS = ("metrics.jsonl", "state.json", f"{OWN}/events.jsonl", f"{OWN}/logs/attempt-*/node-0/*/0/stdout.log")


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def job_there(run_dirs):
    """Write what a job has written, and more that nothing asks for."""
    there = run_dirs[0]
    others = ("checkpoints/step-1", LOG.replace("stdout", "stderr"), LOG.replace("node-0", "node-1"))
    for name in (LOG, "metrics.jsonl", "state.json", *others):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(f"{name}\n")
    (there / OWN / "logs/attempt-1").mkdir()
    (there / OWN / "events.jsonl").symlink_to("/etc/passwd")


def test_only_files_of_the_patterns_are_copied_and_the_folders_of_attempts(run_dirs, has_rsync):
    job_there(run_dirs)
    refreshed(run_dirs, (OWN, "metrics.jsonl", "state.json", "absent"), patterns=PATTERNS, has_rsync=has_rsync)
    found = files_of(run_dirs[1])
    del found[host._LOCK]
    assert found == {name: f"{name}\n" for name in (LOG, "metrics.jsonl", "state.json")}
    assert (run_dirs[1] / OWN / "logs/attempt-1").is_dir()
    assert not (run_dirs[1] / "checkpoints").exists()


@pytest.mark.slow
def test_a_log_that_a_requeued_job_began_anew_is_copied_anew(run_dirs, has_rsync):
    file, copy = (folder / "slurm-7.log" for folder in run_dirs)
    for text in ("first run\n", "first run\nand more\n", "second\n", "second\nrun\n"):
        file.write_text(text)
        refreshed(run_dirs, (file.name,), has_rsync=has_rsync)
        assert copy.read_text() == text


@pytest.mark.slow
def test_a_line_that_a_log_has_gained_is_appended(run_dirs, has_rsync):
    """What is here is not read again, there or here."""
    file, copy = (folder / "metrics.jsonl" for folder in run_dirs)
    file.write_text("1\n2\n")
    refreshed(run_dirs, (file.name,), has_rsync=has_rsync)
    copy.write_text("A\nB\n")
    file.write_text("1\n2\n3\n")
    refreshed(run_dirs, (file.name,), has_rsync=has_rsync)
    assert copy.read_text() == "A\nB\n3\n"


@pytest.fixture
def connection(tmp_path, monkeypatch):
    """Return a connection to a real sshd on this machine."""
    if missing := ssh_server.absent():
        pytest.skip(f"no {', '.join(missing)}: tests/engines/install_programs.sh")
    (tmp_path / "ssh").mkdir()
    with ssh_server.running(tmp_path / "ssh", tmp_path) as server:
        monkeypatch.setenv(ENV_CONFIG, str(server.config))
        monkeypatch.setattr(ssh, "_shared", lambda _name: ())
        yield ssh.Connection(ssh_server.NAME)


WRAPPER = '#!/bin/bash\necho "$*" >> {folder}/calls\nexec {rsync} {more} "$@"\n'


@pytest.mark.slow
@pytest.mark.parametrize("lacks", ["neither", "there", "here", "lost"])
def test_rsync_copies_where_both_machines_have_it_and_a_script_elsewhere(
    connection, run_dirs, tmp_path, monkeypatch, lacks
):
    job_there(run_dirs)
    spaced = run_dirs[0].rename(tmp_path / "my 'jobs'")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("ssh", "bash"):
        (programs / name).symlink_to(shutil.which(name))
    if lacks != "here":
        if (rsync := shutil.which("rsync")) is None:
            pytest.skip("no rsync: apt-get install rsync")
        more = {"there": "--rsync-path=/nowhere/rsync", "lost": "--rsync-path=false"}.get(lacks, "")
        (programs / "rsync").write_text(WRAPPER.format(folder=tmp_path, rsync=rsync, more=more))
        (programs / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    scripts = []
    run = connection.run
    monkeypatch.setattr(connection, "run", lambda *words, **more: scripts.append(words) or run(*words, **more))
    for _ in range(2):
        host.refresh(connection, str(spaced), run_dirs[1], Wanted((OWN, "metrics.jsonl", "state.json"), PATTERNS))
    found = files_of(run_dirs[1])
    del found[host._LOCK]
    assert found == {name: f"{name}\n" for name in (LOG, "metrics.jsonl", "state.json")}
    calls = (tmp_path / "calls").read_text().splitlines() if lacks != "here" else []
    expected = {"neither": (4, 0), "there": (1, 2), "here": (0, 2), "lost": (1, 2)}[lacks]
    assert (len(calls), len(scripts)) == expected


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
