from collections import Counter
from pathlib import Path

import pytest
import torch
from runtime_ranks import metrics, run_ranks, tiny_config, train, uneven
from torch.nn.parallel import DistributedDataParallel

from launcher.runtime.batches import accumulate_gradients, micro_batches
from launcher.runtime.model import build_model, next_token_loss
from launcher.runtime.process_group import Place
from launcher.runtime.sampler import rank_positions
from launcher.runtime.settings import SharesMismatch, shares_of

MODEL = {"vocab_size": 256, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
TOKENS = torch.randint(256, (12, 9), generator=torch.Generator().manual_seed(3))


def gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def full_batch_gradient() -> torch.Tensor:
    model = build_model("tiny_lm", MODEL, max_len=8, seed=1)
    next_token_loss(model, TOKENS).backward()
    return gradient(model)


def sharded_gradient(place: Place, shares: tuple[int, ...], micro: int, weighted: bool) -> torch.Tensor:
    model = DistributedDataParallel(build_model("tiny_lm", MODEL, max_len=8, seed=1))
    positions = rank_positions(shares, place.rank, 0)
    batch = TOKENS[positions.start : positions.stop]
    if weighted:
        accumulate_gradients(
            model,
            lambda rows: next_token_loss(model, rows),
            batch,
            micro=micro,
            samples_per_step=sum(shares),
            world_size=place.world_size,
        )
    else:
        next_token_loss(model, batch).backward()
    return gradient(model)


@pytest.mark.parametrize(
    ("shares", "micro"),
    [((1, 4, 7), 7), ((1, 4, 7), 2), ((4, 4, 4), 2), ((6, 6, 0), 3)],
    ids=["uneven", "uneven_in_micro_batches", "even_accumulated", "a_rank_without_samples"],
)
def test_weighted_gradient_is_the_full_batch_gradient(tmp_path, shares, micro):
    found = run_ranks(3, lambda place: sharded_gradient(place, shares, micro, True), tmp_path)
    for rank_gradient in found:
        assert (rank_gradient - full_batch_gradient()).abs().max() < 1e-6


def test_unweighted_uneven_gradient_is_not_the_full_batch_gradient(tmp_path):
    found = run_ranks(3, lambda place: sharded_gradient(place, (1, 4, 7), 7, False), tmp_path)
    assert (found[0] - full_batch_gradient()).abs().max() > 1e-4


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("uninterrupted")
    train(tiny_config(), 1, run_dir)
    return run_dir


def losses(run_dir: Path) -> list[float]:
    return [line["loss"] for line in metrics(run_dir)]


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (2, {}),
        (6, {"uneven_batch": uneven(3, 1, 3)}),
        (5, {"uneven_batch": uneven(3, 2, 3)}),
    ],
    ids=["2_even", "6_uneven", "5_uneven"],
)
def test_loss_curve_does_not_depend_on_the_number_of_ranks(tmp_path, uninterrupted, world_size, changes):
    train(tiny_config(world_size, **changes), world_size, tmp_path)
    assert losses(tmp_path) == pytest.approx(losses(uninterrupted), abs=1e-5)
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 11))


def test_every_sample_once_and_the_same_losses_across_scale_events(tmp_path, capfd):
    """2 ranks, then 6, then 4; 7 a step does not divide the epochs, so the last step takes one sample."""
    batch = {"train_batch_size": 7, "max_epochs": 2}
    taken = train(tiny_config(2, **batch, uneven_batch=uneven(1, 3, 4)), 2, tmp_path, stop_before_step=4)
    taken += train(tiny_config(6, **batch, uneven_batch=uneven(5, 1, 2)), 6, tmp_path, stop_before_step=9)
    taken += train(tiny_config(4, **batch, uneven_batch=uneven(1, 1, 2)), 4, tmp_path)

    assert Counter(taken) == dict.fromkeys(range(60), 2)
    whole = tmp_path / "whole"
    train(tiny_config(**batch, micro_train_batch_size=7), 1, whole)
    assert len(losses(whole)) == 18 and metrics(whole)[-1]["samples"] == 1
    assert losses(tmp_path) == pytest.approx(losses(whole), abs=1e-5)
    assert [line["world_size"] for line in metrics(tmp_path)] == [2] * 3 + [6] * 5 + [4] * 10
    output = capfd.readouterr().out
    assert "stopped at step 3 for a scale event" in output
    assert "resumed from step 8 (saved by 6 ranks)" in output
    assert "finished at step 18, loss" in output


def test_finished_training_finishes_at_once(tmp_path, capfd):
    config = tiny_config(max_epochs=1)
    train(config, 1, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert train(config, 1, tmp_path) == []
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert "finished at step 5\n" in capfd.readouterr().out


def test_dropout_goes_on_where_it_stopped(tmp_path):
    config = tiny_config(2, max_epochs=1)
    config["training_config"]["model_config"]["dropout"] = 0.2
    train(config, 2, tmp_path / "whole")
    train(config, 2, tmp_path / "parts", stop_before_step=3)
    train(config, 2, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_new_job_starts_afresh_but_its_restart_resumes(tmp_path, monkeypatch):
    config = tiny_config(max_epochs=1, load_checkpoint=False)
    assert len(train(config, 1, tmp_path)) == 60
    assert len(train(config, 1, tmp_path)) == 60
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(config, 1, tmp_path) == []


def test_a_training_dir_in_use_is_refused_without_leave(tmp_path, capfd):
    config = tiny_config(max_epochs=1, override_training_dir=False)
    train(config, 1, tmp_path)
    with pytest.raises(AssertionError):
        train(config, 1, tmp_path)
    assert "override_training_dir is false" in capfd.readouterr().err


def test_checkpoints_are_kept_to_the_limit(tmp_path):
    train(tiny_config(save_steps=2, max_ckpt_num=2), 1, tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == [
        "step-00000008",
        "step-00000010",
    ]


def test_a_rank_without_samples_still_runs_one_pass():
    assert list(micro_batches(0, 4)) == [range(0)]
    assert list(micro_batches(5, 4)) == [range(4), range(4, 5)]


@pytest.mark.parametrize(
    ("args", "world_size"),
    [
        ({"train_batch_size": 10}, 4),
        ({"train_batch_size": 10, "uneven_batch": uneven(1, 2, 3)}, 3),
        ({"train_batch_size": 10, "uneven_batch": uneven(5, 2, 3)}, 4),
    ],
    ids=["does_not_divide", "wrong_sum", "more_small_ranks_than_ranks"],
)
def test_shares_that_do_not_fit_the_ranks_are_refused(args, world_size):
    with pytest.raises(SharesMismatch):
        shares_of(args, world_size)
