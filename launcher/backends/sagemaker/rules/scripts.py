"""Training jobs of SageMaker: the program that the container runs, and its arguments."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.backends.sagemaker import JOBS, constraints, request
from launcher.backends.sagemaker.keys import API, SCRIPT, jobs_of, path_of, sm_rule
from launcher.backends.sagemaker.rules.inputs import PERSISTENT, kept_remedy
from launcher.common.problems import Problem
from launcher.common.syntax import is_bucket
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.environment import plain_variables, secret_references
from launcher.model.instances import Instance
from launcher.rules import MakeProblem, rule
from launcher.rules.checkpointing import persistent_path
from launcher.rules.custom import is_script, script_of

if TYPE_CHECKING:
    from launcher.backends.sagemaker.training_options import SmJobs
    from launcher.model.parallelism.distribution import Distribution

_TOOLKIT = "sagemaker-training toolkit 5.1.4"
_ENTRY = re.compile(r"(?!(.*/)?\.\.(/|$))[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*\.(py|sh)")
"""Source: sagemaker-training toolkit 5.1.4, entry_point.py; anything else is run as a command."""
_STARTS = ("toolkit", "container_entrypoint", "algorithm_name")
"""Keys that determine whether the toolkit starts the job's program."""
_RESERVED_VARIABLES = ("TRAINING_JOB_NAME", "TRAINING_JOB_ARN")


@sm_rule(
    "E382",
    *("hyperparameters", "instance_groups", *_STARTS),
    more=("recipes.training_cfg", "recipes.distribution", "recipes.trainer", "instance_type"),
    source=f"{API}: HyperParameters; SageMaker Python SDK 2.257.6, Framework",
)
def hyperparameters_fit(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The recipe, its distribution and its arguments are passed as hyperparameters too: 100 in total."""
    plan = request.of_draft(checked)
    own = plan.jobs.hyperparameters or {}
    bare = replace(plan, jobs=plan.jobs.model_copy(update={"hyperparameters": None}))
    script = script_of(checked)
    given = (script.training_cfg.script_args or ()) if script else ()
    arguments = {name.lstrip("-") for argument in given for name in argument}
    for name in sorted(set(own) & set(request.hyperparameters(bare))):
        message = f"{SCRIPT}.script_args sets it, too" if name in arguments else "the launcher sets it"
        yield problem(f"{path_of(checked, 'hyperparameters')}.{name}", message, value=own[name])
    for fault in constraints.faults(request.hyperparameters(plan), "HyperParameters"):
        name = fault.member.removeprefix("HyperParameters").lstrip(".")
        path = f"{path_of(checked, 'hyperparameters')}{'.' if name else ''}{name}"
        if is_script(checked) and name not in own and (name or not own):
            path = "recipes.distribution" if name == "mp_parameters" else f"{SCRIPT}.script_args"
        yield problem(path, fault.message, value=fault.value, allowed=fault.allowed)


@sm_rule("E383", "environment", more=("env_vars",), source=f"{API}: Environment")
def variables_fit(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """`env_vars` and `environment` hold at most 100 variables of 512 characters together; two names are reserved.

    A variable that is set in both has one value.
    """
    plan = request.of_draft(checked)
    found = request.environment(plan)
    own = checked.launch.env_vars or {}
    texts, path = plain_variables(plan.tree), path_of(checked, "environment")
    for name, text in (plan.jobs.environment or {}).items():
        if own.get(name) is not None and texts.get(name) != text and checked.composition.is_given(f"env_vars.{name}"):
            remedy = f"leave one of them out, as by ~env_vars.{name}"
            yield problem(f"{path}.{name}", "env_vars sets this variable to another value", remedy=remedy)
        elif found[name] != text:
            remedy = "leave it out; env_vars may replace it"
            yield problem(f"{path}.{name}", f"the launcher sets it for the program, to {found[name]}", remedy=remedy)
    for name in sorted(set(found) & set(_RESERVED_VARIABLES)):
        yield problem(f"env_vars.{name}" if name in own else f"{JOBS}.environment.{name}", "SageMaker sets it itself")
    for fault in constraints.faults(found, "Environment"):
        name = fault.member.removeprefix("Environment").lstrip(".")
        yield problem(f"env_vars.{name}".rstrip("."), fault.message, allowed=fault.allowed)


@rule("E384", "recipes.run.hf_access_token", "git.token", "env_vars", source=f"{API}: Environment")
def secrets_are_fetched(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A request is plain text, readable by anyone allowed to describe the job, so it must not hold a secret."""
    for _, path, _ in secret_references(checked.composition.tree):
        remedy = f"{described(checked.backend).secrets.instead}, and remove the reference"
        yield problem(path, "a training job's request must not hold a secret", remedy=remedy)


@sm_rule(
    "E385",
    *("source_dir", *_STARTS),
    more=(SCRIPT, "recipes.run.model_type", "recipes.distribution"),
    source=_TOOLKIT,
)
def toolkit_starts_the_script(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The image's toolkit starts a script and passes it hyperparameters as --name value, sorted by name."""
    if (recipe := script_of(checked)) is None:
        return
    if not _has_toolkit(checked):
        key, own = path_of(checked, "source_dir"), "recipes.distribution"
        remedy = f"{JOBS}.toolkit=true if the image has it, or {{}}=null"
        message = "is read by the sagemaker-training toolkit, which does not start this job's program"
        if source := jobs_of(checked).source_dir:
            yield problem(key, message, value=source, remedy=remedy.format(key))
        if recipe.distribution is not None:
            yield problem(own, message, remedy=remedy.format(own))
        return
    script = recipe.training_cfg
    if script.entry_module:
        message = "the toolkit starts scripts, not modules"
        yield problem(f"{SCRIPT}.entry_module", message, value=script.entry_module, allowed="entry_script=train.py")
    elif script.entry_script and not _ENTRY.fullmatch(script.entry_script):
        message = "is not a path inside source_dir that the toolkit can start"
        allowed = "a relative path of letters, digits, ., _, + and - that ends in .py or .sh"
        yield problem(f"{SCRIPT}.entry_script", message, value=script.entry_script, allowed=allowed)
    seen: set[str] = set()
    for i, argument in enumerate(script.script_args or ()):
        for name, value in argument.items():
            if fault := _unpassable(name, value, seen):
                path = f"{SCRIPT}.script_args.{i}.{name}"
                yield problem(path, fault, value=value, allowed=f"{JOBS}.container_entrypoint accepts any words")
            seen.add(name.lstrip("-"))


def _has_toolkit(checked: CheckedRecipe) -> bool:
    return request.has_toolkit(request.of_draft(checked))


def _unpassable(name: str, value: Any, seen: set[str]) -> str | None:
    """Return why the toolkit would not pass an argument to the script as intended; None if it would."""
    bare = name.lstrip("-")
    if name != (f"-{bare}" if len(bare) == 1 else f"--{bare}"):
        return "the toolkit writes one dash before a single letter and two before a longer name"
    if bare in seen:
        return "is given twice, but a hyperparameter has one value"
    if bare.startswith("sagemaker_"):
        return "begins like the toolkit's own hyperparameters, which it does not pass on"
    if value is None or isinstance(value, list):
        return "the toolkit passes one value for each name"
    return None


@sm_rule(
    "E386",
    *_STARTS,
    more=("recipes.trainer", SCRIPT, "recipes.distribution", "instance_type"),
    source=f"{_TOOLKIT}, torch_distributed.py: one process a GPU or Neuron core",
)
def toolkit_starts_as_many(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Without MPI the toolkit decides how many processes a host runs: one for each device."""
    recipe = script_of(checked)
    if recipe is None or checked.instance is None or not _has_toolkit(checked):
        return
    distribution, starts = recipe.distribution, checked.instance.processes or 1
    is_data_parallel = distribution is not None and distribution.is_data_parallel
    is_single = checked.devices == 1 and recipe.trainer.num_nodes == 1 and not is_data_parallel
    if not (distribution is not None and distribution.is_mpi) and not is_single and checked.devices != starts:
        message = f"the toolkit starts {starts} processes on {checked.instance.name}"
        remedy = f"training_cfg.run.ntasks_per_node={starts}, or ++recipes.distribution.mpi.enabled=true"
        yield problem(f"{SCRIPT}.run.ntasks_per_node", message, value=checked.devices, remedy=remedy)


@sm_rule(
    "E368",
    *("instance_groups", *_STARTS),
    more=("recipes.trainer", SCRIPT, "recipes.distribution", "instance_type"),
    source=f"{_TOOLKIT}, environment.py and runner.py",
)
def groups_start_as_many(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Instances of all groups run the script together, each with the planned number of processes."""
    recipe, groups = script_of(checked), jobs_of(checked).instance_groups or ()
    found = [checked.instance_of(group.instance_type) for group in groups]
    if recipe is None or not _has_toolkit(checked) or checked.instance not in found:
        return
    for i, instance in enumerate(found):
        if not instance or instance == checked.instance:
            continue
        if message := _another_count(instance, checked, recipe.distribution):
            path = f"{JOBS}.instance_groups.{i}.instance_type"
            yield problem(path, message, value=instance.name, allowed=f"types that run {checked.devices} processes")


def _another_count(instance: Instance, checked: CheckedRecipe, distribution: "Distribution | None") -> str | None:
    """Return why an instance of another group does not run the planned number of processes; None if it does."""
    wanted, gpus = checked.devices, instance.accelerators
    if distribution is None or not distribution.is_mpi:
        starts = instance.processes or 1
        return None if starts == wanted else f"the toolkit starts {starts} processes here, not {wanted}"
    has_enough = gpus >= wanted or not (gpus or distribution.library)
    return None if has_enough else f"has {gpus} GPUs, but MPI starts {wanted} processes here"


@sm_rule(
    "E390",
    *("network_isolation", "source_dir", "mlflow", "checkpoints"),
    more=(SCRIPT, "recipes.checkpointing"),
    source=f"{API}: EnableNetworkIsolation; {_TOOLKIT}",
)
def isolated_containers_reach_nothing(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A container without a network cannot fetch its code, or write checkpoints and tracking itself."""
    jobs, path = jobs_of(checked), persistent_path(checked)
    if not jobs.network_isolation:
        return
    source = jobs.source_dir or ""
    if is_script(checked) and source.startswith(("s3://", "https://")):
        message = "cannot be downloaded without a network"
        remedy = "a channel with the unpacked code, and source_dir=/opt/ml/input/data/<channel>"
        yield problem(path_of(checked, "source_dir"), message, value=source, remedy=remedy)
    if described(checked.backend).runs_here:  # where it has no effect
        return
    if path and path.startswith("s3://"):
        message = "cannot be written by a container without a network"
        yield problem(PERSISTENT, message, value=path, remedy=kept_remedy(jobs, path))
    if arn := jobs.mlflow.resource_arn:
        message, remedy = "cannot be reached without a network", f"{path_of(checked, 'network_isolation')}=false"
        yield problem(path_of(checked, "mlflow.resource_arn"), message, value=arn, remedy=remedy)


@sm_rule("E391", "source_dir", source=_TOOLKIT)
def source_is_reachable(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The toolkit unpacks an archive from S3, or uses a folder of the image; it cannot see this machine's."""
    jobs, key = jobs_of(checked), path_of(checked, "source_dir")
    source, is_here = jobs.source_dir or "", described(checked.backend).runs_here
    archive = re.fullmatch(r"s3://([^/]+)/.+\.tar\.gz", source)
    if not source or (archive and is_bucket(archive[1])) or source.startswith("/opt/"):
        return
    allowed = "s3://….tar.gz, or a folder of the image below /opt"
    if source.startswith("s3://") and not source.endswith(".tar.gz"):
        message = "is not a .tar.gz archive, the only form that the toolkit unpacks"
        yield problem(key, message, value=source, allowed=allowed)
    elif not is_here:
        remedy = None if "://" in source else _packed(source, jobs, key)
        yield problem(key, "does not exist in the container", value=source, allowed=allowed, remedy=remedy)
    elif not Path(source).is_absolute():
        allowed = "an absolute path, or s3://….tar.gz"
        yield problem(key, "is relative to each host's own working folder", value=source, allowed=allowed)


def _packed(source: str, jobs: "SmJobs", key: str) -> str:
    """Return the commands that upload a folder of this machine, or an archive of it, for the container."""
    place = next((uri for uri in (jobs.recipe_path, jobs.output_path) if uri and uri.startswith("s3://")), "s3://…")
    archive = f"{place.rstrip('/')}/code/sourcedir.tar.gz"
    is_packed = source.endswith((".tar.gz", ".tgz"))
    pack = "" if is_packed else f"tar -czf sourcedir.tar.gz -C {shlex.quote(source)} . && "
    what = shlex.quote(source) if is_packed else "sourcedir.tar.gz"
    return f"{pack}aws s3 cp {what} {shlex.quote(archive)}, then {key}={archive}"
