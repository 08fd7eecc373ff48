"""Composition to a typed recipe, or every fault in it."""

from launcher.common import redaction
from launcher.common.problems import Problem, ProblemsFound
from launcher.config.collection import GROUPS
from launcher.model import family_registry, instances
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe, sized_recipes, static_recipe, type_recipe, typed_scales
from launcher.model.composition import Composition
from launcher.model.config_tree import AUTO, related, scale_trees
from launcher.model.environment import secret_references
from launcher.model.launch import Launch
from launcher.model.passed_keys import passed_problems
from launcher.model.recipe import RecipeBase
from launcher.model.validation import declared_keys, dotted_keys, type_problems, with_origin
from launcher.planning import size_planner
from launcher.rules import SIZES, faulty_needs, rules_for
from launcher.rules.custom import SCRIPT, is_script
from launcher.rules.secrets import exposed_secrets

MOST_SIZES = 5000
"""Sizes of one job. Each is a configuration that is validated, checked and written."""
_IMAGES = "recipes.images"
"""Where recipes have the published images, by region."""
_MISSPELT = (family_registry.DEFAULTS_MEANT, *(f"did you mean {group}?" for group in GROUPS))
"""Remedies of misspelt keys that choose files."""


def check(composition: Composition) -> CheckedRecipe:
    """Validate a composition and check it with every rule.

    Raises:
        ProblemsFound: Every fault found, each with its origin.
    """
    _learn_secrets(composition)
    checked, problems = examine(composition)
    if problems or checked is None:
        located = with_origin(composition, problems)
        raise ProblemsFound(located)
    return checked


def _learn_secrets(composition: Composition) -> None:
    for _, path, reference in secret_references(composition.tree):
        redaction.learn(reference, path)  # its parts may have been set one by one


def is_misspelt_choice(problem: Problem) -> bool:
    """Return whether a Problem is a misspelt key that chooses files: the job is another one than was intended."""
    return problem.code == "E101" and problem.remedy in _MISSPELT


def type_faults(composition: Composition) -> tuple[Problem, ...]:
    """Return a Problem for each unknown key and each value of a wrong type; none if a choice is misspelt."""
    _learn_secrets(composition)
    problems = [problem for problem in _type(composition)[1] if problem.code in ("E101", "E102")]
    return () if any(map(is_misspelt_choice, problems)) else with_origin(composition, problems)


def unread(composition: Composition) -> tuple[Problem, ...]:
    """Return a Problem for each override of a key that nothing reads, with its origin."""
    if not composition.explicit:
        return ()
    unknown = [problem for problem in _type(composition)[1] if problem.code == "E101"]
    return with_origin(
        composition, [each for each in unknown if any(related(each.path, path) for path in composition.explicit)]
    )


def examine(composition: Composition) -> tuple[CheckedRecipe | None, list[Problem]]:
    """Validate a composition and check it with every rule; return it, as far as it is valid, with its faults.

    The faults lack their origins, which cost more than all rules together.
    """
    checked, problems = _type(composition)
    if misspelt := [*filter(is_misspelt_choice, problems)]:
        return None, misspelt  # other faults would concern a job that was not intended
    if checked is None:
        return None, problems
    if not is_script(checked):  # E105 refuses the section
        problems = [problem for problem in problems if not f"{problem.path}.".startswith(f"{SCRIPT}.")]
    known = [problem.path for problem in problems]
    if not known and checked.has_no_image:
        known.append("container")  # that the image is missing is the same fault
    faulty = faulty_needs(checked, known)
    for rule in rules_for(composition.backend, checked.recipe.run.model_type):
        if not rule.needs_any(faulty):
            problems += rule.problems(checked, is_faulty=bool(faulty))
    known = [problem.path for problem in problems]
    exposed = exposed_secrets(composition)
    return checked, [*problems, *(each for each in exposed if not any(related(each.path, path) for path in known))]


def _type(composition: Composition) -> tuple[CheckedRecipe | None, list[Problem]]:
    checked, problems = _typed(composition)
    recipe = composition.tree["recipes"]
    if dotted := list(dotted_keys(recipe, "", declared_keys(recipe))):
        ends = tuple(problem.path.removeprefix("recipes") for problem in dotted)  # at every size, too
        problems = dotted + [each for each in problems if each.code != "E101" or not each.path.endswith(ends)]
    return checked, problems


def _typed(composition: Composition) -> tuple[CheckedRecipe | None, list[Problem]]:
    tree, backend = composition.tree, described(composition.backend)
    recipe_tree = tree["recipes"]
    launch, problems = type_problems(Launch, tree, "")
    settings, settings_problems = type_problems(backend.options(), tree["cluster"], "cluster")
    found = [*problems, *settings_problems]
    family = family_registry.family_of(recipe_tree)
    if isinstance(family, Problem):
        return None, [*found, family]
    # A start command of the user's own replaces the trainer that a cluster has by default.
    is_replaced = not settings_problems and backend.programs.are_replaced(settings)
    otherwise = None if is_replaced else backend.default_trainer
    trainer = family_registry.trainer_of(recipe_tree, settings.trainer, otherwise)
    recipe, recipe_problems = type_recipe(family, recipe_tree)
    found += recipe_problems
    found += passed_problems(family, composition)
    if any(related(instances.SPECS, problem.path) for problem in recipe_problems):
        recipe = recipe.model_copy(update={"instance_specs": None})  # its placeholder describes no instance
    # Where processes need no container, an override with null lets them run without one.
    is_without = "container" in composition.explicit and not backend.files.has_containers
    is_faulty = any(related(_IMAGES, problem.path) for problem in recipe_problems)
    if launch.container is None and not is_without and not is_faulty:
        image = recipe.image(backend.choice, None if settings_problems else backend.region(settings))
        launch = launch.model_copy(update={"container": image})
    instance = None if backend.instances is None else instances.find(launch.instance_type, recipe.instance_specs)
    checked = CheckedRecipe(composition, launch, settings, recipe, instance, (), {}, trainer=trainer)
    faulty = any(related(need, problem.path) for need in SIZES for problem in found)
    if not faulty and (problem := _too_many_sizes(recipe)):
        return checked, [*found, problem]
    if recipe.scale_config == AUTO:
        return _plan_sizes(family, checked, found)
    scales, scale_problems, overridden = sized_recipes(
        family, recipe, recipe_tree, composition.decided, faulty=faulty
    )
    found += [p for p in scale_problems if p.path not in {f.path for f in found}]
    return checked._replace(scales=scales, overridden_sizes=overridden), found


def _too_many_sizes(recipe: RecipeBase) -> Problem | None:
    """Return a Problem if a valid elastic policy leads to more sizes than a job may have; it creates none of them.

    A table in `scale_config` lists its own sizes.
    """
    policy = recipe.elastic_policy
    if not policy or not policy.is_elastic or (recipe.scale_config and recipe.scale_config != AUTO):
        return None
    if (count := len(policy.steps)) <= MOST_SIZES:
        return None
    step = -(-(policy.max_nodes - policy.min_nodes) // MOST_SIZES)
    return Problem(
        "E218",
        "recipes.elastic_policy.max_nodes",
        f"{policy.min_nodes} to {policy.max_nodes} nodes are {count} sizes, each with its own configuration",
        value=policy.max_nodes,
        allowed=f"at most {MOST_SIZES} sizes",
        remedy=f"recipes.elastic_policy.replica_increment_step={step} or more, or a smaller max_nodes",
    )


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
        known = {entry.key: recipe.at_size(entry.own) for entry in own}
    scales, problems = typed_scales(family, trees, entries, known)
    if not checked.is_elastic:
        scales = tuple(scale._replace(path="recipes") for scale in scales) or (static_recipe(family, recipe, tree),)
    checked = checked._replace(scales=scales, overridden_sizes=overridden, size_plan=plan)
    return checked, [*found, *problems]
