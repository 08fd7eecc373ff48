"""What cluster=local is: one real agent per simulated node, on this machine."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from launcher.model.backend import Backend, BackendDescription, MemoryKeeper
from launcher.model.cluster_options import options_of
from launcher.model.job_spec import OPEN, JobSpec, Trainer

if TYPE_CHECKING:
    from launcher.backends.local.simulation import Settings
    from launcher.model.checked_recipe import CheckedRecipe


class LocalDescription(BackendDescription["Settings"]):
    """Describes jobs on this machine."""

    name: ClassVar[str] = "local"
    choice: ClassVar[str] = "local"
    cluster_types: ClassVar[tuple[str, ...]] = ("local",)
    title: ClassVar[str] = "local processes"
    runs_here: ClassVar[bool] = True
    default_trainer: ClassVar[Trainer] = OPEN
    has_instances: ClassVar[bool] = False
    has_containers: ClassVar[bool] = False
    resizes_jobs: ClassVar[bool] = True
    memory_tier: ClassVar[MemoryKeeper | None] = MemoryKeeper.WORKERS
    secret_sources: ClassVar[tuple[str, ...]] = ("env",)
    url_keys: ClassVar[tuple[str, ...]] = ("cluster.command",)

    def load(self) -> Backend:
        """Return what runs jobs on this machine."""
        from launcher.backends.local.backend import BACKEND

        return BACKEND

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.local.simulation import Settings

        return Settings

    def initial_nodes(self, job: JobSpec) -> int | None:
        """Return the nodes that a job gets first in its scenario."""
        from launcher.backends.local import initial_size

        return initial_size.initial_nodes(job)

    def start_reason(self, nodes: int) -> str:
        """Return whose nodes a job starts on."""
        from launcher.operator.events import count_nodes

        return f"{count_nodes(nodes)}, as set by its scenario"

    def replaces_program(self, options: "Settings") -> bool:
        """Return whether the section has a command."""
        return bool(options.command)

    def secret_words(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the words after the agent's options."""
        yield "cluster.command", options_of(checked, self.options()).command or ()


DESCRIPTION = LocalDescription()
