"""How far the losses of an elastic job on Slurm are from those of one process, over 325 steps.

Any other number of ranks adds the same numbers in another order, and training amplifies the rounding. So the same
training on a fixed number of ranks is compared, too: its difference is not due to a transition.
"""

from pathlib import Path

import pytest
import slurm_cluster
from background import await_true
from tiny_jobs import launch, losses, records, trained_alone

from launcher.operator.job_request import REQUEST_FILE, size_request
from launcher.runtime.durable import write_text

ARGS = "recipes.training_config.training_args"
JOB = (
    *("recipes=training/tiny/tiny_lm_cpu", "recipes.trainer.devices=1", "++recipes.scale_config=auto"),
    *("recipes.trainer.num_nodes=4", "recipes.training_config.mlflow.enabled=false", f"{ARGS}.max_epochs=26"),
)
SLURM = ("cluster=slurm", "instance_type=m5.2xlarge", f"{ARGS}.min_step_seconds=0.2")
WINDOW = 50


def elastic(folder: Path, cluster: slurm_cluster.Cluster) -> tuple[list[float], list[int]]:
    """Return losses and sizes of a job that shrinks to 2 nodes, grows to 4, and loses one that comes back."""
    run_dir = launch(folder, *JOB, *SLURM)

    def sizes() -> list[int]:
        return [event["size"] for event in records(run_dir / "events.jsonl") if event["kind"] == "running"]

    def await_size(size: int, steps: int) -> None:
        await_true(lambda: sizes()[-1:] == [size])
        seen = len(records(run_dir / "metrics.jsonl"))
        await_true(lambda: len(records(run_dir / "metrics.jsonl")) >= seen + steps)

    await_size(4, 30)
    write_text(run_dir / REQUEST_FILE, size_request(2))
    await_size(2, 30)
    write_text(run_dir / REQUEST_FILE, size_request(4))
    await_size(4, 30)
    cluster.lose("n3")
    await_size(3, 30)
    cluster.start("n3")
    await_true((run_dir / "timeline.json").exists)
    return losses(run_dir), sizes()


def differences(mine: list[float], reference: list[float]) -> str:
    """Return the largest difference of the losses, for each window of steps."""
    assert len(mine) == len(reference)
    pairs = list(zip(mine, reference, strict=True))
    windows = (pairs[start : start + WINDOW] for start in range(0, len(pairs), WINDOW))
    return ", ".join(f"{max(abs(one - other) for one, other in window):.1e}" for window in windows)


@pytest.mark.timeout(1800)
def test_losses_of_an_elastic_job(tmp_path, report, monkeypatch):
    """Target: at most 1e-6 in the first 150 steps, and no more than a fixed number of ranks differs by after that."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    reference = trained_alone(tmp_path / "alone", *JOB)
    fixed = [losses(launch(tmp_path / f"fixed-{size}", *JOB, f"recipes.trainer.num_nodes={size}")) for size in (2, 4)]
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster.running(folder, 4, has_accounting=True) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        found, sizes = elastic(tmp_path / "elastic", cluster)
    report(f"largest difference of the loss from one process in each {WINDOW} of {len(reference)} steps")
    for size, each in zip((2, 4), fixed, strict=True):
        report(f"   {size} nodes from begin to end: {differences(each, reference)}")
    report(f"   sizes {' -> '.join(map(str, sizes))} on Slurm: {differences(found, reference)}")
