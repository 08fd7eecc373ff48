"""Seeded damage to plain checkpoints, then a load by one to three ranks.

What is loaded must be, bit for bit, what was saved at that step, and no older than the newest checkpoint that was not
touched.
"""

import json
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from runtime_ranks import run_ranks
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from launcher.runtime.checkpoint import Checkpoints
from launcher.runtime.checkpoint_folder import LATEST, PROGRESS, Progress
from launcher.runtime.checkpoint_search import CheckpointBroken
from launcher.runtime.content import Content
from launcher.runtime.process_group import Place

STEPS = (3, 6, 9)
NUM_WRITERS = 2
HARMS = ("flip", "truncate", "remove", "swap")


@dataclass(frozen=True)
class Case:
    """One case, all of it drawn from its seed."""

    seed: int
    harm: str
    num_damaged: int
    loaders: int

    @staticmethod
    def of(seed: int) -> "Case":
        draw = random.Random(seed)
        return Case(seed, HARMS[seed % len(HARMS)], draw.choice((1, 1, 2, 3)), draw.choice((1, 2, 2, 3)))


def training_at(step: int, world_size: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return the model and optimizer after a step, sharded over the ranks if there are several."""
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.BatchNorm1d(24), torch.nn.Linear(24, 5))
    if world_size > 1:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(step)
    model(torch.randn(4, 16)).pow(2).mean().backward()
    optimizer.step()
    return model, optimizer


def numbers_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return every tensor of a training, assembled."""
    tensors = [*model.state_dict().values()]
    for state in optimizer.state_dict()["state"].values():
        tensors += [state[name] for name in sorted(state)]
    return [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone() for tensor in tensors]


def save_all(folder: Path, work: Path) -> dict[int, list[torch.Tensor]]:
    """Save every step from two ranks; return what each holds."""

    def save(place: Place) -> dict[int, list[torch.Tensor]]:
        saved = {}
        for step in STEPS:
            training = training_at(step, place.world_size)
            Checkpoints(folder).save(Content(*training), Progress(step, step * 10, place.world_size))
            saved[step] = numbers_of(*training)
        return saved

    return run_ranks(NUM_WRITERS, save, work)[0]


def damage(folder: Path, case: Case) -> set[int]:
    """Change files of the newest checkpoints; return the steps whose content is another now."""
    draw = random.Random(case.seed + 1)
    damaged = set()
    if draw.random() < 0.1:
        harm(folder / LATEST, folder / LATEST, case.harm if case.harm != "swap" else "flip", draw)
    for step in STEPS[-case.num_damaged :]:
        files = sorted(path.name for path in (folder / f"step-{step:08d}").iterdir())
        name = draw.choice(files)
        path = folder / f"step-{step:08d}" / name
        other = folder / f"step-{draw.choice([each for each in STEPS if each != step]):08d}" / name
        if harm(path, other, case.harm, draw):
            damaged |= {step} | ({int(other.parent.name[5:])} if case.harm == "swap" else set())
    return damaged


def harm(path: Path, other: Path, kind: str, draw: random.Random) -> bool:
    """Damage a file that may be missing already; return whether its content is another now."""
    if not path.exists() or not other.exists():
        return False
    data = bytearray(path.read_bytes())
    if kind == "flip":
        start = draw.randrange(len(data))
        for place in range(start, min(len(data), start + draw.choice((1, 1, 64, 2000)))):
            data[place] ^= draw.randrange(1, 256)
    elif kind == "truncate":
        del data[draw.randrange(len(data)) :]
    elif kind == "remove":
        path.unlink()
        return True
    else:
        data, mine = bytearray(other.read_bytes()), data
        other.write_bytes(mine)
    is_changed = path.name != PROGRESS or not _is_same_json(bytes(data), path.read_bytes())
    path.write_bytes(data)
    return is_changed


def _is_same_json(changed: bytes, original: bytes) -> bool:
    try:
        return json.loads(changed) == json.loads(original)
    except ValueError:
        return False


def run_cases(seeds: range, folder: Path) -> Counter[str]:
    """Run cases; return how often each outcome came about.

    Raises:
        AssertionError: Something else than what was saved was loaded, or something older than needed.
    """
    original, work = folder / "original", folder / "work"
    work.mkdir()
    saved = save_all(original, work)
    cases = [Case.of(seed) for seed in seeds]
    damaged = {}
    for case in cases:
        shutil.copytree(original, folder / str(case.seed))
        damaged[case.seed] = damage(folder / str(case.seed), case)
    outcomes: Counter[str] = Counter()
    for loaders in (1, 2, 3):
        own = [case for case in cases if case.loaders == loaders]

        def load(place: Place, own: list[Case] = own) -> list[str]:
            return [load_case(folder / str(case.seed), damaged[case.seed], saved, place) for case in own]

        told = run_ranks(loaders, load, work)
        assert all(each == told[0] for each in told)
        outcomes.update(told[0])
    return outcomes


def load_case(folder: Path, damaged: set[int], saved: dict[int, list[torch.Tensor]], place: Place) -> str:
    training = training_at(0, place.world_size)
    try:
        progress = Checkpoints(folder, patience_s=0.0).load(Content(*training))
    except CheckpointBroken as error:
        assert damaged == set(STEPS), (folder, damaged, error)
        assert len(error.tried) == len(STEPS), (folder, error)
        return "all broken"
    assert progress is not None, folder
    assert progress == Progress(progress.step, progress.step * 10, NUM_WRITERS), (folder, progress)
    untouched = max(set(STEPS) - damaged, default=0)
    assert progress.step >= untouched, (folder, damaged, progress)
    loaded = numbers_of(*training)
    assert all(map(torch.equal, loaded, saved[progress.step])), (folder, damaged, progress)
    return "newest" if progress.step == STEPS[-1] else "an older one"
