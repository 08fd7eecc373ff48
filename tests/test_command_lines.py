"""Some random command lines, and the same input from Python; `benchmarks/test_fuzz.py` runs 20,000."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

LINES = 75
"""Command lines of a seed."""


@pytest.mark.parametrize("seed", [2026, 2027])
def test_no_random_command_line_is_a_fault_of_the_programs(seed):
    """In a process of its own, which is kept from clusters, clouds and most of the machine's memory."""
    command = [sys.executable, str(ROOT / "tests/command_lines.py"), str(seed), str(LINES)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=580).stdout)
    assert found["faults"] == []
    assert found["codes"].keys() >= {"0", "2"} and sum(found["codes"].values()) == LINES + LINES // 2
