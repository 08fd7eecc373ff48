"""The content of a checkpoint: the trained part of a model, its optimizer, and objects that the user adds.

Parameters known to be frozen are left out: they come from the base model. A wrapper that is not known thus makes a
checkpoint larger, never incomplete. A parameter with several names (tied weights) is saved once, under the first.

Checkpoints pickle `_Hole`: its name and that of this module are part of the format.
"""

import copy
import itertools
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import nn

from launcher.runtime import randomness
from launcher.runtime.process_group import rank, world_size
from launcher.runtime.rows import NotByRows, is_sharded

if TYPE_CHECKING:  # start-up time: only needed once there is a checkpoint to load
    from torch.distributed.checkpoint.metadata import Metadata

RESERVED = ("model", "optimizer", "scheduler", "random")
"""Names of the other parts of a checkpoint."""

_USER = "content"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
"""Parts of a parameter's name that `torch.distributed.checkpoint.state_dict` omits.

Source: torch.compile, activation checkpointing and FullyShardedDataParallel, which wrap a module in another.
"""


class Stateful(Protocol):
    """The interface of a learning-rate scheduler, a gradient scaler or a user's object."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


@dataclass(frozen=True, slots=True)
class Content:
    """The state of a training that is saved and restored. `state`, `form` and `put` are collective.

    Args:
        model: Plain, in DistributedDataParallel, or after fully_shard.
        scheduler: Saved as one object.
        user_content: Further objects by name. Each is replicated: its sharded tensors are saved by all ranks, its
            other tensors must be the same on all ranks, and everything else is saved by the first rank. A sharded
            tensor is restored sharded only if the object already has it; otherwise every rank gets the full tensor.
        save_frozen: Whether to save frozen parameters, too, for a model that changes them without an optimizer.

    Raises:
        ValueError: A name in `user_content` is reserved or not made of letters, digits, `_` and `-`.
        TypeError: An object in `user_content` lacks `state_dict` or `load_state_dict`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Stateful | None = None
    user_content: Mapping[str, Stateful] = field(default_factory=dict)
    save_frozen: bool = False
    named: Mapping[str, nn.Parameter] = field(init=False)
    """The parameters, each once: while `fully_shard` has gathered them, the model itself has others."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "named", dict(self.plain.named_parameters()))
        for name, each in self.user_content.items():
            if name in RESERVED or not _NAME.fullmatch(name):
                reserved = ", ".join(RESERVED)
                raise ValueError(
                    f"user_content {name!r}: a name consists of letters, digits, _ and -, and none of {reserved}"
                )
            if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
                raise TypeError(f"user_content {name!r}: {type(each).__name__} lacks state_dict or load_state_dict")

    def state(self) -> dict[str, Any]:
        """Return the state for `torch.distributed.checkpoint.save`."""
        state = self._training() | {"random": {_random_key(): pickle.dumps(randomness.state())}}
        if self.scheduler:
            state["scheduler"] = pickle.dumps(self.scheduler.state_dict())
        if self.user_content:
            state[_USER] = {name: _taken_apart(each.state_dict()) for name, each in self.user_content.items()}
        return state

    def form(self, metadata: "Metadata", num_ranks: int) -> dict[str, Any]:
        """Return the state to load a checkpoint into: parameters that train now, and frozen ones that it has."""
        names = set(metadata.state_dict_metadata)
        state = self._training(names)
        if num_ranks == world_size():
            state["random"] = {_random_key(): b""}
        if self.scheduler:
            state["scheduler"] = b""
        found = {name: each for name, each in self.user_content.items() if f"{_USER}.{name}.rest" in names}
        if found:
            state[_USER] = {name: _room_for(name, each.state_dict(), metadata) for name, each in found.items()}
        return state

    def put(self, state: dict[str, Any], step: int, warn: Callable[[str], None]) -> None:
        """Restore the loaded state of a step; `warn` is called for each part that the checkpoint lacks."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(strict=False),
        )
        if self.scheduler:
            self.scheduler.load_state_dict(pickle.loads(state["scheduler"]))
        for name, each in self.user_content.items():
            if name in state.get(_USER, ()):
                each.load_state_dict(_put_together(**state[_USER][name]))
            else:
                warn(f"the checkpoint has no user_content {name!r}: it keeps its initial values")
        if "random" in state:
            randomness.restore(pickle.loads(state["random"][_random_key()]))
        else:
            randomness.reseed(rank(), step)

    def alone(self) -> "Content | None":
        """Return the content of the plain model, without its DistributedDataParallel; None if a part is wrapped."""
        model, ddp = self.plain, nn.parallel.DistributedDataParallel
        if any(isinstance(each, ddp) for each in model.modules()):
            return None
        return self if model is self.model else replace(self, model=model)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has all parameters."""
        return not any(is_sharded(each) for each in self.named.values())

    def is_same(self, other: "Content") -> bool:
        """Return whether two contents are of the same objects, as far as their state goes."""

        def objects(content: "Content") -> list[object]:
            alone = content.alone()
            return [alone and alone.model, content.optimizer, content.scheduler, *content.user_content.values()]

        pairs = list(zip(objects(self), objects(other), strict=False))
        return list(self.user_content) == list(other.user_content) and all(one is two for one, two in pairs)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that are saved, by name, each once."""
        for name, parameter in self.named.items():
            if self._is_saved(parameter):
                yield name, parameter

    def _is_saved(self, parameter: nn.Parameter) -> bool:
        # A parameter that was trained and then frozen still has a state in the optimizer.
        return parameter.requires_grad or self.save_frozen or bool(self.optimizer.state.get(parameter))

    def model_state(self) -> dict[str, torch.Tensor]:
        """Return the parameters that are saved, and the buffers, by name, in their live tensors."""
        return {name: each.detach() for name, each in self.parameters()} | self._buffers()

    def live_state(self) -> dict[str, Any]:
        """Return the state in its live tensors: complete ones, or this rank's parts of them."""
        optimizer = self.optimizer
        named = dict(self.parameters())
        state: dict[str, Any] = {
            "model": self.model_state(),
            "optimizer": {name: dict(found) for name, each in named.items() if (found := optimizer.state.get(each))},
            "groups": [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups],
        }
        if self.scheduler:
            state["scheduler"] = pickle.dumps(self.scheduler.state_dict())
        if self.user_content:
            state[_USER] = {name: _all_taken_apart(each.state_dict()) for name, each in self.user_content.items()}
        return state

    def room(self, outline: "Outline") -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return a state of another rank's form, and its tensors by path: the model's own, and new ones like them.

        A tensor of the optimizer lies on the ranks as its parameter does, one of the user as it does now.

        Raises:
            NotByRows: A tensor of the optimizer has another shape than its parameter, which lies on several ranks.
        """
        named = {name: each.detach() for name, each in self.named.items()}
        current: dict[str, Any] = {"model": named | self._buffers()}
        current["optimizer"] = {name: {"": each} for name, each in named.items()}
        device = next(self.model.parameters()).device
        own = _tensors_of(current)
        for name, each in self.user_content.items():
            found = _tensors_of(each.state_dict())
            own |= {f"{_USER}/{_part(name)}/tensors/{_part(path)}": found[path] for path in found}
        tensors = {}
        for path, (shape, dtype, is_on_host) in outline.tensors.items():
            is_model, is_optimizer = path.startswith("model/"), path.startswith("optimizer/")
            like = own.get(f"{path.rpartition('/')[0]}/" if is_optimizer else path)
            if like is not None and (like.shape != shape or not (is_sharded(like) or is_model)):
                if is_optimizer and is_sharded(like) and shape.numel() > 1:
                    raise NotByRows(f"{path} has shape {list(shape)}, its parameter {list(like.shape)}")
                like = None
            if like is None:
                tensors[path] = torch.empty(shape, dtype=dtype, device="cpu" if is_on_host else device)
            elif is_model and like.dtype == dtype and _local(like).is_contiguous():
                tensors[path] = like
            else:
                tensors[path] = torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)
        return _mapped(outline.structure, lambda _, hole: tensors[hole.path]), tensors

    @torch.no_grad()
    def take(self, state: dict[str, Any]) -> None:
        """Continue with a state of `live_state` or `room`, whose tensors are the optimizer's from now on."""
        own = {name: each.detach() for name, each in self.named.items()} | self._buffers()
        for name, tensor in state["model"].items():
            if _local(tensor).data_ptr() != _local(own[name]).data_ptr():
                own[name].copy_(tensor)
        self.optimizer.state.clear()
        self.optimizer.state.update({self.named[name]: each for name, each in state["optimizer"].items()})
        for group, values in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group.update(values)
        if self.scheduler:
            self.scheduler.load_state_dict(pickle.loads(state["scheduler"]))
        for name, each in self.user_content.items():
            each.load_state_dict(_put_together(**state[_USER][name]))

    @property
    def plain(self) -> nn.Module:
        """The model without its DistributedDataParallel."""
        ddp = nn.parallel.DistributedDataParallel
        return self.model.module if isinstance(self.model, ddp) else self.model

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers that belong to the model's state, by name."""
        parameters = {name for name, _ in self.plain.named_parameters(remove_duplicate=False)}
        return {
            name: each
            for name, each in self.plain.state_dict().items()
            if name not in parameters and isinstance(each, torch.Tensor)
        }

    def _training(self, names: set[str] | None = None) -> dict[str, Any]:
        """Return the state of model and optimizer to save, or to load a checkpoint with these `names` into."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        left_out = set(self._left_out())  # frozen parameters, and further names of those that have several
        if names is not None:
            # Parameters that were trained before and are frozen now still come from the checkpoint.
            left_out -= {name for name in model if f"model.{name}" in names}
            # A parameter that had no gradient before the save has no state in the optimizer.
            begun = _parents(name for name in names if name.startswith("optimizer.state."))
            states = cast(dict[str, Any], optimizer["state"])
            kept = {name: each for name, each in states.items() if f"optimizer.state.{name}" in begun}
            optimizer = {**optimizer, "state": kept}
        model = {name: each for name, each in model.items() if name not in left_out}
        return {"model": model, "optimizer": optimizer}

    def _left_out(self) -> Iterator[str]:
        seen = set()
        for name, parameter in _named_parameters(self.model):
            if not self._is_saved(parameter) or parameter in seen:
                yield name
            seen.add(parameter)


def _random_key() -> str:
    return f"rank{rank()}"


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every parameter under each of its names, as torch.distributed.checkpoint.state_dict names them."""
    modules = model.named_modules(remove_duplicate=False)
    ddp = nn.parallel.DistributedDataParallel
    wrapped = {f"{name}.module".lstrip(".") for name, module in modules if isinstance(module, ddp)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        paths = itertools.accumulate(parts, "{}.{}".format)  # of each part, from the model on
        kept = (
            part for part, path in zip(parts, paths, strict=True) if part not in _WRAPPERS and path not in wrapped
        )
        yield ".".join(kept), parameter


def _parents(names: Iterable[str]) -> set[str]:
    """Return every prefix of these names that ends before a dot."""
    found = set()
    for name in names:
        while (name := name.rpartition(".")[0]) and name not in found:
            found.add(name)
    return found


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that may lie on several."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


@dataclass(frozen=True, slots=True)
class Outline:
    """The form of a state: its structure without tensors, and shape, type and place of each by path, sorted."""

    structure: Any
    tensors: Mapping[str, tuple[torch.Size, torch.dtype, bool]]


def outline(state: Any) -> tuple[Outline, dict[str, torch.Tensor]]:
    """Return the form of a state, and its tensors by path."""
    found = _tensors_of(state)
    tensors = {path: found[path].detach() for path in sorted(found)}
    forms = {path: (each.shape, each.dtype, each.device.type == "cpu") for path, each in tensors.items()}
    structure = _mapped(state, lambda path, _: _Hole(path))
    return Outline(structure, forms), tensors


@dataclass(frozen=True, slots=True)
class _Hole:
    """The placeholder of a tensor in a structure without its tensors."""

    path: str


def _taken_apart(structure: Any) -> dict[str, Any]:
    """Return the tensors of a structure by path and, on the first rank, the rest of it.

    Tensors go through torch.distributed.checkpoint, which shards and deduplicates them; the rest is one pickled
    structure, so that its keys may change while the script runs.
    """
    whole = _all_taken_apart(structure)
    return whole if rank() == 0 else {"tensors": whole["tensors"]}


def _all_taken_apart(structure: Any) -> dict[str, Any]:
    rest = pickle.dumps(_mapped(structure, lambda path, _: _Hole(path)))
    return {"tensors": _tensors_of(structure), "rest": rest}


def _room_for(name: str, current: Any, metadata: "Metadata") -> dict[str, Any]:
    """Return the state to load a user's object into, sharded like the object's own tensors."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    prefix, own, tensors = f"{_USER}.{name}.tensors.", _tensors_of(current), {}
    for key, saved in metadata.state_dict_metadata.items():
        if not (key.startswith(prefix) and isinstance(saved, TensorStorageMetadata)):
            continue
        path, dtype = key.removeprefix(prefix), saved.properties.dtype
        like = own.get(path)
        if like is not None and like.shape == saved.size and like.dtype == dtype:
            tensors[path] = torch.empty_like(like)
        else:
            tensors[path] = torch.empty(saved.size, dtype=dtype)
    return {"tensors": tensors, "rest": b""}


def _put_together(tensors: Mapping[str, torch.Tensor], rest: bytes) -> Any:
    return _mapped(pickle.loads(rest), lambda _, hole: tensors[hole.path])


def _tensors_of(structure: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    _mapped(structure, found.__setitem__)
    return found


def _mapped(structure: Any, change: Callable[[str, Any], Any], path: tuple[str, ...] = ()) -> Any:
    """Return a structure of dicts, lists and tuples with its tensors, or their placeholders, replaced.

    Sparse tensors stay as they are: torch.distributed.checkpoint cannot store them, pickle can.
    """
    if isinstance(structure, _Hole) or (isinstance(structure, torch.Tensor) and structure.layout is torch.strided):
        return change("/".join(path), structure)
    if type(structure) in (list, tuple):
        return type(structure)(_mapped(each, change, (*path, str(place))) for place, each in enumerate(structure))
    if isinstance(structure, dict):
        changed = copy.copy(structure)  # keeps the type, such as OrderedDict
        for key, each in structure.items():
            changed[key] = _mapped(each, change, (*path, _part(key)))
        return changed
    return structure


def _part(key: Any) -> str:
    """Return the part of a path for a key, unique for every key: 0 and "0" differ."""
    escaped = (key if isinstance(key, str) else repr(key)).replace("%", "%25").replace("/", "%2F")
    return escaped if isinstance(key, str) else f"%={escaped}"
