"""How `distribution` starts a script, and splits its model. Nothing else checks most of that before a job starts."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.common.problems import Notice, Problem
from launcher.common.texts import counted
from launcher.model.backend_registry import choices, described
from launcher.model.base_model import Model
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.instances import Instance
from launcher.model.parallelism.smp import PARAMETERS, TENSORFLOW, TORCH, effective
from launcher.model.training_args import BATCH_KEYS
from launcher.rules import SIZES, MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule
from launcher.rules.batches import planned, planned_batches
from launcher.rules.custom import script_of, states_no_processes

if TYPE_CHECKING:
    from launcher.model.parallelism.distribution import Distribution, SmpParameters

_D = "recipes.distribution"
_MPI = f"{_D}.mpi"
_LIBRARY = f"{_D}.smdistributed.modelparallel"
_DATA = f"{_D}.smdistributed.dataparallel"
_TORCH = f"{_D}.torch_distributed"
_P = f"{_LIBRARY}.parameters"
_WORLD = (_D, "recipes.trainer", "recipes.training_cfg.run", "instance_type", *SIZES)
_MICRO, _UNEVEN = f"recipes.{BATCH_KEYS.micro_train_batch_size}", f"recipes.{BATCH_KEYS.uneven_batch}"

_PAGE = "Amazon SageMaker Python SDK, Required SageMaker Python SDK parameters"
_SDK = "SageMaker Python SDK 2.251.1"
_DECISIONS = "docs/decisions.md, Model parallelism and MPI"

_SDK_NEW = "SageMaker Python SDK 2.257.6"
_SMDDP = frozenset(f"ml.{name}" for name in ("p3.16xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge"))
"""Instance types of the data parallel library. Source: SDK 2.257.6, SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES."""
_GPU = "nvidia.com/gpu"
_NO_SMP, _NO_SMP_IMAGE = "p5.48xlarge", "2.0.1-gpu-py310-cu121"
"""Instance types that SMP 1 does not support, beside those without GPUs; tag of images without MPI support."""


def _distribution(checked: CheckedRecipe) -> "Distribution | None":
    script = script_of(checked)
    return script.distribution if script else None


def _split(checked: CheckedRecipe) -> "tuple[Distribution, SmpParameters] | None":
    """Return how a job with a split model is started, and the parameters of the model parallel library."""
    distribution = _distribution(checked)
    parameters = distribution and distribution.parameters
    return (distribution, parameters) if distribution and parameters else None


def _given(parameters: Model) -> dict[str, object]:
    return {name: value for name in type(parameters).model_fields if (value := getattr(parameters, name)) is not None}


def _is_split(given: "SmpParameters") -> bool:
    """Return whether the number of the model's parts is known; if not, that is reported separately."""
    return bool(given.partitions or given.pipeline_parallel_degree)


@rule("E240", _D, "cluster", source=_DECISIONS)
def a_cluster_reads_it(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """On other clusters an agent starts the script, so mpirun and the library would silently be missing."""
    distribution = _distribution(checked)
    if distribution is None or not (distribution.is_mpi or distribution.library):
        return
    if not described(checked.backend).programs.starts_by_mpi:
        yield problem(
            _D,
            f"cluster={described(checked.backend).choice} does not start scripts by MPI",
            allowed=choices(lambda each: each.programs.starts_by_mpi),
            remedy=f"~{_D}",
        )


@rule("E241", _D, source=_PAGE)
def mpi_is_enabled(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The library uses MPI internally. Without it each host would start one process and train its own model."""
    distribution = _distribution(checked)
    if distribution and distribution.library and not distribution.is_mpi:
        yield problem(
            f"{_MPI}.enabled" if distribution.mpi else _MPI,
            "model parallelism needs MPI",
            value=False if distribution.mpi else None,
            remedy=f"++{_MPI}.enabled=true",
        )


@rule("E242", _D, source=f"{_PAGE}, smdistributed Parameters (partitions)")
def partitions_are_given(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The number of partitions of a model has no default; it has two names, of which one must be given."""
    if (found := _split(checked)) is None:
        return
    given = found[1]
    names = [name for name in ("partitions", "pipeline_parallel_degree") if getattr(given, name) is not None]
    if len(names) == 1:
        return
    yield problem(
        f"{_P}.partitions",
        "is given together with pipeline_parallel_degree, its newer name" if names else "is missing",
        value=given.partitions,
        allowed="partitions, or with PyTorch pipeline_parallel_degree",
        remedy=f"~{_P}.partitions" if names else f"++{_P}.partitions=2",
    )


@rule("E243", *_WORLD, source=f"{_PAGE}, Ranking Basics: mp_groups are disjoint and of one size")
def ranks_are_whole_replicas(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each rank is part of one replica, and a replica has partitions × tensor parallel degree ranks."""
    if (found := _split(checked)) is None:
        return
    split, tensor = found[0].degrees
    for scale in planned(checked):
        ranks = scale.nodes * checked.devices
        if ranks % (split * tensor):
            sliced = f" × tensor parallel degree {tensor}" if tensor > 1 else ""
            name = "pipeline_parallel_degree" if found[1].partitions is None else "partitions"
            yield problem(
                f"{_P}.{name}",
                f"{ranks} ranks ({scale.nodes} × {checked.devices}) are not a multiple of {split} partitions{sliced}",
                value=split,
                allowed=f"a divisor of {ranks // tensor}" if ranks % tensor == 0 else f"a multiple of {tensor} ranks",
            )
            return


@rule("E244", *_WORLD, _MICRO, _UNEVEN, source=f"{_PAGE}, smdistributed Parameters (microbatches)")
def batches_are_whole_microbatches(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The batch that a script passes to a step is split into microbatches of equal size."""
    found = _split(checked)
    if found is None or checked.composition.is_unstated(_MICRO):
        return
    microbatches = found[1].microbatches or 1
    for each in planned_batches(checked):
        uneven = each.uneven
        batches = (
            (uneven.small_local_batch_size, uneven.large_local_batch_size)
            if uneven
            else (each.batch.micro_train_batch_size,)
        )
        for batch in batches:
            if batch is not None and batch % microbatches:
                yield problem(
                    f"{_P}.microbatches",
                    f"a batch of {batch} does not divide into {microbatches} microbatches",
                    value=microbatches,
                    allowed=f"a divisor of {batch}",
                    remedy=f"{_MICRO}={-(-batch // microbatches) * microbatches}",
                )
                return


@rule("E245", _D, source=f"{_SDK}, validate_mp_config")
def one_kind_of_data_parallelism(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Replicas train together through DistributedDataParallel or Horovod, not both."""
    if (found := _split(checked)) and found[1].ddp and found[1].horovod:
        other = "ddp" if found[0].framework == TENSORFLOW else "horovod"
        yield problem(f"{_P}.{other}", "ddp and horovod are both true", value=True, remedy=f"++{_P}.{other}=false")


@rule("E246", _D, source=f"{_PAGE}, TensorFlow-specific parameters, PyTorch-specific parameters")
def framework_has_the_parameter(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Some parameters exist for one framework only; the SDK passes them to the other, where they have no effect."""
    if (found := _split(checked)) is None:
        return
    framework, given = found[0].framework, found[1]
    for name, value in _given(given).items():
        owner = PARAMETERS[name].framework
        if owner in (None, framework) or (name in ("ddp", "horovod") and given.ddp and given.horovod):
            continue
        yield problem(
            f"{_P}.{name}",
            f"is a parameter of {owner}; the script is written in {framework}",
            value=value,
            remedy=f"~{_P}.{name}, or ++{_LIBRARY}.framework={owner}",
        )
    if framework == TENSORFLOW and given.placement_strategy not in (None, "cluster", "spread"):
        yield problem(
            f"{_P}.placement_strategy",
            "tensorflow has neither tensor parallelism nor orders of three dimensions",
            value=given.placement_strategy,
            allowed="cluster, spread",
        )


@rule("E247", *_WORLD, source=f"{_PAGE}, ddp, horovod and tensor_parallel_degree")
def replicas_train_together(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Replicas that do not average their gradients train separately; tensor slices need averaging too."""
    if (found := _split(checked)) is None or not _is_split(found[1]):
        return
    distribution, given = found
    split, tensor = distribution.degrees
    name = "horovod" if distribution.framework == TENSORFLOW else "ddp"
    if getattr(given, name) or (given.ddp and given.horovod):
        return
    counts = [scale.nodes * checked.devices // (split * tensor) for scale in planned(checked)]
    if tensor > 1:
        reason = f"a tensor parallel degree of {tensor} needs {name}"
    elif any(count > 1 for count in counts):
        reason = f"{max(counts)} replicas of the model need {name} to train together"
    else:
        return
    yield problem(f"{_P}.{name}", reason, value=getattr(given, name), remedy=f"++{_P}.{name}=true")


@rule("E248", _D, source=f"{_PAGE}, smdistributed Parameters (auto_partition, default_partition)")
def default_partition_exists(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Without automatic splitting, layers that the script does not place go to a named, existing partition."""
    if (found := _split(checked)) is None:
        return
    distribution, given = found
    split, value = distribution.degrees[0], given.default_partition
    if value is None and given.auto_partition is False:
        yield problem(
            f"{_P}.default_partition", "auto_partition=false needs it", remedy=f"++{_P}.default_partition=0"
        )
    elif value is not None and value >= split and _is_split(given):
        yield problem(
            f"{_P}.default_partition",
            f"there are {split} partitions, numbered from 0",
            value=value,
            allowed=f"0 to {split - 1}" if split > 1 else "0",
        )


@rule("E249", _D, source=f"{_PAGE}, the version beside each parameter")
def version_has_the_parameter(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """An older library does not know a newer parameter."""
    found = _split(checked)
    version = found[0].library.version if found and found[0].library else None
    if found is None or version is None:
        return
    given = found[1]
    major, minor = (int(number) for number in version.split(".")[:2])
    newer = {name: PARAMETERS[name].since for name in _given(given)}
    if given.placement_strategy not in (None, "cluster", "spread"):
        newer["placement_strategy"] = PARAMETERS["tensor_parallel_degree"].since
    for name, since in newer.items():
        if since and (major, minor) < since:
            needed = ".".join(map(str, since))
            yield problem(
                f"{_P}.{name}",
                f"needs version {needed} of the library; the image is declared to have {version}",
                value=getattr(given, name),
                remedy=f"~{_P}.{name}",
            )


@rule(
    "E250",
    *(_D, "instance_type", "container"),
    source=f"{_SDK}, validate_distribution and Framework._distribution_configuration",
)
def instance_runs_it(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The library places each process on its own GPU; Trainium has its own launcher, and P5 its own library."""
    distribution, instance = _distribution(checked), checked.instance
    if distribution is None or instance is None or not (distribution.is_mpi or distribution.library):
        return
    if distribution.library and _NO_SMP_IMAGE in (checked.launch.container or ""):
        message = "that image has no model parallel library that runs under MPI"
        yield problem("container", message, value=checked.launch.container, remedy="an image of SMP 1")
    if reason := _why_not(instance, needs_library=bool(distribution.library)):
        message = f"{instance.name} {reason}"
        yield problem("instance_type", message, value=instance.name, remedy="instance_type=p4d.24xlarge")


def _why_not(instance: Instance, *, needs_library: bool) -> str | None:
    """Return why MPI, or the library that it starts, does not run on an instance type; None if it does."""
    if needs_library and instance.accelerator_resource != _GPU:
        return "has no GPUs, but the model parallel library needs one per process"
    if needs_library and _NO_SMP in instance.name:
        return "is not supported by the model parallel library under MPI"
    if instance.name.startswith("ml.trn"):
        return "starts scripts by torchrun only, not by MPI"
    return None


@rule("E251", _MPI, "instance_type", source=f"{_PAGE}, mpi Parameters (processes_per_host)")
def processes_have_gpus(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each process needs its own GPU."""
    processes, instance = _processes(checked), checked.instance
    if processes and instance and _exceeds(instance, processes):
        gpus = instance.accelerators
        yield problem(
            f"{_MPI}.processes_per_host",
            f"{instance.name} has {counted(gpus, 'GPU')}",
            value=processes,
            allowed=f"1 to {gpus}",
            remedy=f"++{_MPI}.processes_per_host={gpus}",
        )


def _processes(checked: CheckedRecipe) -> int | None:
    """Return `processes_per_host` if MPI is enabled and it is given."""
    distribution = _distribution(checked)
    return distribution.started_by_mpi.processes_per_host if distribution and distribution.started_by_mpi else None


def _exceeds(instance: Instance | None, processes: int) -> bool:
    return bool(instance and instance.accelerator_resource == _GPU and processes > instance.accelerators)


@rule("E252", _MPI, "recipes.trainer", "recipes.training_cfg.run", "instance_type", source=_DECISIONS)
def processes_agree(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The batch is distributed to trainer.devices processes per node; MPI must start as many."""
    processes = _processes(checked)
    if (
        not processes
        or processes == checked.devices
        or _exceeds(checked.instance, processes)
        or states_no_processes(checked)
    ):
        return
    yield problem(
        f"{_MPI}.processes_per_host",
        f"the recipe plans {checked.devices} processes per node",
        value=processes,
        remedy=f"training_cfg.run.ntasks_per_node={processes}, or omit processes_per_host",
    )


@rule("E253", _MPI, _DATA, source="sagemaker-training toolkit 5.1.4, mpi.py and smdataparallel.py; mpirun(1)")
def options_are_words(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Custom options are split at blanks, and must not change the planned number and placement of ranks."""
    distribution = _distribution(checked)
    mpi, data = (distribution.started_by_mpi, distribution.data_parallel) if distribution else (None, None)
    for path, section in ((_MPI, mpi), (_DATA, data)):
        if section and section.custom_mpi_options:
            yield from _option_faults(f"{path}.custom_mpi_options", section.custom_mpi_options, problem)


def _option_faults(path: str, options: str, problem: MakeProblem) -> Iterator[Problem]:
    """Yield the options at `path` that mpirun would misread."""
    from launcher.model.parallelism import mpi  # few recipes need it, and its import costs every launch milliseconds

    words = options.split()
    if re.search("[\"'\\\\]", options):
        yield problem(path, "quotes and backslashes reach mpirun literally, as parts of a word", value=options)
    if moving := [w for w in words if w.partition("=")[0] in mpi.PLACING or w.startswith(mpi.PLACING_PARAMETERS)]:
        message = f"{', '.join(moving)} would change the planned placement of ranks"
        yield problem(path, message, value=options, remedy="set processes_per_host and trainer.num_nodes")
    try:
        mpi.parted(words)
    except ValueError as error:
        yield problem(path, str(error), value=options, remedy="--NCCL_DEBUG INFO")


@rule("E254", _D, source=f"{_SDK}, validate_mp_config")
def ddp_options_have_ddp(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Settings of DistributedDataParallel need it; its use is stated, not guessed."""
    if (found := _split(checked)) is None or found[1].ddp is not None or found[0].framework != TORCH:
        return
    given = found[1]
    for name in ("ddp_port", "ddp_dist_backend"):
        if (value := getattr(given, name)) is not None:
            yield problem(f"{_P}.{name}", "needs ddp", value=value, remedy=f"++{_P}.ddp=true")


@rule("E255", _D, source=f"{_PAGE}, PyTorch-specific parameters (offload_activations)")
def offloading_has_microbatches(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Activations are offloaded while other microbatches run; with a single one they cannot be."""
    found = _split(checked)
    if found is None or not found[1].offload_activations or not _is_split(found[1]):
        return
    working = effective(found[1], found[0].framework)
    for name in ("microbatches", "active_microbatches"):
        if working.get(name) == 1:
            yield problem(
                f"{_P}.{name}", "offload_activations needs more than one", value=1, remedy=f"++{_P}.{name}=2"
            )


@rule("E256", _D, source=f"{_SDK_NEW}, validate_distribution; sagemaker-training toolkit 5.1.4, runner.py")
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


@rule("E257", _DATA, "instance_type", source=f"{_SDK_NEW}, validate_smdistributed")
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
    if checked.ranks > 1 and described(checked.backend).programs.toolkit_key:
        message = f"nothing else starts the {checked.ranks} processes together"
        yield problem(f"{_TORCH}.enabled", message, value=False, remedy=f"~{_TORCH}")


@notice_rule("N118", source=_DECISIONS)
def sections_are_idle(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A section of distribution that is not enabled has no effect, whatever its other keys."""
    distribution = _distribution(planned.checked)
    for name in distribution.idle_sections if distribution else ():
        yield notice(f"distribution.{name}.enabled=false: the rest of that section has no effect")
