"""Recipes of multi-turn RL, checkpointless training, evaluation and NeMo: their values are the published ones."""

import copy
import statistics

import pytest
from published_recipes import GOLDEN, digest, merged, recipe_file

from launcher.model.family_registry import recipe_model

OURS = {
    "mtrl": ("run.results_dir", "run.hf_access_token", "trainer", "version", "instance_types", "images"),
    "hyperpod_checkpointless_nemo": ("run.hf_access_token", "entry_script", "images"),
    "evaluation": (
        "run.model_type",
        "run.results_dir",
        "run.hf_access_token",
        "trainer",
        "display_name",
        "version",
        "instance_types",
        "images",
    ),
    "hf": ("run.hf_access_token", "display_name", "version", "instance_types", "clusters"),
}
"""Keys that the launcher reads and the published recipes lack, by family."""
FOLDERS = {"mtrl": 5, "checkpointless": 4, "evaluation": 2, "hf": 1}
"""Folder of the parts of each family, and its number of recipes."""
NAMES = [
    name
    for name in GOLDEN["digests"]
    if any(word in name.lower() for word in ("mtrl", "checkpointless", "open-source", "custom_model"))
]


def test_every_published_recipe_of_these_families_is_there():
    assert len(NAMES) == sum(FOLDERS.values())
    found = [merged(recipe_file(name))["run"]["model_type"] for name in NAMES]
    assert sorted(map(found.count, OURS)) == sorted(FOLDERS.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_its_published_values(name):
    tree = copy.deepcopy(merged(recipe_file(name)))
    for key in OURS[tree["run"]["model_type"]]:
        *above, last = key.split(".")
        section = tree
        for each in above:
            section = section[each]
        del section[last]
    assert digest(tree) == GOLDEN["digests"][name]


def test_recipes_are_short():
    lengths = [len(recipe_file(name).read_text().splitlines()) for name in NAMES]
    assert statistics.median(lengths) <= 25 and max(lengths) <= 40


def test_an_evaluation_with_a_judge_has_its_own_script():
    evaluation = recipe_model("evaluation")
    assert evaluation.script_kind({"llm_as_judge": {}, "run": {}}) == "judge"
    assert evaluation.script_kind({"run": {}}) == "benchmark"
