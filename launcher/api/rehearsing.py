"""The rehearsal of a Ray job on this machine, of a recipe or a bundle."""

from collections.abc import Sequence

from launcher import pipeline
from launcher.api import plan
from launcher.bundle import store
from launcher.common.problems import fail
from launcher.rehearsal.plan import Rehearsal, rehearsal_of
from launcher.rehearsal.report import cluster_lines, conclusion, findings, has_failed, read_result
from launcher.rehearsal.run import Event, started

__all__ = [
    "Event", "Rehearsal", "cluster_lines", "conclusion", "findings", "has_failed", "read_result", "rehearsal",
    "started",
]  # fmt: skip


def rehearsal(name: str, overrides: Sequence[str] = ()) -> Rehearsal:
    """Return the rehearsal of a recipe, whose bundle is not written, or of a bundle.

    Raises:
        ProblemsFound: A bundle gets overrides, the recipe has faults, or this machine cannot rehearse the job.
    """
    if folder := store.find(name):
        if overrides:
            raise fail("E801", "recipes rehearse", "a bundle takes no overrides", value=overrides[0])
        return rehearsal_of(*store.read(folder))
    made = plan.compile(name, overrides)
    return rehearsal_of(pipeline.render(made.job, made.context), made.job.backend)
