"""The program of a rank in the stage `nccl`: `rank.py nccl|gloo FILE [--tiny]`, under the real agent.

It joins the group, times reductions, trains some steps with the open trainer, and the first rank writes FILE. Ranks
share a GPU where there are fewer of them.
"""

import json
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu import devices
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.shapes import LLAMA_1B, LORA, Shape, training_of
from benchmarks.gpu.training import Meter, Pace, losses_in, trained
from launcher.runtime import agent, process_group
from launcher.runtime.process_group import Place, place_from_env

SHARDED, REPLICATED = "FULL_SHARD", "NO_SHARD"
SHAPE = Shape(LLAMA_1B, 2048, 8, 1, recomputes=True, peft=LORA)
STEPS = 4


def joined(backend: str) -> Place:
    """Return the place of this rank, which has joined the group."""
    place = place_from_env()
    if place.device.type == "cpu":
        return process_group.join(place)
    place = replace(place, device=torch.device("cuda", place.local_rank % torch.cuda.device_count()))
    torch.cuda.set_device(place.device)
    torch.zeros(1, device=place.device)  # a mesh leaves a device alone that is in use
    # As a rank of the CPU it gets gloo alone, which exchanges tensors of any device.
    process_group.join(place if backend == "nccl" else replace(place, device=torch.device("cpu")))
    return place


def reductions(place: Place, *, tiny: bool) -> dict[str, Any]:
    """Return how fast a large tensor is summed over the ranks, and how long a small one takes."""
    large = torch.ones(2**16 if tiny else 2**24, device=place.device)
    small = torch.ones(1, dtype=torch.float64, device=place.device)
    times = {each: devices.median_s(lambda each=each: dist.all_reduce(each), place.device) for each in (large, small)}
    num_bytes = large.numel() * large.element_size()
    return {"bytes": num_bytes, "reduce_gb_per_s": num_bytes / times[large] / 1e9, "reduce_us": times[small] * 1e6}


def first_that_works(shape: Shape, place: Place, folder: Path, *, tiny: bool) -> dict[str, Any]:
    """Train with sharded weights or, where the backend cannot, with replicas."""
    problems = []
    for sharding in (SHARDED, REPLICATED):
        own = folder / sharding
        training = training_of(shape, own, world_size=place.world_size, tiny=tiny)
        parallel = replace(training.settings.parallel, sharding=sharding)
        training = replace(training, settings=replace(training.settings, parallel=parallel))
        # All ranks end at the same step: no time ends it.
        meter = Meter(Pace(float("inf"), STEPS), Budget(float("inf")), place.device)
        try:
            trained(training, place, meter, own)
        except RuntimeError as error:
            traceback.print_exc()
            problems.append(f"{sharding}: {str(error)[:500]}")
            continue
        speeds = [shape.tokens_per_step / each for each in meter.steps_s]
        loss = losses_in(own)[-1] if place.rank == 0 else None
        return {"sharding": sharding, "tokens_per_s": speeds, "loss": loss, "problems": problems}
    return {"sharding": "", "tokens_per_s": [], "loss": None, "problems": problems}


def main() -> None:
    """Do the work of a rank."""
    backend, out, tiny = sys.argv[1], Path(sys.argv[2]), "--tiny" in sys.argv
    agent.install_event_handler()
    place = joined(backend)
    found = reductions(place, tiny=tiny)
    # All ranks of one machine: the first one's folder serves all of them.
    made = tempfile.mkdtemp(dir=out.parent) if place.rank == 0 else ""
    folder = Path(process_group.share(made))
    found |= first_that_works(SHAPE.tiny() if tiny else SHAPE, place, folder, tiny=tiny)
    found["world_size"] = dist.get_world_size()
    if place.rank == 0:
        out.write_text(json.dumps(found))
    process_group.leave()


if __name__ == "__main__":
    main()
