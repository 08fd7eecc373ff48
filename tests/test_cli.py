"""The `recipes` command as a user meets it: what it prints, where, and how it ends."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA, ROOT

from launcher import catalogue, cli, yamlio
from launcher.compose import compose
from launcher.explain import ABSENT, Sizes, explain
from launcher.problems import Problem
from launcher.scales import leaves
from launcher.sweep import Checked

SHORT = LLAMA.rpartition("/")[2]
MICRO = "recipes.training_config.training_args.micro_train_batch_size"
RATE = "recipes.training_config.training_args.learning_rate"
AUTO = "++recipes.scale_config=auto"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipes(capsys):
    """Return a function that runs a command line and returns its exit code, output and error output."""

    def run(*words):
        code = cli.run(words)
        return code, *capsys.readouterr()

    return run


def process(*words, **variables):
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )


# list


def test_a_listing_has_every_recipe_once_for_programs(recipes):
    code, out, err = recipes("list")
    rows = [line.split("\t") for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [row[0] for row in rows] == catalogue.names()
    assert {row[2] for row in rows} == {"elastic", "static"}


def test_a_listing_as_json_has_every_fact(recipes):
    _, out, _ = recipes("list", "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert listed.keys() == set(catalogue.names())
    assert listed[LLAMA]["technique"] == "sft_lora" and listed[LLAMA]["is_elastic"] is True
    assert "ml.p5.48xlarge" in listed[LLAMA]["instance_types"]


@pytest.mark.parametrize(
    ("words", "test"),
    [
        pytest.param(["--family", "qwen"], lambda e: e.family == "qwen", id="family"),
        pytest.param(["--technique", "dpo"], lambda e: (e.technique or "").startswith("dpo"), id="half a technique"),
        pytest.param(["--technique", "sft_fft"], lambda e: e.technique == "sft_fft", id="technique"),
        pytest.param(["--model", "QWEN3"], lambda e: "Qwen3" in e.model_name_or_path, id="model"),
        pytest.param(["--elastic"], lambda e: e.is_elastic, id="elastic"),
        pytest.param(["--static"], lambda e: not e.is_elastic, id="static"),
        pytest.param(["--instance", "g5.12xlarge"], lambda e: "ml.g5.12xlarge" in e.instance_types, id="instance"),
        pytest.param(["llama", "8b", "dpo"], lambda e: all(w in e.name for w in ("llama", "8b", "dpo")), id="words"),
        pytest.param(["--family", "llama", "--static"], lambda e: e.family == "llama" and not e.is_elastic, id="two"),
    ],
)
def test_filters_leave_what_passes_all_of_them(recipes, words, test):
    code, out, _ = recipes("list", *words)
    names = [line.partition("\t")[0] for line in out.splitlines()]
    assert code == 0 and names
    assert names == [entry.name for entry in catalogue.entries() if test(entry)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--family", "lama"], "did you mean llama?", id="family"),
        pytest.param(["--technique", "lor"], "did you mean lora?", id="technique"),
        pytest.param(["--instance", "p5.48xlage"], "did you mean ml.p5.48xlarge?", id="instance"),
        pytest.param(["--model", "gpt5"], "allowed: ", id="model"),
        pytest.param(["instrct"], "did you mean instruct?", id="word"),
    ],
)
def test_a_filter_that_no_recipe_passes_is_a_problem(recipes, words, says):
    code, out, err = recipes("list", *words)
    assert (code, out) == (2, "") and err.startswith("E802") and says in err


def test_filters_that_no_recipe_passes_together_leave_nothing(recipes):
    code, out, err = recipes("list", "--family", "tiny", "--technique", "dpo")
    assert (code, out) == (0, "") and err.startswith("0 of ")


def test_a_listing_imports_neither_hydra_nor_the_models_nor_rich():
    code = (
        "import sys; from launcher import cli; cli.run(['list']);"
        "print([m for m in ('hydra', 'omegaconf', 'rich.console', 'launcher.recipe') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert result.stdout.splitlines()[-1] == "[]"


# show


def test_show_prints_the_resolved_recipe_and_what_differs_by_size(recipes):
    code, out, _ = recipes("show", SHORT)
    tree = dict(compose([f"recipes={LLAMA}"], Path.cwd()).tree["recipes"])
    del tree["scale_config"]
    assert code == 0 and yamlio.load(out) == tree
    said = [line.split(maxsplit=2)[1:] for line in out.splitlines() if line.startswith("#  ")]
    assert ["micro_train_batch_size", "8 at 1 to 2; 4 at 4; 2 at 8; base 1"] in said
    assert "# 1 to 4, 6, 8, 16 nodes; static unless" in out


@pytest.mark.parametrize("overrides", [[], [AUTO]], ids=["by hand", "planned"])
def test_show_at_a_size_is_what_the_plan_has_there(recipes, prepare, overrides):
    words = [ELASTIC, "cluster=k8s", *overrides]
    _, out, _ = recipes("show", f"{SHORT}@3", *words)
    (point,) = [p for p in prepare(f"recipes={LLAMA}", *words).scales if p.nodes == 3]
    shown = dict(leaves(yamlio.load(out)))
    assert [path for path, value in leaves(point.config) if shown.get(path) != value] == []


def test_show_as_json_has_every_size(recipes):
    _, out, _ = recipes("show", SHORT, "--json")
    shown = json.loads(out)
    assert list(shown["scales"]) == ["1", "2", "3", "4", "6", "8", "16"]
    assert shown["base"]["run"]["name"] == "llama-3-1-8b-instruct"


def test_show_whole_has_the_cluster(recipes):
    _, out, _ = recipes("show", SHORT, "--whole", "cluster=k8s")
    assert {"recipes", "cluster", "instance_type"} <= yamlio.load(out).keys()


@pytest.mark.parametrize("command", ["show", "explain", "diff"])
def test_a_secret_that_somebody_wrote_is_not_shown(recipes, command):
    token = "hf_" + "a" * 20
    words = {"show": [SHORT], "explain": [SHORT, "hf_access_token"], "diff": [SHORT, f"{SHORT}@3"]}[command]
    _, out, err = recipes(command, *words, f"++recipes.run.hf_access_token={token}")
    assert token not in out + err


# explain


def lines_of(out):
    return [" ".join(line.split()) for line in out.splitlines()]


def test_explain_names_file_and_line_at_every_size(recipes):
    code, out, _ = recipes("explain", SHORT, MICRO)
    said = [line for line in lines_of(out) if line.partition(" ")[0] in ("base", "2", "3")]
    assert code == 0 and [line.split()[:2] for line in said] == [["base", "1"], ["2", "8"], ["3", "1"]]
    file, line = said[1].split()[2].split(":")
    assert "micro_train_batch_size: 8" in (ROOT / "recipes_collection" / file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize("key", [MICRO, MICRO.removeprefix("recipes."), "micro_train_batch_size"])
def test_a_key_may_be_named_by_its_end(recipes, key):
    assert recipes("explain", SHORT, key)[1].startswith(MICRO)


def test_explain_tells_every_layer_that_an_override_wins_over(recipes):
    words = (f"{MICRO}=4", f"recipes.scale_config.2.{MICRO.removeprefix('recipes.')}=2", f"{MICRO}=3", ELASTIC)
    said = lines_of(recipes("explain", SHORT, MICRO, *words)[1])
    at_2 = said[said.index("2 2 your override of this size") + 1 :][:1]
    assert "base 3 your override" in said and "(4) your override" in said
    assert at_2[0].startswith("(8) base/elastic/")
    assert any(line.startswith("1 3 your override") for line in said)


def test_explain_as_json_has_the_whole_override_and_all_it_wins_over(recipes):
    _, out, _ = recipes("explain", SHORT, RATE, f"{RATE}=0.3", ELASTIC, "--json")
    (found,) = json.loads(out)
    at_3 = next(v for v in found["values"] if v["nodes"] == 3)
    assert (at_3["value"], at_3["set_by"]) == (0.3, f"{RATE}=0.3")
    assert [place["value"] for place in at_3["shadowed"]] == [0.0004, 0.0001]


def test_explain_says_what_is_planned_and_what_the_plan_wins_over(recipes):
    said = lines_of(recipes("explain", f"{SHORT}@4", MICRO, AUTO, ELASTIC)[1])
    assert said[2] == "4 planned (recipes.scale_config: auto)"
    assert said[3].startswith("(4) base/elastic/")


def test_explain_of_a_mapping_lists_its_keys(recipes):
    _, out, _ = recipes("explain", SHORT, "peft_config")
    keys = [line.split()[0] for line in out.splitlines()[2:]]
    assert out.startswith("recipes.training_config.model_config.peft_config\n") and {"r", "lora_alpha"} <= set(keys)


def test_explain_says_that_a_static_job_takes_the_base_value(recipes):
    assert "the job is static" in recipes("explain", SHORT, MICRO)[1]
    assert "the job is static" not in recipes("explain", SHORT, MICRO, ELASTIC)[1]


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        pytest.param("lerning_rate", "did you mean training_config.training_args.learning_rate?", id="last word"),
        pytest.param("training_config.training_arg", "did you mean ", id="a whole path"),
        pytest.param("instance_typ", "instance_type", id="outside the recipe"),
    ],
)
def test_a_wrong_key_gets_the_nearest_names(recipes, key, remedy):
    code, _, err = recipes("explain", SHORT, key)
    assert code == 2 and err.startswith(f"E101 {key}") and remedy in err


EXPLAINED = {
    "as shipped": [],
    "base override": [ELASTIC, f"++{RATE}=0.3"],
    "planned": [AUTO, ELASTIC, f"{MICRO}=3"],
    "planned, one size corrected": [AUTO, ELASTIC, f"++recipes.scale_config.3.{RATE.removeprefix('recipes.')}=0.5"],
    "removed and replaced": [
        "~recipes.training_config.model_config.peft_config",
        "recipes.training_config.datasets.train_data={name: x}",
        "recipes.run.name=a",
        "recipes.run.name=b",
    ],
}


@pytest.mark.parametrize("overrides", EXPLAINED.values(), ids=EXPLAINED)
@pytest.mark.parametrize("name", [LLAMA, "training/tiny/tiny_lm_cpu"], ids=["llama", "tiny"])
def test_every_value_of_every_size_is_what_its_named_origin_says(name, overrides):
    if name != LLAMA and any("peft_config" in word or "train_data" in word for word in overrides):
        overrides = overrides[2:]
    sizes = Sizes(compose([f"recipes={name}", *overrides], Path.cwd()))
    found = [(path, value) for path in sizes.paths for value in explain(sizes, path) if value.value is not ABSENT]
    assert len(found) > 50
    for path, value in found:
        assert value.origin is not None, path
        if "${" not in str(value.origin.value):
            assert value.origin.value == value.value, (path, value)
        if value.nodes is None and path != "training_config":
            assert value.origin.origin == sizes.composition.origin(path)


# diff


def test_diff_of_two_sizes_has_one_line_a_change(recipes):
    code, out, _ = recipes("diff", f"{SHORT}@2", f"{SHORT}@3")
    lines = out.splitlines()
    assert code == 0 and lines[:2] == [f"--- {SHORT}@2", f"+++ {SHORT}@3"]
    assert "- trainer.num_nodes: 2" in lines and "+ trainer.num_nodes: 3" in lines
    assert "+ training_config.training_args.uneven_batch.large_local_batch_size: 6" in lines
    assert all(line[:2] in ("- ", "+ ") for line in lines[2:])


@pytest.mark.parametrize(("new", "code"), [(f"{SHORT}@2", 0), (f"{SHORT}@3", 1)], ids=["same", "different"])
def test_diff_tells_by_its_exit_code_if_asked(recipes, new, code):
    assert recipes("diff", f"{SHORT}@2", new, "--exit-code")[0] == code
    assert recipes("diff", f"{SHORT}@2", new)[0] == 0


@pytest.fixture
def bundle(recipes):
    assert recipes("render", SHORT, "cluster=k8s", ELASTIC, f"{RATE}=0.3")[0] == 0
    (folder,) = Path("results").iterdir()
    return folder


def test_a_bundle_is_what_its_overrides_give_now(recipes, bundle):
    assert recipes("diff", bundle.name, "--exit-code") == (0, "", "no difference\n")


def test_a_bundle_is_compared_with_what_its_overrides_give_now(recipes, bundle, tmp_path):
    recipe = tmp_path / "mine.yaml"
    text = "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun: {name: %s}\n"
    recipe.write_text(text % "then")
    recipes("render", "mine.yaml")
    recipe.write_text(text % "now")
    name = next(path.name for path in Path("results").iterdir() if path.name.startswith("then"))
    code, out, _ = recipes("diff", name, "--exit-code")
    lines = ["- recipes.run.name: then", "+ recipes.run.name: now"]
    lines += ["- recipes.run.results_dir: results/then", "+ recipes.run.results_dir: results/now"]
    assert (code, out.splitlines()[2:]) == (1, lines)


def test_diff_of_a_recipe_and_its_bundle_is_what_the_overrides_changed(recipes, bundle):
    _, out, _ = recipes("diff", SHORT, str(bundle))
    assert out.splitlines()[2:] == [
        "- recipes.elastic_policy.is_elastic: false",
        "+ recipes.elastic_policy.is_elastic: true",
        f"- {RATE}: 0.0001",
        f"+ {RATE}: 0.3",
    ]


def test_diff_of_a_size_and_a_bundle_s_size_reads_what_the_container_reads(recipes, bundle):
    _, out, _ = recipes("diff", f"{SHORT}@3", f"{bundle}@3", ELASTIC)
    name = RATE.removeprefix("recipes.")
    assert out.splitlines()[2:] == [f"- {name}: 0.0004", f"+ {name}: 0.3"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param([SHORT], "E801", id="a recipe alone"),
        pytest.param([f"{SHORT}@5", f"{SHORT}@3"], "E803", id="no such size"),
        pytest.param(["training/tiny/tiny_lm_cpu", "nope/nope"], "E005", id="no such recipe"),
        pytest.param([SHORT, "a=b"], "E801", id="an override in place of a recipe"),
    ],
)
def test_what_cannot_be_compared_is_a_problem(recipes, words, code):
    assert recipes("diff", *words)[0] == 2 and recipes("diff", *words)[2].startswith(code)


# check


def test_check_says_what_is_right(recipes):
    code, out, err = recipes("check", SHORT, "cluster=k8s", ELASTIC)
    assert (code, err) == (0, "")
    assert out.startswith(f"ok  {SHORT}  elastic, 7 sizes on ml.p5.48xlarge\n")


def test_check_reports_every_recipe_and_exits_with_2(recipes):
    code, out, err = recipes("check", SHORT, "training/tiny/tiny_lm_cpu", "recipes.trainer.devices=no")
    assert (code, out) == (2, "")
    assert err.count("E102 recipes.trainer.devices") == 2 and "2 problems in 2 of 2 recipes" in err


@pytest.mark.parametrize("words", [[], [SHORT, "--all"]], ids=["nothing", "both"])
def test_check_needs_recipes_or_all(recipes, words):
    code, _, err = recipes("check", *words)
    assert code == 2 and err.startswith("E801")


@pytest.fixture
def two_entries(monkeypatch):
    entries = [entry for entry in catalogue.entries() if entry.name in (LLAMA, "training/tiny/tiny_lm_cpu")]
    monkeypatch.setattr(catalogue, "entries", lambda: tuple(entries))


def test_check_all_says_how_much_it_checked(recipes, two_entries):
    code, out, err = recipes("check", "--all")
    assert (code, err) == (0, "")
    assert out.startswith("2 recipes, ") and ": 0 problems\n" in out


def test_check_all_says_a_problem_once_and_on_which_instances(recipes, two_entries):
    code, out, err = recipes("check", "--all", "recipes.training_config.training_args.save_steps=often")
    assert code == 2 and err.count("E102 recipes.training_config.training_args.save_steps") == 2
    assert "     on ml." in err and " and 4 more\n" in err and out.splitlines()[0].endswith(" problems")


def test_check_as_json_has_every_field_of_a_problem(recipes):
    code, out, _ = recipes("check", SHORT, "training/tiny/tiny_lm_cpu", f"{RATE}=fast", "--json")
    found = json.loads(out)
    assert (code, found["num_problems"], len(found["checked"])) == (2, 2, 2)
    problem = found["checked"][0]["problems"][0]
    assert problem.items() >= {"code": "E102", "path": RATE, "value": "fast", "where": f"{RATE}=fast"}.items()


def test_check_annotates_the_file_and_line_for_github(recipes):
    words = ("cluster=k8s", ELASTIC, "instance_type=ml.g5.12xlarge", "--github")
    code, out, _ = recipes("check", SHORT, *words)
    head, _, message = out.splitlines()[0].partition("::E") if "::E" in out else out.partition("::" + SHORT)
    fields = dict(part.split("=", 1) for part in head.removeprefix("::error ").split(","))
    line = (ROOT / fields["file"]).read_text().splitlines()[int(fields["line"]) - 1]
    assert code == 2 and "uneven_batch" in line
    assert "%0A" in message and fields["title"].startswith("E22")


def test_an_annotation_escapes_what_would_end_it(recipes, monkeypatch):
    from launcher.commands import checked

    problem = Problem("E999", "a,b:c", "100% wrong\nreally", where="/x,y.yaml:7")
    monkeypatch.setattr(checked, "checked", lambda *_: Checked("r", Path("r"), None, False, 0, (problem,)))
    _, out, _ = recipes("check", "tiny_lm_cpu", "--github")
    assert out.startswith(
        "::error file=/x%2Cy.yaml,line=7,title=E999 a%2Cb%3Ac::r: E999 a,b:c%0A     100%25 wrong%0A"
    )
    assert len(out.splitlines()) == 1


# plan, render, new


def test_plan_shows_the_table_the_chart_and_the_ranking(recipes):
    code, out, _ = recipes("plan", SHORT, "cluster=k8s", ELASTIC)
    assert code == 0
    for part in ("samples per rank", "5 on 16, 6 on 8", "░", "worth allowing", "note  N105"):
        assert part in out
    assert not Path("results").exists()


def test_plan_as_json_is_the_bundle_s(recipes, bundle):
    _, out, _ = recipes("plan", SHORT, "cluster=k8s", ELASTIC, f"{RATE}=0.3", "--json")
    ours, theirs = json.loads(out), json.loads((bundle / "plan.json").read_text())
    assert {**ours, "job_name": ""} == {**theirs, "job_name": ""}


def test_plan_draws_a_picture(recipes):
    code, out, _ = recipes("plan", SHORT, "cluster=k8s", ELASTIC, "--picture", "plan.svg")
    assert code == 0 and out.endswith("picture plan.svg\n") and "<svg" in Path("plan.svg").read_text()


@pytest.mark.parametrize("picture", ["plan.doc", "absent/plan.png"])
def test_a_picture_that_cannot_be_drawn_is_a_problem(recipes, picture):
    code, _, err = recipes("plan", SHORT, "cluster=k8s", "--picture", picture)
    assert code == 2 and err.startswith("E709")


def test_a_new_recipe_inherits_and_passes(recipes):
    code, out, _ = recipes("new", "mine.yaml", "--from", SHORT)
    assert code == 0 and "recipes plan mine.yaml" in out
    assert recipes("check", "mine.yaml", "cluster=k8s")[0] == 0
    assert recipes("new", "mine.yaml")[0] == 2


# schema, rules, scripts, docs


def test_schema_lists_the_families_and_prints_one(recipes):
    families = recipes("schema")[1].split()
    assert {"llm_finetuning_aws", "tiny_lm"} <= set(families)
    assert recipes("schema", "tiny_lm", "--out", "s.json")[0] == 0
    assert json.loads(Path("s.json").read_text()) == json.loads(recipes("schema", "tiny_lm")[1])


@pytest.mark.parametrize(
    ("words", "code"),
    [(["tiny"], "E104"), (["tiny_lm", "--out", "absent/s.json"], "E805")],
    ids=["no such family", "no such folder"],
)
def test_a_schema_that_cannot_be_had_is_a_problem(recipes, words, code):
    found, _, err = recipes("schema", *words)
    assert found == 2 and err.startswith(code)


def test_rules_are_found_by_code_and_by_word(recipes):
    one, many, about = (recipes("rules", word)[1] for word in ("E101", "e1", "secret"))
    assert one.count("\nE") == 1 and "E101" in one
    assert many.count("\nE1") > 3 and "E601" in about
    assert recipes("rules", "E999")[0] == 2
    assert len(json.loads(recipes("rules", "--json")[1])) > 90


@pytest.mark.parametrize("command", ["scripts", "docs"])
def test_generated_files_are_checked_and_written(recipes, monkeypatch, tmp_path, command):
    monkeypatch.setattr("launcher.paths.CHECKOUT", tmp_path)
    (tmp_path / "launcher_scripts").mkdir()
    code, _, err = recipes(command, "--check")
    assert code == 2 and err.startswith(f"E804 recipes {command}") and "more" in err or "docs/RECIPES.md" in err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    code, out, _ = recipes(command)
    assert code == 0 and out.splitlines()[-1].endswith("written")
    assert recipes(command, "--check") == (0, f"{command} are current\n", "")


@pytest.mark.parametrize("command", ["scripts", "docs"])
def test_an_installed_package_generates_nothing(recipes, monkeypatch, command):
    monkeypatch.setattr("launcher.paths.CHECKOUT", None)
    code, _, err = recipes(command)
    assert code == 2 and err.startswith("E805")


# names, help, exit codes, colours


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("llmft_llama3_1_8b_instruct_seq4k_gpu_sft", SHORT, id="last word"),
        pytest.param(LLAMA + "x", LLAMA, id="path"),
        pytest.param("mine.yaml", "no such file", id="file"),
        pytest.param("zzz", "recipes list shows all", id="nothing near"),
    ],
)
def test_a_recipe_that_is_not_there_gets_the_nearest_names(recipes, name, says):
    code, _, err = recipes("plan", name)
    assert code == 2 and err.startswith("E005") and says in err


def test_a_word_that_two_recipes_end_in_is_a_problem(recipes, monkeypatch):
    monkeypatch.setattr(catalogue, "names", lambda: ["a/same", "b/same"])
    code, _, err = recipes("show", "same")
    assert code == 2 and err.startswith("E802") and "a/same, b/same" in err


def test_a_recipe_s_file_may_have_any_name(recipes):
    path = Path("it's {my} recipe, (1).yaml")
    path.write_text("defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun: {name: mine}\n")
    assert yamlio.load(recipes("show", str(path))[1])["run"]["name"] == "mine"


COMMANDS = [name for commands in cli._COMMANDS.values() for name in commands]


def test_help_lists_every_command(recipes):
    for words in (["--help"], ["-h"]):
        code, out, _ = recipes(*words)
        assert code == 0 and [line.split()[0] for line in out.splitlines() if line[:2] == "  "][-len(COMMANDS) :]
        assert all(f"\n  {name} " in out for name in COMMANDS) and "..." not in out.partition("Recipes:")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_arguments(recipes, command):
    code, out, _ = recipes(command, "--help")
    assert code == 0 and out.startswith(f"Usage: recipes {command} [OPTIONS]") and "<str>" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["plam"], "plan", id="command"),
        pytest.param(["list", "--elast"], "did you mean --elastic", id="option"),
        pytest.param(["plan"], "missing argument 'RECIPE'", id="argument"),
        pytest.param(["logs", "x", "--rank", "one"], "--rank", id="type"),
        pytest.param(["scale", "x", "--nodes", "0"], "--nodes", id="range"),
        pytest.param(["list", "--family"], "--family", id="value"),
        pytest.param(["plan", "x", "--picture", "."], "--picture", id="folder"),
    ],
)
def test_a_command_line_that_is_not_understood_is_a_problem(recipes, words, says):
    code, out, err = recipes(*words)
    assert (code, out) == (2, "") and err.startswith("E801 recipes") and says in err
    assert err.endswith("1 problem; nothing was done\n")


def test_no_words_print_the_help():
    result = process()
    assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith("Usage: recipes")


def test_ctrl_c_is_exit_code_130_without_a_traceback(recipes, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "entries", interrupt)
    assert recipes("list") == (130, "", "")


@pytest.mark.parametrize("words", [["list"], ["show", SHORT], ["rules"]], ids=lambda words: words[0])
def test_a_reader_that_goes_away_is_no_traceback(words):
    command = [sys.executable, "-c", f"from launcher import cli; import sys; sys.exit(cli.run({words!r} * 1))"]
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def on_a_terminal(*words, **variables):
    """Run a command line on a terminal of 80 columns; return all that it wrote there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "50", "PYTHONPATH": str(ROOT), **variables}
        os.execv(sys.executable, [sys.executable, "-m", "launcher", *words])
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:  # the terminal is gone with its last process
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return written.decode()


@pytest.mark.parametrize(
    ("variables", "has_colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "empty NO_COLOR", "dumb"],
)
def test_a_terminal_gets_colours_unless_it_must_not(variables, has_colours):
    variables = {"NO_COLOR": "", **variables}
    assert ("\x1b[" in on_a_terminal("diff", f"{SHORT}@2", f"{SHORT}@3", **variables)) is has_colours


@pytest.mark.parametrize(
    "words",
    [["list"], ["show", SHORT], ["explain", SHORT, "datasets"], ["explain", SHORT, MICRO], ["rules"], ["--help"]],
    ids=lambda words: " ".join(words[:1]),
)
def test_what_a_terminal_gets_fits_it(words):
    lines = on_a_terminal(*words, NO_COLOR="1").splitlines()
    data = [line for line in lines if words[0] == "show" and not line.startswith("#")]  # YAML is not cut
    wide = [line for line in lines if len(line) > 80 and line not in data and ".yaml:" not in line]
    assert lines and wide == []


# completion

PATHS = [f"{LLAMA[:-8]}{end}" for end in ("dpo", "dpo_fft", "sft_fft", "sft_lora")]


def completed(recipes, monkeypatch, shell, words):
    line = "recipes " + words
    variables = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    for name, value in (variables | {"_RECIPES_COMPLETE": f"complete_{shell}"}).items():
        monkeypatch.setenv(name, value)
    code, out, err = recipes()
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "offers"),
    [
        pytest.param("exp", ["explain"], id="command"),
        pytest.param("plan fine-tuning/llama/llmft_llama3_1_8b", PATHS, id="path"),
        pytest.param("show llmft_llama3_1_8b", [path.rpartition("/")[2] for path in PATHS], id="last word"),
        pytest.param(f"plan {SHORT} recipes.run.n", ["recipes.run.name="], id="key of an override"),
        pytest.param(f"plan {SHORT} ++recipes.run.n", ["++recipes.run.name="], id="key to be added"),
        pytest.param(f"plan {SHORT} ~recipes.run.n", ["~recipes.run.name"], id="key to be removed"),
        pytest.param(f"explain {SHORT} micro", ["micro_train_batch_size"], id="last word of a key"),
        pytest.param(f"explain {SHORT}@3 run.n", ["run.name"], id="path of a key"),
        pytest.param(f"check {SHORT} recipes.run.n", ["recipes.run.name="], id="check"),
        pytest.param("schema tin", ["tiny_lm"], id="family"),
        pytest.param("explain nothing_like_it micro", [], id="no such recipe"),
    ],
)
def test_shells_complete(recipes, monkeypatch, shell, words, offers):
    out = completed(recipes, monkeypatch, shell, words)
    if shell == "zsh":
        found = [line.partition('"')[2].partition('"')[0] for line in out.replace("((", "\n").splitlines()[1:]]
    else:
        found = [line.partition("\t")[0] for line in out.splitlines() if line]
    assert found == offers


def test_bash_completes_with_the_script_it_is_given(recipes, tmp_path):
    script = process("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    program = tmp_path / "recipes"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m launcher "$@"\n')
    program.chmod(0o755)
    lines = ["COMP_WORDS=(recipes sch)", "COMP_CWORD=1", f"_recipes_completion {program}", 'echo "${COMPREPLY[@]}"']
    result = subprocess.run(["bash", "--norc", "-c", "\n".join([script, *lines])], capture_output=True, text=True)
    assert result.stdout == "schema\n"
