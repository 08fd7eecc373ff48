"""Steps whose loss or gradients are not finite, of the tiny trainer on real ranks."""

import json
import math
import signal
import subprocess
import sys
from collections import Counter

import pytest
import torch
from runtime_ranks import RecordingTrainer, run_ranks, tiny_config
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from launcher.common.names import EXIT_NOT_FINITE
from launcher.operator.types import FailedWorker
from launcher.runtime.finite_steps import FiniteSteps, NotFinite, has_finite_weights
from launcher.runtime.training_config import settings_of
from launcher.timeline import read as read_timeline
from launcher.timeline.report import _totals

NAN, INF = math.nan, math.inf


def metrics(folder):
    """Return the metrics of each step; what JSON does not have is refused."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) for line in lines]


def train(folder, ranks=1, bad_steps=(), stop=0, **changes):
    """Train; return the samples taken by all ranks, and rank 0's weights, or the error that all ranks end with.

    Args:
        bad_steps: Steps in which the last rank's loss is not a number.
        stop: Step in which the last rank is asked to stop.
    """

    class Faulty(RecordingTrainer):
        def _token_losses(self, rows):
            losses = super()._token_losses(rows)
            is_bad = self.place.rank == ranks - 1 and self.job.step + 1 in bad_steps
            return losses * NAN if is_bad else losses

    def work(place):
        settings = settings_of(tiny_config(ranks, **changes), ranks)
        trainer = Faulty(settings, place, folder, lambda: trainer.job.step + 1 == stop)
        trainer.taken = []
        try:
            trainer.run()
        except NotFinite as error:
            return trainer.taken, str(error)
        return trainer.taken, [] if ranks > 1 else [each.tolist() for each in trainer.model.parameters()]

    results = run_ranks(ranks, work, folder)
    return [index for taken, _ in results for index in taken], results[0][1]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "strategy"), [(1, "ddp"), (2, "ddp"), (3, "fsdp2")])
def test_a_bad_step_of_one_rank_is_skipped_by_all_and_its_samples_count(tmp_path, capfd, ranks, strategy):
    taken, _ = train(tmp_path, ranks, bad_steps=(3, 7), strategy=strategy)
    assert Counter(taken) == dict.fromkeys(range(60), 2)
    found = metrics(tmp_path)
    assert [line["loss"] is None for line in found] == [line["step"] in (3, 7) for line in found]
    assert [line.get("further") for line in found if line["loss"] is None] == [
        {"skipped_steps": n} for n in (1.0, 2.0)
    ]
    assert [line["cursor"] for line in found] == list(range(12, 121, 12))
    out = capfd.readouterr().out
    assert out.count("step 3: skipped, loss nan, norm of the gradients nan (1 in a row, at most 3)\n") == 1
    assert "finished at step 10" in out
    whole = tmp_path / "whole"
    train(whole, 1, bad_steps=(3, 7))
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in metrics(whole)], abs=1e-5)
    assert "2 steps skipped, not finite." in _totals(read_timeline(tmp_path))


@pytest.mark.slow
def test_a_skipped_step_leaves_weights_and_moments_as_they_were(tmp_path):
    """The same as if the step's gradients had never existed: a training of the other steps only."""

    def weights(folder, bad_steps):
        return torch.cat([torch.tensor(each).flatten() for each in train(folder, bad_steps=bad_steps)[1]])

    before = weights(tmp_path / "a", bad_steps=(9, 10))
    assert before.isfinite().all()
    assert torch.equal(before, weights(tmp_path / "b", bad_steps=(9, 10)))
    assert not torch.equal(before, weights(tmp_path / "c", bad_steps=(9,)))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 2])
@pytest.mark.parametrize(("ranks", "strategy"), [(1, "ddp"), (2, "fsdp2")])
def test_too_many_bad_steps_in_a_row_end_training_without_a_checkpoint_of_them(tmp_path, limit, ranks, strategy):
    _, error = train(tmp_path, ranks, (2, 5, 6, 7, 8), strategy=strategy, save_steps=1, max_skipped_steps=limit)
    last = {0: 2, 2: 7}[limit]
    assert error.startswith(f"the last {limit + 1} steps up to step {last} were skipped: loss nan")
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, last + 1))
    saved = sorted(int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*"))
    assert saved == ([1] if limit == 0 else [1, 3, 4])


@pytest.mark.slow
def test_a_save_that_was_due_in_a_skipped_step_comes_after_the_next_one(tmp_path):
    train(tmp_path, bad_steps=(4,), save_steps=4)
    assert sorted(int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*")) == [5, 8, 10]


@pytest.mark.slow
def test_a_stop_after_a_skipped_step_saves_nothing_and_the_next_start_repeats_it(tmp_path):
    train(tmp_path, bad_steps=(6,), save_steps=4, stop=6)
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000004"]
    taken, weights = train(tmp_path, save_steps=4)
    assert [line["step"] for line in metrics(tmp_path)] == [*range(1, 7), *range(5, 11)]
    assert len(taken) == 6 * 12 and isinstance(weights, list)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"learning_rate": 1e25}, "were skipped: loss nan"),
        ({"learning_rate": 1e37, "weight_decay": 34}, "the weights are not finite after step 1: no checkpoint"),
    ],
    ids=["activations overflow", "the update overflows"],
)
def test_a_learning_rate_that_destroys_the_model_publishes_nothing_that_is_not_finite(tmp_path, args, words):
    _, error = train(tmp_path, 2, **args, lr_warmup_ratio=0, save_steps=1)
    assert words in error
    metrics(tmp_path)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        dcp_to_torch_save(path, tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=False)
        assert all(value.isfinite().all() for value in state["model"].values())


@pytest.mark.slow
def test_a_short_training_that_ends_with_skipped_steps_only_fails(tmp_path):
    _, error = train(tmp_path, bad_steps=(9, 10), max_epochs=2)
    assert isinstance(error, list), "eight good steps"
    _, error = train(
        tmp_path / "short", bad_steps=(2, 3), max_epochs=1, train_batch_size=20, micro_train_batch_size=4
    )
    assert error.startswith("the last 2 steps up to step 3 were skipped")


@pytest.mark.parametrize(
    ("loss", "norm", "is_finite"),
    [
        (1.0, 2.0, True),
        (None, None, True),
        (None, 0.0, True),
        (NAN, 1.0, False),
        (1.0, INF, False),
        (-INF, None, False),
    ],
)
def test_a_step_needs_a_finite_loss_and_finite_gradients(loss, norm, is_finite):
    steps = FiniteSteps(1)
    assert steps.judge(loss, norm) is is_finite
    assert (steps.in_a_row, steps.total) == ((0, 0) if is_finite else (1, 1))
    steps.judge(1.0, 1.0)
    assert steps.in_a_row == 0


def test_weights_are_finite_or_not():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 0), nn.Linear(2, 2).to(torch.bfloat16))
    assert has_finite_weights(model) and has_finite_weights(nn.Identity())
    with torch.no_grad():
        model[2].weight[0, 1] = -INF
    assert not has_finite_weights(model)
    model[2].requires_grad_(requires_grad=False)
    assert has_finite_weights(model), "only what is trained"
    with torch.no_grad():
        model[0].bias[0] = NAN
    assert not has_finite_weights(model)


@pytest.mark.slow
def test_the_exit_code_of_a_worker_tells_the_operator_not_to_start_it_again():
    program = (
        "import sys; from launcher.runtime import process_group as g; from launcher.runtime.finite_steps import *\n"
        "sys.excepthook = g._leave_on_error; raise {}('x')"
    )
    for error, code in (("NotFinite", EXIT_NOT_FINITE), ("ValueError", 1)):
        assert (
            subprocess.run([sys.executable, "-c", program.format(error)], stderr=subprocess.PIPE).returncode == code
        )
    worker = FailedWorker(0, -(EXIT_NOT_FINITE << 8))
    assert worker.is_final and str(worker) == "exited with code 65 (its loss, gradients or weights are not finite)"
    assert FailedWorker(0, EXIT_NOT_FINITE).is_final
    assert not FailedWorker(0, -(1 << 8)).is_final and not FailedWorker(0, -signal.SIGKILL).is_final
