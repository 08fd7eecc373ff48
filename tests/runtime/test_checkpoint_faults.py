"""Damage to plain checkpoints, drawn from seeds; benchmarks/test_checkpoint_faults.py runs many more."""

import pytest
from checkpoint_cases import run_cases

pytestmark = pytest.mark.slow


def test_what_is_loaded_is_what_was_saved_in_the_newest_intact_checkpoint(tmp_path):
    outcomes = run_cases(range(48), tmp_path)
    assert set(outcomes) == {"newest", "an older one", "all broken"} and outcomes["an older one"] > 16
