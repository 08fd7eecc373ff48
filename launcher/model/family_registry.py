"""Finds the family of a recipe; only this module imports one, when a recipe of it is read.

A family is a module or package of `launcher/families/`: of the `run.model_type` that is its name, or of all that
begin with the words of its name. It has `Recipe`, the typed recipe, and `INTERFACES`, how its programs are started:
by trainer, or under None if there is only one; a family of several programs has a function `interfaces` of the recipe
instead. Rules about its recipes alone are in its module `rules`.
"""

import functools
import importlib
import pkgutil
import re
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from launcher.common.problems import Problem
from launcher.common.suggestions import did_you_mean
from launcher.model.interface import Interface, OpenRecipe
from launcher.model.job_spec import OPEN, Trainer

if TYPE_CHECKING:
    from launcher.model.recipe import RecipeBase

PACKAGE = "launcher.families"


class Started(Protocol):
    """What is started: a checked recipe, or a job."""

    @property
    def recipe_tree(self) -> Mapping[str, Any]:
        """The recipe as it was composed."""

    @property
    def trainer(self) -> Trainer | None:
        """Who trains; None for a family without the choice."""


def names() -> list[str]:
    """Return every family, sorted. Imports none of them."""
    return list(_names(tuple(importlib.import_module(PACKAGE).__path__)))


@functools.cache  # a compile asks often, and looking for modules reads folders
def _names(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(path)))


def name_of(model_type: object) -> str | None:
    """Return the family of a `run.model_type`, such as `amazon_nova` of `amazon.nova-pro-v1`; None if unknown."""
    known = names()
    if not isinstance(model_type, str) or model_type in known:
        return model_type if model_type in known else None
    words = re.split("[^a-z0-9]", model_type)
    starts = (name for name in known if words[: len(own := name.split("_"))] == own)
    return next(starts, None) if not model_type.isidentifier() else None


def rules(model_type: str) -> tuple[str, ...]:
    """Return the module of the rules about a known family's recipes, if it has one."""
    package = _module(model_type)
    is_there = any(each.name == "rules" for each in pkgutil.iter_modules(getattr(package, "__path__", ())))
    return (f"{package.__name__}.rules",) if is_there else ()


def interface(started: Started) -> Interface:
    """Return how the programs of a known family's recipe are started."""
    return _interfaces(started.recipe_tree)[started.trainer]


def open_recipe_of(name: str) -> OpenRecipe | None:
    """Return what the open trainer is given of a known family's recipes; None if it trains none of them."""
    return getattr(_module(name), "OPEN_RECIPE", None)


def open_recipe(recipe: Mapping[str, Any]) -> OpenRecipe | None:
    """Return what the open trainer is given of a known family's recipe; None if it does not train it."""
    found = _interfaces(recipe).get(OPEN)
    return found.open_recipe if found else None


def trainers(recipe: Mapping[str, Any]) -> tuple[Trainer, ...]:
    """Return the trainers that a known family's recipe may choose from; none if it has one only."""
    return tuple(trainer for trainer in _interfaces(recipe) if trainer)


def trainer_of(recipe: Mapping[str, Any], wanted: Trainer | None, otherwise: Trainer | None) -> Trainer | None:
    """Return who trains a known family's recipe: who is wanted, otherwise another; None if it has neither."""
    known = trainers(recipe)
    return next((each for each in (wanted, otherwise) if each in known), None)


def _interfaces(recipe: Mapping[str, Any]) -> Mapping[Trainer | None, Interface]:
    family = _module(recipe["run"]["model_type"])
    found: Mapping[Trainer | None, Interface] = (
        family.interfaces(recipe) if hasattr(family, "interfaces") else family.INTERFACES
    )
    return found


def _module(model_type: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name_of(model_type)}")


def recipe_model(model_type: str) -> "type[RecipeBase]":
    """Return the model of a known family's recipes."""
    found: type[RecipeBase] = _module(model_type).Recipe
    return found


def family_of(recipe: Mapping[str, Any]) -> "type[RecipeBase] | Problem":
    """Return the model of the family that a recipe names, or what is wrong with that name."""
    run = recipe.get("run", {})
    if not isinstance(run, Mapping):
        return Problem("E102", "recipes.run", "should be a mapping", value=run)
    if "model_type" not in run:
        remedy = "inherit one with defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]"
        message = "is missing: a recipe must name the program that trains it"
        return Problem("E103", "recipes.run.model_type", message, remedy=remedy)
    name, known = run["model_type"], names()
    if isinstance(name, str) and name_of(name):
        return recipe_model(name)
    return Problem(
        "E104",
        "recipes.run.model_type",
        "no such recipe family",
        value=name,
        allowed=", ".join(known),
        remedy=did_you_mean(str(name), known),
    )
