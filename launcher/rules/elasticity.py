"""Checks whether a job may be elastic, and which sizes it may have."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.common.problems import Notice, Problem
from launcher.common.texts import counted
from launcher.model.backend_registry import choices, described
from launcher.model.capabilities import Scaling
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import AUTO, get, leaves, related, size_of
from launcher.model.family_registry import interface
from launcher.model.job_spec import OPEN, start_size
from launcher.model.size_plan import spans
from launcher.rules import SAME_FOLDER, SIZES, MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

PAGE = "AWS, Using elastic training in Amazon SageMaker HyperPod"
LIMITS = f"{PAGE}, Use elastic training with other HyperPod features"
POLICY = "recipes.elastic_policy"
_PRECEDENCE = "docs/concepts.md, Sizes and precedence"
_NUM_NODES = ("recipes.trainer.num_nodes", "recipes.training_cfg.run.nodes")
_MOST_LISTED = 32
"""Sizes that a Problem lists one by one."""
_PARTS = ("base", "elastic")


def refuses_elastic(
    checked: CheckedRecipe, problem: MakeProblem, path: str, what: str, **details: Any
) -> Iterator[Problem]:
    """Yield the Problem of an elastic job that also has `what`."""
    if checked.is_elastic:
        yield problem(
            path,
            f"elastic training does not work with {what} ({LIMITS})",
            remedy=details.pop("remedy", f"{POLICY}.is_elastic=false"),
            **details,
        )


@rule("E201", f"{POLICY}.min_nodes", f"{POLICY}.max_nodes", source=f"{PAGE}, Elastic Policy")
def bounds_in_order(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The maximum number of nodes cannot be less than the minimum."""
    policy = checked.recipe.elastic_policy
    if policy and policy.min_nodes > policy.max_nodes:
        yield problem(
            f"{POLICY}.min_nodes",
            f"min_nodes {policy.min_nodes} is more than max_nodes {policy.max_nodes}",
            value=policy.min_nodes,
            allowed=f"1 to {policy.max_nodes}",
        )


@rule("E202", *SIZES, source=f"{PAGE}, Elastic Policy: replica_increment_step")
def step_or_scales(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Sizes come from a step or from a list; the operator accepts exactly one."""
    if checked.elastic is None:
        return
    step, scales = checked.elastic.replica_increment_step, checked.recipe.scale_config
    if step and scales and scales != AUTO:
        yield problem(
            f"{POLICY}.replica_increment_step",
            "is given together with scale_config",
            value=step,
            allowed="one of the two",
            remedy="recipes.scale_config=auto plans the step's sizes; omit the step to keep the scales",
        )
    if not step and not scales:
        yield problem(
            "recipes.scale_config",
            "an elastic job needs sizes, but neither scale_config nor replica_increment_step defines any",
            remedy="++recipes.scale_config=auto plans every size",
        )


@rule("E203", source=f"{PAGE}, Scale Config")
def scale_keys_are_sizes(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A key of scale_config is a number of nodes; its value holds the changes for that size."""
    for key, own in checked.entries.items():
        if not isinstance(own, Mapping) and not (own is None and checked.size_plan):
            path = f"recipes.scale_config.{key}"
            remedy = f"~{path} leaves the size out" if own is None else None
            yield problem(path, "must be a mapping of keys", value=own, remedy=remedy)
        if not size_of(key):
            yield problem(f"recipes.scale_config.{key}", "is not a number of nodes", value=key, allowed="1, 2, 3, …")


@rule("E214", source=f"{PAGE}, Scale Config")
def scales_change_training_only(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A size may only change training settings; the job's name, devices and bounds are the same at every size."""
    for key, own in checked.entries.items():
        for path, value in leaves(own):
            if path and path != "trainer.num_nodes" and not path.startswith("training_config."):
                yield problem(
                    f"recipes.scale_config.{key}.{path}",
                    "cannot differ between sizes",
                    value=value,
                    allowed="training_config.… and trainer.num_nodes",
                )


@rule("E204", source=f"{PAGE}, Scale Config")
def scale_key_is_num_nodes(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The entry for N nodes describes N nodes."""
    for key, own in checked.entries.items():
        nodes = get(own, "trainer.num_nodes")
        if nodes is not None and size_of(key) and str(nodes) != key:
            yield problem(
                f"recipes.scale_config.{key}.trainer.num_nodes",
                f"the entry for {key} nodes has num_nodes={nodes}",
                value=nodes,
                allowed=key,
            )


@rule("E205", *SIZES, source=f"{PAGE}, Scale Config")
def scales_within_bounds(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A size outside [min_nodes, max_nodes] would never be used; if a bound was moved since, it is left out."""
    policy = checked.elastic
    if policy is None or not isinstance(checked.recipe.scale_config, Mapping):
        return
    outside = [s for s in checked.scales if s.nodes and not policy.min_nodes <= s.nodes <= policy.max_nodes]
    allowed = f"{policy.min_nodes} to {policy.max_nodes} nodes"
    if outside and policy.min_nodes <= policy.max_nodes and len(outside) == len(checked.scales):
        sizes = ", ".join(str(s.nodes) for s in outside)
        bounds = {f"{POLICY}.min_nodes": policy.min_nodes, f"{POLICY}.max_nodes": policy.max_nodes}
        given = (*filter(checked.is_explicit, bounds), *filter(checked.composition.is_given, bounds))
        path = next(iter(given), "recipes.scale_config")
        yield problem(
            path,
            f"no size is left within the bounds; the recipe has {sizes}",
            value=bounds.get(path),
            allowed=allowed,
            remedy="++recipes.scale_config=auto plans sizes within them" if checked.recipe.keys.batch else None,
        )
        return
    for scale in outside:
        bound = f"{POLICY}.{'min' if scale.nodes < policy.min_nodes else 'max'}_nodes"
        if not _is_moved(checked, bound, scale.path):
            yield problem(
                scale.path,
                f"{counted(scale.nodes, 'node')} {'is' if scale.nodes == 1 else 'are'} outside the bounds",
                value=scale.nodes,
                allowed=allowed,
                remedy=f"{bound}={scale.nodes}, or ~{scale.path} to leave the size out",
            )


def _is_moved(checked: CheckedRecipe, bound: str, size: str) -> bool:
    """Return whether a bound was set after a size, so that the size is left out: by an override, or a file above."""
    if checked.is_explicit(bound):
        return True
    sources = checked.composition.sources
    of_bound, of_size = ([layer for layer, _ in sources.layers(path)] for path in (bound, size))
    is_typed = any(related(size, path) for path in checked.composition.explicit)
    return not is_typed and max(of_bound, default=-1) > max(of_size, default=-1)


@rule("E206", *SIZES, "recipes.trainer.num_nodes", source=f"{PAGE}, Elastic Policy")
def starts_at_a_size(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job must start at one of its sizes."""
    start, sizes = checked.recipe.trainer.num_nodes, [scale.nodes for scale in checked.sizes]
    if not checked.is_elastic or not checked.is_explicit("recipes.trainer.num_nodes"):
        return
    if sizes and start not in sizes:
        yield problem(
            "recipes.trainer.num_nodes",
            f"the job cannot start on {start} nodes",
            value=start,
            allowed=", ".join(map(str, sizes)) if len(sizes) <= _MOST_LISTED else spans(sizes),
            remedy=f"recipes.trainer.num_nodes={min(sizes, key=lambda size: (abs(size - start), size))}",
        )


@rule("E207", *SIZES, "recipes.checkpointless", source=LIMITS)
def not_checkpointless(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A scale event restarts from a checkpoint, which checkpointless training does not write."""
    if checked.recipe.checkpointless:
        yield from refuses_elastic(checked, problem, "recipes.checkpointless", "checkpointless training", value=True)


@rule("E209", *SIZES, "cluster", source=LIMITS)
def not_spot(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Spot capacity is reclaimed without the operator's knowledge."""
    instances = described(checked.backend).instances
    for path, value in instances.spot_keys(checked.settings) if instances else ():
        yield from refuses_elastic(checked, problem, path, "Spot capacity", value=value)


@rule("E211", *SIZES, source=f"{PAGE}, Prerequisites: SageMaker HyperPod EKS Cluster")
def needs_the_operator(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Scale events come from an operator: HyperPod's on Kubernetes, this launcher's on Slurm and on this machine."""
    backend = described(checked.backend)
    if backend.scaling is None:
        clusters = choices(lambda each: each.scaling is not None and not each.runs_here)
        remedy = f"{clusters}, or {POLICY}.is_elastic=false"
        yield from refuses_elastic(checked, problem, "cluster", backend.title, value=backend.choice, remedy=remedy)


@rule(
    "E212",
    *SIZES,
    SAME_FOLDER,
    source=f"{PAGE}, Monitor training on MLFlow (note on the training directory)",
)
def keeps_its_training_dir(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A restart in a new directory would not find the checkpoint; the open trainer loads its own whatever is set."""
    keys, tree = checked.recipe.keys, checked.recipe_tree
    messages = {keys.same_folder: "an elastic job resumes from the directory it wrote, so every restart must use it"}
    if checked.trainer != OPEN:
        messages[keys.resumes] = "an elastic job restarts at each size, and would train from the start each time"
    for key, message in messages.items() if checked.is_elastic else ():
        if key and get(tree, key) is False:
            path = f"recipes.{key}"
            yield problem(path, message, value=False, allowed="true", remedy=f"{path}=true")


@rule("E219", f"{POLICY}.resize", "cluster", source="hyperpod_elastic_agent 1.1.3, ipr_hyperpod_elastic_agent.py")
def stays_where_it_can(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Workers that stay speak with the agent; programs of published images do not."""
    policy = checked.elastic
    if policy is None or policy.resize != "in_place" or interface(checked).workers.stays:
        return
    yield problem(
        f"{POLICY}.resize",
        "the published trainer starts anew at each size: its workers do not wait for the agent",
        value="in_place",
        allowed="restart",
        remedy="the open trainer's workers stay: cluster.trainer=open",
    )


@rule("E215", *SIZES, f"{POLICY}.preemption", source=f"{PAGE}, Preemption by high priority job: replicaSpecs")
def tiers_need_two_parts(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Two priorities need two parts: a base that can train alone, and additional nodes."""
    policy = checked.recipe.elastic_policy
    if policy is None or policy.preemption is None:
        return
    sizes = [scale.nodes for scale in checked.sizes]
    details = {"remedy": f"~{POLICY}.preemption gives the job one priority"}
    is_asked_for = any(checked.is_explicit(f"{POLICY}.preemption.{part}_priority_class") for part in _PARTS)
    if policy.min_nodes == policy.max_nodes or (is_asked_for and not checked.is_elastic):
        yield problem(f"{POLICY}.preemption", "the job has no elastic part: its size is fixed", **details)
    elif checked.is_elastic and sizes and policy.min_nodes not in sizes:
        yield problem(
            f"{POLICY}.preemption",
            f"the base part is min_nodes={policy.min_nodes} nodes, which is not one of the job's sizes",
            allowed=f"min_nodes={min(sizes)}",
            **details,
        )


@rule("E216", f"{POLICY}.preemption", source=f"{PAGE}, Preemption by high priority job: replicaSpecs")
def tiers_differ(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Two parts with the same priority would be preempted alike."""
    preemption = checked.recipe.elastic_policy and checked.recipe.elastic_policy.preemption
    if preemption and preemption.base_priority_class == preemption.elastic_priority_class:
        yield problem(
            f"{POLICY}.preemption.elastic_priority_class",
            "is also the base part's class, so both parts would be preempted alike",
            value=preemption.elastic_priority_class,
            allowed="a class of lower priority",
        )


@notice_rule("N101", source=_PRECEDENCE)
def sizes_outside_moved_bounds(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Sizes outside the bounds you set are left out, not refused."""
    checked = planned.checked
    kept = {scale.nodes for scale in checked.sizes}
    dropped = [str(scale.nodes) for scale in checked.scales if scale.nodes not in kept]
    if dropped:
        what = f"size {dropped[0]} is" if len(dropped) == 1 else f"sizes {', '.join(dropped)} are"
        yield notice(f"{what} outside the bounds that you set: left out")


@notice_rule("N108", source=_PRECEDENCE)
def max_nodes_adds_no_size(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """max_nodes alone adds no size where a table lists the sizes, or a step leads past it."""
    checked, largest = planned.checked, planned.job.scales[-1].nodes
    limit = checked.elastic.max_nodes if checked.elastic else largest
    if limit > largest and checked.composition.is_given(f"{POLICY}.max_nodes"):  # reads files: last
        yield notice(f"the largest size is {largest} nodes; max_nodes={limit} adds none")


@notice_rule("N102", source=_PRECEDENCE)
def starts_at_another_size(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A job starts on its smallest size if num_nodes is not one of its sizes, or on what its cluster has for it."""
    checked, start = planned.checked, planned.job.initial_nodes
    wanted = checked.recipe.trainer.num_nodes
    if start == wanted:
        return
    if start == start_size(wanted, [scale.nodes for scale in checked.sizes]):
        yield notice(f"the job starts with num_nodes={start}: {wanted} is not one of its sizes")
    elif any(map(checked.is_explicit, _NUM_NODES)):
        scaling = described(checked.backend).scaling or Scaling()
        yield notice(f"the job starts on {scaling.start_reason(start)}; num_nodes={wanted} has no effect")


@notice_rule("N125", source=_PRECEDENCE)
def policy_is_the_default(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A recipe without an elastic_policy has no bounds of its own; the default ones apply."""
    checked = planned.checked
    if checked.composition.has_default_policy and (policy := checked.elastic):
        bounds = f"{policy.min_nodes} to {policy.max_nodes} nodes"
        yield notice(f"the recipe has no elastic_policy: base/elastic/policy applies, {bounds}")
