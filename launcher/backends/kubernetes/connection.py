"""One cluster through its API: idempotent requests, retried after transient failures.

Objects are created by server-side apply and deleted by name and uid, so that a repeated request changes nothing more.
Whatever takes a connection raises ApiError if the API refuses, and Unreachable if it does not answer.
"""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.backends.kubernetes.api_errors import (
    ApiError,
    Unreachable,
    api_error,
    is_transient,
    reason,
)
from launcher.common.problems import ProblemsFound, fail
from launcher.model.finding import http_time

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying
    from urllib3 import BaseHTTPResponse

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5.0, 30.0
PATIENCE_S = 60.0
"""How long a request that fails for a transient reason is retried."""
LONGEST_PAUSE_S = 10.0
_FIRST_PAUSE_S = 0.2
_SECOND_LOOK_S = 0.5
"""How long after a first 404 an object is requested once more."""
_POOL_SIZE = 128
"""Connections kept open; a follower has one for each pod, and two more."""

APPLY, MERGE, JSON = "application/apply-patch+yaml", "application/merge-patch+json", "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Requests an object's metadata only. Source: Kubernetes API concepts, Resource representation."""

_UNAUTHORIZED, _NOT_FOUND = 401, 404

_INSTALL = "pip install '.[k8s]'"

_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Source: Kubernetes, Accessing the API from within a pod."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster, reached through one context.

    Args:
        context: Name of the kubeconfig's context; None inside a cluster.
        host: URL of the API server.
        api: The official client's ApiClient, which has no types.
        patience_s: How long requests are retried, in seconds.
        refusal_patience_s: How long 401 and 404 are retried too, in seconds; 0 retries 401 once, with credentials
            that are read again.
        stop: Once set, waiting and retrying end.
        namespace: That of the context, or of the pod's own account.
    """

    context: str | None
    host: str
    api: Any = field(repr=False)
    patience_s: float = PATIENCE_S
    refusal_patience_s: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    namespace: str = "default"

    def get(self, path: str, query: Mapping[str, object] | None = None, *, accept: str = JSON) -> dict[str, Any]:
        """Return an object or a list."""
        return self._exchange("GET", path, query, accept=accept)

    def clock(self) -> tuple[dict[str, Any], datetime | None]:
        """Return the version of the API server, and the time of its clock; None if its answer has no date."""
        dates: list[str | None] = []

        def once() -> dict[str, Any]:
            answer = self._send("GET", "/version", None)
            dates.append(answer.headers.get("Date"))
            return _object(answer, "GET", "/version")

        return self._retrying(())(once), http_time(dates[-1])

    def apply(
        self,
        path: str,
        body: Mapping[str, Any],
        manager: str,
        *,
        dry_run: bool = False,
        sending: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> dict[str, Any]:
        """Create or update an object by server-side apply; return its current state. `sending` wraps each attempt."""
        query = {"fieldManager": manager, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self._exchange("PATCH", path, query, body, kind=APPLY, sending=sending)

    def merge(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]:
        """Change some fields of an object; `body` should hold the resourceVersion it was read at."""
        return self._exchange("PATCH", path, {"fieldManager": manager}, body, kind=MERGE)

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post a query that changes nothing, such as an access review."""
        return self._exchange("POST", path, body=body)

    def delete(self, path: str, uid: str) -> bool:
        """Delete the object with this uid; return False if it does not exist (any more)."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            self._exchange("DELETE", path, body=body)
        except ApiError as error:
            if error.status in (404, 409):  # 409: the name belongs to another object now
                return False
            raise
        return True

    def find(self, path: str, *, is_sure: bool = True) -> dict[str, Any] | None:
        """Return an object; None if the API answers 404: twice to be sure, with a pause, since one may be wrong."""
        for is_last in (False, True) if is_sure else (True,):
            try:
                return self._exchange("GET", path, final=(_NOT_FOUND,))
            except ApiError as error:
                if error.status != _NOT_FOUND:
                    raise
            if not is_last:
                self.stop.wait(_SECOND_LOOK_S)
        return None

    @contextmanager
    def stream(
        self, path: str, *, read_timeout_s: float, final: tuple[int, ...] = (), query: Mapping[str, object]
    ) -> "Iterator[BaseHTTPResponse]":
        """Open a streamed answer; the block reads it with `chunks`.

        Args:
            read_timeout_s: How long the server may be silent, in seconds.
            final: Statuses that are not retried, whatever the connection's patience.
        """
        answer = self._retrying(final)(self._send, "GET", path, query, read_timeout_s=read_timeout_s)
        try:
            yield answer
        finally:
            answer.close()
            answer.release_conn()

    def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        final: tuple[int, ...] = (),
        sending: Callable[[], AbstractContextManager[None]] = nullcontext,
        **form: Any,
    ) -> dict[str, Any]:
        def once() -> dict[str, Any]:
            with sending():
                return _object(self._send(method, path, query, body, **form), method, path)

        return self._retrying(final)(once)

    def _retrying(self, final: tuple[int, ...]) -> "Retrying":
        import tenacity

        is_stopped = tenacity.stop_when_event_set(self.stop)
        patience = _Patience(self.patience_s, self.refusal_patience_s, final)
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: is_transient(error) or patience.may_pass(error)),
            wait=_pause_s,
            stop=lambda state: patience(state) or is_stopped(state),
            sleep=tenacity.sleep_using_event(self.stop),
            before_sleep=self._renew,
            reraise=True,
        )

    def _renew(self, state: "RetryCallState") -> None:
        """Read the credentials again after a 401: another process may have renewed the token."""
        error = _failure(state)
        if not isinstance(error, ApiError) or error.status != _UNAUTHORIZED:
            return
        with suppress(ProblemsFound):  # the old credentials are tried again
            fresh = connect(self.context)
            if fresh.host == self.host:
                self.api.configuration, self.api.rest_client = fresh.api.configuration, fresh.api.rest_client

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: Mapping[str, Any] | None = None,
        *,
        kind: str = JSON,
        accept: str = JSON,
        read_timeout_s: float | None = None,
    ) -> "BaseHTTPResponse":
        """Send a request once; return the unread answer."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        given = ((name, value) for name, value in (query or {}).items() if value is not None)
        sent = [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in given]
        headers = {"Content-Type": kind, "Accept": accept, "User-Agent": self.api.user_agent}
        self.api.update_params_for_auth(headers, sent, ["BearerToken"])
        timeouts = (CONNECT_TIMEOUT_S, READ_TIMEOUT_S if read_timeout_s is None else read_timeout_s)
        try:
            # Not through call_api: it expects every refusal to have a body, but a bad certificate has none.
            answer: BaseHTTPResponse = self.api.rest_client.request(
                method, self.host + path, sent, headers, body, _preload_content=False, _request_timeout=timeouts
            )
        except ApiException as error:
            if not error.status:  # status 0: a certificate that is not trusted
                raise Unreachable(f"{self.host}: {' '.join(str(error.reason).split())}") from error
            raise api_error(error) from error
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{self.host}: {reason(error)}") from error
        return answer


@dataclass(slots=True)
class _Patience:
    """Decides when to stop retrying a request. Refusals have a limit of their own, from the first one in a row."""

    transient_s: float
    refusal_s: float
    final: tuple[int, ...]
    refused_at: float | None = None
    refusals: int = 0

    def may_pass(self, error: BaseException) -> bool:
        """Return whether a refusal may be transient: expired credentials, an API that is not served yet."""
        if not isinstance(error, ApiError) or error.status in self.final:
            return False
        return error.status == _UNAUTHORIZED or (error.status == _NOT_FOUND and self.refusal_s > 0)

    def __call__(self, state: "RetryCallState") -> bool:
        """Return whether to give up."""
        error = _failure(state)
        if error is None or is_transient(error):
            self.refused_at, self.refusals = None, 0
            return (state.seconds_since_start or 0.0) + _asked_s(error) >= self.transient_s
        now = time.monotonic()
        self.refused_at, self.refusals = self.refused_at or now, self.refusals + 1
        is_first_401 = self.refusals == 1 and isinstance(error, ApiError) and error.status == _UNAUTHORIZED
        return now - self.refused_at >= self.refusal_s and not is_first_401


def _object(answer: "BaseHTTPResponse", method: str, path: str) -> dict[str, Any]:
    """Return the object in an answer; anything else, such as a proxy's page, counts as no answer."""
    try:
        found = json.loads(b"".join(chunks(answer)))
    except ValueError as error:
        raise Unreachable(f"{method} {path}: the answer is not valid JSON: {error}") from error
    finally:
        answer.release_conn()
    if not isinstance(found, dict) or (path.startswith("/api") and not isinstance(found.get("kind"), str)):
        raise Unreachable(f"{method} {path}: the answer is not an object of the API")
    return found


def chunks(answer: "BaseHTTPResponse") -> Iterator[bytes]:
    """Yield an answer's bytes as they arrive; raise Unreachable if the connection breaks before the end."""
    from urllib3.exceptions import HTTPError

    try:
        yield from answer.stream(1 << 16)
    except (HTTPError, OSError, ValueError, AttributeError) as error:
        # A socket closed by another thread raises ValueError or AttributeError.
        raise Unreachable(reason(error)) from error


def connect(context: str | None) -> Connection:
    """Return a connection through a context of the kubeconfig; None for its current one, or the pod's own account.

    Raises:
        ProblemsFound: The client is not installed, or no usable configuration exists.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise fail("E340", "cluster", f"the kubernetes client is missing: {error}", remedy=_INSTALL) from error
    settings = client.Configuration()
    settings.retries, settings.connection_pool_maxsize = False, _POOL_SIZE
    with _logged_errors() as messages:
        try:
            name, namespace = _load(config, settings, context)
        except (config.ConfigException, ValueError) as error:  # ValueError: a certificate that is not base64
            raise _unusable(context, str(error)) from error
    if messages:
        raise _unusable(name, messages[0])
    if not settings.verify_ssl:
        raise _unusable(
            name,
            "its cluster has insecure-skip-tls-verify, which would send credentials to an unverified server",
            "give it the cluster's certificate-authority-data instead",
        )
    if not settings.host.startswith("https://"):
        raise _unusable(name, f"its server {settings.host} is not https")
    return Connection(name, settings.host, client.ApiClient(settings), PATIENCE_S, namespace=namespace or "default")


def _load(config: Any, settings: Any, context: str | None) -> tuple[str | None, str | None]:
    """Fill `settings`; return the context's name, None for a pod's own account, and its namespace if it has one.

    Raises:
        ProblemsFound: No such context exists, or it uses a login method that Kubernetes has removed.
    """
    files = os.environ.get("KUBECONFIG") or "~/.kube/config"  # the client reads it only on import
    contexts, users, current = _contexts(config, files)
    name = context or current
    if not name and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(settings)
        with suppress(OSError):
            return None, _ACCOUNT_NAMESPACE.read_text(encoding="ascii").strip()
        return None, None
    if not contexts:
        raise config.ConfigException(f"no kubeconfig exists ({files}), and this is not a pod of a cluster")
    if not name or name not in contexts:
        message = "is not a context of the kubeconfig" if name else "the kubeconfig has no current context"
        raise fail("E341", "cluster.kube_context", message, value=name or None, allowed=", ".join(contexts))
    user, namespace = contexts[name]
    if "auth-provider" in users.get(user or "", ()):  # some contact a server that the client does not verify
        message = "its user has an auth-provider, which Kubernetes removed in 1.26"
        raise _unusable(name, message, "use an exec plugin instead")
    config.load_kube_config(files, name, settings, persist_config=False)
    return name, namespace


def _contexts(config: Any, files: str) -> tuple[dict[str, tuple[str | None, str | None]], dict[str, Any], str | None]:
    """Return user and namespace of each context, the entry of each user, and the current context.

    Raises:
        ConfigException: A file is not a valid kubeconfig.
    """
    import yaml
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merged = KubeConfigMerger(files).config
        content = merged.value if merged else {}
        contexts = {
            one["name"]: (one["context"].safe_get("user"), one["context"].safe_get("namespace"))
            for one in content.get("contexts") or ()
        }
        users = {one["name"]: one.safe_get("user") or () for one in content.get("users") or ()}
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        # The error's own text would quote the line, which may hold a token.
        raise config.ConfigException(f"{files} is not a valid kubeconfig: {type(error).__name__}") from error
    return contexts, users, content.get("current-context")


def _unusable(context: str | None, message: str, remedy: str | None = None) -> ProblemsFound:
    return fail("E341", "cluster.kube_context", f"cannot be used: {message}", value=context, remedy=remedy)


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """Collect errors that the client only logs, such as a credential plugin that failed."""
    import logging  # the client imports it; a dry run does without

    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, root = Collect(logging.ERROR), logging.getLogger()
    root.addHandler(handler)
    try:
        yield messages
    finally:
        root.removeHandler(handler)


def pause_s(attempt: int) -> float:
    """Return how long to wait after the `attempt`-th failure in a row, in seconds: exponential, with jitter."""
    return random.uniform(0.5, 1) * min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 10))


def _failure(state: "RetryCallState") -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _asked_s(error: BaseException | None) -> float:
    """Return how long a refusal asks to wait, in seconds."""
    return (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0


def _pause_s(state: "RetryCallState") -> float:
    asked_s = _asked_s(_failure(state))
    return asked_s + pause_s(1) if asked_s else pause_s(state.attempt_number)
