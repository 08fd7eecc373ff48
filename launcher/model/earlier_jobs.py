"""`after=…`: the submitted jobs that a job waits for, as a user names them."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from launcher.common.problems import Problem
from launcher.model.job_spec import Bundle, JobHandle, JobState

KEY = "after"
Condition = Literal["ok", "any", "notok"]
"""How an earlier job must end: successfully, in any way, or in another way than successfully."""
_FULFILLED: dict[Condition, frozenset[JobState]] = {
    "ok": frozenset({JobState.SUCCEEDED}),
    "any": frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}),
    "notok": frozenset({JobState.FAILED, JobState.CANCELLED}),
}


class Wait(NamedTuple):
    """A job to wait for, by its name or its bundle's folder."""

    condition: Condition
    name: str

    def is_fulfilled_by(self, state: JobState) -> bool:
        """Return whether a job that has ended in a state has ended as required."""
        return state in _FULFILLED[self.condition]


class EarlierJob(NamedTuple):
    """A submitted job that has not ended, and for which another waits."""

    condition: Condition
    handle: JobHandle


class QueuedJob(NamedTuple):
    """A bundle, on disk, to submit."""

    bundle: Bundle
    after: tuple[EarlierJob, ...] = ()
    """The jobs that it waits for; those that have ended as required are left out."""
    problems: tuple[Problem, ...] = ()
    """Why it must not be submitted, unless its job exists already."""


def waits(value: object) -> tuple[Wait, ...]:
    """Return the jobs to wait for, each once, from the value of the key: `a`, `a,any:b`, a list, or None.

    Raises:
        ValueError: A name is empty or has a control character.
    """
    if value is None:
        return ()
    words = value.split(",") if isinstance(value, str) else value
    listed = words if isinstance(words, Sequence) else [words]
    return tuple(dict.fromkeys(_wait(str(word).strip()) for word in listed))


def _wait(word: str) -> Wait:
    condition, colon, name = word.partition(":")
    if not colon or condition not in _FULFILLED:
        condition, name = "ok", word
    if not name or re.search(r"[\x00-\x1f\x7f]", name):
        raise ValueError("must name jobs: JOB, any:JOB, notok:JOB, or a list of them")
    return Wait(cast("Condition", condition), name)


def checked(value: str | list[str] | None) -> str | list[str] | None:
    """Return the value of the key as it is.

    Raises:
        ValueError: As `waits`.
    """
    waits(value)
    return value
