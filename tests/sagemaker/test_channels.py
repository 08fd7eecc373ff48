"""Channels in File and FastFile mode: what a host finds, from S3 and from folders of this machine."""

import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from background import await_true
from channel_cases import Data, channel, file_system, place, tree
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from launcher.backends.sagemaker_local import channels, fastfile, manifests
from launcher.backends.sagemaker_local.channels import input_data_config, prepare
from launcher.backends.sagemaker_local.objects import Object, Stores
from launcher.common.problems import ProblemsFound

pytest_plugins = ("s3_server",)


@pytest.fixture(params=["s3", "file"])
def data(request, tmp_path):
    """Return objects of a test, in a store of each kind."""
    return Data.of(request, tmp_path)


def codes(raised: pytest.ExceptionInfo) -> list[str]:
    return [problem.code for problem in raised.value.problems]


@pytest.mark.slow
def test_file_mode_is_a_folder_for_each_channel(data, tmp_path):
    data.put("train/a.csv", b"1,2\n")
    data.put("train/deep/er/b.csv", b"")
    data.put("test/c d.csv", b"\0" * 70_000)
    wanted = [channel(f"{data.base}/train"), channel(f"{data.base}/test/", name="test")]
    feeds = prepare(wanted, "File", place(tmp_path), data.stores)
    assert tree(tmp_path / "algo-1/data") == {
        "train/a.csv": b"1,2\n",
        "train/deep/er/b.csv": b"",
        "test/c d.csv": b"\0" * 70_000,
    }
    assert [(feed.name, feed.folder, feed.problem) for feed in feeds] == [("train", None, None), ("test", None, None)]
    (tmp_path / "algo-1/data/train/a.csv").write_text("the job's own copy")
    with data.stores.open(f"{data.base}/train/a.csv") as stream:
        assert stream.read() == b"1,2\n"


@pytest.mark.slow
def test_a_prefix_that_is_part_of_a_name_keeps_the_names(data, tmp_path):
    for key in ("train/a", "train-1/a", "train.csv", "other"):
        data.put(key, key.encode())
    prepare([channel(f"{data.base}/train")], "File", place(tmp_path), data.stores)
    assert tree(tmp_path / "algo-1/data/train") == {
        "a": b"train/a",
        "train-1/a": b"train-1/a",
        "train.csv": b"train.csv",
    }


def test_one_object_is_one_file(data, tmp_path):
    uri = data.put("train.csv", b"x")
    prepare([channel(uri)], "File", place(tmp_path), data.stores)
    assert tree(tmp_path / "algo-1/data") == {"train/train.csv": b"x"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 7], ids=["in order", "shuffled"])
def test_shared_out_objects_are_on_one_host_each(data, tmp_path, seed):
    wanted = {f"part-{number}": b"%d" % number for number in range(11)}
    for key, value in wanted.items():
        data.put(f"train/{key}", value)
    shuffle = {"ShuffleConfig": {"Seed": seed}} if seed else {}
    got = []
    for index in range(3):
        host = place(tmp_path, index, 3)
        prepare([channel(f"{data.base}/train/", shared=True, **shuffle)], "File", host, data.stores)
        got.append(tree(host.data_dir / "train"))
    assert sorted(map(len, got)) == [3, 4, 4]
    assert {key: value for each in got for key, value in each.items()} == wanted
    assert (sorted(wanted)[::3] == sorted(got[0])) is (seed is None)


def test_more_hosts_than_objects_are_told_of(data, tmp_path):
    data.put("train/a", b"")
    (feed,) = prepare([channel(f"{data.base}/train/", shared=True)], "File", place(tmp_path, 1, 2), data.stores)
    assert "some get none" in feed.note
    assert list((tmp_path / "algo-2/data/train").iterdir()) == []


def test_a_manifest_lists_keys_below_a_prefix(data, tmp_path):
    for key in ("a", "deep/b", "not listed"):
        data.put(f"set/{key}", key.encode())
    manifest = data.put("list.json", json.dumps([{"prefix": f"{data.base}/set/"}, "deep/b", "a"]).encode())
    prepare([channel(manifest, kind="ManifestFile")], "File", place(tmp_path), data.stores)
    assert tree(tmp_path / "algo-1/data/train") == {"a": b"a", "deep/b": b"deep/b"}


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("{", "E423", "is not valid JSON"),
        ("{}", "E423", "begins with a prefix"),
        ('[{"prefix": 3}, "a"]', "E423", "has no prefix"),
        ('[{"prefix": "s3://b/", "more": 1}, "a"]', "E423", "has no prefix"),
        ('[{"prefix": "BASE/"}]', "E423", "lists no object"),
        ('[{"prefix": "BASE/"}, "a", 3]', "E423", "not a key"),
        ('[{"prefix": "BASE/"}, "a", "gone", "too"]', "E420 E420", "does not exist"),
        ('[{"prefix": "ftp://x/"}, "a"]', "E421", "not in a store"),
        ('[{"prefix": "BASE/"}, "../source"]', "E420", "does not exist"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, text, code, says):
    data = Data(f"file://{tmp_path}/store", Stores(), tmp_path)
    data.put("a", b"")
    manifest = data.put("list.json", text.replace("BASE", data.base).encode())
    with pytest.raises(ProblemsFound, match=re.escape(says)) as raised:
        prepare([channel(manifest, kind="ManifestFile")], "File", place(tmp_path), data.stores)
    assert codes(raised) == code.split()


def test_every_fault_of_every_channel_is_told_before_anything_is_copied(data, tmp_path):
    data.put("ok/a", b"")
    wanted = [
        channel(f"{data.base}/ok/", name="ok"),
        channel(f"{data.base}/none/", name="empty"),
        channel(f"{data.base}/gone.json", name="lost", kind="ManifestFile"),
        channel(f"{data.base}/ok", "FastFile", name="fast"),
        channel(f"{data.base}/ok/", name="packed", CompressionType="Gzip", RecordWrapperType="RecordIO"),
        channel(f"{data.base}/ok", "FastFile", name="listed", kind="ManifestFile"),
        channel(f"{data.base}/ok", name="lines", kind="AugmentedManifestFile", attributes=["a"]),
        file_system("Pipe"),
    ]
    with pytest.raises(ProblemsFound) as raised:
        prepare(wanted, "File", place(tmp_path), data.stores)
    assert [(problem.code, problem.path.removeprefix(data.base)) for problem in raised.value.problems] == [
        ("E420", "/none/"),
        ("E420", "/gone.json"),
        ("E372", "InputDataConfig.fast.s3"),
        ("E372", "InputDataConfig.packed.compression"),
        ("E372", "InputDataConfig.packed.record_wrapper"),
        ("E372", "InputDataConfig.listed.s3_data_type"),
        ("E372", "InputDataConfig.lines.s3_data_type"),
        ("E372", "InputDataConfig.shared.mode"),
    ]
    assert not (tmp_path / "algo-1").exists()


@pytest.mark.parametrize(
    "keys",
    [("a", "a/b"), ("../../escape",), ("x//y",), ("./x",), ("x/..",), ("x\0y",)],
    ids=["file and folder", "above", "empty name", "dot", "dots at the end", "nul"],
)
def test_keys_that_are_no_paths_are_refused(keys):
    entries = [manifests.Entry(key, (Object(f"s3://b/{key}", 1),)) for key in keys]
    assert {problem.code for problem in manifests.path_problems(entries)} == {"E422"}


def test_two_objects_of_one_path_are_refused(tmp_path):
    data = Data(f"file://{tmp_path}/store", Stores(), tmp_path)
    data.put("train/train-1/a", b"")
    data.put("train-1/a", b"")
    with pytest.raises(ProblemsFound, match="same file as") as raised:
        prepare([channel(f"{data.base}/train")], "File", place(tmp_path), data.stores)
    assert codes(raised) == ["E422"]


def test_fast_file_mode_of_a_folder_is_the_folder_itself(tmp_path):
    data = Data(f"file://{tmp_path}/store", Stores(), tmp_path)
    data.put("train/a", b"x")
    (feed,) = prepare([channel(f"{data.base}/train/", "FastFile")], "File", place(tmp_path), data.stores)
    assert (tree(feed.folder), feed.name) == ({"a": b"x"}, "train")
    assert list((tmp_path / "algo-1/data/train").iterdir()) == []
    assert not feed.note and not feed.is_writable


def test_a_file_system_is_mounted_where_it_is_on_this_machine(tmp_path):
    (tmp_path / "efs/data/deep").mkdir(parents=True)
    mounted = {"fs-0123456789abcdef0": "/nowhere", "fs-0123456789abcdef0/data": f"{tmp_path}/efs/data"}
    for access, path in itertools.product(("ro", "rw"), ("/data", "/data/deep")):
        wanted = [file_system(access=access, path=path)]
        (feed,) = prepare(wanted, "File", place(tmp_path), Stores(file_systems=mounted))
        mount = (tmp_path / f"efs{path}", "shared")
        assert (feed.folder, feed.name, feed.is_writable) == (*mount, access == "rw")
        assert (tmp_path / "algo-1/data/shared").is_dir()


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({}, "is configured for"),
        ({"fs-0123456789abcdef0": "/nowhere"}, "does not exist"),
        ({"fs-01": "/"}, "no folder"),
    ],
    ids=["unknown", "absent", "another's"],
)
def test_a_file_system_that_is_not_here_is_refused(tmp_path, known, says):
    with pytest.raises(ProblemsFound, match=says) as raised:
        prepare([file_system()], "File", place(tmp_path), Stores(file_systems=known))
    assert codes(raised) == ["E424"]


def test_channels_of_another_group_are_left_out(tmp_path):
    data = Data(f"file://{tmp_path}/store", Stores(), tmp_path)
    for number in range(4):
        data.put(f"train/{number}", b"")
    groups = {"big": ("algo-1", "algo-3"), "small": ("algo-2",)}
    wanted = channel(f"{data.base}/train/", shared=True)
    wanted["DataSource"]["S3DataSource"]["InstanceGroupNames"] = ["big"]
    got = []
    for index in range(3):
        host = place(tmp_path, index, 3, groups=groups)
        prepare([wanted], "File", host, data.stores)
        got.append(sorted(tree(host.data_dir)))
        assert bool(channels.channels_of([wanted], host)) == (index != 1)
    assert got == [["train/0", "train/2"], [], ["train/1", "train/3"]]


def test_input_data_config_is_that_of_the_document():
    wanted = [
        channel("s3://b/t/", name="train", ContentType="trainingContentType"),
        channel("s3://b/e/", "FastFile", name="evaluation", ContentType="evalContentType"),
        channel("s3://b/v/", "Pipe", name="validation", shared=True, RecordWrapperType="RecordIO"),
        file_system(),
    ]
    assert input_data_config(wanted, "File") == {
        "train": {
            "ContentType": "trainingContentType",
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        },
        "evaluation": {
            "ContentType": "evalContentType",
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        },
        "validation": {
            "TrainingInputMode": "Pipe",
            "S3DistributionType": "ShardedByS3Key",
            "RecordWrapperType": "RecordIO",
        },
        "shared": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"},
    }


needs_fuse = pytest.mark.skipif(
    not os.access("/dev/fuse", os.W_OK) or not importlib.util.find_spec("mfusepy") or not shutil.which("fusermount3"),
    reason="needs FUSE: apt-get install --no-install-recommends fuse3, pip install '.[sagemaker]'",
)


@pytest.mark.slow
@needs_fuse
@pytest.mark.parametrize("is_shared", [False, True], ids=["whole", "shared out"])
def test_fast_file_mode_of_s3_is_a_read_only_view(bucket, tmp_path, is_shared):
    wanted = {"a.csv": b"1,2\n", "deep/er/b": b"", "deep/large": os.urandom((9 << 20) + 5), "z": b"z"}
    for key, value in wanted.items():
        bucket.put(f"train/{key}", value)
    stores, host = Stores(endpoint=bucket.endpoint), place(tmp_path, 0, 2)
    (feed,) = prepare([channel(f"{bucket.uri}/train/", "FastFile", shared=is_shared)], "File", host, stores)
    try:
        folder = feed.folder
        assert "FUSE" in feed.note and feed.name == "train"
        keys = sorted(wanted)[::2] if is_shared else sorted(wanted)
        assert tree(folder) == {key: wanted[key] for key in keys}
        with pytest.raises(OSError, match="Read-only"):
            (folder / "new").write_text("")
        with pytest.raises(FileNotFoundError):
            (folder / "none").read_text()
        with (folder / "deep/large").open("rb") as file:
            for offset in (5 << 20, 100, 9 << 20, (4 << 20) - 3):
                file.seek(offset)
                assert file.read(100) == wanted["deep/large"][offset : offset + 100]
    finally:
        feed.close()
    assert not folder.is_mount()
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@needs_fuse
def test_objects_are_read_when_they_are_read(bucket, tmp_path):
    bucket.put("train/a", b"at first")
    stores = Stores(endpoint=bucket.endpoint)
    (feed,) = prepare([channel(f"{bucket.uri}/train/", "FastFile")], "File", place(tmp_path), stores)
    try:
        bucket.put("train/a", b"by then ")
        assert (feed.folder / "a").read_bytes() == b"by then "
    finally:
        feed.close()


@pytest.mark.slow
@needs_fuse
def test_a_view_ends_with_the_process_that_mounted_it(bucket, tmp_path):
    bucket.put("train/a", b"")
    script = f"""
import sys, time
from channel_cases import channel, place
from launcher.backends.sagemaker_local.channels import prepare
from launcher.backends.sagemaker_local.objects import Stores
from pathlib import Path
wanted = [channel("{bucket.uri}/train/", "FastFile")]
(feed,) = prepare(wanted, "File", place(Path("{tmp_path}")), Stores(endpoint="{bucket.endpoint}"))
print(feed.folder, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT / "tests/engines", stdout=subprocess.PIPE
    ) as child:
        folder = Path(child.stdout.readline().decode().strip())
        assert folder.is_mount()
        child.kill()
    await_true(lambda: not folder.is_mount())


@pytest.mark.slow
@needs_fuse
def test_what_cannot_be_read_is_told(bucket, tmp_path):
    bucket.put("train/a", b"x")
    stores = Stores(endpoint=bucket.endpoint)
    (feed,) = prepare([channel(f"{bucket.uri}/train/", "FastFile")], "File", place(tmp_path), stores)
    try:
        assert feed.problem is None
        bucket.client.delete_object(Bucket=bucket.name, Key="train/a")
        with pytest.raises(OSError, match="Input/output"):
            (feed.folder / "a").read_bytes()
        assert "train/a does not exist" in feed.problem.message
    finally:
        feed.close()


@pytest.mark.slow
@needs_fuse
def test_a_view_whose_server_is_killed_is_unmounted(bucket, tmp_path):
    bucket.put("train/a", b"x")
    stores = Stores(endpoint=bucket.endpoint)
    (feed,) = prepare([channel(f"{bucket.uri}/train/", "FastFile")], "File", place(tmp_path), stores)
    feed.server.server.kill()
    await_true(lambda: feed.problem)
    feed.close()
    assert list(feed.folder.iterdir()) == []


@needs_fuse
def test_a_mount_that_is_refused_says_why(tmp_path):
    view, how = fastfile.mount(tmp_path / "none", [], Stores())
    assert view is None
    assert "copied before the job starts" in how and "No such file" in how


@pytest.mark.parametrize("lack", ["mfusepy", "device"])
def test_without_fuse_it_is_a_copy_and_says_so(bucket, tmp_path, monkeypatch, lack):
    bucket.put("train/a", b"x")
    if lack == "mfusepy":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(os, "access", lambda *_: False)
    stores = Stores(endpoint=bucket.endpoint)
    (feed,) = prepare([channel(f"{bucket.uri}/train/", "FastFile")], "File", place(tmp_path), stores)
    assert "copied before the job starts" in feed.note
    assert tree(feed.folder) == {"a": b"x"}


@given(
    count=st.integers(0, 40),
    hosts=st.integers(1, 12),
    seed=st.none() | st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 3),
)
def test_shares_are_a_partition_of_nearly_equal_parts(count, hosts, seed, epoch):
    entries = [manifests.Entry(str(number), ()) for number in range(count)]
    parts = [manifests.share(entries, index, hosts, seed, epoch) for index in range(hosts)]
    assert sorted((entry.path for part in parts for entry in part), key=int) == [entry.path for entry in entries]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == [manifests.share(entries, index, hosts, seed, epoch) for index in range(hosts)]
