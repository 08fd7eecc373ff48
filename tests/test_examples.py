import difflib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from background import await_true

from launcher.runtime import agent
from launcher.runtime.checkpoint import latest_progress

ROOT = Path(__file__).resolve().parent.parent
PLAIN, ELASTIC = ROOT / "examples" / "train_ddp.py", ROOT / "examples" / "train_elastic.py"
LANGUAGE_MODEL = ROOT / "examples" / "train_language_model.py"
NUM_STEPS = 96
pytestmark = pytest.mark.whole_job


def start(script: Path, folder: Path, ranks: int = 2, **environment: str) -> subprocess.Popen:
    """Start a script under torchrun on the loopback interface, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [*torchrun, str(script)],
        cwd=folder,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses(process: subprocess.Popen, *, is_plain: bool = False) -> dict[int, float]:
    """Wait for a script's end and return the loss it printed for each step.

    A plain return after DistributedDataParallel on gloo may abort ("terminate called without an active exception"),
    which was seen three times on a loaded machine: `elastic.leave` is there for that.
    """
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0 or (is_plain and "SIGABRT" in errors), errors
    found = re.findall(rf"step (\d+)/{NUM_STEPS}  loss ([\d.]+)", output)
    assert len({step for step, _ in found}) == len(found)
    return {int(step): float(loss) for step, loss in found}


@pytest.mark.sample
def test_fewer_than_ten_lines_make_a_script_elastic():
    code = [path.read_text().split('"""', maxsplit=2)[2].splitlines() for path in (PLAIN, ELASTIC)]
    new = [line for line in difflib.ndiff(*code) if line.startswith("+ ") and line[2:].strip()]
    assert 0 < len(new) < 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[dict[int, float], dict[int, float], Path]:
    """Return the losses of both scripts on two ranks, and the folder of the elastic one."""
    folders = [tmp_path_factory.mktemp(script.stem) for script in (PLAIN, ELASTIC)]
    plain, elastic = (start(script, folder) for script, folder in zip((PLAIN, ELASTIC), folders, strict=True))
    return losses(plain, is_plain=True), losses(elastic), folders[1]


@pytest.mark.sample
def test_both_scripts_train_the_same(trained):
    plain, elastic, folder = trained
    assert list(plain) == list(range(1, NUM_STEPS + 1))
    assert elastic == pytest.approx(plain, abs=1e-5)
    assert plain[NUM_STEPS] < plain[1] / 2
    assert latest_progress(folder / "checkpoints")[1].step == NUM_STEPS


def worker_of(torchrun: subprocess.Popen) -> int:
    """Return a process that torchrun started."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return int(children[-1])


def test_the_elastic_script_stops_when_told_and_goes_on_at_another_size(tmp_path, trained):
    """One of its two workers is told; three do the rest. Together they did what two would have done."""
    pytest.importorskip(agent.PACKAGE)
    run = {"RECIPES_RUN_DIR": str(tmp_path / "run"), "HYPERPOD_SIGNAL_COORDINATION": "distributed"}
    first = start(ELASTIC, tmp_path / "first", **run)
    await_true((tmp_path / "run" / "metrics.jsonl").exists)
    os.kill(worker_of(first), signal.SIGUSR1)
    done = losses(first)
    assert 0 < len(done) < NUM_STEPS
    rest = losses(start(ELASTIC, tmp_path / "rest", ranks=3, **run))
    assert done | rest == pytest.approx(trained[1], abs=1e-5)
    assert not done.keys() & rest.keys()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, NUM_STEPS + 1))
    assert {line["world_size"] for line in lines} == {2, 3}


def steps_of_language_model(run_dir: Path) -> dict[str, list[float]]:
    """Return what a run of the language model reported, by name."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "cursor" in line]
    assert [line["step"] for line in steps] == list(range(1, 33))
    evaluations = [line for line in lines if "cursor" not in line]
    assert [line["step"] for line in evaluations] == [16, 32]
    return {
        "loss": [line["loss"] for line in steps],
        "grad_norm": [line["further"]["grad_norm"] for line in steps],
        "eval/loss": [line["further"]["eval/loss"] for line in evaluations],
    }


def test_the_language_model_trains_the_same_on_any_number_of_ranks(tmp_path):
    """Its sentences differ in length, so that each rank's mean would be another one. It is stopped on one rank,
    and resumed on three."""
    pytest.importorskip(agent.PACKAGE)
    alone, resumed = ({"RECIPES_RUN_DIR": str(tmp_path / name)} for name in ("alone", "resumed"))
    coordination = {"HYPERPOD_SIGNAL_COORDINATION": "distributed"}
    unstopped = start(LANGUAGE_MODEL, tmp_path / "first", ranks=1, **alone)
    stopped = start(LANGUAGE_MODEL, tmp_path / "second", ranks=1, **resumed, **coordination)
    await_true((tmp_path / "resumed" / "metrics.jsonl").exists)
    os.kill(worker_of(stopped), signal.SIGUSR1)
    losses(stopped)
    losses(unstopped)
    losses(start(LANGUAGE_MODEL, tmp_path / "third", ranks=3, **resumed, **coordination))
    expected, found = (steps_of_language_model(tmp_path / name) for name in ("alone", "resumed"))
    for name in expected:
        assert found[name] == pytest.approx(expected[name], rel=2e-4), name
    for name in ("alone", "resumed"):
        assert (tmp_path / name / "checkpoints/exported").read_text() == "32\n"
        assert (tmp_path / name / "model.pt").exists()
