"""What a damaged or unreachable checkpoint leads to; test_checkpoint_faults.py draws many of them from seeds."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runtime_ranks import run_ranks
from test_runtime_checkpoint import load, new_model, save
from torch.distributed.fsdp import fully_shard
from wrong_kinds import KINDS, of_kind

from launcher.common import names
from launcher.runtime import checked_io
from launcher.runtime.checkpoint import Checkpoints
from launcher.runtime.checkpoint_folder import LATEST, LAUNCH, PROGRESS, Progress
from launcher.runtime.checkpoint_search import CheckpointBroken, CheckpointUnavailable, StateMismatch
from launcher.runtime.content import Content
from launcher.runtime.process_group import Place
from launcher.runtime.tiers.checkpoint_log import CheckpointLog


def flip(path: Path, num_bytes: int = 64) -> None:
    """Invert bytes in the middle of a file."""
    data = bytearray(path.read_bytes())
    start = max(0, len(data) // 2 - num_bytes // 2)
    data[start : start + num_bytes] = bytes(each ^ 0xFF for each in data[start : start + num_bytes])
    path.write_bytes(data)


def save_steps(folder: Path, *steps: int) -> None:
    for step in steps:
        save(folder, step, keep=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", PROGRESS])
def test_changed_bytes_lead_to_the_newest_intact_checkpoint(tmp_path, capsys, name):
    save_steps(tmp_path, 1, 2, 3)
    flip(tmp_path / "step-00000003" / name)
    assert load(tmp_path) == (Progress(2, 20, 1), 2.0)
    said = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(said) == 1 and "resumes from step 2" in said[0] and f"step 3 from {tmp_path}: {name}" in said[0]


def test_when_all_are_damaged_each_is_listed_with_its_reason(tmp_path):
    save_steps(tmp_path, 1, 2)
    flip(tmp_path / "step-00000002" / "__0_0.distcp")
    (tmp_path / "step-00000001" / ".metadata").unlink()
    log = CheckpointLog("own", 0, tmp_path)
    with pytest.raises(CheckpointBroken) as caught:
        Checkpoints(tmp_path, log=log).load(Content(*new_model(0.0)))
    (record,) = [json.loads(line) for line in (tmp_path / names.CHECKPOINTS_FILE).read_text().splitlines()]
    assert (record["event"], record["step"]) == ("broken", 0)
    newest, older = caught.value.tried
    assert "step 2" in newest and "__0_0.distcp is changed" in newest
    assert "step 1" in older and ".metadata missing" in older


@pytest.mark.slow
def test_a_piece_that_only_one_rank_reads_sends_all_ranks_to_the_older_checkpoint(tmp_path):
    """Rank 1's part of a sharded model is changed; rank 0 never reads it."""
    folder = tmp_path / "kept"

    def work(place: Place) -> tuple[Progress, float, list[str]]:
        def sharded(value: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
            model = fully_shard(torch.nn.Linear(64, 64))
            torch.nn.init.constant_(model.weight, value)
            return model, torch.optim.SGD(model.parameters())

        for step in (1, 2):
            Checkpoints(folder).save(Content(*sharded(float(step))), Progress(step, step * 10, 2))
        if place.rank == 0:
            flip(folder / "step-00000002" / "__1_0.distcp", 2000)
        torch.distributed.barrier()
        model, optimizer = sharded(-1.0)
        journal = CheckpointLog("own", place.rank, tmp_path)
        progress = Checkpoints(folder, log=journal).load(Content(model, optimizer))
        return progress, model.weight.full_tensor().mean().item()

    assert run_ranks(2, work, tmp_path) == [(Progress(1, 10, 2), 1.0)] * 2
    (record,) = [json.loads(line) for line in (tmp_path / names.CHECKPOINTS_FILE).read_text().splitlines()]
    assert (record["event"], record["step"]) == ("loaded", 1)
    assert "step 2" in record["detail"] and "__1_0.distcp is changed" in record["detail"]


def test_a_damaged_newer_checkpoint_stays_until_its_step_is_saved_again(tmp_path):
    save_steps(tmp_path, 1, 2, 9)
    flip(tmp_path / "step-00000009" / "__0_0.distcp")
    checkpoints, training = Checkpoints(tmp_path, keep=2), new_model(3.0)
    assert checkpoints.load(Content(*training)).step == 2
    checkpoints.save(Content(*training), Progress(3, 30, 1))
    assert {path.name for path in tmp_path.glob("step-*")} == {f"step-0000000{step}" for step in (2, 3, 9)}
    assert load(tmp_path)[0].step == 3  # not the damaged one, which was saved before it
    checkpoints.save(Content(*new_model(9.0)), Progress(9, 90, 1))
    assert load(tmp_path) == (Progress(9, 90, 1), 9.0)


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path):
    save_steps(tmp_path, 1, 2, 3)
    flip(tmp_path / "step-00000003" / "__0_0.distcp")
    checkpoints, training = Checkpoints(tmp_path, keep=2), new_model(4.0)
    checkpoints.load(Content(*training))
    checkpoints.save(Content(*training), Progress(4, 40, 1))
    assert {path.name for path in tmp_path.glob("step-*")} == {f"step-0000000{step}" for step in (2, 3, 4)}


def test_a_changed_pointer_hides_no_checkpoint(tmp_path):
    save_steps(tmp_path, 1, 2)
    text = (tmp_path / LATEST).read_text()
    (tmp_path / LATEST).write_text(text.replace("step-00000002", "step-00000001"))
    assert load(tmp_path)[0].step == 2


def test_a_pointer_that_is_a_folder_hides_no_checkpoint(tmp_path):
    save_steps(tmp_path, 1, 2)
    (tmp_path / LATEST).unlink()
    (tmp_path / LATEST).mkdir()
    assert load(tmp_path)[0].step == 2


PLACES = ("", PROGRESS, ".metadata", "__0_0.distcp")


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place or "step")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_wrong_kind_is_damage_and_its_step_can_be_saved_again(tmp_path, capsys, kind, place):
    save_steps(tmp_path, 1, 2, 3)
    path = tmp_path / "step-00000003"
    of_kind(kind, path / place if place else path)
    checkpoints, training = Checkpoints(tmp_path, patience_s=0.0), new_model(0.0)
    assert checkpoints.load(Content(*training)) == Progress(2, 20, 1)
    assert (
        f"resumes from step 2, the newest that is intact; passed over: step 3 from {tmp_path}"
        in capsys.readouterr().out
    )
    checkpoints.save(Content(*new_model(3.0)), Progress(3, 30, 1))
    assert load(tmp_path) == (Progress(3, 30, 1), 3.0)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [LATEST, LAUNCH, ".partial-step-00000003"])
def test_a_wrong_kind_of_file_beside_the_checkpoints_hinders_neither_load_nor_save(tmp_path, kind, name):
    save_steps(tmp_path, 1, 2)
    (tmp_path / name).touch()
    of_kind(kind, tmp_path / name)
    checkpoints = Checkpoints(tmp_path, patience_s=0.0)
    assert not checkpoints.is_taken_by("one")
    assert checkpoints.load(Content(*new_model(0.0))) == Progress(2, 20, 1)
    if name != LATEST or kind != "folder":  # a folder of that name may be someone's, and is not removed
        checkpoints.save(Content(*new_model(3.0)), Progress(3, 30, 1))
        assert load(tmp_path) == (Progress(3, 30, 1), 3.0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place or "step")
def test_what_may_not_be_read_is_awaited_and_no_older_checkpoint_is_taken(tmp_path, place):
    save_steps(tmp_path, 1, 2)
    path = tmp_path / "step-00000002"
    (path / place).chmod(0)
    with pytest.raises(CheckpointUnavailable, match="step 2 .*Permission denied"):
        Checkpoints(tmp_path, patience_s=0.0).load(Content(*new_model(0.0)))
    (path / place).chmod(0o700)


@pytest.mark.parametrize("name", ["read_bytes", "stat"])
def test_a_refused_permission_is_no_proof_of_damage(tmp_path, monkeypatch, name):
    save_steps(tmp_path, 1, 2)
    real = getattr(Path, name)

    def refusing(self, *args, **kwargs):
        if self.parent.name == "step-00000002":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, name, refusing)
    with pytest.raises(CheckpointUnavailable, match="step 2 .*Permission denied"):
        Checkpoints(tmp_path, patience_s=0.0).load(Content(*new_model(0.0)))


def test_a_checkpoint_of_another_step_under_this_name_is_not_loaded(tmp_path):
    save_steps(tmp_path, 1, 2)
    for name in ("__0_0.distcp", ".metadata", PROGRESS):
        (tmp_path / "step-00000002" / name).write_bytes((tmp_path / "step-00000001" / name).read_bytes())
    assert load(tmp_path)[0].step == 1


def without_checksums(path: Path) -> None:
    """Make a checkpoint one of the version before checksums."""
    stated = json.loads((path / PROGRESS).read_text())
    del stated["checksum"], stated["metadata"]
    (path / PROGRESS).write_text(json.dumps(stated))


def test_a_checkpoint_without_checksums_loads_with_a_notice(tmp_path, capsys):
    save_steps(tmp_path, 1)
    without_checksums(tmp_path / "step-00000001")
    (tmp_path / LATEST).write_text("step-00000001\n")
    assert load(tmp_path) == (Progress(1, 10, 1), 1.0)
    assert "saved without checksums: its content is not verified" in capsys.readouterr().out


def test_one_without_checksums_that_cannot_be_decoded_is_damaged(tmp_path):
    save_steps(tmp_path, 1, 2)
    without_checksums(tmp_path / "step-00000002")
    path = tmp_path / "step-00000002" / "__0_0.distcp"
    path.write_bytes(bytes(path.stat().st_size))
    assert load(tmp_path)[0].step == 1


def test_only_half_of_the_checksums_is_damage(tmp_path):
    save_steps(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / PROGRESS
    path.write_text(path.read_text().replace('"checksum"', '"checksun"'))
    assert load(tmp_path)[0].step == 1


@pytest.mark.slow
def test_a_file_system_that_fails_is_awaited_and_no_older_checkpoint_is_taken(tmp_path, monkeypatch):
    save_steps(tmp_path, 1, 2)
    real, failures = checked_io.CheckedReader._slice_file, iter((True, False))

    def failing(self, file, sinfo):
        if next(failures, False):
            raise OSError(errno.EIO, "Input/output error")
        return real(self, file, sinfo)

    monkeypatch.setattr(checked_io.CheckedReader, "_slice_file", failing)
    assert load(tmp_path) == (Progress(2, 20, 1), 2.0)


def test_a_file_system_that_keeps_failing_ends_the_load(tmp_path, monkeypatch):
    save_steps(tmp_path, 1, 2)

    def failing(self, file, sinfo):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checked_io.CheckedReader, "_slice_file", failing)
    with pytest.raises(CheckpointUnavailable, match="step 2 .*Input/output error"):
        Checkpoints(tmp_path, patience_s=0.0).load(Content(*new_model(0.0)))


def test_another_model_is_a_mismatch_and_no_reason_to_take_an_older_checkpoint(tmp_path):
    save_steps(tmp_path, 1, 2)
    model = torch.nn.Linear(64, 32)
    with pytest.raises(StateMismatch, match=r"weight|bias"):
        Checkpoints(tmp_path).load(Content(model, torch.optim.AdamW(model.parameters())))


PLAIN_LOAD = """
import sys, torch, torch.distributed.checkpoint as dcp
state = {"model": {"weight": torch.zeros(64, 64), "bias": torch.zeros(64)}}
dcp.load(state, checkpoint_id=sys.argv[1])
assert not any(name.startswith("launcher") for name in sys.modules)
print(state["model"]["weight"].mean().item())
"""


@pytest.mark.slow
def test_plain_torch_reads_the_files_without_this_package(tmp_path):
    save_steps(tmp_path, 7)
    command = [sys.executable, "-W", "ignore", "-c", PLAIN_LOAD, str(tmp_path / "step-00000007")]
    result = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert float(result.stdout) == 7.0
