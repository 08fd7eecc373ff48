"""Failed requests: the API's answers as exceptions, and exceptions as Problems."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from launcher.backends.kubernetes import lenient
from launcher.common.problems import Problem, ProblemsFound
from launcher.common.texts import bounded
from launcher.model.finding import http_time

if TYPE_CHECKING:
    from kubernetes.client import ApiException

_TRANSIENT = (0, 429, 500, 502, 503, 504)
"""No answer, and transient statuses: the same request may succeed later.

Source: Kubernetes API conventions, HTTP status codes.
"""

_QUOTA = re.compile(r"exceeded quota: |failed quota: ")
_WEBHOOK = re.compile(r"(admission webhook \S+) denied the request|(?i:validatingadmissionpolicy) .* denied request")
_TERMINATING = re.compile(r"because it is being terminated")
_PLUGIN = re.compile(
    r"violates PodSecurity|(?:maximum|minimum) \S+ (?:usage|limit|request).* per |is forbidden: .*LimitRange"
)


class RequestFailed(Exception):
    """A request failed: `status` is that of HTTP, 0 if no answer came; `message` is the cluster's."""

    status: int = 0
    message: str = ""


class ApiError(RequestFailed):
    """The API refused a request.

    Args:
        status: HTTP status.
        message: The cluster's message.
        retry_after_s: How long to wait before the next request, in seconds; None if not given.
        causes: Reasons in the answer's details.
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None = None, causes: tuple[str, ...] = ()):
        super().__init__(f"{status} {message}")
        self.status, self.message, self.retry_after_s, self.causes = status, message, retry_after_s, causes


class Unreachable(RequestFailed):
    """The API did not answer, or the connection broke."""


def is_transient(error: BaseException) -> bool:
    """Return whether a failure is transient: the same request may succeed later."""
    return isinstance(error, RequestFailed) and error.status in _TRANSIENT


def problem(error: RequestFailed, path: str, *, value: object = None) -> Problem:
    """Return a failed request as a Problem about the key at `path`, or the context if that leads to no cluster."""
    if not isinstance(error, ApiError):
        return Problem("E342", "cluster.kube_context", f"the cluster's API does not answer: {error}")
    if error.status == 401:
        remedy = "log in again, or renew the kubeconfig's credentials"
        return Problem(
            "E343", "cluster.kube_context", f"the cluster rejects your credentials: {error.message}", remedy=remedy
        )
    if refusal := _admission(error, path, value):
        return refusal
    if error.status == 403:
        return Problem("E344", path, error.message, value=value, remedy="ask for a Role that allows it")
    if is_transient(error):
        return Problem("E342", path, f"the cluster's API fails: {error}", value=value)
    return Problem("E351", path, error.message, value=value)


def _admission(error: ApiError, path: str, value: object) -> Problem | None:
    """Return a refusal by admission as a Problem; None if it was not admission.

    Source: Kubernetes: the ResourceQuota, LimitRanger, PodSecurity, NamespaceLifecycle, webhook and
    ValidatingAdmissionPolicy plugins write these words into Status.message, and the last two also use other statuses.
    """
    if _QUOTA.search(error.message):
        remedy = "wait until other jobs end, take fewer nodes, or ask for a larger quota"
        return Problem("E354", path, error.message, value=value, remedy=remedy)
    if found := _WEBHOOK.search(error.message):
        remedy = f"change what it objects to, or ask the owner of {found[1] or 'the policy'}"
        return Problem("E355", path, error.message, value=value, remedy=remedy)
    if error.status == 403 and ("NamespaceTerminating" in error.causes or _TERMINATING.search(error.message)):
        return Problem(
            "E345", path, error.message, value=value, remedy="wait until it is deleted, or use another one"
        )
    if error.status == 403 and (found := _PLUGIN.search(error.message)):
        remedy = "change what it objects to, or ask for another policy in the namespace"
        return Problem("E355", path, error.message, value=value, remedy=remedy)
    return None


@contextmanager
def api_errors_as_problems(path: str = "cluster.namespace", *, value: object = None) -> Iterator[None]:
    """Raise a Problem about a key and its value for a request that fails within the block.

    Raises:
        ProblemsFound: A request failed.
    """
    try:
        yield
    except RequestFailed as error:
        raise ProblemsFound((problem(error, path, value=value),)) from error


def api_error(error: "ApiException") -> ApiError:
    """Convert the official client's exception."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body or ""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    message = bounded(lenient.text(lenient.mapping(answer).get("message")) or " ".join(body.split()))
    details = lenient.mapping(answer, "details")
    causes = tuple(lenient.text(each.get("reason")) for each in lenient.mappings(details.get("causes")))
    headers = error.headers or {}
    asked_s = retry_after_s(headers.get("Retry-After"), headers.get("Date"))
    if asked_s is None:
        asked_s = lenient.count(details.get("retryAfterSeconds")) or None
    return ApiError(error.status, message or str(error.reason), asked_s, causes)


def retry_after_s(text: str | None, date: str | None = None) -> float | None:
    """Return how long to wait before the next request, in seconds; None if no header gives it.

    Args:
        text: Retry-After: seconds, or a date.
        date: The answer's own Date, which has the server's clock.

    Source: RFC 9110, 10.2.3, Retry-After.
    """
    text = (text or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    if (until := http_time(text)) is None:
        return None
    return max(0.0, (until - (http_time(date) or datetime.now(UTC))).total_seconds())


def reason(error: BaseException) -> str:
    """Return the innermost reason of a broken connection, without object addresses."""
    inner = getattr(error, "reason", None)
    if isinstance(inner, Exception):
        return reason(inner)
    text = str(error).rpartition(">: ")[2] or type(error).__name__
    return " ".join(text.split())
