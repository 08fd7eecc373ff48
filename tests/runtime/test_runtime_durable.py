"""Whole files: two writers at once, and a writer that fails."""

import os
import stat
import threading

import pytest

from launcher.runtime.durable import append_json, write_text


@pytest.mark.slow
def test_two_writers_at_once_each_write_a_whole_text(tmp_path):
    path, failures = tmp_path / "latest", []
    texts = [name * 4000 for name in "ab"]

    def write(text: str) -> None:
        try:
            for _ in range(100):
                write_text(path, text)
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert path.read_text() in texts
    assert [each.name for each in tmp_path.iterdir()] == ["latest"]


def test_a_text_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "latest"
    write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["latest"]


def test_a_text_can_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "latest", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "latest").stat().st_mode) == 0o644


@pytest.mark.parametrize("before", ["", '{"a": 1}\n', '{"a": 1}\n{"time": 17'])
def test_a_torn_line_is_ended_before_the_next(tmp_path, before):
    path = tmp_path / "records.jsonl"
    path.write_text(before)
    append_json(path, {"b": "é"})
    append_json(path, {"c": 3})
    assert path.read_text().splitlines()[-2:] == ['{"b": "\\u00e9"}', '{"c": 3}']
    assert path.read_text().startswith(before)
