"""Steps of the open trainer whose loss or gradients are not finite."""

import json
import math
import re

import pytest
import torch
from runtime_ranks import run_ranks

from launcher.runtime.finite_steps import NotFinite

from .cases import compiled, conversations, fsdp, pairs
from .runs import Recording, lines, losses, made, taken, train

pytestmark = pytest.mark.slow


def bad(training: Recording, step: int) -> None:
    """Make the loss of the last rank infinite in one step."""
    outcome = training.objective.outcome

    def spoiled(root, samples, indices):
        found = outcome(root, samples, indices)
        is_bad = training.job.step + 1 == step and training.place.rank == training.place.world_size - 1
        return type(found)(found.loss * math.inf, found.sums, found.aux) if is_bad else found

    training.objective.outcome = spoiled


@pytest.mark.parametrize(
    ("technique", "ranks", "args"),
    [("sft", 1, {}), ("sft", 2, {}), ("dpo", 2, {}), ("sft", 2, fsdp(sharding_strategy="NO_SHARD"))],
    ids=["alone", "sharded", "pairs", "replicated"],
)
def test_a_bad_step_is_skipped_by_all_ranks_and_consumes_its_samples(tmp_path, technique, ranks, args):
    samples = (conversations if technique == "sft" else pairs)(12)
    config = compiled(technique=technique, train_batch_size=4, micro_train_batch_size=1, **args)
    state = train(tmp_path / "run", ranks, config, samples, watch=lambda training: bad(training, 3))
    assert all(value.isfinite().all() for value in state.values())
    found = losses(tmp_path / "run")
    assert [step for step, loss in enumerate(found, 1) if loss is None] == [3] and len(found) == 6
    assert [line["skipped_steps"] for line in lines(tmp_path / "run") if "skipped_steps" in line] == [1.0]
    assert sorted(set(taken(tmp_path / "run"))) == list(range(12))
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.parametrize("every", [1, 4])
def test_the_console_has_every_so_many_steps_and_the_metrics_each(tmp_path, capfd, every):
    config = compiled(train_batch_size=4, micro_train_batch_size=2, logging_steps=every)
    train(tmp_path / "run", 2, config, conversations(24))
    printed = re.findall(r"^step (\d+)/12  loss ", capfd.readouterr().out, re.MULTILINE)
    assert list(map(int, printed)) == list(range(every, 13, every))
    assert len(losses(tmp_path / "run")) == 12


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "full"])
def test_a_learning_rate_that_destroys_the_model_exports_nothing(tmp_path, capfd, lora):
    """The fault that was seen: a norm of nan at each step, and results that hold nothing else."""
    config = compiled(
        lora=lora, train_batch_size=4, micro_train_batch_size=2, learning_rate=1e25, lr_warmup_ratio=0.0
    )

    def work(place):
        torch.use_deterministic_algorithms(True)
        training = made(place, config, tmp_path, conversations(24))
        with pytest.raises(NotFinite) as caught:
            training.run()
        assert not training.inputs.results.exists()
        return str(caught.value)

    assert set(run_ranks(2, work, tmp_path)) == {
        "the last 4 steps up to step 5 were skipped: loss nan, norm of the gradients nan. Nothing of them is "
        "published. Lower learning_rate, or look for faulty samples in these steps; max_skipped_steps (3) is how "
        "many may be "
        "skipped in a row"
    }
    assert not list(tmp_path.rglob("*.safetensors")) and not list((tmp_path / "checkpoints").glob("step-*"))
    out = capfd.readouterr().out
    assert "step 2: skipped, loss nan, norm of the gradients nan (1 in a row, at most 3)" in out
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
