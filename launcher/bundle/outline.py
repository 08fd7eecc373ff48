"""The outline of an adopted job, from its cluster, in a folder without a bundle. `jobs.adopted` writes it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.common.names import ADOPTED_FILE
from launcher.common.problems import fail


def is_adopted(folder: Path) -> bool:
    """Return whether a folder belongs to an adopted job."""
    return (folder / ADOPTED_FILE).is_file()


def read(folder: Path) -> Mapping[str, Any] | None:
    """Return the outline of the adopted job in a folder; None if the folder has none.

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
