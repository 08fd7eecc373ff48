"""The architectures of published models, for those who have no config.json at hand."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from launcher.common import yaml_io

_FILE = Path(__file__).parent / "data" / "models.yaml"


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """Return the configuration of every known model by its name on the Hugging Face Hub."""
    found: Mapping[str, Mapping[str, Any]] = yaml_io.load(_FILE.read_text(encoding="utf-8"))
    return found


def known(name: str) -> Mapping[str, Any] | None:
    """Return the configuration of a model by its name on the Hub, also with - for the slash; None when unknown."""
    wanted = _plain(name)
    return next((config for key, config in table().items() if _plain(key) == wanted), None)


def beginning(name: str) -> str:
    """Return the model whose name `name` begins with; empty when unknown.

    The name of a variant (`openai/gpt-oss-20b-bf16`) or of a job (`openai-gpt-oss-20b-c3ki0`) continues a model's.
    """
    wanted = _plain(name)
    matches = [key for key in table() if wanted == _plain(key) or wanted.startswith(f"{_plain(key)}-")]
    return max(matches, key=len, default="")


def is_on_hub(name: str) -> bool:
    """Return whether a model is named as on the Hugging Face Hub, `org/name`, not by the folder of its weights."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name, re.ASCII) is not None


def first(values: Iterable[object]) -> str:
    """Return the first model whose name a text begins with; empty when none is known."""
    return next(filter(None, (beginning(value) for value in values if isinstance(value, str))), "")


def _plain(name: str) -> str:
    return name.lower().replace("/", "-")
