"""The code of a job: revision and changes of the git work tree that has it, or the digests of a folder's files."""

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from launcher.bundle.manifest import MANIFEST
from launcher.common.names import ADOPTED_FILE
from launcher.common.redaction import masked, masked_lines
from launcher.common.secret_forms import masked_program
from launcher.model.work_tree import git_environment, work_tree
from launcher.reproduction.digests import Budget, combined, digests, file_digest

DIFF_BYTES = 256 * 2**10
"""Bytes of a diff that are recorded: masking more takes seconds. The changed files count by their digests."""
_STATUS_BYTES = 16 * 2**20
_TIMEOUT_S = 30
_IGNORED = frozenset(
    (".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", "mlruns", "mlartifacts", "mlflow.db")
    + (".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox", ".DS_Store")
)
"""Names that are no code: of tools, environments and records of runs."""
_COMPILED = (".pyc", ".pyo", ".swp", "~")
_OPTIONS = "GIT_CONFIG"
"""Start of the names of variables that are options of git, such as a monitor's. Source: git-config(1)."""
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false")
"""Options with which reading a repository starts no hook and no monitor. Source: git-config(1)."""
_SHORTEST_COMMIT = 40
_LINK = "120000 "
"""Mode of a symbolic link. Source: git-ls-files(1), --stage; gitformat-index(5)."""
_KEY_BODY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.S)


def code_state(place: str, results: str, budget: Budget, *, is_part: bool = False) -> dict[str, Any]:
    """Return the state of a file or folder of code, for the record: of the complete work tree that has it.

    Args:
        place: Absolute.
        results: Folder of bundles, which are no code.
        is_part: Whether only the folder counts, not the rest of its work tree.
    """
    folder = place if os.path.isdir(place) else os.path.dirname(place)
    if not os.path.isdir(folder):
        return {"kind": "absent", "folder": folder}
    folder = os.path.realpath(folder)

    def is_left_out(path: str) -> bool:
        return _is_no_code(path, os.path.realpath(results), folder)

    top = work_tree(Path(folder))
    why = ""
    if top:
        own = folder if place == folder or os.path.isdir(place) else os.path.join(folder, os.path.basename(place))
        try:
            return _git_state(str(top), folder if is_part else str(top), own, is_left_out, budget)
        except (OSError, _GitFailed) as error:
            why = str(error)
    files = digests(folder, budget, is_left_out)
    note = f"git: {why}" if why else ""
    if budget.is_spent:
        note = "has too many files; the digest covers the first ones"
    return {"kind": "folder", "folder": folder, "digest": combined(files), "files": files, "note": note}


def _is_no_code(path: str, results: str, folder: str) -> bool:
    name = os.path.basename(path)
    if name in _IGNORED or name.endswith(_COMPILED):
        return True
    if path == results and results not in (folder, *map(str, Path(folder).parents)):
        return True
    marks = (MANIFEST, ADOPTED_FILE, "pyvenv.cfg")
    return os.path.isdir(path) and any(os.path.isfile(os.path.join(path, each)) for each in marks)


def _git_state(
    top: str, folder: str, place: str, is_left_out: Callable[[str], bool], budget: Budget
) -> dict[str, Any]:
    """Return revision and changes of a work tree below a folder.

    Raises:
        _GitFailed: Git does not have them.
    """
    part = os.path.relpath(folder, top)
    if place != top and _is_ignored(top, place):
        raise _GitFailed("ignores the code")
    tree = _work_tree(top, part, is_left_out, budget)
    revision = tree.revision
    if part != ".":  # its own state, whatever else was committed
        revision = _git(top, "rev-parse", f"HEAD:{part}", most=_SHORTEST_COMMIT * 2)[0].decode().strip()
    diff, is_cut = _diff(top, part) if tree.has_diff else ("", False)
    note = f"the recorded diff is cut at {DIFF_BYTES // 2**10} KiB" if is_cut else ""
    if budget.is_spent:
        note = "has too many changed files; the record has the first ones"
    return {"kind": "git", "folder": top, "revision": revision, "files": tree.files, "diff": diff, "note": note}


def _is_ignored(top: str, place: str) -> bool:
    """Return whether git leaves out a file or folder, as a repository of a home folder leaves out most of it."""
    try:
        _git(top, "check-ignore", "--quiet", "--", place, most=1)
    except _GitFailed:
        return False
    return True


class _WorkTree(NamedTuple):
    """A revision, the digests of what differs from it, and whether tracked files do."""

    revision: str
    files: dict[str, str]
    has_diff: bool


def _work_tree(top: str, part: str, is_left_out: Callable[[str], bool], budget: Budget) -> _WorkTree:
    words = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--no-renames")
    answer, is_cut = _git(top, *words, "--ignore-submodules=none", "--", part, most=_STATUS_BYTES)
    entries = answer.decode("utf-8", "surrogateescape").split("\0")
    revision = entries[0].removeprefix("# branch.oid ")
    if is_cut or len(revision) < _SHORTEST_COMMIT:
        raise _GitFailed("too many changes" if is_cut else "no commit")
    changed = [_path(each) for each in entries if each[:1] in ("1", "u", "?")]
    files = _contents(top, {*changed, *_links_out(top, part)}, is_left_out, budget)
    return _WorkTree(revision, files, any(each[:1] in ("1", "u") for each in entries))


def _links_out(top: str, part: str) -> list[str]:
    """Return the tracked links that lead out of a work tree: git does not see what changes behind them."""
    listed, _ = _git(top, "ls-files", "--stage", "-z", "--", part, most=_STATUS_BYTES)
    entries = listed.decode("utf-8", "surrogateescape").split("\0")
    links = [each.partition("\t")[2] for each in entries if each.startswith(_LINK)]
    inside = os.path.realpath(top) + os.sep
    return [each for each in links if not os.path.realpath(os.path.join(top, each)).startswith(inside)]


def _contents(top: str, paths: Collection[str], is_left_out: Callable[[str], bool], budget: Budget) -> dict[str, str]:
    """Return the digest of what is at each path in a work tree; of what has none, what it is."""
    found: dict[str, str] = {}
    for path in sorted(paths):
        full = os.path.join(top, path)
        if is_left_out(full.rstrip(os.sep)) or any(map(is_left_out, _between(full, top))):
            continue
        if budget.is_spent:
            break
        budget.num_files -= 1
        found[path] = file_digest(full, budget) if os.path.isfile(full) else _other(full, is_left_out, budget)
    return found


def _path(entry: str) -> str:
    """Return the path of an entry. Source: git-status(1), Porcelain Format Version 2."""
    return entry.split(" ", {"1": 8, "u": 10, "?": 1}[entry[0]])[-1]


def _between(path: str, top: str) -> list[str]:
    """Return the folders above a file, below the top of its work tree."""
    return [str(each) for each in Path(path).parents if str(each).startswith(top + os.sep)]


def _other(path: str, is_left_out: Callable[[str], bool], budget: Budget) -> str:
    """Return what is in place of a changed file: a submodule, another repository, or what a link leads to."""
    if os.path.exists(os.path.join(path, ".git")):
        try:
            tree = _work_tree(path, ".", is_left_out, budget)
            changes = f", changes {combined(tree.files)}" if tree.files else ""
            return f"repository at {tree.revision}{changes}"
        except (OSError, _GitFailed):
            pass  # its files count
    if os.path.isdir(path):
        return combined(digests(path, budget, is_left_out))
    if os.path.islink(path):
        return f"link to {os.readlink(path)}"
    return "not a regular file" if os.path.exists(path) else "deleted"


def _diff(top: str, part: str) -> tuple[str, bool]:
    """Return the changes of tracked files, without secrets, and whether they are cut."""
    words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", "--ignore-submodules=none")
    raw, is_cut = _git(top, *words, "HEAD", "--", part, most=DIFF_BYTES)
    text = _KEY_BODY.sub(r"\1…\2", raw.decode("utf-8", "replace"))
    return masked_lines(masked_program(text.split("\n"))), is_cut


class _GitFailed(Exception):
    """Git has not answered, and the reason."""


def _git(top: str, *words: str, most: int) -> tuple[bytes, bool]:
    """Run git, which asks no question and starts no hook; return its output, and whether it is cut."""
    inherited = {name: text for name, text in git_environment().items() if not name.startswith(_OPTIONS)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ("git", *_SAFE, "-C", top, *words),
            env={**inherited, **_QUIET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        late = threading.Timer(_TIMEOUT_S, process.kill)
        late.start()
        try:
            assert process.stdout
            with process.stdout as output:
                answer = output.read(most + 1)
            is_cut = len(answer) > most
            if is_cut:
                process.kill()
            code = process.wait()
        finally:
            late.cancel()
        errors.seek(0)
        reason = errors.read(2**12).decode(errors="replace").strip().splitlines()
    if code == -signal.SIGKILL and not is_cut:
        raise _GitFailed(f"no answer within {_TIMEOUT_S} s")
    if code and not is_cut:
        raise _GitFailed(masked(reason[0]) if reason else f"ended with status {code}")
    return answer[:most], is_cut
