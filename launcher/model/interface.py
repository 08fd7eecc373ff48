"""How a family's programs are started: its roles, and the expectations of the family's images."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.common.names import BASE_CONFIG, CONFIG_DIR, ENTRYPOINT, ENV_COPY_EVERY, ENV_IN_PLACE
from launcher.common.problems import Problem
from launcher.model.config_tree import get
from launcher.model.job_spec import JobSpec, ScalePoint
from launcher.model.ray_job import ResourceCheck

if TYPE_CHECKING:  # few compiles need it
    from launcher.runtime.finetune.key_terms import KeyTable

BUNDLE_CONFIGS = f"bundle:{CONFIG_DIR}"
"""Placeholder in a program's arguments for the folder of the configurations, wherever the job runs."""
CONFIG_MOUNT = "/config"
"""Folder of a container that has the configurations."""
WORKERS = "workers"
"""The role that every family has: the processes that train."""
HEAD, SUBMITTER = "head", "submitter"
"""Roles of a Ray job: the head of its cluster, which trains nothing, and what gives it the program to run."""
_PUBLISHED = "|".join(
    (r"hyperpod-recipes(-verl-[\d-]+)?", "hyperpod-checkpointless-training", "sagemaker-evaluation")
    + ("mtrl-recipes", r"nova-[a-z-]+-repo")
)
"""Names of the published images, as patterns."""


def is_published_image(image: str) -> bool:
    """Return whether an image is a published one, whose program is closed.

    Source: the images of the published recipes; later ones of verl have a release in the name.
    """
    return re.search(rf"/({_PUBLISHED}):", image) is not None


class Entry(Enum):
    """Starts the program in an image under the contract of SageMaker training jobs."""

    LAUNCHER = "launcher"
    """A start script that the launcher puts beside the recipe."""
    RECIPE = "recipe"
    """The toolkit in the image, which is given the path of the recipe."""
    SCRIPT = "script"
    """The toolkit in the image, which is given the user's script and its arguments."""
    IMAGE = "image"
    """The image's own program, which is given the path of the recipe, and hyperparameters as plain text."""


class PodNeeds(NamedTuple):
    """What a role's pods need of a cluster beyond their devices; each is empty unless a family says otherwise."""

    node_labels: Mapping[str, str] = {}
    """Labels of the nodes that they run on, beside the instance type."""
    tolerations: tuple[Mapping[str, str], ...] = ()
    """Taints of nodes that they tolerate, as Kubernetes writes them."""
    node_folders: Mapping[str, str] = {}
    """Folders of the node, by the folder of the container that each is mounted at; one that is missing is made."""
    init_image: str | None = None
    """Image of a container that has to succeed first, with the same variables and mounts, as the image starts it."""
    init_files: tuple[str, ...] = ()
    """Files of the node that it reads too, at the same paths."""
    calls_cluster: bool = False
    """Whether they are given a token for the API of their cluster even if no service account is named."""
    is_on_node_network: bool = False
    """Whether they use the network of the node."""
    is_privileged: bool = False
    """Whether their container has all privileges of root on its node."""


class Component(NamedTuple):
    """What a role has of its own in a job of several programs, each with its own nodes and objects."""

    name: str
    """Ending of the names of its objects."""
    config: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Its configuration, of the resolved recipe."""
    image: Callable[[JobSpec], str | None] = lambda job: job.image
    """Its image."""
    is_service: bool = False
    """Whether it is restarted whenever it ends, and its pods are reached by names of their own."""


class Role(NamedTuple):
    """Processes of one kind. Every job has workers; a Ray job also has a head and a submitter, a job of several
    programs a role for each."""

    name: str
    """Unique in the family."""
    program: Callable[[JobSpec], tuple[str, ...]] = lambda job: ()
    """Arguments of `hyperpodrun`, for a job: a script, or `-m` and a module, and its own arguments; none of a program
    that only its image starts."""
    image_command: Callable[[JobSpec], tuple[str, ...]] = lambda job: ()
    """The start command of a job's image; empty if the image starts its own program, or the user must give one."""
    image_env: Callable[[JobSpec], dict[str, str]] = lambda job: {}
    """The variables that the image reads, for a job."""
    env: Callable[[JobSpec], dict[str, str]] = lambda job: {}
    """Variables of every process of the role, wherever the job runs."""
    nodes: Callable[[JobSpec], int] = lambda job: job.initial_nodes
    """Nodes that run the role when the job starts."""
    reads_git: bool = False
    """Whether the image's start script reads the keys of `git`, and fetches the code that they name."""
    image_log: str | None = None
    """File in the container that also receives the output of `image_command`."""
    requests: Callable[[JobSpec], Mapping[str, str]] = lambda job: {}
    """Processors and memory that the role requests of a node, as Kubernetes writes them; none: its share of the node.
    """
    limits: Callable[[JobSpec], Mapping[str, str]] = lambda job: {}
    """Processors and memory that the role may use at most; none: no limit."""
    pod_needs: Callable[[JobSpec], PodNeeds] = lambda job: PodNeeds()
    """What its pods need of a cluster beyond that."""
    stays: Callable[[JobSpec], bool] | None = None
    """Whether its processes are known to wait for the next start when the job's size changes; None if they cannot."""
    component: Component | None = None
    """What it has of its own in a job of several programs; None in other jobs."""

    @property
    def config_file(self) -> str:
        """File name of its configuration in the bundle: the workers' is that of every job."""
        return BASE_CONFIG if self.name == WORKERS else f"config-{self.name}.yaml"


def agent_workers(
    program: Callable[[JobSpec], tuple[str, ...]],
    *,
    takes_config_path: bool = True,
    env: Callable[[JobSpec], dict[str, str]] = lambda job: {},
    stays: Callable[[JobSpec], bool] = lambda job: True,
) -> Role:
    """Return the workers of a program that any image with it and the agent starts."""

    def image_command(job: JobSpec) -> tuple[str, ...]:
        # One node: the operator sends the agent the real size.
        agent = ("hyperpodrun", "--nnodes=1", f"--nproc-per-node={job.nproc_per_node}", "--rdzv-backend=hyperpod")
        words = _in_container(program(job), takes_config_path=takes_config_path)
        timeout_s = job.in_place_timeout_s
        in_place = ("--inprocess-restart", f"--inprocess-timeout={timeout_s}") if timeout_s is not None else ()
        return (*agent, f"--shutdown-timeout={job.save_timeout_s}", *in_place, *words)

    def all_env(job: JobSpec) -> dict[str, str]:
        if job.in_place_timeout_s is None:
            return env(job)
        every = get(job.config, "recipes.checkpointing.copy_every")
        copies = {ENV_COPY_EVERY: str(every)} if every else {}
        return {**env(job), ENV_IN_PLACE: "1", **copies}

    def constants(job: JobSpec) -> dict[str, str]:
        return {"NNODES": str(job.initial_nodes)}

    return Role(WORKERS, program, image_command, constants, all_env, stays=stays)


def after_options(program: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a program as torchrun's parser takes them, whatever the program's own arguments are.

    Without `--`, an argument such as `--log` is an error: torchrun has several options that begin so. None begins as
    the arguments do of published programs and of the launcher's own, whose commands stay as they are.

    Args:
        program: A script, or `-m` and a module, and its arguments; options of torchrun before it stay as they are.

    Source: argparse, Arguments containing -, Argument abbreviations; torch.distributed.run: get_args_parser.
    """
    at = 1 if "-m" in program[:1] else 0
    has_options = any(word.startswith("-") and not word.startswith("--config-") for word in program[at + 1 :])
    is_marked = has_options and program[at] != ENTRYPOINT and not program[at].startswith("-")
    return (*program[:at], "--", *program[at:]) if is_marked else tuple(program)


def _in_container(program: tuple[str, ...], *, takes_config_path: bool) -> tuple[str, ...]:
    words = after_options([CONFIG_MOUNT if word == BUNDLE_CONFIGS else word for word in program])
    return (*words, f"--config-path={CONFIG_MOUNT}") if takes_config_path else words


class OpenRecipe(NamedTuple):
    """How a family's recipes become configurations of the open trainer, and where it finds values in their keys.

    Paths are dotted, from the top of the recipe.
    """

    keys_in: str
    """Module whose TABLE has what the trainer does with each key of the family."""
    model: str
    """Key of the model: a folder, or a name on the Hugging Face Hub."""
    train: str
    """Key of the training samples."""
    validation: str
    """Key of the validation samples."""
    adapters: str
    """Key of adapters to start from."""
    trained: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda recipe: recipe
    """Returns the trainer's own configuration, in the layout of LLMFT recipes, of a recipe that has no Problem."""
    own_keys: tuple[str, ...] = ()
    """Keys that only the open trainer reads."""

    def table(self) -> "KeyTable":
        """Return what the trainer does with each key of the family."""
        found: KeyTable = importlib.import_module(self.keys_in).TABLE  # few compiles need it
        return found


class Interface(NamedTuple):
    """How a family's programs are started."""

    roles: tuple[Role, ...]
    takes_config_path: bool = True
    """Whether the program is given the folder of configurations with `--config-path`."""
    cuts_uneven_shares: bool = False
    """Whether the program splits an uneven share by the micro batch, instead of taking it in one pass unless its size
    sets that key."""
    runs_as_root: bool = False
    """Whether the program of the family's published image does."""
    memory_is_minimum: bool = False
    """Whether `recipes.resources.memory` is what a pod needs at least, which is requested without a limit."""
    accelerator: str | None = None
    """Kind of accelerator that the program needs, `gpu` or `neuron`; None if it runs without."""
    entry: Entry = Entry.LAUNCHER
    config_variable: str | None = None
    """Variable by which the image's own program gets the path of its configuration."""
    channels: Mapping[str, str] = MappingProxyType({})
    """Channels of a training job, by name: the key of the recipe that names its place in S3. The user's own channels
    replace them by name."""
    has_own_checkpoints: bool = False
    """Whether the image's own program interprets `recipes.checkpointing`."""
    hyperparameters: Callable[[Mapping[str, Any], str], Mapping[str, str]] = lambda recipe, role: {}
    """What the program of a training job reads beside the recipe: of the recipe, and the ARN of the job's role."""
    own_configs: Callable[[ScalePoint], Mapping[str, Mapping[str, Any]]] = lambda point: {}
    """Further configurations that the program reads beside that of the recipe at a size: by file name."""
    open_recipe: OpenRecipe | None = None
    """What the open trainer is given of the family's recipes; None for other programs."""
    only_trainer: str = ""
    """Why the open trainer does not train the recipe, of a family whose other recipes it trains; empty otherwise."""
    modules: Callable[[JobSpec], tuple[str, ...]] = lambda job: ()
    """The modules that the program of a job imports before its first step, for warm starts."""
    needs: tuple[str, ...] = ()
    """Packages of the `trainer` extra that the program imports."""
    resource_check: Callable[[Mapping[str, Any], Sequence[str]], ResourceCheck] | None = None
    """What the program of a Ray job reserves before its actors start: by its configurations, by file name, and the
    words of its start command. None if only the program knows."""
    rehearsal_steps: Callable[[JobSpec], tuple[int, int]] = lambda job: (0, 0)
    """Optimizer steps of a job's rehearsal, and how many they would be without a bound; 0 if the program has none."""
    absent_inputs: Callable[[JobSpec], Iterable[Problem]] = lambda job: ()
    """A Problem for each model or data file that the program would not find, or not accept."""
    data_losses: Callable[[JobSpec], Iterable[str]] = lambda job: ()
    """A line for each reason why samples would not be trained, as far as that is known."""

    @property
    def workers(self) -> Role:
        """The role that trains."""
        return self.role(WORKERS)

    @property
    def components(self) -> tuple[Role, ...]:
        """The roles of a job of several programs; none for other jobs."""
        return tuple(role for role in self.roles if role.component)

    @property
    def starts_itself(self) -> bool:
        """Whether the image's own entry point starts the program, and finds the configuration."""
        return self.entry is Entry.IMAGE

    @property
    def is_ray(self) -> bool:
        """Whether the job runs on a Ray cluster of its own, whose head starts its program."""
        return any(role.name == HEAD for role in self.roles)

    @property
    def first(self) -> Role:
        """The role whose program the job starts first: what submits a Ray job's, otherwise the workers."""
        return self.role(SUBMITTER) if self.is_ray else self.workers

    def config(self, point: ScalePoint) -> Mapping[str, Any]:
        """Return the configuration that the program reads at a size."""
        return self.open_recipe.trained(point.config) if self.open_recipe else point.config

    def container_program(self, job: JobSpec) -> tuple[str, ...]:
        """Return what the workers of a job run in a container, without a launcher of processes."""
        return _in_container(self.workers.program(job), takes_config_path=self.takes_config_path)

    def role(self, name: str) -> Role:
        """Return the role of a name.

        Raises:
            LookupError: The family has no such role.
        """
        known = {role.name: role for role in self.roles}
        if name not in known:
            raise LookupError(f"no role {name!r}; there are {', '.join(known)}")
        return known[name]
