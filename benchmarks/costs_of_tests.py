"""Measure what each file of tests costs, in processor seconds, which do not depend on what else the machine does.

Run as `python -m benchmarks.costs_of_tests -m 'not whole_job and not slow'`: the arguments are pytest's. The tests
run in this one process. The time of processes that a test starts and waits for counts as the test's.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest


def used_s() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Costs:
    """A plugin of pytest: the seconds of collection and of tests, and the number of tests, by file."""

    def __init__(self) -> None:
        self.collection: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.num_tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        before = used_s()
        report = yield
        self.collection[collector.nodeid.partition("::")[0]] += used_s() - before
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        file = item.nodeid.partition("::")[0]
        before = used_s()
        done = yield
        self.running[file] += used_s() - before
        self.num_tests[file] += 1
        return done

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        rows = [("all", self.num_tests.total(), self.collection.total(), self.running.total())]
        rows += [(file, self.num_tests[file], self.collection[file], self.running[file]) for file in self.running]
        terminalreporter.write_line("| file | tests | collection (s) | tests (s) |\n| --- | --- | --- | --- |")
        for file, tests, collection, running in sorted(rows, key=lambda row: -row[2] - row[3]):
            terminalreporter.write_line(f"| {file} | {tests} | {collection:.2f} | {running:.2f} |")


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:], plugins=[Costs()]))
