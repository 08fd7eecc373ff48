"""Evaluation, an epoch's end, the final export and metrics of a script's own; stopped, killed and begun anew."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runtime_ranks import fork_ranks, metrics, run_ranks
from torch import nn

from launcher.common import names
from launcher.runtime.elastic import Hooks, Job, StepSampler
from launcher.runtime.loss_weighting import OutsideOfSteps
from launcher.runtime.process_group import Place
from launcher.runtime.reporting import Reporter
from launcher.runtime.tiers.tier_settings import Cadence, TierSettings
from launcher.runtime.trainer import distribute
from launcher.runtime.user_metrics import MetricInvalid

NUM_SAMPLES, SAMPLES_PER_STEP, EPOCHS = 20, 6, 3  # 10 steps; epochs end in steps 4, 7 and 10
NUM_STEPS = 10


class Script:
    """A script with hooks that note their calls in one file, whatever process they are in.

    Args:
        place: None for a process of its own.
        killed_in: `evaluate`, `epoch_end` or `export`: the last rank is killed there.
        stop_at: Step in which the last rank is told to stop.
        watches: Whether the evaluation asks if it is to stop, and is told so in step `stop_at`.
    """

    def __init__(
        self,
        folder: Path,
        place: Place | None = None,
        *,
        epochs: int = EPOCHS,
        every: int = 3,
        killed_in: str = "",
        stop_at: int = 0,
        watches: bool = False,
        **arguments: Any,
    ):
        self.folder, self.place, self.killed_in, self.stop_at = folder, place, killed_in, stop_at
        self.watches, self.told = watches, False
        torch.manual_seed(1)
        model = nn.Linear(1, 1)
        self.model = distribute(model, "ddp") if place else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        sampler = StepSampler(NUM_SAMPLES, SAMPLES_PER_STEP, epochs, seed=5)
        self.hooks = Hooks(evaluate=self.evaluate, evaluate_every=every, epoch_end=self.epoch_end, export=self.export)
        arguments = {"folder": folder / "checkpoints", "save_every": 3, "hooks": self.hooks} | arguments
        if not place or place.rank == 0:
            arguments.setdefault("reporter", Reporter(folder))
        self.job = Job(self.model, self.optimizer, sampler=sampler, event_pending=self.event_pending, **arguments)

    @property
    def is_last_rank(self) -> bool:
        return not self.place or self.place.rank == self.place.world_size - 1

    def event_pending(self) -> bool:
        if self.watches:
            return self.told
        return bool(self.stop_at) and self.is_last_rank and self.job.step + 1 >= self.stop_at

    def _called(self, name: str, number: int) -> None:
        if self.killed_in == name and self.is_last_rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.place or self.place.rank == 0:
            with (self.folder / "calls").open("a") as file:
                file.write(f"{name} {number}\n")

    def evaluate(self) -> dict[str, float]:
        torch.rand(1)
        if self.watches and self.job.step == self.stop_at:
            self.told = self.is_last_rank
            assert self.job.stopping()
            return {"eval/loss": -1.0}
        assert self.stop_at or not self.job.stopping()
        self._called("evaluate", self.job.step)
        return {"eval/loss": float(self.job.step)}

    def epoch_end(self, epoch: int) -> str:
        self._called("epoch_end", epoch)
        self.job.report({"epoch": epoch})
        return "this is not a metric"

    def export(self) -> None:
        assert self.job.finished and not self.job.stopping()
        with pytest.raises(OutsideOfSteps):
            assert self.job.batch
        self._called("export", self.job.step)

    def run(self) -> int:
        for indices in self.job.steps(self.job.sampler):
            noise = torch.rand(1) if not self.place else torch.zeros(1)
            inputs = torch.tensor(indices, dtype=torch.float32)[:, None]
            self.job.weigh((self.model(inputs) - noise).square().mean() / 100).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.job.step


def run(folder: Path, **arguments: Any) -> int:
    return Script(folder, **arguments).run()


def run_on(world_size: int, folder: Path, **arguments: Any) -> None:
    run_ranks(world_size, lambda place: Script(folder, place, **arguments).run(), folder)


def run_and_die(world_size: int, folder: Path, **arguments: Any) -> None:
    """The ranks of the killed one end by the error that this is to them."""
    children = fork_ranks(world_size, lambda place: Script(folder, place, **arguments).run(), folder)
    codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
    assert -signal.SIGKILL in codes and 0 not in codes


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def marks(folder: Path) -> dict[str, str]:
    paths = [folder / "checkpoints" / name for name in ("hooked", "exported")]
    return {path.name: path.read_text() for path in paths if path.exists()}


def newest_step(folder: Path) -> int:
    return int((folder / "checkpoints/latest").read_text().split()[0].removeprefix("step-"))


def steps_of(folder: Path) -> list[int]:
    return [line["step"] for line in metrics(folder) if "cursor" in line]


def further_of(folder: Path) -> list[tuple[int, dict[str, float]]]:
    return [(line["step"], line["further"]) for line in metrics(folder) if "cursor" not in line]


ALL_CALLS = [
    *("evaluate 3", "epoch_end 1", "evaluate 4", "evaluate 6", "epoch_end 2", "evaluate 7", "evaluate 9"),
    *("epoch_end 3", "evaluate 10", "export 10"),
]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 3])
def test_hooks_are_called_in_order_and_reported(tmp_path, world_size):
    run_on(world_size, tmp_path)
    assert calls(tmp_path) == ALL_CALLS
    assert further_of(tmp_path) == [
        (3, {"eval/loss": 3.0}),
        (4, {"epoch": 1.0, "eval/loss": 4.0}),
        (6, {"eval/loss": 6.0}),
        (7, {"epoch": 2.0, "eval/loss": 7.0}),
        (9, {"eval/loss": 9.0}),
        (10, {"epoch": 3.0, "eval/loss": 10.0}),
    ]
    assert steps_of(tmp_path) == list(range(1, NUM_STEPS + 1))
    assert marks(tmp_path) == {"hooked": "10\n", "exported": "10\n"}
    run_on(world_size, tmp_path)
    assert calls(tmp_path) == ALL_CALLS


@pytest.mark.parametrize(
    ("hooks", "steps"),
    [
        ({"evaluate_every": 4}, [4, 7, 8, 10]),
        ({"evaluate_every": 4, "evaluate_epochs": False}, [4, 8]),
        ({}, [4, 7, 10]),
        ({"evaluate_epochs": False}, []),
    ],
    ids=["both", "steps", "epochs", "never"],
)
def test_evaluation_is_due_every_so_many_steps_or_at_epochs_ends(tmp_path, hooks, steps):
    done = []
    script = Script(tmp_path, hooks=Hooks(evaluate=lambda: done.append(script.job.step), **hooks))
    script.run()
    assert done == steps and further_of(tmp_path) == []


def test_a_step_of_several_epochs_ends_each(tmp_path):
    done = []
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    job = Job(model, optimizer, sampler=StepSampler(4, 10, 5), folder=tmp_path, hooks=Hooks(epoch_end=done.append))
    seen = []
    for indices in job.steps(job.sampler):
        seen.append(list(done))
        job.weigh(model(torch.ones(len(indices), 1)).mean()).backward()
        optimizer.step()
    assert seen == [[], [1, 2]] and done == [1, 2, 3, 4, 5]


def test_a_negative_interval_is_refused():
    with pytest.raises(ValueError, match="evaluate_every=-1"):
        Hooks(evaluate_every=-1)


def test_hooks_change_neither_the_numbers_nor_the_throughput_of_training(tmp_path, monkeypatch):
    """By a clock that the evaluation moves by an hour, and a step by a second."""
    clock = SimpleNamespace(now=0.0)
    times = SimpleNamespace(perf_counter=lambda: clock.now, time=time.time)
    monkeypatch.setattr("launcher.runtime.job.time", times)

    def trained(folder: Path, hooks: Hooks | None) -> list[tuple[float, float]]:
        script = Script(folder, hooks=hooks)
        script.optimizer.register_step_post_hook(lambda *_: setattr(clock, "now", clock.now + 1.0))
        script.run()
        return [(line["loss"], line["samples_per_s"]) for line in metrics(folder) if "cursor" in line]

    def evaluate() -> dict[str, float]:
        clock.now += 3600.0
        return {"drawn": torch.rand(3).sum(), "numpy": np.random.rand()}

    plain = trained(tmp_path / "plain", None)
    assert trained(tmp_path / "hooked", Hooks(evaluate=evaluate, evaluate_every=2)) == plain
    assert {rate for _, rate in plain} == {6.0}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("killed_in", "before", "after"),
    [("evaluate", 0, 3), ("epoch_end", 1, 3), ("export", 9, 10)],
    ids=["evaluation", "epoch_end", "export"],
)
def test_what_a_kill_ended_is_repeated_until_it_succeeds(tmp_path, world_size, killed_in, before, after):
    """Killed twice. The checkpoint of the step is there before its hooks are called."""
    for _ in range(2):
        run_and_die(world_size, tmp_path, killed_in=killed_in)
        assert "exported" not in marks(tmp_path)
        assert newest_step(tmp_path) == after
    run_on(world_size, tmp_path)
    done = calls(tmp_path)
    assert list(dict.fromkeys(done)) == ALL_CALLS
    # The first of two ranks has done its part each time.
    assert done.count("export 10") == (3 if (killed_in, world_size) == ("export", 2) else 1)
    assert marks(tmp_path)["exported"] == "10\n"
    assert len(steps_of(tmp_path)) == NUM_STEPS + (2 if killed_in == "epoch_end" else 0)  # step 4, done three times


@pytest.mark.slow
def test_hooks_that_a_stop_left_out_are_called_after_the_restart(tmp_path):
    """Stopped in steps 3, 4 and 7, where evaluations are due, and resumed at other sizes."""
    for world_size, stop_at in ((2, 3), (1, 4), (3, 7)):
        run_on(world_size, tmp_path, stop_at=stop_at)
        assert newest_step(tmp_path) == stop_at
        assert f"evaluate {stop_at}" not in calls(tmp_path)
    run_on(2, tmp_path)
    assert calls(tmp_path) == ALL_CALLS
    assert steps_of(tmp_path) == list(range(1, NUM_STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_an_evaluation_may_be_left_for_a_stop_and_is_repeated(tmp_path, world_size):
    """What it returned is not reported, and training stops before its next step, with a checkpoint."""
    run_on(world_size, tmp_path, watches=True, stop_at=4)
    assert newest_step(tmp_path) == 4
    assert steps_of(tmp_path) == [1, 2, 3, 4] and further_of(tmp_path) == [(3, {"eval/loss": 3.0})]
    run_on(world_size, tmp_path)
    again = ["evaluate 3", "epoch_end 1", *ALL_CALLS[1:]]
    assert calls(tmp_path) == again and further_of(tmp_path)[1] == (4, {"epoch": 1.0, "eval/loss": 4.0})


@pytest.mark.slow
def test_a_stop_in_the_last_step_does_not_leave_the_export_out(tmp_path):
    """All processes end well then: there may be no restart."""
    run_on(2, tmp_path, stop_at=NUM_STEPS)
    assert calls(tmp_path) == ALL_CALLS and "exported" in marks(tmp_path)


@pytest.mark.slow
def test_more_epochs_and_a_training_from_the_start_are_exported_again(tmp_path):
    run(tmp_path, epochs=1)
    assert calls(tmp_path)[-1] == "export 4"
    run(tmp_path, epochs=3)  # the first epoch's last step was short, so that there is one more
    assert calls(tmp_path)[-3:] == ["epoch_end 3", "evaluate 11", "export 11"]
    assert [line for line in calls(tmp_path) if "epoch_end" in line] == [f"epoch_end {epoch}" for epoch in (1, 2, 3)]
    Script(tmp_path).job.checkpoints.clear()
    run(tmp_path)
    assert calls(tmp_path)[-len(ALL_CALLS) :] == ALL_CALLS


def test_a_script_that_leaves_its_loop_has_its_hooks_called_when_it_comes_back(tmp_path):
    script = Script(tmp_path)
    for _ in script.job.steps(script.job.sampler):
        script.model(torch.ones(1)).sum().backward()
        script.optimizer.step()
        if script.job.step + 1 == 3:
            break
    assert calls(tmp_path) == []
    script.run()
    assert calls(tmp_path) == ALL_CALLS


def test_with_tiers_the_marks_are_in_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(names.ENV_RUN_DIR, str(tmp_path))
    tiers = TierSettings(
        namespace="ns", memory=None, persistent=Cadence(frequency=3, retention=2), path=str(tmp_path / "store")
    )
    for _ in range(2):
        run(tmp_path, tiers=tiers)
    assert calls(tmp_path) == ALL_CALLS
    assert (tmp_path / "ns-hooks/exported").read_text() == "10\n"


def reported(place: Place, folder: Path, strategy: str) -> None:
    model = nn.Sequential(nn.Linear(1, 3))
    model.blocks = [model[0]]
    model = distribute(model, strategy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    reporter = Reporter(folder) if place.rank == 0 else None
    seen = []
    job = Job(
        model,
        optimizer,
        sampler=StepSampler(12, 6, micro_batch_size=2),
        folder=folder / "checkpoints",
        reporter=reporter,
        on_step=lambda metrics: seen.append(metrics.further),
    )
    for _ in job.steps(job.sampler):
        job.weigh(model(torch.ones(2, 1)).square().mean()).backward()
        job.report(rank=place.rank, passes=torch.tensor([1.0]))
        if job.completes_step:
            job.report(grad_norm=nn.utils.clip_grad_norm_(model.parameters(), 1e6), passes=np.float32(2))
            job.report({"lr/of group 0": 1, "flag": np.int64(3)})
            optimizer.step()
    assert len(seen) == (2 if place.rank == 0 else 0)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_metrics_of_a_script_s_own_are_in_the_step_s_line(tmp_path, strategy):
    """The gradient's norm of fully_shard is in parts on the ranks."""
    run_ranks(2, partial(reported, folder=tmp_path, strategy=strategy), tmp_path)
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        norm = line["further"].pop("grad_norm")
        assert norm > 0
        assert line["further"] == {"rank": 0.0, "passes": 2.0, "lr/of group 0": 1.0, "flag": 3.0}


BAD_METRICS: dict[str, dict[Any, Any]] = {
    "empty": {"": 1},
    "no_text": {1: 1},
    "characters": {"loss%": 1},
    "newline": {"a\n": 1},
    "path": {"a/../b": 1},
    "absolute": {"/a": 1},
    "slash_at_end": {"a/": 1},
    "long": {"a" * 201: 1},
    "own_name": {"loss": 1},
    "checkpoints": {"checkpoint/memory/save_bytes": 1},
    "launch": {"launch-2/a": 1},
    "text": {"a": "1"},
    "none": {"a": None},
    "flag": {"a": True},
    "vector": {"a": torch.ones(2)},
    "complex": {"a": torch.ones((), dtype=torch.complex64)},
    "many": {f"a{number}": 1 for number in range(101)},
}


@pytest.mark.parametrize("bad", BAD_METRICS.values(), ids=BAD_METRICS)
def test_a_metric_that_cannot_be_reported_is_refused_at_once(tmp_path, bad):
    job = Script(tmp_path).job
    with pytest.raises(MetricInvalid):
        job.report({"good": 1, **bad})
    assert job._further.take() == {}


def test_metrics_that_are_not_finite_are_reported(tmp_path):
    script = Script(tmp_path, hooks=Hooks(evaluate=lambda: {"eval/loss": float("nan"), "a": float("inf")}))
    script.run()
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[4])
    assert line["step"] == 4 and line["further"]["a"] == float("inf")


@pytest.mark.slow
def test_the_names_of_metrics_are_those_that_the_tracking_server_takes():
    validation = pytest.importorskip("mlflow.utils.validation")
    for name in ("a", "eval/loss", "lr/of group 0", "x-1.2_z", "a" * 200):
        validation._validate_metric_name(f"launch-99999/{name}")
