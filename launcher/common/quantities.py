"""Quantities in the notation of Kubernetes, exactly. The one parser of them.

Not the official client's: its import takes more than a second, it rounds to 28 digits, and accepts "NaN" and "1_0".
"""

import re
from fractions import Fraction

_QUANTITY = r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([EPTGMK]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?"
_LONGEST = 256
"""Characters of a quantity that is parsed. Our own choice: Python converts at most 4300 digits to a number."""
_BINARY = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = dict(zip("numkMGTPE", (Fraction(10) ** power for power in (-9, -6, -3, 3, 6, 9, 12, 15, 18)), strict=True))
_FINEST = Fraction(1, 10**9)


class UnreadableQuantity(ValueError):
    """A text that is not a valid Kubernetes quantity."""


def amount(quantity: str | int | float) -> Fraction:
    """Return a Kubernetes quantity as a number.

    Raises:
        UnreadableQuantity: It is not valid.

    Source: Kubernetes API reference, Quantity: `<number>` with a binary or decimal suffix, or a decimal exponent;
    what is finer than a billionth is rounded up, away from 0. The server also caps some numbers above 2^63-1.
    """
    text = str(quantity)
    match = re.fullmatch(_QUANTITY, text, re.ASCII) if len(text) <= _LONGEST else None
    if match is None:
        raise UnreadableQuantity(f"{text[:_LONGEST]!r} is not a valid Kubernetes quantity")
    number, binary, decimal, exponent = match.groups()
    scale = _BINARY.get(binary) or _DECIMAL.get(decimal) or Fraction(10) ** int(exponent or 0)
    billionths = Fraction(number) * scale / _FINEST
    away = 1 if billionths > 0 else -1
    return -(-abs(billionths) // 1) * away * _FINEST


def shown(value: Fraction) -> str:
    """Return an amount as a quantity: in whole GiB or MiB, as an integer, or in thousandths rounded up."""
    for suffix in ("Gi", "Mi"):
        if value >= _BINARY[suffix] and value % _BINARY[suffix] == 0:
            return f"{value / _BINARY[suffix]}{suffix}"
    return str(value) if value.denominator == 1 else f"{-(-value * 1000 // 1)}m"
