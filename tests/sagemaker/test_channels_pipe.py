"""Pipe mode: FIFOs, read by programs at their own speed."""

import gzip
import json
import os
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from background import Collected, await_true
from channel_cases import Data, channel, place

from launcher.backends.sagemaker_local.channels import prepare
from launcher.backends.sagemaker_local.objects import Stores

pytest_plugins = ("s3_server",)

CHUNK = 256 * 1024


@pytest.fixture(params=["file", "s3"])
def data(request, tmp_path):
    """Return objects of a test, in a store of each kind."""
    return Data.of(request, tmp_path)


@pytest.fixture
def local(tmp_path):
    return Data(f"file://{tmp_path}/store", Stores(), tmp_path)


@pytest.fixture
def stream(tmp_path):
    """Return a function that starts channels on a host, by default the only one; return its data folder and feeds."""
    started = []

    def start(data: Data, *wanted: dict, index: int = 0, count: int = 1):
        host = place(tmp_path, index, count)
        feeds = prepare(wanted, "Pipe", host, data.stores)
        started.extend(feeds)
        for feed in feeds:
            feed.start()
        return host.data_dir, feeds

    yield start
    for feed in started:
        feed.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("pipe ")] == []
    assert [path for feed in started for path in tmp_path.glob(f"algo-*/data/{feed.name}_*")] == []


def read(fifo: Path, limit: int = -1, pause_s: float = 0.0) -> bytes:
    """Return what a FIFO holds, once it is there; `pause_s` makes a slow reader."""
    await_true(fifo.exists)
    found = b""
    with fifo.open("rb", buffering=0) as opened:
        while (limit < 0 or len(found) < limit) and (data := opened.read(CHUNK)):
            found += data
            time.sleep(pause_s)
    return found


def records(stream: bytes) -> list[bytes]:
    """Return the records of a RecordIO stream, as a reader that knows one kind of them does."""
    found = []
    while stream:
        magic, size = struct.unpack_from("<II", stream)
        assert magic == 0xCED7230A
        found.append(stream[8 : 8 + size])
        assert stream[8 + size : 8 + size + -size % 4] == bytes(-size % 4)
        stream = stream[8 + size + -size % 4 :]
    return found


@pytest.mark.slow
def test_three_epochs_of_two_channels_at_different_speeds(data, tmp_path, stream):
    large = {f"part-{number}": os.urandom(3 * CHUNK + number) for number in range(3)}
    for key, value in large.items():
        data.put(f"train/{key}", value)
    data.put("test/a", b"first")
    data.put("test/b", b"second")
    folder, _ = stream(data, channel(f"{data.base}/train/"), channel(f"{data.base}/test/", name="test"))
    slow = Collected(read(folder / f"train_{epoch}", pause_s=0.005) for epoch in range(3))
    quick = Collected(read(folder / f"test_{epoch}") for epoch in range(3))
    assert quick.result() == [b"firstsecond"] * 3
    whole = b"".join(large[key] for key in sorted(large))
    assert [each == whole for each in slow.result()] == [True] * 3


def test_the_next_epoch_appears_when_the_last_is_closed(local, stream):
    local.put("train/a", b"abc")
    folder, (feed,) = stream(local, channel(f"{local.base}/train/"))
    assert [path.name for path in folder.iterdir()] == ["train_0"]
    for epoch in range(3):
        with (folder / f"train_{epoch}").open("rb") as opened:
            assert opened.read() == b"abc"
            assert not (folder / f"train_{epoch + 1}").exists()
        await_true((folder / f"train_{epoch + 1}").exists)
        assert not (folder / f"train_{epoch}").exists()
    assert feed.problem is None


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 1, 3 * CHUNK], ids=["unread", "at once", "amid"])
def test_an_epoch_may_be_closed_early(data, stream, limit):
    whole = os.urandom(40 * CHUNK)
    data.put("train/a", whole[:CHUNK])
    data.put("train/b", whole[CHUNK:])
    folder, (feed,) = stream(data, channel(f"{data.base}/train/"))
    for epoch in range(2):
        got = read(folder / f"train_{epoch}", limit)
        assert len(got) >= limit and whole.startswith(got) and len(got) < len(whole)
    assert read(folder / "train_2") == whole
    assert feed.problem is None


def test_a_program_reads_it_as_a_file(local, stream):
    local.put("train/a", b"some words\n" * 1000)
    folder, _ = stream(local, channel(f"{local.base}/train/"))
    script = "for epoch in 0 1; do until [ -p train_$epoch ]; do sleep 0.01; done; wc -l < train_$epoch; done"
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["1000", "1000"]


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["plain", "gzip"])
def test_objects_are_wrapped_and_unpacked(data, stream, packing):
    wanted = [b"", b"a", b"four", os.urandom(CHUNK + 3)]
    for number, value in enumerate(wanted):
        packed = gzip.compress(value[:7]) + gzip.compress(value[7:]) if packing == "gzip" else value
        data.put(f"train/{number}", packed)
    more = {"CompressionType": "Gzip"} if packing == "gzip" else {}
    folder, _ = stream(
        data,
        channel(f"{data.base}/train/", RecordWrapperType="RecordIO", **more),
        channel(f"{data.base}/train/", name="bare", **more),
    )
    assert records(read(folder / "train_0")) == wanted
    assert read(folder / "bare_0") == b"".join(wanted)


def test_epochs_are_shuffled_anew_and_alike_on_all_hosts(local, stream):
    for number in range(20):
        local.put(f"train/{number:02}", b"%02d " % number)
    wanted = channel(f"{local.base}/train/", ShuffleConfig={"Seed": 3})
    shared = channel(f"{local.base}/train/", name="part", shared=True, ShuffleConfig={"Seed": 3})
    epochs, parts = [], []
    for index in range(2):
        folder, _ = stream(local, wanted, shared, index=index, count=2)
        epochs.append([read(folder / f"train_{epoch}").split() for epoch in range(2)])
        parts.append([read(folder / f"part_{epoch}").split() for epoch in range(2)])
    assert epochs[0] == epochs[1]
    assert epochs[0][0] != epochs[0][1] != sorted(epochs[0][1]) == sorted(epochs[0][0])
    assert parts[0][0] != parts[0][1]
    for epoch in range(2):
        assert sorted(parts[0][epoch] + parts[1][epoch]) == sorted(epochs[0][0])


def test_an_augmented_manifest_is_streamed_attribute_by_attribute(data, stream):
    lines = [
        {"image-ref": data.put("images/1.jpg", b"\xff\xd8one"), "is-a-cat": 1, "words": "so ä", "more": None},
        {"image-ref": data.put("images/2.jpg", b"\xff\xd8two"), "is-a-cat": 0, "words": "", "box": {"x": [1, 2]}},
    ]
    manifest = data.put("lines.jsonl", "\n\n".join(map(json.dumps, lines)).encode())
    wanted = channel(
        manifest,
        kind="AugmentedManifestFile",
        attributes=["image-ref", "is-a-cat", "words"],
        RecordWrapperType="RecordIO",
    )
    folder, _ = stream(data, wanted)
    assert records(read(folder / "train_0")) == [b"\xff\xd8one", b"1", "so ä".encode(), b"\xff\xd8two", b"0", b""]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a-ref": 3}', "does not refer to an object"),
        (b'{"b": 3}', "has no attribute 'a-ref'"),
        (b"[1]\n{", "line 2"),
        (b"\n", "has no line"),
    ],
    ids=["no reference", "absent", "no object", "empty"],
)
def test_a_damaged_augmented_manifest_is_refused(local, stream, text, says):
    manifest = local.put("lines.jsonl", text)
    with pytest.raises(Exception, match=says) as raised:
        stream(local, channel(manifest, kind="AugmentedManifestFile", attributes=["a-ref"]))
    assert {problem.code for problem in raised.value.problems} == {"E423"}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("spoil", "code"),
    [(_cut, "E425"), (Path.unlink, "E420"), (lambda path: path.write_bytes(b"no gzip"), "E425")],
    ids=["cut short", "removed", "damaged"],
)
def test_a_stream_that_breaks_is_told_and_does_not_look_ended(local, tmp_path, stream, spoil, code):
    local.put("train/a", gzip.compress(b"good"))
    local.put("train/b", gzip.compress(os.urandom(1000)))
    folder, (feed,) = stream(local, channel(f"{local.base}/train/", CompressionType="Gzip"))
    spoil(tmp_path / "store/train/b")
    reader = Collected(read(folder / "train_0") for _ in range(1))
    await_true(lambda: feed.problem)
    assert (feed.problem.code, feed.problem.path) == (code, f"{local.base}/train/b")
    assert reader.is_alive()
    feed.close()
    reader.result()


def test_an_object_too_large_for_a_record_is_told(local, tmp_path, stream):
    local.put("train/a", b"")
    os.truncate(tmp_path / "store/train/a", 1 << 29)
    folder, (feed,) = stream(local, channel(f"{local.base}/train/", RecordWrapperType="RecordIO"))
    with (folder / "train_0").open("rb"):
        await_true(lambda: feed.problem)
    assert (feed.problem.code, feed.problem.value) == ("E425", 1 << 29)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["unread", "blocked", "read"])
def test_closing_leaves_nothing(data, stream, state, monkeypatch):
    monkeypatch.setattr("launcher.backends.sagemaker_local.pipe._CLOSE_TIMEOUT_S", 60.0)  # what a stuck thread takes
    data.put("train/a", os.urandom(20 * CHUNK))
    descriptors = len(os.listdir("/proc/self/fd"))
    folder, (feed,) = stream(data, channel(f"{data.base}/train/"))
    if state == "blocked":
        opened = (folder / "train_0").open("rb", buffering=0)
        opened.read(1)
    if state == "read":
        read(folder / "train_0")
        await_true((folder / "train_1").exists)
    began = time.monotonic()
    feed.close()
    assert time.monotonic() - began < 30
    assert list(folder.iterdir()) == []
    if state == "blocked":
        opened.close()
    if data.base.startswith("file"):
        assert len(os.listdir("/proc/self/fd")) == descriptors
