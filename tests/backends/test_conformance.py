"""What every backend that can render must do, for every recipe of the collection."""

import inspect
import re

import pytest
from conftest import ROOT, frozen_context, needed_by
from job_suite import (
    NODES,
    submitted,
    test_a_cancelled_job_has_ended_for_everybody,
    test_a_failed_job_says_why,
    test_a_job_is_scaled_within_its_plan_only,
    test_a_job_that_is_there_is_not_submitted_again,
    test_a_submitted_job_is_found_again_from_its_record,
    test_an_ended_job_can_still_be_looked_at,
    test_logs_of_several_ranks_are_followed_to_the_end_each_line_once,
    test_logs_of_what_is_not_there_are_refused_before_the_first_line,
    test_waiting_ends_when_its_time_is_over,
    write_bundle,
)

from launcher import pipeline
from launcher.backends.local.backend import LocalBackend
from launcher.common import yaml_io
from launcher.common.names import RUN_DIR
from launcher.config.catalogue import entries
from launcher.config.compose import compose
from launcher.config.hydra_compose import clusters
from launcher.model.backend import Backend
from launcher.model.backend_registry import backend_module
from launcher.model.job_spec import JobState
from launcher.planning.check import check
from launcher.planning.job_planner import plan

__all__ = [  # the suite's, which run here with this module's stage
    "submitted",
    "test_a_cancelled_job_has_ended_for_everybody",
    "test_a_failed_job_says_why",
    "test_a_job_is_scaled_within_its_plan_only",
    "test_a_job_that_is_there_is_not_submitted_again",
    "test_a_submitted_job_is_found_again_from_its_record",
    "test_an_ended_job_can_still_be_looked_at",
    "test_logs_of_several_ranks_are_followed_to_the_end_each_line_once",
    "test_logs_of_what_is_not_there_are_refused_before_the_first_line",
    "test_waiting_ends_when_its_time_is_over",
]

RECIPES = {entry.name: entry for entry in entries()}
BACKENDS = [cluster for cluster in clusters() if backend_module(cluster, "backend")]


TRAINING_JOB = (
    "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path=s3://results/out",
)
"""What a training job cannot do without."""


def planned(recipe, cluster, folder):
    entry = RECIPES[recipe]
    overrides = [f"recipes={recipe}", f"cluster={cluster}", *needed_by(entry)]
    if cluster == "sm_jobs":
        overrides += TRAINING_JOB
        if entry.model_type == "custom":
            overrides += ["training_cfg.entry_module=null", "training_cfg.entry_script=train.py"]
    if entry.is_elastic and cluster == "sm_jobs":
        overrides.append("recipes.elastic_policy.is_elastic=false")
    elif entry.is_elastic:
        overrides.append("recipes.elastic_policy.is_elastic=true")
    return plan(check(compose(overrides, folder)), frozen_context(folder))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("cluster", BACKENDS)
def test_renders_every_recipe_the_same_twice(cluster, recipe, tmp_path):
    """Nothing in a recipe is a Problem, such as a value that looks like a secret."""
    job = planned(recipe, cluster, tmp_path)
    first, second = (pipeline.render(job, frozen_context(tmp_path)) for _ in range(2))
    assert first == second
    assert all(text.strip() for text in first.files.values())
    assert len([path for path in first.files if path.startswith("configs/config-n")]) == (
        len(job.scales) if job.elastic else 0
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cluster", BACKENDS)
def test_has_the_protocol_s_parts(cluster):
    backend = pipeline.load_backend(cluster)
    assert backend.name == cluster and isinstance(backend.ends_with_launcher, bool)
    methods = {name: each for name, each in vars(Backend).items() if inspect.isfunction(each) and name[0] != "_"}
    assert {"submit", "status", "logs", "events", "cancel", "scale", "wait", "validate"} <= set(methods)
    for name, method in methods.items():
        assert inspect.signature(getattr(type(backend), name)) == inspect.signature(method), name


@pytest.mark.parametrize("cluster", clusters())
def test_settings_accept_the_cluster_s_own_defaults(cluster):
    defaults = yaml_io.load((ROOT / "recipes_collection" / "cluster" / f"{cluster}.yaml").read_text())
    backend_module(cluster, "settings").Settings.model_validate(defaults)


def test_no_backend_asks_whether_it_is_a_dry_run():
    sources = (ROOT / "launcher" / "backends").rglob("*.py")
    assert not [path for path in sources if re.search(r"config\W.{0,6}dry_run", path.read_text())]


WORKER = """
import os, pathlib, time
orders = pathlib.Path(os.environ["RECIPES_RUN_DIR"], f"orders-{os.environ['RANK']}")
done = 0
while True:
    for order in (orders.read_text() if orders.exists() else "").splitlines()[done:]:
        done += 1
        word, _, rest = order.partition(" ")
        if word == "exit":
            os._exit(int(rest))
        print(rest, flush=True)
    time.sleep(0.05)
"""


class LocalStage:
    """Jobs on this machine, whose workers do as a file tells them. Their operators end with this process."""

    def __init__(self, folder):
        self._folder = folder
        self._worker = folder / "worker.py"
        self._worker.write_text(WORKER)

    def backend(self):
        return LocalBackend()

    def bundle(self, name):
        return write_bundle(self._folder, name, "local", f"cluster.command=[{self._worker}]")

    def say(self, handle, rank, line):
        self._order(handle, rank, f"say {line}")

    def end(self, handle, state):
        for rank in range(NODES):
            self._order(handle, rank, f"exit {0 if state is JobState.SUCCEEDED else 3}")

    def _order(self, handle, rank, order):
        with (handle.bundle_dir / RUN_DIR / f"orders-{rank}").open("a") as file:
            file.write(f"{order}\n")


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    pytest.importorskip("hyperpod_elastic_agent")
    return LocalStage(tmp_path_factory.mktemp("conformance"))
