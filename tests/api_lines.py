"""The Python API beside the command lines of `command_lines.py`: the same input has the same Problems."""

import contextlib
import datetime
import decimal
import enum
import fractions
import io
import json
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import launcher
from launcher.model import context


class _Kind(str, enum.Enum):  # noqa: UP042 - its text is not its value
    A = "x"


class _Shy:
    def __repr__(self) -> str:
        raise RuntimeError("has no repr")


def _endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


OBJECTS = (
    *(float("nan"), float("inf"), -0.0, 5e-324, 10**5000, -(10**400), True, (), (1, "a"), b"x", {1}, 1j, ..., int),
    *(Path("/data/x y"), _Kind.A, enum.IntEnum("Level", "LOW").LOW, object(), _Shy(), _endless(), range(3)),
    *(datetime.date(2026, 1, 1), decimal.Decimal("0.1"), fractions.Fraction(1, 3), iter("ab"), "a" * 70_000),
    *({1: 2}, {"a.b/c": "x"}, {"a b": 1}, {None: 1}, {True: 1}, {"it's": ["a, 'b'", '"', "${x}"]}, {"": {}}, [[[]]]),
)
"""Values that a recipe does not have, most of which no command line can state."""
KEYS = (None, 3, "", "a b", "a=b", "++a", "~a", "a.", "größe", "a" * 3000, "recipes", "cluster", ("a",), b"a", _Shy())
RECIPES = (
    None,
    3,
    b"tiny_lm_cpu",
    "",
    "tiny_lm_cpu@2",
    "a\0b",
    "\ud800",
    "${x}",
    "own.yaml",
    Path("own.yaml"),
    ["a"],
)


def hostile(pick: random.Random, known: Mapping[str, Any], data: Callable[[], Any]) -> dict[Any, Any]:
    """Return overrides as values: some keys that exist, and values of every kind."""
    found = {}
    for _ in range(pick.choice((1, 1, 2, 3))):
        key = pick.choice(KEYS) if pick.random() < 0.1 else pick.choice(list(known)).removeprefix("recipes.")
        found[key] = pick.choice(OBJECTS) if pick.random() < 0.4 else data()
    return found


def fault_of_values(recipe: Any, overrides: Any, run: Callable[[Sequence[str]], int]) -> str:
    """Return how the Problems of values differ from those of the words that state them, or what else is wrong.

    Args:
        run: Runs words of `recipes` in this process; returns the exit code.
    """
    out = io.StringIO()
    with mock.patch.object(context, "random_suffix", lambda: "x068q"), contextlib.redirect_stdout(out):
        plan, fault = _compiled(recipe, overrides)
        if fault or not plan.overrides:  # what no word can state
            return fault
        run(["check", str(plan.recipe), *plan.overrides[1:], "--json"])
    (checked,) = json.loads(out.getvalue())["checked"]
    found = [vars_of(problem) for problem in plan.problems]
    return "" if checked["problems"] == found else f"{checked['problems']}\nis not\n{found}"


def fault_of_words(words: Sequence[str], code: int, err: str) -> str:
    """Return how the Problems of a launch from Python differ from those of `main.py` with the same words.

    Args:
        code: Exit code of `main.py`.
        err: What it wrote to standard error.
    """
    plan, fault = _compiled(words[0].removeprefix("recipes=").strip("'"), words[1:])
    if fault or plan is None or plan.overrides[:1] != tuple(words[:1]):
        return fault
    problems = plan.problems or _refused(lambda: plan.files)
    text = "\n".join(map(str, problems)).encode("utf-8", "backslashreplace").decode()
    if bool(problems) == (code == 0) or err.split()[: len(text.split())] != text.split():
        return f"exit code {code}\n{err}\nis not\n{text}"
    return ""


def vars_of(problem: Any) -> dict[str, Any]:
    """Return a Problem as `--json` prints it."""
    fields = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    return json.loads(json.dumps(fields, default=str))


def _compiled(recipe: Any, overrides: Any) -> tuple[Any, str]:
    """Compile; return the plan, and what is wrong with how that ended. Nothing may be printed or written."""
    before, out = sorted(Path.cwd().iterdir()), io.StringIO()
    plan = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            plan = launcher.compile(recipe, overrides, strict=False)
            plan._repr_html_()
    except Exception:
        return plan, traceback.format_exc()
    if out.getvalue() or sorted(Path.cwd().iterdir()) != before:
        return plan, f"printed {out.getvalue()}, or wrote"
    return plan, ""


def _refused(use: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        use()
    except launcher.ProblemsFound as error:
        return error.problems
    return ()
