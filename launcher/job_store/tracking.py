"""One job, one MLflow run.

It is reserved (or named) before a job that is launched is rendered, so that its id is in every configuration; a
dry run leaves that to the launch of its bundle. With `tracking_store`, all there is of mlflow; where tracking is on.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.bundle import store as bundles
from launcher.bundle.manifest import MANIFEST
from launcher.common import names, yaml_io
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.common.text_table import clipped
from launcher.job_store import tracking_store
from launcher.model.backend_registry import described
from launcher.model.config_tree import get, leaves
from launcher.model.context import LaunchContext
from launcher.model.failure import Failure
from launcher.model.job_spec import Bundle, JobSpec, JobState
from launcher.model.recipe import Mlflow
from launcher.planning.job_planner import tracking, with_run

if TYPE_CHECKING:
    from launcher.timeline import Timeline

_ARTIFACTS = "mlartifacts"
_DELETED = "deleted"
"""Source: mlflow.entities.LifecycleStage."""
_DIGEST = "digest"
"""Tag of a run, written once everything else of its bundle is."""
_PARAM_LENGTH = 6000
"""Characters of a parameter's value. Source: mlflow.utils.validation, MAX_PARAM_VAL_LENGTH."""
_PARAM_BATCH = 100
"""Parameters per request. Source: MLflow REST API, Log Batch."""
_TAG_LENGTH = 5000
"""Characters of a tag's value. Source: mlflow.utils.validation, MAX_TAG_VAL_LENGTH: 8000, in servers of 2023 5000."""
_TOTALS = ("goodput", "restarts", "samples_lost", "samples_redone", "wall_s")
_FAILURE_TAGS = ("failure.first_error", "failure.cause", "failure.id", "failure.remedy")
_STATUS = {JobState.SUCCEEDED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}


def is_tracked(job: JobSpec) -> bool:
    """Return whether `job` gets an MLflow run: always on this machine, on a cluster if a store is named."""
    settings = tracking(job)
    return settings.enabled is not False and bool(
        settings.tracking_uri or described(job.backend).files.are_shared(job.settings)
    )


def unusable(job: JobSpec) -> tuple[Problem, ...]:
    """Return why a job cannot use the tracking store that its recipe names, as far as its address shows that."""
    try:
        if tracking(job).tracking_uri and is_tracked(job):
            tracking_store.store_uri(tracking(job).tracking_uri, job, Path())
    except ProblemsFound as error:
        return error.problems
    return ()


def reserve_run(job: JobSpec, context: LaunchContext, *, is_visible: bool = False) -> JobSpec:
    """Write the id of the job's MLflow run into every size: that of a new run, or of the one its recipe names.

    A new run is created and deleted at once, so that a bundle that is never launched leaves no run behind; `start`
    restores it. MLflow chooses the ids, so an id needs a run. A run that is visible stays, for manifests that are
    applied without `start`.

    Raises:
        ProblemsFound: The store cannot be reached, refuses, or does not know the run.
    """
    settings = _complete(job, context)
    uri = settings["tracking_uri"]
    with tracking_store.connected(uri) as client:
        if known := settings["run_id"]:
            run = _known_run(client, known, f"leave {tracking_store.PATH}.run_id empty for a new one")
        else:
            run = _new_run(client, uri, settings["experiment_name"], settings["run_name"], is_visible=is_visible)
    return with_run(job, **{**settings, "run_id": run.info.run_id, "run_name": run.info.run_name})


def postpone_run(job: JobSpec, context: LaunchContext) -> JobSpec:
    """Write the job's tracking settings into every size, and keep the place of the run's id free for `assign_run`.

    Raises:
        ProblemsFound: The job cannot reach the store, or a plugin is missing.
    """
    settings = _complete(job, context)
    return with_run(job, **{**settings, "run_id": settings["run_id"] or names.RUN_ID_AT_LAUNCH})


def lacks_run(bundle: Bundle) -> bool:
    """Return whether a dry run left it to the launch to reserve the bundle's MLflow run."""
    settings = _settings(bundle)
    return settings is not None and settings.run_id == names.RUN_ID_AT_LAUNCH


def assign_run(bundle: Bundle) -> Bundle:
    """Reserve the MLflow run of a bundle that a dry run wrote, and write its id into the bundle's files.

    Raises:
        ProblemsFound: The store cannot be reached or refuses, or the bundle's folder refuses writing.
    """
    settings = _settings(bundle)
    if settings is None or not (uri := settings.tracking_uri):
        return bundle
    if run_id := bundles.assigned_run(bundle.directory):  # by a launch that ran at the same time
        return bundles.assign_run(bundle, run_id)
    with tracking_store.connected(uri) as client:
        run = _new_run(client, uri, settings.experiment_name or "", settings.run_name or bundle.job_name)
    return bundles.assign_run(bundle, run.info.run_id)


def _complete(job: JobSpec, context: LaunchContext) -> dict[str, str]:
    """Return a job's tracking settings with the defaults; the id is empty for a new run."""
    settings = tracking(job)
    return {
        "tracking_uri": tracking_store.store_uri(settings.tracking_uri, job, context.cwd),
        "run_id": settings.run_id or "",
        "experiment_name": settings.experiment_name or job.config["recipes"]["run"]["name"],
        "run_name": settings.run_name or job.name,
    }


def contacted(job: JobSpec, context: LaunchContext) -> tuple[str, datetime | None]:
    """Return the store of a tracked job, if it answers, and its server's clock; None without one. Writes nothing.

    Raises:
        ProblemsFound: The store cannot be reached, or is not within reach of the job.
    """
    uri = tracking_store.store_uri(tracking(job).tracking_uri, job, context.cwd)
    return uri, tracking_store.reach(uri) if tracking_store.is_server(uri) else None


def start(bundle: Bundle) -> None:
    """Give the run of a bundle its tags, parameters and files, and mark it as running.

    A run that was only reserved is restored first, and reserved again if the rest fails.

    Raises:
        ProblemsFound: The store cannot be reached or does not know the run.
    """
    if not (settings := run_of(bundle)):
        return
    tracking_store.refuse_removed(settings.tracking_uri)
    with tracking_store.connected(settings.tracking_uri) as client:
        run = _known_run(client, settings.run_id, "render the recipe again, for a bundle with a run of its own")
        with ExitStack() as undo:
            if run.info.lifecycle_stage == _DELETED:
                client.restore_run(settings.run_id)
                undo.callback(client.delete_run, settings.run_id)
            _describe(client, run, bundle)
            client.update_run(settings.run_id, status="RUNNING")
            undo.pop_all()


def _describe(client: Any, run: Any, bundle: Bundle) -> None:
    """Log a bundle to its run, unless that was done before: tags, the recipe as parameters, files as artifacts."""
    if run.data.tags.get(_DIGEST) == bundle.digest:
        return
    manifest = json.loads(bundle.files[MANIFEST])
    tags = {
        **({"trainer": manifest["trainer"]} if manifest.get("trainer") else {}),
        **({"rehearsal": "true"} if manifest.get("rehearsal") else {}),
        "recipe": manifest["recipe"],
        "backend": manifest["backend"],
        "job_name": manifest["job_name"],
        "git_revision": manifest["git_revision"] or "none",
        "mlflow.user": manifest["user"],
    }
    for key, value in tags.items():
        client.set_tag(run.info.run_id, key, value)
    _log_params(client, run, yaml_io.load(bundle.files["recipe.yaml"])["recipes"])
    for path in bundle.files:
        client.log_artifact(run.info.run_id, str(bundle.directory / path), str(Path("bundle", path).parent))
    client.set_tag(run.info.run_id, _DIGEST, bundle.digest)


def finish(
    bundle: Bundle, state: JobState, timeline: "Timeline | None" = None, failure: Failure | None = None
) -> None:
    """Send the metrics that the job left unsent, set the run's final state, and log its timeline and its failure.

    The report of a timeline is in the run folder already; a job may have none.

    Args:
        failure: Why it failed; None for that of the timeline.

    Raises:
        ProblemsFound: The store cannot be reached; unsent metrics stay in the run folder.
    """
    if settings := run_of(bundle):
        from launcher.runtime import metric_shipping

        run_dir = bundle.directory / names.RUN_DIR
        tracking_store.refuse_removed(settings.tracking_uri)
        with tracking_store.problems(settings.tracking_uri):
            try:
                metric_shipping.ship(run_dir, settings.tracking_uri, settings.run_id)
            except metric_shipping.TrackingUnavailable as error:
                raise fail("E506", tracking_store.URI, f"the last metrics could not be sent: {error}") from error
            client = tracking_store.client_of(settings.tracking_uri)
            client.set_terminated(settings.run_id, _STATUS[state])
            _tag_failure(client, settings.run_id, failure or (timeline.failure if timeline else None))
            if timeline:
                _log_timeline(client, settings.run_id, timeline, run_dir, metric_shipping.prefix(run_dir))


def is_running(bundle: Bundle) -> bool:
    """Return whether the bundle has an MLflow run that is not closed.

    Raises:
        ProblemsFound: The store cannot be reached or refuses.
    """
    if (run := run_of(bundle)) is None:
        return False
    with tracking_store.connected(run.tracking_uri) as client:
        return bool(client.get_run(run.run_id).info.status == "RUNNING")


def _tag_failure(client: Any, run_id: str, failure: Failure | None) -> None:
    """Write why a job failed into tags of its run; remove those of an earlier launch."""
    tags = {f"failure.{heading.replace(' ', '_')}": text for heading, text in failure.lines()} if failure else {}
    if failure and failure.cause:
        tags["failure.id"] = failure.cause.id
    known = client.get_run(run_id).data.tags
    for name in _FAILURE_TAGS:
        if name in tags:
            client.set_tag(run_id, name, clipped(tags[name], _TAG_LENGTH))
        elif name in known:
            client.delete_tag(run_id, name)


def _log_timeline(client: Any, run_id: str, timeline: "Timeline", run_dir: Path, prefix: str) -> None:
    """Log the report's files, the totals at the last step, and the events as a tag, beside the curves of `prefix`."""
    from mlflow.entities import Metric

    from launcher.timeline import report_files

    time_ms = int((timeline.launched + timeline.wall_s) * 1000)
    totals = {name: float(getattr(timeline, name)) for name in _TOTALS}
    client.log_batch(
        run_id, metrics=[Metric(prefix + name, value, time_ms, timeline.last_step) for name, value in totals.items()]
    )
    lines = [f"{event.time_s:.1f} s  {event.message}" for event in timeline.events]
    known = client.get_run(run_id).data.tags.get(f"{prefix}events")
    client.set_tag(run_id, f"{prefix}events", _with_earlier(known, lines, timeline.launched))
    for path in report_files(run_dir):
        client.log_artifact(run_id, str(path), f"{prefix}{names.TIMELINE}")


def _with_earlier(known: str | None, lines: Sequence[str], launched: float) -> str:
    """Return the events of a launch after those of earlier ones, which give way where a tag has no room for all."""
    text = clipped("\n".join(lines), _TAG_LENGTH)
    if not known or not text or known == text or known.endswith(f"\n{text}"):
        return known or text
    heading = f"launched again at {datetime.fromtimestamp(launched, UTC):%Y-%m-%d %H:%M:%S} UTC"
    text = clipped("\n".join([heading, *lines]), _TAG_LENGTH)
    room = _TAG_LENGTH - len(text) - 1
    if len(known) > room:
        known = f"…{known[len(known) - room + 1 :]}" if room > 1 else ""
    return f"{known}\n{text}" if known else text


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The MLflow run of a bundle, and its store."""

    tracking_uri: str
    run_id: str


def run_of(bundle: Bundle) -> TrackedRun | None:
    """Return the run of a bundle; None if it is not tracked, or was never launched after a dry run."""
    settings = _settings(bundle)
    if settings is None or settings.enabled is False or not settings.tracking_uri or not settings.run_id:
        return None
    if settings.run_id == names.RUN_ID_AT_LAUNCH:
        return None
    return TrackedRun(settings.tracking_uri, settings.run_id)


def start_parent(job: JobSpec, context: LaunchContext, name: str, tags: Mapping[str, str]) -> TrackedRun | None:
    """Create the run whose children are the runs of a sweep, in the store and experiment of its jobs.

    Args:
        job: One of the sweep's jobs.
        name: Of the run.

    Returns:
        None if the jobs are not tracked.

    Raises:
        ProblemsFound: The store cannot be reached or refuses.
    """
    if not is_tracked(job):
        return None
    settings = _complete(job, context)
    uri = settings["tracking_uri"]
    with tracking_store.connected(uri) as client:
        run = _new_run(client, uri, settings["experiment_name"], name, is_visible=True)
        for key, value in tags.items():
            client.set_tag(run.info.run_id, key, clipped(value, _TAG_LENGTH))
    return TrackedRun(uri, run.info.run_id)


def add_child(parent: TrackedRun, bundle: Bundle) -> None:
    """Make the run of a launched bundle a child of another.

    Source: mlflow.utils.mlflow_tags, MLFLOW_PARENT_RUN_ID.

    Raises:
        ProblemsFound: The store cannot be reached or refuses.
    """
    if child := run_of(bundle):
        with tracking_store.connected(parent.tracking_uri) as client:
            client.set_tag(child.run_id, "mlflow.parentRunId", parent.run_id)


def finish_parent(
    parent: TrackedRun,
    state: JobState,
    best: Mapping[str, str],
    objective: tuple[str, float] | None,
    picture: Path | None,
) -> None:
    """Set the final state of a sweep's run, and log its best overrides, their objective and the picture.

    Raises:
        ProblemsFound: The store cannot be reached or refuses.
    """
    with tracking_store.connected(parent.tracking_uri) as client:
        for key, value in best.items():
            client.set_tag(parent.run_id, f"best.{key}", clipped(value, _TAG_LENGTH))
        if objective:
            client.log_metric(parent.run_id, *objective)
        if picture:
            client.log_artifact(parent.run_id, str(picture))
        client.set_terminated(parent.run_id, _STATUS[state])


def history(bundle: Bundle, name: str) -> list[tuple[int, float]]:
    """Return a metric of a bundle's run as steps and values, in the order in which they were logged.

    Raises:
        ProblemsFound: The store cannot be reached or refuses.
    """
    if (run := run_of(bundle)) is None:
        return []
    with tracking_store.connected(run.tracking_uri) as client:
        return [(point.step, point.value) for point in client.get_metric_history(run.run_id, name)]


def _settings(bundle: Bundle) -> Mlflow | None:
    """Return the tracking settings in a bundle; None for a family that the launcher does not track."""
    section = get(bundles.config_of(bundle), tracking_store.PATH)
    return None if section is None else Mlflow.model_validate(section)


def _new_run(client: Any, uri: str, experiment: str, name: str, *, is_visible: bool = False) -> Any:
    """Create a run; one that is not visible is deleted at once, until `start` restores it."""
    if known := client.get_experiment_by_name(experiment):
        experiment_id = known.experiment_id
    else:
        # MLflow's own default is the current folder.
        place = (file.parent / _ARTIFACTS / experiment).as_uri() if (file := tracking_store.file_of(uri)) else None
        experiment_id = client.create_experiment(experiment, artifact_location=place)
    run = client.create_run(experiment_id, run_name=name)
    if not is_visible:
        client.delete_run(run.info.run_id)
    return run


def _known_run(client: Any, run_id: str, remedy: str) -> Any:
    """Return a run of the store, also one that is deleted."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            message = "the tracking store has no such run"
            raise fail("E505", f"{tracking_store.PATH}.run_id", message, value=run_id, remedy=remedy) from error
        raise


def _log_params(client: Any, run: Any, recipe: Mapping[str, Any]) -> None:
    """Log every leaf of the recipe. A resumed run keeps what it has: MLflow refuses to change a parameter."""
    from mlflow.entities import Param

    known = run.data.params
    params = [Param(path, str(value)[:_PARAM_LENGTH]) for path, value in leaves(recipe) if path not in known]
    for first in range(0, len(params), _PARAM_BATCH):
        client.log_batch(run.info.run_id, params=params[first : first + _PARAM_BATCH])
