"""What every backend that can render must do, for every recipe of the collection."""

import ast
import inspect
import itertools
import json
import re

import pytest
from conftest import CACHE, ROOT, frozen_context, needed_by, shipped
from job_suite import *  # noqa: F403  # with this module's stage
from job_suite import WORKER, OrderedStage, write_bundle
from job_suite import test_a_job_is_scaled_within_its_plan_only as test_a_job_is_scaled_within_its_plan_only

from launcher import pipeline
from launcher.backends.local.backend import LocalBackend
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.config.collection import clusters
from launcher.config.compose import compose
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.capabilities import Clusters, Pods, Queue, Scaling
from launcher.planning.check import check
from launcher.planning.job_planner import plan

RECIPES = {entry.name: entry for entry in shipped()}
BACKENDS = [each.name for each in backend_registry.descriptions() if each.load() and each.choice in clusters()]
RENDERED_TWICE = dict(zip(RECIPES, itertools.cycle(BACKENDS)))
"""For each recipe, the cluster on which it is rendered again."""
TRAINING_JOB = (
    "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path=s3://results/out",
)
"""What a training job cannot do without."""


def planned(recipe, backend, folder):
    entry, cluster = RECIPES[recipe], backend_registry.described(backend)
    overrides = [f"recipes={recipe}", f"cluster={cluster.choice}", *needed_by(entry)]
    if cluster.programs.toolkit_key:
        overrides += TRAINING_JOB
        if entry.model_type == "mtrl":
            overrides.append("cluster.sm_jobs_config.inputs.s3={train: s3://data/prompts}")
        if entry.model_type == "custom":
            overrides += ["training_cfg.entry_module=null", "training_cfg.entry_script=train.py"]
    if entry.is_elastic:
        overrides.append(f"recipes.elastic_policy.is_elastic={str(cluster.scaling is not None).lower()}")
    return plan(check(compose(overrides, folder, cache=CACHE)), frozen_context(folder))


def planned_where_it_runs(recipe, backend, folder):
    """Return a recipe's job on a cluster; None where its program does not run there, which is the only reason."""
    try:
        return planned(recipe, backend, folder)
    except ProblemsFound as error:
        assert {problem.code for problem in error.problems} <= {"E113", "E120", "E820"}
        return None


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("cluster", BACKENDS)
def test_renders_every_recipe_and_each_on_one_cluster_twice(cluster, recipe, tmp_path):
    """Nothing in a recipe is a Problem, such as a value that looks like a secret."""
    if (job := planned_where_it_runs(recipe, cluster, tmp_path)) is None:
        return
    first = pipeline.render(job, frozen_context(tmp_path))
    if RENDERED_TWICE[recipe] == cluster:
        assert pipeline.render(job, frozen_context(tmp_path)) == first
    assert all(text.strip() for text in first.files.values())
    assert len([path for path in first.files if path.startswith("configs/config-n")]) == (
        len(job.scales) if job.elastic else 0
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cluster", BACKENDS)
def test_has_the_protocol_s_parts(cluster):
    backend = backend_registry.load_backend(cluster)
    assert backend.name == cluster
    methods = {name: each for name, each in vars(Backend).items() if inspect.isfunction(each) and name[0] != "_"}
    assert {"submit", "status", "logs", "events", "cancel", "scale", "wait", "validate"} <= set(methods)
    for name, method in methods.items():
        assert inspect.signature(getattr(type(backend), name)) == inspect.signature(method), name


@pytest.mark.parametrize("cluster", clusters())
def test_settings_accept_the_cluster_s_own_defaults(cluster):
    defaults = yaml_io.load((ROOT / "recipes_collection" / "cluster" / f"{cluster}.yaml").read_text())
    backend_registry.described(backend_registry.name_of(cluster)).options().model_validate(defaults)


@pytest.mark.slow
def test_nothing_outside_of_the_backends_compares_their_names():
    names = {name for each in backend_registry.descriptions() for name in (each.name, each.choice)}
    sources = [path for path in (ROOT / "launcher").rglob("*.py") if "backends" not in path.parts]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Constant) and each.value in names for each in ast.walk(node))
    ]
    assert [place.partition(":")[0] for place in found] == ["launcher/config/choices.py"]  # an older spelling


@pytest.mark.parametrize("each", backend_registry.descriptions(), ids=lambda each: each.name)
def test_a_description_agrees_with_its_package(each):
    backend = each.load()
    assert backend_registry.described(each.name) is each and backend_registry.name_of(each.choice) == each.name
    assert each.choice in clusters() and each.choice in each.cluster_types
    assert backend is None or backend.name == each.name


@pytest.mark.parametrize("each", backend_registry.descriptions(), ids=lambda each: each.name)
def test_a_capability_has_every_operation_of_its_protocol(each):
    protocols = {Pods: each.pods(), Queue: each.queue(), Clusters: each.clusters(), Scaling: each.scaling}
    for protocol, found in protocols.items():
        for name, operation in vars(protocol).items() if found else ():
            if inspect.isfunction(operation) and name[0] != "_":
                own = inspect.signature(getattr(type(found), name)).parameters
                assert list(own) == list(inspect.signature(operation).parameters), name


def test_every_capability_is_one_that_some_clusters_lack():
    every = backend_registry.descriptions()
    for found in ({bool(getattr(each, name)()) for each in every} for name in ("pods", "queue", "clusters")):
        assert found == {True, False}
    for name in ("instances", "scaling", "memory_tier"):
        assert {getattr(each, name) is None for each in every} == {True, False}


def test_both_spellings_of_a_training_job_on_this_machine_give_the_same_bundle(tmp_path):
    made = ["recipes=training/custom/script", "container=registry.example/image:1", "instance_type=ml.m5.4xlarge"]
    made += ["training_cfg.entry_script=train.py", "cluster.sm_jobs_config.output_path=file:///tmp/out"]
    made += ["training_cfg.run.ntasks_per_node=1"]
    context = frozen_context(tmp_path)
    bundles = [
        pipeline.render(plan(check(compose([*made, *words], tmp_path)), context), context)
        for words in (["cluster=sm_local"], ["cluster=local", "cluster.contract=sagemaker"])
    ]
    trees = [yaml_io.load(bundle.files["recipe.yaml"]) for bundle in bundles]
    assert trees[0] == trees[1] and trees[0]["cluster"]["contract"] == "sagemaker"
    assert bundles[0].files.keys() == bundles[1].files.keys()
    assert bundles[0].files["request.json"] == bundles[1].files["request.json"]
    assert json.loads(bundles[0].files["plan.json"])["backend"] == "contract"


def test_no_backend_asks_whether_it_is_a_dry_run():
    sources = (ROOT / "launcher" / "backends").rglob("*.py")
    assert not [path for path in sources if re.search(r"config\W.{0,6}dry_run", path.read_text())]


class LocalStage(OrderedStage):
    """Jobs on this machine, whose workers do as a file tells them. Their operators end with this process."""

    def __init__(self, folder):
        self._folder = folder
        self._worker = folder / "worker.py"
        self._worker.write_text(WORKER)

    def backend(self):
        return LocalBackend()

    def bundle(self, name):
        return write_bundle(self._folder, name, "local", f"cluster.command=[{self._worker}]")


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    pytest.importorskip("hyperpod_elastic_agent")
    return LocalStage(tmp_path_factory.mktemp("conformance"))
