"""Renders the templates of `templates/`; rendered YAML is parsed again as a check."""

import os
import re
import shlex
import sys
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket

from launcher.common import yaml_io
from launcher.common.paths import TEMPLATES

BUNDLE = "bundle:"
"""A word of a program that begins so is a path inside the bundle, where `sh_word` quotes it for bash."""
_MAY_BE_EMPTY = (".labels.", ".annotations.", ".command[", ".nodeSelector.", ".values[")
"""Parts of a path below which an empty text is an ordinary value."""


def render_template(template: str, /, **values: Any) -> str:
    """Render a template of `templates/` with `values`.

    Raises:
        jinja2.UndefinedError: The template uses a value that is not given.
    """
    return _environment().get_template(template).render(**values)


def render_yaml(template: str, /, **values: Any) -> str:
    """Render a YAML template with `values` and check the result.

    Raises:
        ValueError: The result is not valid YAML, or has a null or an empty field, which the API refuses.
    """
    text = render_template(template, **values)
    for document in yaml_io.load_documents(text):
        for path in _empty_fields(document, ""):
            raise ValueError(f"{template} renders an empty field: {path}")
    return text


def _empty_fields(node: Any, path: str) -> list[str]:
    if isinstance(node, dict) and node:
        return [found for key, value in node.items() for found in _empty_fields(value, f"{path}.{key}")]
    if isinstance(node, list) and node:
        return [found for i, value in enumerate(node) for found in _empty_fields(value, f"{path}[{i}]")]
    may_be_empty = path.endswith("].value") or any(part in path for part in _MAY_BE_EMPTY)
    return [path] if node in (None, {}, []) or (node == "" and not may_be_empty) else []


def compile_templates() -> None:
    """Keep every template compiled, as `compileall` keeps modules: compiling the few of a launch takes 40 ms."""
    environment = _environment()
    for name in environment.list_templates(extensions=["j2"]):
        environment.get_template(name)


class _CompiledTemplates(FileSystemBytecodeCache):
    """A cache of compiled templates in the folder of compiled modules; read-only if the folder is not writable."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode and os.access(self.directory, os.W_OK):
            super().dump_bytecode(bucket)


def bytecode_cache() -> FileSystemBytecodeCache | None:
    """Cache compiled templates as Python caches compiled modules, if the folder is writable."""
    folder = TEMPLATES / "__pycache__"
    if not folder.exists():
        if sys.dont_write_bytecode or not os.access(TEMPLATES, os.W_OK):
            return None
        folder.mkdir(exist_ok=True)
    return _CompiledTemplates(str(folder))


def _sh_word(word: str) -> str:
    inside = word.removeprefix(BUNDLE)
    return shlex.quote(word) if inside == word else f'"$bundle"/{shlex.quote(inside)}'


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        bytecode_cache=bytecode_cache(),
    )
    environment.filters |= {
        "to_yaml": lambda value: yaml_io.dump(value).rstrip("\n"),
        "to_json": yaml_io.dump_flow,
        # All lines but the first. Jinja's own filter also breaks lines at other characters than newlines.
        "indent": lambda text, width: re.sub(r"\n(?=[^\n])", "\n" + " " * width, text),
        "to_comment": lambda text: "".join(letter if letter.isprintable() else " " for letter in text),
        "sh_quote": lambda value: shlex.quote(str(value)),
        "sh_word": _sh_word,
    }
    return environment
