"""What the operating system refuses, on real paths, limits and full disks: named with its path and a way out."""

import errno
import os
from pathlib import Path

import pytest
from conftest import LLAMA_K8S

from launcher import pipeline, run
from launcher.problems import ProblemsFound

TRACKED = ("recipes=training/tiny/tiny_lm_cpu", "dry_run=true")
UNTRACKED = (*LLAMA_K8S, "dry_run=true")


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
    "link-to-itself": "a link in this path leads back to itself",
    "proc": "/proc/x: does not exist and cannot be created",
    "below-proc": "/proc/x/y/z: does not exist and cannot be created",
    "sys": "/sys/x: ",
    "device": "/dev/full exists and is not a folder",
    "below-a-device": "a part of this path is not a folder",
    "long-name": "a name in this path is too long",
    "long-path": "a name in this path is too long",
    "null": "embedded null byte",
    "tilde": "~ is expanded by a shell only",
    "tilde-of-nobody": "~ is expanded by a shell only",
}


@pytest.mark.parametrize("words", [TRACKED, UNTRACKED], ids=["tracked", "untracked"])
@pytest.mark.parametrize("kind", REASONS)
def test_a_results_folder_that_cannot_be_made_blames_itself(tmp_path, monkeypatch, capsys, words, kind):
    monkeypatch.chdir(tmp_path)
    value = made(tmp_path, kind)
    before = sorted(tmp_path.rglob("*"))
    assert run.main([*words, f'base_results_dir="{value}"']) == 2
    err = capsys.readouterr().err
    assert [line for line in err.splitlines() if line.startswith("E")] == ["E702 base_results_dir"], err
    assert REASONS[kind] in err and "Errno" not in err
    assert sorted(tmp_path.rglob("*")) == before
    if kind == "tilde":
        assert f"remedy: base_results_dir={Path.home()}/results" in err


def test_what_could_be_made_is_removed_where_the_bundle_is_not_written(context, prepare, monkeypatch):
    bundle = pipeline.render(prepare(*LLAMA_K8S, "base_results_dir=a/b/c"), context)

    def fails(path, *_, **__):
        raise OSError(errno.EDQUOT, "quota", str(path))

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(ProblemsFound, match="a/b/c: your disk quota is used up"):
        pipeline.write(bundle)
    assert list(context.cwd.iterdir()) == []


def test_a_folder_that_is_called_like_a_home_may_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~x").mkdir()
    assert run.main([*UNTRACKED, 'base_results_dir="~x/y"']) == 0
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
