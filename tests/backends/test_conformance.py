"""What every backend that can render must do, for every recipe of the collection."""

import pytest
from conftest import ROOT, frozen_context

from launcher import pipeline, yamlio
from launcher.check import backend_module, check
from launcher.compose import clusters, compose, recipe_names
from launcher.plan import plan

BACKENDS = [cluster for cluster in clusters() if backend_module(cluster, "backend")]


def planned(recipe, cluster, folder):
    overrides = [f"recipes={recipe}", f"cluster={cluster}", "++recipes.elastic_policy.is_elastic=true"]
    if recipe.startswith("training/tiny"):
        overrides += ["container=me/image:1", "instance_type=ml.m5.2xlarge"]
    return plan(check(compose(overrides, folder)), frozen_context(folder))


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("cluster", BACKENDS)
def test_renders_every_recipe_the_same_twice(cluster, recipe, tmp_path):
    job = planned(recipe, cluster, tmp_path)
    first, second = (pipeline.render(job, frozen_context(tmp_path)) for _ in range(2))
    assert first == second
    assert all(text.strip() for text in first.files.values())
    assert len([path for path in first.files if path.startswith("configs/config-n")]) == len(job.scales)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cluster", BACKENDS)
def test_has_the_protocol_s_parts(cluster):
    backend = pipeline.load_backend(cluster)
    assert backend.name == cluster
    for part in ("check", "render", "submit", "status", "logs", "cancel"):
        assert callable(getattr(backend, part))


@pytest.mark.parametrize("cluster", clusters())
def test_settings_accept_the_cluster_s_own_defaults(cluster):
    defaults = yamlio.load((ROOT / "recipes_collection" / "cluster" / f"{cluster}.yaml").read_text())
    backend_module(cluster, "settings").Settings.model_validate(defaults)


def test_no_backend_asks_whether_it_is_a_dry_run():
    sources = (ROOT / "launcher" / "backends").rglob("*.py")
    assert not [path for path in sources if "dry_run" in path.read_text().replace("dry_run=true", "")]
