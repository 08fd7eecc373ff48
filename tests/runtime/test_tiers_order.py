"""Which checkpoint is the newest: damage leads to an older one, and neither a clock nor a lack of answers does."""

import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from test_tiers import alone, load, save_steps, steps_in

from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, StoreTier
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.restore import CheckpointUnavailable
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.shards import Key
from launcher.runtime.tiers.stores import Folder

pytest_plugins = ("s3_server",)
pytestmark = pytest.mark.usefixtures("own_folders")


def on(store, patience_s: float = 60, retention: int = 2, namespace: str = "ns") -> CheckpointManager:
    return CheckpointManager(
        None, [StoreTier(store, 1, retention)], CheckpointLog(namespace, 0), patience_s=patience_s
    )


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def throttle(tap, times: int, *, on_path: str, answer=(503, "SlowDown", {"Retry-After": "0"})) -> None:
    """Let the next requests whose path contains a text fail."""
    left = iter(range(times))
    tap.fault = lambda method, path: answer if on_path in path and next(left, None) is not None else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((503, "SlowDown", {"Retry-After": "0"}), id="throttled"),
        pytest.param((500, "InternalError", {}), id="internal"),
        pytest.param("drop", id="reset"),
    ],
)
@pytest.mark.parametrize("on_path", ["list-type", "/manifest", ".shard"])
def test_throttling_leads_to_no_older_step(bucket, tap, on_path, answer, monkeypatch):
    monkeypatch.setattr("launcher.runtime.tiers.s3_store.PAUSE_S", 0.01)
    save_steps(on(Bucket(bucket.name, "ns/", bucket.endpoint)), 1, 2)
    url, counted = tap
    throttle(counted, 8, on_path=on_path, answer=answer)
    restored, value = load(on(Bucket(bucket.name, "ns/", url)))
    assert (restored.step, value, restored.passed_over) == (2, 2.0, ())


@pytest.mark.slow
@pytest.mark.parametrize("on_path", ["list-type", "/manifest", ".shard"])
def test_a_bucket_that_stays_throttled_is_unavailable_and_loses_nothing(bucket, tap, on_path):
    direct = Bucket(bucket.name, "ns/", bucket.endpoint)
    save_steps(on(direct), 1, 2)
    saves = direct.saves()
    url, counted = tap
    throttle(counted, 10**6, on_path=on_path)
    manager = on(Bucket(bucket.name, "ns/", url, patience_s=0.1), patience_s=0.1)
    with pytest.raises(CheckpointUnavailable, match="SlowDown|503"):
        load(manager)
    assert direct.saves() == saves
    counted.fault = lambda method, path: None
    assert load(manager)[1] == 2.0


@pytest.mark.slow
def test_access_denied_is_not_damage_and_is_not_waited_for(bucket, tap):
    save_steps(on(Bucket(bucket.name, "ns/", bucket.endpoint)), 1, 2)
    url, counted = tap
    throttle(counted, 10**6, on_path="list-type", answer=(403, "AccessDenied", {}))
    began = time.monotonic()
    with pytest.raises(CheckpointUnavailable, match="AccessDenied"):
        load(on(Bucket(bucket.name, "ns/", url), patience_s=10**4))
    assert time.monotonic() - began < 10**3
    throttle(counted, 10**6, on_path=".shard", answer=(403, "AccessDenied", {}))
    with pytest.raises(CheckpointUnavailable, match="AccessDenied|403"):
        load(on(Bucket(bucket.name, "ns/", url), patience_s=0.1))


def test_what_is_newer_is_removed_only_once_it_is_proven_broken_and_replaced():
    store = Folder(Path("store"))
    save_steps(on(store), 8, 10)
    (newest,) = Path("store").glob("*10.*/rank*")
    flip(newest)
    manager = on(store)
    assert load(manager)[1] == 8.0
    assert steps_in(store) == [8, 10]
    save_steps(manager, 9)
    assert steps_in(store) == [8, 9] and load(on(store))[1] == 9.0


def test_what_is_newer_and_intact_stays_although_an_earlier_step_was_saved():
    """A listing that was incomplete, or a job that did not load: step 10 is intact, and 3 is saved."""
    store = Folder(Path("store"))
    save_steps(on(store), 8, 10)
    save_steps(on(store), 3, 4, 5)
    assert steps_in(store) == [4, 5, 8, 10]
    memory = alone(retention=1)
    save_steps(memory, 8)
    again = alone(retention=1)
    save_steps(again, 3, 4, 5, 6)
    assert sorted(key.step for key in NodeMemory(Path("memory").absolute() / "ns", 0, 1).manifests()) == [6, 8]
    save_steps(again, 7, 8)
    assert sorted(key.step for key in NodeMemory(Path("memory").absolute() / "ns", 0, 1).manifests()) == [8]
    assert load(alone(retention=1))[0].step == 8


@pytest.mark.slow
@pytest.mark.parametrize("new_step", [9, 10, 11])
def test_a_clock_that_was_set_back_changes_nothing(monkeypatch, new_step):
    store = Folder(Path("store"))
    save_steps(alone(store), 8, 10)
    for path in [*Path("store").glob("*10.*/rank*"), *Path("memory/ns").glob("*10.*.shard")]:
        flip(path)
    monkeypatch.setattr(time, "time", lambda: 1.0)
    monkeypatch.setattr(time, "time_ns", lambda: 10**9)
    manager = alone(store)
    assert load(manager)[1] == 8.0
    manager.save({"w": torch.full((10,), -1.0)}, new_step, {}, everywhere=True)
    manager.wait()
    assert load(alone(store))[1] == -1.0 and load(on(store))[1] == -1.0
    assert steps_in(store) == sorted([8, new_step])


def test_numbers_continue_above_those_of_earlier_versions():
    store = Folder(Path("store"))
    manager = on(store)
    manager._number = time.time_ns()  # as an earlier version numbered its saves
    save_steps(manager, 8, 10)
    save_steps(on(store), 9)
    assert load(on(store))[1] == 9.0
    assert max(store.saves()).step == 9


def test_the_last_published_of_two_saves_of_a_step_is_loaded_and_kept():
    store = Folder(Path("store"))
    save_steps(on(store), 10)
    for value in (1.0, 2.0):
        again = on(store, retention=1)
        again.save({"w": torch.full((10,), value)}, 10, {})
        again.wait()
        assert load(on(store))[1] == value
    assert [key.step for key in store.saves()] == [10]


def test_a_manifest_under_another_name_or_in_another_namespace_is_damage():
    store = Folder(Path("store"))
    save_steps(on(store), 1, 2)
    first, second = sorted(store.saves())
    misplaced = Path("store") / str(Key(7, second.save + 5))
    shutil.copytree(Path("store") / str(first), misplaced)
    restored, value = load(on(store))
    assert (restored.step, value) == (2, 2.0)
    assert "step 7 from persistent: its manifest belongs to step 1" in restored.passed_over[0]
    shutil.rmtree(misplaced)
    os.replace(Path("store") / str(first) / "manifest", Path("store") / str(second) / "manifest")
    with pytest.raises(CheckpointUnavailable, match="step 2 from persistent: its manifest belongs to step 1"):
        load(on(store))
    shutil.rmtree("store")
    save_steps(on(store, namespace="theirs"), 3)
    with pytest.raises(CheckpointUnavailable, match="belongs to the namespace theirs"):
        load(on(store))


def test_a_folder_that_vanishes_while_it_is_read_is_unavailable(monkeypatch):
    store = Folder(Path("store"))
    save_steps(on(store), 1)
    saves = Folder.saves

    def unmount(self):
        found = saves(self)
        shutil.move("store", "elsewhere")
        monkeypatch.setattr(Folder, "saves", saves)
        return found

    monkeypatch.setattr(Folder, "saves", unmount)
    with pytest.raises(CheckpointUnavailable, match="is its file system mounted"):
        load(on(store, patience_s=0.1))
