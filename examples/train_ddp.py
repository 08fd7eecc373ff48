"""Train a small classifier with DistributedDataParallel.

Run it: torchrun --nproc-per-node=2 examples/train_ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

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


def passes(loader: DataLoader, sampler: DistributedSampler):
    """Yield the data in a new order each epoch."""
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        yield from loader


def main() -> None:
    dist.init_process_group()
    device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)

    data = spirals()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=SAMPLES_PER_STEP // dist.get_world_size(), sampler=sampler)
    for points, labels in passes(loader, sampler):
        loss = F.cross_entropy(model(points.to(device)), labels.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        mean = mean_over_ranks(loss)
        if dist.get_rank() == 0:
            print(f"step {scheduler.last_epoch}/{NUM_STEPS}  loss {mean:.6f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
