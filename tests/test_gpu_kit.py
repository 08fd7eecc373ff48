"""The kit for a GPU, on the CPU with tiny shapes: every stage, its JSON, its table and its time."""

import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from benchmarks.gpu import __main__ as kit
from benchmarks.gpu import devices, estimate, jobs
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.results import Measurement, Results, median_of
from benchmarks.gpu.shapes import EXPERTS, GPT_OSS, LLAMA_1B, LLAMA_8B, LORA, Shape, compiled, model_config
from benchmarks.gpu.stages import BY_NAME, LATE_STATUS, PARTS, STAGES
from benchmarks.gpu.training import WARMUP_STEPS, Enough, Meter, Pace
from launcher.runtime.finetune.architectures import rehearsal_config
from launcher.runtime.finetune.models import built, language_model, trained_parameters
from launcher.runtime.finetune.settings import settings_of

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
IN_ONE_PROCESS = """
import sys
from pathlib import Path
from benchmarks.gpu.stages import BY_NAME, run

folder, *words = sys.argv[1:]
for name, seconds in (word.split("=") for word in words):
    run(BY_NAME[name], Path(folder) / seconds / f"{name}.json", tiny=True, seconds=float(seconds))
"""
HANGS = """
import sys, time
from pathlib import Path
from benchmarks.gpu import stages
from benchmarks.gpu.results import Measurement

def work(results):
    results.add(Measurement("before", 1.0, "s"))
    time.sleep(600)

stages.GRACE_S = 0.1
stages._work = lambda stage: work
stages.run(stages.BY_NAME["floors"], Path(sys.argv[1]), tiny=True, seconds=0.1)
"""
ENOUGH, NONE = "500", "0"
"""Seconds of a stage."""
OF_JOBS = [stage.name for stage in STAGES if stage.is_of_jobs]
OTHERS = [stage.name for stage in STAGES if not stage.is_of_jobs]
TRAINING = [stage.name for stage in STAGES if stage.work.startswith("models:")]


def run_python(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments], env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=540
    )
    return done.returncode, done.stdout, done.stderr


def run_stages(folder, times):
    """Run stages in one process, which imports everything once; return `folder`, with a folder for each time."""
    status, out, err = run_python("-c", IN_ONE_PROCESS, str(folder), *(f"{name}={each}" for name, each in times))
    assert status == 0, (out, err)
    return folder


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    times = [(name, ENOUGH) for name in OTHERS] + [(name, NONE) for name in TRAINING]
    return run_stages(tmp_path_factory.mktemp("stages"), times)


@pytest.fixture(scope="module")
def of_jobs(tmp_path_factory):
    return run_stages(tmp_path_factory.mktemp("jobs"), [(name, ENOUGH) for name in OF_JOBS])


def read(folder, stage, seconds=ENOUGH):
    return json.loads((folder / seconds / f"{stage}.json").read_text())


def value_of(record, beginning):
    (found,) = (each["value"] for each in record["measurements"] if each["name"].startswith(beginning))
    return found


def assert_done(record, stage):
    assert (record["state"], record["problems"]) == ("done", []), record
    assert record["stage"] == stage and record["tiny"] is True
    assert record["seconds"] <= record["budget_s"]
    assert record["versions"]["torch"] == torch.__version__
    assert record["machine"]["gpus"] == torch.cuda.device_count()
    assert record["measurements"]
    for each in record["measurements"]:
        is_of_gpu = each["name"].endswith("peak memory")
        assert is_of_gpu or (each["value"] > 0 and math.isfinite(each["value"])), each
        assert each["floor"] is None or each["floor"] > 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("stage", OTHERS)
def test_a_stage_of_one_process_measures_everything_and_writes_it_down(in_one_process, stage):
    assert_done(read(in_one_process, stage), stage)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["lora", "lora-recomputed"])
def test_both_trainers_take_two_turns_at_each_micro_batch(in_one_process, stage):
    record = read(in_one_process, stage)
    rows = [each for each in record["measurements"] if each["name"].endswith((": ours", ": trl"))]
    assert len(rows) == 4 and all(len(each["rounds"]) == 2 for each in rows)
    for each in rows:
        assert (each["ratio"] is not None) == each["name"].endswith("ours")
    goals = {each["goal"] for each in record["measurements"]} - {None}
    assert goals == {1.3, 11_000 if stage == "lora" else 8_300}


@pytest.mark.long
@pytest.mark.slow
def test_the_first_loss_of_preference_pairs_is_known(in_one_process):
    found = value_of(read(in_one_process, "dpo"), "preference pairs: loss of the first step")
    assert found == pytest.approx(math.log(2), abs=1e-5)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("stage", TRAINING)
def test_a_stage_without_time_trains_nothing_and_says_so(in_one_process, stage):
    record = read(in_one_process, stage, NONE)
    assert record["state"] == "failed" and record["problems"]
    assert {each["value"] for each in record["measurements"]} <= {None}
    assert "no time was left" in json.dumps(record)


@pytest.mark.whole_job
@pytest.mark.parametrize("stage", OF_JOBS)
def test_a_stage_of_jobs_measures_everything_and_writes_it_down(of_jobs, stage):
    assert_done(read(of_jobs, stage), stage)


@pytest.mark.whole_job
def test_two_ranks_train_under_the_real_agent(of_jobs):
    record = read(of_jobs, "nccl")
    (row,) = (each for each in record["measurements"] if each["name"].endswith("training"))
    assert row["shape"] == {"ranks": 2, "world_size": 2, "sharding": "FULL_SHARD"}


@pytest.mark.whole_job
def test_the_parts_of_restarts_and_of_a_stop_are_measured(of_jobs):
    found = {each["name"] for each in read(of_jobs, "elastic")["measurements"]}
    for transition in ("recover: node 0 is lost", "recover: worker 0 crashes"):
        for part in ("restart", "spawn", "import", "rendezvous", "restore", "first_step"):
            assert any(name.startswith(transition) and name.endswith(f": {part}") for name in found), (
                transition,
                part,
            )
    assert any(name.startswith("suspend") and name.endswith(": stop") for name in found)


@pytest.mark.long
@pytest.mark.slow
def test_a_part_runs_its_stages_in_processes_of_their_own_and_prints_their_table(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(kit, "STAGES", (BY_NAME["floors"], BY_NAME["dpo"]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert kit.main(["part-1", "--tiny", "--out", str(tmp_path)]) == 0
    assert [file.name for file in tmp_path.glob("*.json")] == ["floors.json"]
    out = capfd.readouterr().out
    assert "floors: done in " in out and "### floors\n" in out and "| matrix product (size 256) |" in out


@pytest.mark.long
@pytest.mark.slow
def test_a_stage_that_hangs_is_ended_and_what_it_measured_is_kept(tmp_path):
    file = tmp_path / "x.json"
    status, _, err = run_python("-c", HANGS, str(file))
    record = json.loads(file.read_text())
    assert status == LATE_STATUS and "ended after" in err
    assert record["state"] == "out of time" and record["measurements"][0]["name"] == "before"


@pytest.mark.long
@pytest.mark.slow
def test_a_job_whose_time_is_over_is_ended(tmp_path):
    job = jobs.launched(["recipes.trainer.num_nodes=1"], tmp_path, 0.05)
    assert job.status is None and job.seconds < jobs.END_S and job.steps == [] and job.timeline == {}


def test_a_stage_says_which_modules_jobs_lack(tmp_path, monkeypatch):
    results = Results("nccl", tmp_path / "nccl.json", Budget(1), tiny=True)
    monkeypatch.setattr(jobs, "NEEDED", ("json", "no_such_module"))
    jobs.nccl(results)
    assert results.finish() == "failed"
    assert "no_such_module" in results.problems[0] and "json" not in results.problems[0].partition(";")[0]


def test_every_part_ends_within_its_time():
    for part in PARTS:
        assert sum(stage.seconds for stage in STAGES if stage.part == part) <= kit.PART_S
    assert kit.PART_S <= 9 * 60


@pytest.mark.parametrize(
    ("gpus", "version", "labels"),
    [
        pytest.param(0, None, ["two ranks on the CPU, gloo"], id="no_gpu"),
        pytest.param(2, (2, 28), ["two ranks on two GPUs, nccl"], id="two_gpus"),
        pytest.param(1, (2, 28), ["one rank, nccl", "two ranks on one GPU, gloo"], id="one_gpu"),
        pytest.param(
            1,
            (2, 30),
            ["one rank, nccl", "two ranks on one GPU, gloo", "two ranks on one GPU, nccl"],
            id="one_gpu_that_ranks_may_share",
        ),
    ],
)
def test_two_ranks_use_what_the_machine_allows(gpus, version, labels):
    found = jobs.settings_of(gpus, version)
    assert [label for label, *_ in found] == labels
    assert all(ranks == (1 if label.startswith("one rank") else 2) for label, ranks, *_ in found)


def test_a_meter_leaves_the_first_steps_out_and_ends():
    meter = Meter(Pace(seconds=1e9, steps=3), Budget(1e9), torch.device("cpu"))
    assert [meter.tick() for _ in range(WARMUP_STEPS + 3)] == [False] * (WARMUP_STEPS + 2) + [True]
    assert len(meter.steps_s) == 3


def test_a_meter_ends_with_the_time_of_its_stage():
    meter = Meter(Pace(seconds=1e9, steps=1000), Budget(0), torch.device("cpu"))
    for _ in range(WARMUP_STEPS):
        meter.tick_or_end()
    with pytest.raises(Enough):
        meter.tick_or_end()


def test_a_median_has_a_ratio_to_its_floor_and_a_goal():
    row = median_of("x", "s", [3.0, 1.0, 2.0], floor=4.0, floor_name="y", goal=1.5, goal_is_least=False)
    assert (row.value, row.ratio, row.meets_goal) == (2.0, 0.5, False)
    assert median_of("x", "s", []).value is None and Measurement("x", 1.0, "s").meets_goal is None


def test_the_table_shows_goals_floors_and_what_was_not_measured(tmp_path, capsys):
    results = Results("floors", tmp_path / "floors.json", Budget(5), tiny=False)
    results.add(
        Measurement(
            "speed", 9000.0, "tokens/s", floor=6000.0, floor_name="TRL", ratio=1.5, goal=8300, shape={"micro": 2}
        ),
        Measurement("memory", None, "GB", note="the CPU counts no peak"),
    )
    results.problem("trl: out of memory\nand a long trace")
    results.finish()
    assert kit.main(["table", str(results.file)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"### floors\n\npartial in \d+ s on ", out)
    assert (
        "| what | goal | measured | floor | ratio |\n| --- | --- | --- | --- | --- |\n"
        "| speed (micro 2) | ≥ 8,300 tokens/s | **9,000 tokens/s**, met | 6,000 tokens/s, TRL | 1.5 × |\n"
        "| memory |  | –; the CPU counts no peak |  |  |\n\n"
        "- Not measured: trl: out of memory\n"
    ) in out


def test_operations_are_those_of_the_parameters_that_a_token_meets():
    llama, gpt_oss = Shape(LLAMA_8B, 4096, 4, 1, False, LORA), Shape(GPT_OSS, 4096, 4, 1, True, EXPERTS)
    assert estimate.flops_per_token(llama, model_config(llama)) == 4 * 8_030_261_248
    assert estimate.active_parameters(model_config(gpt_oss)) == pytest.approx(4.19e9, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "adapters"])
def test_the_estimate_of_weights_is_exact(peft):
    shape = Shape(LLAMA_1B, 32, 4, 1, False, peft)
    config = rehearsal_config(LLAMA_1B, "", 512)
    model, _ = built(config, settings_of(compiled(shape), 1), torch.device("cpu"), has_weights=False)
    parts = estimate.memory_bytes(shape, config, on_gpu=False)
    assert parts["weights"] == 4 * sum(each.numel() for each in model.parameters())
    trained = sum(each.numel() for each in trained_parameters(model))
    assert parts["gradients and optimizer"] == 12 * trained


@pytest.mark.slow
@pytest.mark.parametrize("peft", [None, LORA], ids=["full", "adapters"])
def test_the_estimate_of_activations_is_near_what_autograd_keeps(peft):
    """Of the layers: the head is computed in parts."""
    shape = Shape(LLAMA_1B, 256, 4, 1, False, peft)
    config = rehearsal_config(LLAMA_1B, "", 512)
    model, _ = built(config, settings_of(compiled(shape), 1), torch.device("cpu"), has_weights=False)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept = {}

    def note(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = (
            language_model(model.train())
            .model(input_ids=torch.zeros((1, shape.tokens), dtype=torch.int64))
            .last_hidden_state
        )
    estimated = config["num_hidden_layers"] * shape.tokens * estimate.layer_activations(shape, config, 4)
    assert out.requires_grad and 0.8 < estimated / sum(kept.values()) < 1.1


def test_the_page_names_the_stages_in_the_order_that_they_run_in():
    page = (ROOT / "docs" / "gpu-kit.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    found = [(name.strip(" `"), part.strip()) for name, part in rows]
    assert found == [(stage.name, str(stage.part)) for stage in STAGES]


def test_carried_wheels_have_a_version():
    known = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()
    }
    lines = (ROOT / "benchmarks" / "gpu" / "wheels.txt").read_text().splitlines()
    names = {line.partition("#")[0].strip().lower().replace("_", "-") for line in lines} - {""}
    assert names <= known


@pytest.mark.slow
def test_memory_of_the_cpu_is_not_counted():
    devices.free(torch.device("cpu"))
    assert devices.peak_bytes(torch.device("cpu")) is None
