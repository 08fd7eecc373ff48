"""A pytest plugin that runs the collected tests against every mutant of one module.

The tests run once, with coverage, to learn which of them reach which line. Then each mutant gets a fork of this
process, in which only those tests run, until the first fails: nothing is imported or composed again. A function is
mutated by giving its code to the function that exists. What runs when a module is imported is mutated in a fork that
imports all of the project's modules again.
"""

import ast
import functools
import gc
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from benchmarks.mutation.operators import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
SLOWEST_S = 5.0
"""A test that takes longer, in seconds of CPU time, is left out: it runs jobs, and a mutant in those is not seen."""
MOST_TESTS = 120
"""Tests that a mutant of a function has to survive: those that go where few others go in its function come first."""
MEMORY_BYTES = 4 << 30
BROKEN = 70
"""Exit code of a fork that could not judge its mutant."""
MEASURED = pytest.StashKey[coverage.Coverage]()
AT_IMPORT = "import"
"""Placeholder for code that runs before the tests, among the tests that reach a line."""
KILLED, SURVIVED, UNREACHED = "killed", "survived", "unreached"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutate", action="append", default=[], help="path of a module, '=' and its tests")
    parser.addoption("--mutants-out", help="folder for the results")
    parser.addoption("--mutants-only", default="", help="only mutants whose function has this in its name")
    parser.addoption("--mutants-every", type=int, default=1, help="only one mutant out of so many")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Measure the modules from their import on."""
    targets = early_config.known_args_namespace.mutate
    if targets:
        paths = [str(ROOT / each.partition("=")[0]) for each in targets]
        measured = coverage.Coverage(data_file=None, include=paths, branch=False, config_file=False)
        measured.start()
        measured.switch_context(AT_IMPORT)
        early_config.stash[MEASURED] = measured


def pytest_configure(config: pytest.Config) -> None:
    """Make hypothesis repeat itself, so that a mutant is not killed by luck."""
    profile = hypothesis.settings.get_profile("long")
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", profile, derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutation")
    if targets := config.getoption("--mutate"):
        session = Session(
            config.stash[MEASURED],
            dict(each.split("=", 1) for each in targets),
            Path(config.getoption("--mutants-out")),
            config.getoption("--mutants-only"),
            config.getoption("--mutants-every"),
        )
        config.pluginmanager.register(session)


class Session:
    """Runs the tests once as they are, and those that concern it for each mutant.

    Args:
        measured: Measures the modules since they were imported.
        targets: Paths of modules, and the tests that concern each as targets.toml has them, separated by commas.
        out: Folder for the results.
        only: Part of the name of each mutated function.
        every: Only one mutant out of so many is judged.
    """

    def __init__(self, measured: coverage.Coverage, targets: dict[str, str], out: Path, only: str, every: int):
        self.measured = measured
        self.targets = {ROOT / path: tests.split(",") for path, tests in targets.items()}
        self.out, self.only, self.every = out, only, every
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if any(concerns(item.nodeid, tests) for tests in self.targets.values())]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        began = time.perf_counter()
        self._baseline(session)
        contexts = self.measured.get_data()
        print(f"\n{len(self.items)} tests in {time.perf_counter() - began:.0f} s", flush=True)
        fast = [name for name, seconds in self.seconds.items() if seconds <= SLOWEST_S]
        targets = []
        for path, tests in self.targets.items():
            names = [name for name in fast if concerns(name, tests)]
            targets.append(Target(path, names, contexts.contexts_by_lineno(str(path)), self))
        gc.collect()
        gc.freeze()
        for number, target in enumerate(targets):
            self.out.joinpath(f"{number}.json").write_text(json.dumps(target.judged(self.only, self.every)))
        return True

    def _baseline(self, session: pytest.Session) -> None:
        """Run every test on the unchanged code; record its time, and the lines of the modules that it reaches."""
        for item, following in zip(session.items, [*session.items[1:], session.items[-1]], strict=True):
            self.measured.switch_context(item.nodeid)
            began = time.process_time()
            reports = runtestprotocol(item, nextitem=following, log=False)
            self.seconds[item.nodeid] = time.process_time() - began
            if failed := [report for report in reports if report.failed]:
                raise pytest.UsageError(f"{item.nodeid} fails without a mutant:\n{failed[0].longreprtext}")
        self.measured.stop()


def concerns(name: str, tests: list[str]) -> bool:
    """Return whether a test is among `tests`: files, each with a pattern of names after a blank if not all count."""
    for each in tests:
        file, _, pattern = each.partition(" ")
        if name.startswith(f"{file}::") and re.search(pattern, name):
            return True
    return False


class Target:
    """A module whose mutants are judged.

    Args:
        path: Of the module.
        names: Of the tests that concern it.
        contexts: Each line's tests.
        session: Has the tests.
    """

    def __init__(self, path: Path, names: list[str], contexts: dict[int, list[str]], session: Session):
        self.path, self.names = path, names
        self.tree = ast.parse(path.read_text(), str(path))
        self.items, self.seconds = session.items, session.seconds
        self.lines = {line: set(reaching).intersection(names) for line, reaching in contexts.items()}
        self.at_import = {line for line, reaching in contexts.items() if AT_IMPORT in reaching}
        self.kills: Counter[tuple[str, str]] = Counter()
        self.functions, self.caches = _functions(path), _caches(_dependents(path))

    def judged(self, only: str, every: int) -> dict[str, Any]:
        """Return what became of each mutant, and the seconds that it took."""
        began, results = time.perf_counter(), []
        print(f"\n{self.path.relative_to(ROOT)}", flush=True)
        for number, mutant in enumerate(mutants(self.tree)):
            if only in mutant.function and number % every == 0:
                state, by = self._judge(mutant)
                if state != KILLED:
                    print(f"{state} {mutant.function}:{mutant.first_line} {mutant.text}", flush=True)
                results.append({"function": mutant.function, "text": mutant.text, "state": state, "by": by})
        self._control()
        return {"seconds": time.perf_counter() - began, "mutants": results}

    def _control(self) -> None:
        """Run the tests on the unchanged code, in forks as for a mutant: none may fail.

        Raises:
            pytest.UsageError: One failed, so that it is not known what killed the mutants.
        """
        for again in (False, True):
            if by := self._run(None, self.names, again=again):
                how = "imported again" if again else "unchanged"
                raise pytest.UsageError(f"without a mutant, with the code {how}, a test fails: {by}")

    def _judge(self, mutant: Mutant) -> tuple[str, str]:
        """Return what became of a mutant, and the test that killed it."""
        names = list(self._reaching(mutant))
        if not names:
            return UNREACHED, ""
        rarity = self._rarity(mutant)
        names.sort(key=lambda name: (-self.kills[mutant.function, name], rarity.get(name, 0), self.seconds[name]))
        is_late = mutant.function and mutant.first_line not in self.at_import
        by = self._run(mutant, names[:MOST_TESTS] if is_late else names)
        if by is None:
            return SURVIVED, ""
        self.kills[mutant.function, by] += 1
        return KILLED, by

    def _rarity(self, mutant: Mutant) -> dict[str, int]:
        """Return for each test how many tests reach that line of the mutant's function which the fewest reach."""
        lines = [self.lines.get(line, set()) for line in mutant.body]
        found: dict[str, int] = {}
        for names in sorted(lines, key=len):
            for name in names:
                found.setdefault(name, len(names))
        return found

    def _reaching(self, mutant: Mutant) -> set[str]:
        """Return the tests that reach a mutant; for code run at import, those that reach a use of it, or all."""
        if mutant.function and mutant.first_line in self.at_import:
            return set(self.names)
        spans = [(mutant.first_line, mutant.last_line)]
        if not mutant.function:
            names = _depending(self.tree, mutant)
            used = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id in names)
            spans = [(node.lineno, node.end_lineno or node.lineno) for node in used]
        numbers = {line for first, last in spans for line in range(first, last + 1)}
        reached = set().union(*(self.lines.get(line, set()) for line in numbers))
        return reached if mutant.function or reached else set(self.names)

    def _run(self, mutant: Mutant | None, names: list[str], *, again: bool = False) -> str | None:
        """Run tests in a fork; return the one that fails, or what ended the fork.

        Args:
            mutant: The mutant to apply; None leaves the code unchanged.
            names: Of the tests, in their order.
            again: Whether to import the project's modules again.
        """
        cpu_s = 4 + 3 * sum(self.seconds[name] for name in names)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                self._in_fork(mutant, names, cpu_s, writer, again=again)
            except BaseException:
                os.write(writer, traceback.format_exc().encode())
            os._exit(BROKEN)  # a fork ends where its verdict is known
        os.close(writer)
        with open(reader) as stream:
            said = stream.read()
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == BROKEN:
            raise pytest.UsageError(f"{mutant and mutant.text} cannot be judged:\n{said}")
        return None if status == 0 else said or f"the process ended with status {status}"

    def _in_fork(self, mutant: Mutant | None, names: list[str], cpu_s: float, writer: int, *, again: bool) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(60 + 10 * cpu_s))
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if mutant:
            mutant.place.put(mutant.replacement)
        code = compile(self.tree, str(self.path), "exec")
        if mutant:
            is_late = bool(mutant.function) and mutant.first_line not in self.at_import
            again = not (is_late and _exchange(code, mutant.function, self.functions))
        if again:
            os._exit(_imported_again(self.path, code, names))
        for cache in self.caches:
            cache.cache_clear()
        items = [self.items[name] for name in names]
        items[0].session._setupstate.teardown_exact(items[0].parent)  # that item too: it may be the last that ran
        for item, following in zip(items, [*items[1:], None], strict=True):
            reports = runtestprotocol(item, nextitem=following, log=False)
            if failed := [report.longreprtext for report in reports if report.failed]:
                os.write(writer, (item.nodeid if mutant else failed[0]).encode())
                os._exit(1)
        os._exit(0)


def _depending(tree: ast.Module, mutant: Mutant) -> set[str]:
    """Return the module's names whose values depend on the mutated statement; none for an attribute of a class."""
    names = _assigned(mutant.place.statement) if mutant.place.statement in tree.body else set()
    size = -1
    while size != len(names):
        size = len(names)
        for statement in tree.body:
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if used & names:
                names |= _assigned(statement)
    return names


def _assigned(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}


def _functions(path: Path) -> list[types.FunctionType]:
    """Return the functions that exist of a module, those of other modules' tables and decorators included."""
    gc.unfreeze()  # what is frozen is not listed, and tests/conftest.py freezes what was imported
    functions = (each for each in gc.get_objects() if type(each) is types.FunctionType)
    return [each for each in functions if each.__code__.co_filename == str(path)]


def _exchange(module: types.CodeType, name: str, functions: list[types.FunctionType]) -> bool:
    """Give the functions within `name` their code in a mutated module; return whether that was possible."""
    codes, is_known = {(code.co_qualname, code.co_firstlineno): code for code in _codes(module)}, False
    for function in functions:
        old = function.__code__
        if old.co_qualname == name or old.co_qualname.startswith(f"{name}.<locals>"):
            new = codes.get((old.co_qualname, old.co_firstlineno))
            if new is None or new.co_freevars != old.co_freevars:
                return False
            function.__code__, is_known = new, is_known or old.co_qualname == name
    return is_known


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return inner + [each for one in inner for each in _codes(one)]


def _dependents(path: Path) -> set[str]:
    """Return the names of the imported modules that import a module, directly or not, and its own."""
    imports: dict[str, set[str]] = {}
    own = ""
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None) or ""
        if name.startswith("launcher") and file.endswith(".py"):
            own = name if file == str(path) else own
            imports[name] = _imports(ast.parse(Path(file).read_text()))
    found, size = {own}, 0
    while size != len(found):
        size = len(found)
        found |= {name for name, used in imports.items() if used & found}
    return found


def _imports(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return names


def _caches(modules: set[str]) -> list[Any]:
    """Return the caches of modules: they may hold what a function returned before it was mutated."""
    caches = (each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper)
    return [each for each in caches if each.__module__ in modules]


def _imported_again(path: Path, code: types.CodeType, names: list[str]) -> int:
    """Run tests after importing our modules again, the mutated one with `code`; return pytest's exit status."""
    os.chdir(ROOT)  # the last test's folder is still the current one
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_ours = file.startswith(f"{ROOT}/") and "/.venv/" not in file and "/benchmarks/" not in file
        if is_ours or name == "launcher" or name.startswith("launcher."):
            del sys.modules[name]
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> types.CodeType | None:
        return code if loader.path == str(path) else read(loader, fullname)

    SourceFileLoader.get_code = get_code
    options = ["-x", "-p", "no:cacheprovider", "-o", "timeout=0", "--basetemp", tempfile.mkdtemp()]
    return int(pytest.main([*options, *names], plugins=[_Profile()]))


class _Profile:
    """Chooses the profile of hypothesis in a fork, after the tests' own."""

    def pytest_collection(self) -> None:
        hypothesis.settings.load_profile("mutation")
