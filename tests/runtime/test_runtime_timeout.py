"""How long a collective may take before it fails."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from runtime_ranks import run_ranks

from launcher.common.names import ENV_COLLECTIVE_TIMEOUT
from launcher.runtime.process_group import BadTimeout, Place, collective_timeout
from launcher.runtime.tiers.rank_group import LEAST_TIMEOUT, Ranks


@pytest.mark.slow
def test_a_collective_that_a_rank_misses_fails_after_the_timeout(tmp_path, monkeypatch):
    monkeypatch.setenv(ENV_COLLECTIVE_TIMEOUT, "2.5")
    done = tmp_path / "done"

    def work(place: Place) -> str:
        if place.rank == 1:
            while not done.exists():
                time.sleep(0.02)
            return ""
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            return str(error)
        finally:
            done.touch()
        return "it did not fail"

    assert "2500ms" in run_ranks(2, work, tmp_path)[0]


def test_without_a_setting_the_default_holds(monkeypatch):
    monkeypatch.delenv(ENV_COLLECTIVE_TIMEOUT, raising=False)
    assert collective_timeout() == timedelta(minutes=10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"), [("60", LEAST_TIMEOUT), ("7200", timedelta(hours=2))], ids=["shorter", "longer"]
)
def test_ranks_that_save_to_tiers_wait_as_long_as_a_shard_may_take(tmp_path, monkeypatch, text, expected):
    monkeypatch.setenv(ENV_COLLECTIVE_TIMEOUT, text)

    def work(place: Place) -> timedelta:
        return Ranks().group._get_backend(torch.device("cpu")).options._timeout

    assert run_ranks(2, work, tmp_path) == [expected, expected]


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "1e300"])
def test_a_timeout_is_a_positive_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv(ENV_COLLECTIVE_TIMEOUT, text)
    with pytest.raises(BadTimeout, match=ENV_COLLECTIVE_TIMEOUT):
        collective_timeout()
