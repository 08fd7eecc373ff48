"""Costs of a plan's sizes, by a price table of the user's."""

import json

import pytest
from test_request import RECIPE, SCRIPT, J

from launcher import costs
from launcher.problems import ProblemsFound

PLAN = (RECIPE[0].removeprefix("recipes="), *RECIPE[1:])


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("currency: EUR\np5.48xlarge: 100\nml.p3.16xlarge: 2.5\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("overrides", "hours", "expected"),
    [
        ((), None, (3, 7.5, 24.0, 180.0)),
        ((f"{J}.stopping_condition.max_runtime_s=1800",), None, (3, 7.5, 0.5, 3.75)),
        ((f"+{J}.additional_estimator_kwargs.max_run=7200",), None, (3, 7.5, 2.0, 15.0)),
        ((), 10.0, (3, 7.5, 10.0, 75.0)),
        ((f"{J}.keep_alive_s=1800",), 10.0, (3, 7.5, 10.5, 78.75)),
    ],
    ids=["a-day", "limit", "the-sdks-limit", "told", "warm-pool"],
)
def test_a_training_job_costs_its_limit_at_most(prepare, prices, overrides, hours, expected):
    job = prepare(*SCRIPT, "training_cfg.run.nodes=3", *overrides)
    (cost,) = costs.costs(job, costs.read(prices), hours)
    assert (cost.nodes, cost.per_hour, cost.hours, cost.most) == expected
    assert cost.instance_hours == cost.nodes * cost.hours


def test_groups_have_prices_of_their_own(prepare, prices):
    groups = (
        f"{J}.instance_groups=[{{name: a, instance_type: p3.16xlarge, instance_count: 1}},"
        " {name: b, instance_type: p5.48xlarge, instance_count: 2}]"
    )
    (cost,) = costs.costs(prepare(*SCRIPT, "training_cfg.run.nodes=3", groups), costs.read(prices))
    assert (cost.nodes, cost.per_hour) == (3, 202.5)


def test_every_size_of_an_elastic_job_has_its_price(recipes, prices):
    words = (PLAN[0], "cluster=k8s", "recipes.elastic_policy.is_elastic=true", "--prices", str(prices), "--json")
    code, out, _ = recipes("plan", *words)
    found = json.loads(out)["costs"]
    assert code == 0 and found["currency"] == "EUR"
    assert [(size["nodes"], size["per_hour"], size["most"]) for size in found["sizes"]][:3] == [
        (1, 100.0, None),
        (2, 200.0, None),
        (3, 300.0, None),
    ]


def test_the_plan_shows_what_it_costs(recipes, prices):
    code, out, _ = recipes("plan", *PLAN, "--prices", str(prices), "--hours", "1.5")
    assert code == 0
    assert "instance-hours" in out and "at most EUR" in out and "150.00" in out


@pytest.mark.parametrize(
    ("hours", "says"),
    [("nan", "no number of hours"), ("inf", "no number of hours"), ("25", "stopped before that")],
)
def test_hours_that_a_job_cannot_run_are_refused(recipes, prices, hours, says):
    code, _, err = recipes("plan", *PLAN, "--prices", str(prices), "--hours", hours)
    assert code == 2 and err.startswith("E806") and says in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- 1", "no table"),
        ("p5.48xlarge: free", "no price"),
        ("p5.48xlarge: 1\nml.p5.48xlarge: 2", "two prices"),
        ("p5.48xlarge: -1", "no price"),
        ("p5.48xlarge: true", "no price"),
        ("p4d.24xlarge: 1", "no price for that instance type"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_table_that_is_none_is_refused(prepare, tmp_path, text, says):
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProblemsFound, match="E806") as refused:
        costs.costs(prepare(*RECIPE), costs.read(path))
    assert says in str(refused.value)


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(ProblemsFound, match="cannot be read"):
        costs.read(tmp_path / "none.yaml")
