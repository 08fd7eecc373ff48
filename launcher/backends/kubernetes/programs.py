"""The programs of a job: one, or several with objects of their own."""

from dataclasses import dataclass

from launcher.model.family_registry import interface
from launcher.model.interface import WORKERS, Component, Role
from launcher.model.job_spec import JobSpec


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a job, whose objects have its name. Most jobs have one, by the name of the job."""

    role: Role
    job_name: str
    nodes: int
    image: str | None

    @property
    def component(self) -> Component | None:
        """What it has of its own beside other programs."""
        return self.role.component

    @property
    def name(self) -> str:
        """The name of its objects."""
        return f"{self.job_name}-{self.component.name}" if self.component else self.job_name

    @property
    def ending(self) -> str:
        """Ending of the names of its files in the bundle: none for the program that trains."""
        return f"-{self.component.name}" if self.component and self.role.name != WORKERS else ""

    @property
    def is_service(self) -> bool:
        """Whether it is restarted whenever it ends, and its pods have names of their own."""
        return bool(self.component and self.component.is_service)


def programs(job: JobSpec) -> tuple[Program, ...]:
    """Return the programs of a job, each with objects of its own."""
    family = interface(job)
    found = [
        Program(role, job.name, role.nodes(job), role.component.image(job))
        for role in family.components
        if role.component
    ]
    return tuple(found) or (Program(family.workers, job.name, job.initial_nodes, job.image),)
