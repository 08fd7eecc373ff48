"""What a family may be: of any shape, with or without a batch, of one role or several."""

import json
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT, composed, shipped

from launcher import families
from launcher.common import yaml_io
from launcher.common.names import BASE_CONFIG, CONFIG_DIR
from launcher.config.compose import compose
from launcher.families import hf, tiny_lm
from launcher.model import family_registry
from launcher.model.checked_recipe import recipe_of, type_recipe
from launcher.model.interface import Interface, Role
from launcher.planning import plan_report
from launcher.planning.check import check

FAMILY = """
from launcher.model.checkpointing import Content
from launcher.model.interface import WORKERS, Interface, Role
from launcher.model.base_model import Model
from launcher.model.recipe import RecipeBase
from launcher.model.recipe_keys import BatchKeys, RecipeKeys, UnevenBatch

class Section(Model):
    task: str

class Data(Model):
    train_batch_size: int
    shares: UnevenBatch | None = None

class Actor(Model):
    micro: int
    lr: float

class Recipe(RecipeBase):
    {section}
    def content(self, config=None):
        return Content(0, "bfloat16", "none", "ddp")

INTERFACES = {{None: Interface(
    roles=tuple(
        Role(name, lambda job: ("-m", "evaluate"), lambda job: ("evaluate",)) for name in {roles}
    ),
)}}
"""
NO_BATCH = "evaluation: Section"
OWN_BATCH = """data: Data
    actor: Actor
    keys = RecipeKeys(batch=BatchKeys("data.train_batch_size", "actor.micro", "actor.lr", "data.shares"))

    @property
    def batch(self):
        recipe = self
        class Own:
            train_batch_size = recipe.data.train_batch_size
            micro_train_batch_size = recipe.actor.micro
            learning_rate = recipe.actor.lr
            uneven_batch = recipe.data.shares
            ranks_per_sample = 1
        return Own()
"""
RECIPE = """
display_name: made up
version: "1"
instance_types: []
run: {{name: made-up, model_type: made_up, results_dir: /results, hf_access_token: null}}
trainer: {{devices: 8, num_nodes: 2}}
{more}
"""
EVALUATION = "evaluation: {task: mmlu}"
BATCH = "data: {train_batch_size: 96}\nactor: {micro: 4, lr: 1.0e-05}"
POLICY = "elastic_policy: {is_elastic: true, min_nodes: 1, max_nodes: 4, use_graceful_shutdown: false}"
K8S = ("cluster=k8s", "instance_type=p5.48xlarge", "container=registry.example/image:1")


@pytest.fixture
def family(tmp_path, monkeypatch):
    """Return a function that adds a family `made_up` and returns the choice of a recipe of it."""

    def add(section: str, more: str, roles: tuple[str, ...] = ("workers",)) -> str:
        folder = tmp_path / "families"
        folder.mkdir()
        (folder / "made_up.py").write_text(FAMILY.format(section=section, roles=roles))
        monkeypatch.setattr(families, "__path__", [*families.__path__, str(folder)])
        recipe = tmp_path / "made-up.yaml"
        recipe.write_text(RECIPE.format(more=more))
        return f"recipes={recipe}"

    yield add
    sys.modules.pop("launcher.families.made_up", None)


def test_a_family_without_a_batch_is_planned_by_nodes_and_ranks(prepare, render, family):
    words = (family(NO_BATCH, EVALUATION), *K8S)
    job = prepare(*words)
    assert [(point.nodes, point.ranks, point.batch) for point in job.scales] == [(2, 16, None)]
    assert plan_report.row(job.scales[0]) == ("2", "16", "none", "none", "none")
    bundle = render(*words)
    (scale,) = json.loads(bundle.files["plan.json"])["scales"]
    assert scale["samples_per_step"] is scale["balance"] is scale["samples_per_rank"] is None
    assert yaml_io.load(bundle.files[f"{CONFIG_DIR}/{BASE_CONFIG}"])["evaluation"] == {"task": "mmlu"}


def test_sizes_are_not_planned_without_a_batch(problems, family):
    found = problems(family(NO_BATCH, f"{EVALUATION}\n{POLICY}"), *K8S, "++recipes.scale_config=auto")
    assert [(problem.code, problem.path) for problem in found] == [("E227", "recipes.scale_config")]


def test_a_batch_is_planned_and_checked_by_the_family_s_own_keys(prepare, problems, family):
    words = (family(OWN_BATCH, f"{BATCH}\n{POLICY}"), *K8S, "++recipes.scale_config=auto")
    job = prepare(*words)
    assert [point.nodes for point in job.scales] == [1, 2, 3, 4]
    assert [point.batch.split.large for point in job.scales] == [12, 6, 4, 3]
    assert [point.config["data"]["train_batch_size"] for point in job.scales] == [96] * 4
    assert [point.config["actor"]["micro"] for point in job.scales] == [4, 3, 4, 3]
    assert not any("training_config" in point.config for point in job.scales)
    uneven = prepare(*words, "recipes.data.train_batch_size=100").scales[0]
    assert uneven.config["data"]["shares"]["large_local_batch_size"] == 13
    static = [word for word in words if "auto" not in word]
    (problem,) = problems(*static, "recipes.elastic_policy.is_elastic=false", "recipes.data.train_batch_size=97")
    assert (problem.code, problem.path) == ("E221", "recipes.data.train_batch_size")
    (problem,) = problems(*static, "recipes.elastic_policy.is_elastic=false", "recipes.data.train_batch_size=many")
    assert (problem.code, problem.path) == ("E102", "recipes.data.train_batch_size")


def test_a_family_of_several_roles_is_refused_where_only_workers_are_started(problems, family):
    (problem,) = problems(family(NO_BATCH, EVALUATION, ("workers", "head", "submitter")), "cluster=local")
    assert (problem.code, problem.path, problem.value) == ("E113", "recipes.run.model_type", "made_up")
    assert "head, submitter" in problem.message


def test_a_recipe_is_not_read_as_one_of_another_family(context):
    checked = check(compose([], context.cwd))
    assert recipe_of(checked, tiny_lm.Recipe) is checked.recipe
    with pytest.raises(TypeError, match=r"not of"):
        recipe_of(checked, hf.Recipe)


def test_roles_are_found_by_their_name(prepare):
    def no_words(job):
        return ()

    head = Role("head", no_words, no_words, nodes=lambda job: 1)
    workers = Role("workers", no_words, no_words)
    found = Interface(roles=(head, workers))
    job = prepare("recipes.trainer.num_nodes=2")
    assert found.workers is workers and found.role("head") is head
    assert (head.nodes(job), workers.nodes(job)) == (1, 2)
    with pytest.raises(LookupError, match="head, workers"):
        found.role("submitter")


@pytest.mark.slow
@pytest.mark.parametrize("name", family_registry.names())
def test_every_family_has_workers_and_a_recipe(name):
    own = next(each for each in shipped() if family_registry.name_of(each.model_type) == name)
    tree = composed(own.name).tree["recipes"]
    for trainer in family_registry.trainers(tree) or (None,):
        started = SimpleNamespace(recipe_tree=tree, trainer=trainer)
        assert family_registry.interface(started).workers.name == "workers"
    assert type_recipe(family_registry.recipe_model(own.model_type), tree)[1] == ()


def test_modules_outside_the_families_name_none():
    places = (
        ROOT / "launcher" / "backends" / "sagemaker" / "request.py",
        *(ROOT / "launcher" / "model").rglob("*.py"),
    )
    checked = (*places, ROOT / "launcher" / "rules" / "checkpointing.py")
    named = [
        (path.name, name) for path in checked for name in family_registry.names() if f'"{name}"' in path.read_text()
    ]
    assert named == []
