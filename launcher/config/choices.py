"""The files that overrides choose: recipe, cluster, and parts of them."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, fail, gathering
from launcher.common.suggestions import did_you_mean, nearest, question
from launcher.config.collection import (
    ENDINGS,
    GROUPS,
    USER_RECIPE,
    recipe_file,
    recipe_in,
    recipe_names,
    user_place,
)
from launcher.config.files import Choices
from launcher.config.overrides import SEARCH_PATH, Override
from launcher.model.composition import UnusedOverride, ValueSources

_SCRIPT_RECIPE = "training/custom/script"
"""Recipe of a launch that names a script and no recipe."""
_CONTRACT, _CONTRACT_CLUSTER = ("cluster.contract", "sagemaker"), "sm_local"
"""Key and value that chose a cluster before it had a name of its own, beside cluster=local; and that name."""

_LEAST_ALIKE = 0.8
"""Similarity of a misspelt group: below it, slashes more probably stand for the dots of a key."""


def choose(parsed: Sequence[Override], cwd: Path) -> tuple[Choices, list[Problem]]:
    """Return what the overrides choose, and the faults of choices, which are left out.

    `cluster_type` chooses where `cluster` does not.
    """
    problems: list[Problem] = []
    last = {override.key: override for override in parsed}
    words: list[str] = []
    search = [f for o in parsed if o.key == SEARCH_PATH for f in o.folders]
    folders = [str(COLLECTION), *search]
    files, (cluster, keys) = chosen_files(parsed), _cluster({key: each.value for key, each in last.items()})
    for override in files.values():
        if cluster and override.key == "cluster":
            continue
        with gathering(problems):
            if user_recipe := _recipe_file(override, cwd, folders):
                search.append(user_place(user_recipe))
                words.append(f"recipes={USER_RECIPE}")
            elif problem := _group_problem(override, search):
                problems.append(problem)
            else:
                words.append(word(override, parsed))
    shown = {place: override.shown for place, override in files.items()}
    if cluster:
        shown["cluster"] = ", ".join(last[key].shown for key in keys if key in last)
    return Choices((*words, *_implied(last, cluster)), tuple(search), files, shown), problems


def _implied(chosen: Collection[str], cluster: str | None) -> Iterator[str]:
    """Yield what overrides of values choose: a cluster by another key, the script recipe by its section."""
    if cluster:
        yield f"cluster={cluster}"
    if "recipes" not in chosen and any(key.startswith("recipes.training_cfg") for key in chosen):
        yield f"recipes={_SCRIPT_RECIPE}"


def _cluster(chosen: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """Return the cluster that other keys than `cluster` choose, and the keys that do; None if there is none."""
    key, value = _CONTRACT
    if chosen.get("cluster", chosen.get("cluster_type")) in (None, "local") and chosen.get(key) == value:
        return _CONTRACT_CLUSTER, ("cluster", key)
    named = chosen.get("cluster_type")
    return named if isinstance(named, str) and "cluster" not in chosen else None, ("cluster_type",)


def chosen_files(parsed: Sequence[Override]) -> dict[str, Override]:
    """Return the overrides that choose files, by group and package; of several for one place the last."""
    choices = [override for override in parsed if override.is_choice and not override.is_hydra]
    return {_place(override): override for override in choices}


def _place(override: Override) -> str:
    """Return group and package of a choice, spelled in one way."""
    group, package = override.key, (override.package or "").removeprefix("_global_.")
    return f"{group}@{package}" if package and package != group.replace("/", ".") else group


def word(override: Override, parsed: Sequence[Override]) -> str:
    """Return a choice as Hydra accepts it.

    A launch has a recipe and a cluster in any case, so `+` and `++` choose like no sign; a part that an earlier
    override has added is added here.
    """
    text = override.text
    if override.key in GROUPS:
        return text.lstrip("+")
    is_added = any(o.sign == "+" and o.is_choice and _place(o) == _place(override) for o in parsed)
    return f"+{text}" if is_added and override.sign not in ("+", "~") else text


def unused_choices(parsed: Sequence[Override], choices: Choices, sources: ValueSources) -> Iterator[UnusedOverride]:
    """Yield each choice that a later one replaces, and each search path that has none of the files."""
    used = set(map(id, choices.typed.values()))
    for override in parsed:
        if override.key == SEARCH_PATH:
            if not any(sources.has_file_in(Path(folder)) for folder in override.folders):
                yield UnusedOverride(override.shown, "no file of this launch comes from there")
        elif override.is_choice and id(override) not in used:
            yield UnusedOverride(override.shown)


def _group_problem(override: Override, search: Sequence[str]) -> Problem | None:
    """Return the fault of an override whose key has slashes, as only those of groups of files have."""
    group, value, where = override.key, override.value, override.shown
    if group in GROUPS:
        return None
    # Hydra takes 0.2 s, which other launches do without.
    from launcher.config.hydra_errors import is_group, known_configs

    if not is_group(group, search):
        groups = sorted({config.rpartition("/")[0] for config in known_configs(search)} - {"", *GROUPS})
        near = nearest(group, groups, count=1, cutoff=_LEAST_ALIKE)
        remedy = question(near) or f"dots lead to a key: {group.replace('/', '.')}=…"
        return Problem("E005", group, "is not a group of files to choose from", remedy=remedy, where=where)
    names = value if isinstance(value, list) else [value]
    if not override.is_delete and not (names and all(isinstance(name, str) and name for name in names)):
        return Problem("E005", group, "must name a file of this group", where=where)
    return None


def _named_like_a_file(name: str) -> str | None:
    """Return the recipe of the collection that a path of a file stands for, however much of the path it has."""
    parts = Path(name).with_suffix("").parts
    ends = ["/".join(parts[i:]) for i in range(len(parts))]
    found = [known for end in ends for known in recipe_names() if known == end or known.endswith(f"/{end}")]
    return question([f"recipes={name}" for name in found[:1]])


def _recipe_file(override: Override, cwd: Path, search: Sequence[str]) -> Path | None:
    """Return the file that `recipes=` names, or None when it names a recipe that Hydra finds."""
    name = str(override.value)
    if override.key != "recipes":
        return None
    if not name.endswith(ENDINGS):
        return recipe_in(name, search)
    path = recipe_file(name, cwd)
    if path and not os.path.isfile(path):
        raise fail("E005", "recipes", "is not a regular file", value=name, allowed="a YAML file")
    if path is None:
        path = Path(cwd, os.path.expanduser(name))
        if os.path.islink(path):  # False for a name that is too long, too
            target = os.path.realpath(path)
            raise fail("E005", "recipes", f"is a link to {target}, which does not exist", value=name)
        near = did_you_mean(path.name, [file.name for file in path.parent.glob("*.y*ml") if file.is_file()])
        otherwise = "a recipe of the collection is a path under recipes/ without .yaml"
        remedy = near or _named_like_a_file(name) or otherwise
        raise fail("E005", "recipes", "no such file", value=name, remedy=remedy)
    return path
