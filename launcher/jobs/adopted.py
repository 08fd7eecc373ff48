"""Jobs that were launched elsewhere and are followed from here: a folder with a record, and no bundle.

Commands that need the bundle refuse such a job. Beside the record is an outline of the job from its cluster,
without its containers' commands and variables, which may hold secrets.
"""

import contextlib
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
    with contextlib.ExitStack() as cleanup:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            cleanup.callback(shutil.rmtree, draft, ignore_errors=True)
            text = json.dumps(redaction.masked_tree(outline), indent=2) + "\n"
            (draft / ADOPTED_FILE).write_text(text, encoding="utf-8")
            registry.write(draft, record)
            draft.chmod(0o755)
            draft.rename(folder)
        except OSError as error:
            raise os_errors.refused("E702", str(folder), error, folder) from error
    return replace(record, handle=replace(record.handle, bundle_dir=folder.resolve()))


def _taken(folder: Path, record: JobRecord) -> ProblemsFound:
    known = registry.read(folder)
    if known and known.handle.uid == record.handle.uid:
        remedy = f"recipes status {folder.name}"
        return fail("E714", str(folder), "already follows this job", remedy=remedy)
    return fail("E714", str(folder), "belongs to another job", remedy="--as another-name")
