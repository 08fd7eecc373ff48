"""A restart that nothing can undercut here: plain torch.distributed, all of it imported, without agents and operator.

    python plain_restart.py FROM TO    prints the seconds without a step, and those from the signal to the first step

FROM processes are forked and train. A signal makes them save and end, then TO processes load that and train on.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch._dynamo  # the optimizers import it
import torch.distributed as dist

from launcher.runtime.model import build_model, next_token_loss

MODEL = {"vocab_size": 256, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
STEP_S, BATCH, LENGTH = 0.2, 32, 64
STEPS = 8


def train(rank: int, size: int, port: int, folder: Path) -> None:
    """Train until the signal, or to the end; rank 0 prints when it began and ended each step."""
    stops = []
    signal.signal(signal.SIGUSR1, lambda *_: stops.append(True))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    plain = build_model("tiny_lm", MODEL, max_len=LENGTH, seed=0)
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters())
    file = folder / "state.pt"
    if file.exists():
        state = torch.load(file)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    rows = torch.randint(256, (BATCH // size, LENGTH + 1))
    for _ in range(STEPS):
        began = time.time()
        flag = torch.tensor(float(bool(stops)))
        work = dist.all_reduce(flag, async_op=True)
        next_token_loss(model, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        work.wait()
        time.sleep(max(0.0, began + STEP_S - time.time()))
        if rank == 0:
            with (folder / "steps").open("a") as log:
                log.write(f"{size} {began} {time.time()}\n")
        if flag.item():
            break
    if rank == 0:
        with (folder / "partial").open("wb") as out:
            torch.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict()}, out)
            os.fsync(out.fileno())
        (folder / "partial").replace(file)
    dist.barrier()
    dist.destroy_process_group()


def start(size: int, folder: Path) -> list[int]:
    """Fork the ranks; return their pids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(size):
        if pid := os.fork():
            pids.append(pid)
            continue
        try:
            train(rank, size, port, folder)
        finally:
            os._exit(0)
    return pids


def steps(folder: Path, size: int) -> list[list[float]]:
    """Return begin and end of each step at a size."""
    file = folder / "steps"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [[float(began), float(ended)] for ranks, began, ended in lines if ranks == str(size)]


def main() -> None:
    """Measure one restart."""
    before, after = map(int, sys.argv[1:])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pids = start(before, folder)
        while len(steps(folder, before)) < 3:
            time.sleep(0.01)
        ordered = time.time()
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        for pid in pids:
            os.waitpid(pid, 0)
        pids = start(after, folder)
        for pid in pids:
            os.waitpid(pid, 0)
        last, first = steps(folder, before)[-1], steps(folder, after)[0]
        print(json.dumps({"pause_s": first[0] - last[1], "order_to_step_s": first[1] - ordered}))


if __name__ == "__main__":
    main()
