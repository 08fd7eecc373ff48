"""Answers about a cluster itself, such as its partitions, which hold for a while."""

import functools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.backends.slurm.place import Place
from launcher.backends.slurm.programs import Answer, fields

_FRESH_S = 30.0
"""Age up to which an answer about partitions and accounts counts: a sweep submits many jobs."""
_Key = tuple[Place, str | None, tuple[str, ...]]


class Recent:
    """Remembers answers. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[_Key, tuple[float, Answer]] = {}

    def ask(self, place: Place, *words: str) -> Answer:
        """Return the answer of a command at a place that is at most _FRESH_S old."""
        if answer := self._known(place, words):
            return answer
        answer = place.run(*words)
        if not answer.code:
            with self._lock:
                self._answers[_key(place, words)] = (time.monotonic(), answer)
        return answer

    def ask_all(self, place: Place, *commands: tuple[str, ...]) -> list[Answer]:
        """Return the answers of several commands, which run at the same time."""
        if all(self._known(place, words) for words in commands):
            return [self.ask(place, *words) for words in commands]
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda words: self.ask(place, *words), commands))

    def _known(self, place: Place, words: tuple[str, ...]) -> Answer | None:
        with self._lock:
            asked_s, answer = self._answers.get(_key(place, words), (0.0, None))
        return answer if time.monotonic() - asked_s <= _FRESH_S else None


def _key(place: Place, words: tuple[str, ...]) -> _Key:
    """Return the key of an answer: a process may use several clusters."""
    return (place, os.environ.get("SLURM_CONF"), words)


RECENT = Recent()


CONFIG = ("scontrol", "show", "config")


def configured(key: str, place: Place) -> str:
    """Return a value of Slurm's configuration, in lower case; "" if unknown."""
    return _settings(RECENT.ask(place, *CONFIG).out).get(key, "").lower()


@functools.lru_cache(maxsize=8)
def _settings(text: str) -> Mapping[str, str]:
    parts = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in parts if equals}


@functools.lru_cache(maxsize=8)
def records(text: str) -> Sequence[Mapping[str, str]]:
    """Return what `scontrol --oneliner` shows, each line as its fields."""
    return [fields(line) for line in text.splitlines()]
