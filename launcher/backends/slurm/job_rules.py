"""Checks of the `cluster` section of cluster=slurm, and of what a job on Slurm cannot have."""

from collections.abc import Callable, Iterator

from launcher.backends.slurm.options import runtime_of, slurm_options
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
