"""Checkpoints in tiers: what is saved where, what comes back, and what is told of it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from memory_service import memory_service
from runtime_ranks import metrics, run_ranks, tiny_config, train
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from wrong_kinds import KINDS, of_kind

from launcher.common import names
from launcher.runtime import metric_shipping as couriers
from launcher.runtime.checkpoint import Progress
from launcher.runtime.content import Content
from launcher.runtime.process_group import Place
from launcher.runtime.tiers.buffers import Buffer
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, MemoryTier, StoreTier
from launcher.runtime.tiers.memory_service import MemoryService
from launcher.runtime.tiers.node_memory import NodeMemory, NotOurs
from launcher.runtime.tiers.restore import CheckpointUnavailable
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.shards import Key
from launcher.runtime.tiers.staging import StateUnfit
from launcher.runtime.tiers.stores import Folder
from launcher.runtime.tiers.tier_settings import tier_settings
from launcher.runtime.tiers.training import TieredCheckpoints, manager_of

pytest_plugins = ("s3_server",)
pytestmark = pytest.mark.usefixtures("own_folders")

SECTION = {
    "namespace": "ns",
    "memory": {"frequency": 1, "retention": 2},
    "persistent": {"frequency": 4, "retention": 2, "path": "store"},
    "s3_endpoint": None,
    "replicas": 1,
}


def settings(**changes):
    return tier_settings(SECTION | changes)


def alone(store=None, folder: Path | None = None, retention: int = 2) -> CheckpointManager:
    folder = folder and folder.absolute()
    memory = NodeMemory(Path("memory").absolute() / "ns", 0, retention)
    stores = [StoreTier(store, 2, 2)] if store else []
    return CheckpointManager(MemoryTier(memory, 1, 1, 0), stores, CheckpointLog("ns", 0, folder))


def save_steps(manager: CheckpointManager, *steps: int) -> None:
    for step in steps:
        manager.save({"w": torch.full((10,), float(step))}, step, {"cursor": step})
    manager.wait()


def load(manager: CheckpointManager):
    restored = manager.load(lambda _: {"w": torch.zeros(10)})
    return restored, restored and restored.state["w"][0].item()


def steps_in(store) -> list[int]:
    return sorted(key.step for key, is_published in store.saves().items() if is_published)


def test_each_tier_is_saved_to_at_its_frequency_and_keeps_what_it_retains():
    store = Folder(Path("store"))
    manager = alone(store)
    assert [step for step in range(1, 5) if manager.is_due(step)] == [1, 2, 3, 4]
    save_steps(manager, *range(1, 8))
    assert steps_in(store) == [4, 6]
    assert sorted(key.step for key in NodeMemory(Path("memory").absolute() / "ns", 0, 2).manifests()) == [6, 7]
    restored, value = load(manager)
    assert (restored.step, restored.tier, restored.progress, value) == (7, "memory", {"cursor": 7}, 7.0)


def test_work_that_was_lost_and_is_done_again_replaces_what_it_left():
    store = Folder(Path("store"))
    save_steps(alone(store), 1, 2, 3, 4)
    for path in Path("memory/ns").glob("*.shard"):
        path.unlink()
    for path in Path("store").glob("*4.*/rank*"):
        path.write_bytes(b"")
    manager = alone(store)
    restored, value = load(manager)
    assert (restored.step, restored.tier, value) == (2, "persistent", 2.0)
    assert any("step 4 from persistent" in text for text in restored.passed_over)
    save_steps(manager, 3)
    assert load(alone(store))[0].step == 3
    manager.save({"w": torch.full((10,), -4.0)}, 4, {})
    manager.wait()
    assert load(alone(store))[1] == -4.0
    assert steps_in(store) == [2, 4]


@pytest.mark.crossed
@pytest.mark.parametrize("place", ["", "/manifest", "/rank00000.shard"], ids=["save", "manifest", "shard"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_wrong_kind_in_a_store_is_damage_and_hinders_no_later_save(kind, place):
    store = Folder(Path("store"))
    save_steps(alone(store, Path()), 1, 2, 3, 4)
    shutil.rmtree("memory")
    (save,) = Path("store").glob("*4.*")
    of_kind(kind, Path(f"{save}{place}"))
    manager = alone(store, Path())
    restored, value = load(manager)
    assert (restored.step, value) == (2, 2.0) and any("step 4" in text for text in restored.passed_over)
    save_steps(manager, 3, 4, 5, 6, 7, 8)
    assert steps_in(store) == [6, 8] and not os.path.lexists(save)


@pytest.mark.crossed
@pytest.mark.parametrize("name", ["*.manifest", "*.shard"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_wrong_kind_in_memory_is_damage_and_hinders_no_later_save(kind, name):
    save_steps(alone(folder=Path()), 1, 2)
    of_kind(kind, max(Path("memory/ns").glob(name)))
    manager = alone(folder=Path())
    restored, value = load(manager)
    assert (restored.step, value) == (1, 1.0) and any("step 2" in text for text in restored.passed_over)
    save_steps(manager, 2, 3)
    assert load(alone(folder=Path()))[1] == 3.0
    manager.clear()
    assert not any(Path("memory/ns").iterdir())


def test_a_checkpoint_that_was_published_and_is_nowhere_is_missed():
    manager = alone(folder=Path())
    save_steps(manager, 1)
    shutil.rmtree("memory/ns")
    with pytest.raises(CheckpointUnavailable, match="step 1 was published, but no tier has it any more"):
        load(alone(folder=Path()))
    again = alone(folder=Path())
    again.clear()
    assert load(again) == (None, None)


def test_what_killed_saves_have_left_takes_no_slot_from_those_to_come():
    memory = NodeMemory(Path("memory").absolute() / "ns", 0, 2, num_sources=1)
    for step in range(1, 6):
        (memory.folder / f"{Key(step, step)}.rank00000.shard").write_bytes(b"old")
        (memory.folder / f"{Key(step, step)}.rank00001.replica").write_bytes(b"old")
    memory.adopt([(0, False), (1, True)], [], is_leader=True)
    for step in range(6, 12):
        key, own, copy = Key(step, step), memory.buffers.take(), memory.copies.take()
        for buffer in (own, copy):
            buffer.reserve(10)
        memory.commit(own, key)
        memory.commit_copy(copy, key, 1)
        memory.publish(key, b"")
        memory.retire(key)
        memory.buffers.release(own)
    assert sorted(held.key.step for held in memory.shards().values()) == [10, 10, 11, 11]


def test_nothing_is_loaded_where_there_is_nothing():
    assert load(alone(Folder(Path("store")))) == (None, None)


def test_what_a_failing_tier_raises_leaves_training_and_the_other_tier_alone(monkeypatch, capsys):
    def refuse(*_):
        raise CheckpointException("the service is gone", {})

    store = Folder(Path("store"))
    manager = alone(store, Path())
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "write", refuse)
        save_steps(manager, 2)
    assert steps_in(store) == [] and load(alone())[0].step == 2
    assert "[Rank 0] Step 2: persistent failed: rank 0: CheckpointException" in capsys.readouterr().out
    events = [json.loads(line)["event"] for line in Path(names.CHECKPOINTS_FILE).read_text().splitlines()]
    assert events == ["saved", "failed"]


def test_a_state_that_cannot_be_saved_is_an_ordinary_error(monkeypatch):
    def refuse(*_):
        raise ValueError("overlapping parts")

    monkeypatch.setattr(DefaultSavePlanner, "create_global_plan", refuse)
    with pytest.raises(StateUnfit, match="overlapping parts"):
        alone().save({"w": torch.zeros(1)}, 1, {})


def test_shared_memory_is_pinned_for_an_accelerator_until_it_is_mapped_anew(monkeypatch, tmp_path):
    calls = []

    class Runtime:
        """Takes the place of the CUDA runtime; refuses the third request."""

        def cudaHostRegister(self, pointer, size, flags):
            calls.append(("pin", pointer, size))
            return int(len(calls) > 3)

        def cudaHostUnregister(self, pointer):
            calls.append(("unpin", pointer))

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    buffer = Buffer(tmp_path)
    buffer.reserve(10)
    first = buffer.bytes.data_ptr()
    buffer.reserve(5)  # fits
    buffer.reserve(2 << 20)
    second = buffer.bytes.data_ptr()
    buffer.reserve(3 << 20)
    third = buffer.bytes.data_ptr()
    buffer.reserve(4 << 20)
    assert calls[:3] == [("pin", first, 1 << 20), ("unpin", first), ("pin", second, 2 << 20)]
    assert calls[3:5] == [("unpin", second), ("pin", third, 3 << 20)]
    assert [call[0] for call in calls[5:]] == ["pin"]  # what was refused is not undone
    assert len(buffer.bytes) == 4 << 20


def test_a_slot_without_memory_fails_instead_of_ending_the_process(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    buffer = Buffer(Path())
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        buffer.reserve(100)
    assert not list(Path().glob(".free-*"))


def test_memory_that_others_may_write_to_is_refused():
    folder = Path("open").absolute()
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    for place in (folder, folder / "ns"):
        with pytest.raises(NotOurs, match="open belongs to another user"):
            NodeMemory(place, 0, 1)


def linear(strategy: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    from launcher.runtime.trainer import distribute

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.Linear(7, 3))
    model.blocks = []
    model = distribute(model, strategy)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "loaders"), [("ddp", 1), ("fsdp2", 3), ("fsdp2", 2)])
def test_a_model_comes_back_at_any_number_of_ranks(tmp_path, strategy, loaders):
    def whole(model) -> list[torch.Tensor]:
        values = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        return [value.detach().clone() for value in values]

    def saved(place: Place) -> list[torch.Tensor]:
        model, optimizer = linear(strategy)
        checkpoints = TieredCheckpoints(settings(), tmp_path)
        for step in (1, 2):
            model(torch.full((2, 9), float(place.rank + step))).sum().backward()
            optimizer.step()
            checkpoints.save(Content(model, optimizer), Progress(step, step * 2, place.world_size), is_last=step == 2)
        return whole(model)

    def loaded(place: Place):
        model, optimizer = linear(strategy)
        progress = TieredCheckpoints(settings(), tmp_path).load(Content(model, optimizer))
        return progress, whole(model), [float(s["step"]) for s in optimizer.state_dict()["state"].values()]

    expected = run_ranks(2, saved, tmp_path)[0]
    for progress, values, steps in run_ranks(loaders, loaded, tmp_path):
        assert progress == Progress(2, 4, 2) and set(steps) == {2.0}
        assert all(torch.equal(value, other) for value, other in zip(values, expected, strict=True))


@pytest.mark.slow
def test_an_interrupted_training_goes_on_from_memory_as_if_nothing_had_been(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = tiny_config(2) | {"checkpointing": SECTION | {"persistent": None}}
    train(tiny_config(2), 2, whole)
    os.environ[names.ENV_RUN_DIR] = str(parts)
    train(config, 2, parts, stop_after_step=4)
    train(config, 2, parts)
    losses = {line["step"]: line["loss"] for line in metrics(parts)}
    assert losses == {line["step"]: line["loss"] for line in metrics(whole)}
    assert not (parts / names.CHECKPOINT_DIR).exists()
    records = [json.loads(line) for line in (parts / names.CHECKPOINTS_FILE).read_text().splitlines()]
    assert [record["step"] for record in records if record["event"] == "loaded"] == [4]


class Tracked:
    """An MLflow client that keeps what it is given."""

    def __init__(self):
        self.points = {}

    def log_batch(self, _run, metrics):
        self.points |= {(metric.key, metric.step): metric.value for metric in metrics}


@pytest.mark.slow
def test_saves_and_loads_reach_mlflow_once(tmp_path):
    manager = alone(Folder(Path("store")), tmp_path)
    save_steps(manager, 1, 2)
    load(manager)
    courier = couriers._Delivery(tmp_path, None, "run")
    courier._client = tracked = Tracked()
    courier.deliver()
    names = {f"checkpoint/{tier}/save_{what}" for tier in ("memory", "persistent") for what in ("bytes", "seconds")}
    assert names <= {name for name, _ in tracked.points}
    assert tracked.points["checkpoint/memory/load_bytes", 2] == 40.0
    assert tracked.points["checkpoint/memory/save_blocked_seconds", 1] > 0
    tracked.points.clear()
    courier.deliver()
    assert not tracked.points


def test_the_log_of_a_pod_is_where_the_document_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "CHECKPOINT_LOG", tmp_path / "log")
    names.CHECKPOINT_LOG.mkdir()
    save_steps(alone(folder=tmp_path), 1)
    told = [(tmp_path / place / "ns_checkpointing.log").read_text() for place in (".", "log")]
    assert told[0] == told[1] and "[Rank 0] Step 1: memory saved: 64 bytes in " in told[0] and " GB/s)" in told[0]


@pytest.mark.slow
def test_s3_keeps_whole_checkpoints_only_and_is_done_without_when_it_is_gone(bucket, monkeypatch):
    monkeypatch.setattr("launcher.runtime.tiers.s3_store.PART_BYTES", 5 << 20)
    store = Bucket(bucket.name, "run/ns/", bucket.endpoint)
    manager = alone(store)
    big = torch.randn(3_000_000)
    manager.save({"w": big}, 2, {})
    manager.wait()
    shutil.rmtree("memory/ns")
    restored = alone(store).load(lambda _: {"w": torch.zeros(3_000_000)})
    assert restored.tier == "persistent" and torch.equal(restored.state["w"], big)
    save_steps(alone(store), 4, 6)
    assert steps_in(store) == [4, 6]
    assert not bucket.keys("run/ns/000000000002")
    (newest,) = [name for name in bucket.keys("run/ns/000000000006") if name.endswith("shard")]
    bucket.client.delete_object(Bucket=bucket.name, Key=newest)
    shutil.rmtree("memory/ns")
    restored, value = load(alone(store))
    assert (restored.step, value) == (4, 4.0) and "step 6 from persistent" in restored.passed_over[0]
    gone = Bucket("no-such-bucket", "ns/", bucket.endpoint)
    with pytest.raises(CheckpointUnavailable, match="persistent: .*NoSuchBucket"):
        shutil.rmtree("memory/ns")
        load(alone(gone))


@pytest.fixture
def service():
    install = "pip install --no-deps amzn-sagemaker-checkpointing==1.1.3"
    pytest.importorskip("amzn_sagemaker_checkpointing", reason=install)
    with memory_service() as running:
        yield running


def on_service(service, rank: int, world_size: int, store=None, patience_s: float = 0.1) -> CheckpointManager:
    memory = MemoryService("ns", rank, world_size, 2, service.address)
    stores = [StoreTier(memory, 1, 2)] + ([StoreTier(store, 2, 2)] if store else [])
    return CheckpointManager(None, stores, CheckpointLog("ns", rank), patience_s=patience_s)


@pytest.mark.slow
def test_the_vendors_newest_step_is_not_stale_at_another_number_of_ranks(tmp_path, service):
    """Saved by 2 ranks at step 80, then by 1 at step 90: 2 ranks go on from 90."""

    def save(place: Place, step: int) -> None:
        save_steps(on_service(service, place.rank, place.world_size), step)

    run_ranks(2, lambda place: save(place, 80), tmp_path)
    assert load(on_service(service, 0, 1))[1] == 80.0
    run_ranks(1, lambda place: save(place, 90), tmp_path)

    def loaded(place: Place):
        return load(on_service(service, place.rank, place.world_size))

    for restored, value in run_ranks(2, loaded, tmp_path):
        assert (restored.step, restored.tier, restored.world_size, value) == (90, "memory", 1, 90.0)


@pytest.mark.slow
def test_a_service_that_changes_bytes_is_passed_over_and_one_that_is_gone_may_have_something_newer(service):
    store = Folder(Path("store"))
    save_steps(on_service(service, 0, 1, store), 1, 2, 3)
    assert sorted(service.steps("ns-published")) == [2, 3]
    shards = [key for key in service.blobs if key[0] == "ns-1-ranks" and key[1:] == ("0", "3")]
    service.blobs[shards[0]] = (b"x" + service.blobs[shards[0]][0][1:], service.blobs[shards[0]][1])
    restored, value = load(on_service(service, 0, 1, store))
    assert (restored.step, restored.tier, value) == (
        2,
        "memory",
        2.0,
    ) and "step 3 from memory" in restored.passed_over[0]
    service.shutdown()
    service.server_close()
    manager = on_service(service, 0, 1, store)
    save_steps(manager, 4)
    with pytest.raises(CheckpointUnavailable, match="memory: "):
        load(manager)
    assert load(CheckpointManager(None, [StoreTier(store, 2, 2)], CheckpointLog("ns", 0)))[1] == 4.0


@pytest.mark.slow
def test_a_list_that_the_service_cannot_give_is_waited_for(service, monkeypatch):
    store = Folder(Path("store"))
    save_steps(on_service(service, 0, 1, store), 1, 2, 3)
    service.refused = "latest"
    with pytest.raises(CheckpointUnavailable, match="memory: .*latest"):
        load(on_service(service, 0, 1, store))
    warned = CheckpointLog.warn_once

    def answer_again(self, step, message):
        service.refused = ""
        warned(self, step, message)

    monkeypatch.setattr(CheckpointLog, "warn_once", answer_again)
    restored, value = load(on_service(service, 0, 1, store, patience_s=60))
    assert (restored.step, restored.tier, value, restored.passed_over) == (3, "memory", 3.0, ())


@pytest.mark.slow
def test_a_shard_that_the_service_cannot_give_comes_from_another_tier_of_the_same_step(service):
    store = Folder(Path("store"))
    save_steps(on_service(service, 0, 1, store), 1, 2)
    service.refused = "ns-1-ranks/"
    restored, value = load(on_service(service, 0, 1, store))
    assert (restored.step, restored.tier, value) == (2, "persistent", 2.0)


@pytest.mark.slow
def test_a_broken_pointer_hides_no_other_checkpoint_of_the_service(service, capsys):
    save_steps(on_service(service, 0, 1), 1, 2, 3)
    for name, told in list(service.blobs.items()):
        if name == ("ns-published", "0", "3"):
            service.blobs[name] = (b"x" + told[0][1:], told[1])
    manager = on_service(service, 0, 1)
    restored, value = load(manager)
    assert (restored.step, value) == (2, 2.0) and "memory: save 3: " in restored.passed_over[0]
    save_steps(manager, 3, 4, 5)
    assert load(on_service(service, 0, 1))[0].step == 5 and "failed" not in capsys.readouterr().out


@pytest.mark.slow
def test_what_the_service_has_removed_by_itself_is_no_failure(service, capsys):
    manager = on_service(service, 0, 1)
    save_steps(manager, 1, 2)
    for name in [name for name in service.blobs if name[0] == "ns-1-ranks" and name[2] == "1"]:
        del service.blobs[name]
    save_steps(manager, 3)
    assert sorted(service.steps("ns-published")) == [2, 3] and "failed" not in capsys.readouterr().out


def test_settings_take_the_service_only_where_there_is_one(monkeypatch, service):
    assert manager_of(settings(), None)._memory is not None
    monkeypatch.setenv(names.ENV_MEMORY_SERVICE, service.address)
    assert manager_of(settings(), None)._memory is None


def test_a_pod_without_the_services_client_says_where_its_memory_tier_is(monkeypatch, capsys):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert manager_of(settings(), None)._memory is not None
    assert "amzn_sagemaker_checkpointing is not in this image" in capsys.readouterr().out
