"""The schema that editors get: complete, right, and as strict as the launcher."""

import copy
import importlib
from pathlib import Path

import jsonschema
import pytest
from conftest import shipped

from launcher.api.generated import schema
from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.config import catalogue
from launcher.config.compose import compose
from launcher.model import backend_registry, family_registry
from launcher.model.config_tree import leaves
from launcher.model.validation import field_names, submodel

FAMILIES = family_registry.names()
LLAMA = "fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
ARGS = "training_config.training_args"
OUTSIDE_RECIPES = {"container", "git.repo_url_or_path"}
"""What parts set beside the recipe's own keys."""


@pytest.fixture(scope="module")
def recipes():
    """Return every shipped recipe file's name and tree, by family."""
    found = {name: {} for name in FAMILIES}
    for entry in shipped():
        if entry.model_type:
            found[family_registry.name_of(entry.model_type)][entry.name] = yaml_io.load(
                entry.path.read_text(encoding="utf-8")
            )
    return found


@pytest.fixture(scope="module")
def llmft():
    return jsonschema.Draft202012Validator(schema.json_schema("llm_finetuning_aws"))


def nested(path: str, value):
    """Return a tree that has `value` at a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def keys(node, path=""):
    """Yield dotted path and schema of every key."""
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, child
        inside = schema.mapping_in(child)
        items = [member["items"] for member in child.get("anyOf", [child]) if "items" in member]
        for mapping in (inside, *items):
            yield from keys(mapping, here)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_schema_is_a_valid_one(family):
    found = schema.json_schema(family)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_shipped_recipe_is_valid(family, recipes):
    validator = jsonschema.Draft202012Validator(schema.json_schema(family))
    errors = [
        f"{name} {e.json_path}: {e.message}"
        for name, tree in recipes[family].items()
        for e in validator.iter_errors(tree)
    ]
    assert recipes[family] and not errors


SCHEMAS = {
    **{f"recipe-{name}": lambda name=name: schema.recipe_schema(name) for name in FAMILIES},
    **{f"cluster-{name}": lambda name=name: schema.cluster_schema(name) for name in backend_registry.names()},
    "launch": schema.launch_schema,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_is_described(name):
    found = dict(keys(SCHEMAS[name]()))
    assert found
    for path, node in found.items():
        text, own_words = node.get("description", ""), set(path.rpartition(".")[2].lower().split("_"))
        assert text.endswith((".", "…")), path
        assert len(set(text.lower().strip(".").split()) - own_words) >= 2, f"{path} restates its name: {text}"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_of_every_model_has_a_docstring_of_its_own(name):
    module = importlib.import_module(f"launcher.families.{name}")
    pending, seen = [module.Recipe], set()
    while pending:
        model = pending.pop()
        seen.add(model)
        assert set(schema.descriptions(model)) == set(model.model_fields), model
        inner = (submodel(model, key) for key in field_names(model))
        pending += [found for found in inner if found and found not in seen]
    assert len(seen) > 5


FAULTS = {
    "typo": {"elastic_polcy": {}},
    "typo-inside": nested(f"{ARGS}.learning_rat", 0.1),
    "typo-in-a-size": nested(f"scale_config.2.{ARGS}.learning_rat", 0.1),
    "field-name-for-alias": nested("training_config.model_settings", {}),
    "text-for-boolean": nested("elastic_policy.is_elastic", "false"),
    "text-for-number": nested(f"{ARGS}.train_batch_size", "128"),
    "below-range": nested(f"{ARGS}.train_batch_size", 0),
    "no-such-choice": nested(f"{ARGS}.trainer_type", "stf"),
    "size-that-is-none": nested("scale_config.two", {}),
    "job-key-in-a-size": nested("scale_config.2.run.name", "other"),
    "devices-in-a-size": nested("scale_config.2.trainer.devices", 4),
    "list-for-mapping": {"run": ["name"]},
}


@pytest.mark.parametrize("tree", FAULTS.values(), ids=FAULTS)
def test_faulty_recipe_fails(tree, llmft):
    assert not llmft.is_valid(tree)


GOOD = {
    "nothing": {},
    "defaults-only": {"defaults": ["/base/llmft/common@_here_", "_self_"]},
    "one-key": nested(f"{ARGS}.learning_rate", 0.0001),
    "whole-number-for-number": nested(f"{ARGS}.max_norm", 1),
    "alias": nested("training_config.model_config.peft_config", None),
    "auto": {"scale_config": "auto"},
    "a-size": nested(f"scale_config.3.{ARGS}.uneven_batch.use_uneven_batch", True),
    "reference-to-a-number": nested(f"{ARGS}.train_batch_size", "${.micro_train_batch_size}"),
    "reference-to-a-mapping": nested("training_config.datasets.val_data", "${.train_data}"),
    "left-to-whoever-inherits": nested("trainer.num_nodes", "???"),
    "declared-key": {"extra_keys": [f"{ARGS}.mine"], **nested(f"{ARGS}.mine", 1)},
}


@pytest.mark.parametrize("tree", GOOD.values(), ids=GOOD)
def test_right_recipe_passes(tree, llmft):
    assert [error.message for error in llmft.iter_errors(tree)] == []


def test_declared_keys_leave_types_checked(llmft):
    assert not llmft.is_valid({"extra_keys": ["mine"], "mine": 1, **nested("trainer.devices", "8")})


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["training/tiny/tiny_lm_cpu", LLAMA], ids=["tiny", "llama"])
def test_defaults_are_what_recipes_compose_to(recipe):
    tree = compose([f"recipes={recipe}"], Path.cwd()).tree["recipes"]
    own = dict(leaves(yaml_io.load((COLLECTION / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8"))))
    checked = 0
    given = dict(keys(schema.recipe_schema(tree["run"]["model_type"])))
    for path, value in leaves(tree):
        known = [*given[path].get("examples", ()), given[path].get("default")] if path in given else []
        if known and path not in own and "${" not in str(known):
            checked += 1
            assert value in known, path
    assert checked > 30


@pytest.mark.slow
def test_default_is_what_parts_of_every_recipe_say():
    given = catalogue.defaults("llm_finetuning_aws")
    assert given[f"{ARGS}.micro_train_batch_size"] == catalogue.Given((1,), ())
    assert given[f"{ARGS}.trainer_type"].default == ()
    assert set(given[f"{ARGS}.trainer_type"].others) == {"sft", "dpo"}
    assert given["elastic_policy.max_nodes"].default == (16,)  # all parts agree, though not every recipe has one


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_set_only_keys_the_schema_knows(family):
    known = dict(keys(schema.recipe_schema(family)))
    free = tuple(f"{path}." for path, node in known.items() if not schema.mapping_in(node).get("properties"))
    free += tuple(f"{section}." for section in family_registry.recipe_model(family).keys.passed)
    paths = set(catalogue.defaults(family)) - OUTSIDE_RECIPES
    assert {path for path in paths if path not in known and not path.startswith(free)} == set()


def test_cluster_defaults_are_those_of_its_file():
    tree = yaml_io.load((COLLECTION / "cluster/k8s.yaml").read_text(encoding="utf-8"))
    found = {path: node.get("default") for path, node in schema.cluster_schema("k8s")["properties"].items()}
    assert found == tree


def test_launch_defaults_are_those_of_its_file():
    properties = schema.launch_schema()["properties"]
    assert properties["recipes"]["default"] == "training/tiny/tiny_lm_cpu"
    assert properties["cluster"]["default"] == "local"
    assert properties["env_vars"]["default"] == {"NCCL_DEBUG": "WARN"}
    assert properties["dry_run"]["default"] is False


@pytest.mark.slow
def test_two_calls_share_no_state():
    first = schema.json_schema("tiny_lm")
    before = copy.deepcopy(first)
    first["properties"].clear()
    assert schema.json_schema("tiny_lm") == before
