from collections.abc import Callable
from pathlib import Path

import pytest
from runtime_ranks import run_ranks

from launcher.runtime import process_group
from launcher.runtime.checkpoint_search import (
    Candidate,
    CheckpointBroken,
    CheckpointUnavailable,
    Damaged,
    Search,
    Source,
    Unavailable,
    together,
)
from launcher.runtime.process_group import Place


def search(patience_s: float = 0.0) -> Search:
    return Search(process_group, patience_s, note=lambda reason: None, pause_s=0.0)


def giving(*outcomes: object) -> Callable[[], object]:
    """Return a load that raises or returns these one after another, the last one from then on."""
    left = list(outcomes)

    def load() -> object:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return load


def candidate(name: str, **loads: Callable[[], object]) -> Candidate:
    return Candidate(name, [Source(source, load) for source, load in loads.items()])


def test_without_candidates_there_is_nothing_to_load():
    assert search().newest([]) is None


def test_damage_leads_to_the_next_source_then_to_an_older_checkpoint():
    found = search()
    broken = giving(Damaged("changed"))
    loaded = found.newest([candidate("step 2", memory=broken, disk=broken), candidate("step 1", disk=giving(1))])
    assert loaded == 1
    assert found.passed_over == ["step 2 from memory: changed", "step 2 from disk: changed"]


def test_what_is_unavailable_is_tried_again_and_no_older_one_is_taken():
    later = giving(Unavailable("503"), Unavailable("503"), 2)
    assert search(patience_s=600).newest([candidate("step 2", disk=later), candidate("step 1", disk=giving(1))]) == 2


def test_a_source_proven_damaged_is_not_tried_again_while_another_is_awaited():
    found = search(patience_s=600)
    damaged_once = giving(Damaged("changed"), AssertionError("tried again"))
    assert found.newest([candidate("step 2", memory=damaged_once, disk=giving(Unavailable("503"), 2))]) == 2
    assert found.passed_over == ["step 2 from memory: changed"]


def test_what_stays_unavailable_ends_the_search():
    steps = [candidate("step 2", disk=giving(Unavailable("503"))), candidate("step 1", disk=giving(1))]
    with pytest.raises(CheckpointUnavailable, match="step 2 from disk: 503"):
        search().newest(steps)


def test_when_all_are_damaged_each_is_named():
    steps = [candidate(f"step {step}", disk=giving(Damaged(f"cut {step}"))) for step in (2, 1)]
    with pytest.raises(CheckpointBroken) as caught:
        search().newest(steps)
    assert caught.value.tried == ("step 2 from disk: cut 2", "step 1 from disk: cut 1")


@pytest.mark.slow
def test_all_ranks_reach_one_decision_when_one_of_them_finds_damage(tmp_path: Path):
    """Rank 0 finds the newest unavailable, rank 1 finds it damaged: that is proof, and both take the older one."""

    def work(place: Place) -> object:
        own = giving(Damaged("changed") if place.rank else Unavailable("503"))
        newer = candidate("step 2", disk=lambda: together(process_group, own))
        older = candidate("step 1", disk=lambda: together(process_group, giving(1)))
        found = search(patience_s=600)
        return found.newest([newer, older]), found.passed_over

    first, second = run_ranks(2, work, tmp_path)
    assert first == second == (1, ["step 2 from disk: changed"])


@pytest.mark.slow
def test_the_first_ranks_clock_ends_the_search_for_all(tmp_path: Path):
    def work(place: Place) -> str:
        patience_s = 0.0 if place.rank == 0 else 600.0
        newest = candidate("step 1", disk=lambda: together(process_group, giving(Unavailable("503"))))
        with pytest.raises(CheckpointUnavailable) as caught:
            search(patience_s).newest([newest])
        return str(caught.value)

    first, second = run_ranks(2, work, tmp_path)
    assert first == second and "503" in first
