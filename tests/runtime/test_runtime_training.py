import json
import time
from collections import Counter
from pathlib import Path

import pytest
from runtime_ranks import metrics, starts, tiny_config, train, uneven

from launcher.runtime.metric_shipping import ship
from launcher.runtime.shares import SharesMismatch
from launcher.runtime.trainer import UnknownStrategy, distribute
from launcher.runtime.training_config import shares_of


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("uninterrupted")
    train(tiny_config(), 1, run_dir)
    return run_dir


def losses(run_dir: Path) -> list[float]:
    return [line["loss"] for line in metrics(run_dir)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (2, {}),
        (2, {"strategy": "fsdp2"}),
        (6, {"uneven_batch": uneven(3, 1, 3)}),
        (5, {"uneven_batch": uneven(3, 2, 3), "strategy": "fsdp2"}),
    ],
    ids=["2_even", "2_even_fsdp2", "6_uneven", "5_uneven_fsdp2"],
)
def test_loss_curve_does_not_depend_on_the_number_of_ranks(tmp_path, uninterrupted, world_size, changes):
    train(tiny_config(world_size, **changes), world_size, tmp_path)
    assert losses(tmp_path) == pytest.approx(losses(uninterrupted), abs=1e-5)
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 11))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_every_sample_once_and_the_same_losses_across_scale_events(tmp_path, capfd, strategy):
    """1, 2, 3, 2 and 1 ranks; 7 a step does not divide the epochs, so the last step takes one sample."""
    batch = {"train_batch_size": 7, "max_epochs": 2, "strategy": strategy, "micro_train_batch_size": 7}
    splits = {1: {}, 2: {"uneven_batch": uneven(1, 3, 4)}, 3: {"uneven_batch": uneven(2, 2, 3)}}
    taken = []
    for world_size, stop_after_step in ((1, 3), (2, 6), (3, 9), (2, 12), (1, 0)):
        taken += train(tiny_config(1, **batch, **splits[world_size]), world_size, tmp_path, stop_after_step)

    assert Counter(taken) == dict.fromkeys(range(60), 2)
    whole = tmp_path / "whole"
    train(tiny_config(1, **batch | {"strategy": "ddp"}), 1, whole)
    assert len(losses(whole)) == 18 and metrics(whole)[-1]["samples"] == 1
    assert losses(tmp_path) == pytest.approx(losses(whole), abs=1e-5)
    assert [line["world_size"] for line in metrics(tmp_path)] == [1] * 3 + [2] * 3 + [3] * 3 + [2] * 3 + [1] * 6
    assert [line["cursor"] for line in metrics(tmp_path)] == [*range(7, 120, 7), 120]
    output = capfd.readouterr().out
    assert "stopped at step 3 as requested" in output
    assert "resumed from step 9 (saved by 3 ranks)" in output
    assert "finished at step 18, loss" in output


@pytest.mark.slow
def test_redone_steps_and_each_start_are_written_down(tmp_path, monkeypatch):
    """The checkpoint of step 5 is damaged: the restart takes that of step 4 and does step 5 again."""
    config = tiny_config(2, save_steps=4)
    train(config, 2, tmp_path, stop_after_step=5)
    damaged = tmp_path / "checkpoints" / "step-00000005" / "__1_0.distcp"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train(config, 2, tmp_path)
    assert [(line["step"], line["attempt"]) for line in metrics(tmp_path)] == [
        *((step, 0) for step in range(1, 6)),
        *((step, 1) for step in range(5, 11)),
    ]
    first, second = starts(tmp_path)
    assert (first["attempt"], first["step"], first["cursor"]) == (0, 0, 0)
    assert (second["attempt"], second["step"], second["cursor"]) == (1, 4, 48)
    for start in (first, second):
        times = [start[name] for name in ("spawned", "imported", "joined", "restored", "first_step")]
        assert times == sorted(times) and times[-1] - times[0] < 60
    assert first["first_step"] == metrics(tmp_path)[0]["time"]
    assert second["first_step"] == metrics(tmp_path)[5]["time"]


@pytest.mark.slow
def test_a_start_without_a_step_is_written_down(tmp_path):
    config = tiny_config(max_epochs=1)
    train(config, 1, tmp_path)
    train(config, 1, tmp_path)
    assert [(start["step"], start["first_step"] is None) for start in starts(tmp_path)] == [(0, False), (5, True)]


def test_a_strategy_nobody_knows_is_refused():
    with pytest.raises(UnknownStrategy, match="ddp and fsdp2"):
        distribute(None, "fsdp3")


@pytest.mark.slow
def test_finished_training_finishes_at_once(tmp_path, capfd):
    config = tiny_config(max_epochs=1)
    train(config, 1, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert train(config, 1, tmp_path) == []
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert "finished at step 5\n" in capfd.readouterr().out


@pytest.mark.slow
def test_dropout_goes_on_where_it_stopped(tmp_path):
    config = tiny_config(2, max_epochs=1)
    config["training_config"]["model_config"]["dropout"] = 0.2
    train(config, 2, tmp_path / "whole")
    train(config, 2, tmp_path / "parts", stop_after_step=2)
    train(config, 2, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_a_new_job_starts_afresh_but_its_restart_resumes(tmp_path, monkeypatch):
    config = tiny_config(max_epochs=1, load_checkpoint=False)
    assert len(train(config, 1, tmp_path)) == 60
    assert len(train(config, 1, tmp_path)) == 60
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(config, 1, tmp_path) == []


@pytest.mark.slow
def test_a_new_launch_starts_afresh_at_whatever_attempt_it_comes_to_train(tmp_path, monkeypatch):
    """Its first attempts may be lost before they have said so; none of its restarts starts afresh again."""
    config = tiny_config(2, max_epochs=1, load_checkpoint=False)
    trained = []
    for launch, attempt in (("a", 0), ("a", 1), ("b", 2), ("b", 3), ("b", 0), ("a", 1)):
        monkeypatch.setenv("RECIPES_LAUNCH_ID", launch)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        trained.append(len(train(config, 2, tmp_path)))
    assert trained == [60, 0, 60, 0, 0, 60]


@pytest.mark.slow
def test_a_new_launch_with_leave_to_load_goes_on(tmp_path, monkeypatch):
    config = tiny_config(max_epochs=1)
    monkeypatch.setenv("RECIPES_LAUNCH_ID", "a")
    train(config, 1, tmp_path, stop_after_step=2)
    monkeypatch.setenv("RECIPES_LAUNCH_ID", "b")
    assert len(train(config, 1, tmp_path)) == 36


@pytest.mark.slow
def test_a_training_dir_in_use_is_refused_at_every_attempt_of_a_new_launch(tmp_path, monkeypatch, capfd):
    config = tiny_config(max_epochs=1, override_training_dir=False)
    monkeypatch.setenv("RECIPES_LAUNCH_ID", "a")
    train(config, 1, tmp_path, stop_after_step=2)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert len(train(config, 1, tmp_path)) == 36
    monkeypatch.setenv("RECIPES_LAUNCH_ID", "b")
    with pytest.raises(AssertionError):
        train(config, 1, tmp_path)
    assert "override_training_dir is false" in capfd.readouterr().err


@pytest.mark.slow
def test_the_launches_of_a_bundle_are_told_apart_by_the_times_of_their_samples(tmp_path):
    config = tiny_config(max_epochs=1, load_checkpoint=False, log_samples=True)
    began = []
    for _ in range(2):
        began.append(time.time())
        train(config, 1, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "samples" / "rank-0.jsonl").read_text().splitlines()]
    for since, until in ((began[0], began[1]), (began[1], time.time())):
        samples = [index for line in lines if since <= line["time"] < until for index in line["samples"]]
        assert sorted(samples) == list(range(60))


@pytest.mark.slow
def test_a_launch_that_starts_anew_has_curves_of_its_own(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    run_id = client.create_run(client.create_experiment("tiny")).info.run_id
    config = tiny_config(max_epochs=1, load_checkpoint=False)
    config["training_config"]["mlflow"] = {"run_id": run_id, "tracking_uri": uri}
    for _ in range(2):
        train(config, 1, tmp_path)
        ship(tmp_path, uri, run_id)
    for name in ("loss", "launch-2/loss"):
        assert [point.step for point in client.get_metric_history(run_id, name)] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_training_dir_in_use_is_refused_without_leave(tmp_path, capfd):
    config = tiny_config(max_epochs=1, override_training_dir=False)
    train(config, 1, tmp_path)
    with pytest.raises(AssertionError):
        train(config, 1, tmp_path)
    assert "override_training_dir is false" in capfd.readouterr().err


@pytest.mark.slow
def test_checkpoints_are_kept_to_the_limit(tmp_path):
    train(tiny_config(save_steps=2, max_ckpt_num=2), 1, tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == [
        "step-00000008",
        "step-00000010",
    ]


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
