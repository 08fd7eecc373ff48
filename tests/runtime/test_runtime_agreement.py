"""What the ranks settle in a step: its loss, and whether any of them was told to stop."""

import time
from functools import partial

import pytest
import torch
from runtime_ranks import run_ranks

from launcher.runtime.process_group import Place
from launcher.runtime.stop_consensus import StopConsensus

pytestmark = pytest.mark.slow


def looks_in(place: Place, seconds_of_step: list[float]) -> list[int]:
    """Return the steps in which the ranks looked for a stop signal; rank 1 is the slower one."""
    found, steps = StopConsensus(), []
    for step, seconds in enumerate(seconds_of_step):
        if found.due:
            steps.append(step)
            found.begin(None, event=step == len(seconds_of_step) - 1)
        time.sleep(seconds * (1 + place.rank))
        found.end_step()
    return steps


def test_ranks_that_share_no_loss_look_for_a_signal_now_and_then(tmp_path):
    """Steps of 10 ms on average share a look every 0.2 s; of 300 ms, each has its own."""
    short = run_ranks(2, partial(looks_in, seconds_of_step=[0.0067] * 60), tmp_path)
    assert short[0] == short[1] and short[0][:2] == [0, 1] and 4 <= len(short[0]) <= 12
    long = run_ranks(2, partial(looks_in, seconds_of_step=[0.2] * 4), tmp_path)
    assert long == [[0, 1, 2, 3]] * 2


def test_any_rank_s_signal_reaches_all_in_the_same_step(tmp_path):
    def told(place: Place) -> list[tuple[float, bool]]:
        found, answers = StopConsensus(), []
        for step in range(4):
            found.begin(torch.tensor(float(place.rank)), event=place.rank == 2 and step >= 2)
            answers.append(found.end_step())
        return answers

    assert run_ranks(3, told, tmp_path) == [[(3.0, False), (3.0, False), (3.0, True), (3.0, True)]] * 3
