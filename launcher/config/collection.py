"""What the collection of recipes offers to choose from. Read without Hydra."""

from pathlib import Path

from launcher.common.paths import COLLECTION

CONFIG = "config"
"""The file that every composition starts from."""
GROUPS = ("recipes", "cluster")
"""The choices that every launch makes."""
ALL_RECIPES = "recipes list shows all recipes"
"""The remedy where a recipe is missing."""


def clusters() -> list[str]:
    """Return the clusters that a job can be compiled for, sorted."""
    return sorted(path.stem for path in (COLLECTION / "cluster").glob("*.yaml"))


def recipe_names(folder: Path = COLLECTION) -> list[str]:
    """Return the name of every recipe under `folder`, sorted. Reads no file."""
    root = folder / "recipes"
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))
