"""How ranks find the store of rank 0, which may listen later than they look."""

import os
import socket
import time

import psutil
import pytest
from runtime_ranks import run_ranks
from torch.distributed import distributed_c10d

from launcher.runtime import process_group


class Clock:
    """Stands in for `time`: it passes where a rank waits, and then something may happen."""

    def __init__(self, happen=lambda number: None):
        self.now, self.pauses, self._happen = 0.0, 0, happen

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now, self.pauses = self.now + seconds, self.pauses + 1
        self._happen(self.pauses)


def is_alive(process):
    return process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def rank_0():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved


def test_a_rank_finds_the_store_soon_after_it_listens(monkeypatch, rank_0):
    clock = Clock(lambda number: rank_0.listen() if number == 5 else None)
    monkeypatch.setattr(process_group, "time", clock)
    process_group._await_store(*rank_0.getsockname())
    assert clock.pauses == 5 and clock.now < 0.1


def test_a_rank_leaves_a_store_that_does_not_come_to_torch(monkeypatch, rank_0):
    clock = Clock()
    monkeypatch.setattr(process_group, "time", clock)
    process_group._await_store(*rank_0.getsockname())
    assert 60 <= clock.now < 61


@pytest.mark.slow
def test_a_rank_ends_after_all_have_received_what_it_sent(tmp_path):
    def work(place):
        gathered = process_group.gather(os.getpid())
        if place.rank == 0:
            store = distributed_c10d._get_default_store()
            other = psutil.Process(gathered[1])
            while is_alive(other) and not store.add(process_group._LEAVING, 0):
                time.sleep(0.01)
            return is_alive(other)
        return None

    assert run_ranks(2, work, tmp_path) == [True, None]
