"""What can go wrong with tiers, drawn from seeds; benchmarks/test_checkpoint_faults.py runs many more."""

import pytest
from tier_cases import Case, run_case

pytestmark = pytest.mark.slow

SEEDS = (2, 6, 7, 9, 13, 15, 17, 19, 23, 24, 26, 28, 38)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed}-{Case.of(seed).save_fault}-{Case.of(seed).damage}")
def test_what_is_loaded_is_the_newest_that_is_whole_or_nothing_in_silence(tmp_path, seed):
    run_case(seed, tmp_path)
