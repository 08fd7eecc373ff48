"""The mutation benchmark: which faults it makes, and that its lists are about files and mutants that exist."""

import ast

import pytest
from conftest import ROOT

from benchmarks.mutation import __main__ as mutation
from benchmarks.mutation.operators import mutants

SOURCE = '''
MOST = 3

def rule(draft, problem):
    """Say why."""
    if draft.size > MOST and draft.name:
        yield problem(f"a.{draft.name}", "is too large", value=draft.size, allowed="less")
'''


def test_modules_and_tests_of_the_list_exist():
    for module, tests in mutation.targets().items():
        assert (ROOT / module).is_file(), module
        assert all((ROOT / each.partition(" ")[0]).is_file() for each in tests), tests


@pytest.mark.slow
def test_every_equivalent_mutant_exists_and_has_a_reason():
    assert mutation.unknown_equivalents() == []
    assert all(reason.endswith(".") for reason in mutation.equivalents().values())


def test_the_share_of_killed_mutants_leaves_out_equivalent_ones():
    assert mutation.Row("m", mutants=10, killed=6, equivalent=2, seconds=0).share == 0.75
    assert mutation.Row("m", mutants=1, killed=0, equivalent=1, seconds=0).share == 1.0


def test_one_bound_in_place_of_the_tighter_is_a_fault():
    found = {mutant.text for mutant in mutants(ast.parse("def f(a, b):\n    return max(a, b)\n"))}
    assert {"return a", "return b", "return min(a, b)"} <= found


def test_faults_are_made_in_what_decides_and_not_in_text_for_people():
    found = {(mutant.function, mutant.text) for mutant in mutants(ast.parse(SOURCE))}
    stays = "problem('…', '…', value=draft.size, allowed='less')"
    assert found == {
        ("", "MOST = 4"),
        ("rule", "if draft.size >= MOST and draft.name:"),
        ("rule", "if draft.size > MOST or draft.name:"),
        ("rule", "if draft.size > MOST and (not draft.name):"),
        ("rule", f"yield from ()  # yield {stays}"),
        ("rule", "yield problem('XX', '…', value=draft.size, allowed='less')"),
        ("rule", "yield problem('…', '…', allowed='less')"),
    }
