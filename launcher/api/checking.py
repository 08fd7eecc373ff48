"""Recipes checked as they would be launched, or each on every instance type it lists, at every size.

For every instance type a recipe is composed once. Values that differ between them, and between the elastic and the
static job, are then set on the composition, which gives the same trees as separate compositions in a fraction of the
time.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher import pipeline
from launcher.api import session as sessions
from launcher.api import values
from launcher.api.naming import choose, text_of
from launcher.api.session import Session
from launcher.common.paths import COLLECTION
from launcher.common.problems import Notice, Problem, ProblemsFound
from launcher.config import catalogue
from launcher.config.catalogue import Entry
from launcher.config.compose import compose
from launcher.config.composed_files import CompositionCache
from launcher.model import backend_registry, family_registry, instances
from launcher.model.checked_recipe import CheckedRecipe, type_recipe
from launcher.model.composition import Composition
from launcher.model.config_tree import AUTO, get, replaced
from launcher.model.context import LaunchContext
from launcher.model.recipe import RecipeBase
from launcher.model.size_plan import spans
from launcher.model.validation import with_origin
from launcher.planning.check import examine
from launcher.planning.job_planner import plan
from launcher.rules import faulty_needs, notices, rules_for

_INSTANCE, _ELASTIC = "instance_type", "recipes.elastic_policy.is_elastic"
_DEALING = ("E221", "E222", "E223")
"""Codes of the rules on the distribution of samples to ranks."""
_REFUSED = "E120"
"""Code of the rule on the clusters that run a family."""
_SCRIPT = "recipes.training_cfg"


@dataclass(frozen=True, slots=True)
class Checked:
    """A recipe, checked as one job.

    Args:
        recipe: Its name.
        path: Its file.
        instance_type: None if it could not be composed.
        is_elastic: Whether it was checked as an elastic job.
        num_sizes: Number of planned sizes; 0 if there are Problems.
        problems: Its Problems.
        notices: Its notices on this instance type.
    """

    recipe: str
    path: Path
    instance_type: str | None
    is_elastic: bool
    num_sizes: int
    problems: tuple[Problem, ...] = ()
    notices: tuple[Notice, ...] = ()


def check(
    *recipes: str | os.PathLike[str], overrides: values.Overrides = (), session: Session | None = None
) -> Iterator[Checked]:
    """Check recipes as they would be launched with these overrides; without a name, `check_all` of the catalogue.

    Nothing is written, and no cluster is asked. Yields each result as soon as it is ready.

    Raises:
        ProblemsFound: An override cannot be stated (E001), or a name is neither a text nor a path (E005).
    """
    session = sessions.given(session)
    context, words, names = session.context(), values.words(overrides), [text_of(each) for each in recipes]
    launches = (_as_launched(name, words, context, session.cache) for name in names)
    return _within(session, launches if names else check_all(catalogue.entries(), context, words))


def _within(session: Session, results: Iterator[Checked]) -> Iterator[Checked]:
    """Yield results, each made while the session is active; between them it is not."""
    while True:
        with session.active():
            result = next(results, None)
        if result is None:
            return
        yield result


def _as_launched(name: str, overrides: Sequence[str], context: LaunchContext, cache: CompositionCache) -> Checked:
    path = Path(name)
    try:
        words = choose(name, overrides)
    except ProblemsFound as error:
        return Checked(name, path, None, False, 0, error.problems)
    try:
        job = pipeline.prepare(words, context, cache)
    except ProblemsFound as error:
        return Checked(name, path, *_as_composed(words, context, cache), 0, error.problems)
    return Checked(
        name, path, job.resources.instance_type, job.elastic is not None, len(job.scales), (), tuple(job.notices)
    )


def _as_composed(words: Sequence[str], context: LaunchContext, cache: CompositionCache) -> tuple[str | None, bool]:
    """Return the instance type of a job that is refused, and whether it is elastic, as far as it composes."""
    try:
        composition = compose(words, context.cwd, cache=cache)
    except ProblemsFound:
        return None, False
    has_instances = backend_registry.described(composition.backend).instances
    where = instances.canonical(str(composition.tree.get(_INSTANCE))) if has_instances else None
    return where, get(composition.tree, _ELASTIC) is True


def check_all(entries: Sequence[Entry], context: LaunchContext, overrides: Sequence[str] = ()) -> Iterator[Checked]:
    """Check every recipe on each of its instance types, static and, if it has a policy, elastic.

    The default cluster is k8s. Yields a result for each recipe, instance type and kind of job, in that order, as soon
    as it is ready.
    """
    cache = CompositionCache()
    for entry in entries:
        words = [*choice(entry), *overrides]
        try:
            base = whole(words, context, cache)
        except ProblemsFound as error:
            yield Checked(entry.name, entry.path, None, False, 0, error.problems)
            continue
        for variant in variants(base, context, cache):
            yield checked(entry, variant, context)


def whole(words: Sequence[str], context: LaunchContext, cache: CompositionCache) -> Composition:
    """Compose a recipe with placeholders for what it leaves to each launch, on Kubernetes if it runs there.

    Raises:
        ProblemsFound: It cannot be composed.
    """
    if any(word.startswith("cluster=") for word in words):
        base = compose(words, context.cwd, cache=cache)
    else:
        base = _on_a_cluster_that_runs_it(words, context, cache)
    brought = placeholders(base)
    return compose([*base.overrides, *brought], context.cwd, cache=cache) if brought else base


def _on_a_cluster_that_runs_it(words: Sequence[str], context: LaunchContext, cache: CompositionCache) -> Composition:
    on_kubernetes = compose([*words, "cluster=k8s"], context.cwd, cache=cache)
    if not _is_refused(on_kubernetes):
        return on_kubernetes
    for other in backend_registry.descriptions():
        elsewhere = compose([*words, f"cluster={other.choice}", *other.examples], context.cwd, cache=cache)
        if not _is_refused(elsewhere):
            return elsewhere
    return on_kubernetes


def _family(composition: Composition) -> type[RecipeBase] | None:
    recipe = composition.tree["recipes"]
    found = family_registry.family_of(recipe) if isinstance(recipe, Mapping) else None
    return found if isinstance(found, type) else None


def _is_refused(composition: Composition) -> bool:
    """Return whether a cluster cannot run a valid recipe."""
    family = _family(composition)
    if family is None or family.refusal is RecipeBase.refusal:
        return False
    recipe, problems = type_recipe(family, composition.tree["recipes"])
    return not problems and recipe.refusal(backend_registry.described(composition.backend).choice) is not None


def choice(entry: Entry) -> list[str]:
    """Return the overrides that choose a recipe of the collection, or of another folder."""
    folder = str(entry.path.absolute()).removesuffix(f"/recipes/{entry.name}.yaml")
    return [f"recipes={entry.name}"] + ([] if folder == str(COLLECTION) else [f"hydra.searchpath=['{folder}']"])


def placeholders(base: Composition) -> list[str]:
    """Return placeholders for what a recipe leaves to each launch: the image, and the user's own script."""
    words = [] if base.tree.get("container") else ["container=image-of-the-launch"]
    if family := _family(base):
        words += [f"++{path}={example}" for path, example in family.left_to_launch(base.tree).items()]
    script = get(base.tree, _SCRIPT)
    if isinstance(script, Mapping) and not (script.get("entry_script") or script.get("entry_module")):
        words += [f"{_SCRIPT}.entry_script=script-of-the-launch.py", f"++{_SCRIPT}.run.ntasks_per_node=1"]
    return words


def variants(
    base: Composition, context: LaunchContext, cache: CompositionCache | None = None
) -> Iterator[Composition]:
    """Yield a recipe's composition for each instance type it lists, as a static and as an elastic job."""
    recipe = base.tree["recipes"]
    listed = recipe.get("instance_types") if isinstance(recipe, Mapping) else None
    types = listed if isinstance(listed, list) and listed else [base.tree.get(_INSTANCE)]
    kinds = (False, True) if isinstance(get(base.tree, "recipes.elastic_policy"), Mapping) else (None,)
    is_referred_to = base.sources.refers_to(_INSTANCE, "is_elastic")
    for instance_type, is_elastic in itertools.product(types, kinds):
        said = {_INSTANCE: instance_type} | ({} if is_elastic is None else {_ELASTIC: is_elastic})
        words = {
            path: f"{path}={str(value).lower() if isinstance(value, bool) else value}" for path, value in said.items()
        }
        overrides = (*base.overrides, *words.values())
        if is_referred_to:
            yield compose(overrides, context.cwd, cache=cache)
            continue
        tree = base.tree
        for path, value in said.items():
            tree = replaced(tree, path, value)
        yield dataclasses.replace(base, tree=tree, overrides=overrides, explicit={**base.explicit, **words})


def checked(entry: Entry, composition: Composition, context: LaunchContext) -> Checked:
    """Check and plan one job of a recipe."""
    is_elastic = get(composition.tree, _ELASTIC) is True
    result = functools.partial(Checked, entry.name, entry.path, str(composition.tree.get(_INSTANCE)), is_elastic)
    checked, problems = examine(composition)
    if checked and [problem.code for problem in problems] == [_REFUSED] and not problems[0].allowed:
        return result(0, (), (Notice("N119", f"no cluster runs it: {problems[0].message}"),))
    if checked and not problems:
        job = plan(checked, context)
        found = backend_registry.load_backend(job.backend).check(job)
        return result(len(job.scales), found, notices(checked, job))
    others = [problem for problem in problems if problem.code not in _DEALING]
    notice = _is_for_more_devices(checked, others) if checked else None
    if checked is None or notice is None:
        return result(0, with_origin(composition, problems))
    return result(0 if others else len(checked.sizes), with_origin(composition, others), (notice,))


def _is_for_more_devices(checked: CheckedRecipe, others: Sequence[Problem]) -> Notice | None:
    """Return a notice if the sizes are valid, but for nodes with more devices than this instance type has.

    That is not an error of the recipe if the planner can distribute the same samples on this instance type. `others`
    are its errors of other kinds, which the planned sizes would have too.
    """
    instance, written_for = checked.instance, checked.recipe.trainer.devices
    if instance is None or not checked.is_elastic or checked.recipe.scale_config == AUTO:
        return None
    of_job = rules_for(checked.backend, checked.recipe.run.model_type)
    dealing = [rule for rule in of_job if rule.code in _DEALING]
    faulty = faulty_needs(checked, (problem.path for problem in others))
    if any(rule.needs_any(faulty) for rule in dealing):
        return None  # the rules on samples depend on a key with an error

    def is_faulty(recipe: CheckedRecipe) -> bool:
        return any(True for rule in dealing for _ in rule.check(recipe, functools.partial(Problem, rule.code)))

    without_instance = checked._replace(instance=None)
    if checked.devices >= written_for or not is_faulty(checked) or is_faulty(without_instance):
        return None
    planned = replaced(checked.composition.tree, "recipes.scale_config", AUTO)
    _, further = examine(dataclasses.replace(checked.composition, tree=planned))
    if any(problem not in others for problem in further):
        return None
    alone = ((scale.nodes, checked._replace(scales=(scale,))) for scale in checked.sizes)
    sizes = spans(nodes for nodes, size in alone if is_faulty(size))
    devices = f"{written_for} devices per node, {instance.name} has {checked.devices}"
    return Notice("N114", f"sizes {sizes} are written for {devices}: ++recipes.scale_config=auto plans them")
