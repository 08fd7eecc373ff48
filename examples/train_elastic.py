"""train_ddp.py made elastic: it can be stopped at any step and resume with any number of ranks.

Run it: torchrun --nproc-per-node=2 examples/train_elastic.py
"""

from launcher.runtime import elastic  # before torch: it catches the agent's stop signal

# isort: split
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

NUM_SAMPLES = 1024
SAMPLES_PER_STEP = 32  # over all ranks
EPOCHS = 3
NUM_STEPS = EPOCHS * NUM_SAMPLES // SAMPLES_PER_STEP


def spirals() -> TensorDataset:
    """Return points on two spirals, one per class: (x, y) -> 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    radius = torch.rand(NUM_SAMPLES, generator=generator)
    label = torch.randint(2, (NUM_SAMPLES,), generator=generator)
    angle = 4 * radius + torch.pi * label
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label)


def mean_over_ranks(loss: torch.Tensor) -> float:
    """Return the mean of the ranks' losses."""
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def main() -> None:
    elastic.join()
    device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)

    data = spirals()
    sampler = elastic.StepSampler(len(data), SAMPLES_PER_STEP, EPOCHS)
    loader = DataLoader(data, batch_sampler=sampler)
    job = elastic.Job(model, optimizer, scheduler, sampler=sampler)
    for points, labels in job.steps(loader):
        loss = job.weigh(F.cross_entropy(model(points.to(device)), labels.to(device)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        mean = mean_over_ranks(loss)
        if dist.get_rank() == 0:
            print(f"step {scheduler.last_epoch}/{NUM_STEPS}  loss {mean:.6f}", flush=True)


if __name__ == "__main__":
    elastic.run(main)
