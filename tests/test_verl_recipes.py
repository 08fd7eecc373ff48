"""The verl recipes: their values are the published ones, made of parts, and one number sizes the job."""

import copy
import statistics

import pytest
from conftest import ROOT, composed
from published_recipes import GOLDEN, digest, merged, recipe_file

from launcher.common.paths import COLLECTION
from launcher.config.compose import compose
from launcher.config.composed_files import Parts
from launcher.config.files import FileCache
from launcher.model.config_tree import get, leaves
from launcher.planning.check import check

GRPO = "fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora"
NAMES = [name for name in GOLDEN["digests"] if "/verl-" in name]
ABSENT = "(absent)"
"""Stands for the value of a key that a published recipe does not have."""
_ACTOR = "training_config.actor_rollout_ref.actor"
_MODEL = "training_config.actor_rollout_ref.model.path"
REFERENCES = {
    "ray_cluster.worker_nodes.replicas": "trainer.num_nodes",
    "ray_cluster.worker_nodes.gpu": "trainer.devices",
    "training_config.trainer.nnodes": "trainer.num_nodes",
    "training_config.trainer.n_gpus_per_node": "trainer.devices",
    "training_config.critic.model.tokenizer_path": _MODEL,
    "training_config.reward_model.model.input_tokenizer": _MODEL,
    "training_config.actor_rollout_ref.rollout.prometheus.served_model_name": _MODEL,
    "training_config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    "training_config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": f"{_ACTOR}.ppo_max_token_len_per_gpu",
    "training_config.actor_rollout_ref.rollout.prompt_length": "training_config.data.max_prompt_length",
    "training_config.actor_rollout_ref.rollout.response_length": "training_config.data.max_response_length",
    "training_config.actor_rollout_ref.actor.rollout_n": "training_config.actor_rollout_ref.rollout.n",
    "training_config.actor_rollout_ref.ref.rollout_n": "training_config.actor_rollout_ref.rollout.n",
}
"""Keys whose published number or name is that of another key, and which refer to it here."""

JOBS = "cluster.sm_jobs_config"
DATA = "recipes.training_config.data.train_files=/opt/ml/input/data/train/train.parquet"
LAUNCHES = {
    "k8s": ("cluster=k8s", DATA),
    "slurm": ("cluster=slurm", DATA),
    "sm_jobs": (
        *("cluster=sm_jobs", DATA, f"{JOBS}.output_path=s3://results/out"),
        f"{JOBS}.role=arn:aws:iam::123456789012:role/train",
    ),
}
"""What a launch of any recipe gives, by cluster."""


def put(tree, path, value):
    *above, key = path.split(".")
    for each in above:
        tree = tree[each]
    if value == ABSENT:
        del tree[key]
    else:
        tree[key] = value


def published(name):
    """Return a recipe with the published values where it corrects them or refers to another key."""
    tree = copy.deepcopy(merged(recipe_file(name)))
    for path, target in REFERENCES.items():
        if get(tree, path) == f"${{recipes.{target}}}":
            value = get(tree, target)
            put(tree, path, str(value) if path.endswith(".gpu") else value)  # there, a number as text
    del tree["run"]["hf_access_token"], tree["images"]
    if "/nemotron" in name and "-grpo-" in name:  # there, without processors and memory
        tree["ray_cluster"] = {"worker_nodes": {"replicas": tree["ray_cluster"]["worker_nodes"]["replicas"]}}
    if "-grpo-" in name and "-0_7_0/" in name:
        del tree["trainer"]["devices"]
    for path, value in GOLDEN["corrected"].get(name, {}).items():
        assert (get(tree, path), type(get(tree, path))) != (value, type(value))
        put(tree, path, value)
    return tree


def image_of(name, cluster, *overrides):
    """Return the image of a recipe's job."""
    return check(compose([f"recipes={name}", *LAUNCHES[cluster], *overrides], ROOT)).launch.container


def overridden(name, *overrides):
    return compose([f"recipes={name}", "cluster=k8s", *overrides], ROOT).tree["recipes"]


def test_every_published_recipe_of_verl_is_there():
    recipes = COLLECTION / "recipes"
    files = {str(path.relative_to(recipes).with_suffix("")) for path in recipes.rglob("verl-*.yaml")}
    assert files == set(NAMES)
    counts = [sum(f"/verl-{technique}-" in name for name in NAMES) for technique in ("grpo", "sft", "dpo")]
    assert counts == [107, 34, 10]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_its_published_values(name):
    assert digest(published(name)) == GOLDEN["digests"][name]


def test_recipe_files_are_short():
    lengths = [len(recipe_file(name).read_text().splitlines()) for name in NAMES]
    assert statistics.median(lengths) <= 15
    assert max(lengths) <= 25


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_composes_and_every_reference_finds_its_value(name):
    tree = composed(name).tree["recipes"]
    raw = dict(leaves(merged(recipe_file(name))))
    assert [path for path, value in leaves(tree) if isinstance(value, str) and "${" in value] == []
    for path, target in REFERENCES.items():
        if raw.get(path) == f"${{recipes.{target}}}":
            assert get(tree, path) == get(tree, target) is not None


@pytest.mark.parametrize(
    "name",
    [
        "fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora",
        "fine-tuning/nemotron-0_7_0/verl-grpo-rlaif-nemotron-3-super-120b-lora",
    ],
)
def test_overriding_the_nodes_resizes_the_ray_cluster(name):
    tree = overridden(name, "recipes.trainer.num_nodes=3")
    assert tree["ray_cluster"]["worker_nodes"]["replicas"] == 3
    assert tree["training_config"]["trainer"]["nnodes"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("qwen/verl-grpo-rlvr-qwen-3-8b-lora", "hyperpod-recipes:verl-v1.0.0-eks"),
        ("qwen-0_7_0/verl-grpo-rlvr-qwen-3-dot-5-9b-fft", "hyperpod-recipes-verl-0-7-0:verl-v1.1.0-smtj"),
        ("qwen-0_7_0/verl-sft-qwen-3-8b-fft", "hyperpod-recipes-verl-0-7-0:verl-v1.1.0-smtj"),
        ("gemma4-0_7_0/verl-grpo-rlvr-gemma-4-31b-it-lora", "hyperpod-recipes-verl-0-7-0:verl-v1.1.0-smtj-tf58"),
        ("gemma4-0_7_0/verl-dpo-gemma-4-e4b-it-lora", "hyperpod-recipes-verl-0-7-0:verl-v1.1.0-smtj-tf58"),
        (
            "nemotron-0_7_0/verl-grpo-rlvr-nemotron-3-nano-30b-fft",
            "hyperpod-recipes-verl-0-7-0:verl-v1.1.0-smtj-vllm012",
        ),
        ("nemotron-0_7_0/verl-sft-nemotron-3-nano-30b-fft", "hyperpod-recipes-verl-0-7-0:verl-v1.1.0-smtj-vllm012"),
    ],
)
def test_a_recipe_has_the_image_of_its_version(name, image):
    images = {cluster: image_of(f"fine-tuning/{name}", cluster).partition("/")[2] for cluster in LAUNCHES}
    assert images == {"k8s": image, "sm_jobs": image.replace("-eks", "-smtj"), "slurm": image}


@pytest.mark.parametrize(
    ("cluster", "key", "account"),
    [
        ("k8s", "recipes.images.region=eu-south-2", "330290781619"),
        ("sm_jobs", "recipes.images.region=us-west-2", "920498770698"),
        ("sm_jobs", f"{JOBS}.region=eu-west-1", "942446708630"),
    ],
)
def test_the_image_is_of_the_region_s_registry(cluster, key, account):
    assert image_of(GRPO, cluster, key).startswith(
        f"{account}.dkr.ecr.{key.partition('=')[2]}.amazonaws.com/hyperpod-recipes:"
    )


def test_a_region_without_the_image_is_refused_with_those_that_have_one(problems):
    (found,) = problems(f"recipes={GRPO}", *LAUNCHES["sm_jobs"], f"{JOBS}.region=eu-west-2")
    assert (found.code, found.path) == ("E613", "container")
    assert found.allowed == "a job in us-east-1, us-west-2, ap-northeast-1, eu-west-1"
    own = "012345678901.dkr.ecr.eu-west-2.amazonaws.com/verl:1"
    assert image_of(GRPO, "sm_jobs", f"{JOBS}.region=eu-west-2", f"container={own}") == own
    (found,) = problems(f"recipes={GRPO}", *LAUNCHES["k8s"], "recipes.images.region=me-south-1")
    assert (found.code, found.remedy) == (
        "E613",
        "container=<an image of your own>, or recipes.images.region=us-east-1",
    )
    assert "eu-west-2" in found.allowed


def test_a_job_on_slurm_may_do_without_the_image():
    assert image_of(GRPO, "slurm", "container=null") is None


def test_the_recipes_are_read_without_hydra():
    parts = Parts([], FileCache())
    for name in NAMES:
        assert parts.of(f"recipes/{name}", recipe_file(name), "recipes")


def test_overriding_the_devices_changes_them_everywhere():
    tree = overridden("fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora", "recipes.trainer.devices=4")
    assert tree["ray_cluster"]["worker_nodes"]["gpu"] == 4
    assert tree["training_config"]["trainer"]["n_gpus_per_node"] == 4


def test_supervised_recipes_have_the_nodes_that_their_parallelism_needs():
    nodes = {
        name: composed(f"fine-tuning/{name}").tree["recipes"]["training_config"]["trainer"]["nnodes"]
        for name in (
            "nemotron-0_7_0/verl-sft-nemotron-3-nano-30b-fft",
            "nemotron-0_7_0/verl-sft-nemotron-3-super-120b-lora",
            "qwen-0_7_0/verl-sft-qwen-2-5-72b-instruct-fft",
        )
    }
    assert list(nodes.values()) == [2, 4, 4]
