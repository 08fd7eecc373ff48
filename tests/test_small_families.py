"""Recipes of multi-turn RL, checkpointless training, evaluation and NeMo: their values are the published ones."""

import copy
import json
import statistics

import pytest
from published_recipes import GOLDEN, digest, merged, over, part, recipe_file

from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.model.config_tree import leaves
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


def parts_of(file):
    for default in yaml_io.load(file.read_text()).get("defaults", ()):
        name = default.partition("@")[0]
        if name != "_self_":
            yield part(file, name)
            yield from parts_of(part(file, name))


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


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_only_what_its_parts_do_not(name):
    own = yaml_io.load(recipe_file(name).read_text())
    inherited = dict(leaves(merged_parts(name)))
    repeated = [
        path
        for path, value in leaves({key: value for key, value in own.items() if key != "defaults"})
        if path in inherited and json.dumps(inherited[path]) == json.dumps(value)
    ]
    assert repeated == []


def merged_parts(name):
    found = {}
    for default in yaml_io.load(recipe_file(name).read_text())["defaults"][:-1]:
        found = over(found, merged(part(recipe_file(name), default.partition("@")[0])))
    return found


def test_recipes_are_short_and_use_every_part():
    lengths = [len(recipe_file(name).read_text().splitlines()) for name in NAMES]
    assert statistics.median(lengths) <= 25 and max(lengths) <= 40
    used = {file for name in NAMES for file in parts_of(recipe_file(name))}
    assert used == {file for folder in FOLDERS for file in (COLLECTION / "base" / folder).rglob("*.yaml")}


def test_parts_begin_with_a_sentence_that_says_what_they_are():
    for folder in FOLDERS:
        for file in (COLLECTION / "base" / folder).rglob("*.yaml"):
            first = file.read_text().partition("\n")[0]
            assert first.startswith("# ") and first.endswith("."), file


def test_an_evaluation_with_a_judge_has_its_own_script():
    evaluation = recipe_model("evaluation")
    assert evaluation.script_kind({"llm_as_judge": {}, "run": {}}) == "judge"
    assert evaluation.script_kind({"run": {}}) == "benchmark"
