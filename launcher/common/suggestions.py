"""The names nearest to one that is not there."""

import difflib
from collections.abc import Sequence

_LEAST = 2
"""Characters from which a part of a name tells which is meant."""


def nearest(name: str, known: Sequence[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the known names nearest to `name`: those it abbreviates or is a part of, else those spelled alike.

    Args:
        name: As somebody typed it.
        known: What it may have been meant to be.
        count: Most names returned.
        cutoff: Least similarity of two spellings, 0 to 1, as difflib measures it.
    """
    wanted = name.lower()
    if len(wanted) >= _LEAST:
        parts = {other: _part(wanted, other.lower()) for other in known if other != name}
        if found := sorted(filter(parts.get, parts), key=lambda other: (parts[other], len(other))):
            return found[:count]
    return difflib.get_close_matches(name, known, n=count, cutoff=cutoff)


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """Return a suggestion for an unknown `name`, or None when nothing is near."""
    near = nearest(name, known, count=1)
    return f"did you mean {near[0]}?" if near else None


def _part(wanted: str, name: str) -> int:
    """Return 1 where `wanted` is the initials of a name's last word, 2 its beginning, 3 a part; 0 for none."""
    last = name.rpartition("/")[2].rpartition(".")[2]
    if wanted == "".join(word[:1] for word in last.split("_")):
        return 1
    return 2 if name.startswith(wanted) else 3 if wanted in name else 0
