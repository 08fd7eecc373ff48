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
def release(request):
    """A release of verl, and its classes: name to the fields and the names of the bases."""
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
    classes = {}
    with zipfile.ZipFile(wheel) as files:
        for file in files.namelist():
            if file.startswith("verl/") and file.endswith(".py"):
                for node in ast.walk(ast.parse(files.read(file))):
                    if isinstance(node, ast.ClassDef):
                        fields = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
                        classes.setdefault(node.name, (fields, [ast.unparse(base) for base in node.bases]))
    return request.param, classes


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
