"""Runs Slurm's own commands. Their failures become Problems with Slurm's reason."""

import os
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launcher.common.problems import ProblemsFound, fail

_PATIENCE_S = 120.0
"""Time limit of a command: Slurm's own commands wait for a controller that restarts."""
_FRESH_S = 30.0
"""Age up to which an answer about partitions and accounts counts: a sweep submits many jobs."""
_UNREACHABLE = ("Unable to contact slurm controller", "Connection refused", "Connection timed out", "Zero Bytes were")
"""Parts of Slurm's messages about a controller that does not answer."""
_INHERITED = ("SBATCH_", "SLURM_")
"""Variables that would override the options of a batch script, or describe a job that this process runs in."""
_KEPT = ("SLURM_CONF",)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command.

    Args:
        code: Its exit code; 127 if it is not installed.
        out: Its standard output.
        error: Its standard error, without the command's name in front of lines.
    """

    code: int
    out: str
    error: str

    @property
    def is_unreachable(self) -> bool:
        """Whether the controller did not answer."""
        return self.code != 0 and any(words in self.error for words in _UNREACHABLE)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: this process's, without options and jobs of Slurm."""
    own = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_INHERITED)}
    return {**own, **more}


def run(*words: str, folder: Path | None = None, env: Mapping[str, str] | None = None, text: str = "") -> Answer:
    """Run a command of Slurm and return its answer.

    Args:
        words: The command.
        folder: Its working folder; None for this process's.
        env: Further variables.
        text: Its standard input.

    Raises:
        ProblemsFound: It did not end in time (E447).
    """
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment(env or {}),
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
        )
    except (FileNotFoundError, PermissionError):
        return Answer(127, "", f"{words[0]} is not installed on this machine")
    except subprocess.TimeoutExpired as error:
        raise fail("E447", "cluster", f"{words[0]} does not end after {_PATIENCE_S:g} s") from error
    lines = [line.removeprefix(f"{words[0]}: ").removeprefix("error: ") for line in done.stderr.splitlines()]
    return Answer(done.returncode, done.stdout, "\n".join(lines).strip())


class _Recent:
    """Answers about the cluster itself, which hold for a while. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[str | None, ...], tuple[float, Answer]] = {}

    def ask(self, *words: str) -> Answer:
        """Return the answer of a command that is at most _FRESH_S old."""
        if answer := self._known(words):
            return answer
        answer = run(*words)
        if not answer.code:
            with self._lock:
                self._answers[_key(words)] = (time.monotonic(), answer)
        return answer

    def ask_all(self, *commands: tuple[str, ...]) -> None:
        """Ask for several answers at the same time."""
        absent = [words for words in commands if not self._known(words)]
        if absent:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda words: self.ask(*words), absent))

    def _known(self, words: tuple[str, ...]) -> Answer | None:
        with self._lock:
            asked_s, answer = self._answers.get(_key(words), (0.0, None))
        return answer if time.monotonic() - asked_s <= _FRESH_S else None


def _key(words: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the key of an answer: a process may use several clusters."""
    return (os.environ.get("SLURM_CONF"), *words)


RECENT = _Recent()


def unanswered(words: str, answer: Answer) -> ProblemsFound:
    """Return the Problem that a command failed for a reason that is not the job's."""
    remedy = "try again when the controller answers: scontrol ping"
    if answer.code == 127:
        remedy = "launch on a login node of the cluster, where Slurm's commands are installed"
    return fail("E447", "cluster", f"{words}: {answer.error or f'exit code {answer.code}'}", remedy=remedy)
