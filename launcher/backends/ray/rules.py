"""What a job of an existing Ray cluster needs: one driver, and code that the cluster's nodes find."""

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.backends.ray.options import ray_options
from launcher.common.problems import Notice, Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.environment import secret_references
from launcher.model.family_registry import interface
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.custom import is_script, script_of

_DOCS = "docs/ray.md, An existing cluster"
_FOLDER = "cluster.working_dir"
_RESOURCES = "cluster.entrypoint_resources"
_KEYS = {
    "CPU": "cluster.entrypoint_num_cpus",
    "GPU": "cluster.entrypoint_num_gpus",
    "memory": "cluster.entrypoint_memory",
    "object_store_memory": None,
}
"""Resources that Ray does not take as custom ones, and their keys."""


@rule("E820", "recipes.run.model_type", "cluster", source=_DOCS)
def one_driver_starts_the_rest(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Ray starts one driver, which starts the workers by Ray; other programs are started once for each rank."""
    if not (interface(checked).is_ray or is_script(checked)):
        message = "its workers are started for each rank by an agent, not by Ray"
        allowed = "GRPO of verl, or a script of your own that starts its workers by Ray"
        yield problem("recipes.run.model_type", message, value=checked.recipe.run.model_type, allowed=allowed)


@rule("E821", "recipes.training_cfg.entry_script", _FOLDER, source=_DOCS)
def script_is_found(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A relative path is below the folder that is copied to the cluster; an absolute one is on its nodes."""
    if (recipe := script_of(checked)) is None or ray_options(checked).command:
        return
    script, key = recipe.training_cfg.entry_script, "recipes.training_cfg.entry_script"
    if not script or os.path.isabs(script):
        return
    if (folder := ray_options(checked).working_dir) is None:
        message = "is a relative path, and no folder is copied to the cluster"
        yield problem(key, message, value=script, remedy=f"{_FOLDER}=., or an absolute path on the cluster's nodes")
    elif ".." in Path(script).parts or script.startswith("~"):
        yield problem(key, f"leaves {_FOLDER}", value=script, allowed=f"a path below {folder}")


@rule("E831", _RESOURCES, source="Ray 2.60, ray_option_utils.py, _validate_resources; resources_from_ray_options")
def custom_resources_are_custom(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Ray refuses a custom resource with the name of one of its own."""
    for name, value in (ray_options(checked).entrypoint_resources or {}).items():
        if name in _KEYS:
            own = _KEYS[name]
            remedy = f"{own}={value:.15g}, without {name} here" if own else "leave it out"
            yield problem(f"{_RESOURCES}.{name}", "is not a custom resource", value=value, remedy=remedy)


@notice_rule("N189", source="Ray, JobSubmissionClient: get_job_info returns runtime_env")
def cluster_shows_secrets(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Ray keeps the variables of a job with it."""
    if names := sorted({name for name, _, _ in secret_references(planned.checked.composition.tree)}):
        yield notice(f"{', '.join(names)}: everyone who may use the Ray cluster can read the variables of its jobs")
