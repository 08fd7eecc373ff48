"""Faults that others hide: what does not compose is composed and checked again without what is known to be faulty."""

import itertools
import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.common.problems import Problem, ProblemsFound, shown
from launcher.config.collection import GROUPS
from launcher.config.overrides import placed, typed_key
from launcher.config.parsing import joined

_MEANT = re.compile(r"did you mean (.+)\?")
_MOST_TRIED = 4
"""How often a command line is composed anew: malformed overrides hide faulty ones, and these the values of files."""
_OF_CHOICES = ("E005", "E101")
"""Codes of Problems of a choice that does not exist, or whose key is misspelt."""
_MISSING, _NO_REFERENCE = "E006", "E007"
"""Codes of Problems of a value that is missing, or refers to none."""


class Mended(NamedTuple):
    """A command line in which no override is known to be faulty."""

    words: list[str]
    suspects: list[str]
    """Keys whose values are not known: those of the overrides that were left out."""
    choices: list[list[str]]
    """What may be meant by each choice of a recipe or cluster that does not exist, or is misspelt."""


def added(
    problems: Sequence[Problem],
    overrides: Sequence[str],
    faults_of: Callable[[Sequence[str], Sequence[str]], Sequence[Problem]],
) -> tuple[tuple[Problem, ...], Sequence[str]]:
    """Return Problems that hide others, those that they hide too, and the overrides as mended.

    Of what may be meant by a choice, only the faults of overrides are added, and only those that all have.

    Args:
        overrides: The command line that has the Problems.
        faults_of: Returns the Problems of overrides, given keys of which the values are not known, or raises those
            for which they do not compose.
    """
    known, typed = [*problems], {word.partition("=")[0] for word in overrides}
    for _ in range(_MOST_TRIED):
        if (mended := _mended(overrides, known)) is None:
            break
        words, suspects, choices = mended
        lines = [[*words, *chosen] for chosen in itertools.product(*choices)]
        composes = True
        try:
            first, *others = [faults_of(line, suspects) for line in lines]
        except ProblemsFound as error:
            if any(each.code in (_MISSING, _NO_REFERENCE) for each in known):
                break  # all of them are found together: further ones follow from what stands for the first
            first, others, composes = error.problems, [], False
        shared = [{(each.code, each.path) for each in faults} for faults in others]
        new = [each for each in first if all((each.code, each.path) in faults for faults in shared)]
        if choices:  # what files of a recipe or cluster lack that is only guessed is no fault yet
            new = [each for each in new if each.path in GROUPS or (each.where or "").partition("=")[0] in typed]
        new = [each for each in new if each not in known]
        known += new
        if composes:
            return tuple(known), lines[0]
        if not new:
            break
    return tuple(known), overrides


def _mended(overrides: Sequence[str], problems: Sequence[Problem]) -> Mended | None:
    """Return overrides without the faulty ones; None if a Problem is not of one, nor of a missing value."""
    mended = Mended([], [], [])
    remaining, chosen = [*problems], {typed_key(word) for word in overrides}
    for word in joined(overrides)[0]:
        key = placed(typed_key(word)).lstrip("~")
        own = [each for each in problems if _is_of(each, word, key)]
        remaining = [each for each in remaining if each not in own]
        if not own:
            mended.words.append(word)
        elif meant := [*itertools.chain(*(_meant(each, word) for each in own))]:
            # The choice itself may be typed beside a misspelt one, which is then not read.
            mended.choices.extend([meant] if key in GROUPS or chosen.isdisjoint(map(typed_key, meant)) else [])
        elif key in GROUPS:
            return None
        else:
            mended.suspects.append(key)
    for problem in remaining:
        if problem.code != _MISSING:  # references of a file may multiply once one of them is left out
            return None
        mended.words.append(f"++{problem.path}=null")
        mended.suspects.append(problem.path)
    return mended


def _meant(problem: Problem, word: str) -> list[str]:
    """Return the choices of a recipe or cluster that a Problem suggests in place of an override."""
    if problem.code not in _OF_CHOICES or not (found := _MEANT.fullmatch(problem.remedy or "")):
        return []
    names = [name for name in shlex.split(found[1]) if name != "or"]
    value = word.partition("=")[2]
    return [text for each in names if typed_key(text := each if "=" in each else f"{each}={value}") in GROUPS]


def _is_of(problem: Problem, word: str, key: str) -> bool:
    """Return whether a Problem is of an override: of its key, its text, or what a reference of another key lacks."""
    text = shown(word)
    is_cause = (problem.remedy or "").startswith(f"leave out {text},")
    return problem.path.lstrip("+") in (key, typed_key(word), text.lstrip("+")) or problem.where == text or is_cause
