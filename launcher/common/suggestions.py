"""Suggestions for an unknown name."""

import re
from collections.abc import Sequence

from launcher.common.secret_names import names_secret

_LEAST = 2
"""Minimum characters of a part of a name that is matched."""
_ARGUMENT = r"(?ai)\{?\s*(-{0,2}[a-z][\w.-]*)(?:\s*[=:\s]\s*([^\s\"'{}\[\],\\]*))?\s*\}?"
"""An argument as people type it: --lr=3, `{--lr: 3}` or a name alone."""


QUESTION = re.compile(r"did you mean (.+)\?")
"""What `question` returns; its group has the names, with " or " between them."""


def nearest(name: str, known: Sequence[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the known names closest to `name`: those it abbreviates or is a part of, else similar spellings.

    Args:
        cutoff: Minimum similarity of two spellings, 0 to 1, as difflib measures it.
    """
    import difflib  # only a faulty name pays for it

    wanted = name.lower()
    if len(wanted) >= _LEAST:
        parts = {other: _part(wanted, other.lower()) for other in known if other != name}
        if found := sorted(filter(parts.get, parts), key=lambda other: (parts[other], len(other))):
            return found[:count]
    near = difflib.get_close_matches(name, known, n=count + 2, cutoff=cutoff)
    # first those with the same letters: two were probably exchanged
    return sorted(near, key=lambda other: sorted(other.lower()) != sorted(wanted))[:count]


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """Return a suggestion for an unknown `name`; None if no name is close."""
    return question(nearest(name, known, count=1))


def question(near: Sequence[str]) -> str | None:
    """Return names as a question; None if there are none."""
    return f"did you mean {' or '.join(near)}?" if near else None


def _part(wanted: str, name: str) -> int:
    """Return 1 if `wanted` is the initials of a name's last word, 2 for its beginning, 3 for a part; 0 for none."""
    last = name.rpartition("/")[2].rpartition(".")[2]
    if wanted == "".join(word[:1] for word in last.split("_")):
        return 1
    return 2 if name.startswith(wanted) else 3 if wanted in name else 0


def as_argument(word: str) -> str | None:
    """Return an argument of a script as `script_args` takes it: --lr=3 as {--lr: 3}; None if its form is another."""
    if (found := re.fullmatch(_ARGUMENT, word.strip())) is None:
        return None
    value = found[2] or "null"
    value = value if re.fullmatch(r"[\w./+-]*", value, re.A) else f'"{value}"'
    return f"{{{found[1]}: {'…' if names_secret(found[1]) else value}}}"
