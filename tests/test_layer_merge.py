"""Layers merged as plain trees, beside OmegaConf's own merge."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.plain_values import NotPlain, merge_layers

LEAVES = st.sampled_from([None, 0, 1, True, 1.5, "", "x", "???", "${a}", "${a.b}", "y${b}", [], [1], ["${a}"], {}])
KEYS = st.sampled_from(["a", "b", "c", 0, 1])
VALUES = st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3))
TREES = st.dictionaries(KEYS, VALUES, max_size=4)
PACKAGES = st.sampled_from(["", "a", "a.b", "c"])


@pytest.mark.slow
@given(st.lists(st.tuples(PACKAGES, TREES), max_size=4))
@example([("", {"a": {"b": 1}}), ("a", {"b": "???", "c": "???"})])
@example([("", {"a": [1, 2]}), ("", {"a": [3]})])
@example([("", {"a": None}), ("a.b", {"c": 1})])
@example([("a.b", {}), ("", {"a": {"a": "${a.b}"}}), ("a", {"a": "???"})])
def test_plain_layers_are_merged_as_omegaconf_merges_them(layers):
    try:
        found = merge_layers(layers)
    except NotPlain:
        assume(False)
    merged = OmegaConf.create()
    for package, tree in layers:
        layer = OmegaConf.create()
        if package:
            OmegaConf.update(layer, package, OmegaConf.create(tree), merge=False)
        merged.merge_with(layer if package else OmegaConf.create(tree))
    expected = OmegaConf.to_container(merged, resolve=False)
    assert OmegaConf.to_container(OmegaConf.create(found), resolve=False) == expected
    assert repr(found) == repr(expected)  # the order of keys, too


@pytest.mark.parametrize(
    ("old", "new"),
    [([1], {"x": 1}), ({"x": 1}, [1]), ("${b}", {"x": 1}), ({"x": 1}, "${b}"), ("${b}", [1]), ([1], "${b}")],
)
def test_what_a_plain_merge_could_get_wrong_is_left_to_omegaconf(old, new):
    with pytest.raises(NotPlain):
        merge_layers([("", {"a": old}), ("", {"a": new})])


def test_a_keyword_of_hydra_is_not_a_package():
    with pytest.raises(NotPlain):
        merge_layers([("_group_", {"a": 1})])


def test_layers_are_left_as_they_were():
    layers = [("", {"a": {"b": {"c": 1}}}), ("a", {"b": {"d": 2}})]
    merge_layers(layers)["a"]["b"]["e"] = 3
    assert layers == [("", {"a": {"b": {"c": 1}}}), ("a", {"b": {"d": 2}})]


def test_mixed_containers_are_an_error_of_omegaconf_too():
    with pytest.raises((OmegaConfBaseException, TypeError)):
        OmegaConf.merge({"a": [1]}, {"a": {"x": 1}})
