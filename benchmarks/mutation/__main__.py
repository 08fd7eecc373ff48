"""Mutation testing: how many small faults in the code that decides, the tests notice.

    python -m benchmarks.mutation [PART OF A MODULE'S PATH ...] [--only FUNCTION] [--every N]

Prints every mutant that no test kills and a table of figures. The exit code is 1 if less than 85 % are killed, in one
module or in all, or if an entry of equivalent.toml is wrong: its mutant does not exist, or a test kills it.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutation.operators import mutants

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEAST_KILLED = 0.85


def targets() -> dict[str, list[str]]:
    """Return each mutated module's path and the tests that concern it."""
    return tomllib.loads((HERE / "targets.toml").read_text())["targets"]


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return why a mutant behaves as the code does, by module, function and text of the mutant."""
    named = tomllib.loads((HERE / "equivalent.toml").read_text())
    return {
        (module, function, entry["mutant"]): entry["reason"]
        for module, functions in named.items()
        for function, entries in functions.items()
        for entry in entries
    }


def unknown_equivalents() -> list[tuple[str, str, str]]:
    """Return the entries of equivalent.toml that are of no mutant."""
    known = {
        (module, mutant.function, mutant.text)
        for module in {module for module, _, _ in equivalents()} & set(targets())
        for mutant in mutants(ast.parse((ROOT / module).read_text()))
    }
    return [key for key in equivalents() if key not in known]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a module."""

    module: str
    mutants: int
    killed: int
    equivalent: int
    seconds: float
    mistaken: tuple[tuple[str, str], ...] = ()

    @property
    def share(self) -> float:
        """Part of the mutants that are not equivalent which a test kills; 1 if there are none."""
        others = self.mutants - self.equivalent
        return self.killed / others if others else 1.0

    def __str__(self) -> str:
        surviving = self.mutants - self.killed - self.equivalent
        counts = f"{self.mutants:8} {self.killed:7} {self.equivalent:11} {surviving:10} {self.share:7.1%}"
        return f"{self.module:48} {counts} {self.seconds:6.0f} s"


def groups(chosen: dict[str, list[str]]) -> list[dict[str, list[str]]]:
    """Return the modules in groups that share tests, each of which runs in one process."""
    found: list[dict[str, list[str]]] = []
    for module, tests in chosen.items():
        own = {module: tests}
        others = [group for group in found if _files(own) & _files(group)]
        for group in others:
            own = group | own
            found.remove(group)
        found.append(own)
    return found


def _files(group: dict[str, list[str]]) -> set[str]:
    return {each.partition(" ")[0] for tests in group.values() for each in tests}


def measure(group: dict[str, list[str]], only: str, every: int) -> Iterator[Row]:
    """Run the tests of modules against their mutants; yield the figures of each."""
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(_files(group))
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "benchmarks.mutation.session", *files]
        options = ["-o", "timeout=0", "-p", "no:cacheprovider", "-o", "tmp_path_retention_policy=none"]
        mutated = [f"--mutate={module}={','.join(tests)}" for module, tests in group.items()]
        own = [*mutated, "--mutants-out", folder, "--mutants-only", only, "--mutants-every", str(every)]
        # Other runs of pytest clean up beside theirs: a folder of its own is left alone.
        own += ["--basetemp", f"{folder}/tests"]
        # A fork has none of the threads that OpenMP made before it, and would wait for them for ever.
        env = {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *options, *own], cwd=ROOT, env=env, check=True)
        for number, module in enumerate(group):
            yield _row(module, json.loads(Path(folder, f"{number}.json").read_text()))


def _row(module: str, found: dict[str, Any]) -> Row:
    named = equivalents()
    states = Counter(each["state"] for each in found["mutants"])
    listed = [each for each in found["mutants"] if (module, each["function"], each["text"]) in named]
    mistaken = tuple((each["function"], each["text"]) for each in listed if each["state"] == "killed")
    equivalent = len(listed) - len(mistaken)
    return Row(module, len(found["mutants"]), states["killed"], equivalent, found["seconds"], mistaken)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help="only modules with one of these in their path")
    parser.add_argument("--only", default="", help="only functions with this in their name")
    parser.add_argument("--every", type=int, default=1, help="only one mutant out of so many, for an estimate")
    given = parser.parse_args()
    unknown = unknown_equivalents()
    chosen = {
        module: tests
        for module, tests in targets().items()
        if not given.parts or any(part in module for part in given.parts)
    }
    rows = [row for group in groups(chosen) for row in measure(group, given.only, given.every)]
    head = f"{'module':48} {'mutants':>8} {'killed':>7} {'equivalent':>11} {'surviving':>10} {'killed':>7}"
    counts = [sum(getattr(row, name) for row in rows) for name in ("mutants", "killed", "equivalent", "seconds")]
    total = Row("all", *counts)
    print(head, *rows, total, sep="\n")
    for module, function, text in unknown:
        print(f"equivalent.toml names a mutant that does not exist: {module} {function}: {text}")
    mistaken = [(row.module, *each) for row in rows for each in row.mistaken]
    for module, function, text in mistaken:
        print(f"equivalent.toml names a mutant that a test kills: {module} {function}: {text}")
    return 1 if unknown or mistaken or min(row.share for row in [*rows, total]) < LEAST_KILLED else 0


if __name__ == "__main__":
    sys.exit(main())
