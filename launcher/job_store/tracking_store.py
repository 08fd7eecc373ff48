"""The tracking store of a job: its address, a client of it, and what it refuses as a Problem."""

import errno
import importlib.util
import os
import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import console, os_errors
from launcher.common.problems import ProblemsFound, fail
from launcher.model.backend_registry import described
from launcher.model.job_spec import JobSpec

if TYPE_CHECKING:
    from datetime import datetime

PATH = "recipes.training_config.mlflow"
URI = f"{PATH}.tracking_uri"
_STORE = "mlflow.db"
_HALF_MADE = re.compile(r"table \S+ already exists")
"""SQLite's error where MLflow creates its tables in a store that has a part of them."""
_REACH_TIMEOUT_S = 5
_FULL, _IO_ERROR = 13, 10
"""SQLITE_FULL and SQLITE_IOERR, written out: importing sqlite3 takes 3 ms. Source: SQLite, Result Codes."""
_NUMBERS = {
    _FULL: errno.ENOSPC,
    8: errno.EROFS,  # SQLITE_READONLY
    _IO_ERROR: errno.EIO,
    14: 0,  # SQLITE_CANTOPEN
}
"""What SQLite's result codes mean where the folder can be written to all the same; 0 where that is not known."""


def store_uri(named: str | None, job: JobSpec, cwd: Path) -> str:
    """Return the MLflow URI of a server, an ARN or a path; a path becomes a sqlite file there.

    Raises:
        ProblemsFound: The ARN's plugin is missing, or a path is given to a job that runs elsewhere.
    """
    if not named:
        return f"sqlite:///{job.base_results_dir.resolve() / _STORE}"
    if is_server(named):
        return named
    if named.startswith("arn:"):
        if importlib.util.find_spec("sagemaker_mlflow") is None:
            message = "a SageMaker tracking server needs its MLflow plugin"
            raise fail("E503", URI, message, value=named, remedy="pip install sagemaker-mlflow")
        return named
    scheme = named.partition("://")[0] if "://" in named else None
    if scheme not in (None, "file", "sqlite"):
        message, allowed = "is not a supported kind of tracking store", "http, https, an ARN, sqlite, or a path"
        raise fail("E507", URI, message, value=scheme, allowed=allowed)
    if not described(job.backend).files.are_shared(job.settings):
        message = "a file on this machine is out of the job's reach"
        allowed = "http://…, https://… or the ARN of a SageMaker tracking server"
        raise fail("E504", URI, message, value=named, allowed=allowed)
    path = cwd / Path(named.removeprefix("file://").removeprefix("sqlite:///")).expanduser()
    return f"sqlite:///{path if scheme == 'sqlite' or path.suffix == '.db' else path / _STORE}"


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


def refuse_removed(uri: str) -> None:
    """Raise a Problem if a store's file no longer exists: MLflow would print a traceback or create an empty one."""
    if (file := file_of(uri)) and not file.exists():
        raise fail("E502", URI, "the tracking store no longer exists", value=uri)


@contextmanager
def connected(uri: str) -> Iterator[Any]:
    """Yield a client of a store that answers; raise what the store refuses as a Problem."""
    if is_server(uri):
        reach(uri)  # before MLflow retries for minutes
    with problems(uri):
        yield client_of(uri)


@contextmanager
def problems(uri: str) -> Iterator[None]:
    """Turn what MLflow raises into a Problem; remove an incomplete store if the disk is full."""
    from launcher.runtime import store_errors  # which imports MLflow

    with console.without_widgets():
        errors = store_errors.raised()
    file = file_of(uri)
    is_new = file is not None and not file.exists()
    try:
        yield
    except errors as error:
        refusal = _refusal(uri, error)  # while the disk is still full
        if file:
            _remove_partial(file)
        if file and is_new and store_errors.code(error) in (_FULL, _IO_ERROR):
            for path in file.parent.glob(f"{file.name}*"):
                if ".partial" not in path.name:  # another launch may be making it
                    path.unlink()
            with suppress(OSError):
                file.parent.rmdir()  # unless something is in it
        raise refusal from error


def _refusal(uri: str, error: Exception) -> ProblemsFound:
    """Return a store's error as a Problem, in the operating system's terms for a file."""
    from launcher.runtime import store_errors

    file = file_of(uri)
    if isinstance(error, OSError):
        return os_errors.refused("E502", URI, error, error.filename or (file and file.parent))
    number = _NUMBERS.get(store_errors.code(error) or 0) if file else None
    if file and number is not None:
        written = os_errors.written(file.parent) or os_errors.limited(file)
        if refusal := written or (OSError(number, "") if number else None):
            return os_errors.refused("E502", URI, refusal, file)
    text = store_errors.plain(error)
    is_half_made = file is not None and _HALF_MADE.fullmatch(text)
    remedy = f"remove {file}, which an interrupted launch has left incomplete" if is_half_made else None
    return fail("E502", URI, text, value=uri, remedy=remedy)


def file_of(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def client_of(uri: str) -> Any:
    import logging  # an untracked launch does without

    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs its tables for every new store
    if (file := file_of(uri)) and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        _create(file)
    return MlflowClient(tracking_uri=uri)


def _create(file: Path) -> None:
    """Create a store under another name, since MLflow opens none whose tables are incomplete: its first seconds may
    be interrupted. What an error leaves, `problems` removes."""
    from mlflow import MlflowClient

    # Another name each time: MLflow keeps its connection to a store by its address.
    partial = file.with_name(f"{_own_partial(file)}{secrets.token_hex(4)}.partial")
    try:
        MlflowClient(tracking_uri=f"sqlite:///{partial}").search_experiments(max_results=1)
        try:
            os.link(partial, file)
        except FileExistsError:
            pass  # another launch was faster
        except OSError:  # a file system without links
            if not file.exists():
                partial.rename(file)
    except Exception:
        raise  # `problems` reads the size of what is left
    except BaseException:
        _remove_partial(file)
        raise
    _remove_partial(file)


def _own_partial(file: Path) -> str:
    """Return how the names begin under which this process creates a store."""
    return f"{file.name}.{os.getpid()}-"


def _remove_partial(file: Path) -> None:
    from glob import escape  # few launches create a store

    for left in file.parent.glob(f"{escape(_own_partial(file))}*.partial*"):
        left.unlink(missing_ok=True)


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def reach(uri: str) -> "datetime | None":
    """Return the time of a server's clock; None if it does not state that."""
    import urllib.error  # costs 10 ms, which an untracked job does not pay
    import urllib.request

    from launcher.model.finding import http_time

    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_REACH_TIMEOUT_S) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers  # it answers; MLflow reports any refusal itself
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        message = f"the MLflow server cannot be reached: {reason}"
        raise fail("E501", URI, message, value=uri, remedy=f"start it, or ++{PATH}.enabled=false") from error
    return http_time(headers["Date"])
