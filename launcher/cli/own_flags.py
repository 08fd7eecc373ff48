"""The flags of `recipes run` and `main.py` that are not Hydra's: `--version` and `--name`."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.common.problems import Problem, ProblemsFound
from launcher.common.process import USER_ERROR

VERSION_FLAG, NAME_FLAG = "--version", "--name"


@dataclass(frozen=True, slots=True)
class OwnFlags:
    """The parsed flags, and the remaining words.

    Args:
        words: Overrides and Hydra's flags.
        name: The user's name for the job, if any.
        is_version: Whether to print only the version.
    """

    words: tuple[str, ...]
    name: str | None = None
    is_version: bool = False


def read(words: Sequence[str]) -> OwnFlags:
    """Read the launcher's own flags from a command line.

    Raises:
        ProblemsFound: --name has no value, is given twice, or would name several jobs.
    """
    left: list[str] = []
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == NAME_FLAG:
            names.append(_value(next(rest, None)))
        elif word.startswith(f"{NAME_FLAG}="):
            names.append(_value(word.partition("=")[2]))
        else:
            left.append(word)
    if len(names) > 1:
        raise _refused("is given twice; a job has one name", names[-1])
    if names and any(word == "-m" or _abbreviates(word, "--multirun") for word in left):
        raise _refused("names one job, but --multirun starts several", names[0])
    return OwnFlags(tuple(left), names[0] if names else None, any(_abbreviates(word, VERSION_FLAG) for word in left))


def _value(word: str | None) -> str:
    if not word or word.startswith("-"):
        raise _refused("has no value", word)
    return word


def _abbreviates(word: str, flag: str) -> bool:
    """Return whether a word is a flag, or a prefix that Hydra's parser would expand to one."""
    return len(word) > len("--") and flag.startswith(word)


def _refused(message: str, value: str | None) -> ProblemsFound:
    return ProblemsFound((Problem("E801", NAME_FLAG, message, value, remedy="--name my-run"),))


def serve(words: Sequence[str], run: Callable[..., int]) -> int:
    """Serve a command line with flags; return the exit code.

    Args:
        words: The arguments of `recipes run` or `main.py`.
        run: `launch.main`: called with the overrides of each job, and its name.
    """
    from launcher import identity
    from launcher.common import console

    try:
        own = read(words)
    except ProblemsFound as error:
        console.show_problems(error.problems)
        return USER_ERROR
    if own.is_version:
        console.say(identity())
        return 0
    if not any(word.startswith("-") for word in own.words):
        return run(own.words, own.name)
    from launcher.cli import launch_sweep
    from launcher.config import hydra_flags

    one = functools.partial(run, name=own.name)
    return hydra_flags.serve(functools.partial(launch_sweep.run, one), own.words)
