"""Many seeded faults of tiers and of plain checkpoints: everything that the files test_tiers_faults.py and
test_checkpoint_faults.py in tests/runtime take a few of."""

import os
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "runtime"))

NUM_CASES = int(os.environ.get("RECIPES_TIER_CASES", "220"))


def test_every_case_loads_the_newest_that_is_whole_or_says_what_was_tried(tmp_path, report):
    from tier_cases import run_cases

    outcomes = run_cases(range(NUM_CASES), tmp_path)
    report(f"{NUM_CASES} cases: " + ", ".join(f"{name} {count}" for name, count in outcomes.most_common()))
    assert sum(outcomes.values()) == NUM_CASES and len(outcomes) == 7


NUM_FOLDER_CASES = int(os.environ.get("RECIPES_FOLDER_CASES", "400"))


def test_no_wrong_bit_is_loaded_from_a_damaged_plain_checkpoint(tmp_path, report):
    from checkpoint_cases import run_cases

    outcomes = run_cases(range(NUM_FOLDER_CASES), tmp_path)
    report(f"{NUM_FOLDER_CASES} cases: " + ", ".join(f"{name} {count}" for name, count in outcomes.most_common()))
    assert sum(outcomes.values()) == NUM_FOLDER_CASES and len(outcomes) == 3
