"""Kinds of files: JSONL, parquet, Hugging Face folders; and the memory that preparation takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from wrong_kinds import of_kind

from launcher.runtime.finetune.data import sources
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import open_source
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": str(n), "name": None}]} for n in range(start, start + count)]


def write(path: Path, samples: list[dict[str, Any]], group: int = 5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(samples)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=group)
    elif path.suffix == ".arrow":
        with pyarrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=group)
    else:
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def contents(path: Path, limit: int = 10**9, role: Any = "train") -> list[int]:
    chunks = list(open_source(str(path), role).chunks(limit))
    starts = [chunk.first for chunk in chunks]
    assert starts == [sum(len(chunk) for chunk in chunks[:index]) for index in range(len(chunks))]
    return [int(record["messages"][0]["content"]) for chunk in chunks for record in chunk.each(dict)]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json", ".parquet", ".arrow"])
def test_every_kind_of_file_is_read_in_order(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(sources, "CHUNK_SAMPLES", 4)
    path = tmp_path / f"samples{suffix}"
    write(path, rows(23))
    assert contents(path) == list(range(23))
    assert contents(path, 9) == list(range(9))
    assert open_source(str(path), "train").count(10**9) == 23
    assert open_source(str(path), "train").count(5) == 5


@pytest.mark.slow
def test_an_arrow_file_of_the_other_format_is_read(tmp_path):
    table = pyarrow.Table.from_pylist(rows(6))
    with pyarrow.ipc.new_file(tmp_path / "samples.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=4)
    assert contents(tmp_path / "samples.arrow") == list(range(6))
    assert open_source(str(tmp_path / "samples.arrow"), "train").count(100) == 6


def test_a_saved_hugging_face_data_set_is_read_in_the_order_of_its_state(tmp_path):
    write(tmp_path / "data-00001-of-00002.arrow", rows(3))
    write(tmp_path / "data-00000-of-00002.arrow", rows(3, 3))
    names = [{"filename": "data-00001-of-00002.arrow"}, {"filename": "data-00000-of-00002.arrow"}]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": names}))
    (tmp_path / "dataset_info.json").write_text("{}")
    assert contents(tmp_path) == list(range(6))
    assert contents(tmp_path, 4) == list(range(4))
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(DataError, match="state.json: not the state of a saved"):
        contents(tmp_path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_a_folder_of_files_is_read_by_name(tmp_path, suffix):
    for number in range(3):
        write(tmp_path / "data" / f"part-{number}{suffix}", rows(4, 4 * number))
    (tmp_path / "README.md").write_text("# Data")
    (tmp_path / "dataset_infos.json").write_text("{}")
    write(tmp_path / ".cache" / f"part-9{suffix}", rows(4))
    assert contents(tmp_path) == list(range(12))


def test_a_folder_with_splits_gives_the_files_of_the_role(tmp_path):
    write(tmp_path / "data" / "train-00000-of-00002.parquet", rows(2))
    write(tmp_path / "data" / "train-00001-of-00002.parquet", rows(2, 2))
    write(tmp_path / "data" / "test-00000-of-00001.parquet", rows(2, 4))
    assert contents(tmp_path) == [0, 1, 2, 3]
    assert contents(tmp_path, role="validation") == [4, 5]
    (tmp_path / "data" / "train-00000-of-00002.parquet").unlink()
    (tmp_path / "data" / "train-00001-of-00002.parquet").unlink()
    write(tmp_path / "data" / "other.parquet", rows(1))
    with pytest.raises(DataError, match=r"several splits \(no split, test\), none for train"):
        contents(tmp_path)


def test_the_splits_of_a_saved_data_set_are_folders(tmp_path):
    for split, start in (("train", 0), ("test", 3)):
        write(tmp_path / split / "data-00000-of-00001.arrow", rows(3, start))
        (tmp_path / split / "state.json").write_text(
            json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
        )
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert contents(tmp_path) == [0, 1, 2]
    assert contents(tmp_path, role="validation") == [3, 4, 5]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("no.jsonl", None, "no such file or folder of train samples", id="missing"),
        pytest.param("a.csv", b"a,b", r"unknown kind of file '\.csv'; a data set is JSONL", id="kind"),
        pytest.param("a.parquet", b"PAR1 no", r"a\.parquet: cannot be read", id="parquet"),
        pytest.param("a.arrow", b"none", r"a\.arrow: cannot be read", id="arrow"),
        pytest.param("folder/a.txt", b"", "holds no file of samples", id="folder"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        contents(path if path.parent == tmp_path else path.parent)


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["pipe", "socket", "loop", "link to nothing", "link to a device"])
@pytest.mark.parametrize("name", ["part.jsonl", "state.json", "named.arrow"])
def test_what_is_not_a_file_of_samples_is_named_and_not_opened(tmp_path, kind, name):
    (tmp_path / "good.jsonl").write_text('{"x": 1}\n')
    if name == "named.arrow":
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    of_kind(kind, tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}: is a (FIFO|socket|link to no file|device)"):
        list(open_source(str(tmp_path), "train").chunks(9))
    if name != "state.json":
        with pytest.raises(DataError, match=rf"{name}: is a "):
            open_source(str(tmp_path / name), "train")


def test_a_damaged_part_of_a_table_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, rows(50))
    damaged = bytearray(path.read_bytes())
    damaged[4:200] = bytes(196)
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read"):
        contents(path)


@pytest.mark.slow
def test_tables_and_lines_give_the_same_tokens(tmp_path):
    made = write_rehearsal_data(tmp_path / "made", "dpo", 1)
    samples = [json.loads(line) for line in made.train_file.read_text().splitlines()]
    found = []
    for suffix in (".jsonl", ".parquet", ".arrow"):
        write(tmp_path / f"samples{suffix}", samples)
        settings = DataSettings("dpo", str(tmp_path / f"samples{suffix}"))
        found.append(prepare(settings, made.tokenizer_folder, tmp_path / "prepared").train)
    for other in found[1:]:
        assert other.ids.tolist() == found[0].ids.tolist()
        assert other.offsets.tolist() == found[0].offsets.tolist()


_PEAK = """
import re, sys
from pathlib import Path
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.settings import DataSettings
found = prepare(DataSettings("sft", sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
assert len(found.train) == int(sys.argv[4]) * 0.9
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # ru_maxrss is the parent's, too
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
def test_memory_does_not_grow_with_the_samples(tmp_path, suffix):
    made = write_rehearsal_data(tmp_path / "made", "sft", 1)
    messages = [{"role": "user", "content": "Which bell?"}, {"role": "assistant", "content": "The ferry bell. " * 3}]
    peaks = []
    for count in (3_000, 30_000):
        path = tmp_path / f"{count}{suffix}"
        write(path, [{"messages": messages}] * count, group=1000)
        words = [str(path), str(made.tokenizer_folder), str(tmp_path / "prepared"), str(count)]
        ended = subprocess.run([sys.executable, "-c", _PEAK, *words], capture_output=True, text=True, check=True)
        peaks.append(int(ended.stdout) / 1024)
    # As Python's integers, the tokens of the further samples would take 50 MiB.
    assert peaks[1] - peaks[0] < 10, peaks
