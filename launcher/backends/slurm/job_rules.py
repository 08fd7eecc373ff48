"""Checks of the `cluster` section of cluster=slurm, and of what a job on Slurm cannot have."""

from collections.abc import Callable, Iterator

from launcher.backends.slurm.elastic_options import notice_s
from launcher.backends.slurm.limits import minutes
from launcher.backends.slurm.options import Settings, runtime_of, slurm_options
from launcher.common.problems import Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.job_spec import OPEN, PUBLISHED
from launcher.rules import rule

_DOCS = "docs/slurm.md"
_CODE = ("repo_url_or_path", "branch", "commit", "token", "entry_script", "entry_module")


@rule("E440", "cluster.auto_resume", "cluster.exclusive", source="AWS, SageMaker HyperPod cluster resiliency: Slurm")
def auto_resume_has_its_nodes(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """HyperPod replaces a faulty node only under a job that has it alone."""
    options = slurm_options(checked)
    if options.auto_resume and not options.exclusive:
        yield problem("cluster.auto_resume", "needs nodes of its own", value=True, remedy="cluster.exclusive=true")


@rule("E441", "cluster.gres", "cluster.gpus_per_node", source="sbatch(1), --gres and --gpus-per-node")
def devices_are_requested_once(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Two requests for a node's devices may contradict each other."""
    options = slurm_options(checked)
    if options.gres and options.gpus_per_node:
        yield problem(
            "cluster.gres", "is given together with gpus_per_node", value=options.gres, allowed="one of them"
        )


@rule("E442", "container", "cluster.container_runtime", "cluster.trainer", source=_DOCS)
def container_can_be_run(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A runtime needs an image, and the published trainer exists in an image only."""
    image = checked.launch.container
    runtime = runtime_of(slurm_options(checked), image)
    if runtime != "none" and not image:
        remedy = "container=<image>, or cluster.container_runtime=none"
        yield problem("cluster.container_runtime", "has no image to run", value=runtime, remedy=remedy)
    elif runtime == "none" and checked.trainer == PUBLISHED:
        remedy = f"container=<image>, or cluster.trainer={OPEN}"
        yield problem("container", "the published trainer exists in an image only", value=image, remedy=remedy)


@rule("E465", "container", "cluster.container_runtime", "cluster.mpi", "recipes.distribution", source=_DOCS)
def ranks_can_be_started(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """mpirun starts processes of a node, which start a container each; pyxis is a part of srun."""
    options, distribution = slurm_options(checked), getattr(checked.recipe, "distribution", None)
    runtime = runtime_of(options, checked.launch.container)
    if distribution is None or not distribution.is_mpi:
        return
    if runtime == "docker":
        message, allowed = "cannot be started by MPI: its processes do not find each other", "pyxis, apptainer, none"
        yield problem("cluster.container_runtime", message, value=runtime, allowed=allowed)
    elif runtime == "pyxis" and options.mpi == "mpirun":
        yield problem("cluster.mpi", "cannot start pyxis containers", value=options.mpi, remedy="cluster.mpi=pmix")


@rule("E443", "git", "cluster.trainer", source=_DOCS)
def code_is_in_place(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The image's start script, which fetches code, is not started on Slurm: the launcher starts the program."""
    for name in _CODE if checked.trainer != OPEN else ():
        if (value := getattr(checked.launch.git, name)) is not None:
            shown = None if name == "token" else value
            message = "no code is fetched on Slurm; use an image, or a folder of the shared file system, that has it"
            yield problem(f"git.{name}", message, value=shown, remedy=f"git.{name}=null")


@rule(
    "E470",
    "cluster.exclusive",
    "cluster.signal",
    "cluster.auto_resume",
    "cluster.master_port",
    "recipes.elastic_policy",
    source=_DOCS,
)
def elastic_jobs_leave_it_to_the_operator(
    checked: CheckedRecipe, problem: Callable[..., Problem]
) -> Iterator[Problem]:
    """The operator of an elastic job needs whole nodes, and what it decides itself cannot be given."""
    if not checked.is_elastic:
        return
    options = slurm_options(checked)
    if not options.exclusive:
        message = "an elastic job needs nodes of its own: a request for more could get those it has"
        yield problem("cluster.exclusive", message, value=False, remedy="cluster.exclusive=true")
    for name, reason in _OPERATED.items():
        if value := getattr(options, name):
            yield problem(f"cluster.{name}", reason, value=value, remedy=f"cluster.{name}={_unset(name)}")


_OPERATED = {
    "signal": "an elastic job has a signal of its own before the time limit, at which it saves and is requeued",
    "auto_resume": "the operator of an elastic job replaces faulty nodes itself",
    "master_port": "each node of an elastic job takes free ports",
}


def _unset(name: str) -> str:
    return "false" if Settings.model_fields[name].annotation is bool else "null"


@rule("E471", "cluster.time", "recipes.elastic_policy", source="sbatch(1), --time and --signal")
def elastic_jobs_can_stop_in_time(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A job that must stop before it could start would return to the queue for ever."""
    policy, limit = checked.recipe.elastic_policy, minutes(slurm_options(checked).time)
    if not checked.is_elastic or policy is None or limit is None:
        return
    needed_s = notice_s(policy.graceful_shutdown_timeout)
    if limit * 60 <= needed_s:
        message = "is over before the job could train: it stops that long before, to save"
        allowed = f"over {needed_s / 60:.0f} minutes"
        yield problem("cluster.time", message, value=slurm_options(checked).time, allowed=allowed)
