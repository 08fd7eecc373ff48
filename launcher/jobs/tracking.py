"""One job, one MLflow run.

It is reserved (or named) before a job that is launched is rendered, so that its id is in every configuration; a
dry run leaves that to the launch of its bundle. The only module that imports mlflow, where tracking is on.
"""

import errno
import importlib.util
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.bundle import store as bundles
from launcher.bundle.render import MANIFEST
from launcher.common import names, os_errors, yaml_io
from launcher.common.problems import ProblemsFound, fail
from launcher.common.text_table import clipped
from launcher.model.backend_registry import described
from launcher.model.config_tree import get, leaves
from launcher.model.context import LaunchContext
from launcher.model.job_spec import Bundle, JobSpec, JobState
from launcher.model.recipe import Mlflow
from launcher.planning.job_planner import tracking, with_run

if TYPE_CHECKING:
    from launcher.timeline import Timeline

_DELETED = "deleted"
"""Source: mlflow.entities.LifecycleStage."""
_DIGEST = "digest"
"""Tag of a run, written once everything else of its bundle is."""
_PATH = "recipes.training_config.mlflow"
_URI = f"{_PATH}.tracking_uri"
_STORE = "mlflow.db"
_ARTIFACTS = "mlartifacts"
_REACH_TIMEOUT_S = 5
_PARAM_LENGTH = 6000
"""Characters of a parameter's value. Source: mlflow.utils.validation, MAX_PARAM_VAL_LENGTH."""
_PARAM_BATCH = 100
"""Parameters per request. Source: MLflow REST API, Log Batch."""
_TAG_LENGTH = 5000
"""Characters of a tag's value. Source: mlflow.utils.validation, MAX_TAG_VAL_LENGTH: 8000, in servers of 2023 5000."""
_FULL, _IO_ERROR = 13, 10
"""SQLITE_FULL and SQLITE_IOERR, written out: importing sqlite3 takes 3 ms. Source: SQLite, Result Codes."""
_NUMBERS = {
    _FULL: errno.ENOSPC,
    8: errno.EROFS,  # SQLITE_READONLY
    _IO_ERROR: errno.EIO,
    14: 0,  # SQLITE_CANTOPEN
}
"""What SQLite's result codes mean where the folder can be written to all the same; 0 where that is not known."""
_TOTALS = ("goodput", "restarts", "samples_lost", "samples_redone", "wall_s")
_STATUS = {JobState.SUCCEEDED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}


def is_tracked(job: JobSpec) -> bool:
    """Return whether `job` gets an MLflow run: always on this machine, on a cluster if a store is named."""
    settings = tracking(job)
    return settings.enabled is not False and bool(
        settings.tracking_uri or described(job.backend).files.are_shared(job.settings)
    )


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
    with _connected(uri) as client:
        if known := settings["run_id"]:
            run = _known_run(client, known, f"leave {_PATH}.run_id empty for a new one")
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
    with _connected(uri) as client:
        run = _new_run(client, uri, settings.experiment_name or "", settings.run_name or bundle.job_name)
    return bundles.assign_run(bundle, run.info.run_id)


def _complete(job: JobSpec, context: LaunchContext) -> dict[str, str]:
    """Return a job's tracking settings with the defaults; the id is empty for a new run."""
    settings = tracking(job)
    return {
        "tracking_uri": store_uri(settings.tracking_uri, job, context.cwd),
        "run_id": settings.run_id or "",
        "experiment_name": settings.experiment_name or job.config["recipes"]["run"]["name"],
        "run_name": settings.run_name or job.name,
    }


def store_uri(named: str | None, job: JobSpec, cwd: Path) -> str:
    """Return the MLflow URI of a server, an ARN or a path; a path becomes a sqlite file there.

    Raises:
        ProblemsFound: The ARN's plugin is missing, or a path is given to a job that runs elsewhere.
    """
    if not named:
        return f"sqlite:///{job.base_results_dir.resolve() / _STORE}"
    if _is_server(named):
        return named
    if named.startswith("arn:"):
        if importlib.util.find_spec("sagemaker_mlflow") is None:
            message = "a SageMaker tracking server needs its MLflow plugin"
            raise fail("E503", _URI, message, value=named, remedy="pip install sagemaker-mlflow")
        return named
    scheme = named.partition("://")[0] if "://" in named else None
    if scheme not in (None, "file", "sqlite"):
        message, allowed = "is not a supported kind of tracking store", "http, https, an ARN, sqlite, or a path"
        raise fail("E507", _URI, message, value=scheme, allowed=allowed)
    if not described(job.backend).files.are_shared(job.settings):
        message = "a file on this machine is out of the job's reach"
        allowed = "http://…, https://… or the ARN of a SageMaker tracking server"
        raise fail("E504", _URI, message, value=named, allowed=allowed)
    path = cwd / Path(named.removeprefix("file://").removeprefix("sqlite:///")).expanduser()
    return f"sqlite:///{path if scheme == 'sqlite' or path.suffix == '.db' else path / _STORE}"


def start(bundle: Bundle) -> None:
    """Give the run of a bundle its tags, parameters and files, and mark it as running.

    A run that was only reserved is restored first, and reserved again if the rest fails.

    Raises:
        ProblemsFound: The store cannot be reached or does not know the run.
    """
    if not (settings := run_of(bundle)):
        return
    _refuse_removed_store(settings.tracking_uri)
    with _connected(settings.tracking_uri) as client:
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


def finish(bundle: Bundle, state: JobState, timeline: "Timeline | None" = None) -> None:
    """Send the metrics that the job left unsent, set the run's final state, and log its timeline.

    The report of a timeline is in the run folder already; a job may have none.

    Raises:
        ProblemsFound: The store cannot be reached; unsent metrics stay in the run folder.
    """
    if settings := run_of(bundle):
        from launcher.runtime import metric_shipping

        run_dir = bundle.directory / names.RUN_DIR
        _refuse_removed_store(settings.tracking_uri)
        with _problems(settings.tracking_uri):
            try:
                metric_shipping.ship(run_dir, settings.tracking_uri, settings.run_id)
            except metric_shipping.TrackingUnavailable as error:
                raise fail("E506", _URI, f"the last metrics could not be sent: {error}") from error
            client = _client(settings.tracking_uri)
            client.set_terminated(settings.run_id, _STATUS[state])
            if timeline:
                _log_timeline(client, settings.run_id, timeline, run_dir, metric_shipping.prefix(run_dir))


def _refuse_removed_store(uri: str) -> None:
    """Raise a Problem if a store's file no longer exists: MLflow would print a traceback or create an empty one."""
    if (file := _file_of(uri)) and not file.exists():
        raise fail("E502", _URI, "the tracking store no longer exists", value=uri)


def _log_timeline(client: Any, run_id: str, timeline: "Timeline", run_dir: Path, prefix: str) -> None:
    """Log the report's files, the totals at the last step, and the events as a tag, beside the curves of `prefix`."""
    from mlflow.entities import Metric

    from launcher.timeline import report_files

    time_ms = int((timeline.launched + timeline.wall_s) * 1000)
    totals = {name: float(getattr(timeline, name)) for name in _TOTALS}
    client.log_batch(
        run_id, metrics=[Metric(prefix + name, value, time_ms, timeline.last_step) for name, value in totals.items()]
    )
    text = "\n".join(f"{event.time_s:.1f} s  {event.message}" for event in timeline.events)
    client.set_tag(run_id, f"{prefix}events", clipped(text, _TAG_LENGTH))
    for path in report_files(run_dir):
        client.log_artifact(run_id, str(path), f"{prefix}{names.TIMELINE}")


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


def _settings(bundle: Bundle) -> Mlflow | None:
    """Return the tracking settings in a bundle; None for a family that the launcher does not track."""
    section = get(bundles.config_of(bundle), _PATH)
    return None if section is None else Mlflow.model_validate(section)


def ui_command(uri: str) -> str | None:
    """Return the command that shows a store's runs in a browser; None for a server, which has an address itself.

    Source: MLflow, Command-Line Interface, mlflow ui.
    """
    if not uri.startswith("sqlite:"):
        return None
    command = f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
    from importlib import metadata  # imports email and zipfile, 10 ms

    try:
        metadata.version("mlflow")
    except metadata.PackageNotFoundError:  # mlflow-skinny has no pages to show
        return f"{command}  # needs: pip install mlflow"
    return command


@contextmanager
def _connected(uri: str) -> Iterator[Any]:
    """Yield a client of a store that answers; raise what the store refuses as a Problem."""
    if _is_server(uri):
        _reach(uri)  # before MLflow retries for minutes
    with _problems(uri):
        yield _client(uri)


@contextmanager
def _problems(uri: str) -> Iterator[None]:
    """Turn what MLflow raises into a Problem; remove an incomplete store if the disk is full."""
    from launcher.runtime import store_errors  # which imports MLflow

    errors, file = store_errors.raised(), _file_of(uri)
    is_new = file is not None and not file.exists()
    try:
        yield
    except errors as error:
        refusal = _refusal(uri, error)  # while the disk is still full
        if file and is_new and store_errors.code(error) in (_FULL, _IO_ERROR):
            for path in file.parent.glob(f"{file.name}*"):
                path.unlink()
            with suppress(OSError):
                file.parent.rmdir()  # unless something is in it
        raise refusal from error


def _refusal(uri: str, error: Exception) -> ProblemsFound:
    """Return a store's error as a Problem, in the operating system's terms for a file."""
    from launcher.runtime import store_errors

    file = _file_of(uri)
    if isinstance(error, OSError):
        return os_errors.refused("E502", _URI, error, error.filename or (file and file.parent))
    number = _NUMBERS.get(store_errors.code(error) or 0) if file else None
    if file and number is not None:
        written = os_errors.written(file.parent) or os_errors.limited(file)
        if refusal := written or (OSError(number, "") if number else None):
            return os_errors.refused("E502", _URI, refusal, file)
    return fail("E502", _URI, store_errors.plain(error), value=uri)


def _file_of(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def _client(uri: str) -> Any:
    import logging  # an untracked launch does without

    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs its tables for every new store
    if file := _file_of(uri):
        file.parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=uri)


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _reach(uri: str) -> None:
    import urllib.error  # costs 10 ms, which an untracked job does not pay
    import urllib.request

    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_REACH_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return  # it answers; MLflow reports any refusal itself
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        message = f"the MLflow server cannot be reached: {reason}"
        raise fail("E501", _URI, message, value=uri, remedy=f"start it, or ++{_PATH}.enabled=false") from error


def _new_run(client: Any, uri: str, experiment: str, name: str, *, is_visible: bool = False) -> Any:
    """Create a run; one that is not visible is deleted at once, until `start` restores it."""
    if known := client.get_experiment_by_name(experiment):
        experiment_id = known.experiment_id
    else:
        # MLflow's own default is the current folder.
        place = (file.parent / _ARTIFACTS / experiment).as_uri() if (file := _file_of(uri)) else None
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
            raise fail("E505", f"{_PATH}.run_id", message, value=run_id, remedy=remedy) from error
        raise


def _log_params(client: Any, run: Any, recipe: Mapping[str, Any]) -> None:
    """Log every leaf of the recipe. A resumed run keeps what it has: MLflow refuses to change a parameter."""
    from mlflow.entities import Param

    known = run.data.params
    params = [Param(path, str(value)[:_PARAM_LENGTH]) for path, value in leaves(recipe) if path not in known]
    for first in range(0, len(params), _PARAM_BATCH):
        client.log_batch(run.info.run_id, params=params[first : first + _PARAM_BATCH])
