"""Train a tiny language model on sentences of different lengths, elastically: each token has the same weight.

Run it: torchrun --nproc-per-node=2 examples/train_language_model.py
"""

from launcher.runtime import elastic  # before torch: it catches the agent's stop signal

# isort: split
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from launcher.common.names import run_dir

NUM_SAMPLES = 256
SAMPLES_PER_STEP = 16  # over all ranks
EPOCHS = 2
VOCAB = 32
IGNORED = -100  # cross_entropy ignores such targets


def sentences(seed: int, number: int) -> list[torch.Tensor]:
    """Sequences of 4 to 40 tokens that each count up by their own step."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in torch.randint(4, 41, (number,), generator=generator):
        first, step = torch.randint(1, 4, (2,), generator=generator)
        found.append((first + step * torch.arange(length)) % VOCAB)
    return found


def collate(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and next tokens, padded to the longest sentence: shapes `(B, L)`."""
    inputs = pad_sequence([tokens[:-1] for tokens in batch], batch_first=True)
    return inputs, pad_sequence([tokens[1:] for tokens in batch], batch_first=True, padding_value=IGNORED)


class Model(nn.Module):
    """A recurrent network over token embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, 32)
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.tokens(tokens))[0])


def token_losses(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum, not the mean, over the tokens."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def main() -> None:
    elastic.join()
    device = torch.device("cuda", dist.get_node_local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data, held_out = sentences(0, NUM_SAMPLES), sentences(1, 64)
    trained_tokens = torch.tensor([len(tokens) - 1 for tokens in data])

    def evaluate() -> dict[str, float]:
        """Evaluate on the held-out sentences, each rank on its part."""
        inputs, targets = (part.to(device) for part in collate(held_out[dist.get_rank() :: dist.get_world_size()]))
        with torch.no_grad():
            sums = torch.stack([token_losses(model.module, inputs, targets), (targets != IGNORED).sum()])
        dist.all_reduce(sums)
        return {"eval/loss": (sums[0] / sums[1]).item()}

    def export() -> None:
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), run_dir() / "model.pt")

    sampler = elastic.StepSampler(len(data), SAMPLES_PER_STEP, EPOCHS)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    job = elastic.Job(
        model,
        optimizer,
        sampler=sampler,
        on_step=lambda step: print(f"step {step.step}  loss {step.loss:.6f}", flush=True),
        hooks=elastic.Hooks(evaluate=evaluate, export=export),
    )
    for tokens, targets in job.steps(loader):
        total = token_losses(model, tokens.to(device), targets.to(device))
        job.weigh_sum(total, job.step_sum(trained_tokens)).backward()
        job.report(grad_norm=nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()

    elastic.leave()


if __name__ == "__main__":
    main()
