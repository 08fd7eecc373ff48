import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.common import yaml_io

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


@pytest.mark.slow
@given(trees)
def test_what_is_dumped_is_what_is_loaded(tree):
    assert yaml_io.load(yaml_io.dump(tree)) == tree


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12))
def test_a_yaml_1_1_reader_sees_text_as_text(text):
    assert yaml.safe_load(yaml_io.dump([text])) == [text]


@pytest.mark.parametrize(
    "text", ["1e5", "2e-4", "0o17", "yes", "null", "1_000", "2026-01-01", "012389", "0_129.5", "y", "N"]
)
def test_text_that_looks_like_something_else_is_quoted(text):
    assert yaml_io.dump({"k": text}).strip() == f"k: '{text}'"


def test_a_number_key_is_the_same_key_as_a_text_key():
    assert yaml_io.load("2: a") == yaml_io.load('"2": a') == {"2": "a"}
    with pytest.raises(yaml.YAMLError, match="given twice"):
        yaml_io.load('2: a\n"2": b')


@given(st.text("ab01:-?[]{}&*!|>'\"%@,#~< \n\t", max_size=40))
def test_any_text_is_a_value_or_a_fault_with_its_place(text):
    try:
        loaded = yaml_io.load(text)
    except yaml.MarkedYAMLError as error:
        assert error.problem
    else:
        assert yaml_io.load(yaml_io.dump(loaded)) == loaded


@pytest.mark.parametrize("levels", [yaml_io.MAX_DEPTH, yaml_io.MAX_DEPTH + 1], ids=["deepest", "deeper"])
@pytest.mark.parametrize(
    "nest",
    [
        lambda n: "[" * n + "]" * n,
        lambda n: "{a: " * n + "}" * n,
        lambda n: "- " * n + "x",
        lambda n: "".join(f"{' ' * i}a:\n" for i in range(n)) + " " * n + "x",
        lambda n: "? " * n + "x",
        lambda n: "".join(f"{'  ' * i}- a:\n" for i in range(n // 2)) + " " * n + "- x" * (n % 2),
    ],
    ids=["flow", "flow_mapping", "block", "indent", "key", "both"],
)
def test_nesting_is_counted_alike_in_every_form(nest, levels):
    try:
        fault = str(yaml_io.load(nest(levels)) and "")
    except yaml.MarkedYAMLError as error:
        fault = str(error)
    assert ("levels deep" in fault) == (levels > yaml_io.MAX_DEPTH)


def test_a_merge_takes_over_what_the_mapping_does_not_say_itself():
    assert yaml_io.load("a: &a {x: 1, y: 1}\nb: {<<: *a, x: 2}")["b"] == {"x": 2, "y": 1}
    twice = "a: &a {x: 1}\nb: {<<: &b {<<: *a, x: 2}}\nc: {<<: [*a, *b]}\nd: *b"
    assert yaml_io.load(twice) == {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 1}, "d": {"x": 2}}


def test_nodes_have_the_keys_that_a_merge_takes_over():
    root = yaml_io.load_nodes("a: &a\n  x: 1\n  y: 1\nb:\n  <<: *a\n  x: 2")
    merged = root.value[1][1].value
    places = [(key.value, value.value, value.start_mark.line) for key, value in merged]
    assert places == [("x", "2", 5), ("y", "1", 2)]


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2", "a: {b: 1, b: 2}", "a: &a {x: 1, x: 2}"], ids=["top", "nested", "anchor"]
)
def test_a_key_given_twice_is_a_fault(text):
    with pytest.raises(yaml.MarkedYAMLError, match="given twice"):
        yaml_io.load(text)


@pytest.mark.slow
def test_our_own_large_bundles_are_read_back():
    tree = {f"key{i}": list(range(20)) for i in range(2000)}
    assert yaml_io.load(yaml_io.dump(tree)) == {key: list(range(20)) for key in tree}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: !!int abc", "not a valid int"),
        ("a: !!bool maybe", "not a valid bool"),
        ("a: !!timestamp x", "not supported"),
        ("a: !!set {x}", "not supported"),
        ("a: \x07", "not allowed"),
        ("a: 1\n--- \nb: 2", "second document"),
        ("? [a]\n: b", "plain word"),
    ],
    ids=["int", "bool", "timestamp", "set", "bell", "documents", "list_as_key"],
)
def test_a_fault_is_told_in_plain_words(text, says):
    with pytest.raises(yaml.MarkedYAMLError, match=says) as caught:
        yaml_io.load(text)
    assert caught.value.problem_mark is not None


@pytest.mark.parametrize("text", ["010", "-0_17", "1:30", "12:00:00", "!!int 010"])
def test_a_number_that_yaml_1_2_reads_in_another_way_is_a_fault(text):
    with pytest.raises(yaml.MarkedYAMLError, match="ambiguous"):
        yaml_io.load(f"k: {text}")


@pytest.mark.parametrize("text", ["00", "007", "-01", "0_1"])
def test_a_number_that_both_versions_read_alike_is_taken(text):
    assert yaml_io.load(f"k: {text}") == {"k": int(text)}


@pytest.mark.parametrize(("text", "forms"), [("010", "8 or 10, or '010'"), ("1:30", "90, or '1:30'")])
def test_both_ways_to_write_an_ambiguous_number_are_named(text, forms):
    with pytest.raises(yaml.MarkedYAMLError, match=f"write {forms} for a text"):
        yaml_io.load(f"k: {text}")


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("1e8", 1e8), (".5", 0.5), ("2026-01-01", "2026-01-01")])
def test_numbers_are_yaml_1_2(text, value):
    assert yaml_io.load(f"k: {text}") == {"k": value}
