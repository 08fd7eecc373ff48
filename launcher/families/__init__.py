"""Recipe families: one module for each `run.model_type`, and nothing elsewhere names one.

A module has `Recipe`, the typed recipe, and `INTERFACE`, how its programs are started. Everything specific to a
family is in its module; other code uses these two and names no family.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from launcher.common.names import CONFIG_DIR
from launcher.model.interface import Interface

if TYPE_CHECKING:
    from launcher.model.recipe import RecipeBase

BUNDLE_CONFIGS = f"bundle:{CONFIG_DIR}"
"""Placeholder in a program's arguments for the folder of the configurations, wherever the job runs."""


def names() -> list[str]:
    """Return every family, sorted. Imports none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def interface(model_type: str) -> Interface:
    """Return the interface of a known family."""
    found: Interface = importlib.import_module(f"{__name__}.{model_type}").INTERFACE
    return found


def recipe_model(model_type: str) -> "type[RecipeBase]":
    """Return the model of a known family's recipes."""
    found: type[RecipeBase] = importlib.import_module(f"{__name__}.{model_type}").Recipe
    return found
