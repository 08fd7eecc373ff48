"""Faults of overrides that others hide: overrides that do not compose are read again without the faulty ones."""

import re
from collections.abc import Callable, Sequence

from launcher.common.problems import Problem, ProblemsFound, shown
from launcher.common.suggestions import QUESTION
from launcher.config.collection import GROUPS
from launcher.config.overrides import placed, typed_key
from launcher.model.config_tree import related

_SET = re.compile(r"\+{0,2}([\w.]+)=(.*)", re.S)
_DECISIVE = (
    *("cluster_type", "cluster.contract", "hydra", "rehearse"),
    *("recipes.extra_keys", "recipes.run.model_type", "recipes.training_cfg"),
)
"""Keys of which the values decide what other keys there are, or set them."""


def with_hidden(
    problems: Sequence[Problem],
    overrides: Sequence[str],
    faults_of: Callable[[Sequence[str]], Sequence[Problem]],
) -> tuple[tuple[Problem, ...], Sequence[str]]:
    """Return Problems of a command line and what they hide, and the command line without what is faulty.

    Only faults of a key or of the type of a value are added, which depend on no other override; none if an override
    is faulty that they may depend on.

    Args:
        overrides: The command line that has the Problems.
        faults_of: Returns the faults of keys and types in overrides that compose; raises what keeps them from it.
    """
    if (mended := _mended(problems, overrides)) is None:
        return tuple(problems), overrides
    kept, meant, suspects = mended
    lines = [[*kept, choice] for choice in meant] or [kept]
    try:
        first, *others = [faults_of(line) for line in lines]
    except ProblemsFound:
        return tuple(problems), overrides
    shared = [{(each.code, each.path) for each in faults} for faults in others]
    literal = {word.partition("=")[0] for word in kept if "${" not in word}
    new = [
        each
        for each in first
        if (each.where or "").partition("=")[0] in literal
        and all((each.code, each.path) in faults for faults in shared)
        and not any(related(each.path, key) for key in suspects)
    ]
    return (*problems, *new), lines[0]


def _mended(problems: Sequence[Problem], overrides: Sequence[str]) -> tuple[list[str], list[str], list[str]] | None:
    """Return the overrides without fault, what may be meant by a faulty choice, and the keys that are not known.

    None if a Problem is not of an override, or others may depend on it.
    """
    kept: list[str] = []
    meant: list[str] = []
    suspects: list[str] = []
    remaining = [*problems]
    for word in overrides:
        if not (own := [problem for problem in problems if _concerns(problem, word)]):
            kept.append(word)
            continue
        remaining = [problem for problem in remaining if problem not in own]
        match = _SET.fullmatch(word)
        if match is None or shown(word) != word:  # its key is not known, or it may hold a secret that others repeat
            return None
        key, suggested = placed(match[1]), [choice for each in own for choice in _suggested(each, match[2])]
        if meant and suggested:
            return None
        if not suggested and (key in GROUPS or any(related(key, each) for each in _DECISIVE)):
            return None
        meant += suggested
        if not suggested or key in GROUPS:  # what a misspelt key chooses is known
            suspects.append(key)
    return None if remaining else (kept, meant, suspects)


def _concerns(problem: Problem, word: str) -> bool:
    """Return whether a Problem is of an override: of its key, or of its text."""
    text, key = shown(word), typed_key(word)
    return problem.where == text or problem.path.lstrip("+") in (key, placed(key), text.lstrip("+"))


def _suggested(problem: Problem, value: str) -> list[str]:
    """Return the choices of a recipe or cluster that a Problem suggests in place of an override."""
    found = QUESTION.fullmatch(problem.remedy or "")
    names = found[1].split(" or ") if found else []
    if problem.code == "E101":
        return [f"{name}={value}" for name in names if name in GROUPS]
    return [name for name in names if problem.code == "E005" and name.partition("=")[0] in GROUPS and "=" in name]
