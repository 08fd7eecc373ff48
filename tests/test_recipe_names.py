"""A recipe's file may have any name that a file may have, however it is given."""

import sys
import unicodedata
from pathlib import Path

import commands
import pytest
from conftest import ROOT

from launcher import pipeline
from launcher.common import yaml_io
from launcher.config.compose import compose

NAMES = {
    "umlaut": "größe",
    "composed": unicodedata.normalize("NFC", "größe é"),
    "decomposed": unicodedata.normalize("NFD", "größe é"),
    "emoji": "🦙 llama",
    "cjk": "日本語",
    "quotes": 'it\'s "mine"',
    "quoted": "'mine'",
    "equals": "a=b",
    "comma": "a,b",
    "brackets": "[a]",
    "braces": "{a: b}",
    "parentheses": "choice(a)",
    "at": "a@b",
    "size": "a@3",
    "dollar": "$HOME",
    "reference": "${oc.env:HOME}",
    "backslash": "a\\b",
    "backslash_quote": "a\\'b\\",
    "dash": "-x",
    "dashes": "--json",
    "tilde": "~x",
    "plus": "+x",
    "colon": "a:b",
    "slashes": "a:\\\\b",
    "scheme": "file:",
    "percent": "50%",
    "hash": "#1",
    "star": "*",
    "newline": "a\nb",
    "tab": "a\tb",
    "dots": "..x..",
    "keyword": "null",
    "number": "1e3",
    "spaces": " a  b ",
    "long": "a" * 240,
}
TEXT = "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun: {name: mine}\n"
LAUNCH = ("cluster=local", "recipes.training_config.mlflow.enabled=false")


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def file(request, tmp_path):
    path = tmp_path / f"{request.param}.yaml"
    path.write_text(TEXT)
    return path


@pytest.mark.slow
def test_a_relative_and_an_absolute_path_are_taken_as_typed(file, context):
    for text in (f"recipes={file.name}", f"recipes={file}", f"recipes=./{file.name}"):
        job = pipeline.prepare((text, *LAUNCH), context)
        assert job.config["recipes"]["run"]["name"] == "mine"
        again = compose(job.overrides, context.cwd)  # as `recipes diff` does for a bundle
        assert again.tree["recipes"]["run"]["name"] == "mine"


@pytest.mark.slow
def test_a_folder_of_the_search_path_may_hold_it(file, context):
    folder = file.parent / "team's, [own] {größe}"
    (folder / "recipes").mkdir(parents=True)
    file.rename(folder / "recipes" / file.name)
    search = "hydra.searchpath=['" + str(folder).replace("'", "\\'") + "']"
    job = pipeline.prepare((f"recipes={file.stem}", search, *LAUNCH), context)
    assert job.config["recipes"]["run"]["name"] == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "check", "plan", "explain", "diff", "render"])
def test_every_command_about_recipes_takes_it(command, file, recipes):
    more = {"explain": ("recipes.run.name",), "diff": ("training/tiny/tiny_lm_cpu",), "render": LAUNCH[1:]}
    words = [f"./{file.name}" if file.name.startswith("-") else file.name, *more.get(command, ())]
    code, out, err = recipes(command, *words)
    assert (code, err) == (0, "") and out


@pytest.mark.slow
def test_a_recipe_may_inherit_it(file, recipes, tmp_path):
    code, _, err = recipes("new", "own.yaml", "--from", str(file))
    if code:  # what Hydra's `defaults` cannot name
        assert err.startswith("E805") and "has another meaning in defaults" in err and not Path("own.yaml").exists()
        return
    code, out, err = recipes("show", "own.yaml")
    assert (code, err) == (0, "") and yaml_io.load(out)["run"]["name"] == "own"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["größe", 'it\'s "mine"', "a,b", "${oc.env:HOME}", "-x", "[a]", "a@b"])
def test_main_py_takes_it_with_and_without_flags(name, tmp_path):
    (tmp_path / "own" / "recipes").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "own" / "recipes"):
        (folder / f"{name}.yaml").write_text(TEXT)
    for words in (
        [f"recipes={name}.yaml"],
        [f"recipes={name}", "--config-dir", "own"],
        ["-m", f"recipes={name}.yaml"],
    ):
        command = [sys.executable, str(ROOT / "main.py"), *words, *LAUNCH, "dry_run=true"]
        result = commands.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith("mine-")
    command = [sys.executable, str(ROOT / "main.py"), f"recipes={name}.yaml", "--cfg", "job"]
    result = commands.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stderr) == (0, "") and "name: mine" in result.stdout


@pytest.mark.parametrize(("written", "typed"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_name_is_found_however_unicode_writes_its_letters(written, typed, context):
    (context.cwd / unicodedata.normalize(written, "größe.yaml")).write_text(TEXT)
    job = pipeline.prepare((f"recipes={unicodedata.normalize(typed, 'größe.yaml')}", *LAUNCH), context)
    assert job.config["recipes"]["run"]["name"] == "mine"


@pytest.mark.parametrize(
    "name", ["größe.yaml", "größe", "${oc.create:{a:1}}", "[a.yaml", "~nobody/x.yaml", "x" * 5000 + ".yaml"]
)
def test_a_name_that_does_not_exist_is_a_problem_of_the_recipe(name, problems):
    (problem,) = problems(f"recipes={name}")
    assert (problem.code, problem.path) == ("E005", "recipes")


def test_several_files_are_still_a_sweep(context):
    for name in ("a", "b"):
        (context.cwd / f"{name}.yaml").write_text(TEXT)
    from launcher.config import multirun

    assert multirun.jobs(["recipes=a.yaml,b.yaml"]) == [["recipes=a.yaml"], ["recipes=b.yaml"]]
