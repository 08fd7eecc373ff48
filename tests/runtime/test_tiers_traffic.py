"""What a restore moves: hardly more than the checkpoint, at any number of ranks; and what is reported of it."""

import itertools
import pickle
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_tiers_order import load, on, save_steps
from traffic import measure

from launcher.runtime.rows import united
from launcher.runtime.tiers import shards
from launcher.runtime.tiers.read_plan import box_runs, cut, overlap
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.shards import Key, Manifest, Piece, checksum, seal, unseal
from launcher.runtime.tiers.stores import Folder

pytest_plugins = ("s3_server",)
MOST = 1.1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
@pytest.mark.parametrize(("writers", "readers"), [(2, 2), (4, 4), (2, 4), (4, 2), (4, 3)])
def test_a_store_is_read_once_at_any_number_of_ranks(tmp_path, bucket, tap, writers, readers, strategy):
    url, counted = tap
    traffic = measure(tmp_path / "run", writers, readers, lambda: Bucket(bucket.name, "ns/", url), strategy=strategy)
    moved = sum(count for name, count in counted.read.items() if name.endswith(".shard"))
    assert moved == traffic.record["num_bytes"] <= MOST * traffic.size
    (manifest,) = [name for name in bucket.keys("ns/") if name.endswith("manifest")]
    assert counted.read["manifest"] == len(bucket.get(manifest))
    assert traffic.sent == traffic.record["sent_bytes"]
    if strategy == "fsdp2":
        assert traffic.sent <= MOST * traffic.size


@pytest.mark.slow
@pytest.mark.parametrize(("writers", "readers"), [(2, 2), (4, 4), (2, 4), (4, 3), (4, 6)])
def test_nodes_send_what_others_lack_and_no_more(tmp_path, writers, readers):
    traffic = measure(tmp_path / "run", writers, readers)
    assert traffic.sent == traffic.record["sent_bytes"] <= MOST * traffic.size
    if (writers, readers) == (2, 2):
        assert traffic.sent == 0  # each node has a copy of the other one's shard


@pytest.mark.slow
@given(st.data())
def test_the_bytes_of_a_part_are_those_that_torch_takes(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=4)))
    offsets = [data.draw(st.integers(0, size - 1)) for size in shape]
    lengths = [data.draw(st.integers(1, size - start)) for size, start in zip(shape, offsets, strict=True)]
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)
    part = numbers[tuple(slice(start, start + size) for start, size in zip(offsets, lengths, strict=True))]
    piece = Piece(0, 64, numbers.numel() * 4, b"", torch.int32, shape)
    runs = box_runs(piece, offsets, lengths)
    assert [at for start, stop in runs for at in range(start, stop, 4)] == [
        64 + 4 * n for n in part.flatten().tolist()
    ]
    assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(runs))


RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@given(RUNS, RUNS, st.integers(1, 9))
def test_runs_are_sets_of_bytes(first, second, size):
    def members(runs):
        return {at for start, stop in runs for at in range(start, stop)}

    assert members(united(first)) == members(first)
    assert members(overlap(united(first), united(second))) == members(first) & members(second)
    parts = list(cut(united(first), size))
    assert members(parts) == members(first) and all(stop - start <= size for start, stop in parts)


def test_a_checkpoint_of_the_first_format_is_still_read(tmp_path, monkeypatch):
    """Pieces had one checksum each and manifests no namespace; their keys had the clock in place of a number."""
    store = Folder(tmp_path / "store")
    big = torch.randn(400_000)
    manager = on(store)
    manager.save({"w": big}, 3, {"cursor": 3})
    manager.wait()
    ((key, _),) = store.saves().items()
    manifest, old = unseal(store.manifest(key)), Key(3, 1_795_315_005_501_419_309)
    (store.folder / str(key)).rename(store.folder / str(old))
    shard = (store.folder / str(old) / "rank00000.shard").read_bytes()

    def first_format(value, names):
        found = object.__new__(type(value))
        for name in names:
            object.__setattr__(found, name, getattr(value, name))
        return found

    pieces = {}
    for index, piece in manifest.metadata.storage_data.items():
        whole = checksum(shard[piece.offset : piece.offset + piece.length])
        names = [each.name for each in fields(Piece) if each.name != "block"]
        pieces[index] = first_format(
            Piece(piece.rank, piece.offset, piece.length, whole, piece.dtype, piece.shape), names
        )
    manifest.metadata.storage_data = pieces
    earlier = first_format(
        Manifest(old, manifest.sizes, manifest.metadata, manifest.progress), ["key", "sizes", "metadata", "progress"]
    )

    def without_missing(value):
        return [getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)]

    with monkeypatch.context() as patched:
        for kind in (Piece, Manifest):
            patched.setattr(kind, "__getstate__", without_missing)
        body = pickle.dumps(earlier)
    data = shards.FIRST_MAGIC + checksum(body) + body
    (store.folder / str(old) / "manifest").write_bytes(data)
    restored = on(store).load(lambda _: {"w": torch.zeros(400_000)})
    assert torch.equal(restored.state["w"], big) and restored.progress == {"cursor": 3}
    save_steps(on(store), 1)
    assert load(on(store))[0].step == 1
    assert seal(unseal(data)).startswith(shards.MAGIC)


@pytest.mark.slow
def test_a_damaged_block_is_found_by_whoever_reads_it(tmp_path):
    """Two ranks want the same tensor, one of them reads it: both fall back to the older checkpoint."""
    from runtime_ranks import run_ranks

    store = Folder(tmp_path / "store")

    def save(place):
        manager = on(store)
        for step in (1, 2):
            manager.save({"w": torch.full((300_000,), float(step))}, step, {})
        manager.wait()

    def loaded(place):
        restored = on(store).load(lambda _: {"w": torch.zeros(300_000)})
        return restored.step, restored.state["w"][-1].item(), restored.passed_over

    run_ranks(2, save, tmp_path)
    (shard,) = [path for path in Path(store.folder).glob("*2.*/rank*") if path.stat().st_size]
    data = bytearray(shard.read_bytes())
    data[600_000] ^= 1
    shard.write_bytes(data)
    for step, value, passed_over in run_ranks(2, loaded, tmp_path):
        assert (step, value) == (1, 1.0) and "is changed at byte 524288" in passed_over[0]
