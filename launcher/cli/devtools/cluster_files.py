"""The files of `recipes_collection/cluster`: every key that a backend's options declare with `default`."""

import textwrap
from collections.abc import Iterator

from pydantic import BaseModel

from launcher.cli.devtools.schema import descriptions
from launcher.common import yaml_io
from launcher.model import backend_registry
from launcher.model.validation import submodel

_WIDTH = 110


def files() -> dict[str, str]:
    """Return the files by their names."""
    return {f"{each.choice}.yaml": _text(each.options()) for each in backend_registry.descriptions()}


def _text(options: type[BaseModel]) -> str:
    source = f"launcher/{options.__module__.removeprefix('launcher.').replace('.', '/')}.py"
    head = (*_comment(options.__doc__ or "", ""), f"# Written by `recipes docs` from {source}.")
    return "\n".join((*head, *_keys(options, ""), ""))


def _keys(model: type[BaseModel], indent: str) -> Iterator[str]:
    """Yield the lines of a mapping; a key that is absent unless a user sets it is described in a comment."""
    texts = descriptions(model)
    for name, info in model.model_fields.items():
        key, inner = info.alias or name, submodel(model, info.alias or name)
        extra = info.json_schema_extra
        yield from _comment(texts[name], indent)
        if isinstance(extra, dict) and "default" in extra:
            yield f"{indent}{yaml_io.dump({key: extra['default']}).rstrip()}"
        elif inner and info.is_required():
            yield f"{indent}{key}:"
            yield from _keys(inner, f"{indent}  ")
        else:
            yield f"{indent}# {key}: left out"


def _comment(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(
        " ".join(text.split()), _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False
    )
    return [f"{indent}# {line}" for line in lines]
