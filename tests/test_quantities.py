"""Quantities in Kubernetes' notation: one parser, exact, which agrees with the official client and the API server."""

import decimal
import re
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from launcher.common.quantities import UnreadableQuantity, amount, shown

NUMBERS = st.from_regex(r"[+-]?([0-9]{1,20}(\.[0-9]{0,9})?|\.[0-9]{1,9})", fullmatch=True)
SUFFIXES = st.sampled_from(["", *"mkMGTPE", *(f"{letter}i" for letter in "KMGTPE"), "e0", "e3", "E3", "e-3", "e+12"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        (64, 64),
        ("172800m", Fraction(1728, 10)),
        ("5120Gi", 5120 * 2**30),
        ("1.5Ki", 1536),
        ("3k", 3000),
        ("1e3", 1000),
        ("5E", 5 * 10**18),
        ("2E-1", Fraction(1, 5)),
        (".5", Fraction(1, 2)),
        ("1Ei", 2**60),
        ("1n", Fraction(1, 10**9)),
        ("0.1n", Fraction(1, 10**9)),
        ("-0.1n", Fraction(-1, 10**9)),
        ("1e-12", Fraction(1, 10**9)),
        ("0e-12", 0),
        ("2u", Fraction(2, 10**6)),
        ("20n", Fraction(20, 10**9)),
        *((f"1{letter}", 1000**power) for power, letter in enumerate("kMGTPE", 1)),
        *((f"1{letter}i", 1024**power) for power, letter in enumerate("KMGTPE", 1)),
        ("-1.5m", Fraction(-3, 2000)),
        ("9999999999999999999999999999999.999999999", Fraction(10**40 - 1, 10**9)),
    ],
    ids=str,
)
def test_quantities_are_read_as_kubernetes_reads_them(text, value):
    assert amount(text) == value


WRONG = ("", "five", "1.2.3", "1..2", "1e2e3", "1e2k", "NaN", "inf", "1_0", "+", ".", "1ki", "1i", True, None)


@pytest.mark.parametrize(
    "text", [*WRONG, "5 Gi", "5GiB", "1e", "0x10", "1e9999", "٣", pytest.param("9" * 5000, id="long")]
)
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(UnreadableQuantity):
        amount(text)


def test_a_quantity_has_up_to_256_characters():
    assert amount("9" * 256) == 10**256 - 1
    with pytest.raises(UnreadableQuantity) as refused:
        amount("8" * 256 + "7")
    assert str(refused.value) == f"'{'8' * 256}' is not a valid Kubernetes quantity"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**30, "1Gi"),
        (2**30 - 2**20, "1023Mi"),
        (2**20, "1Mi"),
        (3 * 2**29, "1536Mi"),
        (2**20 + 1, "1048577"),
        (2**20 - 1, "1048575"),
        (0, "0"),
        (Fraction(1, 2), "500m"),
        (Fraction(1, 3), "334m"),
        (Fraction(1, 10**9), "1m"),
    ],
    ids=str,
)
def test_an_amount_is_shown_in_the_largest_unit_that_is_exact(value, text):
    assert shown(Fraction(value)) == text


@given(st.integers(1, 10**12), st.sampled_from(["", "m", "k", "M", "Gi", "Mi", "Ti"]))
def test_a_shown_amount_is_never_less_than_what_is_needed(number, suffix):
    value = amount(f"{number}{suffix}")
    text = amount(shown(value))
    assert value <= text < value + Fraction(1, 1000)


@pytest.mark.slow
@given(NUMBERS, SUFFIXES)
def test_the_official_client_reads_the_same_number(number, suffix):
    parser = pytest.importorskip("kubernetes.utils.quantity", reason="pip install '.[k8s]'")
    with decimal.localcontext(prec=100):
        theirs = Fraction(parser.parse_quantity(f"{number}{suffix}"))
    if (theirs * 10**9).denominator == 1:  # the client does not round to billionths, as the server does
        assert amount(f"{number}{suffix}") == theirs
    else:
        assert 0 < abs(amount(f"{number}{suffix}")) - abs(theirs) < Fraction(1, 10**9)


def test_no_other_module_parses_quantities():
    pattern = re.compile(r"\[EPTGMK\]i|KMGTPE|parse_quantity")
    users = {
        str(path.relative_to(ROOT))
        for path in Path(ROOT, "launcher").rglob("*.py")
        if pattern.search(path.read_text())
    }
    assert users == {"launcher/common/quantities.py"}
