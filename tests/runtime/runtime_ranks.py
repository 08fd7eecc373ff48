"""Real ranks for the runtime's tests: forked processes that share a gloo group on this machine."""

import gc
import json
import logging
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported before the ranks are forked, so that not each of them pays for it
import torch.distributed.checkpoint.state_dict

from launcher.runtime import process_group
from launcher.runtime.process_group import Place
from launcher.runtime.trainer import Trainer
from launcher.runtime.training_config import settings_of

RANDOM_KILLS = int(os.environ.get("RECIPES_RANDOM_KILLS", "25"))
"""How often a test kills ranks during a save."""

TEXT = Path(__file__).parents[2] / "launcher" / "runtime" / "data" / "tiny_corpus.txt"


def fork_ranks(world_size: int, work: Callable[[Place], Any], folder: Path) -> list[int]:
    """Start `work(place)` in `world_size` processes of one group and return their ids."""
    with socket.socket() as holder:  # the ranks inherit it: no other process is given their port meanwhile
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        return [_fork(rank, world_size, port, work, folder) for rank in range(world_size)]


def run_ranks(world_size: int, work: Callable[[Place], Any], folder: Path) -> list[Any]:
    """Run `work(place)` in `world_size` processes of one group and return what each returned."""
    codes = wait_for_ranks(fork_ranks(world_size, work, folder))
    assert codes == [0] * world_size
    return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(world_size)]


def wait_for_ranks(ranks: list[int], others_s: float = 0.0) -> list[int]:
    """Return the exit codes of processes; `others_s` after one has failed, the others, which may wait for it, are
    killed."""
    codes: dict[int, int] = {}
    running = {os.pidfd_open(rank): rank for rank in ranks}
    try:
        while running:
            for ended in select.select(list(running), [], [])[0]:
                rank = running.pop(ended)
                os.close(ended)
                codes[rank] = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
            if any(codes.values()):
                time.sleep(others_s)
                _kill(running)
    finally:  # such as a test's timeout
        _kill(running)
        for descriptor, rank in running.items():
            os.close(descriptor)
            os.waitpid(rank, 0)
    return [codes[rank] for rank in ranks]


def _kill(running: dict[int, int]) -> None:
    for descriptor in running:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def _fork(rank: int, world_size: int, port: int, work: Callable[[Place], Any], folder: Path) -> int:
    if child := os.fork():
        return child
    code = 1
    try:
        gc.freeze()  # a collection would copy every page of the parent
        leave_locks_behind()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.set_num_threads(1)
        place = Place(rank, world_size, rank, world_size, torch.device("cpu"))
        process_group.join(place)
        (folder / f"result{rank}").write_bytes(pickle.dumps(work(place)))
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        try:
            process_group.leave(code)
        finally:
            os._exit(1)  # a rank never returns into the tests of its parent


def leave_locks_behind() -> None:
    """Give a forked rank streams of its own: a thread of the parent, such as a server's, may hold a buffer's lock."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        getattr(logger, "handlers", []).clear()
    sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w", buffering=1) for stream in (1, 2))


def tiny_config(world_size: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a resolved recipe of 60 samples, 2 epochs of 12 a step; uneven where 12 does not divide."""
    args = {
        "train_batch_size": 12,
        "micro_train_batch_size": 3 if 12 % (3 * world_size) == 0 else 1,
        "learning_rate": 0.003,
        "lr_scheduler": "cosine",
        "lr_warmup_ratio": 0.1,
        "max_epochs": 2,
        "max_len": 8,
        "seed": 42,
        "strategy": "ddp",
        "weight_decay": 0.0,
        "adam_betas": [0.9, 0.95],
        "max_norm": 1.0,
        "logging_steps": 1,
        "log_samples": False,
        "min_step_seconds": 0,
        "save_steps": 0,
        "max_ckpt_num": 3,
        "load_checkpoint": True,
        "override_training_dir": True,
        "training_dir": "",
    }
    return {
        "run": {"model_type": "tiny_lm"},
        "training_config": {
            "mlflow": {"enabled": False},
            "model_config": {
                "vocab_size": 256,
                "hidden_size": 16,
                "num_layers": 1,
                "num_heads": 2,
                "dropout": 0.0,
            },
            "datasets": {"train_data": {"file_path": str(TEXT), "limit": 60}},
            "training_args": args | changes,
        },
    }


def uneven(num_small: int, small: int, large: int) -> dict[str, Any]:
    return {
        "use_uneven_batch": True,
        "num_dp_groups_with_small_batch_size": num_small,
        "small_local_batch_size": small,
        "large_local_batch_size": large,
    }


class RecordingTrainer(Trainer):
    """Writes down the dataset indices that this rank trains on."""

    taken: list[int]

    def _token_losses(self, rows: torch.Tensor) -> torch.Tensor:
        self.taken += self.job.sampler.stream.indices(self.job.batch.positions).tolist()
        return super()._token_losses(rows)


def train(config: dict[str, Any], world_size: int, run_dir: Path, stop_after_step: int = 0) -> list[int]:
    """Train on `world_size` ranks, to the end or to `stop_after_step`; return the indices they took."""

    def work(place: Place) -> list[int]:
        # Only the last rank is told: the others learn it from the step's agreement.
        trainer = RecordingTrainer(
            settings_of(config, place.world_size),
            place,
            run_dir,
            lambda: trainer.job.step + 1 == stop_after_step and place.rank == world_size - 1,
        )
        trainer.taken = []
        trainer.run()
        return trainer.taken

    run_dir.mkdir(parents=True, exist_ok=True)
    return [index for taken in run_ranks(world_size, work, run_dir) for index in taken]


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def starts(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "starts.jsonl").read_text().splitlines()]
