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
import resource
import signal
import sys
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
MEMORY_BYTES = 4 << 30
BROKEN = 70
"""Exit code of a fork that could not judge its mutant."""
KILLED, SURVIVED, UNREACHED = "killed", "survived", "unreached"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutate", help="path of the module")
    parser.addoption("--mutants-out", help="file for the results")
    parser.addoption("--mutants-only", default="", help="only mutants whose function has this in its name")


def pytest_configure(config: pytest.Config) -> None:
    """Make hypothesis repeat itself, so that a mutant is not killed by luck."""
    profile = hypothesis.settings.get_profile("any-load")
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", profile, derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutation")
    if config.getoption("--mutate", default=None):
        config.pluginmanager.register(Session(config))


class Session:
    """Runs the tests once as they are and once for each mutant.

    Args:
        config: Of pytest.
    """

    def __init__(self, config: pytest.Config):
        self.path = ROOT / config.getoption("--mutate")
        self.out = Path(config.getoption("--mutants-out"))
        self.only = config.getoption("--mutants-only")
        self.tree = ast.parse(self.path.read_text(), str(self.path))
        self.seconds: dict[str, float] = {}
        self.lines: dict[int, set[str]] = {}
        self.kills: Counter[tuple[str, str]] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        found = [m for m in mutants(self.tree) if self.only in m.function]
        self.items = {item.nodeid: item for item in session.items}
        began = time.perf_counter()
        self._baseline(session)
        figures = f"{len(found)} mutants, {len(session.items)} tests in {time.perf_counter() - began:.0f} s"
        print(f"\n{self.path.relative_to(ROOT)}: {figures}", flush=True)
        self.functions, self.caches = _functions(self.path), _caches()
        gc.collect()
        gc.freeze()
        results = []
        for mutant in found:
            state, by = self._judge(mutant)
            if state != KILLED:
                print(f"{state} {mutant.function}:{mutant.first_line} {mutant.text}", flush=True)
            results.append({"function": mutant.function, "text": mutant.text, "state": state, "by": by})
        self._control()
        left_out = sorted(name for name, seconds in self.seconds.items() if seconds > SLOWEST_S)
        done = {"seconds": time.perf_counter() - began, "left_out": left_out, "mutants": results}
        self.out.write_text(json.dumps(done, indent=1))
        return True

    def _baseline(self, session: pytest.Session) -> None:
        """Run every test as it is; note its time and the lines of the module that it reaches."""
        measured = coverage.Coverage(data_file=None, include=[str(self.path)], branch=False, config_file=False)
        measured.start()
        for item, following in zip(session.items, [*session.items[1:], session.items[-1]], strict=True):
            measured.switch_context(item.nodeid)
            began = time.process_time()
            reports = runtestprotocol(item, nextitem=following, log=False)
            self.seconds[item.nodeid] = time.process_time() - began
            if failed := [report for report in reports if report.failed]:
                raise pytest.UsageError(f"{item.nodeid} fails without a mutant:\n{failed[0].longreprtext}")
        measured.stop()
        contexts = measured.get_data().contexts_by_lineno(str(self.path))
        self.lines = {line: {name for name in names if name} for line, names in contexts.items()}

    def _control(self) -> None:
        """Run all tests on the code as it is, in a fork as a mutant's: none may fail.

        Raises:
            pytest.UsageError: One failed, so that it is not known what killed the mutants.
        """
        names = [name for name in self.items if self.seconds[name] <= SLOWEST_S]
        for again in (False, True):
            if by := self._run(None, names, again=again):
                raise pytest.UsageError(f"without a mutant, {by} fails after the mutants")

    def _judge(self, mutant: Mutant) -> tuple[str, str]:
        """Return what became of a mutant, and the test that killed it."""
        reached = self._reaching(mutant)
        names = [name for name in reached if self.seconds[name] <= SLOWEST_S]
        if not names:
            return UNREACHED, ""
        names.sort(key=lambda name: (-self.kills[mutant.function, name], self.seconds[name]))
        by = self._run(mutant, names)
        if by is None:
            return SURVIVED, ""
        self.kills[mutant.function, by] += 1
        return KILLED, by

    def _reaching(self, mutant: Mutant) -> set[str]:
        """Return the tests that reach a mutant; of what runs at import, those that reach a use of it, or all."""
        spans = [(mutant.first_line, mutant.last_line)]
        if not mutant.function:
            names = _depending(self.tree, mutant)
            used = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id in names)
            spans = [(node.lineno, node.end_lineno or node.lineno) for node in used]
        numbers = {line for first, last in spans for line in range(first, last + 1)}
        reached = set().union(*(self.lines.get(line, set()) for line in numbers))
        return reached if mutant.function or reached else set(self.items)

    def _run(self, mutant: Mutant | None, names: list[str], *, again: bool = False) -> str | None:
        """Run tests in a fork; return the one that fails, or what ended the fork.

        Args:
            mutant: What is wrong there; None leaves the code as it is.
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
            again = not mutant.function or not _exchange(code, mutant.function, self.functions)
        if again:
            os._exit(_imported_again(self.path, code, names))
        for cache in self.caches:
            cache.cache_clear()
        items = [self.items[name] for name in names]
        items[0].session._setupstate.teardown_exact(items[0])
        for item, following in zip(items, [*items[1:], None], strict=True):
            if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
                os.write(writer, item.nodeid.encode())
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
    functions = (each for each in gc.get_objects() if type(each) is types.FunctionType)
    return [each for each in functions if each.__code__.co_filename == str(path)]


def _exchange(module: types.CodeType, name: str, functions: list[types.FunctionType]) -> bool:
    """Give the functions within `name` their code in a mutated module; return whether that was possible."""
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(module)}
    for function in functions:
        old = function.__code__
        if old.co_qualname == name or old.co_qualname.startswith(f"{name}.<locals>"):
            new = codes.get((old.co_qualname, old.co_firstlineno))
            if new is None or new.co_freevars != old.co_freevars:
                return False
            function.__code__ = new
    return True


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return inner + [each for one in inner for each in _codes(one)]


def _caches() -> list[Any]:
    """Return the caches of our functions, which may hold what a function returned before it was mutated."""
    caches = (each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper)
    return [each for each in caches if each.__module__.startswith("launcher")]


def _imported_again(path: Path, code: types.CodeType, names: list[str]) -> int:
    """Run tests after importing our modules again, the mutated one with `code`; return pytest's exit status."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_ours = file.startswith(f"{ROOT}/") and "/.venv/" not in file and "/benchmarks/" not in file
        if is_ours or name == "launcher" or name.startswith("launcher."):
            del sys.modules[name]
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> types.CodeType | None:
        return code if loader.path == str(path) else read(loader, fullname)

    SourceFileLoader.get_code = get_code
    return int(pytest.main(["-x", "-p", "no:cacheprovider", "-o", "timeout=0", *names], plugins=[_Profile()]))


class _Profile:
    """Chooses the profile of hypothesis in a fork, after the tests' own."""

    def pytest_collection(self) -> None:
        hypothesis.settings.load_profile("mutation")
