"""Layers merged as plain trees, beside OmegaConf's own merge; overrides and references on plain trees."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config import parsing
from launcher.config.files import Files
from launcher.config.plain_values import Effects, NotPlain, Values, merge_layers, resolved, valued

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
    assert merge_layers([("group_", {"a": 1})]) == {"group_": {"a": 1}}


def test_layers_are_left_as_they_were():
    layers = [("", {"a": {"b": {"c": 1}}}), ("a", {"b": {"d": 2}})]
    merge_layers(layers)["a"]["b"]["e"] = 3
    assert layers == [("", {"a": {"b": {"c": 1}}}), ("a", {"b": {"d": 2}})]


def test_mixed_containers_are_an_error_of_omegaconf_too():
    with pytest.raises((OmegaConfBaseException, TypeError)):
        OmegaConf.merge({"a": [1]}, {"a": {"x": 1}})


def chain(length: int) -> dict[str, object]:
    """Return values of which each refers to the next one, and the last one is 1."""
    return {f"a{i}": f"${{a{i + 1}}}" for i in range(length)} | {f"a{length}": 1}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"a": 1, "b": "${a}"}, {"a": 1, "b": 1}),
        ({"a": {"b": "x"}, "c": "y-${a.b}-${a.b}/z"}, {"a": {"b": "x"}, "c": "y-x-x/z"}),
        ({"a": 1, "b": 2, "c": "${a}${b}"}, {"a": 1, "b": 2, "c": "12"}),
        ({"a": 1.5, "b": None, "c": True}, {"a": 1.5, "b": None, "c": True}),
        (
            {"f": 1.5, "t": True, "n": None, "x": ["${f}", "${t}", "${n}"]},
            {"f": 1.5, "t": True, "n": None, "x": [1.5, True, None]},
        ),
        ({"a": {"n": 2, "m": "${.n}", "o": {"p": "${..n}"}}}, {"a": {"n": 2, "m": 2, "o": {"p": 2}}}),
        ({"n": 1, "a": {"n": 2, "m": "${..n}"}}, {"n": 1, "a": {"n": 2, "m": 1}}),
        ({"n": 1, "a": {"n": 2, "b": "${.c}", "c": "${.n}"}}, {"n": 1, "a": {"n": 2, "b": 2, "c": 2}}),
        ({"d": {"r": "${.n}", "n": 3}, "n": 4, "x": "${d.r}"}, {"d": {"r": 3, "n": 3}, "n": 4, "x": 3}),
        ({"n": 5, "l": ["${n}", {"k": "${..n}"}, ["${...n}"]]}, None),
        ({"n": 5, "l": ["${n}", {"k": "${...n}"}, ["${...n}"]]}, {"n": 5, "l": [5, {"k": 5}, [5]]}),
        (chain(8), dict.fromkeys((f"a{i}" for i in range(9)), 1)),
        (chain(10), None),
        ({"a": "${b}", "b": "${a}"}, None),
        ({"a": "x", "b": "\\${a}"}, None),
        ({"a": 1, "b": "${a} ${"}, None),
        ({"a": "${oc.env:HOME}"}, None),
        ({"a": {"b": 1}, "c": "${a}"}, None),
        ({"a": [1], "c": "${a}"}, None),
        ({"a": [1], "c": "${a.x}"}, None),
        ({"a": 1, "c": "${a.x}"}, None),
        ({"a": "text", "c": "${a.x}"}, None),
        ({"a": "${b}"}, None),
        ({"a": {"m": "${...n}", "n": 1}, "n": 1}, None),
        ({"a": 1.5, "s": "t", "b": "${a}${s}"}, None),
        *(({"a": value, "b": "x${a}"}, None) for value in (1.5, True, None)),
        ({"a": "???"}, None),
        ({"a": {1, 2}}, None),
        ({"n": 3, "x": "${multiply:2,${n}}"}, {"n": 3, "x": 6}),
        ({"a": {"n": 3, "x": "${add: ${.n} , 1,-9}"}}, {"a": {"n": 3, "x": -5}}),
        ({"a": "${divide_ceil:7,2}", "b": "${divide_floor:7,2}"}, {"a": 4, "b": 3}),
        ({"a": "${divide_ceil:-7,2}", "b": "${divide_floor:-7,2}"}, {"a": -3, "b": -4}),
        ({"a": "${multiply:3,4}", "b": "${a}"}, {"a": 12, "b": 12}),
        *(
            ({"x": f"${{{call}}}", "f": 1.5, "t": True, "s": "1"}, None)
            for call in (
                *("divide_floor:7,0", "multiply:2", "multiply:1,2,3", "add:", "add:07,1", "add:1.5,1", "add:true,1"),
                *("nothing:1,2", "add:${f},1", "add:${t},1", "add:${s},1", "add:${absent},1", "add:${x},1"),
            )
        ),
    ],
)
def test_a_reference_is_the_scalar_that_it_leads_to(tree, expected):
    if expected is None:
        with pytest.raises(NotPlain):
            resolved(tree, (), tree)
    else:
        assert repr(resolved(tree, (), tree)) == repr(expected)


def values(tree, *words: str, suffix: str | None = None) -> Values:
    return valued(Files(tree, "", "", (), 0, {}), parsing.parse(words), suffix)


FILE = {"a": {"b": 1, "c": {"d": 2}}, "list": [1, 2], "x": "${a.b}"}


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["a.b=3"], {"a": {"b": 3, "c": {"d": 2}}, "x": 3}),
        (["a.c.d=3", "a.c.e=4"], {"a": {"b": 1, "c": {"d": 3, "e": 4}}}),
        (["new.key.deep=null"], {"new": {"key": {"deep": None}}}),
        (["new=1", "a.x=2"], {"new": 1, "a": {"b": 1, "c": {"d": 2}, "x": 2}}),
        (["a.c={e: 3}"], {"a": {"b": 1, "c": {"d": 2, "e": 3}}}),
        (["a.b={e: 3}", "x=0"], {"a": {"b": {"e": 3}, "c": {"d": 2}}, "x": 0}),
        (["a.c=5"], {"a": {"b": 1, "c": 5}}),
        (["list=[3]"], {"list": [3]}),
        (["list=5"], {"list": 5}),
        (["~a.c.d"], {"a": {"b": 1, "c": {}}}),
        (["~a.c"], {"a": {"b": 1}}),
        (["~a.c", "a.c.e=1"], {"a": {"b": 1, "c": {"e": 1}}}),
    ],
    ids=" ".join,
)
def test_overrides_change_a_copy_of_the_tree(words, changed):
    before = repr(FILE)
    assert values(FILE, *words).tree == {**FILE, "x": 1, **changed} and repr(FILE) == before


def test_a_key_of_the_top_is_removed():
    assert values(FILE, "~list").tree == {"a": FILE["a"], "x": 1}
    assert values({}, "a=1", "~a").tree == {}


@pytest.mark.parametrize(
    "words",
    [
        *(["list={a: 1}"], ["a=[1]"], ["a.b.x=1"], ["list.0=5"], ["x.y=1"], ["x.y.z=1"]),
        *(["~a.x"], ["~y"], ["~a.b.x"], ["~y.x"], ["~list=1"], ["list@b=1"]),
        *(["new=${a.b}"], ["new={y: '${a.b}'}"], ["new=['${a.b}']"], ["new='x${a.b}'"], ["new='???'"], ["~a.b"]),
        ["recipes.scale_config.3.x=1", "recipes.scale_config=auto"],
        ["++recipes.scale_config=auto", "recipes.scale_config={}", "recipes.scale_config.3.x=1"],
    ],
    ids=" ".join,
)
def test_what_plain_trees_do_not_hold_is_left_to_hydra(words):
    with pytest.raises(NotPlain):
        values(FILE, *words)


def test_a_size_of_a_planned_table_is_left_to_hydra():
    planned, words = {"recipes": {"scale_config": "auto"}}, ("recipes.scale_config={}", "recipes.scale_config.3.x=1")
    with pytest.raises(NotPlain):
        values(planned, *words)
    assert values(planned, "recipes.x=1").tree == {"recipes": {"scale_config": "auto", "x": 1}}
    found = values({"recipes": {"scale_config": {}}}, words[1])
    assert found.tree == {"recipes": {"scale_config": {"3": {"x": 1}}}}


@pytest.mark.parametrize(
    ("words", "explicit", "removed", "unused"),
    [
        (["a.b=3"], {"a.b": "a.b=3"}, {}, []),
        (["a.b=3", "a.b=4"], {"a.b": "a.b=4"}, {}, ["a.b=3"]),
        (["a.b=3", "a={e: 4}"], {"a.b": "a.b=3", "a.e": "a={e: 4}"}, {}, []),
        (["a={b: 3, e: 4}", "a.b=5"], {"a.e": "a={b: 3, e: 4}", "a.b": "a.b=5"}, {}, []),
        (["a.c.e=3", "~a.c"], {}, {"a.c": "~a.c"}, ["a.c.e=3"]),
        (["~a.c.d", "~a.c"], {}, {"a.c": "~a.c"}, ["~a.c.d"]),
        (["~a.c", "a.c=1"], {"a.c": "a.c=1"}, {}, ["~a.c"]),
        (["~a.c", "a.c.e=1"], {"a.c.e": "a.c.e=1"}, {"a.c": "~a.c"}, []),
        (["a.c=null", "a.bc=1"], {"a.c": "a.c=null", "a.bc": "a.bc=1"}, {}, []),
        (["a.c={}"], {}, {}, ["a.c={}: {} adds no key to those of a.c; ~a.c removes them"]),
        (["a.b={}", "x=1"], {"a.b": "a.b={}", "x": "x=1"}, {}, []),
        (["new={}"], {"new": "new={}"}, {}, []),
        (["new={y: {}, z: 1}"], dict.fromkeys(("new.y", "new.z"), "new={y: {}, z: 1}"), {}, []),
        (["env.HF_TOKEN=hunter2"], {"env.HF_TOKEN": "env.HF_TOKEN=…"}, {}, []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_last_override_of_a_key_is_its_origin(words, explicit, removed, unused):
    overrides = parsing.parse(words)
    effects = valued(Files(FILE, "", "", (), 0, {}), overrides, None).effects
    assert (effects.explicit, effects.removed) == (explicit, removed)
    reasons = [f"{each.override}: {each.reason}" for each in effects.unused(overrides)]
    assert [text.removesuffix(": a later override decides") for text in reasons] == unused


@pytest.mark.parametrize(
    ("value", "path", "is_kept"),
    [
        ("a=[{x: 1}]", "a", True),
        ("a=5", "a", False),
        ("a={l: [1], s: 2}", "a.l", True),
        ("a={l: [1], s: 2}", "a.s", False),
        ("a.b={c: {l: [1]}}", "a.b.c.l", True),
        ("recipes.scale_config=auto", "recipes.scale_config", True),
        ("recipes.scale_config=other", "recipes.scale_config", False),
        ("recipes.other=auto", "recipes.other", False),
    ],
)
def test_a_list_and_a_planned_table_hold_more_than_one_of_their_keys(value, path, is_kept):
    first, second = parsing.parse([value, f"{path}.k=1"])
    effects = Effects()
    effects.note(first, [path])
    effects.note(second, [f"{path}.k"])
    assert effects.set_by == ({path: first} if is_kept else {}) | {f"{path}.k": second}
    assert effects.removed_by == {}


def test_an_elastic_policy_begins_with_the_default_one():
    word = "recipes.elastic_policy.max_nodes=3"
    found = values({}, word)
    policy = found.tree["recipes"]["elastic_policy"]
    assert found.has_default_policy and policy["max_nodes"] == 3 and policy["min_nodes"] == 1
    own = values({"recipes": {"elastic_policy": {"min_nodes": 2}}}, word)
    assert own.tree == {"recipes": {"elastic_policy": {"min_nodes": 2, "max_nodes": 3}}}
    assert not own.has_default_policy
    assert values({}, "a=1").has_default_policy is False
    assert values({}, "recipes.elastic_policy=5").tree == {"recipes": {"elastic_policy": 5}}


def test_the_job_s_name_replaces_the_stated_one_before_references_are_resolved():
    tree = {
        "recipes": {
            "run": {"name": "mine", "dir": "/out/${.name}"},
            "training_config": {"mlflow": {"experiment_name": "${recipes.run.name}"}},
        }
    }
    found = values(tree, suffix="x1y2z")
    assert found.stated == {"recipes.run.name": "mine"}
    assert found.tree["recipes"]["run"] == {"name": "mine-x1y2z", "dir": "/out/mine-x1y2z"}
    assert found.tree["recipes"]["training_config"] == {"mlflow": {"experiment_name": "mine"}}
    plain = values(tree)
    assert plain.stated == {} and plain.tree["recipes"]["run"] == {"name": "mine", "dir": "/out/mine"}


def test_a_name_that_follows_the_script_s_is_replaced_with_it():
    script = {"training_cfg": {"run": {"name": "mine"}}}
    follows = {"recipes": {"run": {"name": "${recipes.training_cfg.run.name}"}, **script}}
    found = values(follows, suffix="x1y2z")
    assert found.stated == {"recipes.run.name": "mine", "recipes.training_cfg.run.name": "mine"}
    named = {"run": {"name": "mine-x1y2z"}}
    assert found.tree == {"recipes": {**named, "training_cfg": named}}
    found = values({"recipes": {"run": {"name": "mine"}, **script}}, suffix="x1y2z")
    assert found.tree == {"recipes": {**named, **script}}
