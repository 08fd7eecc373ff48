"""What the runtime library costs: its check for scale events, and its checkpoints."""

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from launcher.runtime import process_group
from launcher.runtime.checkpoint import Checkpoints, Progress
from launcher.runtime.content import Content
from launcher.runtime.durable import sync
from launcher.runtime.model import build_model, next_token_loss
from launcher.runtime.process_group import Place
from launcher.runtime.stop_consensus import StopConsensus

TINY = {"vocab_size": 256, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
MAX_LEN, SHARES = 64, (5, 5, 5, 5, 6, 6)
WARMUP_ROUNDS, ROUNDS, STEPS_OF_BLOCK = 1, 30, 10
STATE_BYTES = 200_000_000
KINDS = ("nothing", "signal", "signal at every step, not overlapped", "loss", "loss and signal")
Times = dict[str, list[tuple[float, float]]]


def run_ranks(world_size: int, work: Callable[[], Times], folder: Path) -> Times:
    """Run `work` in forked ranks of one gloo group and return what rank 0 returned."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def ranked(rank: int) -> None:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.set_num_threads(1)
        process_group.join(Place(rank, world_size, rank, world_size, torch.device("cpu")))
        result = work()
        if rank == 0:
            torch.save(result, folder / "result")
        process_group.leave()

    torch.multiprocessing.start_processes(ranked, nprocs=world_size, start_method="fork")
    return torch.load(folder / "result")


class Loss:
    """The reduction of the loss as a script without the library has it."""

    def begin(self, loss: torch.Tensor) -> None:
        self._sum = torch.stack([loss.detach()])
        self._work = dist.all_reduce(self._sum, async_op=True)

    def read(self) -> None:
        self._work.wait()
        self._sum.tolist()


class Exchange:
    """What a step exchanges beside its gradients: `kind` is one of KINDS."""

    def __init__(self, kind: str):
        self._consensus, self._loss, self.kind, self.calls_s = StopConsensus(), Loss(), kind, 0.0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.thread_time()
        yield
        self.calls_s += time.thread_time() - began

    def before_forward(self) -> None:
        with self._timed():
            if self.kind == "signal" and self._consensus.due:
                self._consensus.begin(None, event=False)

    def before_backward(self, loss: torch.Tensor) -> None:
        with self._timed():
            if self.kind == "loss":
                self._loss.begin(loss)
            if self.kind == "loss and signal":
                self._consensus.begin(loss, event=False)

    def at_the_end(self) -> None:
        with self._timed():
            if self.kind == "signal at every step, not overlapped":
                self._consensus.begin(None, event=False)
            if self.kind == "loss":
                self._loss.read()
            elif self.kind != "nothing":
                self._consensus.end_step()


def block_times() -> Times:
    """Return the seconds of each block of steps by what its steps exchange: wall, processor in its calls."""
    model = DistributedDataParallel(build_model("tiny_lm", TINY, max_len=MAX_LEN, seed=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = torch.randint(TINY["vocab_size"], (SHARES[dist.get_rank()], MAX_LEN + 1))

    def step(exchange: Exchange) -> None:
        exchange.before_forward()
        loss = next_token_loss(model, rows)
        exchange.before_backward(loss)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        exchange.at_the_end()

    exchanges = [Exchange(kind) for kind in KINDS]
    taken: Times = {kind: [] for kind in KINDS}
    for number in range(WARMUP_ROUNDS + ROUNDS):
        turn = number % len(KINDS)
        for exchange in exchanges[turn:] + exchanges[:turn]:
            step(exchange)  # the first after another kind's
            exchange.calls_s = 0.0
            began = time.perf_counter()
            for _ in range(STEPS_OF_BLOCK):
                step(exchange)
            taken[exchange.kind].append((time.perf_counter() - began, exchange.calls_s))
    return {kind: times[WARMUP_ROUNDS:] for kind, times in taken.items()}


def test_the_check_for_scale_events(tmp_path, report):
    """Target: less than 1 % of a step of the tiny recipe at 6 ranks. Blocks of steps take turns."""
    found = run_ranks(len(SHARES), block_times, tmp_path)
    per_step = {
        kind: [statistics.median(column) / STEPS_OF_BLOCK for column in zip(*times, strict=True)]
        for kind, times in found.items()
    }
    for kind, (wall_s, calls_s) in per_step.items():
        report(f"step that exchanges {kind}: {wall_s * 1e3:.2f} ms; its calls {calls_s * 1e6:.0f} us of a processor")
    for what, with_check, without in (
        ("our trainer, with its loss", "loss and signal", "loss"),
        ("a script that reports no loss", "signal", "nothing"),
    ):
        pairs = zip(found[with_check], found[without], strict=True)
        wall = statistics.median(ours[0] / bare[0] - 1 for ours, bare in pairs)
        calls = (per_step[with_check][1] - per_step[without][1]) / per_step[without][0]
        report(f"event check, {what}: step {100 * wall:+.2f} %; its calls are {100 * calls:.2f} % of the step")


def plain_write_s(path: Path, content: torch.Tensor) -> float:
    """Return the seconds that writing and syncing `content` takes."""
    began = time.perf_counter()
    with path.open("wb") as file:
        file.write(memoryview(content.numpy()))
    sync(path)
    return time.perf_counter() - began


def test_saving_a_checkpoint(tmp_path, report):
    """No target: against a plain write and sync of the same bytes."""
    side = int((STATE_BYTES / 3 / 4 / 8) ** 0.5)  # Adam's two moments, 4 bytes a number, 8 layers
    model = nn.Sequential(*(nn.Linear(side, side, bias=False) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, side)).sum().backward()
    optimizer.step()
    content = torch.zeros(8 * side * side * 3)
    checkpoints = Checkpoints(tmp_path / "kept", keep=1)
    ours, floor = [], []
    for step in range(1, 6):
        floor.append(plain_write_s(tmp_path / "plain", content))
        began = time.perf_counter()
        checkpoints.save(Content(model, optimizer), Progress(step, step, 1))
        ours.append(time.perf_counter() - began)
    gigabytes = content.nbytes / 1e9
    speeds = [gigabytes / statistics.median(seconds) for seconds in (ours, floor)]
    report(
        f"checkpoint of {gigabytes:.2f} GB: {speeds[0]:.2f} GB/s, plain write and fsync {speeds[1]:.2f} GB/s, "
        f"ratio {speeds[0] / speeds[1]:.2f}"
    )
