"""Recipe families: one module for each `run.model_type`, and nothing elsewhere names one.

A module has `Recipe`, the typed recipe, and `INTERFACES`, how its programs are started: by trainer, or under None if
there is only one. Everything specific to a family is in its module; other code uses these two and names no family.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher.common.problems import Problem
from launcher.common.suggestions import did_you_mean
from launcher.model.interface import Interface
from launcher.model.job_spec import Trainer

if TYPE_CHECKING:
    from launcher.model.recipe import RecipeBase


def names() -> list[str]:
    """Return every family, sorted. Imports none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def interface(model_type: str, trainer: Trainer | None) -> Interface:
    """Return the interface of a known family with one of its trainers; None where there is no choice."""
    return _interfaces(model_type)[trainer]


def trainers(model_type: str) -> tuple[Trainer, ...]:
    """Return the trainers that a known family may choose from; none if it has one only."""
    return tuple(trainer for trainer in _interfaces(model_type) if trainer)


def trainer_of(model_type: str, wanted: Trainer | None, otherwise: Trainer | None) -> Trainer | None:
    """Return who trains a known family: who is wanted, otherwise another; None if the family has neither."""
    known = trainers(model_type)
    return next((each for each in (wanted, otherwise) if each in known), None)


def _interfaces(model_type: str) -> Mapping[Trainer | None, Interface]:
    found: Mapping[Trainer | None, Interface] = importlib.import_module(f"{__name__}.{model_type}").INTERFACES
    return found


def recipe_model(model_type: str) -> "type[RecipeBase]":
    """Return the model of a known family's recipes."""
    found: type[RecipeBase] = importlib.import_module(f"{__name__}.{model_type}").Recipe
    return found


def family_of(recipe: Mapping[str, Any]) -> "type[RecipeBase] | Problem":
    """Return the model of the family that a recipe names, or what is wrong with that name."""
    if "run" not in recipe:
        remedy = "inherit one with defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]"
        message = "is missing: a recipe must name the program that trains it"
        return Problem("E103", "recipes.run", message, remedy=remedy)
    if not isinstance(recipe["run"], Mapping):
        return Problem("E102", "recipes.run", "should be a mapping", value=recipe["run"])
    name, known = recipe["run"].get("model_type"), names()
    if name in known:
        return recipe_model(name)
    return Problem(
        "E104",
        "recipes.run.model_type",
        "no such recipe family",
        value=name,
        allowed=", ".join(known),
        remedy=did_you_mean(str(name), known),
    )
