"""A Ray cluster's dashboard, by Ray's own client: every failure is a Problem."""

import contextlib
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.common import variables
from launcher.common.problems import fail, first_line
from launcher.common.texts import bounded

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

Answer = TypeVar("Answer")
ADDRESS = "cluster.address"
_VARIABLE = "RAY_ADDRESS"
_OVERRIDE = "RAY_API_SERVER_ADDRESS"
"""Variables that Ray's client prefers to its argument, this one to the other."""
_ANSWER_S = 20.0
_NOT_FOUND = "status code 404"
_FAILURES = (OSError, RuntimeError, ValueError, KeyError)
"""What Ray's client raises: requests' exceptions are OSErrors, a refusal is a RuntimeError."""
_environment = threading.Lock()


def address_of(given: str | None) -> str:
    """Return the URL of the dashboard: the given one, or the environment's.

    Raises:
        ProblemsFound: Neither is a URL of a dashboard.
    """
    url = given or variables.current().get(_VARIABLE)
    if url is None or not url.startswith(("http://", "https://")):
        message = f"is not given, and {_VARIABLE} is not {'set' if url is None else 'the URL of a dashboard'}"
        raise fail("E823", ADDRESS, message, value=url, remedy=f"{ADDRESS}=http://<head>:8265")
    return url.rstrip("/")


class Cluster:
    """A connection to a cluster's dashboard."""

    def __init__(self, address: str):
        """Connect.

        Raises:
            ProblemsFound: Ray is not installed (E822), or no dashboard of Ray answers (E823).
        """
        self.address = address
        try:
            from ray.job_submission import JobSubmissionClient
        except ImportError as error:
            message = "Ray's client is not installed on this machine"
            raise fail("E822", "cluster", message, value="ray", remedy="pip install '.[ray]'") from error
        for name in ("ray", "ray.dashboard.modules.dashboard_sdk"):  # they report each file that is not copied
            logging.getLogger(name).setLevel(logging.WARNING)
        self._refuse_silence()
        with self._failures_as_problems(), self._only_address():
            self._client = JobSubmissionClient(address)

    def _refuse_silence(self) -> None:
        """Raise a Problem if nothing answers: Ray's client has no time limit."""
        try:
            urllib.request.urlopen(f"{self.address}/api/version", timeout=_ANSWER_S).close()
        except urllib.error.HTTPError:
            return  # Ray's client may have what the answer lacks
        except (OSError, ValueError) as error:
            remedy = f"check that the dashboard runs there, and {ADDRESS} or {_VARIABLE}"
            message = f"no dashboard of Ray answers: {error}"
            raise fail("E823", ADDRESS, message, value=self.address, remedy=remedy) from error

    @contextlib.contextmanager
    def _only_address(self) -> Iterator[None]:
        """Let Ray's client take this address: it prefers these variables to its argument, where they are set."""
        if {os.environ.get(name, self.address) for name in (_VARIABLE, _OVERRIDE)} == {self.address}:
            yield
            return
        with _environment:
            before = os.environ.get(_OVERRIDE)
            os.environ[_OVERRIDE] = self.address
            try:
                yield
            finally:
                if before is None:
                    del os.environ[_OVERRIDE]
                else:
                    os.environ[_OVERRIDE] = before

    @contextlib.contextmanager
    def _failures_as_problems(self) -> Iterator[None]:
        """Raise a failure of Ray's client in the block as a Problem (E823, E825)."""
        try:
            yield
        except OSError as error:
            message = f"no dashboard of Ray answers: {first_line(error)}"
            raise fail("E823", ADDRESS, message, value=self.address) from error
        except _FAILURES as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip(" .")]
            message = f"Ray refuses: {bounded(lines[-1]) if lines else type(error).__name__}"
            raise fail("E825", "cluster", message, value=self.address) from error

    def find(self, job: str) -> "JobDetails | None":
        """Return a job by its submission id; None if the cluster has none of that id."""
        return self._if_known(partial(self._client.get_job_info, job))

    def submit(self, arguments: Mapping[str, Any], folder: Path) -> None:
        """Copy a folder to the cluster, and start a job in it."""
        environment = {**arguments["runtime_env"], "working_dir": str(folder)}
        with self._failures_as_problems():
            self._client.submit_job(**{**arguments, "runtime_env": environment})

    def stop(self, job: str) -> None:
        """Request a job's end; one that has ended is left alone."""
        with self._failures_as_problems():
            self._client.stop_job(job)

    def log(self, job: str) -> str:
        """Return what a job's driver has printed; "" while it has none."""
        return self._if_known(partial(self._client.get_job_logs, job)) or ""

    def _if_known(self, question: Callable[[], Answer]) -> Answer | None:
        """Return the answer to a question about a job; None if the cluster does not have what it asks for."""
        with self._failures_as_problems():
            try:
                return question()
            except RuntimeError as error:
                if _NOT_FOUND in str(error):
                    return None
                raise

    async def tail(self, job: str) -> AsyncIterator[str]:
        """Yield what a job's driver prints, from the beginning of its log until the job or the connection ends."""
        import aiohttp  # Ray's client needs it

        # A cluster that does not answer is reported by the look at the job itself.
        with contextlib.suppress(aiohttp.ClientError, *_FAILURES):
            async for text in self._client.tail_job_logs(job):
                yield text

    def nodes(self) -> tuple[Mapping[str, float], ...]:
        """Return the resources of each node that is alive, by Ray's names."""
        from ray.util.state import list_nodes

        with self._failures_as_problems(), self._only_address():
            found = list_nodes(address=self.address, filters=[("state", "=", "ALIVE")], limit=10_000, detail=True)
            return tuple(node.resources_total for node in found)
