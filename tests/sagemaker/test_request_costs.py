"""Costs of a plan's sizes, by the dated prices or by a price table of the user's."""

import datetime
import json

import pytest
from conftest import ROOT
from request_faults import BASE_MODEL
from test_request import NEEDED, RECIPE, SCRIPT, J

from launcher.common.problems import ProblemsFound
from launcher.job_store import costs
from launcher.job_store import prices as tables
from launcher.model import instances
from launcher.model.backend_registry import is_serverless

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
    assert (cost.nodes, cost.per_hour, cost.hours, cost.most) == (3, 202.5, 24.0, 4860.0)


def test_an_unbounded_job_has_a_price_an_hour_for_each_of_its_sizes(prepare, prices):
    sized = ("recipes.elastic_policy.is_elastic=true", "recipes.elastic_policy.max_nodes=4")
    job = prepare(RECIPE[0], "cluster=k8s", *sized)
    found = costs.costs(job, tables.read(prices))
    assert [(cost.nodes, cost.per_hour) for cost in found] == [
        (point.nodes, 100.0 * point.nodes) for point in job.scales
    ]
    assert len(found) > 1 and {(cost.hours, cost.most, cost.instance_hours) for cost in found} == {(None, None, None)}
    assert {cost.most for cost in costs.costs(job, tables.read(prices), 2.0)} == {2 * cost.per_hour for cost in found}


def test_longer_than_the_limit_is_refused_with_the_limit_to_set(prepare, prices):
    limited = prepare(*SCRIPT, f"{J}.stopping_condition.max_runtime_s=1800")
    assert costs.costs(limited, tables.read(prices), 0.5)[0].hours == 0.5
    with pytest.raises(ProblemsFound) as refused:
        costs.costs(limited, tables.read(prices), 25.0001)
    (problem,) = refused.value.problems
    assert (problem.code, problem.path, problem.value, problem.allowed) == ("E806", "--hours", 25.0001, "at most 0.5")
    assert problem.remedy == f"{J}.stopping_condition.max_runtime_s=90001"


def test_costs_are_columns_of_a_plan_and_plain_data(prepare):
    prices = tables.Prices({"ml.p5.48xlarge": 1234.5, "ml.p3.16xlarge": 0.25}, "EUR", {})
    found = (costs.Cost(1, 1234.5), costs.Cost(12, 14814.0, 1.5))
    assert costs.columns(found, prices) == (("per hour EUR",), [("1,234.50",), ("14,814.00",)])
    assert costs.columns(found[1:], tables.Prices({})) == (
        ("per hour", "hours", "instance-hours", "at most"),
        [("14,814.00", "1.5", "18", "22,221.00")],
    )
    own = tables.Prices(prices.per_hour, "EUR", dict.fromkeys(prices.per_hour, tables.Basis("mine")))
    job = prepare(*RECIPE)
    assert costs.bases(job, own) == ["ml.p5.48xlarge 1,234.5 EUR an hour: mine"]
    assert costs.bases(job, tables.Prices({"ml.p5.48xlarge": 100.0}, "", own.basis)) == [
        "ml.p5.48xlarge 100 an hour: mine"
    ]
    assert costs.bases(job, tables.Prices({}, "", {})) == []
    assert costs.as_json(job, (costs.Cost(1, 1.23456), costs.Cost(2, 0.5, 3.3333)), own) == {
        "currency": "EUR",
        "prices": {"ml.p5.48xlarge": {"per_hour": 1234.5, "kind": "mine", "region": "", "date": "", "remark": ""}},
        "sizes": [
            {"nodes": 1, "per_hour": 1.2346, "hours": None, "instance_hours": None, "most": None},
            {"nodes": 2, "per_hour": 0.5, "hours": 3.3333, "instance_hours": 6.6666, "most": 1.67},
        ],
    }
    assert costs.as_json(job, (), tables.Prices(own.per_hour, "", own.basis))["currency"] is None


def test_groups_of_instances_are_billed_by_their_own_types(prepare):
    groups = (
        f"{J}.instance_groups=[{{name: a, instance_type: p3.16xlarge, instance_count: 1}},"
        " {name: b, instance_type: p5.48xlarge, instance_count: 2}]"
    )
    job = prepare(*SCRIPT, "training_cfg.run.nodes=3", groups)
    assert costs.instance_types(job) == ("ml.p3.16xlarge", "ml.p5.48xlarge")
    assert costs.instance_types(prepare(*RECIPE)) == ("ml.p5.48xlarge",)
    assert costs.instance_types(prepare("recipes=training/tiny/tiny_lm_cpu")) == ()


def test_a_job_without_billed_instances_is_refused(prepare, prices):
    with pytest.raises(ProblemsFound, match="a job on this machine has no billed instances"):
        costs.costs(prepare("recipes=training/tiny/tiny_lm_cpu"), tables.read(prices))
    serverless = prepare(
        "recipes=training/custom/script", *NEEDED, *(f"{J}.serverless.{each}" for each in SERVERLESS)
    )
    assert is_serverless(serverless) and not is_serverless(prepare(*RECIPE))
    with pytest.raises(ProblemsFound, match="the price of a serverless job is unknown"):
        costs.costs(serverless, tables.read(prices))


@pytest.mark.parametrize(
    ("use", "name", "per_hour", "kind"),
    [
        ("training", "ml.p5.48xlarge", 63.296, "SageMaker Studio"),
        (None, "ml.p5.48xlarge", 55.04, "EC2 on demand"),
    ],
)
def test_a_price_is_of_the_kind_closest_to_what_is_charged(use, name, per_hour, kind):
    found = tables.shipped(use)
    assert (found.of(name), found.basis[name].kind, found.currency) == (per_hour, kind, "USD")
    order = [tables._KINDS[each] for each in tables._PREFERRED.get(use or "", tables._OTHERS)]
    for row in priced():
        kind = tables._KINDS[row["kind"]]
        if kind in order:
            assert order.index(found.basis[f"ml.{row['name']}"].kind) <= order.index(kind)


def test_the_origin_of_a_price_is_read_with_its_remark():
    assert str(tables.Basis("EC2", "us-east-1", "2026-07-20", "dearer")) == "EC2, us-east-1, 2026-07-20 (dearer)"
    assert str(tables.Basis("mine")) == "mine"


def test_a_price_may_be_nothing_but_not_endless(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("p5.48xlarge: 0\nml.p3.16xlarge: 2\n", encoding="utf-8")
    found = tables.read(path)
    assert dict(found.per_hour) == {"ml.p5.48xlarge": 0.0, "ml.p3.16xlarge": 2.0} and found.currency == ""
    assert found.basis["ml.p5.48xlarge"] == tables.Basis("own.yaml") and found.of("p3.16xlarge") == 2.0
    path.write_text("p5.48xlarge: .inf\np3.16xlarge: x\ncurrency: 3\n", encoding="utf-8")
    with pytest.raises(ProblemsFound) as refused:
        tables.read(path)
    assert [(each.code, each.path) for each in refused.value.problems] == [
        ("E806", "own.yaml: p5.48xlarge"),
        ("E806", "own.yaml: p3.16xlarge"),
    ]


def test_a_type_that_only_the_job_describes_is_known():
    table = tables.Prices({"ml.p5.48xlarge": 1.0, "ml.p9.48xlarge": 2.0, "ml.p8.48xlarge": 2.0})
    (notice,) = tables.unknown(table)
    assert notice.message == "--prices has ml.p8.48xlarge, ml.p9.48xlarge, not in the table of instance types"
    assert "ml.p9" not in tables.unknown(table, "ml.p9.48xlarge")[0].message
    assert tables.unknown(tables.Prices({"ml.p5.48xlarge": 1.0})) == ()


def test_a_missing_price_suggests_the_closest_type():
    with pytest.raises(ProblemsFound) as refused:
        tables.Prices({"ml.p5.48xlarge": 1.0, "ml.p3.16xlarge": 2.0}).of("p5.48xlarg")
    (problem,) = refused.value.problems
    assert (problem.code, problem.path, problem.value) == ("E806", "--prices", "ml.p5.48xlarg")
    assert problem.allowed == "ml.p3.16xlarge, ml.p5.48xlarge"
    assert problem.remedy == "did you mean ml.p5.48xlarge?"
    with pytest.raises(ProblemsFound) as refused:
        tables.Prices({}).of("p5.48xlarge")
    assert refused.value.problems[0].allowed is None


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
    lines = (ROOT / "launcher/job_store/prices.csv").read_text(encoding="utf-8").splitlines()
    head, *rows = (line.split(",") for line in lines if not line.startswith("#"))
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_every_dated_price_has_a_type_a_region_a_date_and_a_source():
    explained = (ROOT / "launcher/job_store/prices.csv").read_text(encoding="utf-8").partition("# Sources:")[2]
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
