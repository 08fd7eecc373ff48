"""What a bundle for an existing Ray cluster asks for, what is refused, and how Ray's answers are read. No cluster."""

import dataclasses
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import frozen_context

from launcher import pipeline
from launcher.backends.ray import follow
from launcher.backends.ray.backend import RayBackend
from launcher.backends.ray.client import Cluster, address_of
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobState, JobStatus, LogSelection

SCRIPT = ("recipes=training/custom/script", "cluster=ray")
ENTRY = "training_cfg.entry_script=train.py"
GRPO = (
    *("recipes=fine-tuning/llama/verl-grpo-rlvr-llama-3-dot-1-8b-instruct-lora", "cluster=ray"),
    *(
        "recipes.training_config.data.train_files=/fsx/a.parquet",
        "recipes.training_config.data.val_files=/fsx/b.parquet",
    ),
)
URL = "cluster.address=http://127.0.0.1:9"


@pytest.fixture
def code(tmp_path):
    """Make a folder with a script where jobs are launched."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()


def asked(bundle):
    return json.loads(bundle.files["ray/request.json"])


def test_grpo_starts_one_driver_with_the_folder_of_its_configurations(render):
    bundle = render(*GRPO, "recipes.trainer.num_nodes=2", "recipes.run.hf_access_token={env: HUB}")
    request = asked(bundle)
    assert request["job"]["entrypoint"] == (
        'python -u -m verl.trainer.main_ppo --config-path "$PWD"/recipes-configs --config-name verl_config'
    )
    assert request["job"]["submission_id"] == bundle.job_name == request["job"]["metadata"]["job_name"]
    assert request["secrets"] == {"HF_TOKEN": "HUB"} and request["address"] is None
    assert (request["nodes"], request["accelerators"]) == (2, {"GPU": 8})
    assert "configs/verl_config.yaml" in bundle.files
    assert request["job"]["runtime_env"]["env_vars"]["TRAIN_FILES"] == "/fsx/a.parquet"


def test_the_words_of_a_script_are_quoted_for_a_shell(render, code):
    words = ('training_cfg.script_args=[{--text: "it\'s $HOME"}, {--configs: bundle:configs}]', ENTRY)
    request = asked(render(*SCRIPT, *words, "cluster.working_dir=code", "cluster.entrypoint_resources={driver: 0.5}"))
    assert request["job"]["entrypoint"] == (
        "python -u train.py --text 'it'\"'\"'s $HOME' --configs \"$PWD\"/recipes-configs"
    )
    assert request["job"]["entrypoint_resources"] == {"driver": 0.5} and request["accelerators"] == {}
    assert request["working_dir"].endswith("/code")


def test_a_command_replaces_the_program_and_what_it_needs(render):
    request = asked(render(*GRPO, "cluster.command=[python, mine.py, bundle:configs]"))
    assert request["job"]["entrypoint"] == 'python mine.py "$PWD"/recipes-configs'
    assert request["accelerators"] == {}


def test_a_module_is_started_as_one(render):
    assert (
        asked(render(*SCRIPT, "training_cfg.entry_module=my.train"))["job"]["entrypoint"] == "python -u -m my.train"
    )


@pytest.mark.parametrize(
    ("words", "code_and_key"),
    [
        (("recipes=training/tiny/tiny_lm_cpu", "cluster=ray"), ("E820", "recipes.run.model_type")),
        ((*SCRIPT, ENTRY), ("E821", "recipes.training_cfg.entry_script")),
        (
            (*SCRIPT, "training_cfg.entry_script=../train.py", "cluster.working_dir=."),
            ("E821", "recipes.training_cfg.entry_script"),
        ),
        ((*SCRIPT, ENTRY, "cluster.working_dir=absent"), ("E826", "cluster.working_dir")),
        ((*SCRIPT, ENTRY, "cluster.working_dir=."), ("E826", "recipes.training_cfg.entry_script")),
        ((*GRPO, "++env_vars.A_TOKEN={secretKeyRef: {name: a, key: b}}"), ("E605", "env_vars.A_TOKEN")),
        ((*GRPO, "cluster.address=ray://head:10001"), ("E102", "cluster.address")),
        ((*GRPO, "cluster.entrypoint_num_gpus=-1"), ("E102", "cluster.entrypoint_num_gpus")),
    ],
    ids=["agent", "no-folder", "above", "folder", "script", "secret", "client-address", "negative"],
)
def test_what_ray_cannot_run_is_refused(problems, words, code_and_key):
    assert code_and_key in [(each.code, each.path) for each in problems(*words)]


def test_an_elastic_script_is_refused(problems, code):
    words = ("recipes.elastic_policy.is_elastic=true", "recipes.elastic_policy.max_nodes=2")
    words = ("recipes=training/custom/elastic_script", "cluster=ray", *words)
    assert "E211" in [each.code for each in problems(*words, "cluster.working_dir=code", ENTRY)]


def test_a_folder_may_not_have_the_name_of_the_configurations(problems, code, tmp_path):
    (tmp_path / "code" / "recipes-configs").mkdir()
    found = problems(*SCRIPT, ENTRY, "cluster.working_dir=code")
    assert [(each.code, each.path) for each in found] == [("E826", "cluster.working_dir")]


def test_a_secret_that_ray_keeps_is_a_notice(prepare):
    assert [each.code for each in prepare(*GRPO, "++env_vars.A_TOKEN={env: MINE}").notices].count("N189") == 1
    assert "N189" not in [each.code for each in prepare(*GRPO).notices]


@pytest.mark.parametrize("given", ["auto", "127.0.0.1:6379", "ray://head:10001"])
def test_an_address_of_the_environment_that_is_no_dashboard_is_a_problem(monkeypatch, given):
    monkeypatch.setenv("RAY_ADDRESS", given)
    with pytest.raises(ProblemsFound, match="E823 cluster.address"):
        address_of(None)
    assert address_of("https://here:8265/") == "https://here:8265"
    monkeypatch.setenv("RAY_ADDRESS", "http://there:8265/")
    assert address_of(None) == "http://there:8265"
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(ProblemsFound, match="RAY_ADDRESS is not set"):
        address_of(None)


def test_without_ray_its_package_is_named(monkeypatch, render):
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    bundle = render(*GRPO, URL)
    with pytest.raises(ProblemsFound, match=r"(?s)E822.*pip install '\.\[ray\]'"):
        RayBackend().validate(bundle)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_a_problem(render, closed_port):
    pytest.importorskip("ray")
    bundle = render(*GRPO, f"cluster.address=http://127.0.0.1:{closed_port}")
    with pytest.raises(ProblemsFound, match="E823 cluster.address"):
        RayBackend().validate(bundle)


@pytest.mark.slow
def test_what_is_not_a_dashboard_is_a_problem(tmp_path):
    pytest.importorskip("ray")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ProblemsFound, match="E823|E825"):
            Cluster(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_a_job_on_another_cluster_is_not_taken_for_this_one(render, monkeypatch):
    bundle = render(*GRPO)
    monkeypatch.setenv("RAY_ADDRESS", "http://there:8265")
    known = RayBackend().intent(bundle, None)
    assert RayBackend().intent(bundle, known) == known
    monkeypatch.setenv("RAY_ADDRESS", "http://here:8265")
    with pytest.raises(ProblemsFound, match="E348"):
        RayBackend().intent(bundle, known)


def details(status, message=None, **more):
    """Return a job as Ray's client describes it."""
    times = {"start_time": 1000, "end_time": 2500 if status in ("SUCCEEDED", "FAILED", "STOPPED") else None}
    own = {
        "submission_id": "job",
        "entrypoint": "python a",
        "message": message,
        "status": SimpleNamespace(value=status),
    }
    return SimpleNamespace(**times, **own, **more)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        ("PENDING", "Job has not started yet.", JobStatus(JobState.PENDING, 0, "Job has not started yet.")),
        ("RUNNING", "Job is currently running.", JobStatus(JobState.RUNNING, 2)),
        ("SUCCEEDED", "Job finished successfully.", JobStatus(JobState.SUCCEEDED, 0)),
        ("STOPPED", "Job was stopped.", JobStatus(JobState.CANCELLED, 0, "Job was stopped.")),
        (
            "FAILED",
            "exit code 3, last available logs (truncated to 20,000 chars):\nRunning\nValueError: no\n\n",
            JobStatus(JobState.FAILED, 0, "exit code 3: ValueError: no"),
        ),
    ],
)
def test_states_of_ray(status, message, expected):
    assert follow.read_status(details(status, message), 2) == expected


def test_events_are_those_that_ray_records():
    assert [(each.kind, each.time_s) for each in follow.events(details("RUNNING"))] == [("Submitted", 1.0)]
    _, end = follow.events(details("FAILED", "no"))
    assert (end.kind, end.time_s, end.message, end.is_warning) == ("Failed", 2.5, "no", True)
    assert list(follow.events(None)) == []


def test_a_log_that_grows_is_read_line_by_line():
    job, log = details("RUNNING"), follow.DriverLog(LogSelection(ranks=None, has_headings=True))
    head = "12:00 INFO job_manager.py:581 -- Runtime env is setting up.\n"
    begin = f"{head}Running entrypoint for job job: python a\n"
    assert list(log.new_lines(head, job, is_last=False)) == []
    assert list(log.new_lines(f"{begin}one\n\ntw", job, is_last=False)) == [
        *("event  Ray: Runtime env is setting up.", "== attempt 0", "rank 0 | one", "rank 0 | ")
    ]
    assert list(log.new_lines(f"{begin}one\n\ntw", job, is_last=False)) == []
    assert list(log.new_lines(f"{begin}one\n\ntwo", job, is_last=True)) == ["rank 0 | two"]
    unstarted = follow.DriverLog(LogSelection())
    assert list(unstarted.new_lines("no environment\n", job, is_last=True)) == ["event  Ray: no environment"]


def test_a_driver_has_one_stream(tmp_path):
    with pytest.raises(ProblemsFound, match="E828"):
        follow.refuse_unknown(LogSelection(is_stderr=True))


def test_a_bundle_without_a_request_is_named(render, tmp_path):
    bundle = dataclasses.replace(render(*GRPO), files={})
    with pytest.raises(ProblemsFound, match="E703"):
        RayBackend().validate(bundle)


def test_bytes_do_not_depend_on_the_environment(monkeypatch):
    first, second = [], []
    for found in (first, second):
        context = frozen_context(Path("/launch"))
        found.append(pipeline.render(pipeline.prepare((*GRPO, URL), context), context).files)
        monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    assert first == second
