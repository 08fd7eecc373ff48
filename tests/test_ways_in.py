"""The ways in: 50 random jobs of each cluster are the same from Python, as text and as JSON, valid or not."""

import dataclasses
import functools
import itertools
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NamedTuple

import hypothesis
import pytest
import typer.main
from conftest import CACHE, composed, frozen_context, in_process, needed_by, shipped

import launcher
from launcher import Plan, ProblemsFound, Session, pipeline
from launcher.api import detached, job
from launcher.bundle import store
from launcher.cli import main as cli
from launcher.cli import run_command
from launcher.common.names import REPRODUCE_FILE
from launcher.common.problems import fail
from launcher.config.collection import clusters
from launcher.job_store import tracking
from launcher.model import backend_registry
from launcher.model.config_tree import ABSENT, leaves
from launcher.model.context import LaunchContext
from launcher.model.job_spec import Bundle

pytestmark = pytest.mark.slow
RECIPES = {each.name: each for each in shipped()}
CASES = 50
"""Random jobs of each cluster."""
_TRAINING_JOB = {
    "cluster.sm_jobs_config.role": "arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path": "s3://results/out",
}
SCALED = [each.choice for each in backend_registry.descriptions() if each.scaling]
ALSO = {"sm_jobs": _TRAINING_JOB, "sm_local": _TRAINING_JOB}
"""What jobs of a cluster cannot do without."""
SMALL = ("training/tiny/tiny_lm_cpu", "training/custom/script")
USUAL = {"local": SMALL, "sm_local": SMALL[:1], "ray": tuple(name for name in RECIPES if "grpo" in name)}
"""Recipes that run where most do not."""
FREE = [
    ("env_vars", {"A": "x y", "B_1": "1"}, "++env_vars={A:'x y',B_1:'1'}"),
    ("recipes.display_name", 'it\'s "a, b"', "++recipes.display_name='it\\'s \"a, b\"'"),
    ("display_name", None, "++recipes.display_name=null"),
    ("base_results_dir", "results", "++base_results_dir=results"),
    ("extra_keys", ["a.b", "c"], "++recipes.extra_keys=[a.b,c]"),
    ("a", {"b": 1e-05}, "++recipes.a={b:1e-05}"),
    ("trainer.num_nodes", 3, "++recipes.trainer.num_nodes=3"),
    ("trainer.num_nodes", "two", "++recipes.trainer.num_nodes=two"),
    ("scale_config", "auto", "++recipes.scale_config=auto"),
    ("instance_type", "ml.p5.48xlarge", "++instance_type=ml.p5.48xlarge"),
    ("container", None, "++container=null"),
]
"""Overrides of any job, or of no valid one, as a key with a value and as a word of a command line."""


class Case(NamedTuple):
    """A random job, as Python has it and as a command line has it."""

    recipe: str
    overrides: dict[str, Any]
    cluster: str
    elastic: bool | None
    words: list[str]


def cases(cluster: str) -> Iterator[Case]:
    """Yield the random jobs of a cluster, always the same ones; many are faulty."""
    chance = random.Random(cluster)
    for _ in range(CASES):
        name = chance.choice(USUAL[cluster] if cluster in USUAL and chance.random() < 0.7 else list(RECIPES))
        usual = None if cluster in SCALED else False
        elastic = chance.choice((usual, usual, None, True, False))
        given = [*needed(name, cluster), *changed(name, chance), ("dry_run", True, "++dry_run=true")]
        overrides = {key: value for key, value, _ in given}
        words = [next(word for key, _, word in reversed(given) if key == each) for each in overrides]
        words.append(f"cluster={cluster}")
        if elastic is not None:
            words.append(f"++recipes.elastic_policy.is_elastic={str(elastic).lower()}")
        yield Case(name, overrides, cluster, elastic, words)


def needed(name: str, cluster: str) -> Iterator[tuple[str, Any, str]]:
    """Yield what a recipe cannot be launched without on a cluster."""
    words = [word.lstrip("+").partition("=")[::2] for word in needed_by(RECIPES[name], cluster)]
    for key, value in [*words, *ALSO.get(cluster, {}).items()]:
        text = value.strip("'")
        is_bare = re.fullmatch(r"[a-z][\w./-]*|[0-9]+", text)
        yield key, int(text) if text.isdigit() else text, f"++{key}={text if is_bare else repr(text)}"
    if name.startswith("fine-tuning") and "verl" not in name and cluster in ("local", "sm_local"):
        yield "rehearse", True, "++rehearse=true"


def changed(name: str, chance: random.Random) -> Iterator[tuple[str, Any, str]]:
    """Yield random values of a recipe's own keys, and of others."""
    if name.startswith(("training/tiny", "fine-tuning")) and chance.random() < 0.9:
        yield "training_config.mlflow.enabled", False, "++recipes.training_config.mlflow.enabled=false"
    own = [each for each in leaves(composed(name).tree["recipes"]) if not each[0].startswith("training_cfg")]
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        key, value = chance.choice(own)
        other, text = chance.choice(like(value))
        yield key, other, f"++recipes.{key}={text}"
    yield from chance.sample(FREE, chance.choice((0, 0, 1)))


def like(value: Any) -> list[tuple[Any, str]]:
    """Return what may replace a value, each with its text on a command line."""
    if isinstance(value, bool):
        return [(True, "true"), (False, "false"), (None, "null")]
    if isinstance(value, int):
        return [(value + 1, f"{value + 1}"), (2 * value, f"{2 * value}"), (0, "0"), (-1, "-1"), ("x", "x")]
    if isinstance(value, float):
        return [(0.25, "0.25"), (1e-4, "0.0001"), (1e300, "1e+300"), (-1, "-1"), ("0.1", "'0.1'")]
    if isinstance(value, list):
        return [([], "[]"), (["a", 1, [None]], "[a,1,[null]]"), (None, "null")]
    return [("x-1", "x-1"), ("/data/größe", "'/data/größe'"), (7, "7"), (None, "null"), ({"k": "v"}, "{k:v}")]


@pytest.fixture
def alike(tmp_path, monkeypatch):
    """Fix what two launches differ in, and have the commands keep what they have read, as a session does."""
    context = frozen_context(tmp_path)
    monkeypatch.setattr(LaunchContext, "read", lambda: context)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))
    for module in ("launcher.pipeline.CompositionCache", "launcher.config.compose.CompositionCache"):
        monkeypatch.setattr(module, lambda: CACHE)
    return tmp_path


@pytest.mark.sample
@pytest.mark.parametrize("cluster", clusters())
def test_a_random_job_is_the_same_by_every_way_in(cluster, alike, monkeypatch, capfd):
    count = CASES if hypothesis.settings.default.max_examples >= 100 else 6
    launches, session = Launches(monkeypatch), Session(cache=CACHE)
    plans = []
    for number, case in enumerate(itertools.islice(cases(cluster), count)):
        run = (in_main, in_run)[number % 2]
        plan = launcher.compile(
            case.recipe, case.overrides, cluster=case.cluster, elastic=case.elastic, strict=False, session=session
        )
        assert capfd.readouterr() == ("", "")
        assert list(plan.overrides) == [f"recipes={case.recipe}", *case.words]
        plans.append(plan)
        if plan.problems:
            same_refusals(plan, case, alike, run)
        else:
            same_plans(plan, case, alike)
            if number % 3 == 0:
                same_explanation(plan, case, alike)
            same_bundles(plan, alike, run, launches)
    valid, faulty = ([plan for plan in plans if bool(plan.problems) is is_faulty] for is_faulty in (False, True))
    assert min(len(valid), len(faulty)) >= count // 6
    assert len(launches.found) >= count // 6
    for plan, other in itertools.pairwise(valid[: max(2, count // 10)]):
        same_differences(plan, other, alike)


def recipes(*words: str, cwd: Path) -> CompletedProcess[str]:
    return in_process(cli.run, *words, cwd=cwd)


def in_run(*words: str, cwd: Path) -> CompletedProcess[str]:
    return recipes("run", *words, cwd=cwd)


def in_main(*words: str, cwd: Path) -> CompletedProcess[str]:
    """Run what `main.py` runs."""
    return in_process(run_command.run, *words, cwd=cwd)


def same_refusals(plan: Plan, case: Case, folder: Path, run: Callable[..., CompletedProcess[str]]) -> None:
    """Compare the Problems of commands that would do something, and of one that only checks. Nothing is written."""
    done = recipes("check", case.recipe, *case.words, "--json", cwd=folder)
    (checked,) = json.loads(done.stdout)["checked"]
    assert (done.returncode, done.stderr) == (2, "")
    assert checked["problems"] == json.loads(json.dumps(list(map(dataclasses.asdict, plan.problems))))
    text = "".join(f"{problem}\n" for problem in plan.problems)
    done = run(*plan.overrides, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(text)
    with pytest.raises(ProblemsFound) as refused:
        plan.write()
    assert refused.value.problems == plan.problems
    assert list(folder.iterdir()) == []


def same_plans(plan: Plan, case: Case, folder: Path) -> None:
    """Compare sizes, batches, costs and notices with `recipes plan` as JSON and as text."""
    done = recipes("plan", case.recipe, *case.words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["scales"] == json.loads(json.dumps(plan.sizes))
    assert said["job_name"] == plan.job.name
    assert [launcher.Notice(**each) for each in said["notices"]] == list(plan.notices)
    lines = recipes("plan", case.recipe, *case.words, "--notes", cwd=folder).stdout.splitlines()
    shown = [line for line in lines if re.match(r" +(\* )?\d+ +\d+ ", line)]
    assert [list(map(int, re.findall(r"\d+", line)[:2])) for line in shown] == [
        [row["nodes"], row["ranks"]] for row in plan.sizes
    ]
    assert [line for line in lines if line.startswith("note  ")] == list(map(str, plan.notices))
    if costs := said.get("costs"):
        found = plan.cost()
        assert [(row["nodes"], row["per_hour"]) for row in costs["sizes"]] == [
            (cost.nodes, round(cost.per_hour, 4)) for cost in found
        ]
        assert all(f" {cost.per_hour:,.2f}" in line for cost, line in zip(found, shown, strict=True))


class Launches:
    """What launches would start: each is refused when it is about to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.found: list[Bundle] = []
        monkeypatch.setattr(pipeline, "submit_all", lambda bundles, backend: self.refuse(*bundles))
        monkeypatch.setattr(detached, "start", lambda folder, **_: self.refuse(store.read(folder)[0]))

    def refuse(self, bundle: Bundle) -> None:
        self.found.append(bundle)
        raise fail("E405", "cluster", "is a test's")


def same_bundles(plan: Plan, folder: Path, run: Callable[..., CompletedProcess[str]], launches: Launches) -> None:
    """Compare the files that each way writes, and those that each launches."""
    expected = {path: text.encode() for path, text in plan.files.items()}
    here = plan.bundle.directory
    for write in (lambda: run(*plan.overrides, cwd=folder).check_returncode(), plan.write):
        shutil.rmtree(here, ignore_errors=True)
        write()
        found = {str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()}
        assert json.loads(found.pop(REPRODUCE_FILE))["sources"]["overrides"]  # it has times too
        assert found == expected
    if not tracking.is_tracked(plan.job):  # else each launch has a run of its own
        same_launches(plan, folder, launches)
    shutil.rmtree(folder / "results")


def same_launches(plan: Plan, folder: Path, launches: Launches) -> None:
    """Compare what is launched from the written bundle, and from the plan."""
    here = plan.bundle.directory
    assert recipes("launch", str(here), cwd=folder).returncode == 2
    with pytest.raises(ProblemsFound, match="a test's"):
        job.launched(here)
    shutil.rmtree(here)
    with pytest.raises(ProblemsFound, match="E726 dry_run"):
        plan.submit()
    launched = plan.with_overrides({"dry_run": False})
    with pytest.raises(ProblemsFound, match="a test's"):
        launched.submit()
    expected = [plan, plan, launched]
    assert [each.files for each in launches.found[-3:]] == [each.files for each in expected]
    assert [each.digest for each in launches.found[-3:]] == [each.bundle.digest for each in expected]


def same_explanation(plan: Plan, case: Case, folder: Path) -> None:
    """Compare who set the job's last override with `recipes explain`."""
    key = list(case.overrides)[-2]
    said = json.loads(recipes("explain", case.recipe, key, *case.words, "--json", cwd=folder).stdout)
    found = plan.explain(key)
    assert [each["key"] for each in said] == list(found)
    for each, (path, values) in zip(said, found.items(), strict=True):
        rows = [(value["nodes"], value.get("value", ABSENT), value["set_by"]) for value in each["values"]]
        assert rows == [(value.nodes, value.value, value.origin and value.origin.origin) for value in values], path


def same_differences(plan: Plan, other: Plan, folder: Path) -> None:
    """Compare the differences of two plans with those of `recipes diff` of their bundles."""
    places = [each.write().rename(folder / name) for each, name in ((plan, "one"), (other, "two"))]
    done = recipes("diff", *map(str, places), cwd=folder)
    of_recipe = re.compile(r"[+-] recipes\.(?!training_config\.mlflow\.)")  # a launch fills in those of MLflow
    said, found = (list(filter(of_recipe.match, lines)) for lines in (done.stdout.splitlines(), plan.diff(other)))
    assert said == found
    for place in (*places, folder / "results"):
        shutil.rmtree(place)
