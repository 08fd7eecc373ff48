"""Counts the assertions of the test suite, so that a change to its structure can prove that it loses none.

`python benchmarks/assertions.py` collects every test and prints as JSON: the test cases, the assertion statements in
the files under tests/, and the sum over all cases of the statements that a case can reach. A case reaches those of
its function, of its fixtures, and of every function under tests/ that one of these names. `assert` and
`pytest.raises` count as assertions.
"""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent / "tests"


def is_assertion(node: ast.AST) -> bool:
    """Return whether a node of a syntax tree is an assertion."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("pytest.raises", "pytest.fail")
    return isinstance(node, ast.Assert)


class Reached:
    """Finds the assertion statements that a function can reach, each as its file and line."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[frozenset[tuple[str, int]], tuple[Any, ...]]] = {}

    def by(self, functions: list[Callable[..., Any]]) -> set[tuple[str, int]]:
        """Return the statements that these functions reach together."""
        found: set[tuple[str, int]] = set()
        seen: set[int] = set()
        waiting: list[Any] = list(functions)
        while waiting:
            each = inspect.unwrap(waiting.pop())
            if id(each) in seen or not _is_of_tests(each):
                continue
            seen.add(id(each))
            statements, named = self._of(each)
            found |= statements
            waiting += named
        return found

    def _of(self, each: Any) -> tuple[frozenset[tuple[str, int]], tuple[Any, ...]]:
        """Return the statements inside a function or class, and the functions and classes that it names."""
        if each not in self._known:
            lines, first = inspect.getsourcelines(each)
            tree = ast.parse(textwrap.dedent("".join(lines)))
            file = inspect.getsourcefile(each) or ""
            inside = frozenset((file, first + node.lineno) for node in ast.walk(tree) if is_assertion(node))
            self._known[each] = inside, tuple(_named(tree, each))
        return self._known[each]


def _named(tree: ast.AST, owner: Any) -> Iterator[Any]:
    """Yield the functions and classes that a syntax tree names, as its module sees them."""
    names = vars(sys.modules[owner.__module__])
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found = names.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = getattr(names.get(node.value.id), node.attr, None)
        else:
            continue
        if inspect.isfunction(found) or inspect.isclass(found):
            yield found


def _is_of_tests(each: Any) -> bool:
    if not isinstance(each, FunctionType | type):
        return False
    module = sys.modules.get(each.__module__)
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(TESTS)


class Counter:
    """A pytest plugin that counts collected tests."""

    def __init__(self) -> None:
        self.cases, self.reachable = 0, 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the cases, and what each can reach."""
        reached = Reached()
        for item in session.items:
            assert isinstance(item, pytest.Function)
            definitions = item._fixtureinfo.name2fixturedefs.values()
            functions = [item.function, *(each.func for defined in definitions for each in defined)]
            inner = getattr(getattr(item.function, "hypothesis", None), "inner_test", None)
            self.reachable += len(reached.by([*functions, *([inner] if inner else [])]))
        self.cases = len(session.items)


def statements() -> int:
    """Return the number of assertion statements under tests/."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py"))
    return sum(is_assertion(node) for tree in trees for node in ast.walk(tree))


def main() -> int:
    """Print the three numbers."""
    counter = Counter()
    code = pytest.main(["--collect-only", "-qq", "--no-summary", str(TESTS)], plugins=[counter])
    print(json.dumps({"cases": counter.cases, "statements": statements(), "reachable": counter.reachable}))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
