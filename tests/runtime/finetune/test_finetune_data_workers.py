"""Preparation by several processes, and what happens to files when it fails."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
import tokenizers

from launcher.runtime.finetune.data import fingerprints, workers
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.rehearsal_data import RehearsalData, write_rehearsal_data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RehearsalData:
    return write_rehearsal_data(tmp_path_factory.mktemp("made"), "sft", 1)


@pytest.fixture
def several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SMALL_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def arrays_of(folder: Path) -> dict[str, Any]:
    return {str(each.relative_to(folder)): numpy.load(each).tolist() for each in sorted(folder.rglob("*.npy"))}


def test_several_processes_write_the_arrays_of_one(made, tmp_path, several_processes, monkeypatch):
    path = tmp_path / "samples.jsonl"
    path.write_text(made.train_file.read_text() * 10)
    settings = DataSettings("sft", str(path), train_limit=2345)
    several = prepare(settings, made.tokenizer_folder, tmp_path / "several")
    monkeypatch.setattr(workers, "SMALL_BYTES", 1 << 30)
    one = prepare(settings, made.tokenizer_folder, tmp_path / "one")
    assert several.counts == one.counts
    assert several.counts.read == 2345
    assert arrays_of(several.folder) == arrays_of(one.folder)


def test_an_error_of_another_process_names_the_line_and_leaves_nothing(made, tmp_path, several_processes):
    path = tmp_path / "samples.jsonl"
    path.write_text(made.train_file.read_text() * 10 + "{\n" + made.train_file.read_text() * 10)
    with pytest.raises(DataError, match=r"samples\.jsonl:2401: not valid JSON"):
        prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared")
    assert_nothing_prepared(tmp_path / "prepared")


def test_a_process_that_is_killed_is_an_error(made, tmp_path, several_processes, monkeypatch):
    path = tmp_path / "samples.jsonl"
    path.write_text(made.train_file.read_text() * 10)
    start = subprocess.Popen

    def killed(*args: Any, **options: Any) -> Any:
        process = start(*args, **options)
        process.send_signal(signal.SIGKILL)
        return process

    monkeypatch.setattr(subprocess, "Popen", killed)
    with pytest.raises(DataError, match="a process that tokenizes ended with code -9"):
        prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared")
    assert_nothing_prepared(tmp_path / "prepared")


def assert_nothing_prepared(folder: Path) -> None:
    """Assert that no arrays are left, complete or not; locks and remembered fingerprints may be."""
    assert [each.name for each in folder.iterdir() if each.is_dir()] == []


def test_a_full_disk_is_named_and_leaves_nothing(made, tmp_path):
    """A limit of the file size stands for the disk: both fail in write(2)."""
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from launcher.runtime.finetune.data.preparation import prepare\n"
        "from launcher.runtime.finetune.data.settings import DataSettings\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "prepare(DataSettings('sft', sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))\n"
    )
    words = [str(made.train_file), str(made.tokenizer_folder), str(tmp_path / "prepared")]
    ended = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "DataError: the prepared data cannot be written" in ended.stderr
    assert f"{tmp_path / 'prepared'}: a file would exceed" in ended.stderr
    assert "set datasets.data_dir to another folder" in ended.stderr
    assert_nothing_prepared(tmp_path / "prepared")


def test_an_interrupted_preparation_is_done_again(made, tmp_path):
    settings = DataSettings("sft", str(made.train_file))
    complete = prepare(settings, made.tokenizer_folder, tmp_path / "prepared")
    partial = complete.folder.with_name(f".{complete.digest}.partial")
    complete.folder.rename(partial)  # as a process leaves it that is killed before the end
    again = prepare(settings, made.tokenizer_folder, tmp_path / "prepared")
    assert again.counts == complete.counts
    assert not partial.exists()


def test_prepared_data_is_not_prepared_again(made, tmp_path):
    settings = DataSettings("sft", str(made.train_file))
    first = prepare(settings, made.tokenizer_folder, tmp_path / "prepared")
    written = {each: each.stat().st_mtime_ns for each in first.folder.rglob("*")}
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_bytes(made.train_file.read_bytes())
    os.utime(moved, (1, 1))
    again = prepare(DataSettings("sft", str(moved)), made.tokenizer_folder, tmp_path / "prepared")
    assert again.digest != first.digest  # the name of a file is part of it, since it orders the files of a folder
    same = tmp_path / "copy" / made.train_file.name
    same.parent.mkdir()
    same.write_bytes(made.train_file.read_bytes())
    assert (
        prepare(DataSettings("sft", str(same)), made.tokenizer_folder, tmp_path / "prepared").digest == first.digest
    )
    assert written == {each: each.stat().st_mtime_ns for each in first.folder.rglob("*")}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"max_len": 100}, id="max_len"),
        pytest.param({"train_limit": 100}, id="limit"),
        pytest.param({"max_samples": 100}, id="max_samples"),
        pytest.param({"split_seed": 7}, id="seed"),
        pytest.param({"split_ratio": 0.5}, id="ratio"),
        pytest.param({"pretrain_mode": True}, id="pretrain_mode"),
    ],
)
def test_every_setting_is_part_of_the_digest(made, tmp_path, change):
    digests = {
        prepare(DataSettings("sft", str(made.train_file), **given), made.tokenizer_folder, tmp_path).digest
        for given in ({}, change)
    }
    assert len(digests) == 2


def test_another_content_or_template_is_another_digest(made, tmp_path):
    path = tmp_path / "samples.jsonl"
    text = made.train_file.read_text()
    path.write_text(text)
    first = prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared")
    path.write_text(text.replace("thread", "THREAD"))
    second = prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared")
    own = tmp_path / "own.jinja"
    config = json.loads((made.tokenizer_folder / "tokenizer_config.json").read_text())
    own.write_text(config["chat_template"] + "{# mine #}")
    third = prepare(
        DataSettings("sft", str(path), template_file=str(own)), made.tokenizer_folder, tmp_path / "prepared"
    )
    assert len({first.digest, second.digest, third.digest}) == 3


def test_two_jobs_that_share_a_folder_prepare_once(made, tmp_path):
    settings = DataSettings("sft", str(made.train_file))
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(prepare(settings, made.tokenizer_folder, tmp_path)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({each.digest for each in found}) == 1
    assert len({each.folder.stat().st_ino for each in found}) == 1


def test_a_restart_reads_neither_files_nor_tokenizer_again(made, tmp_path, monkeypatch):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(made.train_file.read_bytes())
    os.utime(path, (1_000_000_000, 1_000_000_000))
    first = prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared")

    def refuse(*args: Any) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(fingerprints, "new_checksum", refuse)
    monkeypatch.setattr(tokenizers.Tokenizer, "from_str", refuse)
    again = prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared")
    assert again.digest == first.digest


def test_a_changed_file_is_read_again(made, tmp_path):
    path = tmp_path / "samples.jsonl"
    text = made.train_file.read_text()
    found = []
    for number, content in enumerate((text, text.replace("thread", "THREAD"), text)):
        path.write_text(content)
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
        found.append(prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared").digest)
    assert found[0] == found[2] != found[1]
    (tmp_path / "prepared" / fingerprints.MEMORY).write_text("[1")
    assert prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared").digest == found[0]


def test_a_file_that_has_just_changed_is_not_remembered(made, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(made.train_file.read_bytes())
    prepare(DataSettings("sft", str(path)), made.tokenizer_folder, tmp_path / "prepared")
    assert not (tmp_path / "prepared" / fingerprints.MEMORY).exists()
