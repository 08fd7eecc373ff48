"""The verl recipes against the releases of verl that they are written for: classes and keys, without installing verl.

The published images have forks of these releases, so some keys and two classes are not in them: those are listed.
"""

import ast
import subprocess
import sys
import zipfile

import pytest
from engine_cache import root
from published_recipes import GOLDEN, merged, recipe_file

from launcher.families.verl import ray

pytestmark = [pytest.mark.slow, pytest.mark.long]

OF_THE_FORK = {
    "0.6.1": {
        "actor_rollout_ref.actor": {"entropy_advantage", "entropy_advantage_alpha", "entropy_advantage_kappa"},
        "actor_rollout_ref.profiler": {"discrete"},
        "critic.profiler": {"discrete"},
        "reward_model.profiler": {"discrete"},
    },
    "0.7.0": {
        "actor_rollout_ref.actor": {"entropy_advantage", "entropy_advantage_alpha", "entropy_advantage_kappa"},
        "actor_rollout_ref.model": {
            *("is_saving_checkpoint_in_lora", "patch_full_model", "patched_model_path", "target_parameters"),
        },
        "actor_rollout_ref.ref": {
            *("log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size"),
            *("log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz"),
        },
        "actor_rollout_ref.rollout": {"merge_lora_for_inference"},
        "checkpoint": {"save_only_adapter_if_lora"},
        "global_profiler": {"profile_continuous_steps", "steps"},
        "global_profiler.global_tool_config.nsys": {"controller_nsight_options", "worker_nsight_options"},
        "model": {"lora_dropout", "target_parameters"},
    },
}
"""By release, the keys of each section of training_config that its class does not have."""
CLASSES_OF_THE_FORK = {
    "0.6.1": set(),
    "0.7.0": {"verl.utils.dataset.dpo_dataset.DPODataConfig", "verl.workers.config.MegatronEngineConfig"},
}


def release_of(name):
    return "0.7.0" if "-0_7_0/" in name or "-grpo-" not in name else "0.6.1"


NAMES = [name for name in GOLDEN["digests"] if "/verl-" in name]
RECIPES = {release: [name for name in NAMES if release_of(name) == release] for release in OF_THE_FORK}


@pytest.fixture(params=OF_THE_FORK)
def sources(request):
    """A release of verl, and its modules: path to syntax tree."""
    folder = root() / "verl"
    wheel = folder / f"verl-{request.param}-py3-none-any.whl"
    if not wheel.is_file():
        words = (
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            f"verl=={request.param}",
            "-d",
            str(folder),
        )
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"verl {request.param} cannot be downloaded")
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if name.startswith("verl/") and name.endswith(".py")]
        return request.param, {name: ast.parse(files.read(name)) for name in names}


@pytest.fixture
def release(sources):
    """A release of verl, and its classes: name to the fields and the names of the bases."""
    version, modules = sources
    classes = {}
    for node in (each for tree in modules.values() for each in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            fields = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
            classes.setdefault(node.name, (fields, [ast.unparse(base) for base in node.bases]))
    return version, classes


def fields_of(classes, name):
    own, bases = classes.get(name, (set(), []))
    return own.union(*(fields_of(classes, base) for base in bases))


def sections(tree, path=""):
    """Yield path, class and keys of each section that verl makes an object of."""
    if isinstance(tree, dict):
        if "_target_" in tree:
            yield path, tree["_target_"], tree.keys() - {"_target_"}
        for key, value in tree.items():
            yield from sections(value, f"{path}.{key}".lstrip("."))


def test_classes_and_keys_are_those_of_the_release(release):
    version, classes = release
    unknown, absent = {}, set()
    for name in RECIPES[version]:
        for path, target, keys in sections(merged(recipe_file(name))["training_config"]):
            cls = target.rpartition(".")[2]
            if not target.startswith("verl."):
                continue
            if cls not in classes:
                absent.add(target)
            elif new := keys - fields_of(classes, cls):
                unknown.setdefault(path, set()).update(new)
    assert len(RECIPES[version]) in (79, 72)
    assert (unknown, absent) == (OF_THE_FORK[version], CLASSES_OF_THE_FORK[version])


def function(tree, name):
    """Return a function's source as Python writes it, without comments."""
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.unparse(found)


def test_a_rehearsal_reserves_what_the_release_reserves(sources):
    version, modules = sources
    configuration = {"trainer": {"nnodes": 2, "n_gpus_per_node": 8}}
    configuration |= {"global_profiler": {}} if version == "0.7.0" else {}
    check = ray.resource_check({"verl_config.yaml": configuration}, ())
    (pool,) = check.pools
    groups = function(modules["verl/single_controller/ray/base.py"], "get_placement_groups")
    assert f"strategy='{check.strategy}'" in groups and "bundle = {'CPU': self.max_colocate_count}" in groups
    assert "bundle[device_name] = 1" in groups and "device_name = 'GPU'" in groups
    assert "[[bundle.copy() for _ in range(process_count)] for process_count in self._store]" in groups
    assert "ray.get([pg.ready() for pg in pgs])" in groups
    trainer = modules["verl/trainer/ppo/ray_trainer.py"]
    assert f"max_colocate_count={pool.bundle['CPU']}," in function(trainer, "create_resource_pool")
    available = function(trainer, "_check_resource_available")
    assert "if total_available_gpus < total_required_gpus:\n        raise ValueError" in available
    assert "ray._private.state.available_resources_per_node()" in available
    program = modules["verl/trainer/main_ppo.py"]
    pools = function(program, "init_resource_pool_mgr")
    assert "global_pool_id: [config.trainer.n_gpus_per_node] * config.trainer.nnodes" in pools
    assert "if config.reward_model.enable_resource_pool:" in pools
    assert "[config.reward_model.n_gpus_per_node] * config.reward_model.nnodes" in pools
    assert f"ray.remote(num_cpus={check.driver_cpus})(TaskRunner)" in function(program, "run_ppo")
