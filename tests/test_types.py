"""Recipes and options are typed end to end: a typo in a rule is an error of the type checker."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

SNIPPET = """
from launcher.backends.kubernetes.job_options import Settings
from launcher.families.tiny_lm import Recipe
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.model.base_model import options_of
from launcher.rules.custom import script_of


def right(checked: CheckedRecipe) -> tuple[int, str, int, object]:
    sizes = [size.recipe.trainer.num_nodes for size in checked.sizes]
    options, script = options_of(checked, Settings), script_of(checked)
    return checked.recipe.trainer.num_nodes, options.namespace, sizes[0], script and script.distribution


def of_recipe(checked: CheckedRecipe) -> object:
    return checked.recipe.trainer.num_nodse


def of_size(checked: CheckedRecipe) -> object:
    return checked.scales[0].recipe.trainer.devcies


def of_batch(checked: CheckedRecipe) -> object:
    return checked.recipe.batch and checked.recipe.batch.train_bacth_size


def of_another_family(checked: CheckedRecipe) -> object:
    return checked.recipe.training_config


def of_another_backend(checked: CheckedRecipe) -> object:
    return checked.settings.namespace


def of_options(checked: CheckedRecipe) -> object:
    return options_of(checked, Settings).namespcae


def of_typed_family(checked: CheckedRecipe) -> object:
    return recipe_of(checked, Recipe).training_cofnig


def of_family(checked: CheckedRecipe) -> object:
    script = script_of(checked)
    return script and script.distributoin
"""


def test_a_typo_in_what_a_rule_reads_fails_the_type_check(tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPET)
    words = ("--config-file=pyproject.toml", "--cache-dir=.mypy_cache", "--follow-imports=silent")
    command = [sys.executable, "-m", "mypy", *words, str(tmp_path / "snippet.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = re.findall(
        r'snippet\.py:(\d+): error: .*has no attribute "(\w+)".*\[(?:attr-defined|union-attr)\]', done.stdout
    )
    typos = ("num_nodse", "devcies", "train_bacth_size", "training_config", "namespace", "namespcae")
    typos = (*typos, "training_cofnig", "distributoin")
    assert [name for _, name in found] == list(typos), done.stdout + done.stderr
    assert f"Found {len(typos)} errors" in done.stdout
