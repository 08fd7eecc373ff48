"""Seeded cases of what can go wrong with tiers: faults while saving, damage afterwards, then a load.

A case runs real ranks, each a node of its own, and compares what they load with what is whole on disk and in memory,
found by reading every byte of every file.
"""

import errno
import os
import random
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import torch
from runtime_ranks import fork_ranks, run_ranks, wait_for_ranks
from torch.distributed.checkpoint.api import CheckpointException

from launcher.runtime.process_group import Place
from launcher.runtime.tiers import buffers, checkpoint_manager, rank_group, staging, stores
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, MemoryTier, StoreTier
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.owner import FileMark, Mark, NamespaceTaken
from launcher.runtime.tiers.restore import CheckpointUnavailable, Restored
from launcher.runtime.tiers.s3_store import Bucket
from launcher.runtime.tiers.shards import Broken, Key, Manifest, Piece, TierFailure, unseal_own
from launcher.runtime.tiers.staging import checksums
from launcher.runtime.tiers.stores import Folder

NUM_RANKS = 2
STEPS = 5
SAVE_FAULTS = (
    "none",
    "kill",
    "kill",
    "kill",
    "memory full",
    "disk full",
    "memory fails",
    "store fails",
    "replica fails",
    "S3 unreachable",
)
DAMAGES = (
    "none",
    "flip memory",
    "flip replica",
    "flip all copies",
    "truncate memory",
    "remove memory shard",
    "flip persistent",
    "truncate persistent",
    "no memory manifest",
    "no persistent manifest",
    "flip memory manifest",
    "flip persistent manifest",
    "lose node 0",
    "lose node 1",
    "lose both nodes",
    "S3 unreachable",
    "memory fails",
    "replica fails",
    "persistent fails",
    "kill while loading",
    "misplaced memory manifest",
    "misplaced persistent manifest",
    "throttled memory",
    "throttled persistent",
    "clock set back",
    "second owner",
)
UNREADABLE = {"memory fails": ".shard", "replica fails": ".replica"}
"""Ends of the names of files that a damage lets nobody read."""
PATIENCE_S = 0.1
"""Seconds for which the cases wait for what stays unavailable; those that wait for throttling wait for longer."""
OS_CALLS = ("ftruncate", "posix_fallocate", "rename", "replace", "unlink", "write", "fsync", "mkdir")


@dataclass(frozen=True)
class Case:
    """One case, all of it drawn from its seed."""

    seed: int
    save_fault: str
    damage: str
    at: int
    victim: int
    memory_every: int
    store_every: int
    retention: int
    loaders: int

    @staticmethod
    def of(seed: int) -> "Case":
        draw = random.Random(seed)
        return Case(
            seed,
            SAVE_FAULTS[seed % len(SAVE_FAULTS)],
            draw.choice(DAMAGES),
            draw.randint(1, 110),
            draw.randrange(NUM_RANKS),
            draw.choice((1, 2)),
            draw.choice((2, 4)),
            draw.choice((1, 2)),
            draw.choice((1, 2, 2, 2, 3)),
        )


def state_at(step: int, rank: int) -> dict:
    """Return the state after a step: the same tensors on all ranks, and an object of each rank's own."""
    numbers = torch.Generator().manual_seed(step)
    tensors = {f"w{place}": torch.randn(300 + place, generator=numbers) for place in range(3)}
    tensors["half"] = torch.randn(64, generator=numbers).bfloat16()
    return {"model": tensors, "count": step * 7, "random": {f"rank{rank}": bytes([step]) * 50}}


def manager(root: Path, place: Place, case: Case, store: object | None = None) -> CheckpointManager:
    memory = NodeMemory(root / f"node{place.rank}" / "ns", place.rank, case.retention, num_sources=1)
    tier = MemoryTier(memory, case.memory_every, ranks_per_node=1, replicas=1)
    kept = [StoreTier(store or Folder(root / "store"), case.store_every, 2)]
    return CheckpointManager(
        tier, kept, CheckpointLog("ns", place.rank, root), str(memory.folder), patience_s=PATIENCE_S
    )


CLOSED = socket.socket()
"""Has a port on which nothing listens, and which no other process is given meanwhile."""
CLOSED.bind(("127.0.0.1", 0))


def unreachable() -> Bucket:
    """Return a bucket of a server that does not run."""
    os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="word", AWS_EC2_METADATA_DISABLED="true")
    os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_MAX_ATTEMPTS="1")
    return Bucket("bucket", "ns/", f"http://127.0.0.1:{CLOSED.getsockname()[1]}", patience_s=PATIENCE_S)


def wrap(owner: object, name: str, hook) -> None:
    real = getattr(owner, name)

    def call(*args, **kwargs):
        hook()
        return real(*args, **kwargs)

    setattr(owner, name, call)


def die_at(number: int) -> None:
    """Make this process kill itself just before its `number`-th move that matters."""
    moves = iter(range(1, 1_000_000))

    def hook() -> None:
        if next(moves) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in OS_CALLS:
        wrap(os, name, hook)
    wrap(staging.Stager, "_copy_tensor", hook)
    wrap(checkpoint_manager, "pieces_of", hook)
    wrap(buffers.Buffer, "name", hook)
    for name in ("exchange", "gather", "share"):
        wrap(rank_group.Ranks, name, hook)


def fail_from(owner: object, name: str, number: int, error: BaseException) -> None:
    """Make a function fail from its `number`-th call on."""
    calls = iter(range(1, 1_000_000))

    def hook() -> None:
        if next(calls) >= number:
            raise error

    wrap(owner, name, hook)


def fail_until(owner: object, name: str, number: int, error: BaseException) -> None:
    """Make the first `number` calls of a function fail."""
    calls = iter(range(number))

    def hook() -> None:
        if next(calls, None) is not None:
            raise error

    wrap(owner, name, hook)


def break_saving(case: Case) -> object | None:
    """Bring about the case's fault in this rank; return the store to save to where it is another one."""
    full, few = OSError(errno.ENOSPC, "No space left on device"), 1 + case.at % 4
    match case.save_fault:
        case "kill":
            die_at(case.at)
        case "memory full":
            fail_from(os, "posix_fallocate", few, full)
        case "disk full":
            fail_from(os, "write", few, full)
        case "memory fails":
            fail_from(NodeMemory, "commit", few, OSError(errno.EIO, "Input/output error"))
        case "store fails":
            fail_from(Folder, "write", 1, CheckpointException("vendor", {}))
        case "replica fails":
            fail_from(NodeMemory, "commit_copy", few, OSError(errno.EIO, "Input/output error"))
    return None


def break_loading(case: Case) -> None:
    """Make a tier fail in this rank where it is asked for a shard."""
    lost = OSError(errno.EIO, "Input/output error")
    if case.damage == "persistent fails":
        fail_from(stores, "FileShard", 1, lost)
    elif case.damage.startswith("throttled"):
        owner = NodeMemory if case.damage == "throttled memory" else Folder
        for name in ("manifest", "open"):
            fail_until(owner, name, 1 + case.at % 3, TierFailure("SlowDown"))
    elif case.damage in UNREADABLE:
        opened = NodeMemory.open

        def fail(*words, is_replica: bool):
            if is_replica == (case.damage == "replica fails"):
                raise lost
            return opened(*words, is_replica=is_replica)

        NodeMemory.open = fail


def save_all(root: Path, case: Case) -> None:
    """Save STEPS steps; where a rank is killed the others are killed too, as a job's operator does."""

    def work(place: Place) -> None:
        if place.rank == case.victim:
            break_saving(case)
        checkpoints = manager(root, place, case, unreachable() if case.save_fault == "S3 unreachable" else None)
        for step in range(1, STEPS + 1):
            state = state_at(step, place.rank)
            checkpoints.save(state, step, {"cursor": step * 10})
            for tensor in state["model"].values():
                tensor.zero_()  # training goes on: what was saved must be a copy
        checkpoints.wait()

    end_all(fork_ranks(NUM_RANKS, work, root), case, may_die=case.save_fault == "kill")


def end_all(ranks: list[int], case: Case, *, may_die: bool) -> None:
    """Wait for all ranks; where one is killed kill the others."""
    codes = wait_for_ranks(ranks, others_s=0.005 * (case.seed % 3))
    assert may_die or not any(codes), f"the ranks ended with {codes}"


def published(root: Path, nodes: int = NUM_RANKS) -> dict[Key, set[str]]:
    """Return every save that has a manifest, and in which tiers."""
    found: dict[Key, set[str]] = {}
    folders = [root / f"node{node}" / "ns" for node in range(nodes)]
    for path in [path for folder in folders for path in folder.glob("[0-9]*.manifest")]:
        found.setdefault(Key.parse(path.name), set()).add("memory")
    for path in root.glob("store/*/manifest"):
        found.setdefault(Key.parse(path.parent.name), set()).add("persistent")
    return found


def holds(blob: bytes, piece: Piece) -> bool:
    return (
        checksums(numpy.frombuffer(blob[piece.offset : piece.offset + piece.length], numpy.uint8)) == piece.checksum
    )


def is_whole(key: Key, files: list[Path], manifests: list[Path], num_ranks: int) -> bool:
    """Return whether a save's own manifest can be read and every piece of it lies in some file, byte for byte."""
    for path in manifests:
        try:
            manifest = unseal_own(path.read_bytes(), key, "ns")
        except Broken:
            continue
        data = [(path, path.read_bytes()) for path in files]
        by_rank = {
            rank: [blob for path, blob in data if f"rank{rank:05d}" in path.name and len(blob) >= size]
            for rank, size in enumerate(manifest.sizes)
        }
        shards: dict[int, list] = {}
        for index, piece in manifest.metadata.storage_data.items():
            # Another number of ranks does not read what is of one rank alone.
            if num_ranks == manifest.world_size or not index.fqn.startswith("random"):
                shards.setdefault(piece.rank, []).append(piece)
        return all(
            any(all(holds(blob, piece) for piece in pieces) for blob in by_rank[rank])
            for rank, pieces in shards.items()
        )
    return False


def whole(root: Path, nodes: int, *, with_store: bool = True, unreadable: str | None = None) -> list[Key]:
    """Return the saves that can be loaded, found by reading everything."""
    found = []
    for key in published(root, max(nodes, NUM_RANKS)):
        folders = [root / f"node{node}" / "ns" for node in range(nodes)]
        manifests = [path for folder in folders if (path := folder / f"{key}.manifest").exists()]
        files = [path for folder in folders for path in folder.glob(f"{key}.rank*") if path.suffix != unreadable]
        store = root / "store" / str(key)
        in_store = with_store and (store / "manifest").exists()
        sources = [(files, manifests)]
        sources += [(list(store.glob("rank*")), [store / "manifest"])] if in_store else []
        if any(is_whole(key, *each, nodes) for each in sources):
            found.append(key)
    return found


def flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))  # the rest is room that no piece lies in
    data[draw.randrange(used)] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def damage(root: Path, case: Case) -> None:
    """Damage the newest checkpoint of a tier."""
    draw, found = random.Random(case.seed), published(root)
    if case.damage.startswith("lose"):
        for node in {"0": [0], "1": [1]}.get(case.damage[-1], [0, 1]):
            remove_tree(root / f"node{node}")
        return
    tier = "persistent" if "persistent" in case.damage else "memory"
    newest = max((key for key, tiers in found.items() if tier in tiers), default=None)
    if newest is None:
        return
    if case.damage.startswith("misplaced"):
        misplace(root, tier, newest, case)
        return
    patterns = {
        "flip memory": f"node*/ns/{newest}.*.shard",
        "flip replica": f"node*/ns/{newest}.*.replica",
        "flip all copies": f"node*/ns/{newest}.rank*",
        "truncate memory": f"node*/ns/{newest}.*.shard",
        "remove memory shard": f"node*/ns/{newest}.*.shard",
        "flip persistent": f"store/{newest}/rank*",
        "truncate persistent": f"store/{newest}/rank*",
        "no memory manifest": f"node*/ns/{newest}.manifest",
        "no persistent manifest": f"store/{newest}/manifest",
        "flip memory manifest": f"node*/ns/{newest}.manifest",
        "flip persistent manifest": f"store/{newest}/manifest",
    }
    paths = sorted(root.glob(patterns.get(case.damage, "nothing")))
    if "all" not in case.damage and "manifest" not in case.damage:
        paths = draw.sample(paths, min(1, len(paths)))
    for path in paths:
        match case.damage.split()[0]:
            case "flip":
                flip(path, draw)
            case "truncate":
                os.truncate(path, draw.randrange(path.stat().st_size))
            case _:
                path.unlink()


def misplace(root: Path, tier: str, newest: Key, case: Case) -> None:
    """Put an older manifest under the newest save's name, or a manifest under the name of a save that never was."""
    older = sorted(key for key, tiers in published(root).items() if tier in tiers and key < newest)
    target = newest if older and case.at % 2 else Key(newest.step + 1, newest.save + 1)
    source = older[-1] if older else newest
    for folder in (
        [root / f"node{node}" / "ns" for node in range(NUM_RANKS)] if tier == "memory" else [root / "store"]
    ):
        names = [f"{key}.manifest" if tier == "memory" else f"{key}/manifest" for key in (source, target)]
        if (folder / names[0]).exists():
            (folder / names[1]).parent.mkdir(exist_ok=True)
            (folder / names[1]).write_bytes((folder / names[0]).read_bytes())


def remove_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def kill_loading(root: Path, case: Case) -> None:
    """Load, and kill a rank on the way."""

    def work(place: Place) -> None:
        if place.rank == case.victim % case.loaders:
            die_at(1 + case.at % 10)
        manager(root, place, case).load(lambda _: {"model": state_at(0, place.rank)["model"]})

    end_all(fork_ranks(case.loaders, work, root), case, may_die=True)


def load_all(root: Path, case: Case) -> list[Restored | str | None]:
    """Load on `case.loaders` ranks; return for each what it restored, or the error's text."""

    def work(place: Place) -> Restored | str | None:
        store = unreachable() if case.damage == "S3 unreachable" else None
        break_loading(case)

        def form(manifest: Manifest) -> dict:
            state = state_at(0, place.rank)
            return (
                state
                if manifest.world_size == place.world_size
                else {k: v for k, v in state.items() if k != "random"}
            )

        if case.damage == "second owner":
            beats = iter(range(1, 1_000_000))
            FileMark.mark = lambda self: Mark("theirs", "another host", next(beats), 60.0).text()
        if case.damage == "clock set back":
            time.time, time.time_ns = (lambda: 1.0), (lambda: 10**9)
        checkpoints = manager(root, place, case, store)
        if case.damage.startswith("throttled"):
            checkpoints._patience_s = 600
        try:
            restored = checkpoints.load(form)
        except (CheckpointUnavailable, NamespaceTaken) as error:
            return f"{type(error).__name__}: {error}"
        if restored:
            state, expected = restored.state, state_at(restored.step, place.rank)
            same = {name: torch.equal(state["model"][name], value) for name, value in expected["model"].items()}
            assert all(same.values()), same
            assert state["count"] == expected["count"] and restored.progress == {"cursor": restored.step * 10}
            assert "random" not in state or state["random"] == expected["random"]
            assert ("random" in state) == (restored.world_size == place.world_size)
        return restored and replace(restored, state={})

    return run_ranks(case.loaders, work, root)


def run_case(seed: int, root: Path) -> str:
    """Run one case and check all that must hold; return what came of it, in a word."""
    case = Case.of(seed)
    save_all(root, case)
    for tier, saves in (("memory", whole(root, NUM_RANKS, with_store=False)), ("persistent", whole(root, 0))):
        last = max((key for key, tiers in published(root).items() if tier in tiers), default=None)
        assert last is None or last in saves, (case, f"step {last} was published in {tier} and is not whole")
    damage(root, case)
    if case.damage == "kill while loading":
        kill_loading(root, case)
    # A manifest that was there, and is gone before anybody wrote a word of it, nobody can know of.
    newest = max([*published(root, case.loaders), CheckpointLog("ns", 0, root).published()])
    can_ask = case.damage != "S3 unreachable"
    with_store, unreadable = can_ask and case.damage != "persistent fails", UNREADABLE.get(case.damage)
    intact = max(whole(root, case.loaders), default=None)
    readable = max(whole(root, case.loaders, with_store=with_store, unreadable=unreadable), default=None)
    # What is intact and cannot be read must not lead to an older one.
    expected = readable.step if can_ask and readable and readable == intact else None
    results = load_all(root, case)
    assert len({str(result) for result in results}) == 1, results
    result = results[0]
    if case.damage == "second owner":
        assert isinstance(result, str) and result.startswith("NamespaceTaken") and "theirs" in result, (case, result)
        return "refused"
    if expected is None:
        if newest.save or not can_ask:
            assert isinstance(result, str) and "tried" in result, (case, result)
            assert "memory" in result or "persistent" in result or "no tier" in result
            return "error"
        assert result is None, (case, result)
        return "nothing"
    assert isinstance(result, Restored) and result.step == expected, (case, expected, newest, result)
    if readable < newest:
        assert result.passed_over, case
        return "older"
    return result.tier


def run_cases(seeds: range, root: Path) -> Counter:
    """Run cases, each in a folder of its own; return how often each outcome came."""
    outcomes: Counter = Counter()
    for seed in seeds:
        folder = root / str(seed)
        folder.mkdir(parents=True)
        try:
            outcomes[run_case(seed, folder)] += 1
        except TierFailure as error:
            raise AssertionError(f"seed {seed}") from error
        finally:
            remove_tree(folder)
    return outcomes
