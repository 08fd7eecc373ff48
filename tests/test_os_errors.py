"""What the operating system refuses, on real paths, limits and full disks: named with its path and a way out."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from conftest import LLAMA_K8S, ROOT

from launcher import pipeline
from launcher.cli import launch
from launcher.common.problems import ProblemsFound

TRACKED = ("recipes=training/tiny/tiny_lm_cpu", "dry_run=true")
UNTRACKED = (*LLAMA_K8S, "dry_run=true")
LAUNCHED = TRACKED[:1]
"""Tracked too, and its MLflow run is reserved: a dry run opens no store."""


def made(folder, name):
    """Make a place of the given kind in `folder`; return what base_results_dir is then."""
    if name == "file":
        (folder / "file").write_text("")
        return "file"
    if name == "below-a-file":
        (folder / "file").write_text("")
        return "file/x/y"
    if name == "dangling-link":
        (folder / "link").symlink_to("/nowhere/at/all")
        return "link"
    if name == "link-to-itself":
        (folder / "loop").symlink_to("loop")
        return "loop/x"
    return {
        "proc": "/proc/x",
        "below-proc": "/proc/x/y/z",
        "sys": "/sys/x",
        "device": "/dev/full",
        "below-a-device": "/dev/null/x",
        "long-name": "n" * 300,
        "long-path": "/".join(["n" * 200] * 30),
        "null": "a\0b",
        "tilde": "~/results",
        "tilde-of-nobody": "~no-such-user/results",
    }[name]


REASONS = {
    "file": "file exists and is not a folder",
    "below-a-file": "a part of this path is not a folder",
    "dangling-link": "link is a link to /nowhere/at/all, which does not exist",
    "link-to-itself": "a link in this path points back to itself",
    "proc": "/proc/x: does not exist and cannot be created",
    "below-proc": "/proc/x/y/z: does not exist and cannot be created",
    "sys": "/sys/x: ",
    "device": "/dev/full exists and is not a folder",
    "below-a-device": "a part of this path is not a folder",
    "long-name": "a name in this path is too long",
    "long-path": "a name in this path is too long",
    "null": "contains a NUL character",
    "tilde": "only a shell expands ~",
    "tilde-of-nobody": "only a shell expands ~",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", [TRACKED, UNTRACKED], ids=["tracked", "untracked"])
@pytest.mark.parametrize("kind", REASONS)
def test_a_results_folder_that_cannot_be_made_blames_itself(tmp_path, monkeypatch, capsys, words, kind):
    monkeypatch.chdir(tmp_path)
    value = made(tmp_path, kind)
    before = sorted(tmp_path.rglob("*"))
    assert launch.main([*words, f'base_results_dir="{value}"']) == 2
    err = capsys.readouterr().err
    heading = 'E001 base_results_dir="a\\0b"' if kind == "null" else "E702 base_results_dir"
    assert [line for line in err.splitlines() if line.startswith("E")] == [heading], err
    assert REASONS[kind] in err and "Errno" not in err
    assert sorted(tmp_path.rglob("*")) == before
    if kind == "tilde":
        assert f"remedy: base_results_dir={Path.home()}/results" in err


def test_what_could_be_made_is_removed_where_the_bundle_is_not_written(context, prepare, monkeypatch):
    bundle = pipeline.render(prepare(*LLAMA_K8S, "base_results_dir=a/b/c"), context)

    def fails(path, *_, **__):
        raise OSError(errno.EDQUOT, "quota", str(path))

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(ProblemsFound, match="a/b/c: your disk quota is exhausted"):
        pipeline.write(bundle)
    assert list(context.cwd.iterdir()) == []


def test_a_folder_that_is_called_like_a_home_may_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~x").mkdir()
    assert launch.main([*UNTRACKED, 'base_results_dir="~x/y"']) == 0
    assert len(list((tmp_path / "~x" / "y").iterdir())) == 1


@pytest.fixture
def as_a_user():
    """Act as a user without the rights of root, which may write anywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_a_folder_of_somebody_else_is_named(context, prepare, as_a_user):
    bundle = pipeline.render(prepare(*LLAMA_K8S, "base_results_dir=/usr/x"), context)
    with pytest.raises(ProblemsFound, match="E702 base_results_dir\n.*/usr/x: permission denied"):
        pipeline.write(bundle)


FULL = "the disk is full"


def main(*words, cwd, limits=(), small=None):
    """Run main.py in a process of its own, with limits or in a file system with the mount options `small`."""
    command = [sys.executable, str(ROOT / "main.py"), *words]
    if small:
        mount = f'mount -t tmpfs -o {small} none "$0" && cd "$0" && exec "$@"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(cwd), *command]

    def limit():
        for name, value in limits:
            resource.setrlimit(name, (value, value))

    done = subprocess.run(command, cwd=cwd, preexec_fn=limit, capture_output=True, text=True, timeout=280)
    assert "Traceback" not in done.stderr and "SQL" not in done.stderr and "Errno" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "size", "code"),
    [(UNTRACKED, 2_000, "E702 base_results_dir"), (LAUNCHED, 20_000, "E502 "), (LAUNCHED, 300_000, "E502 ")],
    ids=["untracked", "tracked", "tracked-later"],
)
def test_a_limit_on_files_is_named_before_a_job_starts_and_nothing_stays(tmp_path, words, size, code):
    status, _, err = main(*words, cwd=tmp_path, limits=[(resource.RLIMIT_FSIZE, size)])
    assert (status, list(tmp_path.iterdir())) == (2, []), err
    assert f"{code}" in err and str(tmp_path / "results") in err
    assert "a file would exceed the size that this process may write" in err and "ulimit -f" in err


@pytest.mark.slow
def test_too_many_open_files_are_named(tmp_path):
    code = (
        "import resource, sys; sys.path.insert(0, sys.argv.pop(1)); from launcher.cli import launch as run;"
        "assert run.main([*sys.argv[1:], 'base_results_dir=warm']) == 0;"  # what is imported needs no more files
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); sys.exit(run.main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, str(ROOT), *UNTRACKED]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2 and "this process has too many open files" in done.stderr, done.stderr
    assert "ulimit -n" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def mounts():
    """Skip where this kernel lets no user mount a file system; limits are tested everywhere."""
    probe = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, timeout=200).returncode:
        pytest.skip("no user namespaces with mounts here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "small"),
    [(UNTRACKED, "size=20k"), (UNTRACKED, "nr_inodes=4"), (LAUNCHED, "size=40k"), (LAUNCHED, "size=700k")],
    ids=["untracked", "no-inodes", "tracked", "tracked-later"],
)
def test_a_full_disk_is_named_before_a_job_starts(tmp_path, mounts, words, small):
    status, _, err = main(*words, cwd=tmp_path, small=small)
    assert status == 2 and f"{FULL} (now " in err and " free)" in err, err
    assert str(tmp_path / "results") in err and "make room there" in err


@pytest.mark.slow
def test_a_file_system_that_is_read_only_is_named(tmp_path, mounts):
    status, _, err = main(*TRACKED, cwd=tmp_path, small="ro")
    assert status == 2 and "E702 base_results_dir" in err
    assert f"{tmp_path}/results: the file system is read-only" in err


WRITER = """
import os, pathlib, sys, time
run_dir = pathlib.Path(os.environ["RECIPES_RUN_DIR"])
print("step 1/9  loss 1.0", flush=True)
if os.environ["RANK"] != "0":
    pass  # a second writer would empty the file of the first
elif sys.argv[1] == "disk":
    with open(run_dir / "checkpoint", "wb") as file:
        file.write(bytes(64_000_000))
else:
    (run_dir / ".state.json.tmp").symlink_to("/dev/full")
    sys.exit("the operator records each change of state")
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "small", "says"),
    [
        ("operator", None, ["/run: ", FULL, "the job was ended"]),
        ("disk", "size=8m", ["/run: ", f"{FULL} (now ", "so the job was ended; make room there", "recipes launch"]),
    ],
    ids=["the-operator-s-record", "the-disk-of-the-job"],
)
def test_a_disk_that_is_full_in_the_middle_of_training_is_why_the_job_failed(tmp_path, request, where, small, says):
    pytest.importorskip("hyperpod_elastic_agent")
    if small:
        request.getfixturevalue("mounts")
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    folder = tmp_path / "here"
    folder.mkdir()
    command = [sys.executable, str(ROOT / "main.py"), f"cluster.command=['{script}', {where}]"]
    if small:
        mount = f'mount -t tmpfs -o {small} none "$0" && cd "$0" && exec "$@"'
        # A store's journal comes and goes, and what it leaves free lets the operator write a last time.
        command += ["recipes.training_config.mlflow.enabled=false"]
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(folder), *command]
    done = commands.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    failed = done.stderr[done.stderr.index("failed  ") :]
    assert done.returncode == 3 and all(each in failed for each in says), done.stderr
    assert "SQL" not in done.stderr and "sqlalche" not in done.stderr
