"""Measure what each file of tests costs, in processor seconds, which depend little on what else the machine does.

Run as `python -m benchmarks.costs_of_tests --numprocesses=2 --dist=loadscope -m 'not whole_job and not slow'`: the
arguments are pytest's. The time of processes that a test starts and waits for counts as the test's; of servers that
outlive it, nothing does, until they are stopped.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest


def used_s() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give a test's last report what it cost: reports are what a test process sends to the one that prints."""
    item.stash[_BEGUN] = used_s(), time.monotonic()
    return (yield)


_BEGUN = pytest.StashKey[tuple[float, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        processor_s, begun_s = item.stash[_BEGUN]
        report.user_properties.append(("cost", (used_s() - processor_s, time.monotonic() - begun_s)))
    return report


class Table:
    """Adds up processor seconds, wall seconds and tests by file, where the results are printed."""

    def __init__(self) -> None:
        self.processor: Counter[str] = Counter()
        self.wall: Counter[str] = Counter()
        self.num_tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        for processor_s, wall_s in (value for name, value in report.user_properties if name == "cost"):
            if report.when == "teardown":
                self.processor[file] += processor_s
                self.wall[file] += wall_s
                self.num_tests[file] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        rows = [("all", self.num_tests.total(), self.processor.total(), self.wall.total())]
        rows += [(file, tests, self.processor[file], self.wall[file]) for file, tests in self.num_tests.items()]
        terminalreporter.write_line("| file | tests | processor (s) | wall (s) |\n| --- | --- | --- | --- |")
        for file, tests, processor_s, wall_s in sorted(rows, key=lambda row: -row[2]):
            terminalreporter.write_line(f"| {file} | {tests} | {processor_s:.1f} | {wall_s:.1f} |")


if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "benchmarks.costs_of_tests", *sys.argv[1:]], plugins=[Table()]))
