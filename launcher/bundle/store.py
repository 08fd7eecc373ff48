"""Bundles on disk: written atomically, read back with every hash checked."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from launcher.bundle.manifest import MANIFEST, bundle_digest
from launcher.common import os_errors, redaction, yaml_io
from launcher.common.names import (
    ADOPTED_FILE,
    JOB_FILE,
    NAME_FILE,
    REPRODUCE_FILE,
    RUN_DIR,
    RUN_ID_AT_LAUNCH,
    RUN_ID_FILE,
)
from launcher.common.problems import ProblemsFound, fail
from launcher.common.suggestions import question
from launcher.model.job_spec import Bundle
from launcher.runtime.durable import write_text
from launcher.runtime.file_kinds import irregular

_EXECUTABLE = ".sh"
RESULTS = "results"
"""Default folder of bundles, unless `base_results_dir` is set."""
_MOST_NAMES = 8


def refuse_unwritable(directory: Path) -> None:
    """Raise a Problem if a bundle could not be written to `directory`. Leaves nothing behind."""
    with _draft(directory):
        pass


def write(bundle: Bundle, beside: Mapping[str, str] | None = None) -> None:
    """Write a bundle to its directory: beside it first, then renamed into place.

    Args:
        beside: Files that the digest does not cover, name to text.

    Raises:
        ProblemsFound: The directory exists, or the operating system refuses.
    """
    with _draft(bundle.directory) as draft:
        for name, text in {**bundle.files, **(beside or {})}.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if path.suffix == _EXECUTABLE else 0o644)
        draft.chmod(0o755)
        draft.rename(bundle.directory)


@contextlib.contextmanager
def _draft(directory: Path) -> Iterator[Path]:
    """Yield an empty folder beside `directory`, and remove it after the block unless it was renamed.

    Raises:
        ProblemsFound: `directory` exists, or the operating system refuses something in the block.
    """
    if os.path.lexists(directory):
        message = "a bundle of that name exists; bundles are never overwritten"
        remedy = "compile it again (each name has a random suffix), or remove the old one"
        raise fail("E701", "base_results_dir", message, value=str(directory), remedy=remedy)
    parent = directory.parent
    made = [path for path in directory.parents if not os.path.lexists(path)]
    for path in made:
        if path.name.startswith("~"):
            expanded = os.path.expanduser(parent.relative_to(path.parent))
            word = None if expanded.startswith("~") else f"base_results_dir={expanded}"  # None: no such user exists
            raise fail("E702", "base_results_dir", "only a shell expands ~", value=path.name, remedy=word)
    with contextlib.ExitStack() as cleanup:
        for path in reversed(made):
            cleanup.callback(_remove_empty, path)
        try:
            yield cleanup.enter_context(drafted(directory))
        except OSError as error:
            raise os_errors.refused("E702", "base_results_dir", error, parent) from error
        except ValueError as error:  # a null character
            raise fail("E702", "base_results_dir", f"is not a path: {error}", value=str(parent)) from error


@contextlib.contextmanager
def drafted(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`, to be renamed to it; otherwise the end of the block removes it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        folder.rmdir()


def locate(name: str) -> Path:
    """Return the folder of a bundle that a user names: its path, or under `results` its folder or its job's own name.

    Raises:
        ProblemsFound: No such bundle exists.
    """
    if folder := find(name):
        return folder
    raise unknown(name)


def find(name: str) -> Path | None:
    """Return the folder of a bundle that a user names as in `locate`; None if it does not exist.

    Raises:
        ProblemsFound: It is the folder of an adopted job.
    """
    if folder := _found(name, MANIFEST):
        return folder
    if folder := _found(name, ADOPTED_FILE):
        raise _bundleless(folder)
    return None


def locate_job(name: str, base: Path = Path()) -> Path:
    """Return the folder of a job that a user names as in `locate`; an adopted job's holds no bundle.

    Args:
        base: The folder that relative paths start from.

    Raises:
        ProblemsFound: No such job exists.
    """
    if folder := _found(name, MANIFEST, base) or _found(name, ADOPTED_FILE, base):
        return folder
    raise unknown(name, base)


def _found(name: str, file: str, base: Path = Path()) -> Path | None:
    path = base / name
    results = path.parent if path.name != name else base / RESULTS
    folders = itertools.chain((path, base / RESULTS / name), named(results, path.name))
    return next((folder for folder in folders if os.path.isfile(folder / file)), None)


def given_names(results: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folder and the name of each job of a results folder that a user named."""
    for entry in _entries(results):
        if known := given_name(entry):
            yield Path(entry), known


def named(results: Path, name: str) -> Iterator[Path]:
    """Yield the folders of the jobs of a results folder to which their user gave this name."""
    return (folder for folder, known in given_names(results) if known == name)


def is_shown(name: str) -> bool:
    """Return whether a name is one of a listed entry of a results folder.

    What is being written begins with a point, and a name that is not printable cannot be typed.
    """
    return name.isprintable() and "/" not in name and not name.startswith(".") and name != ""


def given_name(folder: os.PathLike[str]) -> str | None:
    """Return the name that a user gave to the job in `folder`; None if it has none."""
    path = os.path.join(folder, NAME_FILE)
    try:
        if irregular(path):
            return None
        with open(path, encoding="utf-8") as file:
            return file.read().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


@contextlib.contextmanager
def existing(folder: Path) -> Iterator[None]:
    """Raise the Problem that a bundle's folder was removed (E703) if the block lacks a file for that reason."""
    try:
        yield
    except FileNotFoundError as error:
        if folder.exists():
            raise
        raise removed(folder) from error


def removed(folder: Path) -> ProblemsFound:
    """Return the Problem that the folder of a bundle, or of its job, was removed (E703)."""
    return fail("E703", str(folder), "no longer exists, and the records of its job with it")


def _bundleless(folder: Path) -> ProblemsFound:
    message = "its job was adopted from a cluster; this machine does not have its bundle"
    remedy = "recipes status, logs, events, wait, cancel, scale, pods and exec work without one"
    return fail("E713", str(folder), message, remedy=remedy)


def unknown(name: str, base: Path = Path()) -> ProblemsFound:
    """Return the Problem of a name that is not of a job, with the names that are under `base`."""
    import difflib  # only a faulty name pays for it

    known = job_names(base)
    close = difflib.get_close_matches(name, known, n=1)
    return fail(
        "E703",
        name,
        f"is neither the folder of a bundle nor a job under {base / RESULTS}/",
        allowed=", ".join([*(["…"] if len(known) > _MOST_NAMES else []), *known[-_MOST_NAMES:]]) or None,
        remedy=question(close) or ("python main.py takes a recipe with its overrides" if "=" in name else None),
    )


def job_folders(results: Path) -> Iterator[os.DirEntry[str]]:
    """Yield each folder of a results folder that has a bundle or an adopted job, by name."""
    return filter(is_job, _entries(results))


def is_job(folder: os.PathLike[str]) -> bool:
    """Return whether a folder has a bundle or an adopted job."""
    return any(os.path.isfile(os.path.join(folder, file)) for file in (MANIFEST, ADOPTED_FILE))


def _entries(results: Path) -> list[os.DirEntry[str]]:
    """Return the content of a results folder by name, without folders that are being written or removed."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if results.is_dir():
            with os.scandir(results) as entries:
                return sorted((each for each in entries if not each.name.startswith(".")), key=lambda each: each.name)
    return []


def is_adopted(folder: Path) -> bool:
    """Return whether a folder belongs to an adopted job."""
    return os.path.isfile(folder / ADOPTED_FILE)


def outline(folder: Path) -> Mapping[str, Any] | None:
    """Return the outline of an adopted job that `registry.adopt` wrote; None if the folder has none.

    Raises:
        ProblemsFound: The file is damaged.
    """
    try:
        found: Mapping[str, Any] = json.loads((folder / ADOPTED_FILE).read_text(encoding="utf-8"))
        return found if found["metadata"]["name"] and found["spec"] is not None else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "remove the folder, then recipes adopt"
        raise fail("E711", str(folder / ADOPTED_FILE), f"is damaged: {error!r}", remedy=remedy) from error


def job_names(base: Path = Path()) -> list[str]:
    """Return the jobs under `results`: its bundles, those that were adopted, and the names that users gave them."""
    results = base / RESULTS
    folders = (entry.name for entry in job_folders(results))
    return sorted([*folders, *(name for _, name in given_names(results))])


def read(directory: Path) -> tuple[Bundle, str]:
    """Read a bundle and the name of its backend.

    Raises:
        ProblemsFound: It is not a bundle directory, or a file is missing or has been changed.
    """
    if is_adopted(directory) and not os.path.exists(directory / MANIFEST):
        raise _bundleless(directory)
    place = MANIFEST
    try:
        text = _text(directory / MANIFEST)
        manifest = json.loads(text)
        hashes, job_name, digest = dict(manifest["files"]), manifest["job_name"], manifest["digest"]
        place = RUN_ID_FILE
        run_id = assigned_run(directory)
        place = MANIFEST
        if any(os.path.isabs(path) or ".." in Path(path).parts for path in hashes):
            raise ValueError("it names files outside of its folder")
        files = dict[str, str]()
        for place in hashes:
            files[place] = _text(directory / place)
        if run_id:  # the digest is of the bundle as it was rendered
            files = {path: text.replace(run_id, RUN_ID_AT_LAUNCH) for path, text in files.items()}
        place = "plan.json"
        backend = json.loads(files[place])["backend"]
    except OSError as error:
        raise fail("E703", str(directory), f"is not a bundle directory: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f": {error}" if isinstance(error, ValueError) else ", and lacks what a bundle's has"
        raise fail("E703", str(directory), f"is not a bundle directory: {place} is damaged{why}") from error
    changed = [path for path, held in files.items() if hashlib.sha256(held.encode()).hexdigest() != hashes[path]]
    changed += sorted(_files_in(directory, files) - {*files, MANIFEST})
    if changed or bundle_digest(hashes) != digest:
        message = f"was changed after it was rendered: {', '.join(changed) or MANIFEST}"
        remedy = "render it again with the overrides you want; bundles are not edited"
        raise fail("E704", str(directory), message, remedy=remedy)
    files = _with_run(files, run_id) if run_id else files
    _learn(files.get("recipe.yaml", ""))
    return Bundle(job_name, directory.resolve(), {**files, MANIFEST: text}, digest), backend


def _text(path: Path) -> str:
    """Return the text of a file of a bundle; reading a pipe would never end."""
    if kind := irregular(path):
        raise ValueError(f"it is {kind}")
    return path.read_text(encoding="utf-8")


def learn_secrets(directory: Path) -> None:
    """Let this process mask the secrets that the job of a bundle gets from its environment."""
    with contextlib.suppress(OSError, ValueError):  # reading the bundle reports it
        _learn((directory / "recipe.yaml").read_text(encoding="utf-8"))


def _learn(text: str) -> None:
    with contextlib.suppress(ValueError, yaml.YAMLError):  # who needs the configuration reports it
        redaction.learn(composed(text))


def assigned_run(directory: Path) -> str | None:
    """Return the id of the MLflow run that a dry run's bundle got when it was launched; None if it has none.

    Raises:
        OSError: The file with the id cannot be read.
        ValueError: It is damaged, as a KeyError or a TypeError states, too.
    """
    try:
        return str(json.loads((directory / RUN_ID_FILE).read_text(encoding="utf-8"))["run_id"])
    except FileNotFoundError:
        return None


def assign_run(bundle: Bundle, run_id: str) -> Bundle:
    """Write the id of a bundle's MLflow run where a dry run left its place empty. The digest does not cover the id.

    The id is recorded first, so that an interrupted call can be repeated.

    Raises:
        ProblemsFound: The operating system refuses.
    """
    files = _with_run(bundle.files, run_id)
    try:
        write_text(bundle.directory / RUN_ID_FILE, json.dumps({"run_id": run_id}) + "\n")
        for name, text in files.items():
            path = bundle.directory / name
            if path.read_text(encoding="utf-8") != text:
                mode = path.stat().st_mode
                write_text(path, text)
                path.chmod(mode)
    except OSError as error:
        raise os_errors.refused("E702", str(bundle.directory), error, bundle.directory) from error
    return dataclasses.replace(bundle, files=files, config=None)


def _with_run(files: Mapping[str, str], run_id: str) -> dict[str, str]:
    return {name: text.replace(RUN_ID_AT_LAUNCH, run_id) for name, text in files.items()}


def json_of(bundle: Bundle, name: str) -> dict[str, Any]:
    """Return what a JSON file of a bundle holds.

    Raises:
        ProblemsFound: The bundle has no such file, or it is damaged (E703).
    """
    try:
        found = json.loads(bundle.files[name])
        if not isinstance(found, dict):
            raise ValueError("it does not hold an object")
    except (KeyError, ValueError, RecursionError) as error:
        raise fail("E703", str(bundle.directory), f"has no intact {name}: {error!r}") from error
    return found


def config_of(bundle: Bundle) -> Mapping[str, Any]:
    """Return the composed configuration that a bundle's `recipe.yaml` has."""
    return composed(bundle.files["recipe.yaml"]) if bundle.config is None else bundle.config


@functools.lru_cache(maxsize=1024)  # of a sweep that was read from disk, each is needed several times
def composed(text: str) -> Mapping[str, Any]:
    """Return the configuration of a `recipe.yaml`."""
    config: Mapping[str, Any] = yaml_io.load(text)
    return config


def _files_in(directory: Path, known: Collection[str]) -> set[str]:
    """Return the files of a bundle except those that a launch adds, and what a killed process left of one."""
    own = (RUN_DIR, JOB_FILE, NAME_FILE, RUN_ID_FILE, REPRODUCE_FILE)
    tops = [path for path in directory.iterdir() if path.name not in own]
    files = (path for top in tops for path in (top, *top.rglob("*")) if path.is_file())
    names = (str(path.relative_to(directory)) for path in files)
    return {name for name in names if _PARTIAL.sub(r"\1\2", name) not in (*known, *own) or name in known}


_PARTIAL = re.compile(r"^(.*/)?\.([^/]+)\.[0-9a-f]+\.partial$")
"""Path of a file that `write_text` has not finished: beside the complete one."""
