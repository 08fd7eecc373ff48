"""The command line of `recipes run` and `main.py`; of its flags, `--name` and `--version` are not Hydra's."""

import functools
from collections.abc import Sequence

from launcher import identity
from launcher.cli import launch
from launcher.common import console, redaction
from launcher.common.problems import ProblemsFound, fail
from launcher.common.process import USER_ERROR

_NAME = "--name"


def run(words: Sequence[str]) -> int:
    """Compile and launch what a command line names; return the exit code, the highest of several jobs'."""
    redaction.install()
    try:
        words, name = _without_name(words)
    except ProblemsFound as error:
        console.show_problems(error.problems)
        return USER_ERROR
    if any(_abbreviates(word, "--version") for word in words):
        console.say(identity())
        return 0
    if not any(word.startswith("-") for word in words):
        return launch.main(words, name)
    from launcher.api import flags, running
    from launcher.api.session import Session
    from launcher.cli import launch_sweep, searches

    one = functools.partial(launch.main, name=name)
    check = functools.partial(running.compiled, session=Session())
    return flags.serve(functools.partial(launch_sweep.run, one), searches.run, check, words)


def _without_name(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the other words of a command line, and the user's name for the job."""
    left: list[str] = []
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag != _NAME:
            left.append(word)
            continue
        given = value if equals else next(rest, None)
        if not given or given.startswith("-"):
            raise _refused("has no value", given)
        names.append(given)
    if len(names) > 1:
        raise _refused("is given twice; a job has one name", names[-1])
    if names and any(word == "-m" or _abbreviates(word, "--multirun") for word in left):
        raise _refused("names one job, but --multirun starts several", names[0])
    return left, names[0] if names else None


def _abbreviates(word: str, flag: str) -> bool:
    """Return whether a word is a flag, or a prefix that Hydra's parser would expand to one."""
    return len(word) > len("--") and flag.startswith(word)


def _refused(message: str, value: str | None) -> ProblemsFound:
    return fail("E801", _NAME, message, value=value, remedy="--name my-run")
