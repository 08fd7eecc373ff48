"""Jobs in a results folder, written without a launch."""

import json
from pathlib import Path

from launcher.job_store import registry
from launcher.model.job_spec import JobHandle, JobState, JobStatus

RECIPE = "training/tiny/tiny_lm_cpu"


def a_job(
    results: Path,
    name: str,
    *,
    state: JobState | None = JobState.SUCCEEDED,
    message: str = "",
    backend: str = "local",
    recipe: str = RECIPE,
    submitted: str = "2026-01-02T03:04:05+00:00",
    user: str = "ada",
) -> Path:
    """Write a folder as the index reads it: not a whole bundle, which takes longer; None as state has no end."""
    folder = results / name
    folder.mkdir(parents=True)
    plan = {"backend": backend, "recipe": recipe, "instance_type": None, "initial_nodes": 2, "scales": []}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "bundle.json").write_text(json.dumps({"created": submitted, "user": user, "files": {}}))
    ended = JobStatus(state, 0, message) if state else None
    record = registry.JobRecord(JobHandle(backend, name, folder), "0", submitted, user, ended=ended)
    registry.write(folder, record)
    return folder


def a_bundle(results: Path, name: str, created: str = "2026-01-02T03:04:05+00:00") -> Path:
    """Write the folder of a bundle that was never launched."""
    folder = a_job(results, name, submitted=created)
    (folder / "job.json").unlink()
    return folder
