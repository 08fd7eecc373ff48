"""Text from the templates of `templates/`, read back where it is YAML."""

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

_MAY_BE_EMPTY = (".labels.", ".annotations.", ".command[", ".nodeSelector.", ".values[")
"""Parts of a path below which an empty text is a value like any other."""


def render_template(template: str, /, **values: Any) -> str:
    """Return a template of `templates/` filled with `values`.

    Raises:
        jinja2.UndefinedError: The template names a value that is not there.
    """
    return _environment().get_template(template).render(**values)


def render_yaml(template: str, /, **values: Any) -> str:
    """Return a YAML template filled with `values`, after reading it back.

    Raises:
        ValueError: The result is no YAML, or holds a null or an empty field; the API refuses those.
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
    """Compiled templates where Python would keep compiled modules; new ones are kept where Python may write there."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode and os.access(self.directory, os.W_OK):
            super().dump_bytecode(bucket)


def _bytecode_cache() -> FileSystemBytecodeCache | None:
    folder = TEMPLATES / "__pycache__"
    if not folder.exists():
        if sys.dont_write_bytecode or not os.access(TEMPLATES, os.W_OK):
            return None
        folder.mkdir(exist_ok=True)
    return _CompiledTemplates(str(folder))


def _indented(text: str, width: int) -> str:
    """Indent all lines but the first. To Jinja's own filter other characters than a newline end lines too."""
    return re.sub(r"\n(?=[^\n])", "\n" + " " * width, text)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        bytecode_cache=_bytecode_cache(),
    )
    environment.filters |= {
        "to_yaml": lambda value: yaml_io.dump(value).rstrip("\n"),
        "to_json": yaml_io.dump_flow,
        "indent": _indented,
        "to_comment": lambda text: "".join(letter if letter.isprintable() else " " for letter in text),
        "sh_quote": lambda value: shlex.quote(str(value)),
    }
    return environment
