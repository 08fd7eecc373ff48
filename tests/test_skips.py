"""What may skip in CI: tests of a list only, each with its reason."""

import ast
import subprocess
import sys

import pytest
import skips
from conftest import ROOT


def skipped(nodeid, **attributes):
    """Return the report of a test that skips."""
    reason = ("file.py", 1, "Skipped: no such program")
    report = pytest.TestReport(nodeid, ("file.py", 1, nodeid), {}, "skipped", reason, "call")
    vars(report).update(attributes)
    return report


def test_a_skip_that_is_not_on_the_list_is_a_failure_with_its_reason():
    report = skips.refused(skipped("tests/test_cli.py::test_a_shell"))
    assert report.failed and "no such program" in report.longrepr and "allowed_skips.txt" in report.longrepr


def test_a_file_that_skips_is_a_failure():
    report = pytest.CollectReport("tests/test_cli.py", "skipped", ("file.py", 1, "Skipped: no such module"), [])
    assert skips.refused(report).failed and "no such module" in report.longrepr


@pytest.mark.parametrize("nodeid", skips.allowed())
def test_a_skip_on_the_list_stays_one(nodeid):
    assert skips.refused(skipped(f"{nodeid}[case]")).skipped


def test_an_expected_failure_is_no_skip():
    assert skips.refused(skipped("tests/test_cli.py::test_a_shell", wasxfail="known")).skipped


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "end"), [("0", "1 test was left out: no time is left"), ("9", "1 passed")])
def test_a_test_that_has_not_begun_in_the_time_of_its_run_is_left_out_and_counted(minutes, end):
    command = [sys.executable, "-m", "pytest", "tests/test_skips.py", "-k", "expected_failure", "--no-skips"]
    done = subprocess.run([*command, f"--minutes={minutes}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and end in done.stdout, done.stdout


@pytest.mark.parametrize(("nodeid", "reason"), skips.allowed().items(), ids=skips.allowed())
def test_the_list_names_tests_and_says_why(nodeid, reason):
    file, _, name = nodeid.partition("::")
    functions = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    names = {each.name for each in functions if isinstance(each, ast.FunctionDef)}
    function = name.partition("[")[0]  # of a case that a bracket names
    assert (not function or function in names) and len(reason) > 10  # without a name: all tests of the file
