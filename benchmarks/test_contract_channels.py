"""Channels under SageMaker's contract, against cp and cat of the same bytes, in pytest's temporary folder."""

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import pytest
from channel_cases import channel, place

from launcher.backends.sagemaker_local.channels import prepare
from launcher.backends.sagemaker_local.objects import Stores

pytest_plugins = ("s3_server",)

SMALL_FILES, SMALL_BYTES = 10_000, 4096
LARGE_BYTES = 2 << 30
REMOTE_BYTES = 128 << 20
ROUNDS = 5


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a folder of many small files in a hundred folders."""
    folder = tmp_path / "small"
    for number in range(SMALL_FILES):
        path = folder / f"{number % 100:02}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SMALL_BYTES))
    return folder


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a folder of one large file."""
    folder = tmp_path / "large"
    folder.mkdir()
    block = os.urandom(1 << 20)
    with (folder / "data.bin").open("wb") as file:
        for _ in range(LARGE_BYTES >> 20):
            file.write(block)
    return folder


def seconds(work, *arguments) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def in_turn(ours, floor, between) -> str:
    """Time both in turn, `between` each; return medians and their ratio."""
    runs = []
    for turn in range(2 * ROUNDS):
        between()
        runs.append(seconds((ours, floor)[turn % 2]))
    ours_s, floor_s = runs[::2], runs[1::2]
    ratio = statistics.median(ours_s) / statistics.median(floor_s)
    return f"{statistics.median(ours_s):.2f} s, floor {statistics.median(floor_s):.2f} s, ratio {ratio:.2f}"


def copied(folder: Path, tmp_path: Path) -> str:
    host = place(tmp_path / "hosts")

    def clean() -> None:
        shutil.rmtree(tmp_path / "hosts", ignore_errors=True)
        host.data_dir.mkdir(parents=True)
        os.sync()

    return in_turn(
        lambda: prepare([channel(f"file://{folder}/")], "File", host, Stores()),
        lambda: subprocess.run(["cp", "-r", folder, host.data_dir / "train"], check=True),
        clean,
    )


def test_file_mode_of_small_files(small, tmp_path, report):
    report(f"File, {SMALL_FILES} files of {SMALL_BYTES} B: {copied(small, tmp_path)} (cp -r)")


def test_file_mode_of_one_large_file(large, tmp_path, report):
    report(f"File, one file of {LARGE_BYTES >> 30} GiB: {copied(large, tmp_path)} (cp -r)")


def read(fifo: Path) -> None:
    """Read a FIFO as the floor does."""
    while not fifo.exists():
        time.sleep(0.001)
    subprocess.run(["cat", fifo], stdout=subprocess.DEVNULL, check=True)


def streamed(folder: Path, tmp_path: Path) -> str:
    host = place(tmp_path / "hosts")
    (feed,) = prepare([channel(f"file://{folder}/")], "Pipe", host, Stores())
    feed.start()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    files = sorted(path for path in folder.rglob("*") if path.is_file())

    def floor() -> None:
        with subprocess.Popen(["cat", fifo], stdout=subprocess.DEVNULL), fifo.open("wb") as sink:
            subprocess.run(["xargs", "-0", "cat"], input=b"\0".join(map(os.fsencode, files)), stdout=sink, check=True)

    epoch = iter(range(ROUNDS))
    try:
        return in_turn(lambda: read(host.data_dir / f"train_{next(epoch)}"), floor, lambda: None)
    finally:
        feed.close()


def test_pipe_mode_of_small_files(small, tmp_path, report):
    report(f"Pipe, {SMALL_FILES} files of {SMALL_BYTES} B: {streamed(small, tmp_path)} (cat | cat)")


def test_pipe_mode_of_one_large_file(large, tmp_path, report):
    report(f"Pipe, one file of {LARGE_BYTES >> 30} GiB: {streamed(large, tmp_path)} (cat | cat)")


@pytest.mark.parametrize("mode", ["File", "Pipe", "FastFile"])
@pytest.mark.parametrize("count", [1, 500], ids=["large", "small"])
def test_from_s3(bucket, tmp_path, report, mode, count):
    """What S3 gives: the floor asks the same server for the same objects, one after the other."""
    size = REMOTE_BYTES if count == 1 else SMALL_BYTES
    for number in range(count):
        bucket.put(f"train/{number:05}", os.urandom(size))
    stores, host = Stores(endpoint=bucket.endpoint), place(tmp_path / "hosts")
    list(stores.list(bucket.uri))

    def ours() -> None:
        (feed,) = prepare([channel(f"{bucket.uri}/train/", mode)], "File", host, stores)
        feed.start()
        try:
            if mode == "Pipe":
                read(host.data_dir / "train_0")
            elif mode == "FastFile":
                subprocess.run(["cat", *sorted(feed.folder.iterdir())], stdout=subprocess.DEVNULL, check=True)
        finally:
            feed.close()

    def floor() -> None:
        for number in range(count):
            bucket.get(f"train/{number:05}")

    figures = in_turn(ours, floor, lambda: shutil.rmtree(tmp_path / "hosts", ignore_errors=True))
    report(f"{mode} from moto's S3, {count} objects of {size} B: {figures} (get_object in turn)")
