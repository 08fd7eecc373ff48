"""Runs invalid command lines: exit code 1 would be an error of the program itself."""

import json
import subprocess
import sys
import time
from collections import Counter

import pytest
from conftest import ROOT

PARTS, LINES = 20, 1000
"""Processes one after the other, and command lines of each; a part's number is its seed."""

_found: list[dict] = []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(PARTS))
def test_random_command_lines(seed, report):
    """Target: none of 20,000 ends with exit code 1, with a traceback or after more than 60 s."""
    command = [sys.executable, str(ROOT / "tests/command_lines.py"), str(seed), str(LINES)]
    began = time.perf_counter()
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    _found.append(found | {"seconds": time.perf_counter() - began})
    for fault in found["faults"]:
        report(f"{fault['program']} {fault['words']}\n{fault['fault']}{fault['file']}")
    codes = sum((Counter(part["codes"]) for part in _found), Counter())
    slowest_s, slowest = max(tuple(line) for part in _found for line in part["slowest"])
    report(
        f"{sum(codes.values())} command lines in {sum(part['seconds'] for part in _found):.0f} s:"
        f" {sum(len(part['faults']) for part in _found)} faults, exit codes {dict(sorted(codes.items()))};"
        f" the slowest took {slowest_s:.1f} s: {slowest}"
    )
