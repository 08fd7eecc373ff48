"""`launcher_scripts/`: for each recipe a script that turns its environment into overrides. Generated, never edited.

`launch.sh`, which all of them call, has the variables of every kind of recipe.

Source: names of scripts and of variables follow the published launcher's scripts.
"""

from collections.abc import Mapping
from pathlib import Path

from launcher.api.files import changed, write_file
from launcher.common.templating import render_template
from launcher.config.catalogue import entries, recipe_tree
from launcher.model import family_registry

FOLDER = "launcher_scripts"
"""The scripts' folder in a checkout."""


def scripts() -> dict[Path, str]:
    """Return every script: its path below `launcher_scripts/`, and its text."""
    kinds = {
        kind: variables
        for name in family_registry.names()
        for kind, variables in family_registry.recipe_model(name).script_variables.items()
    }
    texts = {Path("launch.sh"): render_template("scripts/launch.sh.j2", kinds=kinds)}
    for entry in entries():
        title = " ".join(entry.display_name.split()) or entry.name
        kind = family_registry.recipe_model(entry.model_type).script_kind(recipe_tree(entry))
        texts[Path(entry.family, f"run_{entry.path.stem}.sh")] = render_template(
            "scripts/script.sh.j2", title=title, recipe=entry.name, kind=kind
        )
    return texts


def stale(folder: Path) -> list[Path]:
    """Return the scripts below a `launcher_scripts/` folder that differ from generated ones, in order.

    They are missing, changed, not executable, or without a recipe.
    """
    return _stale(folder, scripts())


def _stale(folder: Path, wanted: Mapping[Path, str]) -> list[Path]:
    there = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return sorted(changed(folder, wanted).keys() | (there - wanted.keys()))


def write(folder: Path) -> list[Path]:
    """Write the stale scripts in `folder`, and remove scripts without a recipe; return both."""
    wanted = scripts()
    found = _stale(folder, wanted)
    for path in found:
        if path in wanted:
            write_file(folder / path, wanted[path])
        else:
            (folder / path).unlink()
    return found
