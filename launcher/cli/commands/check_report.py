"""Reports of `recipes check`: for people, for programs and for GitHub Actions."""

import re
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from launcher.api import listing
from launcher.api.checking import Checked
from launcher.common import console
from launcher.common.paths import CHECKOUT, COLLECTION
from launcher.common.problems import Problem
from launcher.common.texts import counted, first_of

_PLACE = re.compile(r"(.+\.ya?ml):(\d+)(?::(\d+))?")
_MIB = 1024
"""KiB per MiB. Source: getrusage(2), ru_maxrss."""
_MOST_SHOWN = 4
"""Maximum number of instance types named in one line."""


def counted_off(results: Iterable[Checked]) -> list[Checked]:
    """Return the results of every recipe of the catalogue; on a terminal, show the progress."""
    found: list[Checked] = []
    recipes: set[str] = set()
    total = len(listing.every())
    with console.progress("recipes checked") as show:
        for result in results:
            found.append(result)
            recipes.add(result.recipe)
            show(len(recipes), total)
    return found


def report(results: Sequence[Checked]) -> None:
    """Print every Problem once, with its recipe and instance types; for valid recipes, a line of their own."""
    is_swept = len(results) > len({result.recipe for result in results})
    for result in results:
        if not result.problems and not is_swept:
            _say_right(result)
    places = _places(results)
    recipes_of: dict[str, list[str]] = {}
    for recipe, text in places:
        recipes_of.setdefault(text, []).append(recipe)
    for text, recipes in recipes_of.items():
        if len(recipes) > 1:
            console.show_problem(text)
            console.say(f"     in {len(recipes)} recipes: {first_of(recipes, _MOST_SHOWN)}", stderr=True)
    shown = ""
    for (recipe, text), (_, types) in places.items():
        if len(recipes_of[text]) > 1:
            continue
        if recipe != shown:
            console.say(recipe, "bold", stderr=True)
            shown = recipe
        console.show_problem(text)
        if types and len(results) > 1:
            console.say(f"     on {first_of(types, _MOST_SHOWN)}", stderr=True)


def _say_right(result: Checked) -> None:
    where = f" on {result.instance_type}" if result.instance_type else ""
    kind = "elastic, " if result.is_elastic else ""
    console.say(f"ok  {result.recipe}  {kind}{counted(result.num_sizes, 'size')}{where}")
    console.show_notice(*result.notices)


def count(results: Sequence[Checked]) -> None:
    """Print how many Problems there are, if any."""
    if num_problems := _num_distinct(results):
        num_faulty = sum(bool(result.problems) for result in results)
        where = f" in {num_faulty} of {len(results)} recipes" if len(results) > 1 else ""
        console.say(f"{counted(num_problems, 'problem')}{where}", stderr=True)


def summarize(results: Sequence[Checked], seconds: float) -> None:
    """Print a summary: what was checked, its cost, the number of Problems, and how many jobs have each notice."""
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB
    num_problems, recipes = _num_distinct(results), {result.recipe for result in results}
    sizes = sum(result.num_sizes for result in results)
    said = f"{len(recipes)} recipes, {len(results)} jobs, {sizes} sizes in {seconds:.1f} s, {peak_mib:.0f} MiB"
    console.say(f"{said}: {counted(num_problems, 'problem')}", "bold red" if num_problems else "bold green")
    num_jobs = Counter(code for result in results for code in {notice.code for notice in result.notices})
    if num_jobs:
        listed = ", ".join(f"{code} on {number} jobs" for code, number in sorted(num_jobs.items()))
        console.say(f"notes: {listed}; recipes rules explains them", "dim")


def annotate(results: Sequence[Checked]) -> None:
    """Print every Problem as an error at its file and line.

    Source: GitHub Actions, Workflow commands: setting an error message.
    """
    for (recipe, text), (result, types) in _places(results).items():
        problem = next(p for p in result.problems if str(p) == text)
        file, line = _file_and_line(problem, result)
        where = f" ({', '.join(types)})" if types else ""
        place = f"file={_escaped(file, ',:')}" + (f",line={line}" if line else "")
        title = _escaped(f"{problem.code} {problem.path}", ",:")
        print(f"::error {place},title={title}::{_escaped(f'{recipe}{where}: {text}')}")


def _escaped(text: str, more: str = "") -> str:
    """Return a text escaped for a workflow command. Source: GitHub's actions/toolkit, command.ts."""
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _file_and_line(problem: Problem, result: Checked) -> tuple[str, int | None]:
    """Return where a Problem's value was set, else the recipe; a path in a checkout starts at its root."""
    match = _PLACE.fullmatch(problem.where or "") or _PLACE.fullmatch(problem.path)
    path = COLLECTION / match[1] if match else result.path
    root = CHECKOUT or COLLECTION.parent
    return str(path.relative_to(root) if path.is_relative_to(root) else path), int(match[2]) if match else None


def as_json(results: Sequence[Checked]) -> dict[str, Any]:
    """Return the results as plain data."""
    return {
        "num_problems": _num_distinct(results),
        "checked": [
            {
                "recipe": result.recipe,
                "instance_type": result.instance_type,
                "is_elastic": result.is_elastic,
                "num_sizes": None if result.problems else result.num_sizes,
                "problems": result.problems,
                "notices": result.notices,
            }
            for result in results
        ],
    }


def _num_distinct(results: Sequence[Checked]) -> int:
    return len({str(problem) for result in results for problem in result.problems})


def _places(results: Sequence[Checked]) -> dict[tuple[str, str], tuple[Checked, list[str]]]:
    """Return each recipe and Problem, as text, to the first job that has it and the instance types of all."""
    found: dict[tuple[str, str], tuple[Checked, list[str]]] = {}
    for result in results:
        for problem in result.problems:
            _, types = found.setdefault((result.recipe, str(problem)), (result, []))
            if result.instance_type and result.instance_type not in types:
                types.append(result.instance_type)
    return found
