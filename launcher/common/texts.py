"""Texts for people: of others, such as logs, names and error messages, made harmless and not endless; and counts.

Standard library only.
"""

import re
import shlex
import signal
from collections.abc import Sequence

_SUSPECT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that reverse the direction of a text. Few lines have one."""
_STRING = r"[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c|(?=\x1b)|(?=\n)|$)"
_SEQUENCE = (
    rf"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]){_STRING}"  # a title, a link, the clipboard
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, movements, modes
    r"|\x1b[ -/]*[0-~]?"  # character sets, resets
)
"""Source: ECMA-48, 5.4 Control sequences, 5.6 Control strings, 9 Introducers; xterm, Control Sequences."""
_NO_SHELL = r"[\w./@:+=,…~\[\]-]+"
"""A word that needs no quotes in a shell."""
_SPECIAL = r'["$`!]|\\\\'
"""What a shell changes within double quotes. Source: Bash Reference Manual, Double Quotes."""


def plain(text: str) -> str:
    """Return a text without control sequences and control characters; tabs and line feeds stay.

    Of a line that returns to its begin, as progress bars do, the last state stays, as a terminal would show it.
    """
    if _SUSPECT.search(text) is None:
        return text
    text = re.sub(_SEQUENCE, "", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _SUSPECT.sub("", text)


_MOST_OF_AN_OBJECT = 60
"""Characters of an object's repr that are shown."""
LONGEST = 1024
"""Characters of a text by others that are shown: as many as SageMaker keeps of a reason."""
_KEPT_END = 512
"""Characters of its end that are kept: errors have their cause there."""


def in_line(text: str, keeps: str = "") -> str:
    """Return a text with line breaks, control characters and bytes that are not UTF-8 as escape sequences, but for
    the signs in `keeps`."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keeps else repr(sign)[1:-1] for sign in text)


def printable(text: str) -> str:
    """Return a text with blanks in place of control characters other than the end of a line."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


def bounded(text: str) -> str:
    """Return a printable text; of a long one, its beginning and its end."""
    if len(text) > LONGEST:
        left_out = len(text) - LONGEST
        text = f"{text[: LONGEST - _KEPT_END]} … ({left_out} characters) … {text[-_KEPT_END:]}"
    return printable(text)


def start_of(text: str, most: int) -> str:
    """Return the first characters of a text, and an ellipsis if there are more."""
    return text if len(text) <= most else f"{text[:most]}…"


def shell_word(text: str) -> str:
    """Return a word as it is typed in a shell: in double quotes, the easier to read, if the shell leaves it alone."""
    if re.fullmatch(_NO_SHELL, text):
        return text
    return shlex.quote(text) if re.search(_SPECIAL, text) else f'"{text}"'


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(num_bytes: float) -> str:
    """Return bytes in a unit that leaves at most four digits before the point: `512 B`, `1.5 GiB`."""
    if num_bytes < 1024:
        return f"{num_bytes:.0f} B"
    power = min(len(_UNITS), (int(num_bytes).bit_length() - 1) // 10)
    return f"{num_bytes / 1024**power:.1f} {_UNITS[power - 1]}"


def signal_name(number: int) -> str:
    """Return the name of a signal: `SIGTERM`; of one that has none, as most real-time signals, `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def object_text(value: object) -> str:
    """Return the start of an object's repr; of one whose repr fails, its type."""
    try:
        text = repr(value)
    except Exception:  # whatever another program's class does
        text = f"<{type(value).__name__}>"
    return start_of(text, _MOST_OF_AN_OBJECT)
