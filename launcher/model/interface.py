"""How a family's programs are started: its roles, and the expectations of the family's images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from launcher.common.problems import Problem
from launcher.model.job_spec import JobSpec

WORKERS = "workers"
"""The role that every family has: the processes that train."""


_PUBLISHED_IMAGE = "/hyperpod-recipes:"
"""Source: the image of the published LLMFT recipes."""


def is_published_image(image: str) -> bool:
    """Return whether an image is the published one, whose program is closed."""
    return _PUBLISHED_IMAGE in image


class Entry(Enum):
    """Starts the program in an image under the contract of SageMaker training jobs."""

    LAUNCHER = "launcher"
    """A start script that the launcher puts beside the recipe."""
    RECIPE = "recipe"
    """The toolkit in the image, which is given the path of the recipe."""
    SCRIPT = "script"
    """The toolkit in the image, which is given the user's script and its arguments."""


def _no_env(job: JobSpec) -> dict[str, str]:
    return {}


def _no_modules(job: JobSpec) -> tuple[str, ...]:
    return ()


def _no_problems(job: JobSpec) -> Iterator[Problem]:
    yield from ()


def _no_lines(job: JobSpec) -> Iterator[str]:
    """Yield nothing: the program's data is not known."""
    return iter(())


def _no_steps(job: JobSpec) -> tuple[int, int]:
    return 0, 0


def _initial_nodes(job: JobSpec) -> int:
    return job.initial_nodes


@dataclass(frozen=True, slots=True)
class Role:
    """Processes of one kind. Every job has workers; a Ray job also has a head and a submitter.

    Args:
        name: Unique in the family.
        program: Arguments of `hyperpodrun`, for a job: a script, or `-m` and a module, and its own arguments.
        image_command: The start command of a job's image; empty if the user must give one.
        image_env: The variables that the image reads, for a job.
        env: Variables of every process of the role, wherever the job runs.
        nodes: Nodes that run the role when the job starts.
        image_log: File in the container that also receives the output of `image_command`; None for none.
    """

    name: str
    program: Callable[[JobSpec], tuple[str, ...]]
    image_command: Callable[[JobSpec], tuple[str, ...]]
    image_env: Callable[[JobSpec], dict[str, str]] = _no_env
    env: Callable[[JobSpec], dict[str, str]] = _no_env
    nodes: Callable[[JobSpec], int] = _initial_nodes
    image_log: str | None = None


def runtime_workers(program: Callable[[JobSpec], tuple[str, ...]]) -> Role:
    """Return the workers of a program of `launcher.runtime`, which any image with this package and the agent starts.

    Args:
        program: As of a role; it is given the folder of configurations with `--config-path`.
    """

    def image_command(job: JobSpec) -> tuple[str, ...]:
        """Return the agent's command line; the operator sends it the real size."""
        agent = ("hyperpodrun", "--nnodes=1", f"--nproc-per-node={job.nproc_per_node}", "--rdzv-backend=hyperpod")
        return (*agent, f"--shutdown-timeout={job.save_timeout_s}", *program(job), "--config-path=/config")

    return Role(
        name=WORKERS,
        program=program,
        image_command=image_command,
        image_env=lambda job: {"NNODES": str(job.initial_nodes)},
    )


@dataclass(frozen=True, slots=True)
class Interface:
    """How a family's programs are started.

    Args:
        roles: The roles of a job, including workers.
        takes_config_path: Whether the program is given the folder of configurations with `--config-path`.
        cuts_uneven_shares: Whether the program splits an uneven share by the micro batch, instead of taking it in one
            pass unless its size sets that key.
        runs_as_root: Whether the program of the family's published image runs as root.
        accelerator: Kind of accelerator that the program needs, `gpu` or `neuron`; None if it runs without.
        entry: Starts the program in a SageMaker training job.
        has_own_checkpoints: Whether the image's own program interprets `recipes.checkpointing`.
        modules: The modules that the program of a job imports before its first step, for warm starts.
        needs: Packages of the `trainer` extra that the program imports.
        rehearsal_steps: Optimizer steps of a job's rehearsal, and how many they would be without a bound; 0 if the
            program has none.
        absent_inputs: Yields a Problem for each model or data file that the program would not find, or not accept.
        data_losses: Yields a line for each reason why samples would not be trained, as far as that is known.
    """

    roles: tuple[Role, ...]
    takes_config_path: bool = True
    cuts_uneven_shares: bool = False
    runs_as_root: bool = False
    accelerator: str | None = None
    entry: Entry = Entry.LAUNCHER
    has_own_checkpoints: bool = False
    modules: Callable[[JobSpec], tuple[str, ...]] = _no_modules
    needs: tuple[str, ...] = ()
    rehearsal_steps: Callable[[JobSpec], tuple[int, int]] = _no_steps
    absent_inputs: Callable[[JobSpec], Iterator[Problem]] = _no_problems
    data_losses: Callable[[JobSpec], Iterator[str]] = _no_lines

    @property
    def workers(self) -> Role:
        """The role that trains."""
        return self.role(WORKERS)

    def role(self, name: str) -> Role:
        """Return the role of a name.

        Raises:
            LookupError: The family has no such role.
        """
        for role in self.roles:
            if role.name == name:
                return role
        raise LookupError(f"no role {name!r}; there are {', '.join(role.name for role in self.roles)}")
