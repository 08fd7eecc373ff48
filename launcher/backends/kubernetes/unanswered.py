"""Requests that create or change an object: which of them the cluster may still act on."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from launcher.backends.kubernetes.api_errors import ApiError
from launcher.common.interrupts import Interrupted, deferred

_OUTCOME_UNKNOWN = (500, 502, 504)
"""Statuses after which a request may have taken effect, or still may. Source: Kubernetes API conventions, HTTP status
codes: 500 and 504; 502 is a load balancer's for a server that broke off."""

_NOT_STORED = re.compile(r"failed calling webhook")
"""Words of a 500 that admission sends before anything is stored. Source: Kubernetes, Dynamic admission control."""

_WAITING = "interrupted; waiting for the cluster's answer to the last request; another signal stops waiting"


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a submission, by the path of their object.

    Args:
        sent: How many were sent.
        answered: How many got an answer that shows their outcome.
    """

    sent: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def sending(self, path: str) -> Iterator[None]:
        """Count the request that the block sends. A signal waits for its answer, which a rollback needs to know.

        Raises:
            Interrupted: A signal came meanwhile.
        """
        with deferred(_WAITING) as taken:
            self.sent[path] += 1
            try:
                yield
                self.answered[path] += 1
            except ApiError as error:
                self.answered[path] += is_final(error)
                if not taken:
                    raise
            except Exception:
                if not taken:
                    raise
        if taken:
            raise Interrupted(taken[0])

    def may_be_created(self, path: str, *, was_found: bool) -> bool:
        """Return whether the cluster may still create an object after it was found and deleted, or was not found.

        An object that was found is the outcome of its only request, if that one was not answered.
        """
        unanswered = self.sent[path] - self.answered[path]
        return unanswered > 0 and not (was_found and self.sent[path] == 1)


def is_final(error: ApiError) -> bool:
    """Return whether a refusal shows that its request changed nothing and will not."""
    return error.status not in _OUTCOME_UNKNOWN or _NOT_STORED.search(error.message) is not None
