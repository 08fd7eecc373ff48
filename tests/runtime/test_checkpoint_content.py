"""What a checkpoint holds: what trains, and what the user adds. The plain checkpoint and the tiers alike."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from launcher.common import names
from launcher.model import checkpointing
from launcher.runtime.checkpoint import Checkpoints, latest_progress
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.checkpoint_search import StateMismatch
from launcher.runtime.content import Content
from launcher.runtime.elastic import Job, StepSampler
from launcher.runtime.process_group import Place
from launcher.runtime.tiers.tier_settings import Cadence, TierSettings
from launcher.runtime.tiers.training import TieredCheckpoints

WIDTH, WORDS, RANK_OF_ADAPTER = 12, 20, 2


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter, as PEFT makes them."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs, bias=False)
        self.lora_A = nn.Linear(inputs, RANK_OF_ADAPTER, bias=False)
        self.lora_B = nn.Linear(RANK_OF_ADAPTER, outputs, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base_layer(inputs) + self.lora_B(self.lora_A(inputs))


class Language(nn.Module):
    """Embeddings tied to the head, a normalization with buffers, and a linear layer, with an adapter or without."""

    def __init__(self, *, adapted: bool):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.block = Adapted(WIDTH, WIDTH) if adapted else nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        if adapted:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_("lora" in name)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.block(self.embed(words))))


def language(*, adapted: bool, seed: int, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return a model whose frozen weights are always the same, and whose trained ones come from `seed`."""
    torch.manual_seed(1)
    model = Language(adapted=adapted)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    return wrap(model)


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def checkpointed(model: nn.Module) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model.block = checkpoint_wrapper(model.block)
    return DistributedDataParallel(model)


WRAPS = {
    "plain": lambda model: model,
    "ddp": DistributedDataParallel,
    "fsdp2": fully_shard,
    "compiled": lambda model: DistributedDataParallel(compiled(model)),
    "checkpointed": checkpointed,
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
    words = torch.randint(WORDS, (8,), generator=torch.Generator().manual_seed(seed))
    loss = nn.functional.cross_entropy(model(words), words)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def trained(adapted: bool, seed: int, wrap: Callable) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = language(adapted=adapted, seed=seed, wrap=wrap)
    # As scripts do it, frozen parameters and all.
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def saved_names(folder: Path) -> set[str]:
    return set(FileSystemReader(latest_progress(folder)[0]).read_metadata().state_dict_metadata)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("adapted", [True, False], ids=["lora", "full"])
def test_what_trains_is_saved_once_and_training_continues_exactly(tmp_path, wrap, adapted):
    folder = tmp_path / "kept"

    def work(place: Place) -> tuple[list[float], list[float]]:
        model, optimizer = trained(adapted, 2, WRAPS[wrap])
        for number in range(3):
            step(model, optimizer, number)
        Checkpoints(folder).save(Content(model, optimizer), Progress(3, 30, place.world_size))
        following = [step(model, optimizer, number) for number in (3, 4)]
        model, optimizer = trained(adapted, 7, WRAPS[wrap])
        Checkpoints(folder).load(Content(model, optimizer))
        return following, [step(model, optimizer, number) for number in (3, 4)]

    for following, continued in run_ranks(2, work, tmp_path):
        assert continued == following
    names = {name for name in saved_names(folder) if name.startswith("model.")}
    buffers = {f"model.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    if adapted:
        assert names == buffers | {"model.block.lora_A.weight", "model.block.lora_B.weight"}
    else:
        own = {"embed.weight", "block.weight", "block.bias", "norm.weight", "norm.bias"}
        assert names == buffers | {f"model.{name}" for name in own}


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [True, False], ids=["lora", "full"])
def test_bytes_are_those_that_the_command_estimates(tmp_path, adapted):
    model, optimizer = trained(adapted, 2, WRAPS["plain"])
    step(model, optimizer, 0)
    Checkpoints(tmp_path).save(Content(model, optimizer), Progress(1, 10, 1))
    metadata = FileSystemReader(latest_progress(tmp_path)[0]).read_metadata().state_dict_metadata
    buffers = {f"model.{name}" for name, _ in model.named_buffers()}
    measured = sum(
        each.size.numel() * each.properties.dtype.itemsize
        for name, each in metadata.items()
        if isinstance(each, TensorStorageMetadata) and name not in buffers and not name.endswith(".step")
    )
    num_trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert measured == checkpointing.Content(num_trained, "float32", "adam_fp32", "ddp").total_bytes


@pytest.mark.slow
def test_a_checkpoint_with_frozen_and_tied_weights_of_before_still_loads(tmp_path):
    """It holds everything; frozen weights come from it too."""
    model, optimizer = trained(True, 2, WRAPS["plain"])
    step(model, optimizer, 0)
    Checkpoints(tmp_path).save(Content(model, optimizer, save_frozen=True), Progress(1, 10, 1))
    assert "model.embed.weight" in saved_names(tmp_path)
    following = step(model, optimizer, 1)
    model, optimizer = trained(True, 7, WRAPS["plain"])
    nn.init.zeros_(model.embed.weight)
    Checkpoints(tmp_path).load(Content(model, optimizer))
    assert step(model, optimizer, 1) == following


def test_what_was_trained_before_it_was_frozen_is_kept(tmp_path):
    model, optimizer = trained(False, 2, WRAPS["plain"])
    step(model, optimizer, 0)
    model.embed.weight.requires_grad_(False)
    step(model, optimizer, 1)
    Checkpoints(tmp_path).save(Content(model, optimizer), Progress(2, 20, 1))
    fresh, other = trained(False, 7, WRAPS["plain"])
    fresh.embed.weight.requires_grad_(False)
    Checkpoints(tmp_path).load(Content(fresh, other))
    assert torch.equal(fresh.embed.weight, model.embed.weight)


def test_a_parameter_that_had_no_gradient_yet_is_restored_without_a_state(tmp_path):
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "later": nn.Linear(3, 1)})
    optimizer = torch.optim.AdamW(model.parameters())
    model["used"](torch.ones(3)).backward()
    optimizer.step()
    Checkpoints(tmp_path).save(Content(model, optimizer), Progress(1, 10, 1))
    fresh = nn.ModuleDict({"used": nn.Linear(3, 1), "later": nn.Linear(3, 1)})
    other = torch.optim.AdamW(fresh.parameters())
    Checkpoints(tmp_path).load(Content(fresh, other))
    assert torch.equal(fresh["later"].weight, model["later"].weight)
    assert other.state[fresh["used"].weight]["step"].item() == 1.0
    assert not other.state[fresh["later"].weight]


def test_a_parameter_that_trains_and_is_not_in_the_checkpoint_is_a_mismatch(tmp_path):
    model, optimizer = trained(True, 2, WRAPS["plain"])
    Checkpoints(tmp_path).save(Content(model, optimizer), Progress(1, 10, 1))
    model.embed.weight.requires_grad_(True)
    with pytest.raises(StateMismatch, match=r"model\.embed\.weight"):
        Checkpoints(tmp_path).load(Content(model, torch.optim.AdamW(model.parameters())))


class Counters:
    """A script's own state: its keys change while it runs, and it holds a tensor."""

    def __init__(self, **values: Any):
        self.values: dict[str, Any] = dict(values)

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values = state_dict


class Average:
    """Averaged weights, sharded as the model is."""

    def __init__(self, model: nn.Module):
        self.weights = {name: each.detach().clone() for name, each in model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "decay": 0.9}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.weights = state_dict["weights"]


def plain_checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "kept")


def tiered_checkpoints(folder: Path) -> TieredCheckpoints:
    settings = TierSettings("ns", None, Cadence(1, 2), str(folder / "kept"))
    return TieredCheckpoints(settings, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [plain_checkpoints, tiered_checkpoints], ids=["plain", "tiers"])
def test_user_content_is_saved_and_restored_at_another_number_of_ranks(tmp_path, kind):
    def content(model: nn.Module, average: Average, counters: Counters, scaler: Any) -> Content:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        user_content = {"average": average, "counters": counters, "scaler": scaler}
        return Content(model, optimizer, user_content=user_content)

    def sharded(value: float) -> nn.Module:
        model = fully_shard(nn.Linear(5, 7))
        nn.init.constant_(model.weight, value)
        return model

    def save(place: Place) -> list[Any]:
        model = sharded(2.0)
        counters = Counters(seen={"a": 3, 4: [torch.arange(3), (torch.tensor(2.5), "x")]}, odd=OrderedDict(b=1))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        checkpoints = kind(tmp_path)
        checkpoints.save(content(model, Average(model), counters, scaler), Progress(1, 10, 2), is_last=True)
        return Average(model).weights["weight"].full_tensor().tolist()

    def load(place: Place) -> list[Any]:
        model = sharded(0.0)
        average, counters = Average(model), Counters(seen="nothing")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        checkpoints = kind(tmp_path)
        assert checkpoints.load(content(model, average, counters, scaler)) == Progress(1, 10, 2)
        assert isinstance(average.weights["weight"], DTensor) and scaler.get_scale() == 8.0
        tensor, (number, text) = counters.values["seen"].pop(4)
        assert tensor.tolist() == [0, 1, 2] and number.item() == 2.5 and text == "x"
        assert counters.values == {"seen": {"a": 3}, "odd": OrderedDict(b=1)}
        assert type(counters.values["odd"]) is OrderedDict
        return average.weights["weight"].full_tensor().tolist()

    saved = run_ranks(2, save, tmp_path)
    assert run_ranks(3, load, tmp_path) == [saved[0]] * 3


@pytest.mark.parametrize("kind", [plain_checkpoints, tiered_checkpoints], ids=["plain", "tiers"])
@pytest.mark.parametrize(
    "values",
    [
        {"a/b": torch.ones(2), "a": {"b": torch.zeros(2)}},
        {0: torch.ones(2), "0": torch.zeros(2), "%=0": torch.full((2,), 3.0)},
        {"a%2Fb": torch.ones(2), "a/b": torch.zeros(2)},
        {"sparse": torch.eye(3).to_sparse()},
    ],
    ids=["slash in a key", "number and text", "escape in a key", "sparse"],
)
def test_every_tensor_of_user_content_is_restored_where_it_was(tmp_path, kind, values):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    content = Content(model, optimizer, user_content={"counters": Counters(values=values)})
    kind(tmp_path).save(content, Progress(1, 10, 1), is_last=True)
    counters = Counters()
    kind(tmp_path).load(Content(model, optimizer, user_content={"counters": counters}))

    def plain(structure: Any) -> Any:
        if isinstance(structure, dict):
            return {key: plain(each) for key, each in structure.items()}
        return structure.to_dense().tolist()

    assert plain(counters.values["values"]) == plain(values)


@pytest.mark.parametrize("kind", [plain_checkpoints, tiered_checkpoints], ids=["plain", "tiers"])
def test_user_content_that_a_checkpoint_lacks_keeps_its_initial_values(tmp_path, kind, capsys):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind(tmp_path).save(Content(model, optimizer), Progress(1, 10, 1), is_last=True)
    counters = Counters(seen=5)
    kind(tmp_path).load(Content(model, optimizer, user_content={"counters": counters}))
    assert counters.values == {"seen": 5}
    assert "has no user_content 'counters': it keeps its initial values" in capsys.readouterr().out


@pytest.mark.slow
def test_objects_of_the_first_rank_are_saved(tmp_path):
    folder = tmp_path / "kept"

    def work(place: Place) -> int:
        model = DistributedDataParallel(nn.Linear(3, 1))
        optimizer, counters = torch.optim.SGD(model.parameters()), Counters(rank=place.rank)
        content = Content(model, optimizer, user_content={"counters": counters})
        Checkpoints(folder).save(content, Progress(1, 10, 2))
        counters.values = {}
        Checkpoints(folder).load(content)
        return counters.values["rank"]

    assert run_ranks(2, work, tmp_path) == [0, 0]


@pytest.mark.parametrize(
    ("user_content", "error", "says"),
    [
        ({"optimizer": Counters()}, ValueError, "'optimizer'.* none of model, optimizer, scheduler, random"),
        ({"random": Counters()}, ValueError, "'random'"),
        ({"a.b": Counters()}, ValueError, r"'a\.b': a name consists of letters, digits, _ and -"),
        ({"": Counters()}, ValueError, "''"),
        ({"ema": {"a": 1}}, TypeError, "'ema': dict lacks state_dict or load_state_dict"),
    ],
    ids=["optimizer", "random", "dot", "empty", "not-stateful"],
)
def test_user_content_that_cannot_be_saved_is_refused_at_once(tmp_path, user_content, error, says):
    model = nn.Linear(3, 1)
    with pytest.raises(error, match=says):
        Job(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            sampler=StepSampler(8, 4),
            folder=tmp_path,
            user_content=user_content,
        )


def test_a_job_restores_its_user_content(tmp_path, monkeypatch):
    monkeypatch.setenv(names.ENV_RUN_DIR, str(tmp_path))

    def run(stop_at: int) -> dict[str, Any]:
        torch.manual_seed(1)
        model, counters = nn.Linear(3, 1), Counters(steps=0)
        optimizer, sampler = torch.optim.SGD(model.parameters(), lr=0.1), StepSampler(16, 4)
        job = Job(
            model,
            optimizer,
            sampler=sampler,
            user_content={"counters": counters},
            event_pending=lambda: job.step + 1 == stop_at,
        )
        for positions in job.steps(sampler):
            job.weigh(model(torch.ones(len(positions), 3)).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            counters.values = {"steps": counters.values["steps"] + 1}
        return counters.values

    assert run(stop_at=2) == {"steps": 2}
    assert run(stop_at=0) == {"steps": 4}
