"""The examination of a job on this machine, for real, and how questions that have no answer are reported."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import mlflow_server
import pytest
import torch
from conftest import ROOT, in_process
from safetensors.torch import save_file

import launcher
from launcher import pipeline
from launcher.cli import main as cli
from launcher.common.problems import Notice, Problem, fail
from launcher.doctor import inputs, machine
from launcher.model import finding
from launcher.model.finding import Finding, FindingState, Question, answers, ok
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

SFT = "llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora"
DPO = "llmft_llama3_2_1b_instruct_seq4k_gpu_dpo"
TRAIN, VALIDATION = "training_config.datasets.train_data.file_path", "training_config.datasets.val_data.file_path"
MODEL = "training_config.model_config.model_name_or_path"
TALK = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_subject(findings):
    found = {}
    for each in findings:
        found.setdefault(each.subject, []).append(each)
    return found


def examined(recipe, **keys):
    return by_subject(launcher.compile(recipe, keys, strict=False).doctor())


def model_in(folder, *, is_complete=True):
    """Make a model's folder, with the tokenizer of a rehearsal."""
    shutil.copytree(write_rehearsal_data(folder.parent / "made", "sft", seed=0).tokenizer_folder, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"model.norm.weight": torch.ones(2)}, folder / "model.safetensors")
    if not is_complete:
        index = {"weight_map": {"model.norm.weight": "model.safetensors", "lm_head.weight": "model-2.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def samples_in(file, *samples):
    file.write_text("".join(json.dumps(each) + "\n" for each in samples))


def test_a_job_that_would_run_has_a_line_for_each_subject_and_nothing_is_written(here, recipes):
    before = sorted(here.rglob("*"))
    code, out, _ = recipes("doctor", "tiny_lm_cpu")
    assert code == 0 and sorted(here.rglob("*")) == before
    lines = [line.split() for line in out.splitlines()[1:]]
    assert [words[:2] for words in lines] == [
        ["ok", each] for each in ("recipe", "disk", "memory", "ports", "versions", "tracking")
    ]


def test_data_and_model_of_a_job_are_really_read(here):
    model_in(here / "model")
    samples_in(here / "talks.jsonl", TALK, TALK)
    samples_in(here / "more.jsonl", TALK)
    samples_in(here / "pairs.jsonl", PAIR)
    found = examined(SFT, **{TRAIN: "talks.jsonl", VALIDATION: "more.jsonl", MODEL: "model"})
    assert [each.state for each in found["data"]] == [FindingState.OK] * 2
    assert found["data"][0].message == "talks.jsonl: the first 2 samples are conversations"
    (model,) = found["model"]
    assert model.state is FindingState.OK and "llama, 1 tensors" in model.message
    found = examined(DPO, **{TRAIN: "pairs.jsonl", MODEL: "model"})
    assert found["data"][0].message == "pairs.jsonl: the first 1 samples are preference pairs"


@pytest.mark.parametrize(
    ("recipe", "sample", "words"),
    [(SFT, {"question": "x"}, "unknown columns: question"), (DPO, TALK, "chosen")],
    ids=["sft", "dpo"],
)
def test_columns_of_another_technique_are_a_failure(here, recipe, sample, words):
    model_in(here / "model")
    samples_in(here / "data.jsonl", sample)
    (found,) = examined(recipe, **{TRAIN: "data.jsonl", MODEL: "model"})["data"]
    assert (found.state, found.code) == (FindingState.FAILURE, "E277")
    assert words in found.message and "data.jsonl:1" in found.message and "recipes data" in found.remedy


@pytest.mark.slow
def test_every_fault_of_this_machine_has_its_line(here, closed_port, monkeypatch, capsys):
    model_in(here / "model", is_complete=False)
    (here / "file").touch()
    (here / "empty.jsonl").touch()
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr("launcher.doctor.machine._version", {"torch": "1.0"}.get)
    monkeypatch.delenv("MY_TOKEN", raising=False)
    words = [
        *("doctor", SFT, f"recipes.{TRAIN}=empty.jsonl", f"recipes.{MODEL}=model", "base_results_dir=file/results"),
        f"recipes.training_config.mlflow.tracking_uri=http://127.0.0.1:{closed_port}",
        "env_vars.HF_TOKEN={env: MY_TOKEN}",
        "+recipes.checkpointing.estimate.parameters=1000000",
    ]
    assert cli.run([*words, "--json"]) == 2
    (result,) = json.loads(capsys.readouterr().out)
    assert result["would_fail"] is True
    states = {(each["subject"], each["state"], each["code"]) for each in result["findings"]}
    assert states >= {
        ("recipe", "ok", None),
        ("data", "failure", "E277"),
        ("model", "failure", "E116"),
        ("disk", "failure", "E702"),
        ("secrets", "failure", "E448"),
        ("tracking", "failure", "E501"),
        ("versions", "warning", None),
    }
    assert all(each["remedy"] for each in result["findings"] if each["state"] == "failure")
    assert cli.run([*words, f"base_results_dir={here}/results"]) == 2
    (disk,) = [line for line in capsys.readouterr().out.splitlines() if " disk " in line]
    assert "failure" in disk and "but a checkpoint takes" in disk and "remedy: make room" in disk


def test_a_disk_for_one_checkpoint_of_those_that_are_kept_is_a_warning(here, monkeypatch):
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3 << 20))
    (disk,) = examined("tiny_lm_cpu")["disk"]
    assert disk.state is FindingState.WARNING and "4 exist at a time" in disk.message


def test_a_full_disk_is_a_failure_although_the_size_of_checkpoints_is_unknown(here, monkeypatch):
    usage = shutil.disk_usage(here)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    monkeypatch.setattr(machine, "_expected", lambda prepared: None)
    (disk,) = examined("tiny_lm_cpu")["disk"]
    assert (disk.state, disk.code) == (FindingState.FAILURE, "E433") and "not even a bundle fits" in disk.message


def test_a_folder_that_the_system_refuses_to_look_at_is_a_failure(here, monkeypatch):
    (disk,) = examined("tiny_lm_cpu", base_results_dir="x" * 300)["disk"]
    assert (disk.state, disk.code) == (FindingState.FAILURE, "E702")
    stat = Path.stat

    def refusing(path, **how):
        if path.is_relative_to(here / "closed" / "below"):
            raise PermissionError(errno.EACCES, "", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", refusing)
    place, number = machine._nearest(here / "closed" / "below")
    assert (place, number) == (here / "closed" / "below", errno.EACCES)


DIGEST = "sha256:" + "0" * 64


@pytest.mark.slow
@pytest.mark.parametrize(
    "image",
    [
        "UPPER/Case:tag",
        "a b",
        "me/image@sha256:123",
        "me/image:a:b",
        "me//x:1",
        ":::",
        "a" * 9999 + ":",
    ],
)
def test_what_is_no_image_reference_is_a_failure(here, image):
    given = {TRAIN: "/fsx/a", MODEL: "/fsx/m", "container": image}
    plan = launcher.compile(SFT, given, cluster="slurm", strict=False)
    assert {(each.code, each.state) for each in plan.doctor()} == {("E436", FindingState.FAILURE)}


@pytest.mark.parametrize(
    ("image", "cluster"),
    [
        *((f"Reg.example.org:5000/a/b-c__d.e:v1.0{end}", "k8s") for end in ("", f"@{DIGEST}")),
        *((f"123456789012.dkr.ecr.us-east-1.amazonaws.com/x@{DIGEST}", "k8s"), ("[::1]:5000/x:1", "k8s")),
        *(("docker://nvcr.io/nvidia/pytorch:24.01-py3", "slurm"), ("nvcr.io#nvidia/pytorch:24.01-py3", "slurm")),
    ],
)
def test_image_references_of_each_form_are_fine(here, image, cluster):
    assert {each.state for each in answered_about(image, cluster)} == {FindingState.OK}


def answered_about(image, cluster):
    given = {TRAIN: "/fsx/a", MODEL: "/fsx/m", "container": image}
    own = {"cluster.container_runtime": "pyxis"} if cluster == "slurm" else {}
    plan = launcher.compile(SFT, given | own, cluster=cluster, strict=False)
    prepared = pipeline.prepared(plan.overrides, plan.context, needs_inputs=False)
    (question,) = [each for each in inputs.questions(prepared) if each.subject == "image"]
    return [finding.found("image", each) for each in question.ask()]


def test_a_plan_with_faults_has_them_as_failures(here, recipes):
    code, out, _ = recipes("doctor", "tiny_lm_cpu", "no_such_recipe", "recipes.trainer.num_nodes=two")
    assert code == 2 and out.count("failure  recipe") == 2
    assert "should be a valid integer" in out and "no_such_recipe" in out


def test_a_tracking_store_that_no_job_can_use_is_one_failure(here):
    found = examined("tiny_lm_cpu", **{"training_config.mlflow.tracking_uri": "postgresql://db/mlflow"})
    assert [(each.state.value, each.code) for each in found["tracking"]] == [("failure", "E507")]
    assert found["recipe"][0].state.value == "ok"


@pytest.mark.slow
def test_the_clock_of_a_tracking_server_is_compared(here, tmp_path):
    with mlflow_server.running(tmp_path) as url:
        found = examined("tiny_lm_cpu", **{"training_config.mlflow.tracking_uri": url})
    assert found["tracking"][0].message == f"{url} answers"
    assert "within 30 s of the tracking server" in found["tracking"][0].message or "clock" in found


@pytest.mark.slow
def test_files_that_only_the_cluster_sees_are_unknown(here):
    keys = {TRAIN: "/fsx/data.jsonl", MODEL: "/fsx/model"}
    plan = launcher.compile(SFT, keys, cluster="k8s")
    lines = by_subject(each for each in plan.doctor() if each.subject in ("data", "model", "image"))
    assert [each.state for each in lines["data"]] == [each.state for each in lines["model"]] == [FindingState.UNKNOWN]
    latest = launcher.compile(SFT, {**keys, "container": "me/image:latest"}, cluster="k8s")
    (image,) = [each for each in latest.doctor() if each.subject == "image"]
    assert image.state is FindingState.WARNING and "sha256" in image.remedy


@pytest.mark.slow
def test_a_question_that_fails_or_never_ends_is_unknown_and_keeps_no_other_from_its_answer():
    release = threading.Event()

    def never():
        release.wait()
        return []

    def fails():
        yield ok("b", "this much is known")
        raise KeyError("phase")

    def leads():
        yield Problem("E349", "cluster.x", "not found", value="y", allowed="z", remedy="make it")
        yield Question("d", lambda: [Notice("N123", "grows"), ok("d", "asked next")])

    def refused():
        raise fail("E342", "cluster", "no answer")

    asked = [Question("a", never), Question("b", fails), Question("c", leads), Question("e", refused)]
    done = []
    found = list(answers(asked, 0.5, frozenset({"E342"}), lambda *numbers: done.append(numbers)))
    release.set()
    assert [(each.subject, each.state.value) for each in found] == [
        *[("a", "unknown"), ("b", "ok"), ("b", "unknown"), ("c", "failure"), ("d", "warning"), ("d", "ok")],
        ("e", "unknown"),
    ]
    assert found[0].message == "no answer within 0.5 s" and "KeyError" in found[2].message
    assert found[3].message == "cluster.x=y: not found (allowed: z)" and (done[0][1], done[-1][1]) == (4, 5)


def test_a_finding_shows_no_secret_and_is_one_line():
    found = Finding("x", FindingState.UNKNOWN, "http://ada:hunter2hunter2@host/a\nfails")
    assert "hunter2" not in found.message and "\n" not in found.message


@pytest.mark.slow
def test_a_model_of_the_hub_is_asked_for_there(here):
    sys.path.insert(0, str(ROOT / "tests" / "runtime" / "finetune"))
    try:
        from hub_server import Hub, serving
    finally:
        sys.path.pop(0)
    hub = Hub()
    commit = hub.push("org/model", {"config.json": b"{}"})
    samples_in(here / "talks.jsonl", TALK)

    def asked(name, url):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": url, "HF_HOME": str(here / "hub")}
        environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
        words = ["doctor", SFT, f"recipes.{TRAIN}=talks.jsonl", f"recipes.{MODEL}={name}", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words], env=environment, capture_output=True, text=True
        )
        (found,) = [each for each in json.loads(done.stdout)[0]["findings"] if each["subject"] == "model"]
        return done.returncode, found["state"], found["message"]

    with serving(hub):
        assert asked("org/model", hub.url) == (0, "ok", f"org/model: the Hub gives it to you, commit {commit[:12]}")
        code, state, message = asked("org/other", hub.url)
        assert (code, state) == (2, "failure") and "the Hub refuses it" in message
        gone = hub.url
    code, state, _ = asked("org/model", gone)
    assert (code, state) == (0, "unknown")


def test_no_recipe_is_a_problem(here):
    done = in_process(cli.run, "doctor", cwd=Path())
    assert done.returncode == 2 and "names no recipe" in done.stderr
