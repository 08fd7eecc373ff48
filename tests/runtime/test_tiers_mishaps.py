"""Checkpoints in tiers when things go wrong around them: files, disks, the order of ranks, the last save."""

import contextlib
import errno
import importlib.util
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ports import free_ports
from runtime_ranks import leave_locks_behind, run_ranks
from test_tiers import SECTION, alone, load, save_steps, settings, steps_in

from launcher.common import names
from launcher.runtime.checkpoint import Progress
from launcher.runtime.checkpoint_search import StateMismatch
from launcher.runtime.content import Content
from launcher.runtime.elastic import Job, StepSampler
from launcher.runtime.process_group import Place
from launcher.runtime.tiers import checkpoint_manager
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, MemoryTier, StoreTier
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.restore import CheckpointUnavailable
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.shards import TierFailure
from launcher.runtime.tiers.staging import StateUnfit
from launcher.runtime.tiers.stores import Folder
from launcher.runtime.tiers.tier_settings import Cadence, TierSettings
from launcher.runtime.tiers.training import CheckpointUnsaved, TieredCheckpoints, manager_of

pytest_plugins = ("s3_server",)
pytestmark = pytest.mark.usefixtures("own_folders")
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_tiers.py"
PATIENCE_S = 200.0
"""How long a thread waits for what another one does."""
FULL = OSError(errno.ENOSPC, "No space left on device")


def failing(*_: object) -> None:
    raise FULL


@pytest.mark.slow
def test_a_removal_takes_nothing_that_another_rank_is_just_writing(tmp_path):
    """Rank 0 removes what is old while rank 1 would like to write the next checkpoint."""
    store = Folder(tmp_path / "store")
    retire = CheckpointManager._retire

    def late(self, tier: StoreTier, key) -> None:
        until = time.monotonic() + 0.2
        while time.monotonic() < until and not any(later > key for later in store.saves()):
            time.sleep(0.01)
        retire(self, tier, key)

    def work(place: Place) -> None:
        CheckpointManager._retire = late
        manager = CheckpointManager(None, [StoreTier(store, 1, 3)], CheckpointLog("ns", place.rank))
        for step in (1, 2, 3):
            manager.save({f"w{place.rank}": torch.full((10,), float(step))}, step, {})
        manager.wait()

    run_ranks(2, work, tmp_path)
    assert steps_in(store) == [1, 2, 3]
    assert {len(list(path.glob("rank*.shard"))) for path in store.folder.iterdir()} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("other", [0, 1])
def test_a_rank_that_wants_another_state_keeps_no_rank_waiting(other, tmp_path):
    """One rank asks for a tensor of another shape; both hear of it, also where one reads from the other's node."""
    told = tmp_path / "told"
    told.mkdir()

    def work(place: Place) -> None:
        node = f"node{place.rank}"
        memory = MemoryTier(NodeMemory(tmp_path / node / "ns", place.rank, 1), 1, 1, 0)
        manager = CheckpointManager(memory, [], CheckpointLog("ns", place.rank), node)
        manager.save({"both": torch.ones(10), f"own{place.rank}": torch.ones(3)}, 1, {})
        size = 9 if place.rank == other else 10
        try:
            manager.load(lambda _: {"both": torch.zeros(size), f"own{1 - place.rank}": torch.zeros(3)})
        except StateMismatch as error:
            (told / str(place.rank)).write_text(str(error))

    run_ranks(2, work, tmp_path)
    texts = {path.name: path.read_text() for path in told.iterdir()}
    assert set(texts) == {"0", "1"} and texts["0"] == texts["1"] and "both" in texts["0"]


def test_records_that_cannot_be_written_end_no_save(capsys):
    for name in (names.CHECKPOINTS_FILE, "ns_checkpointing.log"):
        Path(name).mkdir()
    store = Folder(Path("store"))
    manager = alone(store, Path())
    save_steps(manager, *range(1, 9))
    assert steps_in(store) == [6, 8] and load(alone(store, Path()))[0].step == 8
    told = capsys.readouterr()
    assert "is not in the records" in told.out and "published last is unknown" in told.out and told.err == ""


def test_what_is_saved_beside_the_state_is_a_copy_too(monkeypatch):
    seal, changed = checkpoint_manager.seal, threading.Event()

    def late(manifest):
        assert changed.wait(PATIENCE_S)
        return seal(manifest)

    monkeypatch.setattr(checkpoint_manager, "seal", late)
    manager, progress = alone(), {"cursor": [1]}
    manager.save({"w": torch.zeros(10)}, 1, progress)
    progress["cursor"].append(2)
    changed.set()
    manager.wait()
    assert load(alone())[0].progress == {"cursor": [1]}
    with pytest.raises(StateUnfit, match="progress"):
        manager.save({"w": torch.zeros(10)}, 2, {"now": lambda: 0})


def test_memory_that_cannot_be_freed_holds_no_training_up(monkeypatch, capsys):
    store = Folder(Path("store"))
    manager = alone(store)
    with monkeypatch.context() as patched:
        patched.setattr(NodeMemory, "retire", failing)
        save_steps(manager, *range(1, 11))
    assert steps_in(store) == [8, 10] and load(alone(store))[0].step == 10
    told = capsys.readouterr().out
    assert "memory failed: older checkpoints were not removed" in told and "cannot be removed" in told
    save_steps(manager, 11, 12, 13, 14, 15)
    assert load(alone(store))[0].tier == "memory" and len(list(Path("memory/ns").glob("*.shard"))) == 2


def test_a_save_waits_while_older_checkpoints_are_being_removed_again(monkeypatch):
    """It needs a buffer at that moment: whether it gets one is decided by this removal, not by the last one."""
    manager = alone()
    with monkeypatch.context() as patched:
        patched.setattr(NodeMemory, "retire", failing)
        save_steps(manager, *range(1, 6))
    retire, tried, wanted = NodeMemory.retire, threading.Event(), threading.Event()

    def late(*args: object) -> None:
        tried.set()
        assert wanted.wait(PATIENCE_S)
        retire(*args)

    monkeypatch.setattr(NodeMemory, "retire", late)
    manager.save({"w": torch.zeros(10)}, 6, {})
    assert tried.wait(PATIENCE_S)
    full, wait, take = manager._memory.memory.buffers._changed, threading.Condition.wait, manager._plain.take
    monkeypatch.setattr(full, "wait", lambda: (wanted.set(), wait(full)))
    monkeypatch.setattr(manager._plain, "take", lambda: (wanted.set(), take())[1])
    save_steps(manager, 7)
    assert load(alone())[0].step == 7


def test_a_manifest_that_does_not_fit_leaves_the_checkpoint_before_it(monkeypatch):
    manager = alone(folder=Path(), retention=1)
    save_steps(manager, 1)
    with monkeypatch.context() as patched:
        patched.setattr(NodeMemory, "publish", failing)
        save_steps(manager, 2, 3, 4)
    assert load(alone())[1] == 1.0
    events = [json.loads(line) for line in Path(names.CHECKPOINTS_FILE).read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in events] == [
        ("saved", 1),
        *(("failed", n) for n in (2, 3, 4)),
    ]
    save_steps(manager, 5)
    assert load(alone())[1] == 5.0


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one():
    Path("store").write_text("no folder")
    with pytest.raises(CheckpointUnavailable, match="persistent: .*Not a directory"):
        load(alone(Folder(Path("store"))))
    with pytest.raises(CheckpointUnavailable, match="persistent: .*Not a directory"):
        alone(Folder(Path("store"))).newest()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["manifests", "shards", "manifest", "open"])
def test_memory_that_cannot_be_read_leads_to_no_older_step(method, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = Folder(Path("store"))
    manager = alone(store)
    save_steps(manager, 2, 3)
    with monkeypatch.context() as patched:
        patched.setattr(NodeMemory, method, fail)
        manager._patience_s = 0.1
        with pytest.raises(CheckpointUnavailable, match="Input/output|no node has"):
            load(manager)
    assert load(manager)[1] == 3.0


def test_what_somebody_put_beside_the_checkpoints_is_left_alone():
    store = Folder(Path("store"))
    save_steps(alone(store), 2)
    (own,) = store.folder.iterdir()
    copy = own.with_name(f"{own.name}.copy")
    copy.mkdir()
    (copy / "manifest").write_bytes(b"mine")
    save_steps(alone(store), 4, 6, 8)
    assert steps_in(store) == [6, 8] and copy.is_dir()


def linear() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_last_save_that_does_not_last_is_an_error_and_can_be_done_again(monkeypatch, tmp_path):
    model, optimizer = linear()
    checkpoints = TieredCheckpoints(settings(), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "write", failing)
        checkpoints.save(Content(model, optimizer), Progress(4))
        with pytest.raises(CheckpointUnsaved, match="step 4 is not in store"):
            checkpoints.save(Content(model, optimizer), Progress(4), is_last=True)
    checkpoints.save(Content(model, optimizer), Progress(4), is_last=True)
    assert steps_in(Folder(Path("store/ns"))) == [4]


def test_the_save_before_a_stop_must_last_even_if_it_was_due_in_a_skipped_step(monkeypatch):
    monkeypatch.setattr(Folder, "write", failing)
    model, optimizer = linear()
    sampler, tiers = StepSampler(12, 2, seed=1), TierSettings("ns", None, Cadence(2, 1), "store")
    job = Job(model, optimizer, sampler=sampler, tiers=tiers, event_pending=lambda: job.step + 1 == 3)
    with pytest.raises(CheckpointUnsaved, match="step 3 is not in store"):
        for positions in job.steps(sampler):
            is_bad = job.step + 1 == 2
            job.weigh(model(torch.ones(len(positions), 3)).mean() * (math.nan if is_bad else 1.0)).backward()
            if job.may_step():
                optimizer.step()
            optimizer.zero_grad()


def test_a_job_that_is_done_already_does_not_write_its_checkpoint_again():
    store = StoreTier(Folder(Path("store")), 2, 2)
    save_steps(CheckpointManager(None, [store], CheckpointLog("ns", 0)), 2)
    saves = store.store.saves()
    again = CheckpointManager(None, [store], CheckpointLog("ns", 0))
    load(again)
    again.save({"w": torch.zeros(10)}, 2, {}, everywhere=True)
    again.wait()
    assert again.has(2) and store.store.saves() == saves


@pytest.mark.slow
def test_a_connection_that_breaks_is_made_again_where_it_broke(bucket, monkeypatch):
    from botocore.response import StreamingBody

    store = Bucket(bucket.name, "ns/", bucket.endpoint)
    big = torch.randn(1_000_000)
    manager = CheckpointManager(None, [StoreTier(store, 1, 2)], CheckpointLog("ns", 0))
    manager.save({"w": big}, 1, {})
    manager.wait()
    read: Callable = StreamingBody.readinto
    breaks = iter((False, True))

    def breaking(self, room):
        if next(breaks, False):
            raise OSError("connection reset")
        return read(self, room[: 1 << 20])

    monkeypatch.setattr(StreamingBody, "readinto", breaking)
    restored = manager.load(lambda _: {"w": torch.zeros(1_000_000)})
    assert torch.equal(restored.state["w"], big) and not restored.passed_over


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(lambda data: data[:-1], "truncated", id="cut"),
        pytest.param(lambda data: bytes([data[0] ^ 1]) + data[1:], "changed at byte 0", id="flipped"),
    ],
)
def test_an_object_that_is_not_what_was_saved_is_passed_over(bucket, change, says):
    manager = CheckpointManager(
        None, [StoreTier(Bucket(bucket.name, "ns/", bucket.endpoint), 1, 2)], CheckpointLog("ns", 0)
    )
    save_steps(manager, 1, 2)
    (name,) = [name for name in bucket.keys("ns/000000000002") if name.endswith("shard")]
    data = bucket.client.get_object(Bucket=bucket.name, Key=name)["Body"].read()
    bucket.client.put_object(Bucket=bucket.name, Key=name, Body=change(data))
    restored, value = load(manager)
    assert (restored.step, value) == (1, 1.0) and says in restored.passed_over[0]


def test_a_tier_without_its_client_is_told_before_training_begins(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with monkeypatch.context() as patched, pytest.raises(ModuleNotFoundError, match="1 needs amzn_sagemaker_checkp"):
        patched.setenv(names.ENV_MEMORY_SERVICE, "http://127.0.0.1:1")
        manager_of(settings(), None)
    with pytest.raises(ModuleNotFoundError, match="s3://bucket/a needs boto3"):
        manager_of(settings(memory=None, persistent=SECTION["persistent"] | {"path": "s3://bucket/a"}), None)


@pytest.mark.slow
def test_objects_that_a_bucket_does_not_give_up_are_told(bucket, monkeypatch):
    store = Bucket(bucket.name, "ns/", bucket.endpoint)
    save_steps(CheckpointManager(None, [StoreTier(store, 1, 2)], CheckpointLog("ns", 0)), 1)
    answer = {"Errors": [{"Key": "ns/x", "Code": "AccessDenied"}]}
    monkeypatch.setattr(store._client, "delete_objects", lambda **_: answer)
    with pytest.raises(TierFailure, match="1 objects were not removed: ns/x: AccessDenied"):
        store.remove(store.saves())


@pytest.mark.slow
def test_a_script_of_ones_own_goes_on_from_the_tiers_of_its_recipe(monkeypatch):
    monkeypatch.setenv(names.ENV_CHECKPOINTING, json.dumps(SECTION))

    def train(*, leave_after: int | None) -> tuple[int | None, list[float]]:
        torch.manual_seed(3)
        model, optimizer = linear()
        job = Job(model, optimizer, sampler=StepSampler(24, 4, 1))
        resumed, losses = job.restore(), []
        for _ in job.steps(job.sampler):
            loss = model(torch.full((1, 3), float(job.step))).square().mean()
            job.weigh(loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == leave_after:
                break
        job.checkpoints._manager.wait()
        return resumed and resumed.step, losses

    _, whole = train(leave_after=None)
    for folder in (Path("memory/ns"), Path("store/ns")):
        assert list(folder.iterdir())
        os.rename(folder, f"{folder}-of-the-first")
    Path(names.CHECKPOINTS_FILE).unlink()
    _, first = train(leave_after=4)
    step, rest = train(leave_after=None)
    assert step == 3 and first[:3] + rest == whole
    assert not Path(names.CHECKPOINT_DIR).exists()


def run_example(num_steps: int, folder: Path) -> list[tuple[str, str]]:
    """Run examples/train_tiers.py on one rank; return step and loss as it printed them."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if not child:
        code = 1
        try:
            leave_locks_behind()
            os.chdir(folder)
            torch.set_num_threads(1)  # the others are not forked
            place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(*free_ports(1))}
            os.environ.update(place, RECIPES_RUN_DIR=str(folder), RECIPES_NODE_MEMORY=str(folder / "memory"))
            spec = importlib.util.spec_from_file_location("train_tiers", EXAMPLE)
            example = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(example)
            example.NUM_STEPS = num_steps
            with Path("out").open("w") as out, contextlib.redirect_stdout(out):
                example.main()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    return re.findall(r"^step (\d+)/\d+  loss ([\d.]+)", (folder / "out").read_text(), re.M)


@pytest.mark.slow
def test_the_example_goes_on_where_it_ended(tmp_path):
    whole = run_example(12, tmp_path / "whole")
    first, rest = (run_example(steps, tmp_path / "parts") for steps in (7, 12))
    assert first + rest == whole and [step for step, _ in rest] == ["8", "9", "10", "11", "12"]
    assert len(list((tmp_path / "parts/checkpoints/spirals").iterdir())) == 2
