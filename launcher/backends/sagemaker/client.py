"""The AWS services that a training job needs: SageMaker, CloudWatch Logs and S3, in one region.

boto3 retries transient errors, throttling included; any other error is a Problem.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from launcher.backends.sagemaker import JOBS
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.common.texts import bounded

_ATTEMPTS = 8
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 5, 60
_REGION = f"{JOBS}.region"

_UNKNOWN_USER = ("UnrecognizedClientException", "InvalidClientTokenId", "ExpiredToken", "ExpiredTokenException")
_DENIED = ("AccessDeniedException", "AccessDenied", "UnauthorizedOperation", "Forbidden")
_PASSING = ("ThrottlingException", "Throttling", "RequestLimitExceeded", "SlowDown", "TooManyRequestsException")
"""Source: AWS, Common errors; Amazon S3, Error responses."""

_making = threading.Lock()
"""Threads share clients, but a Session makes one at a time. Source: boto3, Multithreading with sessions."""


class Refused(Exception):
    """A service refused a call; `is_final` if that has no effect: each of the call's attempts was refused."""

    def __init__(self, code: str, message: str, status: int, *, is_final: bool = True):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status, self.is_final = code, message, status, is_final


class Services(Protocol):
    """The services that answer the calls for a job: those of AWS, or their simulation on this machine."""

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of a service; both names are boto3's.

        Raises:
            Refused: The service refuses.
            ProblemsFound: It cannot be reached.
        """


class _Doubts(threading.local):
    """Whether an attempt of this thread's call may have been carried out; boto3 reports only how many there were."""

    is_any = False

    def judge(self, response: tuple[Any, dict[str, Any]] | None, **_: Any) -> None:
        """Note an attempt that was not answered, or by a failure of the service. Source: AWS, Common errors: 5xx."""
        if response is None or (
            response[0].status_code >= 500 and response[1].get("Error", {}).get("Code") not in _PASSING
        ):
            self.is_any = True


@dataclass(frozen=True, slots=True)
class Connection:
    """The services in one region: boto3's Session, and its clients by service."""

    region: str
    session: Any = field(repr=False)
    clients: dict[str, Any] = field(default_factory=dict, repr=False)
    doubts: _Doubts = field(default_factory=_Doubts, repr=False)

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of a service, as `Services.call` does."""
        from botocore.exceptions import BotoCoreError, ClientError

        method = getattr(self._client(service), operation)
        self.doubts.is_any = False
        try:
            answer: dict[str, Any] = method(**arguments)
            return answer
        except ClientError as error:
            reported = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            message = bounded(reported.get("Message") or str(error))
            raise Refused(reported.get("Code", ""), message, status, is_final=not self.doubts.is_any) from error
        except BotoCoreError as error:
            raise _unasked(error) from error

    def _client(self, service: str) -> Any:
        with _making:
            if service not in self.clients:
                self.clients[service] = self._made(service)
            return self.clients[service]

    def _made(self, service: str) -> Any:
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "max_attempts": _ATTEMPTS},
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
        )
        made = client(self.session, service, config)
        made.meta.events.register(f"needs-retry.{made.meta.service_model.service_id.hyphenize()}", self.doubts.judge)
        return made


def client(session: Any, service: str, config: Any, endpoint: str | None = None) -> Any:
    """Return boto3's client for a service.

    Raises:
        ProblemsFound: There are no credentials, or the endpoint in the environment is not a valid URL.
    """
    from botocore.exceptions import BotoCoreError

    try:
        return session.client(service, endpoint_url=endpoint, config=config)
    except BotoCoreError as error:
        raise _unasked(error) from error
    except ValueError as error:
        remedy = "AWS_ENDPOINT_URL must be a URL"
        raise fail("E396", _REGION, f"AWS cannot be called: {error}", remedy=remedy) from error


def connect(region: str | None) -> Connection:
    """Return the services in a region, by default that of the user's AWS configuration.

    Raises:
        ProblemsFound: boto3 is not installed, or no region is configured.
    """
    return _connect(region, tuple(sorted(each for each in os.environ.items() if each[0].startswith("AWS_"))))


@cache
def _connect(region: str | None, _environment: tuple[tuple[str, str], ...]) -> Connection:
    """Return the services for the current environment, cached: creating a client takes half a second."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        remedy = "pip install '.[sagemaker]'"
        raise fail("E392", "cluster", f"a training job needs boto3: {error}", remedy=remedy) from error
    try:
        session = boto3.Session(region_name=region)
    except BotoCoreError as error:
        raise _unasked(error) from error
    if not session.region_name:
        remedy = f"{_REGION}=us-east-1, or AWS_DEFAULT_REGION"
        raise fail("E393", _REGION, "neither the recipe nor your AWS configuration names a region", remedy=remedy)
    return Connection(session.region_name, session)


@contextmanager
def api_errors_as_problems(path: str = JOBS) -> Iterator[None]:
    """Raise a refused call within the block as a Problem."""
    try:
        yield
    except Refused as error:
        raise ProblemsFound((problem(error, path),)) from error


def problem(error: Refused, path: str) -> Problem:
    """Return a refusal as a Problem about the key at `path`."""
    if error.code in _UNKNOWN_USER:
        return Problem("E394", path, f"AWS does not know you: {error.message}", remedy="log in again: aws sso login")
    if error.code in _DENIED or error.status == 403:
        remedy = "request the permission named in the message"
        return Problem("E395", path, f"AWS does not allow it: {error.message}", remedy=remedy)
    if error.code in _PASSING or error.status >= 500:
        return Problem("E396", path, f"AWS is unavailable or throttles requests: {error}", remedy="try again later")
    return Problem("E397", path, f"AWS refuses: {error}")


def _unasked(error: Exception) -> ProblemsFound:
    """Return why AWS could not be called: no credentials, or no answer."""
    from botocore import exceptions

    credential_errors = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.ProfileNotFound,
        exceptions.SSOError,
        exceptions.LoginError,
        exceptions.TokenRetrievalError,
        exceptions.ConfigParseError,
        exceptions.InvalidConfigError,
    )
    text = " ".join(str(error).split())
    if isinstance(error, credential_errors):
        remedy = "aws sso login, aws configure sso, or AWS_PROFILE"
        return fail("E394", JOBS, f"AWS does not know you: {text}", remedy=remedy)
    if isinstance(error, exceptions.ParamValidationError):
        return fail("E397", JOBS, f"boto3 refuses: {text}")
    return fail("E396", _REGION, f"AWS does not answer: {text}")
