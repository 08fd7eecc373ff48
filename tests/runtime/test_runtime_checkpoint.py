import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy
import pytest
import torch
from background import await_true
from runtime_ranks import RANDOM_KILLS, fork_ranks, leave_locks_behind, run_ranks

from launcher.runtime import agent, randomness
from launcher.runtime.checkpoint import Checkpoints, FolderInUse, latest_progress
from launcher.runtime.checkpoint_folder import LATEST, PROGRESS, Progress
from launcher.runtime.checkpoint_search import CheckpointBroken
from launcher.runtime.content import Content
from launcher.runtime.process_group import Place


def new_model(value: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(64, 64)
    torch.nn.init.constant_(model.weight, value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, step: int, keep: int = 2) -> None:
    Checkpoints(folder, keep).save(Content(*new_model(float(step))), Progress(step, step * 10, 1))


def load(folder: Path) -> tuple[Progress | None, float]:
    model, optimizer = new_model(-1.0)
    progress = Checkpoints(folder).load(Content(model, optimizer))
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
        leave_locks_behind()
        torch.set_num_threads(1)
        work()
        code = 0
    finally:
        os._exit(code)


@pytest.mark.slow
def test_killed_at_every_point_of_a_save_the_latest_still_loads(tmp_path):
    """Steps 1 and 2 are there; a save of step 3 that also removes step 1 dies at each change in turn."""
    outcomes = []
    save(tmp_path / "before", 1)
    save(tmp_path / "before", 2)
    for number in range(1, 100):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", folder)

        def dying_save(number=number, folder=folder):
            die_at_call(number)
            save(folder, 3)

        code = in_child(dying_save)
        progress, weight = load(folder)
        assert progress == Progress(int(weight), int(weight) * 10, 1)
        outcomes.append(progress.step)
        save(folder, 4)
        assert load(folder)[0].step == 4
        assert not list(folder.glob(".[pr]*-step-*"))
        assert len(list(folder.glob("step-*"))) == 2
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert outcomes == sorted(outcomes) and set(outcomes) == {2, 3}
    assert outcomes.count(2) >= 5 and outcomes.count(3) >= 2


@pytest.mark.slow
def test_killed_at_random_moments_of_a_save_the_latest_always_loads(tmp_path):
    """Two ranks that save without a pause are killed again and again; each time they go on from the latest."""
    moments = random.Random(5)
    reached, partials = [0], []

    def save_on(place: Place) -> None:
        model, optimizer = new_model(0.0)
        checkpoints = Checkpoints(tmp_path, keep=2)
        progress = checkpoints.load(Content(model, optimizer)) or Progress()
        for step in range(progress.step + 1, 10_000):
            torch.nn.init.constant_(model.weight, step)
            checkpoints.save(Content(model, optimizer), Progress(step, step * 10, place.world_size))

    for _ in range(RANDOM_KILLS):
        ranks = fork_ranks(2, save_on, tmp_path)
        await_true(lambda: latest_step(tmp_path) > reached[-1])
        time.sleep(moments.uniform(0, 0.06))  # a save of these takes 0.02 s
        moments.shuffle(ranks)
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        for rank in ranks:
            os.waitpid(rank, 0)
        left_partial = bool(list(tmp_path.glob(".partial-*")))
        progress, weight = load(tmp_path)
        assert progress == Progress(int(weight), int(weight) * 10, 2) and progress.step > reached[-1]
        reached.append(progress.step)
        partials.append(left_partial)
    assert any(partials)  # else no kill came during a save


def latest_step(folder: Path) -> int:
    found = latest_progress(folder)
    return found[1].step if found else 0


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_every_file_is_on_disk_before_the_checkpoint_gets_its_name(tmp_path, world_size):
    """Whole: a sync of a file that grows afterwards is none."""

    def synced_sizes(place: Place) -> dict[str, int] | None:
        synced, fsync = {}, os.fsync
        published = {}

        def noting_fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            synced[Path(path).name] = os.fstat(descriptor).st_size
            fsync(descriptor)

        rename = Path.rename

        def noting_rename(self: Path, target: Path) -> Path:
            if target.name.startswith("step-"):
                published.update(synced)
            return rename(self, target)

        os.fsync, Path.rename = noting_fsync, noting_rename
        Checkpoints(tmp_path / "kept").save(Content(*new_model(1.0)), Progress(1, 10, world_size))
        return published if place.rank == 0 else synced

    sizes = {}
    for found in run_ranks(world_size, synced_sizes, tmp_path):
        sizes |= found
    files = {path.name: path.stat().st_size for path in (tmp_path / "kept" / "step-00000001").iterdir()}
    assert len(files) == world_size + 2
    # The text of the last one is synced under a name that nobody else has.
    final = {PROGRESS if name.startswith(f".{PROGRESS}") else name: size for name, size in sizes.items()}
    assert {name: final.get(name) for name in files} == files
    assert ".partial-step-00000001" in sizes  # the names in it


def test_a_step_is_published_once(tmp_path):
    save(tmp_path, 1)
    written = (tmp_path / "step-00000001" / ".metadata").stat().st_mtime_ns
    save(tmp_path, 1)
    assert (tmp_path / "step-00000001" / ".metadata").stat().st_mtime_ns == written


def test_nothing_to_load_is_not_an_error(tmp_path):
    assert load(tmp_path / "missing")[0] is None


FOREIGN = (
    "step-1000/model.pt",
    "step-best/model.pt",
    "step-00009000/model.pt",
    ".partial-mine/notes",
    "epoch-3/x.pt",
)
"""What a script of somebody's own may have put into the same folder."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_nothing_but_our_own_checkpoints_is_ever_removed_or_counted(tmp_path):
    for name in FOREIGN:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    assert load(tmp_path)[0] is None
    for step in (1, 2, 3):
        save(tmp_path, step)
        assert load(tmp_path)[0].step == step
    assert {path.name for path in tmp_path.glob("step-0000000?")} == {"step-00000002", "step-00000003"}
    Checkpoints(tmp_path).clear()
    assert load(tmp_path)[0] is None
    assert contents(tmp_path) == {name: name.encode() for name in FOREIGN}


@pytest.mark.slow
def test_what_is_no_checkpoint_is_not_overwritten_by_one(tmp_path):
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "model.pt").write_text("mine")

    def refused(place: Place) -> str:
        with pytest.raises(FolderInUse) as caught:
            save(tmp_path, 1)
        return str(caught.value)

    said = run_ranks(2, refused, tmp_path)
    assert said[0] == said[1] and "step-00000001 already exists" in said[0]
    assert contents(tmp_path / "step-00000001") == {"model.pt": b"mine"}


def test_to_load_changes_nothing_in_the_folder(tmp_path):
    """Neither a save that is under way nor a step that has its name but not yet the pointer's."""
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000002")
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".partial-step-00000003")
    before = contents(tmp_path)
    assert load(tmp_path)[0].step == 1
    assert contents(tmp_path) == before


def test_a_save_removes_what_a_killed_one_left(tmp_path):
    """And leaves a later step alone, which is not proven damaged, until that step is saved again."""
    save(tmp_path, 1)
    for name in ("step-00000008", ".partial-step-00000009", ".removed-step-00000000"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / name)
    save(tmp_path, 2)
    names = {"step-00000001", "step-00000002", "step-00000008"}
    assert {path.name for path in tmp_path.iterdir()} == {LATEST, *names}
    assert load(tmp_path) == (Progress(2, 20, 1), 2.0)
    save(tmp_path, 8)
    assert load(tmp_path) == (Progress(8, 80, 1), 8.0)


def test_without_the_pointer_the_newest_whole_checkpoint_counts(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, keep=0)
    (tmp_path / LATEST).unlink()
    assert load(tmp_path) == (Progress(3, 30, 1), 3.0)
    cut(tmp_path / "step-00000003" / "__0_0.distcp")
    assert load(tmp_path) == (Progress(2, 20, 1), 2.0)
    for step in (1, 2):
        cut(tmp_path / f"step-0000000{step}" / "__0_0.distcp")
    with pytest.raises(CheckpointBroken, match="no checkpoint is intact: step 3 .*; step 2 .*; step 1 "):
        load(tmp_path)


def test_progress_written_before_it_named_its_stream_still_loads(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / "step-00000001" / PROGRESS
    written = json.loads(path.read_text())
    path.write_text(json.dumps({name: written[name] for name in ("step", "cursor", "world_size", "files")}))
    assert load(tmp_path)[0] == Progress(1, 10, 1)


def test_a_pointer_to_nothing_is_an_error(tmp_path):
    (tmp_path / LATEST).write_text("step-00000009\n")
    with pytest.raises(CheckpointBroken, match=r"step 9 .* progress\.json is missing"):
        load(tmp_path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata"])
@pytest.mark.parametrize("harm", [Path.unlink, cut], ids=["missing", "cut_short"])
def test_an_incomplete_checkpoint_is_refused_on_all_ranks(tmp_path, name, harm):
    def save_harm_load(place: Place) -> str:
        folder = tmp_path / "kept"
        Checkpoints(folder).save(Content(*new_model(1.0)), Progress(1, 10, 2))
        if place.rank == 0:
            harm(folder / "step-00000001" / name)
        with pytest.raises(CheckpointBroken) as caught:
            Checkpoints(folder).load(Content(*new_model(2.0)))
        Checkpoints(folder).save(Content(*new_model(3.0)), Progress(1, 10, 2))
        return f"{caught.value}, then {Checkpoints(folder).load(Content(*new_model(2.0))).step}"

    said = run_ranks(2, save_harm_load, tmp_path)
    assert said[0] == said[1] and said[0].endswith("then 1")
    assert f"{name} missing or not of the size written" in said[0]


def test_a_checkpoint_without_its_progress_is_refused(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step-00000001" / PROGRESS).unlink()
    with pytest.raises(CheckpointBroken, match=r"progress\.json is missing"):
        load(tmp_path)


def test_random_numbers_go_on_where_they_stopped(tmp_path):
    def drawn() -> list[float]:
        return [random.random(), torch.rand(()).item(), numpy.random.rand()]

    save(tmp_path, 1)
    following = drawn()
    drawn()
    load(tmp_path)
    assert drawn() == following


@pytest.mark.slow
def test_at_another_size_every_rank_draws_numbers_of_its_own(tmp_path):
    save(tmp_path, 1)

    def draw(_: Place) -> float:
        torch.manual_seed(7)
        load(tmp_path)
        return torch.rand(()).item()

    first, second = run_ranks(2, draw, tmp_path)
    assert first != second
    torch.manual_seed(7)
    randomness.reseed(rank=1, step=1)
    assert torch.rand(()).item() == second


def test_a_scheduler_is_saved_and_restored(tmp_path):
    model, optimizer = new_model(1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    Checkpoints(tmp_path).save(Content(model, optimizer, scheduler), Progress(4, 40, 1))
    model, optimizer = new_model(2.0)
    restored = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    Checkpoints(tmp_path).load(Content(model, optimizer, restored))
    assert restored.state_dict() == scheduler.state_dict()
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


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


def test_an_agent_that_cannot_be_reached_fails_no_save(tmp_path, monkeypatch, capsys):
    """The agent's own client, and no server behind its socket."""
    pytest.importorskip(agent.PACKAGE)
    monkeypatch.setenv(agent.ENV_SOCKET, str(tmp_path / "nobody"))
    agent._discovery_client.cache_clear()
    save(tmp_path / "kept", 1)
    assert load(tmp_path / "kept")[0].step == 1
    said = capsys.readouterr().err
    assert "step 1: the checkpoint was not reported to the agent: [Errno 2]" in said
