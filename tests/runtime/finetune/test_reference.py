"""The precomputed reference of preferences: exact sums, and work that no stop, kill or damage loses or falsifies."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime_ranks import run_ranks

from launcher.runtime.finetune import reference, trainer
from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.data.prepared import PreparedPairs
from launcher.runtime.finetune.objectives import PairRows, Supervised
from launcher.runtime.finetune.settings import settings_of
from launcher.runtime.finetune.token_scores import TokenScorer
from launcher.runtime.model import next_token_loss

from . import runs
from .cases import compiled, conversations, inputs, pairs, prepared, saved_model, with_weights

CPU = torch.device("cpu")
PAIRS = 11


def long_pairs(count, length):
    offsets = np.arange(3 * count + 1, dtype=np.int64) * length
    ids = np.random.default_rng(0).integers(0, 512, offsets[-1]).astype(np.uint32)
    return PreparedPairs(ids, offsets, np.full((count, 2), length, np.int32))


def test_log_probabilities_of_long_answers_are_summed_exactly():
    """In 32 bits the sums over 2,000 tokens are off by 0.01."""
    rows = PairRows(long_pairs(3, 2000), range(3), Batcher(CPU))
    log_probs = -(12 + torch.rand(len(rows.batch.targets), generator=torch.Generator().manual_seed(1)))
    exact = log_probs.double().view(2, 3, 2000).sum(dim=2).T
    assert rows.sums(log_probs).dtype == torch.float64
    assert (rows.sums(log_probs) - exact).abs().max() < 1e-9


class Scores(torch.nn.Module):
    """Gives each counted token a log-probability of about -12."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch):
        generator = torch.Generator().manual_seed(len(batch.targets))
        return self.weight * -(12 + torch.rand(len(batch.targets), generator=generator)), None


def test_losses_of_tokens_are_summed_exactly():
    samples, scores = conversations(4, longest=4000), Scores()
    objective = Supervised(Batcher(CPU))
    rows = objective.rows(samples, range(4))
    outcome = objective.outcome(scores, samples, rows)
    exact = -scores(rows)[0].double().sum()
    assert outcome.loss.item() == outcome.sums[0].item() == pytest.approx(exact.item(), rel=1e-14)
    outcome.loss.backward()
    assert scores.weight.grad.dtype == torch.float32


def test_the_loss_of_a_tiny_model_is_summed_exactly():
    logits = torch.randn(8, 1000, 300, generator=torch.Generator().manual_seed(2)) * 9
    tokens = torch.randint(300, (8, 1001), generator=torch.Generator().manual_seed(3))
    found = next_token_loss(lambda _: logits, tokens, "sum")
    picked = logits.double().log_softmax(-1).gather(-1, tokens[:, 1:, None]).sum()
    assert found.item() == pytest.approx(-picked.item(), rel=1e-8)


@pytest.mark.long
@pytest.mark.slow
def test_the_second_step_is_that_of_a_loop_in_64_bits(tmp_path):
    """Answers of 700 tokens, micro batches on two ranks; the loop knows nothing of the library but its model."""
    samples = long_pairs(8, 700)
    config = compiled(
        "llama", "dpo", lora=False, train_batch_size=4, micro_train_batch_size=1, max_epochs=1, learning_rate=1e-4
    )

    def watch(training):
        order = training.job.sampler.stream.indices(range(8)).tolist()
        scorer, optimizer = TokenScorer(training.inputs and loop_model(config, tmp_path)), training.settings.optimizer
        return lambda: (order, optimizer, scorer)

    order, settings, scorer = runs.train(tmp_path, 2, config, samples, watch=watch)
    losses = loop(scorer, samples, order, settings, beta=0.1)
    assert runs.losses(tmp_path) == pytest.approx(losses, abs=1e-6)


def loop_model(config, folder):
    from . import trl_trainers

    return trl_trainers.model_of(config, folder)


def loop(scorer, samples, order, settings, *, beta):
    """Return the losses of two steps of four pairs."""

    def answers(index):
        prompt, *both = samples.sample(index)
        for answer in both:
            ids = torch.from_numpy(np.concatenate([prompt, answer]).astype(np.int64))[None]
            logits = scorer.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            picked = logits.double().log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])
            yield picked.sum()

    from launcher.runtime.finetune.models import adamw
    from launcher.runtime.finetune.schedules import learning_rate

    scorer.eval()
    with torch.no_grad():
        held = {index: torch.stack(list(answers(index))) for index in order}
    scorer.train()
    optimizer, losses = adamw(scorer, settings, CPU), []
    for step in range(2):
        gains = [torch.stack(list(answers(index))) - held[index] for index in order[4 * step : 4 * step + 4]]
        margins = torch.stack([chosen - rejected for chosen, rejected in gains])
        loss = -torch.nn.functional.logsigmoid(beta * margins).mean()
        loss.backward()
        if settings.max_norm:
            torch.nn.utils.clip_grad_norm_(scorer.parameters(), settings.max_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings.schedule, (4 * step + 2) / 8)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def table_of(folder: Path, ranks: int, *, stop_after: int = 0, micro: int = 1):
    """Return the table that each rank has, and how many pairs each rank scored; None for a table that was stopped."""
    samples = pairs(PAIRS)

    def work(place):
        model = loop_model(compiled("llama", "dpo", lora=False), folder)
        scorer, scored, asked = TokenScorer(model), [], []
        scorer.register_forward_hook(lambda _, given, __: scored.append(given[0].num_samples // 2))

        def stopping():
            asked.append(None)
            return len(asked) == stop_after

        found = reference.precomputed(scorer, samples, Batcher(CPU), folder / "reference.npy", micro, stopping)
        return None if found is None else found.numpy(), sum(scored)

    return run_ranks(ranks, work, folder)


@pytest.mark.slow
def test_a_stop_loses_no_pair_that_was_scored(tmp_path):
    (tmp_path / "whole").mkdir()
    ((whole, scored),) = table_of(tmp_path / "whole", 1)
    assert scored == PAIRS and np.isfinite(whole).all()

    stopped = table_of(tmp_path, 2, stop_after=2)
    assert stopped == [(None, 2), (None, 2)]
    continued = table_of(tmp_path, 3, micro=2)  # 7 of 11 pairs are left: two rounds of three ranks, two pairs each
    for table, _ in continued:
        np.testing.assert_allclose(table, whole, rtol=1e-6)
    assert [scored for _, scored in continued] == [3, 3, 3]  # fillers score the first pair again
    again = table_of(tmp_path, 2)
    for table, scored in again:
        assert scored == 0
        np.testing.assert_array_equal(table, continued[0][0])


def damage(file: Path, kind: str) -> None:
    content = bytearray(file.read_bytes())
    if kind == "flipped":
        content[-40] ^= 1
    elif kind == "cut":
        del content[-24:]
    elif kind == "empty":
        content.clear()
    elif kind == "of_other_pairs":
        reference._write(file.with_name("other"), torch.zeros((2, 2), dtype=torch.float64))
        content = bytearray(file.with_name("other").read_bytes())
    file.unlink()
    if kind == "folder":
        file.mkdir()
    else:
        file.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "of_other_pairs", "folder"])
def test_a_damaged_file_is_reported_and_computed_again(tmp_path, capfd, kind):
    ((whole, _),) = table_of(tmp_path, 1)
    damage(tmp_path / "reference.npy", kind)
    ((table, scored),) = table_of(tmp_path, 1)
    assert scored == PAIRS
    np.testing.assert_array_equal(table, whole)
    assert "computed again" in capfd.readouterr().err
    if kind != "folder":
        ((_, scored),) = table_of(tmp_path, 1)
        assert scored == 0


def test_jobs_that_write_the_same_file_add_to_each_other(tmp_path):
    first, second = torch.full((3, 2), torch.nan, dtype=torch.float64), torch.full((3, 2), torch.nan)
    first[0], second = 1.0, second.double()
    second[2] = 2.0
    for table in (first, second):
        reference._write(tmp_path / "reference.npy", table)
    found = reference._read(tmp_path / "reference.npy", 3)
    assert found.isnan().tolist() == [[False, False], [True, True], [False, False]]


@pytest.mark.slow
def test_a_job_that_is_stopped_before_its_first_step_continues_at_another_size(tmp_path):
    samples, validation = pairs(PAIRS), pairs(4, seed=9)

    def config(ranks):
        return compiled("llama", "dpo", lora=False, train_batch_size=6, micro_train_batch_size=1, max_epochs=1)

    runs.train(tmp_path / "alone", 1, config(1), samples, validation)
    folder = tmp_path / "elastic"
    folder.mkdir()

    def stopped(place):
        training = trainer.FineTuning(
            settings_of(config(2), 2),
            inputs(config(2), folder),
            place,
            folder,
            prepared(samples, validation),
            lambda: place.rank == 1,
        )
        return training.run(), training.job.step

    assert run_ranks(2, stopped, folder) == [(False, 0)] * 2
    assert not (folder / "metrics.jsonl").read_text()
    runs.train(folder, 3, config(3), samples, validation)
    assert runs.losses(folder) == pytest.approx(runs.losses(tmp_path / "alone"), rel=1e-6)


@pytest.mark.slow
def test_the_file_is_known_by_the_content_of_the_weights(tmp_path):
    """A copy with other times is the same model; other values of the same sizes are another one."""
    saved_model(tmp_path / "model")
    config = compiled("llama", "dpo", lora=False)
    settings = settings_of(config, 1)

    def identity(folder):
        given = with_weights(inputs(config, tmp_path), folder)
        return reference._identity(settings, replace(given, prepared=tmp_path))

    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    for file in (tmp_path / "copy").iterdir():
        os.utime(file, (1, 1))
    saved_model(tmp_path / "other", seed=8)
    pickled = []
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "model", tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors"))
        torch.save({"a": torch.tensor(len(name) + len(pickled))}, tmp_path / name / "pytorch_model.bin")
        pickled.append(identity(tmp_path / name))
    assert identity(tmp_path / "model") == identity(tmp_path / "copy")
    assert len({identity(tmp_path / "model"), identity(tmp_path / "other"), *pickled}) == 4
    random = reference._identity(settings, inputs(config, tmp_path))
    assert random != reference._identity(replace(settings, seed=1 + settings.seed), inputs(config, tmp_path))
