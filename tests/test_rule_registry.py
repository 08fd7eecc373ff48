"""How a rule is registered, when it applies, and what a rule that fails on a faulty value does."""

from types import SimpleNamespace

import pytest

from launcher import rules
from launcher.common.problems import Problem
from launcher.model.recipe_keys import BatchKeys, RecipeKeys
from launcher.rules import BATCH, SAME_FOLDER, Rule, elasticity


def check(checked, problem):
    """Say   what is
    wrong."""
    yield problem("a.b", "is wrong", value=checked["value"])


RULE = Rule("E999", ("a.b", "c"), "a source", check)
check.__module__ = elasticity.__name__  # one about every cluster


@pytest.mark.parametrize(
    ("a", "b", "is_related"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a", True),
        ("a", "a.b", True),
        ("a.b", "a.bc", False),
        ("a.bc", "a.b", False),
        ("x.a", "a", False),
        ("a", "x.a", False),
        ("a.b", "a.c", False),
    ],
)
def test_paths_are_related_where_one_holds_the_other(a, b, is_related):
    assert rules.related(a, b) is is_related


def test_a_rule_is_left_out_where_a_key_it_needs_is_faulty():
    assert RULE.applies("k8s", "tiny_lm") and not RULE.needs_any(frozenset())
    assert not RULE.needs_any(frozenset({"a.c", "d"}))
    assert RULE.needs_any(frozenset({"d", "c.x"}))
    assert RULE.needs_any(frozenset({"a"}))


def test_a_rule_makes_its_problems_with_its_code():
    assert RULE.problems({"value": 3}, is_faulty=False) == [Problem("E999", "a.b", "is wrong", value=3)]
    assert RULE.reason == "Say what is wrong."


def test_a_rule_that_fails_is_silent_only_where_a_value_is_faulty():
    assert RULE.problems({}, is_faulty=True) == []
    with pytest.raises(KeyError):
        RULE.problems({}, is_faulty=False)


def test_rules_are_in_the_order_of_their_codes_and_those_of_other_backends_do_not_apply():
    codes = [rule.code for rule in rules.all_rules()]
    assert codes == sorted(codes) and len(codes) > 90
    by_code = {rule.code: rule for rule in rules.all_rules()}
    applying = {
        code: [name for name in ("k8s", "local", "sm_jobs") if by_code[code].applies(name, "tiny_lm")]
        for code in ("E201", "E302", "E371")
    }
    assert applying == {"E201": ["k8s", "local", "sm_jobs"], "E302": ["k8s"], "E371": ["sm_jobs"]}
    assert by_code["E201"].clusters == () and by_code["E302"].clusters == ("k8s",)
    of_job = {rule.code for rule in rules.rules_for("k8s", "tiny_lm")}
    assert {"E201", "E302"} <= of_job and "E371" not in of_job


def test_notices_that_have_no_place_come_last(monkeypatch):
    unplaced = [Rule(code, (), "", check) for code in ("N999", "N998")]
    monkeypatch.setattr(rules, "_rules", [*unplaced, *rules.all_notice_rules()])
    codes = [each.code for each in rules._in_order()]
    assert codes == [*rules.ORDER, "N998", "N999"]


def test_a_notice_is_made_with_its_rule_s_code():
    def advice(planned, notice):
        yield notice(f"{planned} is odd")

    rule = Rule("N998", (), "a source", advice)
    assert [str(each) for each in rule.notices("this")] == ["note  N998 this is odd"]
    assert rule.reason == "" and rule.clusters == ()


def test_a_rule_is_registered_by_its_decorator(monkeypatch):
    monkeypatch.setattr(rules, "_rules", [])
    assert rules.rule("E999", "a", "b", source="one")(check) is check
    assert rules.notice_rule("N999", source="other")(check) is check
    assert rules._by_code() == (Rule("E999", ("a", "b"), "one", check),)
    assert rules._in_order() == (Rule("N999", (), "other", check),)


def test_a_notice_rule_is_about_the_cluster_of_its_module():
    by_code = {each.code: each for each in rules.all_notice_rules()}
    assert by_code["N117"].clusters == ("k8s",) and by_code["N165"].clusters == ()
    assert [name for name in ("k8s", "local") if by_code["N117"].applies(name, "tiny_lm")] == ["k8s"]


KEYS = RecipeKeys(batch=BatchKeys("a.samples", "a.micro", "a.rate", "a.shares"), same_folder="a.folder")


@pytest.mark.parametrize(
    ("keys", "faulty", "stand_ins"),
    [
        (KEYS, ["recipes.a.samples"], {BATCH}),
        (KEYS, ["recipes.a.shares.small"], {BATCH}),
        (KEYS, ["recipes.a.folder"], {SAME_FOLDER}),
        (KEYS, ["recipes.b", "recipes.a"], {BATCH, SAME_FOLDER}),
        (KEYS, ["recipes.b", "a.samples"], set()),
        (KEYS, [], set()),
        (RecipeKeys(), ["recipes.a.samples", "recipes"], set()),
    ],
    ids=["batch", "share", "folder", "all", "others", "none", "no keys"],
)
def test_a_faulty_key_affects_the_need_that_stands_for_it(keys, faulty, stand_ins):
    checked = SimpleNamespace(recipe=SimpleNamespace(keys=keys))
    assert rules.faulty_needs(checked, faulty) == {*faulty, *stand_ins}
