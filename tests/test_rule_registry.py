"""How a rule is registered, when it applies, and what a rule that fails on a faulty value does."""

import pytest

from launcher import rules
from launcher.common.problems import Problem
from launcher.rules import Rule, elasticity


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
    assert RULE.applies("k8s", frozenset())
    assert RULE.applies("k8s", frozenset({"a.c", "d"}))
    assert not RULE.applies("k8s", frozenset({"d", "c.x"}))
    assert not RULE.applies("k8s", frozenset({"a"}))


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
        code: [name for name in ("k8s", "local", "sm_jobs") if by_code[code].applies(name, frozenset())]
        for code in ("E201", "E302", "E371")
    }
    assert applying == {"E201": ["k8s", "local", "sm_jobs"], "E302": ["k8s"], "E371": ["sm_jobs"]}
    assert by_code["E201"].clusters == () and by_code["E302"].clusters == ("k8s",)
    assert {"E201", "E302"} <= {rule.code for rule in rules.rules_for("k8s")}


def test_notices_that_have_no_place_come_last(monkeypatch):
    unplaced = [rules.NoticeRule(code, "", check) for code in ("N999", "N998")]
    monkeypatch.setattr(rules, "_notice_rules", [*unplaced, *rules.all_notice_rules()])
    codes = [each.code for each in rules._in_order()]
    assert codes == [*rules.ORDER, "N998", "N999"]


def test_a_notice_is_made_with_its_rule_s_code():
    def advice(planned, notice):
        yield notice(f"{planned} is odd")

    rule = rules.NoticeRule("N998", "a source", advice)
    assert [str(each) for each in rule.notices("this")] == ["note  N998 this is odd"]
