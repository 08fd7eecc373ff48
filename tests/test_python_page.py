"""The page about Python: its examples have the types it promises, and nothing of it prints."""

import ast
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/python.md").read_text("utf-8"), re.S | re.M)
TYPOS = """
from launcher.families.tiny_lm import Recipe as TinyRecipe


def right(plan: launcher.Plan, job: launcher.Job, session: launcher.Session) -> tuple[int, float, str | None]:
    rate: float = plan.config_as(TinyRecipe).training_config.training_args.learning_rate
    launcher.compile("a", ["b=1"], session=session).submit(name="a", detach=False)
    return plan.config.trainer.num_nodes, rate, job.status.message


def of_plan(plan: launcher.Plan) -> object:
    return plan.szies


def of_config(plan: launcher.Plan) -> object:
    return plan.config.trainer.num_nodse


def of_typed_config(plan: launcher.Plan) -> object:
    return plan.config_as(TinyRecipe).training_config.training_args.learning_rte


def of_status(job: launcher.Job) -> object:
    return job.status.mesage


def of_line(job: launcher.Job) -> object:
    return [line.atempt for line in job.logs()]


def of_failure(failed: launcher.JobFailed) -> object:
    return failed.frist_error


def of_package() -> object:
    return launcher.compiel
"""
QUIET = """
import sys, launcher, pathlib
mine = pathlib.Path("mine.yaml")
mine.write_text("defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\\n")
for given in ({"trainer.num_nodes": "two"}, {"a b": 1}, {"cluster.nonsense": 1}):
    assert launcher.compile("./mine.yaml", given, strict=False).problems
plan = launcher.compile("./mine.yaml", {"training_config.training_args.max_epochs": 1}, elastic=True)
llama = launcher.compile("llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora", {"instance_type": "p5.48xlarge"},
                         cluster="k8s", elastic=True)
assert plan.files and plan.explain("learning_rate") and plan._repr_html_() and llama._repr_html_() and llama.cost()
assert plan.diff(plan.with_overrides({"env_vars.A": "b"})) and plan.doctor() and launcher.recipes("tiny")
job = plan.submit(name="mine")
assert list(job.logs(ranks=None, follow=True)) and job.result().state == "succeeded" and list(job.events())
assert len(job.metrics().frame()) and job.goodput and job.results and job.failure is None
assert list(job.timeline().frame().reason) == ["start"]
assert launcher.jobs(state="succeeded") == (launcher.attach("mine"),)
assert job.cancel().state == "succeeded"
failing = plan.with_overrides({"base_results_dir": "failing", "cluster.command": ["./no_such_program"]})
try:
    failing.submit().result()
except (launcher.JobFailed, launcher.ProblemsFound):
    sys.exit(0)
sys.exit(5)
"""


@pytest.mark.slow
def test_the_examples_of_the_page_have_the_types_of_the_api_and_a_typo_is_an_error(tmp_path):
    assert len(EXAMPLES) >= 5
    file = tmp_path / "page.py"
    file.write_text("".join(EXAMPLES) + TYPOS)
    words = ("--config-file=pyproject.toml", "--cache-dir=.mypy_cache", "--follow-imports=silent")
    done = subprocess.run([sys.executable, "-m", "mypy", *words, file], cwd=ROOT, capture_output=True, text=True)
    found = re.findall(r'page\.py:\d+: error: .*has no attribute "(\w+)"', done.stdout)
    typos = ["szies", "num_nodse", "learning_rte", "mesage", "atempt", "frist_error", "compiel"]
    assert (found, done.stdout.count("error:")) == (typos, len(typos)), done.stdout + done.stderr


@pytest.mark.slow
def test_the_api_has_no_call_that_prints():
    printing = {}
    for path in sorted((ROOT / "launcher/api").rglob("*.py")):
        if path.name == "detached.py":  # a program of its own, whose output is its answer
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Call | ast.Attribute) else ""
            if text.startswith("print(") or text in ("sys.stdout", "sys.stderr"):
                printing[f"{path.name}:{node.lineno}"] = text
    assert printing == {}


@pytest.mark.whole_job
def test_nothing_prints(tmp_path):
    pytest.importorskip("hyperpod_elastic_agent")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", QUIET], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
