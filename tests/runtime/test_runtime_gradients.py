"""The gradient of a step against one process on the same samples: every grouping, layout and division."""

import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from background import await_true
from gradient_memory import Allocations, GradientBytes, complete_bytes, gradient_bytes
from runtime_ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from launcher.runtime.elastic import Job, StepSampler
from launcher.runtime.loss_weighting import MixedDivision
from launcher.runtime.process_group import Place
from launcher.runtime.sampler import SamplerMismatch

VOCAB, WIDTH, NUM_SAMPLES, SAMPLES_PER_STEP, SEED = 11, 8, 30, 12, 5
IGNORED = -100
MEANS = ("tokens", "samples", "no_loss_reported")


class TokenModel(nn.Module):
    """Maps tokens `(B, L)` to logits `(B, L, VOCAB)`; its width divides by two tensor-parallel ranks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.outer(torch.tanh(self.inner(self.tokens(tokens)))))


def new_model(dtype: torch.dtype = torch.float64, width: int = WIDTH) -> TokenModel:
    torch.manual_seed(2)
    return TokenModel(width).to(dtype)


def sequences() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return tokens and targets of each sample: 3 to 13 tokens, of which some are not trained on."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for number in range(NUM_SAMPLES):
        tokens = torch.randint(VOCAB, (3 + number % 11,), generator=generator)
        targets = torch.randint(VOCAB, tokens.shape, generator=generator)
        targets[: number % 3] = IGNORED
        found.append((tokens, targets))
    return found


SEQUENCES = sequences()
TRAINED_TOKENS = torch.tensor([int((targets != IGNORED).sum()) for _, targets in SEQUENCES])


def batch_of(indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and targets of the samples, padded to the longest."""
    tokens, targets = zip(*(SEQUENCES[index] for index in indices), strict=True)
    padded = nn.utils.rnn.pad_sequence
    return padded(tokens, batch_first=True), padded(targets, batch_first=True, padding_value=IGNORED)


def losses_of_samples(model: nn.Module, indices: list[int]) -> torch.Tensor:
    """Return each sample's sum of token losses, shape `(len(indices),)`."""
    tokens, targets = batch_of(indices)
    of_tokens = F.cross_entropy(model(tokens).transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    return of_tokens.sum(dim=1)


def token_losses(model: nn.Module, indices: list[int]) -> torch.Tensor:
    """Return the sum of the token losses of the samples, shape `()`."""
    return losses_of_samples(model, indices).sum()


def sample_means(model: nn.Module, indices: list[int]) -> torch.Tensor:
    """Return the mean over samples of each sample's mean token loss, shape `()`."""
    return (losses_of_samples(model, indices) / TRAINED_TOKENS[indices]).mean()


def samples_of_step(step: int) -> list[int]:
    order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(SEED))
    return order.split(SAMPLES_PER_STEP)[step].tolist()


def in_one_process(mean: str, step: int) -> tuple[float, torch.Tensor]:
    """Return loss and gradient of a step by one process that knows nothing of the library."""
    model, indices = new_model(), samples_of_step(step)
    if mean == "tokens":
        loss = token_losses(model, indices) / TRAINED_TOKENS[indices].sum()
    else:
        loss = sample_means(model, indices)
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@dataclass
class Layout:
    """How a model lies on the ranks, and which part of the samples this rank takes."""

    model: nn.Module
    dp_rank: int | None = None
    dp_size: int | None = None


def sharded(
    model: nn.Module, mesh: DeviceMesh | None = None, policy: MixedPrecisionPolicy | None = None
) -> nn.Module:
    arguments = {"mp_policy": policy} if policy else {}
    fully_shard(model.inner, mesh=mesh, **arguments)
    return fully_shard(model, mesh=mesh, **arguments)


def divided_by(model: nn.Module, factor: float) -> nn.Module:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that multiplies
    return model


def two_by_two(kind: str) -> Layout:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp_rank, model = mesh.get_local_rank("dp"), new_model()
    if kind == "dp2_tp2_ddp":  # the two ranks of a tp group do the same work
        return Layout(DistributedDataParallel(model, process_group=mesh.get_group("dp")), dp_rank, 2)
    if kind == "dp2_twice_ddp":  # the same, averaged over all four
        return Layout(DistributedDataParallel(model), dp_rank, 2)
    parallelize_module(model, mesh["tp"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    return Layout(sharded(model, mesh["dp"]), dp_rank, 2)


def layout(kind: str) -> Layout:
    if kind == "ddp":
        return Layout(DistributedDataParallel(new_model()))
    if kind == "fsdp2":
        return Layout(sharded(new_model()))
    if kind == "fsdp2_no_division":
        return Layout(divided_by(sharded(new_model()), 1.0))
    if kind == "fsdp2_divided_by_7":
        return Layout(divided_by(sharded(new_model()), 7.0))
    if kind == "fsdp2_reduced_in_float32":
        return Layout(sharded(new_model(), policy=MixedPrecisionPolicy(reduce_dtype=torch.float32)))
    if kind == "hybrid":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return Layout(sharded(new_model(), mesh))
    if kind == "replicas":  # of fully_shard, with one rank for each shard
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        return Layout(sharded(new_model(), mesh))
    if kind == "hybrid_no_division":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return Layout(divided_by(sharded(new_model(), mesh), 1.0))
    return two_by_two(kind)


def new_job(found: Layout, folder: Path, losses: list, **arguments) -> tuple[Job, StepSampler]:
    sampler = StepSampler(
        NUM_SAMPLES, SAMPLES_PER_STEP, seed=SEED, rank=found.dp_rank, world_size=found.dp_size, **arguments
    )
    optimizer = torch.optim.SGD(found.model.parameters(), lr=0.0)
    job = Job(
        found.model,
        optimizer,
        sampler=sampler,
        folder=folder / "checkpoints",
        save_every=0,
        on_step=lambda metrics: losses.append(metrics.loss),
    )
    return job, sampler


def train(place: Place, kind: str, mean: str, folder: Path, **arguments) -> tuple[list[float], list[torch.Tensor]]:
    """Return each step's reported loss, of rank 0, and its full gradient."""
    found, losses, gradients = layout(kind), [], []
    job, sampler = new_job(found, folder, losses, **arguments)
    for indices in job.steps(sampler):
        if mean == "tokens":
            loss = job.weigh_sum(token_losses(found.model, indices), job.step_sum(TRAINED_TOKENS))
        elif mean == "no_loss_reported":
            loss = sample_means(found.model, indices) * job.weight
        else:
            loss = job.weigh(sample_means(found.model, indices))
        loss.backward()
        if job.completes_step:
            parts = [parameter.grad for parameter in found.model.parameters()]
            full = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in parts]
            gradients.append(torch.cat([part.flatten() for part in full]).clone())
            job.optimizer.step()
            job.optimizer.zero_grad()
    return losses, gradients


@cache
def trained(folder: Path, world_size: int, kind: str, **arguments) -> list[dict[str, tuple]]:
    """Return what each rank found with each mean; one group of ranks trains all, one after another."""
    of_group = Path(tempfile.mkdtemp(dir=folder))

    def work(place: Place) -> dict[str, tuple]:
        return {mean: train(place, kind, mean, of_group / mean, **arguments) for mean in MEANS}

    return run_ranks(world_size, work, of_group)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the folder of all groups of ranks."""
    return tmp_path_factory.mktemp("ranks")


def check(folder: Path, world_size: int, kind: str, mean: str, tolerance: float = 1e-12, **arguments) -> None:
    found = [each[mean] for each in trained(folder, world_size, kind, **arguments)]
    expected = [in_one_process("samples" if mean == "no_loss_reported" else mean, step) for step in range(3)]
    for _, gradients in found:
        for gradient, (_, wanted) in zip(gradients, expected, strict=True):
            assert (gradient - wanted).abs().max() < tolerance
    wanted = [loss if mean != "no_loss_reported" else None for loss, _ in expected]
    assert found[0][0] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "arguments"),
    [
        (1, {"micro_batch_size": 5}),
        (2, {"micro_batch_size": 4}),
        (2, {"per_rank": (9, 3), "micro_batch_size": 2}),
        (3, {"per_rank": (1, 4, 7)}),
        (3, {"per_rank": (6, 6, 0), "micro_batch_size": 4}),
        (4, {"micro_batch_size": 1}),
    ],
    ids=["1_rank", "2_ranks", "2_uneven", "3_uneven", "a_rank_without_samples", "4_ranks"],
)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.parametrize("mean", ["tokens", "samples"])
def test_the_gradient_does_not_depend_on_the_grouping(folder, world_size, kind, mean, arguments):
    """30 samples in steps of 12: the last step takes 6, on 4 ranks unevenly."""
    check(folder, world_size, kind, mean, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(
    ("kind", "world_size"),
    [
        ("hybrid", 4),
        ("hybrid_no_division", 4),
        ("dp2_tp2_fsdp2", 4),
        ("dp2_tp2_ddp", 4),
        ("dp2_twice_ddp", 4),
        ("fsdp2_no_division", 3),
        ("fsdp2_divided_by_7", 2),
    ],
)
def test_the_gradient_does_not_depend_on_the_mesh_or_its_division(folder, world_size, kind, mean):
    check(folder, world_size, kind, mean, micro_batch_size=4)


@pytest.mark.slow
def test_gradients_reduced_in_float32_are_equal_to_its_precision(folder):
    check(folder, 2, "fsdp2_reduced_in_float32", "tokens", tolerance=1e-6, micro_batch_size=4)


@pytest.mark.slow
def test_the_mean_of_each_micro_batch_depends_on_the_grouping(tmp_path):
    """What a model's own `.loss` is: passed to `weigh` it is neither of the two means."""

    def gradient(place: Place, micro: int) -> torch.Tensor:
        model = new_model()
        job, sampler = new_job(Layout(model), tmp_path, [], micro_batch_size=micro)
        for indices in job.steps(sampler):
            total = token_losses(model, indices)
            job.weigh(total / TRAINED_TOKENS[indices].sum()).backward()
            if job.completes_step:
                return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        raise AssertionError

    found = [run_ranks(1, partial(gradient, micro=micro), tmp_path)[0] for micro in (1, 4, 12)]
    assert all((one - other).abs().max() > 1e-4 for one, other in zip(found, found[1:], strict=False))


@pytest.mark.slow
def test_modules_that_divide_by_different_factors_are_refused(tmp_path):
    def train_mixed(place: Place) -> str:
        found = layout("fsdp2")
        found.model.inner.set_gradient_divide_factor(5.0)
        job, sampler = new_job(found, tmp_path, [])
        with pytest.raises(MixedDivision) as raised:
            for indices in job.steps(sampler):
                job.weigh(token_losses(found.model, indices))
        return str(raised.value)

    assert "2.0 and 5.0" in run_ranks(2, train_mixed, tmp_path)[0]


def test_a_sampler_that_does_not_divide_the_ranks_is_refused(tmp_path):
    def train_wrong(place: Place) -> None:
        job, sampler = new_job(Layout(new_model(), 0, 3), tmp_path, [])
        with pytest.raises(SamplerMismatch, match="3 data-parallel ranks.*2 ranks"):
            next(iter(job.steps(sampler)))

    run_ranks(2, train_wrong, tmp_path)


@pytest.mark.parametrize("total", [0, -1, float("nan")])
def test_a_step_with_nothing_to_train_on_is_refused(tmp_path, total):
    model = new_model()
    job, sampler = new_job(Layout(model), tmp_path, [])
    for indices in job.steps(sampler):
        with pytest.raises(ValueError, match="step_total"):
            job.weigh_sum(token_losses(model, indices), total)
        break


def test_a_sum_over_the_step_takes_one_number_per_sample(tmp_path):
    job, sampler = new_job(Layout(new_model()), tmp_path, [])
    for _ in job.steps(sampler):
        assert job.step_sum(TRAINED_TOKENS) == TRAINED_TOKENS[samples_of_step(0)].sum()
        assert job.step_sum(TRAINED_TOKENS.numpy()) == job.step_sum(TRAINED_TOKENS.tolist())
        with pytest.raises(ValueError, match="30 samples"):
            job.step_sum(TRAINED_TOKENS[:-1])
        break


def bytes_of_passes(place: Place, kind: str, folder: Path, *, once: bool) -> list[GradientBytes]:
    """Return the gradients that this rank holds after each pass of a step.

    Args:
        once: Whether replicas exchange their sums in the last pass only.
    """
    found, counted = layout(kind), []
    job, sampler = new_job(found, folder, [], micro_batch_size=2)
    for indices in job.steps(sampler):
        if once:
            found.model.set_requires_all_reduce(job.completes_step)
        job.weigh_sum(token_losses(found.model, indices), job.step_sum(TRAINED_TOKENS)).backward()
        counted.append(gradient_bytes(found.model))
        if job.completes_step:
            return counted
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "world_size", "once"),
    [
        ("fsdp2", 2, False),
        ("fsdp2", 3, False),
        ("hybrid", 4, False),
        ("hybrid", 4, True),
        ("dp2_tp2_fsdp2", 4, False),
    ],
)
def test_a_rank_holds_its_shards_of_the_gradients_between_passes(tmp_path, kind, world_size, once):
    sizes = run_ranks(world_size, partial(bytes_of_passes, kind=kind, folder=tmp_path, once=once), tmp_path)
    complete = complete_bytes(new_model())
    shards = 2 if world_size == 4 else world_size
    for of_rank in sizes:
        assert len(of_rank) > 1 and not any(each.unsharded for each in of_rank)
        assert max(each.total for each in of_rank) <= complete / shards + complete / 8  # parts are rounded up
        assert (of_rank[0].partial > 0) == once and of_rank[-1].partial == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "replicas"])
def test_gradients_that_are_not_sharded_are_exchanged_once_in_a_step(tmp_path, kind):
    sizes = run_ranks(2, partial(bytes_of_passes, kind=kind, folder=tmp_path, once=False), tmp_path)
    for of_rank in sizes:
        assert [each.total for each in of_rank] == [complete_bytes(new_model())] * 3
        assert [each.unsharded > 0 for each in of_rank] == [kind == "replicas"] * 2 + [False]


@pytest.mark.slow
def test_a_pass_leaves_no_more_memory_in_use_than_the_shards_of_the_gradients(tmp_path):
    """Counted by allocations, which overlook nothing that fully_shard may keep."""

    def work(place: Place) -> list[tuple[int, int]]:
        found, counted = Layout(sharded(new_model(width=64))), []
        job, sampler = new_job(found, tmp_path, [], micro_batch_size=1)
        with Allocations() as allocations:
            for indices in job.steps(sampler):
                loss = job.weigh_sum(token_losses(found.model, indices), job.step_sum(TRAINED_TOKENS))
                loss.backward()
                del loss
                # gloo's threads hold what they exchanged until a moment after the exchange has ended.
                await_true(lambda: allocations.bytes_in_use() < limit)
                counted.append((allocations.bytes_in_use(), gradient_bytes(found.model).total))
                if job.completes_step:
                    return counted
        raise AssertionError

    limit = 0.75 * complete_bytes(new_model(width=64))
    for of_rank in run_ranks(2, work, tmp_path):
        for in_use, gradients in of_rank:
            assert gradients <= in_use < limit


@pytest.mark.slow
def test_a_parameter_that_only_the_first_pass_uses_gets_its_gradient(tmp_path):
    """An expert without tokens in the last pass, under hybrid sharding: no pass may mix up or lose gradients."""

    def work(place: Place) -> float:
        model = new_model()
        model.inner, model.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        uses_inner = True
        model.forward = lambda tokens: model.head((model.inner if uses_inner else model.outer)(model.tokens(tokens)))
        model = sharded(model.double(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
        job, sampler = new_job(Layout(model), tmp_path, [], micro_batch_size=1)
        first = None
        for indices in job.steps(sampler):
            job.weigh_sum(token_losses(model, indices), job.step_sum(TRAINED_TOKENS)).backward()
            gradient = model.inner.weight.grad.full_tensor()
            first = gradient.clone() if first is None else first
            uses_inner = False
            if job.completes_step:
                assert model.outer.weight.grad is not None
                return (gradient - first).abs().max().item()
        raise AssertionError

    assert run_ranks(4, work, tmp_path) == [0.0] * 4
