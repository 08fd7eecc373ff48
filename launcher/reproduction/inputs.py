"""The models and data that a job reads: digests of what is on this machine, references to the rest."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.common.redaction import masked
from launcher.model.sources import Sources
from launcher.reproduction.digests import MOST_FILES, Budget, combined, digests, file_digest

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.A)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def input_states(sources: Sources, budget: Budget) -> dict[str, dict[str, Any]]:
    """Return the state of each model and data file that a job reads, by key."""
    found = {key: _state(values, sources, budget) for key, values in sources.inputs.items()}
    for key, values in sources.arguments.items():  # most are not paths
        state = _state(values, sources, budget)
        if state["kind"] in ("file", "folder"):
            found[key] = state
    return found


def _state(values: Sequence[str], sources: Sources, budget: Budget) -> dict[str, Any]:
    states = [_of_one(value, sources, budget) for value in values]
    if len(states) == 1:
        return states[0]
    files = {
        f"{value}/{name}": digest
        for value, state in zip(values, states, strict=True)
        for name, digest in state.get("files", {value: state.get("digest", "")}).items()
    }
    return {
        "kind": "several",
        "at": ", ".join(masked(value) for value in values),
        "digest": combined(files),
        "files": files,
    }


def _of_one(value: str, sources: Sources, budget: Budget) -> dict[str, Any]:
    path = os.path.join(sources.cwd, Path(value).expanduser()) if "\0" not in value else ""
    at = masked(value)
    if sources.is_here and path and os.path.isdir(path):
        files = digests(os.path.abspath(path), budget)
        note = f"the digest covers the first {MOST_FILES} files" if budget.is_spent else ""
        return {"kind": "folder", "at": at, "digest": combined(files), "files": files, "note": note, **_commit(path)}
    if sources.is_here and path and os.path.exists(path):
        return {"kind": "file", "at": at, "digest": file_digest(path, budget)}
    if _HUB_NAME.fullmatch(value):
        return {"kind": "hub", "at": at, "note": "the record does not have its revision"}
    return {"kind": "reference", "at": at, "note": "not on this machine"}


def _commit(folder: str) -> Mapping[str, str]:
    """Return the revision of a snapshot in a Hugging Face cache, whose folder is named so."""
    name = os.path.basename(os.path.realpath(folder))
    return {"revision": name} if _COMMIT.fullmatch(name) else {}
