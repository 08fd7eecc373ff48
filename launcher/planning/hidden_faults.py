"""Faults of overrides that others hide: overrides that do not compose are read again without the faulty ones."""

import re
from collections.abc import Callable, Sequence

from launcher.common.problems import Problem, ProblemsFound, shown
from launcher.config.collection import GROUPS
from launcher.config.overrides import placed
from launcher.model.config_tree import related

_SET = re.compile(r"\+{0,2}([\w.]+)=(.*)", re.S)
_MEANT = re.compile(r"did you mean (.+)\?")
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
    unchanged = tuple(problems), overrides
    kept: list[str] = []
    suspects: list[str] = []
    meant: list[str] = []
    found: list[Problem] = []
    for word in overrides:
        own = [problem for problem in problems if _concerns(problem, word)]
        found += own
        match = _SET.fullmatch(word)
        if not own:
            kept.append(word)
            continue
        if match is None or shown(word) != word:  # its key is not known, or it may hold a secret that others repeat
            return unchanged
        key = placed(match[1])
        if suggested := [choice for problem in own for choice in _suggested(problem, match[2])]:
            if meant:
                return unchanged
            meant, guessed = suggested, [key] if key in GROUPS else []
            suspects += guessed
        elif key in GROUPS or any(related(key, each) for each in _DECISIVE):
            return unchanged
        else:
            suspects.append(key)
    if any(problem not in found for problem in problems):
        return unchanged
    lines = [[*kept, choice] for choice in meant] or [kept]
    try:
        first, *others = [faults_of(line) for line in lines]
    except ProblemsFound:
        return unchanged
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


def _concerns(problem: Problem, word: str) -> bool:
    """Return whether a Problem is of an override: of its key, or of its text."""
    text, key = shown(word), word.lstrip("+").partition("=")[0]
    return problem.where == text or problem.path.lstrip("+") in (key, placed(key), text.lstrip("+"))


def _suggested(problem: Problem, value: str) -> list[str]:
    """Return the choices of a recipe or cluster that a Problem suggests in place of an override."""
    found = _MEANT.fullmatch(problem.remedy or "")
    names = found[1].split(" or ") if found else []
    if problem.code == "E101":
        return [f"{name}={value}" for name in names if name in GROUPS]
    return [name for name in names if problem.code == "E005" and name.partition("=")[0] in GROUPS and "=" in name]
