"""Composition to a typed recipe, or every fault in it."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher import families
from launcher.common.problems import Problem, ProblemsFound
from launcher.common.suggestions import did_you_mean
from launcher.config import interpolation
from launcher.config.collection import GROUPS
from launcher.model import instance_specs
from launcher.model.backend import BackendDescription
from launcher.model.backend_registry import described, descriptions
from launcher.model.checked_recipe import CheckedRecipe, SizedRecipe
from launcher.model.cluster_options import ClusterOptions
from launcher.model.composition import Composition
from launcher.model.config_tree import (
    AUTO,
    ScaleTree,
    get,
    leaves,
    prefixes,
    scale_trees,
    size_of,
    static_tree,
    steps,
    too_many_sizes,
    without,
)
from launcher.model.job_spec import Trainer
from launcher.model.recipe import Launch, RecipeBase
from launcher.model.validation import field_names, is_field, type_problems
from launcher.planning import size_planner
from launcher.rules import SIZES, faulty_needs, related, rules_for

_MISSPELT = tuple(f"did you mean {group}?" for group in GROUPS)
"""Remedies of misspelt keys that choose a file."""
_NO_TEXT = re.compile(r"true|false|null|[-+.\de]{1,8}", re.I)
"""A value that cannot be a secret, whatever its name."""
_OF_SIZE = re.compile(r"recipes\.(scale_config\.[^.]+\.)?")


def check(composition: Composition) -> CheckedRecipe:
    """Validate a composition and check it with every rule.

    Raises:
        ProblemsFound: Every fault found, each with its origin.
    """
    checked, problems = examine(composition)
    if problems or checked is None:
        raise ProblemsFound(with_origin(composition, problems))
    return checked


def examine(composition: Composition) -> tuple[CheckedRecipe | None, list[Problem]]:
    """Validate a composition and check it with every rule; return it, as far as it is valid, with its faults.

    The faults lack their origins, which cost more than all rules together.
    """
    checked, problems = _type(composition)
    if misspelt := [problem for problem in problems if problem.code == "E101" and problem.remedy in _MISSPELT]:
        return None, misspelt  # other faults would concern a job that was not intended
    if checked is None:
        return None, problems
    faulty = faulty_needs(checked, (problem.path for problem in problems))
    for rule in rules_for(composition.backend):
        if rule.applies(composition.backend, faulty):
            problems += rule.problems(checked, is_faulty=bool(faulty))
    return checked, problems


def _type(composition: Composition) -> tuple[CheckedRecipe | None, list[Problem]]:
    tree, backend = composition.tree, described(composition.backend)
    recipe_tree = tree["recipes"]
    launch, problems = type_problems(Launch, tree, "")
    settings, settings_problems = type_problems(backend.options(), tree["cluster"], "cluster")
    family, family_problems = _family(recipe_tree)
    found = [*problems, *settings_problems, *family_problems]
    if family is None:
        return None, found
    recipe, recipe_problems = _type_recipe(family, recipe_tree)
    found += recipe_problems
    recipe = _without_faulty_instance(recipe, recipe_problems)
    instance = None if backend.instances is None else instance_specs.find(launch.instance_type, recipe.instance_specs)
    trainer = _trainer(recipe_tree["run"]["model_type"], backend, settings, settings_problems)
    checked = CheckedRecipe(composition, launch, settings, recipe, instance, (), {}, trainer=trainer)
    faulty = any(related(need, problem.path) for need in SIZES for problem in found)
    if not faulty and (problem := too_many_sizes(recipe.elastic_policy, recipe.scale_config)):
        return checked, [*found, problem]
    if recipe.scale_config == AUTO:
        return _plan_sizes(family, checked, found)
    scales, scale_problems, overridden = _scales(family, recipe, recipe_tree, composition.decided, faulty=faulty)
    found += [p for p in scale_problems if p.path not in {f.path for f in found}]
    return dataclasses.replace(checked, scales=scales, overridden_sizes=overridden), found


def _trainer(
    model_type: str, backend: BackendDescription[Any], settings: ClusterOptions, faults: Sequence[Problem]
) -> Trainer | None:
    """Return who trains; None for a family without the choice, or with a start command of the user's own."""
    is_replaced = not faults and backend.programs.are_replaced(settings)
    return families.trainer_of(model_type, settings.trainer, None if is_replaced else backend.default_trainer)


def _plan_sizes(
    family: type[RecipeBase], checked: CheckedRecipe, found: list[Problem]
) -> tuple[CheckedRecipe, list[Problem]]:
    """Plan the sizes and type the recipe at each; none while a value that they are derived from is faulty."""
    recipe, composition, keys = checked.recipe, checked.composition, checked.recipe.keys.batch
    if keys is None or recipe.batch is None:
        message, remedy = f"{recipe.run.model_type} has no batch to plan sizes from", "list the sizes, or omit it"
        return checked, [*found, Problem("E227", "recipes.scale_config", message, value=AUTO, remedy=remedy)]
    if any(related(need, problem.path) for need in keys.planned_from for problem in found):
        return checked, found
    given = size_planner.given(composition, keys, recipe.batch)
    plan = size_planner.plan(recipe, checked.devices, given, is_elastic=checked.is_elastic)
    entries = size_planner.corrected(plan, composition.corrections if checked.is_elastic else {})
    tree = {**composition.tree["recipes"], "scale_config": entries}
    explicit = {path: text for path, text in composition.decided.items() if path != keys.bound}
    trees, overridden = scale_trees(tree, explicit)
    known = {}
    if not any(f".{keys.uneven_batch}." in f".{path}." for path in explicit):
        # The plan's own values are valid, so a size that nothing else sets is not typed again.
        own = [entry for entry in trees if entries[entry.key] is plan.entries[entry.key]]
        known = {entry.key: recipe.at_size(size_of(entry.key), entry.own) for entry in own}
    scales, problems = _typed_scales(family, trees, entries, known)
    if not checked.is_elastic:
        scales = tuple(dataclasses.replace(scale, path="recipes") for scale in scales) or (
            _static(family, recipe, tree),
        )
    checked = dataclasses.replace(checked, scales=scales, overridden_sizes=overridden, size_plan=plan)
    return checked, [*found, *problems]


def _family(recipe: Mapping[str, Any]) -> tuple[type[RecipeBase] | None, list[Problem]]:
    known = families.names()
    if "run" not in recipe:
        remedy = "inherit one with defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]"
        return None, [
            Problem("E103", "recipes.run", "is missing: a recipe must name the program that trains it", remedy=remedy)
        ]
    if not isinstance(get(recipe, "run"), Mapping):
        return None, [Problem("E102", "recipes.run", "should be a mapping", value=get(recipe, "run"))]
    name = get(recipe, "run.model_type")
    if name in known:
        return families.recipe_model(name), []
    return None, [
        Problem(
            "E104",
            "recipes.run.model_type",
            "no such recipe family",
            value=name,
            allowed=", ".join(known),
            remedy=did_you_mean(str(name), known),
        )
    ]


def _scales(
    family: type[RecipeBase],
    recipe: RecipeBase,
    tree: Mapping[str, Any],
    explicit: Mapping[str, str],
    *,
    faulty: bool,
) -> tuple[tuple[SizedRecipe, ...], list[Problem], Mapping[str, int]]:
    """Type the recipe at every size. A static job has one size.

    Args:
        family: The recipe's model.
        recipe: The typed base recipe.
        tree: The same, as composed.
        explicit: Each leaf that the user's overrides set, to that override.
        faulty: Whether a key that determines the sizes is faulty.
    """
    trees, overridden = scale_trees(tree, explicit)
    policy = recipe.elastic_policy
    scales, problems = _typed_scales(family, trees, get(tree, "scale_config"), {})
    if policy is None or policy.is_elastic is not True:
        return (_static(family, recipe, tree),), problems, {}
    if not trees and policy.replica_increment_step and not faulty:
        return tuple(_static(family, recipe, tree, nodes) for nodes in steps(policy)), problems, {}
    return scales, problems, overridden


def _typed_scales(
    family: type[RecipeBase],
    trees: tuple[ScaleTree, ...],
    entries: Mapping[str, Any],
    typed_already: Mapping[str, RecipeBase],
) -> tuple[tuple[SizedRecipe, ...], list[Problem]]:
    scales, problems = [], []
    for entry in trees:
        known = typed_already.get(entry.key)
        typed, faults = (known, ()) if known else _type_recipe(family, entry.tree)
        own_faults = _faults_of_scale(entry, faults)
        problems += own_faults
        path = f"recipes.scale_config.{entry.key}"
        is_faulty = bool(own_faults) or not isinstance(entries[entry.key], Mapping)
        scales.append(SizedRecipe(size_of(entry.key), path, entry.own, entry.tree, typed, is_faulty=is_faulty))
    return tuple(scales), problems


def _static(
    family: type[RecipeBase], recipe: RecipeBase, tree: Mapping[str, Any], nodes: int | None = None
) -> SizedRecipe:
    nodes = nodes or (recipe.trainer.num_nodes if isinstance(recipe.trainer.num_nodes, int) else 1)
    own = static_tree(tree, nodes)
    return SizedRecipe(nodes, "recipes", {}, own, _type_recipe(family, own)[0])


def _faults_of_scale(entry: ScaleTree, faults: tuple[Problem, ...]) -> list[Problem]:
    """Return the faults that the entry itself made, under the entry's own path."""
    own = [path for path, _ in leaves(entry.own)] if faults else []
    return [
        dataclasses.replace(fault, path=f"recipes.scale_config.{entry.key}.{fault.path.removeprefix('recipes.')}")
        for fault in faults
        if any(related(leaf, fault.path.removeprefix("recipes.")) for leaf in own)
    ]


def _type_recipe(family: type[RecipeBase], tree: Mapping[str, Any]) -> tuple[RecipeBase, tuple[Problem, ...]]:
    """Type a recipe without the keys it declares in `extra_keys`: those are passed to the container unchecked."""
    extra = tree.get("extra_keys")
    if isinstance(extra, list):
        for path in (str(path) for path in extra if not is_field(family, str(path))):
            tree = without(tree, path)
    return type_problems(family, tree, "recipes")


def _without_faulty_instance(recipe: RecipeBase, problems: Iterable[Problem]) -> RecipeBase:
    """Return a recipe without the instance type that it describes, where that description is faulty."""
    if any(related(instance_specs.KEY, problem.path) for problem in problems):
        return recipe.model_copy(update={"instance_specs": None})
    return recipe


def with_origin(composition: Composition, problems: list[Problem]) -> tuple[Problem, ...]:
    """Return faults with the origin of each faulty value, and the place where an unknown key belongs.

    A value that only refers to a faulty one is omitted: the fault is reported there.
    """
    faulty = {tuple(problem.path.split(".")) for problem in problems}
    own = (p for p in problems if p.code != "E102" or not _repeats(composition, p.path, faulty))
    located = [p if p.where else dataclasses.replace(p, where=_origin(composition, p)) for p in own]
    if any(p.code == "E101" for p in located):
        located = _with_places(composition, located)
    return tuple(located)


def _origin(composition: Composition, problem: Problem) -> str | None:
    """Return the origin of a faulty value; without the text of an unknown key, which may be a misspelt secret."""
    origin = composition.origin(problem.path)
    if origin is None or problem.code != "E101" or origin not in composition.explicit.values():
        return origin
    key, _, text = origin.partition("=")
    return origin if _NO_TEXT.fullmatch(text) else f"{key}=…"


def _repeats(composition: Composition, path: str, faulty: set[tuple[str, ...]]) -> bool:
    places = composition.sources.settings(path)
    written = places[-1].value if places else None
    if not isinstance(written, str) or "${" not in written:
        return False
    return not faulty.isdisjoint(interpolation.targets(written, tuple(path.split("."))))


def _with_places(composition: Composition, problems: list[Problem]) -> list[Problem]:
    """Add to each unknown key the place where its name is known, else how to declare all unknown keys of the
    recipe."""
    known = _paths_by_name(composition.tree)
    placed = [_with_place(composition, known, p) if p.code == "E101" else p for p in problems]
    unread = [p for p in placed if p.code == "E101" and not p.remedy and p.path.startswith("recipes.")]
    declared = get(composition.tree, "recipes.extra_keys")
    keys = [*(declared if isinstance(declared, list) else ()), *(_OF_SIZE.sub("", p.path, count=1) for p in unread)]
    remedy = f"recipes.extra_keys=[{','.join(dict.fromkeys(map(str, keys)))}] if your training code reads "
    remedy += "it" if len(unread) == 1 else "them"
    return [dataclasses.replace(p, remedy=remedy) if p in unread else p for p in placed]


def _paths_by_name(tree: Mapping[str, Any]) -> dict[str, dict[str, None]]:
    """Return each name of a key to the paths that end in it, those of sizes left out."""
    known: dict[str, dict[str, None]] = {}
    for path, _ in leaves(tree):
        if "scale_config" not in path:
            for prefix in prefixes(path):
                known.setdefault(prefix.rpartition(".")[2], {})[prefix] = None
    return known


def _clusters_with(path: str) -> list[str]:
    """Return the clusters whose settings have a key."""
    section, _, key = path.partition(".")
    if section != "cluster":
        return []
    return [each.choice for each in descriptions() if is_field(each.options(), key)]


def _with_place(composition: Composition, known: Mapping[str, Iterable[str]], problem: Problem) -> Problem:
    """Add the place where the name of an unknown key is known: `learning_rate=…` without its long path."""
    unknown = problem.path
    if others := _clusters_with(unknown):
        return dataclasses.replace(problem, remedy=f"only with cluster={' or cluster='.join(others)}")
    places = _known_places(known, unknown)
    if not places:
        return problem
    inside = [leaf for leaf, _ in leaves(get(composition.tree, unknown), unknown)]
    whole = inside[0] if len(inside) == 1 else unknown  # trainer.num_nodes=2 makes the key trainer
    rest = whole.removeprefix(unknown)
    remedy = f"did you mean {' or '.join(f'{place}{rest}' for place in places[:3])}?"
    return dataclasses.replace(problem, path=whole, remedy=remedy)


def _known_places(known: Mapping[str, Iterable[str]], unknown: str) -> list[str]:
    """Return the other paths that end in the same name as an unknown key."""
    name = unknown.rpartition(".")[2]
    places = [p for p in known.get(name, ()) if p != unknown and not p.startswith(f"{unknown}.") and p != name]
    if not places and name == unknown and name in field_names(RecipeBase):
        return [f"recipes.{name}"]
    return places
