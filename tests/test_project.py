"""The commands about the program itself: schema, rules, scripts, docs."""

import json
from pathlib import Path

import pytest

from launcher.api.generated import scripts


@pytest.mark.slow
def test_schema_lists_the_families_and_prints_one(recipes):
    families = recipes("schema")[1].split()
    assert {"llm_finetuning_aws", "tiny_lm"} <= set(families)
    assert recipes("schema", "tiny_lm", "--out", "s.json")[0] == 0
    assert json.loads(Path("s.json").read_text()) == json.loads(recipes("schema", "tiny_lm")[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [(["tiny"], "E104"), (["tiny_lm", "--out", "absent/s.json"], "E805"), (["--out", "s.json"], "E801")],
    ids=["no such family", "no such folder", "a file for no family"],
)
def test_a_schema_that_cannot_be_had_is_a_problem(recipes, words, code):
    found, _, err = recipes("schema", *words)
    assert found == 2 and err.startswith(code)


@pytest.mark.slow
def test_rules_are_found_by_code_and_by_word(recipes):
    one, many, about = (recipes("rules", word)[1] for word in ("E101", "e1", "secret"))
    assert one.count("\nE") == 1 and "E101" in one
    assert many.count("\nE1") > 3 and "E601" in about
    assert recipes("rules", "E999")[0] == 2
    assert len(json.loads(recipes("rules", "--json")[1])) > 90


@pytest.mark.slow
@pytest.mark.parametrize("command", ["scripts", "docs"])
def test_generated_files_are_checked_and_written(recipes, monkeypatch, tmp_path, command):
    monkeypatch.setattr("launcher.common.paths.CHECKOUT", tmp_path)
    (tmp_path / "launcher_scripts").mkdir()
    code, _, err = recipes(command, "--check")
    assert code == 2 and err.startswith(f"E804 recipes {command}")
    assert {"scripts": f" and {len(scripts.stale(tmp_path / scripts.FOLDER)) - 8} more\n", "docs": "docs/RECIPES.md"}[
        command
    ] in err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    code, out, _ = recipes(command)
    assert code == 0 and out.splitlines()[-1].endswith("written")
    assert recipes(command, "--check") == (0, f"{command} are current\n", "")


@pytest.mark.parametrize("command", ["scripts", "docs"])
def test_an_installed_package_generates_nothing(recipes, monkeypatch, command):
    monkeypatch.setattr("launcher.common.paths.CHECKOUT", None)
    code, _, err = recipes(command)
    assert code == 2 and err.startswith("E805")
