"""What a recipe requests of the chosen cluster, and what its family's programs can do there."""

from collections.abc import Iterator

from launcher.common.problems import Notice, Problem
from launcher.model.backend_registry import choices, described, descriptions
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import get
from launcher.model.earlier_jobs import KEY
from launcher.model.family_registry import interface
from launcher.model.interface import HEAD, SUBMITTER, WORKERS
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

_REHEARSE = "choose another cluster; `recipes rehearse` with that one starts the job's Ray cluster on this machine"
_ROADMAP = "docs/decisions.md, Not supported yet"


@rule("E901", source=_ROADMAP)
def backend_exists(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A cluster whose keys are known but for which jobs cannot be compiled yet."""
    if described(checked.backend).load() is None:
        yield problem(
            "cluster",
            "is not yet supported: its keys are checked, but no bundle is rendered",
            value=described(checked.backend).choice,
            allowed=", ".join(each.choice for each in descriptions() if each.load()),
        )


@rule("E902", "recipes.checkpointless", source=_ROADMAP)
def feature_exists(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A key of a feature that is not yet supported."""
    if checked.recipe.checkpointless and not checked.is_elastic:
        remedy = "recipes.checkpointless=false, or one of the recipes whose names begin with checkpointless_"
        yield problem("recipes.checkpointless", "is not yet supported for any recipe", value=True, remedy=remedy)


@rule("E213", "cluster_type", source="the published launcher's own convention")
def cluster_type_agrees(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """`cluster` and `cluster_type` have the same meaning."""
    backend = described(checked.backend)
    cluster = backend.choice
    if checked.launch.cluster_type not in (None, *backend.cluster_types):
        yield problem(
            "cluster_type",
            f"does not agree with cluster={cluster}",
            value=checked.launch.cluster_type,
            remedy=f"cluster_type={cluster}, or omit it",
        )


@rule("E113", "recipes.run.model_type", source="launcher/families")
def every_role_is_started(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job needs all the roles of its family; without a head, its workers would wait for it."""
    backend, family = described(checked.backend), interface(checked)
    programs = backend.programs
    if family.components and checked.recipe.refusal(backend.choice):
        return  # E120 has the reason
    known = (WORKERS, HEAD, SUBMITTER) if programs.has_ray else (WORKERS,)
    started = family.components if programs.has_components else ()
    if others := [role.name for role in family.roles if role.name not in known and role not in started]:
        yield problem(
            "recipes.run.model_type",
            f"this family also has the roles {', '.join(others)}; cluster={checked.backend} starts workers only",
            value=checked.recipe.run.model_type,
            allowed=choices(lambda each: each.programs.has_ray) if family.is_ray else None,
            remedy=_REHEARSE if family.is_ray and described(checked.backend).runs_here else None,
        )


@rule("E120", "recipes.run", "cluster", source="the published recipes and their images")
def cluster_runs_the_family(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Some programs run on some clusters only: their images, or what they need around them, exist there alone."""
    cluster = described(checked.backend).choice
    if reason := checked.recipe.refusal(cluster):
        others = [each.choice for each in descriptions() if not checked.recipe.refusal(each.choice)]
        remedy = " or ".join(f"cluster={other}" for other in others) or None
        yield problem("cluster", reason, value=cluster, allowed=", ".join(others), remedy=remedy)


@rule("E122", "recipes", "cluster", source="the published recipes, in which these are empty")
def launch_gives_what_the_recipe_leaves_open(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Data, folders and names of your own: without them the program fails once its nodes have started."""
    given = interface(checked).open_recipe
    of_trainer = {f"recipes.{key}" for key in (given.model, given.train)} if given else set()  # E116, or a rehearsal
    for path, example in checked.recipe.left_to_launch(checked.composition.tree).items():
        if path in of_trainer:
            continue
        given = get(checked.composition.tree, path)
        yield problem(path, "is left to each launch", value=given, remedy=f"{path}={example}")


@rule("E121", "recipes.elastic_policy", source="the published recipes and their images")
def size_is_fixed(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Only a program that restarts at another size can be elastic."""
    policy, reason = checked.recipe.elastic_policy, checked.recipe.fixed_size
    if policy and policy.is_elastic and reason:
        remedy = "recipes.elastic_policy.is_elastic=false"
        yield problem("recipes.elastic_policy.is_elastic", reason, value=True, remedy=remedy)


@rule("E450", KEY, "cluster", source="docs/slurm.md, Chains")
def place_has_a_queue(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job waits for another in a queue; without one it would start at once."""
    if checked.launch.after and not described(checked.backend).queue():
        message = "jobs wait for others only where they are queued"
        allowed = choices(lambda each: each.queue() is not None)
        yield problem(KEY, message, value=checked.launch.after, allowed=allowed, remedy=f"{KEY}=null")


@notice_rule("N197", source="docs/concepts.md, Messages about a job")
def messages_need_a_follower(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """The process that follows a job sends the messages about it; without one, none are sent."""
    launch, description = planned.checked.launch, described(planned.checked.backend)
    is_followed = launch.wait or description.runs_here or description.launch_mode(planned.job.settings).is_followed
    if launch.notify and not is_followed:
        yield notice("messages are sent while a process follows the job: wait=true, or recipes wait JOB once it runs")
