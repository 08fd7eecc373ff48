"""Compile training recipes into reviewable bundles and launch them.

    import launcher
    plan = launcher.compile("tiny_lm_cpu", {"training_config.training_args.learning_rate": 1e-3}, elastic=True)
    job = plan.submit()
    job.wait()

What `docs/python.md` describes is here, and imported when it is used: `import launcher` itself loads nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.api.checking import check
    from launcher.api.comparing import Change
    from launcher.api.job import Job, JobFailed, JobTimeout, attach, jobs
    from launcher.api.listing import recipes
    from launcher.api.plan import Plan, compile
    from launcher.api.reproducing import Comparison
    from launcher.api.session import Session
    from launcher.api.sweeps.sweep import Sweep, attach_sweep, sweep
    from launcher.api.tables import Table
    from launcher.causes import Cause, ErrorLine, Failure
    from launcher.common.problems import Notice, Problem, ProblemsFound
    from launcher.model.finding import Finding, FindingState
    from launcher.model.job_spec import JobEvent, JobState, JobStatus, LogLine

NAME = "recipe-launcher"
VERSION = "0.1.0"
_PLACES = {
    "launcher.api.checking": ("check",),
    "launcher.api.comparing": ("Change",),
    "launcher.api.job": ("Job", "JobFailed", "JobTimeout", "attach", "jobs"),
    "launcher.api.listing": ("recipes",),
    "launcher.api.plan": ("Plan", "compile"),
    "launcher.api.reproducing": ("Comparison",),
    "launcher.api.session": ("Session",),
    "launcher.api.sweeps.sweep": ("Sweep", "attach_sweep", "sweep"),
    "launcher.api.tables": ("Table",),
    "launcher.causes": ("Cause", "ErrorLine", "Failure"),
    "launcher.common.problems": ("Notice", "Problem", "ProblemsFound"),
    "launcher.model.finding": ("Finding", "FindingState"),
    "launcher.model.job_spec": ("JobEvent", "JobState", "JobStatus", "LogLine"),
}
__all__ = [
    "Cause", "Change", "Comparison", "ErrorLine", "Failure", "Finding", "FindingState", "Job", "JobEvent",
    "JobFailed", "JobState", "JobStatus", "JobTimeout", "LogLine", "Notice", "Plan", "Problem", "ProblemsFound",
    "Session", "Sweep", "Table", "attach", "attach_sweep", "check", "compile", "jobs", "recipes", "sweep",
]  # fmt: skip


def identity() -> str:
    """Return the name and the version of this program, as `--version` prints them."""
    return f"{NAME} {VERSION}"


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        import importlib

        for place, names in _PLACES.items():
            if name in names:
                return getattr(importlib.import_module(place), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
