"""Composition to a typed recipe, or every fault in it."""

import dataclasses
import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from launcher import families, instance_specs, planner, references
from launcher.chosen import GROUPS
from launcher.compose import Composition
from launcher.instances import Instance
from launcher.nearest import did_you_mean
from launcher.problems import Notice, Problem, ProblemsFound
from launcher.recipe import Launch, RecipeBase, UnevenBatch
from launcher.rules import SIZES, related, rules_for
from launcher.scales import (
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
from launcher.typed import field_names, is_field, type_problems

_BACKENDS = {
    "local": "local",
    "contract": "contract",
    "k8s": "kubernetes",
    "slurm": "slurm",
    "sm_jobs": "sagemaker",
}
"""Package under `launcher.backends` of each choice of `cluster`; `contract` is local's cluster.contract=sagemaker."""
_SPELLINGS = {"contract": "local cluster.contract=sagemaker"}
"""How a user chooses a backend that is no cluster of its own."""
_MISSPELT = tuple(f"did you mean {group}?" for group in GROUPS)
"""Remedies of keys that were to choose a file."""
_NO_TEXT = re.compile(r"true|false|null|[-+.\de]{1,8}", re.I)
"""A value that is no secret, whatever its name."""
_OF_SIZE = re.compile(r"recipes\.(scale_config\.[^.]+\.)?")


@dataclass(frozen=True, slots=True)
class Scale:
    """The typed recipe at one size.

    Args:
        nodes: Number of nodes; 0 when the key is no positive number (which is a Problem).
        path: Dotted path of the scale, `recipes` for a static job.
        own: What the entry of `scale_config` itself sets.
        tree: Resolved recipe tree at this size.
        recipe: The same, typed.
        is_faulty: Whether its own entry has a fault, so that no other rule need look at it.
    """

    nodes: int
    path: str
    own: Mapping[str, Any]
    tree: Mapping[str, Any] = field(repr=False)
    recipe: Any = field(repr=False)
    is_faulty: bool = False

    @property
    def args(self) -> Any:
        """The typed training arguments at this size."""
        return self.recipe.training_config.training_args

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that work on one sample: by its sequence, and by the parts of a split model."""
        return self.args.ranks_per_sample * self.recipe.model_parallel_size


@dataclass(frozen=True, slots=True)
class Draft:
    """A composition with its types, on its way through the rules; a Recipe once none complains.

    Args:
        composition: Where every value comes from.
        launch: The top level, typed.
        settings: The `cluster` section, typed by its backend.
        recipe: The base recipe, typed by its family.
        instance: What the chosen instance type has; None when unknown, or on this machine.
        scales: Every size the job may run at, ascending.
        notices: What the user should know.
        size_plan: The planned sizes, where `scale_config` is `auto`.
    """

    composition: Composition
    launch: Launch
    settings: Any
    recipe: Any
    instance: Instance | None
    scales: tuple[Scale, ...]
    notices: tuple[Notice, ...]
    size_plan: planner.SizePlan | None = None

    @property
    def backend(self) -> str:
        """The chosen cluster."""
        return self.composition.backend

    @property
    def is_elastic(self) -> bool:
        """Whether the job may change its size."""
        return bool(self.recipe.elastic_policy and self.recipe.elastic_policy.is_elastic)

    @property
    def devices(self) -> int:
        """Processes a node: the recipe's, but no more than the instance can serve unless the user insists."""
        return _devices(self.recipe, self.instance, self.composition)

    @property
    def entries(self) -> Mapping[str, Any]:
        """What was written for single sizes: `scale_config`, or the overrides on top of planned ones."""
        entries = self.recipe.scale_config
        return entries if isinstance(entries, Mapping) else self.composition.corrections

    @property
    def sizes(self) -> tuple[Scale, ...]:
        """The sizes the job may take: for an elastic one, those within its bounds."""
        policy = self.recipe.elastic_policy
        if not self.is_elastic:
            return self.scales
        return tuple(s for s in self.scales if s.nodes and policy.min_nodes <= s.nodes <= policy.max_nodes)

    def instance_of(self, instance_type: object) -> Instance | None:
        """Return a type that the table has or the recipe describes; None for any other."""
        return instance_specs.find(instance_type, self.recipe.instance_specs)

    def is_explicit(self, path: str) -> bool:
        """Tell whether the user's overrides set `path`."""
        return path in self.composition.explicit

    def data_parallel_size(self, scale: Scale) -> int:
        """Return the ranks at `scale` divided by the ranks that share one sample, rounded down."""
        return scale.nodes * self.devices // scale.ranks_per_sample


def backend_module(cluster: str, part: str) -> ModuleType | None:
    """Return the module `part` of a cluster's backend package, or None when it has none yet."""
    name = f"launcher.backends.{_BACKENDS[cluster]}.{part}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def check(composition: Composition) -> Draft:
    """Type a composition and put it through every rule.

    Raises:
        ProblemsFound: Every fault found, each with its origin.
    """
    draft, problems = examine(composition)
    if problems:
        raise ProblemsFound(with_origin(composition, problems))
    return draft


def examine(composition: Composition) -> tuple[Draft | None, list[Problem]]:
    """Type a composition and put it through every rule; return what it is, as far as it can be told, and its faults.

    The faults are without their origins, which cost more than all rules together.
    """
    draft, problems = _type(composition)
    if misspelt := [problem for problem in problems if problem.code == "E101" and problem.remedy in _MISSPELT]:
        return None, misspelt  # whatever else is wrong is wrong with a job that was not meant
    faulty = frozenset(problem.path for problem in problems)
    for rule in rules_for(composition.backend):
        if draft and rule.applies(composition.backend, faulty):
            problems += rule.problems(draft, is_faulty=bool(faulty))
    return draft, problems


def _type(composition: Composition) -> tuple[Draft | None, list[Problem]]:
    tree = composition.tree
    recipe_tree = tree["recipes"]
    launch, problems = type_problems(Launch, tree, "")
    settings_model = backend_module(composition.backend, "settings").Settings
    settings, settings_problems = type_problems(settings_model, tree["cluster"], "cluster")
    family, family_problems = _family(recipe_tree)
    found = [*problems, *settings_problems, *family_problems]
    if family is None:
        return None, found
    recipe, recipe_problems = _type_recipe(family, recipe_tree)
    found += recipe_problems
    if any(related(instance_specs.KEY, problem.path) for problem in recipe_problems):
        recipe = recipe.model_copy(update={"instance_specs": None})
    is_here = composition.backend == "local"
    instance = None if is_here else instance_specs.find(launch.instance_type, recipe.instance_specs)
    draft = Draft(composition, launch, settings, recipe, instance, (), ())
    faulty = any(related(need, problem.path) for need in SIZES for problem in found)
    if not faulty and (problem := too_many_sizes(recipe.elastic_policy, recipe.scale_config)):
        return draft, [*found, problem]
    if recipe.scale_config == AUTO:
        return _plan_sizes(family, draft, found)
    scales, scale_problems, notices = _scales(family, recipe, recipe_tree, composition.decided, faulty=faulty)
    found += [p for p in scale_problems if p.path not in {f.path for f in found}]
    return dataclasses.replace(draft, scales=scales, notices=notices), found


def _devices(recipe: Any, instance: Instance | None, composition: Composition) -> int:
    wanted = recipe.trainer.devices or 1  # None in the stand-in for a faulty one
    if instance and instance.processes and "recipes.trainer.devices" not in composition.explicit:
        return min(wanted, instance.processes)
    return wanted


def _plan_sizes(family: type[RecipeBase], draft: Draft, found: list[Problem]) -> tuple[Draft, list[Problem]]:
    """Plan the sizes and type the recipe at each; none while what they are derived from is faulty."""
    if any(related(need, problem.path) for need in planner.NEEDS for problem in found):
        return draft, found
    recipe, composition = draft.recipe, draft.composition
    given = planner.given(composition)
    plan = planner.plan(recipe, draft.devices, given, is_elastic=draft.is_elastic)
    entries = planner.corrected(plan, composition.corrections if draft.is_elastic else {})
    tree = {**composition.tree["recipes"], "scale_config": entries}
    explicit = {path: text for path, text in composition.decided.items() if path != planner.BOUND}
    trees, notices = scale_trees(tree, explicit)
    is_plain = not any("uneven_batch" in path for path in explicit)
    known = {
        entry.key: _at_size(recipe, entry)
        for entry in trees
        if is_plain and entries[entry.key] is plan.entries[entry.key]
    }
    scales, problems = _typed_scales(family, trees, entries, known)
    if not draft.is_elastic:
        static = [dataclasses.replace(scale, path="recipes") for scale in scales]
        scales = tuple(static) or (_static(family, recipe, tree),)
    draft = dataclasses.replace(draft, scales=scales, notices=(*planner.notices(plan), *notices), size_plan=plan)
    return draft, [*found, *problems]


def _family(recipe: Mapping[str, Any]) -> tuple[type[RecipeBase] | None, list[Problem]]:
    known = families.names()
    if "run" not in recipe:
        remedy = "inherit one with defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]"
        return None, [Problem("E103", "recipes.run", "is missing: a recipe says what trains it", remedy=remedy)]
    if not isinstance(get(recipe, "run"), Mapping):
        return None, [Problem("E102", "recipes.run", "should be a mapping", value=get(recipe, "run"))]
    name = get(recipe, "run.model_type")
    if name in known:
        return importlib.import_module(f"launcher.families.{name}").Recipe, []
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
    family: type[RecipeBase], recipe: Any, tree: Mapping[str, Any], explicit: Mapping[str, str], *, faulty: bool
) -> tuple[tuple[Scale, ...], list[Problem], tuple[Notice, ...]]:
    """Type the recipe at every size. The sizes of a static job are one: its own.

    Args:
        family: The recipe's model.
        recipe: The typed base recipe.
        tree: The same, as composed.
        explicit: What set each leaf that the user's overrides set.
        faulty: Whether a key that says which sizes there are has a fault.
    """
    trees, notices = scale_trees(tree, explicit)
    policy = recipe.elastic_policy
    is_elastic = policy is not None and policy.is_elastic is True
    scales, problems = _typed_scales(family, trees, get(tree, "scale_config"), {})
    if not is_elastic:
        return (_static(family, recipe, tree),), problems, ()
    if not trees and policy.replica_increment_step and not faulty:
        return tuple(_static(family, recipe, tree, nodes) for nodes in steps(policy)), problems, ()
    return scales, problems, notices


def _at_size(recipe: Any, entry: ScaleTree) -> Any:
    """Return the typed base recipe with what a planned size sets; nothing of it can be faulty, nor need be typed."""
    args = dict(get(entry.own, planner.ARGS) or {})
    if "uneven_batch" in args:
        args["uneven_batch"] = UnevenBatch.model_construct(**args["uneven_batch"])
    training = recipe.training_config
    training = training.model_copy(update={"training_args": training.training_args.model_copy(update=args)})
    trainer = recipe.trainer.model_copy(update={"num_nodes": size_of(entry.key)})
    return recipe.model_copy(update={"training_config": training, "trainer": trainer, "scale_config": None})


def _typed_scales(
    family: type[RecipeBase], trees: tuple[ScaleTree, ...], entries: Any, typed_already: Mapping[str, Any]
) -> tuple[tuple[Scale, ...], list[Problem]]:
    scales, problems = [], []
    for entry in trees:
        known = typed_already.get(entry.key)
        typed, faults = (known, ()) if known else _type_recipe(family, entry.tree)
        own_faults = _faults_of_scale(entry, faults)
        problems += own_faults
        path = f"recipes.scale_config.{entry.key}"
        is_faulty = bool(own_faults) or not isinstance(entries[entry.key], Mapping)
        scales.append(Scale(size_of(entry.key), path, entry.own, entry.tree, typed, is_faulty=is_faulty))
    return tuple(scales), problems


def _static(family: type[RecipeBase], recipe: Any, tree: Mapping[str, Any], nodes: int | None = None) -> Scale:
    nodes = nodes or (recipe.trainer.num_nodes if isinstance(recipe.trainer.num_nodes, int) else 1)
    own = static_tree(tree, nodes)
    return Scale(nodes, "recipes", {}, own, _type_recipe(family, own)[0])


def _faults_of_scale(entry: ScaleTree, faults: tuple[Problem, ...]) -> list[Problem]:
    """Return the faults that the entry itself made, under the entry's own path."""
    own = [path for path, _ in leaves(entry.own)] if faults else []
    return [
        dataclasses.replace(fault, path=f"recipes.scale_config.{entry.key}.{fault.path.removeprefix('recipes.')}")
        for fault in faults
        if any(related(leaf, fault.path.removeprefix("recipes.")) for leaf in own)
    ]


def _type_recipe(family: type[RecipeBase], tree: Mapping[str, Any]) -> tuple[Any, tuple[Problem, ...]]:
    """Type a recipe without the keys it declares in `extra_keys`: those go to the container unchecked."""
    extra = tree.get("extra_keys")
    if isinstance(extra, list):
        for path in (str(path) for path in extra if not is_field(family, str(path))):
            tree = without(tree, path)
    return type_problems(family, tree, "recipes")


def with_origin(composition: Composition, problems: list[Problem]) -> tuple[Problem, ...]:
    """Return faults with where each faulty value came from, and where a key that is not here belongs.

    A value that only refers to a faulty one is left out: the fault is there.
    """
    faulty = {tuple(problem.path.split(".")) for problem in problems}
    own = (p for p in problems if p.code != "E102" or not _repeats(composition, p.path, faulty))
    located = [p if p.where else dataclasses.replace(p, where=_origin(composition, p)) for p in own]
    if any(p.code == "E101" for p in located):
        located = _with_places(composition, located)
    return tuple(located)


def _origin(composition: Composition, problem: Problem) -> str | None:
    """Return what set a faulty value; without an unknown key's text, since its name may be a secret's, misspelt."""
    origin = composition.origin(problem.path)
    if problem.code != "E101" or origin not in composition.explicit.values():
        return origin
    key, _, text = origin.partition("=")
    return origin if _NO_TEXT.fullmatch(text) else f"{key}=…"


def _repeats(composition: Composition, path: str, faulty: set[tuple[str, ...]]) -> bool:
    places = composition.settings(path)
    written = places[-1].value if places else None
    is_reference = isinstance(written, str) and "${" in written
    return is_reference and not faulty.isdisjoint(references.targets(written, tuple(path.split("."))))


def _with_places(composition: Composition, problems: list[Problem]) -> list[Problem]:
    """Say of each unknown key where its name is known, else how all those of the recipe are declared."""
    known: dict[str, dict[str, None]] = {}
    for path, _ in leaves(composition.tree):
        if "scale_config" not in path:
            for prefix in prefixes(path):
                known.setdefault(prefix.rpartition(".")[2], {})[prefix] = None
    placed = [_with_place(composition, known, p) if p.code == "E101" else p for p in problems]
    unread = [p for p in placed if p.code == "E101" and not p.remedy and p.path.startswith("recipes.")]
    declared = get(composition.tree, "recipes.extra_keys")
    keys = [*(declared if isinstance(declared, list) else ()), *(_OF_SIZE.sub("", p.path, count=1) for p in unread)]
    remedy = f"recipes.extra_keys=[{','.join(dict.fromkeys(map(str, keys)))}] if your training code reads "
    remedy += "it" if len(unread) == 1 else "them"
    return [dataclasses.replace(p, remedy=remedy) if p in unread else p for p in placed]


def _clusters_with(path: str) -> list[str]:
    """Return the clusters whose settings have a key."""
    section, _, key = path.partition(".")
    modules = {name: backend_module(name, "settings") for name in _BACKENDS} if section == "cluster" else {}
    found = [_SPELLINGS.get(n, n) for n, module in modules.items() if module and is_field(module.Settings, key)]
    # A setting beside a cluster's name is not needed where the name alone has the key too.
    return [each for each in found if each in modules or each.partition(" ")[0] not in found]


def backends() -> tuple[str, ...]:
    """Return the names that jobs are recorded under."""
    return tuple(_BACKENDS)


def _with_place(composition: Composition, known: Mapping[str, Iterable[str]], problem: Problem) -> Problem:
    """Say where an unknown key is known, if its name is: `learning_rate=…` without its long path."""
    name, unknown = problem.path.rpartition(".")[2], problem.path
    if others := _clusters_with(unknown):
        return dataclasses.replace(problem, remedy=f"only with cluster={' or cluster='.join(others)}")
    places = [p for p in known.get(name, ()) if p != unknown and not p.startswith(f"{unknown}.") and p != name]
    if not places and name == unknown and name in field_names(RecipeBase):
        places = [f"recipes.{name}"]
    if not places:
        return problem
    inside = [leaf for leaf, _ in leaves(get(composition.tree, unknown), unknown)]
    whole = inside[0] if len(inside) == 1 else unknown  # trainer.num_nodes=2 makes the key trainer
    rest = whole.removeprefix(unknown)
    remedy = f"did you mean {' or '.join(f'{place}{rest}' for place in places[:3])}?"
    return dataclasses.replace(problem, path=whole, remedy=remedy)
