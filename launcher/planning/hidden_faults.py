"""Faults that others hide: what does not compose is composed and checked again without what is known to be faulty."""

import itertools
import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.common.problems import Problem, ProblemsFound, shown
from launcher.config.collection import GROUPS
from launcher.config.overrides import SEARCH_PATH, is_key, placed, typed_key
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
    """Keys of which the values are not known: of overrides that were left out, and those that a file leaves out."""
    choices: list[list[str]]
    """What may be meant by each choice of a recipe or cluster that does not exist, or is misspelt."""


class Tried(NamedTuple):
    """A command line that was composed and checked."""

    words: list[str]
    composes: bool
    problems: Sequence[Problem]


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
        tried = _tried(mended, faults_of)
        composed = [each for each in tried if each.composes]
        if not composed and any(each.code in (_MISSING, _NO_REFERENCE) for each in known):
            break  # all of them are found together: further ones follow from what stands for the first
        first, *others = composed or tried
        shared = [{(each.code, each.path) for each in other.problems} for other in others]
        new = [each for each in first.problems if all((each.code, each.path) in faults for faults in shared)]
        if mended.choices:  # what files of a recipe or cluster lack that is only guessed is no fault yet
            new = [each for each in new if each.path in GROUPS or (each.where or "").partition("=")[0] in typed]
        new = [each for each in new if each not in known]
        known += new
        if composed:
            return tuple(known), first.words
        if not new:
            break
    return tuple(known), overrides


def _tried(mended: Mended, faults_of: Callable[[Sequence[str], Sequence[str]], Sequence[Problem]]) -> list[Tried]:
    """Return a command line tried with each choice; if none composes, with the keys left out, too, but no values."""
    found: list[Tried] = []
    for stand_ins in ([], [f"++{key}=null" for key in mended.suspects if is_key(key)]):
        for chosen in itertools.product(*mended.choices):
            words = [*mended.words, *stand_ins, *chosen]
            try:
                found.append(Tried(words, True, faults_of(words, mended.suspects)))
            except ProblemsFound as error:
                found.append(Tried(words, False, error.problems))
        if any(each.composes for each in found):
            break
    return found


def _mended(overrides: Sequence[str], problems: Sequence[Problem]) -> Mended | None:
    """Return overrides without the faulty ones; None if a Problem is of a choice of files, or not of an override."""
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
        elif any(each.code in _OF_CHOICES for each in own) or key in (*GROUPS, SEARCH_PATH) or re.search("[/@]", key):
            return None
        else:
            mended.suspects.append(key)
    for problem in remaining:
        if problem.code != _MISSING:  # references of a file may multiply once one of them is left out
            return None
        mended.suspects.append(problem.path)
    references = [f"${{{key}}}" for key in mended.suspects]
    mended.suspects.extend(
        placed(typed_key(word)) for word in mended.words if any(map(word.__contains__, references))
    )
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
