"""The Nova recipes: their values are the published ones, and references find what they name."""

import copy

import pytest
from conftest import composed
from published_recipes import GOLDEN, digest, merged, recipe_file

from launcher.common.paths import COLLECTION
from launcher.model.config_tree import leaves

NAMES = [name for name in GOLDEN["digests"] if "/nova/" in name and "/MTRL/" not in name]
OURS = ("display_name", "version", "instance_types", "images", "node_counts", "trainer")
"""Sections that the launcher reads and no published Nova recipe has."""
OURS_OF_RUN = ("results_dir", "hf_access_token")


def published(name):
    """Return a recipe of the collection with the published values where it corrects them."""
    tree = copy.deepcopy(merged(recipe_file(name)))
    for key in OURS:
        tree.pop(key, None)
    for key in OURS_OF_RUN:
        del tree["run"][key]
    for path, value in GOLDEN["corrected"].get(name, {}).items():
        *above, key = path.split(".")
        section = tree
        for each in above:
            section = section[each]
        assert section[key] != value
        section[key] = value
    return tree


def test_every_published_recipe_of_nova_is_there():
    recipes = COLLECTION / "recipes"
    files = {str(p.relative_to(recipes).with_suffix("")) for p in recipes.glob("*/nova/**/*.yaml")}
    assert {name for name in files if "/MTRL/" not in name} == set(NAMES)
    assert len(NAMES) == 55


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_its_published_values(name):
    assert digest(published(name)) == GOLDEN["digests"][name]


@pytest.mark.parametrize("name", [name for name in NAMES if "/RFT/" in name or "nova_2_0/nova_lite/SFT" in name])
def test_what_refers_to_another_key_finds_it(name):
    recipe = composed(name).tree["recipes"]
    training = recipe["training_config"]
    steps = training if "SFT" in name else training["trainer"]
    assert steps["save_steps"] == steps["max_steps"] > 0
    if "rollout" in training:
        assert training["rollout"]["rewards"]["api_endpoint"]["lambda_arn"] == recipe["run"]["reward_lambda_arn"]


@pytest.mark.parametrize("name", [name for name in NAMES if "/PPO/" in name])
def test_the_programs_of_ppo_have_the_nodes_of_their_replicas(name):
    recipe = composed(name).tree["recipes"]
    programs = {key: value["trainer"]["num_nodes"] for key, value in recipe.items() if key.startswith("ppo_")}
    run = recipe["run"]
    assert programs == {
        "ppo_reward": run["rm_replicas"],
        "ppo_critic": run["cm_replicas"],
        "ppo_anchor": run["am_replicas"],
        "ppo_actor_generation": run["actor_generation_replicas"],
        "ppo_actor_train": run["actor_train_replicas"],
    }
    assert recipe["trainer"]["num_nodes"] == sum(programs.values())


def test_reinforcement_fine_tuning_counts_the_nodes_of_all_its_programs():
    folder = "fine-tuning/nova/nova_2_0/nova_lite/RFT"
    nodes = {
        name: composed(f"{folder}/{name}").tree["recipes"]["trainer"]["num_nodes"]
        for name in ("nova_lite_2_0_p5_gpu_rft", "nova_lite_v2_smtj_p5_p5en_gpu_rft")
    }
    assert nodes == {"nova_lite_2_0_p5_gpu_rft": 5, "nova_lite_v2_smtj_p5_p5en_gpu_rft": 4}


@pytest.mark.parametrize("name", NAMES)
def test_no_reference_is_left_empty(name):
    tree = composed(name).tree["recipes"]
    assert [path for path, value in leaves(tree) if isinstance(value, str) and "${" in value] == []
