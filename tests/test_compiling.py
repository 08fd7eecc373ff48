"""The commands that compile, as a user meets them: check, plan, render, new."""

import json
import re
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA, RATE, ROOT, SHORT, shipped

from launcher.api.checking import Checked
from launcher.common.problems import Problem
from launcher.config import catalogue


def test_check_says_what_is_right(recipes):
    code, out, err = recipes("check", SHORT, "cluster=k8s", ELASTIC)
    assert (code, err) == (0, "")
    assert out.startswith(f"ok  {SHORT}  elastic, 7 sizes on ml.p5.48xlarge\n")


def test_check_reports_every_recipe_and_exits_with_2(recipes):
    code, out, err = recipes("check", SHORT, "training/tiny/tiny_lm_cpu", "recipes.trainer.devices=no")
    assert (code, out) == (2, "")
    assert err.count("E102 recipes.trainer.devices") == 1 and "1 problem in 2 of 2 recipes" in err


@pytest.mark.parametrize("words", [[], [SHORT, "--all"]], ids=["nothing", "both"])
def test_check_needs_recipes_or_all(recipes, words):
    code, _, err = recipes("check", *words)
    assert code == 2 and err.startswith("E801")


@pytest.fixture
def two_entries(monkeypatch):
    entries = [entry for entry in shipped() if entry.name in (LLAMA, "training/tiny/tiny_lm_cpu")]
    monkeypatch.setattr(catalogue, "entries", lambda *folder: tuple(entries))


@pytest.mark.slow
def test_check_all_says_how_much_it_checked(recipes, two_entries):
    code, out, err = recipes("check", "--all")
    assert (code, err) == (0, "")
    assert out.startswith("2 recipes, ") and ": 0 problems\n" in out
    num_jobs = int(re.search(r"(\d+) jobs", out)[1])
    assert all(int(told) <= num_jobs for told in re.findall(r"[EN]\d{3} on (\d+) jobs", out))


@pytest.mark.slow
def test_check_all_says_a_problem_once_and_on_which_instances(recipes, two_entries):
    code, out, err = recipes("check", "--all", "recipes.training_config.training_args.save_steps=often")
    assert code == 2 and err.count("E102 recipes.training_config.training_args.save_steps") == 1
    assert "     in 2 recipes: " in err and out.splitlines()[0].endswith(": 1 problem")


def test_check_as_json_has_every_field_of_a_problem(recipes):
    code, out, _ = recipes("check", SHORT, "training/tiny/tiny_lm_cpu", f"{RATE}=fast", "--json")
    found = json.loads(out)
    assert (code, found["num_problems"], len(found["checked"])) == (2, 1, 2)
    problem = found["checked"][0]["problems"][0]
    assert problem.items() >= {"code": "E102", "path": RATE, "value": "fast", "where": f"{RATE}=fast"}.items()


def test_check_annotates_the_file_and_line_for_github(recipes):
    words = ("cluster=k8s", ELASTIC, "instance_type=ml.g5.12xlarge", "--github")
    code, out, _ = recipes("check", SHORT, *words)
    head, _, message = out.splitlines()[0].partition(f"::{SHORT}")
    fields = dict(part.split("=", 1) for part in head.removeprefix("::error ").split(","))
    line = (ROOT / fields["file"]).read_text().splitlines()[int(fields["line"]) - 1]
    assert code == 2 and "uneven_batch" in line
    assert "%0A" in message and fields["title"].startswith("E22")


def test_an_annotation_escapes_what_would_end_it(recipes, monkeypatch):
    from launcher.api import checking

    problem = Problem("E999", "a,b:c", "100% wrong\nreally", where="/x,y.yaml:7")
    result = Checked("r", Path("r"), None, False, 0, (problem,))
    monkeypatch.setattr(checking, "check", lambda *_, **__: [result])
    _, out, _ = recipes("check", "tiny_lm_cpu", "--github")
    assert out.startswith(
        "::error file=/x%2Cy.yaml,line=7,title=E999 a%2Cb%3Ac::r: E999 a,b:c%0A     100%25 wrong%0A"
    )
    assert len(out.splitlines()) == 1


def test_plan_shows_one_table(recipes):
    code, out, _ = recipes("plan", SHORT, "cluster=k8s", ELASTIC)
    assert code == 0
    for part in ("samples per rank", "5 on 16, 6 on 8", "speed", "per hour USD"):
        assert part in out
    assert not Path("results").exists()


def test_notes_of_every_elastic_job_are_named_in_one_line_and_printed_on_request(recipes):
    words = ("plan", SHORT, "cluster=k8s", ELASTIC)
    _, short, _ = recipes(*words)
    _, full, _ = recipes(*words, "--notes")
    _, as_json, _ = recipes(*words, "--json")
    codes = [notice["code"] for notice in json.loads(as_json)["notices"]]
    usual = [code for code in codes if code in ("N105", "N109", "N117", "N166")]
    assert len(usual) >= 3
    assert re.findall(r"^note  (N\d+)", full, re.MULTILINE) == codes
    assert re.findall(r"^note  (N\d+)", short, re.MULTILINE) == [code for code in codes if code not in usual]
    assert f"{len(usual)} notes of most elastic jobs: {', '.join(usual)}   recipes plan --notes\n" in short
    assert "most elastic jobs" not in full


def test_a_job_of_fixed_size_has_its_notes_in_full(recipes):
    _, out, _ = recipes("plan", SHORT, "cluster=k8s")
    assert "note  N117" in out and "most elastic jobs" not in out


def test_plan_as_json_is_the_bundle_s(recipes, elastic_bundle):
    _, out, _ = recipes("plan", SHORT, "cluster=k8s", ELASTIC, f"{RATE}=0.3", "--json")
    ours, theirs = json.loads(out), json.loads((elastic_bundle / "plan.json").read_text())
    assert ours.pop("costs")["prices"]["ml.p5.48xlarge"]["date"]
    assert {**ours, "job_name": ""} == {**theirs, "job_name": ""}


@pytest.mark.slow
def test_plan_draws_a_picture(recipes):
    code, out, _ = recipes("plan", SHORT, "cluster=k8s", ELASTIC, "--picture", "plan.svg")
    assert code == 0 and out.endswith("picture plan.svg\n") and "<svg" in Path("plan.svg").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("picture", ["plan.doc", "absent/plan.png"])
def test_a_picture_that_cannot_be_drawn_is_a_problem(recipes, picture):
    code, _, err = recipes("plan", SHORT, "cluster=k8s", "--picture", picture)
    assert code == 2 and err.startswith("E709")


@pytest.mark.slow
def test_a_new_recipe_inherits_and_passes(recipes):
    code, out, _ = recipes("new", "mine.yaml", "--from", SHORT)
    assert code == 0 and "recipes plan mine.yaml cluster=k8s\n" in out
    assert ".schemas/llm_finetuning_aws.json" in out
    assert recipes("check", "mine.yaml", "cluster=k8s")[0] == 0
    assert recipes("new", "mine.yaml")[0] == 2


@pytest.mark.slow
def test_the_next_step_of_an_incomplete_recipe_is_its_check(recipes):
    _, out, _ = recipes("new", "mine.yaml", "--from", "training/custom/elastic_script")
    assert "next: recipes check mine.yaml" in out


def test_check_goes_on_after_a_recipe_that_is_not_there(recipes):
    code, out, err = recipes("check", SHORT, "nothere", f"{SHORT}@3", "cluster=k8s")
    assert code == 2 and out.startswith(f"ok  {SHORT}  1 size")
    assert err.count("E005 recipes") == 1 and "no size can be given here" in err


def test_what_is_not_there_is_told_as_it_was_asked_for(recipes):
    assert json.loads(recipes("check", "nothere", "--json")[1])["num_problems"] == 1
    assert recipes("check", "nothere", "--github")[1].startswith("::error ")
    assert recipes("check", "nothere", "--json", "--github")[2].startswith("E801")


def test_a_faulty_job_s_kind_is_told_in_json(recipes):
    words = ("cluster=k8s", ELASTIC, "recipes.nonsense=3", "--json")
    (checked,) = json.loads(recipes("check", SHORT, *words)[1])["checked"]
    told = (checked["instance_type"], checked["is_elastic"], checked["num_sizes"])
    assert told == ("ml.p5.48xlarge", True, None)
