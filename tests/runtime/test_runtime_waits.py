"""What a job records of its waits for data and of its checkpoints."""

import json
import time

import pytest
import torch
from runtime_ranks import metrics
from torch import nn
from torch.nn import functional as F

from launcher.common import names
from launcher.runtime.elastic import Job, StepSampler
from launcher.runtime.feed import TimedIterator
from launcher.runtime.reporting import Reporter

WAIT_S = 0.02


def slowly(sampler, inputs):
    for indices in sampler:
        time.sleep(WAIT_S)
        yield inputs[indices]


def test_waits_are_measured_until_they_are_taken(monkeypatch):
    clock = iter(range(100))  # each look at the clock takes a second
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    fed = TimedIterator(lambda: [1, 2, 3])
    assert [next(fed), next(fed)] == [1, 2]
    assert fed.take_waited_s() == 3  # the start, and two items
    assert next(fed) == 3
    assert [fed.take_waited_s(), fed.take_waited_s()] == [1, 0]
    with pytest.raises(StopIteration):
        next(fed)


@pytest.mark.slow
def test_each_step_records_the_waits_of_all_its_micro_batches_and_each_save_is_recorded(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = StepSampler(12, 4, micro_batch_size=2)
    job = Job(model, optimizer, sampler=sampler, folder=tmp_path / "kept", save_every=2, reporter=Reporter(tmp_path))
    inputs = torch.ones(12, 2)
    for rows in job.steps(slowly(sampler, inputs)):
        job.weigh(F.mse_loss(model(rows), rows[:, :1])).backward()
        if job.completes_step:
            optimizer.step()
    steps = metrics(tmp_path)
    assert len(steps) == 3
    for step in steps:
        assert 2 * WAIT_S <= step["data_s"] <= step["samples"] / step["samples_per_s"]
    saves = [json.loads(line) for line in (tmp_path / names.CHECKPOINTS_FILE).read_text().splitlines()]
    assert [(save["event"], save["step"]) for save in saves] == [("saved", 2), ("saved", 3)]
