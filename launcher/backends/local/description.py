"""What cluster=local is: one real agent per simulated node, on this machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.model.backend import Backend, BackendDescription, MemoryKeeper
from launcher.model.base_model import options_of
from launcher.model.capabilities import Files, Instances, Scaling, Secrets
from launcher.model.job_spec import OPEN, JobSpec, Trainer

if TYPE_CHECKING:
    from launcher.backends.local.simulation import Settings


class _Files(Files["Settings"]):
    has_containers: ClassVar[bool] = False


class _Scaling(Scaling):
    resizes_in_place: ClassVar[bool] = True

    def initial_nodes(self, job: JobSpec) -> int | None:
        """Return the nodes that a job gets first in its scenario."""
        if not options_of(job, DESCRIPTION.options()).has_scenario:
            return None
        from launcher.backends.local.scenario_files import initial_nodes

        return initial_nodes(job)

    def start_reason(self, nodes: int) -> str:
        """Return whose nodes a job starts on."""
        from launcher.common.texts import counted

        return f"{counted(nodes, 'node')}, as set by its scenario"


class _Secrets(Secrets):
    sources: ClassVar[tuple[str, ...]] = ("env",)
    url_keys: ClassVar[tuple[str, ...]] = ("cluster.command",)


class LocalDescription(BackendDescription["Settings"]):
    """Describes jobs on this machine."""

    name: ClassVar[str] = "local"
    choice: ClassVar[str] = "local"
    cluster_types: ClassVar[tuple[str, ...]] = ("local",)
    title: ClassVar[str] = "local processes"
    runs_here: ClassVar[bool] = True
    default_trainer: ClassVar[Trainer] = OPEN
    memory_tier: ClassVar[MemoryKeeper | None] = MemoryKeeper.WORKERS
    files: ClassVar[Files[Any]] = _Files()
    instances: ClassVar[Instances[Any] | None] = None
    scaling: ClassVar[Scaling | None] = _Scaling()
    secrets: ClassVar[Secrets] = _Secrets()

    def load(self) -> Backend:
        """Return what runs jobs on this machine."""
        from launcher.backends.local.backend import BACKEND

        return BACKEND

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.local.simulation import Settings

        return Settings

    def offers(self, key: str) -> Sequence[str]:
        """Return the scenarios of this package."""
        from launcher.backends.local.scenario_files import shipped_names

        return shipped_names() if key == "scenario" else ()


DESCRIPTION = LocalDescription()
