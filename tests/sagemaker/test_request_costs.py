"""Costs of a plan's sizes, by the dated prices or by a price table of the user's."""

import datetime
import json

import pytest
from conftest import ROOT
from request_faults import BASE_MODEL
from test_request import NEEDED, RECIPE, SCRIPT, J

from launcher.common.problems import ProblemsFound
from launcher.jobs import costs
from launcher.jobs import prices as tables
from launcher.model import instances

FACTS = "shared/facts/instances/instances.json"
PLAN = (RECIPE[0].removeprefix("recipes="), *RECIPE[1:])

SERVERLESS = (f"base_model_arn={BASE_MODEL}", "job_type=FineTuning")


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
    (cost,) = costs.costs(job, tables.read(prices), hours)
    assert (cost.nodes, cost.per_hour, cost.hours, cost.most) == expected
    assert cost.instance_hours == cost.nodes * cost.hours


def test_groups_have_prices_of_their_own(prepare, prices):
    groups = (
        f"{J}.instance_groups=[{{name: a, instance_type: p3.16xlarge, instance_count: 1}},"
        " {name: b, instance_type: p5.48xlarge, instance_count: 2}]"
    )
    (cost,) = costs.costs(prepare(*SCRIPT, "training_cfg.run.nodes=3", groups), tables.read(prices))
    assert (cost.nodes, cost.per_hour) == (3, 202.5)


@pytest.mark.slow
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
    [("nan", "must be a number of hours"), ("inf", "must be a number of hours"), ("25", "stopped earlier")],
)
def test_hours_that_a_job_cannot_run_are_refused(recipes, prices, hours, says):
    code, _, err = recipes("plan", *PLAN, "--prices", str(prices), "--hours", hours)
    assert code == 2 and err.startswith("E806") and says in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- 1", "not a table"),
        ("p5.48xlarge: free", "not a price"),
        ("p5.48xlarge: 1\nml.p5.48xlarge: 2", "two prices"),
        ("p5.48xlarge: -1", "not a price"),
        ("p5.48xlarge: true", "not a price"),
        ("p4d.24xlarge: 1", "no price for that instance type"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_table_that_is_none_is_refused(prepare, tmp_path, text, says):
    path = tmp_path / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProblemsFound, match="E806") as refused:
        costs.costs(prepare(*RECIPE), tables.read(path))
    assert says in str(refused.value)


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(ProblemsFound, match="cannot be read"):
        tables.read(tmp_path / "none.yaml")


def test_dated_prices_are_the_default(recipes):
    code, out, _ = recipes("plan", *PLAN)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("ml.p5.48xlarge 63.296 USD an hour")]
    assert "SageMaker Studio, us-east-1, 2026-09-24" in line and line.endswith("give yours with --prices FILE")
    assert "at most USD" in out and "1,519.10" in out
    _, out, _ = recipes("plan", PLAN[0], "cluster=k8s", "--json")
    found = json.loads(out)["costs"]
    assert found["sizes"][0]["per_hour"] == 55.04
    assert found["prices"]["ml.p5.48xlarge"] == {
        "per_hour": 55.04,
        "kind": "EC2 on demand",
        "region": "us-east-1",
        "date": "2026-07-20",
        "remark": "SageMaker charges 1.15 to 1.40 times as much where both are known",
    }


def test_own_prices_replace_the_dated_ones(recipes, prices):
    _, out, _ = recipes("plan", *PLAN, "--prices", str(prices))
    assert "ml.p5.48xlarge 100 EUR an hour: prices.yaml" in out and "USD" not in out and "2026" not in out


def test_a_type_without_a_price_is_named(recipes):
    spec = (
        "++recipes.instance_specs=[{name: p9.48xlarge, accelerators: 8, accelerator: gpu, vcpus: 1, memory_gib: 9}]"
    )
    words = ("plan", PLAN[0], "cluster=k8s", "instance_type=p9.48xlarge", spec)
    code, out, _ = recipes(*words)
    assert code == 0 and "no known price of ml.p9.48xlarge; give yours with --prices FILE" in out
    assert json.loads(recipes(*words, "--json")[1])["costs"] is None


def test_a_serverless_job_has_no_instances_to_describe_or_pay_for(recipes, prices):
    words = ("plan", "training/custom/script", *NEEDED, *(f"{J}.serverless.{each}" for each in SERVERLESS))
    code, out, err = recipes(*words)
    assert code == 0 and err == ""
    assert "the price of a serverless job is unknown: AWS chooses its instances" in out
    assert "USD" not in out and "stay idle" not in out
    assert json.loads(recipes(*words, "--json")[1])["costs"] is None
    code, _, err = recipes(*words, "--prices", str(prices))
    assert code == 2 and err.startswith("E806")


def test_a_job_on_this_machine_has_no_price(recipes):
    assert "USD" not in recipes("plan", "tiny_lm_cpu")[1]
    assert "costs" not in json.loads(recipes("plan", "tiny_lm_cpu", "--json")[1])
    code, _, err = recipes("plan", "tiny_lm_cpu", "--hours", "1")
    assert code == 2 and err.startswith("E806")


def test_a_misspelt_type_of_a_price_table_is_a_notice(recipes, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("p5.48xlarge: 1\np5.48xlrge: 2\n", encoding="utf-8")
    code, _, err = recipes("plan", *PLAN, "--prices", str(path))
    assert code == 0 and "N160 --prices has ml.p5.48xlrge" in err


def priced():
    lines = (ROOT / "launcher/jobs/prices.csv").read_text(encoding="utf-8").splitlines()
    head, *rows = (line.split(",") for line in lines if not line.startswith("#"))
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_every_dated_price_has_a_type_a_region_a_date_and_a_source():
    explained = (ROOT / "launcher/jobs/prices.csv").read_text(encoding="utf-8").partition("# Sources:")[2]
    for row in priced():
        assert f"ml.{row['name']}" in instances.table() and float(row["usd_per_hour"]) > 0, row
        assert row["region"] and datetime.date.fromisoformat(row["date"]), row
        assert f"\n#   {row['source']} " in explained, row
    kinds = [(row["name"], row["kind"]) for row in priced()]
    assert len(set(kinds)) == len(kinds)


def test_the_remarks_on_prices_are_what_they_show():
    of = {(row["name"], row["kind"]): float(row["usd_per_hour"]) for row in priced()}
    ours = [(name, kind) for name, kind in of if kind in ("training", "studio") and (name, "ec2") in of]
    ratios = [round(of[name, kind] / of[name, "ec2"], 2) for name, kind in ours]
    assert (min(ratios), max(ratios)) == (1.15, 1.4)
    both = [
        of[name, "training"] / price
        for (name, kind), price in of.items()
        if (name, "training") in of and kind == "studio"
    ]
    assert len(both) == 7 and all(abs(ratio - 1) < 0.004 for ratio in both)


def test_every_type_but_one_has_a_price():
    for backend in ("k8s", "sm_jobs"):
        assert set(instances.table()) - set(tables.shipped(backend).per_hour) == {"ml.p6e-gb200.36xlarge"}


def test_the_dated_prices_are_the_collected_ones():
    path = next((parent / FACTS for parent in ROOT.parents if (parent / FACTS).is_file()), None)
    if path is None:
        pytest.skip(f"{FACTS} is not beside this repository")
    collected = {row["instance_type"]: row for row in json.loads(path.read_text(encoding="utf-8"))}
    for row in priced():
        fact = collected[f"ml.{row['name']}"]
        key = {"ec2": "ec2_ondemand", "block": "ec2_capacity_block"}.get(row["kind"])
        known = [fact[key]] if key else fact["sagemaker_prices"]
        assert (float(row["usd_per_hour"]), row["date"]) in [(p["usd_per_hour"], p["date"]) for p in known], row
