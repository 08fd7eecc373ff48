"""Checks of what a job on Slurm requests of nodes that it may share, and of its end at the time limit."""

from collections.abc import Callable, Iterator

from launcher.backends.slurm.notation import gres_amounts, minutes
from launcher.backends.slurm.options import Settings, slurm_options
from launcher.backends.slurm.sbatch_options import MEMORY_KEYS
from launcher.common.problems import Notice, Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.rules import MakeNotice, PlannedRecipe, notice_rule, rule

_DOCS = "docs/slurm.md"
_DEVICE_KEYS = ("gres", "gpus_per_task", "gpus_per_node")


@rule(
    "E441", *(f"cluster.{key}" for key in _DEVICE_KEYS), source="sbatch(1), --gres, --gpus-per-node, --gpus-per-task"
)
def devices_are_requested_once(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Two requests for a node's devices may contradict each other."""
    yield from _together(slurm_options(checked), _DEVICE_KEYS, problem)


@rule("E473", *(f"cluster.{key}" for key in MEMORY_KEYS), source="sbatch(1), --mem: mutually exclusive")
def memory_is_requested_once(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Slurm takes one of the requests for memory, and ignores or refuses another."""
    yield from _together(slurm_options(checked), MEMORY_KEYS, problem)


def _together(options: Settings, keys: tuple[str, ...], problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Yield a Problem if several of some keys are given."""
    first, *others = [key for key in keys if getattr(options, key) is not None] or [""]
    if others:
        message = f"is given together with {' and '.join(others)}"
        yield problem(f"cluster.{first}", message, value=getattr(options, first), allowed="one of them")


@rule("E474", "cluster.mem_per_gpu", "cluster.exclusive", *(f"cluster.{key}" for key in _DEVICE_KEYS), source=_DOCS)
def memory_per_gpu_has_gpus(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Memory per GPU is that of requested GPUs; without any, Slurm would give the job no memory of its own."""
    options = slurm_options(checked)
    has_gpus = _gpus(options) or (not options.exclusive and checked.instance and checked.instance.accelerators)
    if options.mem_per_gpu is not None and not has_gpus and not options.gpus_per_task:
        remedy = "cluster.gpus_per_node=<number>, or cluster.mem"
        yield problem("cluster.mem_per_gpu", "no GPU is requested", value=options.mem_per_gpu, remedy=remedy)


@rule("E475", "cluster.gpus_per_node", "cluster.gres", "recipes.trainer.devices", source=_DOCS)
def every_process_has_its_gpu(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Each process uses a GPU of its own."""
    options = slurm_options(checked)
    gpus, processes = _gpus(options), checked.devices
    is_one_each = checked.instance is not None and checked.instance.processes == checked.instance.accelerators
    if not gpus or gpus >= processes or not is_one_each:
        return
    key = "gres" if options.gres else "gpus_per_node"
    message = f"is less than the {processes} processes of each node, of which each uses one"
    value = getattr(options, key)
    yield problem(f"cluster.{key}", message, value=value, remedy=f"cluster.{key}=null requests what they need")


def _gpus(options: Settings) -> int:
    """Return the GPUs per node that a job names; 0 if it names none."""
    return options.gpus_per_node or gres_amounts(options.gres or "").get("gres/gpu", 0)


@rule("E476", "cluster.signal", "cluster.limit_notice", source="sbatch(1), --signal")
def one_signal_precedes_the_limit(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Slurm sends a job one signal before its time limit."""
    options = slurm_options(checked)
    if options.signal and options.limit_notice:
        message = "is given together with limit_notice, which sends SIGTERM"
        yield problem("cluster.signal", message, value=options.signal, allowed="one of them")


@rule("E477", "cluster.time", "cluster.limit_notice", source="sbatch(1), --time and --signal")
def a_job_can_start_before_it_must_stop(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A job that must stop before it could start would return to the queue without a step."""
    options = slurm_options(checked)
    limit_s = (minutes(options.time) or float("inf")) * 60
    if options.limit_notice and options.limit_notice >= limit_s:
        allowed = f"less than {limit_s:g}, the time limit in seconds"
        yield problem("cluster.limit_notice", "begins before the job", value=options.limit_notice, allowed=allowed)


@rule("E478", "cluster.limit_requeues", "cluster.limit_notice", "cluster.requeue", source=_DOCS)
def a_job_returns_that_may(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A job that returns to the queue has saved before, and Slurm must be allowed to requeue it."""
    options = slurm_options(checked)
    if not options.limit_requeues:
        return
    if not options.limit_notice and not checked.is_elastic:
        message = "the job would return without having saved"
        remedy = "cluster.limit_notice=<seconds in which its processes save>"
        yield problem("cluster.limit_requeues", message, value=options.limit_requeues, remedy=remedy)
    if not options.requeue:
        message, remedy = "cluster.requeue=false keeps the job from returning", "cluster.requeue=true"
        yield problem("cluster.limit_requeues", message, value=options.limit_requeues, remedy=remedy)


@rule("E479", "cluster.release", "recipes.elastic_policy", source=_DOCS)
def elastic_jobs_are_released(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Slurm remembers the size that an elastic job had last: the short job gives it back every size it may have."""
    if checked.is_elastic and not slurm_options(checked).release.enabled:
        message = "an elastic job needs it: Slurm would keep the size that it had last"
        yield problem("cluster.release.enabled", message, value=False, remedy="cluster.release.enabled=true")


@notice_rule("N188", source="sbatch(1), --mem")
def all_memory_of_shared_nodes_is_taken(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A job that takes all memory of a node shares it with none that needs memory."""
    options = slurm_options(planned.checked)
    if not options.exclusive and options.mem == 0:
        yield notice("cluster.mem=0 takes all memory of each node, so that hardly any other job can share it")


@notice_rule("N186", source=_DOCS)
def setup_may_activate_another_python(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """An environment that setup activates does not change the Python that the launch named."""
    options = slurm_options(planned.checked)
    is_here = options.python is None and not options.ssh and planned.job.image is None
    if is_here and any("activate" in line for line in options.setup or ()):
        yield notice("processes run with the Python that launched; cluster.python=python takes what setup activates")
