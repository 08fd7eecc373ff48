"""Jobs that were launched elsewhere and are followed from here: a folder with a record, and no bundle.

Nothing of the bundle is made up: commands that need one refuse. Beside the record lies the outline of the job as its
cluster had it, without what its containers run or their variables, which may hold secrets.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.common import os_errors, redaction
from launcher.common.names import ADOPTED_FILE
from launcher.common.problems import ProblemsFound, fail
from launcher.jobs import registry
from launcher.jobs.registry import JobRecord


def write(folder: Path, record: JobRecord, outline: Mapping[str, Any]) -> JobRecord:
    """Write the folder of an adopted job atomically; return its record.

    Raises:
        ProblemsFound: A folder of that name exists, or the disk refuses.
    """
    folder = folder.absolute()
    if folder.exists():
        raise _taken(folder, record)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise os_errors.refused("E702", str(folder), error, folder) from error
    try:
        text = json.dumps(redaction.masked_tree(outline), indent=2) + "\n"
        (draft / ADOPTED_FILE).write_text(text, encoding="utf-8")
        registry.write(draft, record)
        draft.chmod(0o755)
        draft.rename(folder)
    except OSError as error:
        raise os_errors.refused("E702", str(folder), error, folder) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return replace(record, handle=replace(record.handle, bundle_dir=folder.resolve()))


def _taken(folder: Path, record: JobRecord) -> ProblemsFound:
    known = registry.read(folder)
    if known and known.handle.uid == record.handle.uid:
        remedy = f"recipes status {folder.name}"
        return fail("E714", str(folder), "follows this very job already", remedy=remedy)
    return fail("E714", str(folder), "exists, and is of another job", remedy="--as another-name")


def is_adopted(folder: Path) -> bool:
    """Return whether a folder is that of an adopted job."""
    return (folder / ADOPTED_FILE).is_file()


def outline(folder: Path) -> Mapping[str, Any] | None:
    """Return the outline of the adopted job in a folder; None if it is not one.

    Raises:
        ProblemsFound: The file is damaged.
    """
    try:
        found = json.loads((folder / ADOPTED_FILE).read_text(encoding="utf-8"))
        return found if found["metadata"]["name"] and found["spec"] is not None else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "remove the folder, then recipes adopt"
        raise fail("E711", str(folder / ADOPTED_FILE), f"is damaged: {error!r}", remedy=remedy) from error
