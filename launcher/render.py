"""A planned job to a bundle: text from templates, then parsed back; nothing edits it afterwards. Pure."""

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from launcher import report, yamlio
from launcher.backends.base import Backend
from launcher.checkpointing import access
from launcher.context import LaunchContext
from launcher.contract import BASE_CONFIG, CONFIG_DIR, config_name
from launcher.paths import TEMPLATES
from launcher.problems import shown
from launcher.specs import Bundle, JobSpec

MANIFEST = "bundle.json"
_MAY_BE_EMPTY = (".labels.", ".annotations.", ".command[", ".nodeSelector.", ".values[")
"""Parts of a path below which an empty text is a value like any other."""


def render_bundle(job: JobSpec, context: LaunchContext, backend: Backend) -> Bundle:
    """Put together every file of a job's bundle.

    Args:
        job: The planned job.
        context: When, where and by whom it is launched.
        backend: Renders its own files.

    Returns:
        The bundle, its files in the order of their names, `bundle.json` last.
    """
    configs = config_files(job)
    files = {
        "recipe.yaml": yamlio.dump(job.config),
        **{f"{CONFIG_DIR}/{name}": text for name, text in configs.items()},
        "plan.json": json.dumps(report.plan_json(job), indent=2) + "\n",
        "plan.md": report.plan_markdown(job),
        **access.files(job),
        **backend.render(job, configs),
    }
    hashes = {path: hashlib.sha256(files[path].encode()).hexdigest() for path in sorted(files)}
    digest = bundle_digest(hashes)
    manifest = {
        "job_name": job.name,
        "backend": job.backend,
        "recipe": job.recipe,
        "overrides": [shown(text) for text in job.overrides],
        "created": context.created,
        "user": context.user,
        "git_revision": context.git_revision,
        "versions": dict(context.versions),
        "digest": digest,
        "files": hashes,
    }
    files = {path: files[path] for path in sorted(files)} | {MANIFEST: json.dumps(manifest, indent=2) + "\n"}
    return Bundle(job.name, job.base_results_dir / job.name, files, digest)


def bundle_digest(hashes: Mapping[str, str]) -> str:
    """Return sha256, hex, over the sorted `<sha256>  <path>` lines of a bundle's files (as sha256sum writes them)."""
    lines = "".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def config_files(job: JobSpec) -> dict[str, str]:
    """Return the configurations the container reads: the initial size's under the base name, then one a size.

    Source: file names as the published image looks them up.
    """
    first = next(point for point in job.scales if point.nodes == job.initial_nodes)
    files = {BASE_CONFIG: yamlio.dump(first.config)}
    if job.elastic:
        files |= {config_name(point.nodes): yamlio.dump(point.config) for point in job.scales}
    return files


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
    for document in yamlio.load_documents(text):
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


def _bytecode_cache() -> FileSystemBytecodeCache | None:
    """Keep compiled templates where Python would keep compiled modules, if it may write there."""
    folder = TEMPLATES / "__pycache__"
    if sys.dont_write_bytecode or not os.access(folder if folder.exists() else TEMPLATES, os.W_OK):
        return None
    folder.mkdir(exist_ok=True)
    return FileSystemBytecodeCache(str(folder))


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
        "to_yaml": lambda value: yamlio.dump(value).rstrip("\n"),
        "to_json": yamlio.dump_flow,
        "indent": _indented,
        "to_comment": lambda text: "".join(letter if letter.isprintable() else " " for letter in text),
        "sh_quote": lambda value: shlex.quote(str(value)),
    }
    return environment
