"""Checks of the `cluster` section of cluster=slurm, and of what a job on Slurm cannot have."""

import json
from collections.abc import Callable, Iterator

from launcher.backends.slurm.elastic_options import notice_s
from launcher.backends.slurm.notation import minutes
from launcher.backends.slurm.options import Settings, runtime_of, slurm_options
from launcher.common.problems import Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.job_spec import OPEN, PUBLISHED
from launcher.rules import rule

_DOCS = "docs/slurm.md"
_REVISION = ("branch", "commit", "token")


@rule("E440", "cluster.auto_resume", "cluster.exclusive", source="AWS, SageMaker HyperPod cluster resiliency: Slurm")
def auto_resume_has_its_nodes(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """HyperPod replaces a faulty node only under a job that has it alone."""
    options = slurm_options(checked)
    if options.auto_resume and not options.exclusive:
        yield problem("cluster.auto_resume", "needs nodes of its own", value=True, remedy="cluster.exclusive=true")


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
def revision_is_complete(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The launcher fetches code itself; what only the image's start script does is not done."""
    git = checked.launch.git
    for name in _REVISION if not git.repo_url_or_path else ():
        if (value := getattr(git, name)) is not None:
            shown = None if name == "token" else value
            remedy = f"git.repo_url_or_path=<repository>, or git.{name}=null"
            yield problem(f"git.{name}", "names no repository", value=shown, remedy=remedy)
    script = git.entry_script
    if checked.trainer == PUBLISHED and script and not (git.repo_url_or_path or script.startswith("/")):
        message = "is relative, but there is no repository that it could be in"
        yield problem("git.entry_script", message, value=script, remedy="git.repo_url_or_path=<repository>")
    if checked.trainer == PUBLISHED and git.update_adapter:
        message = "is done by the image's start script, which is not started on Slurm"
        yield problem("git.update_adapter", message, value=True, remedy="git.update_adapter=false")


@rule("E461", "cluster.code", "git.repo_url_or_path", source=_DOCS)
def code_has_one_source(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Processes start in one folder: that of a revision, of a snapshot, or your own."""
    code = slurm_options(checked).code
    if code and checked.launch.git.repo_url_or_path:
        message = "is given together with git.repo_url_or_path, whose revision is the code"
        yield problem("cluster.code", message, value=code, allowed="one of them")


@rule(
    "E470",
    "cluster.exclusive",
    "cluster.signal",
    "cluster.auto_resume",
    "cluster.master_port",
    "cluster.cpus_per_task",
    "cluster.gpus_per_task",
    "cluster.limit_notice",
    "cluster.limit_requeues",
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
    "cpus_per_task": "an elastic job has all CPUs of its nodes",
    "gpus_per_task": "an elastic job has all GPUs of its nodes",
    "limit_notice": "an elastic job saves before its time limit and is requeued without it",
    "limit_requeues": "an elastic job returns to the queue whenever its time limit is near",
    "signal": "an elastic job has a signal of its own before the time limit, at which it saves and is requeued",
    "auto_resume": "the operator of an elastic job replaces faulty nodes itself",
    "master_port": "each node of an elastic job takes free ports",
}


def _unset(name: str) -> str:
    return json.dumps(Settings.model_fields[name].json_schema_extra["default"])  # type: ignore[index]


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
