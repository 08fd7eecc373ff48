"""What a family may be: of any shape, with or without a batch, of one role or several."""

import json
import sys

import pytest
from conftest import problem_codes

from launcher import families
from launcher.common.problems import ProblemsFound
from launcher.model.interface import Entry, Interface, Role
from launcher.planning import plan_report

FAMILY = """
from launcher.model.checkpoint_content import Content
from launcher.model.interface import WORKERS, Interface, Role
from launcher.model.base_model import Model
from launcher.model.recipe import RecipeBase, RecipeKeys
from launcher.model.recipe_batch import BatchKeys, UnevenBatch

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

INTERFACE = Interface(
    roles=tuple(
        Role(name, lambda job: ("-m", "evaluate"), lambda job: ("evaluate",)) for name in {roles}
    ),
)
"""
NO_BATCH = "evaluation: Section"
OWN_BATCH = '''data: Data
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

    def with_batch(self, own):
        from launcher.model.config_tree import get
        if "uneven_batch" in str(own):
            raise AssertionError("another family's key")
        shares = get(own, "data.shares")
        data = {"train_batch_size": get(own, "data.train_batch_size")}
        data |= {"shares": UnevenBatch.model_construct(**shares) if shares else None}
        actor = {"micro": get(own, "actor.micro"), "lr": get(own, "actor.lr")}
        return self.model_copy(
            update={"data": self.data.model_copy(update=data), "actor": self.actor.model_copy(update=actor)}
        )
'''
RECIPE = """
defaults: [/recipes/base/common@_here_, _self_]
display_name: made up
version: "1"
instance_types: []
run: {name: made-up, model_type: made_up, results_dir: /results, hf_access_token: null}
trainer: {devices: 8, num_nodes: 2}
"""
K8S = ("cluster=k8s", "instance_type=p5.48xlarge", "container=registry.example/image:1")


@pytest.fixture
def family(tmp_path, monkeypatch):
    """Return a function that adds a family `made_up` and returns a recipe file of it."""

    def add(section, more, roles=("workers",)):
        folder = tmp_path / "families"
        folder.mkdir()
        (folder / "made_up.py").write_text(FAMILY.format(section=section, roles=tuple(roles)))
        monkeypatch.setattr(families, "__path__", [*families.__path__, str(folder)])
        recipe = tmp_path / "made-up.yaml"
        recipe.write_text(RECIPE.replace("defaults: [/recipes/base/common@_here_, _self_]\n", "") + more)
        return f"recipes={recipe}"

    yield add
    sys.modules.pop("launcher.families.made_up", None)
