"""Checks of low-rank adapters: what is named to get one exists in the model."""

import re
from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.job_spec import OPEN
from launcher.rules import MakeProblem, rule

_SECTIONS = ("model_config.peft_config", "model", "actor_rollout_ref.model")
_NEEDS = tuple(f"recipes.training_config.{section}" for section in _SECTIONS)
_ALONE = "lm_head"
"""The only layer outside others, in the language models of transformers."""
_PARTS = ("llama4_text", "qwen3_5_text", "ministral3")
"""Language models that are published with an encoder of images, whose layers a recipe may name, too."""
_REMEDIES = {"target_modules": "all-linear", "exclude_modules": None}
_ALLOWED = "all-linear, a list of names, or a regular expression of complete names"


@rule("E466", *_NEEDS, source="PEFT, tuners/tuners_utils.py, check_target_module_exists")
def adapters_have_layers(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """PEFT ends a job at its start if no layer gets an adapter; it matches a text with complete names."""
    lora = checked.recipe.lora
    if lora is None or lora.start:
        return
    path, targets = f"recipes.{lora.path}", lora.values["target_modules"]
    if isinstance(targets, str) and re.fullmatch(r"\w+", targets) and targets != _ALONE:
        key, remedy = f"{path}.target_modules", f"{path}.target_modules=[{targets}]"
        message = "matches no complete name of a layer, such as model.layers.0.self_attn.q_proj"
        yield problem(key, message, value=targets, allowed=_ALLOWED, remedy=remedy)
        return
    if targets == "all-linear" and not lora.values.get("exclude_modules"):  # every model has such layers
        return
    from launcher.checkpointing import architecture  # few compiles need either
    from launcher.runtime import model_configs

    config = model_configs.known(checked.published_model)
    if not config or (checked.trainer != OPEN and config["model_type"] in _PARTS):
        return
    weights = architecture.weights(config)
    if not architecture.has_adapters(weights, lora.values):
        fits = {key: architecture.has_adapters(weights, {**lora.values, key: new}) for key, new in _REMEDIES.items()}
        key = next((key for key, is_enough in fits.items() if is_enough), "target_modules")
        yield problem(
            f"{path}.{key}",
            f"leaves no layer of {checked.published_model} with an adapter",
            value=lora.values[key],
            allowed=f"{_ALLOWED}; names: {', '.join(architecture.layer_names(weights))}",
            remedy=f"{path}.{key}={_REMEDIES[key] or 'null'}" if fits[key] else None,
        )
