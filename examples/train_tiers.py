"""Train a small classifier whose state is in the tiers of its recipe: killed at any step, it resumes.

Run it: torchrun --nproc-per-node=2 examples/train_tiers.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from launcher.common.names import run_dir
from launcher.runtime.tiers.tier_settings import Cadence, TierSettings, tier_settings_from_env
from launcher.runtime.tiers.training import manager_of

SAMPLES_PER_RANK = 16
NUM_STEPS = 96
OWN_TIERS = TierSettings(  # if no recipe defines any
    namespace="spirals",
    memory=Cadence(frequency=5, retention=2),
    persistent=Cadence(frequency=25, retention=2),
    path="checkpoints",
)


def spirals(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's points of a step on two spirals, one per class: shapes `(n, 2)` and `(n,)`."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    radius = torch.rand(SAMPLES_PER_RANK, generator=generator)
    label = torch.randint(2, (SAMPLES_PER_RANK,), generator=generator)
    angle = 4 * radius + torch.pi * label
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label


def main() -> None:
    dist.init_process_group()
    device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def state() -> dict[str, dict]:
        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))

    manager = manager_of(tier_settings_from_env() or OWN_TIERS, run_dir())
    done = 0
    if restored := manager.load(lambda manifest: state()):
        loaded, done = restored.state, restored.step
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    for step in range(done + 1, NUM_STEPS + 1):
        points, labels = spirals(step)
        loss = F.cross_entropy(model(points.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if manager.is_due(step):
            manager.save(state(), step, {})  # returns when the state is copied
        if dist.get_rank() == 0:
            print(f"step {step}/{NUM_STEPS}  loss {loss.item():.6f}", flush=True)

    manager.save(state(), NUM_STEPS, {}, everywhere=True)
    manager.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
