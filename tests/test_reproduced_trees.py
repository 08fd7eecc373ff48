"""What git does not see of a job's code is recorded too, and a record ends whatever a folder holds."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from test_reproduction import git, project, rendered, script

from launcher.api import reproducing
from launcher.common.names import METRICS_FILE, RUN_DIR
from launcher.reproduction import code
from launcher.reproduction import digests as digests_module
from launcher.reproduction.digests import Budget, combined, digests, file_digest

__all__ = ["project"]


def changed(job: Path) -> list[str]:
    return [each.key for section, each in reproducing.since(job).changes if section == "code"]


def repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / "own.py").write_text("1\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


@pytest.fixture
def submodule(project, tmp_path_factory) -> Path:
    other = repository(tmp_path_factory.mktemp("other") / "sub")
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(project, "commit", "--quiet", "-m", "with a submodule")
    return project / "sub"


@pytest.mark.slow
@pytest.mark.parametrize("is_ignored", [False, True], ids=["reported", "ignored"])
def test_changes_and_commits_in_a_submodule_are_told_apart(project, submodule, recipes, is_ignored):
    if is_ignored:  # by a setting of the user's
        git(project, "config", "diff.ignoreSubmodules", "all")
    clean = script(recipes)
    assert changed(clean) == []
    (submodule / "own.py").write_text("2\n")
    assert changed(clean) == ["script/sub"]
    edited = script(recipes)
    assert changed(edited) == []
    (submodule / "own.py").write_text("3\n")
    assert changed(edited) == ["script/sub"]
    git(submodule, "commit", "--quiet", "-am", "second")
    committed = script(recipes)
    (submodule / "own.py").write_text("4\n")
    git(submodule, "commit", "--quiet", "-am", "third")
    assert changed(committed) == ["script/sub"]


@pytest.mark.slow
def test_changes_in_a_nested_repository_are_seen(project, recipes):
    nested = repository(project / "nested")
    job = script(recipes)
    (nested / "own.py").write_text("2\n")
    assert changed(job) == ["script/nested/"]


@pytest.mark.slow
def test_what_tracked_links_out_of_the_work_tree_lead_to_counts(project, recipes, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "deep").mkdir()
    (outside / "deep" / "a.py").write_text("1\n")
    (outside / "file.py").write_text("1\n")
    for link, target in {"file.py": "file.py", "deep": "deep", "gone": "gone"}.items():
        (project / link).symlink_to(outside / target)
    (project / "within.py").symlink_to("train.py")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "links")
    job = script(recipes)
    assert changed(job) == []
    (outside / "file.py").write_text("2\n")
    (outside / "deep" / "a.py").write_text("2\n")
    assert changed(job) == ["script/deep", "script/file.py"]


def test_code_that_git_ignores_counts_by_its_content(project, recipes):
    (project / ".gitignore").write_text("/scratch/\n")
    (project / "scratch").mkdir()
    (project / "scratch" / "try.py").write_text("1\n")
    words = ("training/custom/script", "cluster=local", "training_cfg.run.ntasks_per_node=1")
    job = rendered(recipes, *words, "training_cfg.entry_script=scratch/try.py")
    (project / "scratch" / "try.py").write_text("2\n")
    found = reproducing.since(job)
    assert [each.key for _, each in found.changes] == ["script/try.py"]
    assert "code script: git: ignores the code" in found.notes


@pytest.mark.slow
def test_a_git_that_does_not_answer_is_named_and_the_files_count(project, tmp_path_factory, monkeypatch):
    programs = tmp_path_factory.mktemp("programs")
    (programs / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(code, "_TIMEOUT_S", 0.1)
    found = code.code_state(str(project / "train.py"), "/nowhere", Budget())
    assert found["kind"] == "folder" and "no answer within" in found["note"] and "train.py" in found["files"]


def test_a_record_ends_in_folders_without_files_and_in_files_without_an_end(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    spent = Budget(time_s=-1.0)
    assert digests(str(tmp_path), spent) == {} and spent.is_spent
    endless = "/proc/self/pagemap"  # of size 0, with entries for every possible address
    assert Path(endless).stat().st_size == 0 and file_digest(endless, Budget()).startswith("sha256:")


@pytest.mark.slow
def test_damaged_lines_of_metrics_are_left_out(project, recipes):
    jobs = script(recipes), script(recipes)
    good = b'{"step": 1, "loss": 2.0, "further": {"reward": 3.0}}\n'
    for job, lines in zip(jobs, (good, good + b'not JSON\n[1]\n"\xff"\n{"step": 2, "lo'), strict=True):
        (job / RUN_DIR).mkdir()
        (job / RUN_DIR / METRICS_FILE).write_bytes(lines)
    assert reproducing.of_jobs(*jobs).sections["metrics"] == ()
    (jobs[1] / RUN_DIR / METRICS_FILE).write_text(json.dumps({"loss": 1.0, "further": {"reward": 3.0}}) + "\n")
    found = reproducing.of_jobs(*jobs).sections["metrics"]
    assert {each.key for each in found} == {"loss.last", "loss.lowest", "loss.highest"}


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_file_up_to_64_mib_is_read_completely(tmp_path):
    size = 64 << 20
    path = tmp_path / "zeros"
    path.touch()
    os.truncate(path, size)
    budget = Budget()
    assert budget.num_bytes == 512 << 20 and budget.num_files == 20_000
    assert file_digest(str(path), budget) == f"sha256:{sha256(bytes(size))}"
    assert budget.num_bytes == 448 << 20
    os.truncate(path, size + 1)
    assert file_digest(str(path), budget).startswith("sampled:")
    assert budget.num_bytes == (448 << 20) - (16 << 16)


def test_a_file_that_grows_counts_by_its_first_bytes(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"begin, and more")
    with path.open("rb", buffering=0) as file:
        assert digests_module._complete(file, 5) == sha256(b"begin")
    with path.open("rb", buffering=0) as file:
        assert digests_module._complete(file, 99) == sha256(b"begin, and more")


@pytest.mark.parametrize(("left", "count"), [(9, 16), (1, 16), (0, 1), (-1, 1)])
def test_a_sample_is_the_size_the_time_and_blocks_from_start_to_end(tmp_path, left, count):
    """16 blocks of 64 KiB at equal distances; the first one alone if nothing is left to be read."""
    content = bytes(range(256)) * 4096 + os.urandom(1000)
    path = tmp_path / "large"
    path.write_bytes(content)
    os.utime(path, ns=(0, 1_700_000_000_000_000_001))
    starts = [i * (len(content) - 65_536) // 15 for i in range(count)]
    blocks = [content[start : start + 65_536] for start in starts]
    budget = Budget(num_bytes=left)
    assert file_digest(str(path), budget) == f"sampled:{sha256(b'1049576 1700000000000000001', *blocks)}"
    assert budget.num_bytes == left - count * 65_536


def test_a_small_file_is_sampled_if_less_than_it_is_left(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(b"four")
    budget = Budget(num_bytes=7)
    assert file_digest(str(path), budget) == f"sha256:{sha256(b'four')}" and budget.num_bytes == 3
    os.utime(path, ns=(0, 5))
    assert file_digest(str(path), budget) == f"sampled:{sha256(b'4 5', b'four' * 16)}"
    assert file_digest(str(path), Budget(num_bytes=4)) == f"sha256:{sha256(b'four')}"


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path, tmp_path_factory):
    for name in ("b/1", "b/2", "a/x", "c", "left/y", "b/left", "B"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "1").write_text("z/1")
    (tmp_path / "z").symlink_to(elsewhere)
    found = digests(str(tmp_path), Budget(), lambda path: path.endswith("left"))
    assert found == {name: f"sha256:{sha256(name.encode())}" for name in ("B", "c", "a/x", "b/1", "b/2", "z/1")}
    assert list(found) == ["B", "c", "a/x", "b/1", "b/2", "z/1"]
    budget = Budget(num_files=3)
    assert list(digests(str(tmp_path), budget)) == ["B", "c", "a/x"] and budget.is_spent
    assert not Budget(num_files=1).is_spent and Budget(num_files=0).is_spent


def test_what_is_no_file_is_said():
    assert file_digest("/dev/null", Budget()) == "not a regular file"
    assert file_digest("/nowhere", Budget()) == "unreadable: No such file or directory"


def test_the_digest_of_a_folder_is_that_of_its_list():
    files = {"b": "sha256:1", "a c": "sampled:2", os.fsdecode(b"\xff\xc3\xa9"): "3"}
    lines = b"3 a c sampled:2\n", b"1 b sha256:1\n", b"3 \xff\xc3\xa9 3\n"
    assert combined(files) == f"sha256:{sha256(*lines)}"
