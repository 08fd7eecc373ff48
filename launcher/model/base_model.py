"""Base class and field types of the typed configuration; a rule's access to the options of its own backend."""

import contextlib
import dataclasses
import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import urlsplit

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them reads every installed package


def _import_loader_of_plugins() -> None:
    """Import what pydantic looks for plugins with, without the 40 modules that it would call to find some.

    They take 15 ms. In their place it keeps functions that import them when they are called.
    """
    name = "importlib.metadata"
    if name in sys.modules:
        return

    def postponed(function: str) -> Callable[..., Any]:
        return lambda *args, **options: getattr(importlib.import_module(name), function)(*args, **options)

    stand_in = sys.modules[name] = types.ModuleType(name)
    stand_in.__getattr__ = postponed  # type: ignore[method-assign]  # PEP 562
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("pydantic.plugin._loader")
    finally:
        del sys.modules[name]


_import_loader_of_plugins()

from pydantic import (  # noqa: E402  # after the above
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from launcher.common import syntax  # noqa: E402
from launcher.model.job_spec import Trainer  # noqa: E402


class Model(BaseModel):
    """Base of every model: strict, frozen, no unknown keys."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,  # a part is built with the model that contains it, not separately first
    )


class Passed(Model):
    """Base of a section that a family's program reads as it is: strict as to the keys that the launcher knows.

    Other keys are allowed where a published recipe has them; `launcher.model.passed_keys` checks what users add.
    """

    model_config = ConfigDict(extra="allow")


def default(value: str | bool | int | None, *, is_required: bool = True) -> Any:
    """Declare a key's value in a file of the collection: `recipes docs` writes it there, and into the reference.

    Args:
        value: The value.
        is_required: Whether a configuration that lacks the key, because a user removed it, has a Problem.
    """
    return Field(... if is_required else value, json_schema_extra={"default": value})


def indexed(value: Any) -> Any:
    """Turn `{0: a, 1: b}` into `[a, b]`: what `+key.0.field=…` on the command line builds."""
    if isinstance(value, dict) and value and all(re.fullmatch("[0-9]{1,6}", k) for k in value):
        return [value[k] for k in sorted(value, key=int)]
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextForm(StringConstraints):
    """The form of a text: its pattern, and the words in which a fault names it for people."""

    pattern: str
    words: str

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        yield BeforeValidator(self._check)  # before the pattern's own, whose fault would show the pattern

    def _check(self, value: Any) -> Any:
        if isinstance(value, str) and not re.search(self.pattern, value):
            raise ValueError(f"should be {self.words}")
        return value


def server_url(url: str) -> str:
    """Require an http URL to have a host, and a port that exists."""
    with contextlib.suppress(ValueError):  # brackets without an address, or a port beyond 65535
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0 and re.match(r"https?://\S+\Z", url):
            return url
    raise ValueError("should be a URL such as http://127.0.0.1:5000")


_T = TypeVar("_T")
Listed = Annotated[list[_T], BeforeValidator(indexed)]
"""A list that the command line may also fill by index."""

StartCommand = Annotated[Listed[_T], Field(min_length=1)]
"""The words of a command that replaces another: an empty one would replace nothing."""

INT32, INT64 = 2**31 - 1, 2**63 - 1
"""Largest numbers of 32 and 64 bits with a sign; every reader of a configuration holds the latter."""
MOST_SAMPLES = INT32
"""Largest batch. Keeps the numbers that are computed and printed for every size small."""

PositiveInt = Annotated[int, Field(ge=1, le=INT64)]
BatchSize = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
ShareSize = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
NodeCount = Annotated[int, Field(ge=1, le=100_000)]
DeviceCount = Annotated[int, Field(ge=1, le=1024)]
NonNegativeInt = Annotated[int, Field(ge=0, le=INT64)]

Interval = Annotated[int, Field(ge=-1, le=INT64)]
"""Optimizer steps between two events; 0 and -1 stand for other times."""

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""Seed of every generator of a program. Source: NumPy, numpy.random.seed, which has the narrowest range."""

Positive32 = Annotated[int, Field(ge=1, le=INT32)]
NonNegative32 = Annotated[int, Field(ge=0, le=INT32)]
"""Numbers of a job's specification. Source: Kubernetes, API Conventions: integers are int32 unless they need more."""


def _module(name: str) -> str:
    if name and (not re.fullmatch(r"[^\W\d][\w-]*(\.[\w-]+)*", name) or name.endswith(".py")):
        raise ValueError("should be the dotted name of a module, such as my.train; entry_script takes a path")
    return name


ModuleName = Annotated[str, AfterValidator(_module)]
"""Name of a module for `python -m`. Source: Python, Command line and environment: -m."""


def _layers(names: str | list[str]) -> str | list[str]:
    if isinstance(names, str) and isinstance(fault := syntax.compiled(names), str):
        raise ValueError(f"should be a list of names, or a regular expression: {fault}")
    return names


LayerNames = Annotated[str | list[str], AfterValidator(_layers)]
"""Layers of a model: names, each complete or its end from a dot on, or a regular expression of complete names.

Source: PEFT, tuners/tuners_utils.py, check_target_module_exists.
"""


_COMMAND = r"(?s)-|(\S*/)?(python|pypy|bash|sh|torchrun|accelerate|deepspeed|uv)[\d.]*\s|.*\s--?[A-Za-z]"
"""An option, an interpreter before a path, or an option after one. Other spaces belong to a path."""


def _script(path: str) -> str:
    if re.match(_COMMAND, path):
        raise ValueError(
            "should be the path of a script alone: its arguments are in script_args, such as [{--lr: 0.1}], a module"
            " is in entry_module, and the launcher adds the interpreter"
        )
    if re.match(r"[a-z][a-z0-9+.-]*://", path):
        raise ValueError("should be a path where the processes run; git.repo_url_or_path names a repository to fetch")
    return path


ScriptPath = Annotated[str, AfterValidator(_script)]
"""Path of a script, one word of a command."""


class ClusterOptions(Model):
    """Every key of a `cluster` section. A backend subclasses it."""

    trainer: Trainer | None = default(None, is_required=False)
    """Who trains a recipe that has the choice: published, the closed program of the family's image, or open, the
    trainer of this package in an image of your own or on this machine. null: open on this machine, else published."""

    @property
    def start_command(self) -> Sequence[str]:
        """Words that start the processes in place of the family's program; none in a section without `command`."""
        return getattr(self, "command", None) or ()


class HasOptions(Protocol):
    """A checked recipe, or a planned job."""

    @property
    def settings(self) -> ClusterOptions:
        """The `cluster` section, typed."""


Options = TypeVar("Options", bound=ClusterOptions)


def options_of(job: HasOptions, kind: type[Options]) -> Options:
    """Return the options of a job of the backend whose options are `kind`; TypeError for a job of another one."""
    if not isinstance(job.settings, kind):
        raise TypeError(f"these are {type(job.settings).__qualname__}, not {kind.__qualname__}")
    return job.settings
