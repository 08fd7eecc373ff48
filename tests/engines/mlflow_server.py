"""A real MLflow tracking server on a loopback port, for as long as a test run needs it."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from background import await_true
from ports import free_ports


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run a server that keeps everything in a folder until the block ends; yield its URL."""
    (port,) = free_ports(1)
    environment = os.environ | {
        "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/mlflow.db",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    command = [sys.executable, "-m", "uvicorn", "mlflow.server.fastapi_app:app", "--port", str(port)]
    with started(command, port, folder, environment) as url:
        yield url


@contextmanager
def started(
    command: str | list[str], port: int, folder: Path, environment: Mapping[str, str], *, shell: bool = False
) -> Iterator[str]:
    """Run a command that serves at a port, in a folder with its log, until the block ends; yield its URL."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder, shell=shell)
    url = f"http://127.0.0.1:{port}"
    try:
        await_true(lambda: process.poll() is not None or _answers(f"{url}/health"))
        assert process.poll() is None, (folder / "log").read_text()
        yield url
    finally:
        process.terminate()
        process.wait(200)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True
