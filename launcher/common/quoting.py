"""Texts that others write, such as operators, schedulers and users' programs: safe to print, and not endless."""

LONGEST = 1024
"""Characters of a text by others that are shown: as many as SageMaker keeps of a reason."""
_KEPT_END = 512
"""Characters of its end that are kept: errors have their cause there."""


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
