"""How `distribution` starts a script: by one launcher, on instances that it supports."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.common.problems import Notice, Problem
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

if TYPE_CHECKING:
    from launcher.model.parallelism.distribution import Distribution

_D = "recipes.distribution"
_DATA = f"{_D}.smdistributed.dataparallel"
_TORCH = f"{_D}.torch_distributed"
_SDK = "SageMaker Python SDK 2.257.6"
_SMDDP = frozenset(f"ml.{name}" for name in ("p3.16xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge"))
"""Instance types of the data parallel library. Source: SDK 2.257.6, SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES."""


def _distribution(checked: CheckedRecipe) -> "Distribution | None":
    return getattr(checked.recipe, "distribution", None)


@rule("E256", _D, source=f"{_SDK}, validate_distribution; sagemaker-training toolkit 5.1.4, runner.py")
def one_launcher(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """mpirun, torchrun and the data parallel library's launcher each start all processes; the toolkit uses one."""
    distribution = _distribution(checked)
    if distribution is None:
        return
    first, *others = distribution.starts or ("",)
    for other in others:
        yield problem(
            f"{_D}.{other}.enabled",
            f"{first} also starts the script",
            value=True,
            remedy=f"++{_D}.{other}.enabled=false",
        )
    if distribution.is_data_parallel and distribution.library:
        remedy = f"~{_DATA}, or ~{_D}.smdistributed.modelparallel"
        yield problem(
            f"{_DATA}.enabled", "a job has the data or the model parallel library", value=True, remedy=remedy
        )


@rule("E257", _DATA, "instance_type", source=f"{_SDK}, validate_smdistributed")
def data_parallel_runs_here(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The data parallel library runs on four instance types, with one process per GPU."""
    distribution = _distribution(checked)
    if distribution is None or not distribution.is_data_parallel:
        return
    remedy = f"++{_TORCH}.enabled=true instead"
    backend = described(checked.backend)
    if backend.runs_here or not backend.programs.toolkit_key:
        message = "only AWS's training images have the data parallel library"
        yield problem(f"{_DATA}.enabled", message, value=True, allowed="cluster=sm_jobs", remedy=remedy)
    elif checked.instance and checked.instance.name not in _SMDDP:
        allowed = ", ".join(sorted(_SMDDP))
        message = "is not supported by the data parallel library"
        yield problem("instance_type", message, value=checked.instance.name, allowed=allowed, remedy=remedy)


@rule("E258", _TORCH, "recipes.trainer", "recipes.training_cfg.run", source="sagemaker-training toolkit 5.1.4")
def processes_have_a_launcher(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Without a launcher the toolkit starts one process per host, each on its own."""
    distribution = _distribution(checked)
    if distribution is None or distribution.torch_distributed is None or distribution.starts:
        return
    ranks = checked.devices * checked.recipe.trainer.num_nodes
    if ranks > 1 and described(checked.backend).programs.toolkit_key:
        message = f"nothing else starts the {ranks} processes together"
        yield problem(f"{_TORCH}.enabled", message, value=False, remedy=f"~{_TORCH}")


@notice_rule("N118", source="docs/decisions.md, Model parallelism and MPI")
def sections_are_idle(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A section of distribution that is not enabled has no effect, whatever its other keys."""
    distribution = _distribution(planned.checked)
    for name in distribution.idle_sections if distribution else ():
        yield notice(f"distribution.{name}.enabled=false: the rest of that section has no effect")
