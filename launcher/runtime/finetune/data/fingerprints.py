"""Fingerprints of files by their content, which is read again only when a file has changed.

The content counts, not the times: a copy of the data is the same data. xxh3 reads faster than a disk; it protects
from mistakes, not from an attacker, who could replace the prepared arrays as well.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.runtime import durable
from launcher.runtime.checksums import new_checksum
from launcher.runtime.finetune.data.sources import readable

MEMORY = ".fingerprints.json"
"""In the folder of prepared data: the fingerprints that were computed there."""
_SETTLED_NS = 3_000_000_000
"""A file that changed so recently may change again without another time. Source: git documentation, racy-git."""

Known = dict[str, list[object]]


def fingerprints(files: Sequence[Path], folder: Path, memory: str = MEMORY) -> list[tuple[str, int, str]]:
    """Return name, size and xxh3_128 of each file, which `folder` remembers: a restart would read all files again.

    Raises:
        DataError: A file cannot be read.
        OSError: The folder cannot be written to.
    """
    known: Known = durable.read_object(folder / memory)
    before = dict(known)
    found = [(file.name, *_fingerprint(file, known)) for file in files]
    if known != before:
        durable.write_text(folder / memory, json.dumps(known, indent=1) + "\n")
    return found


def _fingerprint(file: Path, known: Known) -> tuple[int, str]:
    with readable(file):
        status = file.stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ino]
        name = str(file.resolve())
        entry = known.get(name)
        if isinstance(entry, list) and entry[:-1] == state and isinstance(entry[-1], str):
            return status.st_size, entry[-1]
        with file.open("rb", buffering=0) as stream:
            content = hashlib.file_digest(stream, new_checksum).hexdigest()
    known.pop(name, None)
    if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
        known[name] = [*state, content]
    return status.st_size, content
