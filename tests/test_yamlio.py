import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher import yamlio

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20)
)
trees = st.recursive(
    scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text("abc1_-", min_size=1), t, max_size=3)
)


@given(trees)
def test_what_is_dumped_is_what_is_loaded(tree):
    assert yamlio.load(yamlio.dump(tree)) == tree


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12))
def test_a_yaml_1_1_reader_sees_text_as_text(text):
    assert yaml.safe_load(yamlio.dump([text])) == [text]


@pytest.mark.parametrize("text", ["1e5", "2e-4", "0o17", "yes", "null", "1_000", "2026-01-01"])
def test_text_that_looks_like_something_else_is_quoted(text):
    assert yamlio.dump({"k": text}).strip() == f"k: '{text}'"


def test_a_number_key_is_the_same_key_as_a_text_key():
    assert yamlio.load("2: a") == yamlio.load('"2": a') == {"2": "a"}
    with pytest.raises(yaml.YAMLError, match="given twice"):
        yamlio.load('2: a\n"2": b')


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("1e8", 1e8), (".5", 0.5), ("2026-01-01", "2026-01-01")])
def test_numbers_are_yaml_1_2(text, value):
    assert yamlio.load(f"k: {text}") == {"k": value}
