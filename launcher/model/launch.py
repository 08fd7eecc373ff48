"""The typed top level of the configuration: where, how and with which image a recipe is launched."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from launcher.model import earlier_jobs
from launcher.model.base_model import Listed, Model, ModuleName, NonNegative32
from launcher.model.recipe import CustomTraining, SecretRef

_NO_BRANCH = r"^-|[\s~^:?*\[\\]|\.\.|@\{|//|^/|[/.]$|\.lock$"
"""Source: git-check-ref-format(1)."""


def _branch(name: str) -> str:
    if re.search(_NO_BRANCH, name):
        raise ValueError("should be the name of a branch, as git-check-ref-format(1) describes it")
    return name


def _commit(name: str) -> str:
    if re.search(r"^-|\s", name):
        raise ValueError("should be a commit, such as 1a2b3c4, or a tag")
    return name


class Git(Model):
    """Training code that replaces the image's own."""

    repo_url_or_path: str | None
    """Repository the image's start script clones the training code from. Credentials do not belong in it: see token.
    """
    branch: Annotated[str, AfterValidator(_branch)] | None
    """Branch to check out; the repository's default branch when null."""
    commit: Annotated[str, AfterValidator(_commit)] | None
    """Commit to check out, for a reproducible job; the branch's newest when null."""
    entry_script: str | None
    """Path of the training script to start: absolute, such as /app/src/train.py, or inside the repository. Overrides
    entry_module."""
    entry_module: ModuleName | None
    """Python module to start instead of the family's own, as with python -m."""
    token: SecretRef | None
    """Reference to the token of a private repository. The manifest refers to it; its value is never written."""
    update_adapter: bool
    """true makes the image's start script update its adapter package from git."""
    use_default: bool
    """Accepted because the published scripts set it; ignored."""


class Rehearsal(Model):
    """What a rehearsal leaves out."""

    ranks: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Processes, all on one node, in place of trainer.devices on trainer.num_nodes. For jobs of one size. null: the
    recipe's."""
    steps: NonNegative32 | None = None
    """Optimizer steps to make samples for; 0: all 240 samples. null: on this machine so few that a job of one size
    takes less than a minute on two processors, elsewhere 0."""


NotifyEvent = Literal["started", "failed", "recovered", "finished", "stalled"]
"""Events of a job that messages are sent about."""


class Launch(Model):
    """The top level of the configuration. `recipes` and `cluster` are typed by the family and the backend."""

    recipes: Any
    """The recipe: a path under recipes/ without .yaml, or a YAML file. Its keys are recipes.<key>."""
    cluster: Any
    """Where the job runs: local, sm_local, k8s, slurm, sm_jobs or ray. Its keys are cluster.<key>."""
    cluster_type: str | None
    """The same choice as cluster, for scripts that set it; the two must agree."""
    instance_type: str
    """Instance type of each node, with or without ml. It gives accelerators, EFA devices and the batch arithmetic.
    Not used on cluster=local and cluster=ray."""
    container: str | None
    """Image of the job. null uses the recipe's own, if it has one."""
    after: Annotated[str | list[str] | None, AfterValidator(earlier_jobs.checked)]
    """Submitted jobs to wait for, by name or bundle: JOB once it has succeeded, any:JOB once it has ended, notok:JOB
    once it has failed; several in a list. Works where jobs are queued: docs/slurm.md."""
    base_results_dir: Annotated[str, Field(min_length=1)]
    """Folder that receives one bundle for each job, <job name>/; relative to the current folder."""
    rehearse: bool | Rehearsal
    """true trains a small model of the recipe's architecture, with random weights, on samples made up on the spot;
    every other key of the recipe applies. Nothing is downloaded. Needs the open trainer, see cluster.trainer. Further
    keys, such as rehearse.ranks=2, mean true, too."""
    dry_run: bool
    """true writes the bundle and stops. The launch of that bundle creates the MLflow run."""
    server_dry_run: bool
    """true lets the cluster validate every object of the job, and otherwise acts like dry_run=true."""
    wait: bool
    """true follows the job to its end once it is submitted. A job on this machine is always followed."""
    notify: Listed[SecretRef] | None
    """Addresses, as apprise takes them, that get a message about events of the job: a list of references such as
    [{env: SLACK_URL}], never the addresses themselves. The process that follows the job sends, and reads the
    variable: docs/concepts.md."""
    notify_on: Listed[NotifyEvent]
    """Events that notify is about: started, failed, recovered (its workers train again after a fault), finished
    (succeeded or cancelled), stalled (no step for too long, or it waits for nodes again)."""
    debug: bool
    """debug=true on the command line shows the traceback behind a Problem."""
    env_vars: dict[str, str | int | float | bool | SecretRef | None] | None
    """Environment of every worker; yours override the launcher's. null removes a variable; a secret is
    {secretKeyRef: {name, key}} or {env: NAME}. Values arrive as they are typed: nothing expands $(NAME) in them."""
    git: Git
    """Training code that replaces the image's own."""
    training_cfg: CustomTraining | None
    """Your own script. Its overrides set recipes.training_cfg, which is its section in a file."""
    training_config: str | None
    """Filled with the chosen recipe's path; the published launcher's scripts read it."""
