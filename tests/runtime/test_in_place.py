"""What workers keep between two starts in one process, and how it reaches the others."""

import gc
import math
import os
import signal
import socket
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runtime_ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from launcher.common import names
from launcher.runtime import in_place, neighbours, peers, process_group, rows, startup_timing
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.content import Content
from launcher.runtime.peers import Kept, NotHealed
from launcher.runtime.process_group import Place

DDP = nn.parallel.DistributedDataParallel
SAME = {"num_samples": 50, "seed": 5}


class Counter:
    """A user's object: a number, and a tensor."""

    def __init__(self) -> None:
        self.count, self.total = 0, torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.total = state["count"], state["total"]


def content(seed: int) -> Content:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return Content(model, optimizer, schedule, {"counter": Counter()})


def trained(steps: int, scale: float = 1.0) -> Kept:
    """Return what `steps` steps leave, the same on every rank; another `scale` leaves another state."""
    found = content(seed=1)
    torch.manual_seed(2)
    for _ in range(steps):
        (found.model(torch.randn(4, 7)).pow(2).mean() * scale).backward()
        found.optimizer.step()
        found.scheduler.step()
        found.optimizer.zero_grad()
        found.user_content["counter"].count += 1
        found.user_content["counter"].total += 1
    return peers.kept(found, Progress(steps, 12 * steps, 2, **SAME), None, {})


def state_of(found: Content) -> dict[str, Any]:
    counter = found.user_content["counter"]
    return {
        "model": {name: each.tolist() for name, each in found.model.state_dict().items() if name != "2.bias"},
        "optimizer": [[each.tolist() for each in state.values()] for state in found.optimizer.state.values()],
        "rate": found.optimizer.param_groups[0]["lr"],
        "schedule": found.scheduler.last_epoch,
        "counter": (counter.count, counter.total.tolist()),
    }


def take_over(place: Place, steps: tuple[int | None, ...], *, rebuilds: bool) -> Any:
    """Continue on ranks that have done these numbers of steps, None for a new rank; return what each has then."""
    done = steps[place.rank]
    kept = None if done is None else trained(done)
    in_place._State.kept = (kept,) if kept else ()
    own = kept.content if kept and not rebuilds else content(seed=10 + place.rank)
    if kept:
        own.model(torch.randn(4, 7)).sum().backward()  # gradients of a step that failed
    wrapped = Content(DDP(own.model, init_sync=False), own.optimizer, own.scheduler, own.user_content)
    taken = peers.take_over(wrapped)
    left = [each.grad for each in own.model.parameters() if each.grad is not None]
    return taken, state_of(own), left, in_place._State.kept, state_of(trained(3).content)


@pytest.mark.slow
@pytest.mark.parametrize("rebuilds", [False, True], ids=["same-objects", "built-again"])
@pytest.mark.parametrize(
    "steps", [(3, None, 3, None), (None, 2, 3), (3, 3)], ids=["half-new", "one-ahead", "all-stay"]
)
def test_every_rank_continues_with_the_newest_state(tmp_path, steps, rebuilds):
    results = run_ranks(len(steps), partial(take_over, steps=steps, rebuilds=rebuilds), tmp_path)
    has_newest = [done == 3 for done in steps]
    for taken, state, gradients, kept, expected in results:
        assert (taken.progress.step, taken.progress.cursor) == (3, 36)
        assert (taken.num_holders, taken.num_receivers) == (sum(has_newest), len(steps) - sum(has_newest))
        assert (taken.num_bytes > 0) == (not all(has_newest))
        assert gradients == [] and kept == ()
        running = {name for name in state["model"] if name.startswith("1.")}  # a forward pass changes these here
        for name in set(expected["model"]) - running:
            assert state["model"][name] == expected["model"][name]
        for part in ("optimizer", "rate", "schedule", "counter"):
            assert state[part] == expected[part]


def test_senders_share_the_bytes():
    sizes = {name: size for name, size in zip("abcdef", [400, 100, 100, 100, 100, 8], strict=True)}
    lacking = [{}, {}, {name: [(0, 1)] for name in sizes}]
    plan = rows.moves(lacking, {rank: {name: [(0, 1)] for name in sizes} for rank in (0, 1)}, sizes)
    loads = [sum(sizes[move.path] for move in plan if move.source == sender) for sender in range(2)]
    assert max(loads) - min(loads) <= 8 and sum(loads) == 808


def differ(place: Place) -> str:
    kept = trained(3, scale=1.0 + place.rank)
    in_place._State.kept = (kept,)
    with pytest.raises(NotHealed) as raised:
        peers.take_over(kept.content)
    return str(raised.value)


@pytest.mark.slow
def test_ranks_with_different_states_of_a_step_are_refused_on_all_of_them(tmp_path):
    one, two = run_ranks(2, differ, tmp_path)
    assert one == two and "different states of step 3" in one


def other_model(place: Place) -> Any:
    in_place._State.kept = (trained(3),)
    model = nn.Linear(3, 3)
    return peers.take_over(Content(model, torch.optim.SGD(model.parameters(), lr=0.1)))


@pytest.mark.slow
def test_the_state_of_another_model_is_left_to_the_checkpoint(tmp_path):
    assert run_ranks(2, other_model, tmp_path) == [None, None]


def sharded(seed: int, mesh: DeviceMesh | None) -> Content:
    """Return a model whose rows its ranks do not divide evenly; complete without a mesh."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 4), nn.Linear(4, 1))
    nn.init.constant_(model[1].bias.requires_grad_(False), 0.1)  # that of the base model
    if mesh:
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=0.1)
    return Content(model, optimizer, user_content={"counter": Counter()})


def step(found: Content, number: int) -> None:
    """Do a step on the same samples on every rank."""
    torch.manual_seed(number)
    found.model(torch.randn(4, 7)).pow(2).mean().backward()
    found.optimizer.step()
    found.optimizer.zero_grad()
    found.user_content["counter"].total += 1


def complete(found: Content) -> list[Any]:
    """Return parameters and the optimizer's tensors, each complete."""
    parts = [parameter for _, parameter in found.parameters()]
    parts += [each for parameter in list(parts) for each in found.optimizer.state[parameter].values()]
    return [(each.full_tensor() if rows.is_sharded(each) else each).tolist() for each in parts]


def course(place: Place, attempts: tuple[tuple[int, ...], ...], folder: Path, *, is_planned: bool) -> list[Any]:
    """Train two steps at each of these shapes of the mesh, and return what this rank did and had after each."""
    process_group.dist.barrier()  # a rank that left sooner would break the connections that another still makes
    process_group.dist.destroy_process_group()
    found, done = [], 0
    for number, shape in enumerate(attempts):
        size = math.prod(shape)
        if place.rank >= size:
            in_place._State.kept = ()  # a later attempt has a new rank in its place
            found.append(None)
            done += 2
            continue
        store = torch.distributed.FileStore(str(folder / f"store{number}"), size)
        torch.distributed.init_process_group("gloo", store=store, rank=place.rank, world_size=size)
        axes = ("replicate", "shard")[-len(shape) :]
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes) if size > 1 else None
        own = sharded(seed=number, mesh=mesh)
        try:
            taken = peers.take_over(own)
        except NotHealed as error:
            return [*found, str(error)]
        for _ in range(2):
            done += 1
            step(own, done)
        found.append((taken, complete(own), own.user_content["counter"].total.tolist()))
        upcoming = math.prod(attempts[number + 1]) if number + 1 < len(attempts) else size
        handed = peers.hand_over(own, leaves=place.rank >= upcoming) if is_planned else {}
        in_place._State.kept = (peers.kept(own, Progress(done, 12 * done, size, **SAME), None, handed),)
        in_place.leave_group()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "is_planned", "healed"),
    [
        (((2,), (3,), (2,), (4,), (1,), (3,)), True, True),
        (((1,), (2,), (5,), (3,)), True, True),
        (((2, 2), (2,), (2, 2), (3,)), True, True),
        (((2, 2), (2,)), False, True),
        (((4,), (2,)), False, False),
    ],
    ids=["by-rows", "from-one", "replicas", "a-replica-is-lost", "rows-are-lost"],
)
def test_rows_of_a_sharded_model_go_to_those_that_need_them(tmp_path, attempts, is_planned, healed):
    ranks = max(math.prod(shape) for shape in attempts)
    work = partial(course, attempts=attempts, folder=tmp_path, is_planned=is_planned)
    results = run_ranks(ranks, work, tmp_path)
    if not healed:
        assert [each[1:] for each in results[:2]] == [["rows of the state are lost with the ranks that had them"]] * 2
        return
    alone = sharded(seed=0, mesh=None)
    for number, shape in enumerate(attempts):
        for done in (2 * number + 1, 2 * number + 2):
            step(alone, done)
        for each in results[: math.prod(shape)]:
            taken, values, total = each[number]
            torch.testing.assert_close(values, complete(alone), rtol=1e-5, atol=1e-6)
            assert total == alone.user_content["counter"].total.tolist()
            assert (taken is None) == (number == 0)


def by_columns(place: Place) -> str:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    model = nn.Linear(8, 4)
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))
    own = Content(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert peers.kept(own, Progress(1), None, {}) is None
    with pytest.raises(NotHealed) as raised:
        peers.hand_over(own, leaves=place.rank == 1)
    return str(raised.value)


@pytest.mark.slow
def test_a_model_that_is_divided_by_columns_is_saved_before_a_node_leaves(tmp_path):
    one, two = run_ranks(2, by_columns, tmp_path)
    assert one == two and "lies on its mesh" in one


def copied(place: Place, shape: tuple[int, ...], lost: tuple[int, ...], folder: Path) -> Any:
    """Do three steps on nodes of one rank, copy after each, and go on with new ranks for those `lost`."""
    in_place._State.stays = True
    os.environ |= {names.ENV_COPY_EVERY: "1", "LOCAL_WORLD_SIZE": "1"}
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    own, made, pointers = sharded(0, mesh), neighbours.Neighbours(), set()
    for number in range(1, 4):
        step(own, number)
        made.copy(own, Progress(number, 12 * number, 4, **SAME), None)
        pointers |= {part.rows.data_ptr() for copy in made.copies for part in copy.parts["model/0.weight"]}
    live = peers.kept(own, made.copies[0].progress, None, {})  # of the same step
    in_place.leave_group()
    in_place._State.kept = () if place.rank in lost else (live, *made.copies)
    size = place.world_size
    rank = sorted(range(size), key=lambda each: (each in lost, each)).index(place.rank)
    store = torch.distributed.FileStore(str(folder / "store"), size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    new = sharded(9, init_device_mesh("cpu", (size,), mesh_dim_names=("shard",)))
    try:
        taken = peers.take_over(new)
    except NotHealed as error:
        return str(error)
    return taken.progress.step, complete(new), len(pointers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "lost", "is_healed"),
    [((4,), (1,), True), ((4,), (0, 2), True), ((4,), (1, 2), False), ((2, 2), (2, 3), True)],
    ids=["one", "two-apart", "two-neighbours", "replicas"],
)
def test_rows_of_a_lost_rank_come_from_its_neighbour_s_copy(tmp_path, shape, lost, is_healed):
    found = run_ranks(4, partial(copied, shape=shape, lost=lost, folder=tmp_path), tmp_path)
    if not is_healed:
        assert found == ["rows of the state are lost with the ranks that had them"] * 4
        return
    alone = sharded(0, None)
    for number in range(1, 4):
        step(alone, number)
    for done, values, num_buffers in found:
        assert done == 3
        torch.testing.assert_close(values, complete(alone), rtol=1e-5, atol=1e-6)
        # Two copies of the rank's rows, and of its neighbour's: the third copy took the memory of the first.
        assert num_buffers <= (2 if len(shape) == 2 else 4)


def connection(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


@pytest.mark.parametrize("has_joined", [True, False], ids=["joined", "joining"])
def test_a_cut_ends_connections_of_ranks_or_of_those_to_come_and_no_others(monkeypatch, has_joined):
    """A rank that joins waits in the store. Listeners stay."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: has_joined)
    listener, store, elsewhere = (socket.create_server(("127.0.0.1", 0)) for _ in range(3))
    link = in_place._Link.__new__(in_place._Link)
    monkeypatch.setenv("MASTER_PORT", str(store.getsockname()[1]))
    pairs = [connection(each) for each in (listener, store)]
    monkeypatch.setattr(in_place, "listening_ports", lambda: [listener.getsockname()[1]])
    pairs.append(connection(elsewhere))
    link._cut()
    for number, (client, server) in enumerate(pairs):
        client.settimeout(0.2)
        if number == 0 or (number == 1 and not has_joined):
            assert client.recv(1) == b""
        else:
            server.sendall(b"x")
            assert client.recv(1) == b"x"
    pairs[0] += connection(listener)  # it still listens
    for each in (listener, store, elsewhere, *(one for pair in pairs for one in pair)):
        each.close()


def test_a_rank_does_not_wait_for_the_store_of_a_rank_that_is_lost(monkeypatch):
    monkeypatch.setattr(in_place._State, "link", SimpleNamespace(notice=names.ABORT))
    with pytest.raises(torch.distributed.DistStoreError, match="before all had joined"):
        process_group._await_store("127.0.0.1", 9)


def test_looking_for_connections_leaves_no_descriptor(tmp_path):
    files = [open(os.devnull) for _ in range(3)]  # noqa: SIM115 open while it looks
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            assert listener.getsockname()[1] in in_place.listening_ports()
        assert len(os.listdir("/proc/self/fd")) == before
    for each in files:
        each.close()


def test_a_cutting_ends_with_its_attempt():
    link = in_place._Link.__new__(in_place._Link)
    link._is_out, link._cutter, link._cutting, link.has_left = threading.Event(), None, threading.Lock(), True
    cuts = []
    link._cut = lambda: cuts.append(1)
    link.begin_cutting()
    link.begin_cutting()
    link.end_cutting()
    assert cuts and link._cutter is None
    before = len(cuts)
    link.begin_cutting()  # that of the next attempt
    link.end_cutting()
    assert len(cuts) > before


@pytest.mark.parametrize(
    ("error", "is_of_peer"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:908"), True),
        (torch.distributed.DistNetworkError("refused"), True),
        (RuntimeError("size mismatch"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("connection"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_of_a_lost_peer_are_told_from_those_of_the_script(error, is_of_peer):
    assert in_place._is_of_peer(error) == is_of_peer
    wrapped = ValueError("while saving")
    wrapped.__cause__ = error
    assert in_place._is_of_peer(wrapped) == is_of_peer


def test_a_script_that_is_not_resized_in_place_runs_once(monkeypatch):
    monkeypatch.delenv("RECIPES_IN_PLACE", raising=False)
    calls = []
    in_place.run(lambda: calls.append("train"), lambda: calls.append("prepare"))
    assert calls == ["train"]


class Link:
    """Counts what is asked of the agent; every stop comes at once."""

    def __init__(self):
        self.starts, self.cuts, self.has_left = 0, 0, True

    def await_start(self):
        self.starts += 1

    def begin_cutting(self):
        self.cuts += 1

    def await_stop(self, failure):
        pass

    def end_cutting(self):
        pass


def collected_late(place: Place, folder: Path) -> bool:
    """Leave a group in whose collective the other rank never is, and drop the model afterwards."""
    model = DDP(nn.Linear(2, 2))
    if place.rank == 1:
        deadline = time.monotonic() + 60
        while not (folder / "dropped").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return True
    pending = process_group.dist.all_reduce(torch.ones(1), async_op=True)
    in_place.leave_group()
    del model
    gc.collect()
    store = torch.distributed.FileStore(str(folder / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    in_place.leave_group()  # the first one is dropped
    has_waited = pending.is_completed()
    (folder / "dropped").touch()
    return not has_waited


@pytest.mark.slow
def test_a_model_that_is_dropped_late_does_not_wait_for_a_collective(tmp_path):
    """It would, with Python's lock: the process would stand still until the collective's timeout."""
    assert run_ranks(2, partial(collected_late, folder=tmp_path), tmp_path) == [True, True]


def job(**fields):
    usual = {"finished": False, "is_left": False, "is_restored": True, "left": lambda: ()}
    return SimpleNamespace(**usual | fields, plain_model=nn.Linear(1, 1))


def stay(monkeypatch, link):
    """Let this process stay, without an agent, and without a mark of it afterwards."""
    monkeypatch.setattr(in_place, "_Link", link)
    monkeypatch.setattr(in_place, "is_on", lambda: True)
    fields = {"link": None, "stays": False, "job": None, "trained": weakref.WeakSet()}
    monkeypatch.setattr(in_place, "_State", type("_State", (), fields))
    monkeypatch.setattr(startup_timing, "begin", lambda: None)


LOST = RuntimeError("Connection closed by peer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "starts", "cuts"),
    [
        ([job(), job(finished=True)], 2, 0),
        ([LOST, job(), LOST, job(finished=True)], 4, 2),
        ([job(), job(is_left=True)], 2, 0),
        ([None], 1, 0),
    ],
    ids=["resized", "peers-lost", "left-by-the-script", "no-job"],
)
def test_a_script_is_called_until_it_ends_by_itself(monkeypatch, attempts, starts, cuts):
    link = Link()
    stay(monkeypatch, lambda: link)
    left = list(attempts)

    def train():
        now = left.pop(0)
        if isinstance(now, Exception):
            in_place.register(job())
            raise now
        if now is not None:
            in_place.register(now)

    in_place.run(train)
    assert (link.starts, link.cuts, left) == (starts, cuts, [])


def test_an_error_of_the_script_is_raised(monkeypatch):
    stay(monkeypatch, Link)
    with pytest.raises(ValueError, match="mine"):
        in_place.run(lambda: int("mine"))


@pytest.mark.parametrize("is_trained", [True, False])
def test_a_model_that_was_trained_never_begins_at_step_0(is_trained):
    """Without a checkpoint and without a rank that kept the state, its weights would be those of a later step."""
    model = nn.Linear(1, 1)
    child = os.fork()
    if not child:
        if is_trained:
            in_place._State.trained.add(model)
        in_place.begin_anew_if_trained(model)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (-signal.SIGKILL if is_trained else 0)


def test_output_goes_to_the_folder_of_the_attempt(tmp_path: Path):
    first = tmp_path / "attempt_0" / "1" / "stdout.log"
    first.parent.mkdir(parents=True)
    child = os.fork()
    if not child:
        for number in (1, 2):
            os.dup2(os.open(first, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # not those of the tests
        in_place._begin_logs(4)
        os.write(1, b"later\n")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "attempt_4" / "1" / "stdout.log").read_text() == "later\n" and first.read_text() == ""


def test_the_rank_of_a_process_without_a_group_is_the_first():
    assert process_group.rank() == 0
