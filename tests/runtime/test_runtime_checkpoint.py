import os
import signal
import time
from pathlib import Path

import pytest
import runtime_ranks
import torch

from launcher.runtime import agent
from launcher.runtime.checkpoint import LATEST, CheckpointMissing, Checkpoints, Progress, latest_progress


def new_model(value: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(64, 64)
    torch.nn.init.constant_(model.weight, value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, step: int, keep: int = 2) -> None:
    Checkpoints(folder, keep).save(*new_model(float(step)), Progress(step, step * 10, 1))


def load(folder: Path) -> tuple[Progress | None, float]:
    model, optimizer = new_model(-1.0)
    progress = Checkpoints(folder).load(model, optimizer)
    return progress, model.weight.mean().item()


def die_at_call(number: int) -> None:
    """Make this process kill itself just before its `number`-th call that changes what is on disk."""
    calls = iter(range(1, 10_000))

    def dying(real):
        def call(*args, **kwargs):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in ("fsync", "rename", "replace", "rmdir", "unlink", "mkdir"):
        setattr(os, name, dying(getattr(os, name)))


def in_child(work) -> int:
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    finally:
        os._exit(code)


def test_killed_at_every_point_of_a_save_the_latest_still_loads(tmp_path):
    """Steps 1 and 2 are there; a save of step 3 that also removes step 1 dies at each change in turn."""
    outcomes = []
    for number in range(1, 100):
        folder = tmp_path / str(number)
        save(folder, 1)
        save(folder, 2)

        def dying_save(number=number, folder=folder):
            die_at_call(number)
            save(folder, 3)

        code = in_child(dying_save)
        progress, weight = load(folder)
        assert progress == Progress(int(weight), int(weight) * 10, 1)
        assert not list(folder.glob(".partial-*"))
        outcomes.append(progress.step)
        save(folder, 4)
        assert load(folder)[0].step == 4
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert outcomes == sorted(outcomes) and set(outcomes) == {2, 3}
    assert outcomes.count(2) >= 5 and outcomes.count(3) >= 2


@pytest.mark.parametrize("delay_s", [0.02, 0.05, 0.11, 0.23], ids=str)
def test_killed_at_any_moment_the_latest_still_loads(tmp_path, delay_s):
    child = os.fork()
    if not child:
        torch.set_num_threads(1)
        for step in range(1, 10_000):
            save(tmp_path, step)
        os._exit(1)
    while latest_progress(tmp_path) is None:
        time.sleep(0.001)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    progress, weight = load(tmp_path)
    assert progress.step == weight >= 1


def test_a_step_is_published_once(tmp_path):
    save(tmp_path, 1)
    written = (tmp_path / "step-00000001" / ".metadata").stat().st_mtime_ns
    save(tmp_path, 1)
    assert (tmp_path / "step-00000001" / ".metadata").stat().st_mtime_ns == written


def test_nothing_to_load_is_not_an_error(tmp_path):
    assert load(tmp_path / "missing")[0] is None


def test_a_pointer_to_nothing_is_an_error(tmp_path):
    (tmp_path / LATEST).write_text("step-00000009\n")
    with pytest.raises(CheckpointMissing, match="step-00000009"):
        load(tmp_path)


def test_the_agent_is_told_after_publication(tmp_path, monkeypatch):
    told = []

    class Client:
        def update(self, step, path, kind):
            told.append((step, path, kind.value, latest_progress(tmp_path)[1].step))

    pytest.importorskip(agent.PACKAGE)
    monkeypatch.setenv(agent.ENV_SOCKET, "a socket")
    monkeypatch.setattr(agent, "_discovery_client", lambda prefix: Client())
    save(tmp_path, 1)
    assert told == [(1, str(tmp_path / "step-00000001"), "model_checkpoint", 1)]
