"""The commands that look, as a user meets them: list, show, explain, diff."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA, RATE, ROOT, SHORT, shipped

from launcher.common import yaml_io
from launcher.config.collection import recipe_names
from launcher.config.compose import compose
from launcher.model.config_tree import ABSENT, leaves
from launcher.planning.explain import Sizes, explain

MICRO = "recipes.training_config.training_args.micro_train_batch_size"
AUTO = "++recipes.scale_config=auto"


@pytest.mark.slow
def test_a_listing_has_every_recipe_once_for_programs(recipes):
    code, out, err = recipes("list")
    rows = [line.split("\t") for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [row[0] for row in rows] == recipe_names()
    assert {row[2] for row in rows} == {"elastic", "static"}


@pytest.mark.slow
def test_a_listing_as_json_has_every_fact(recipes):
    _, out, _ = recipes("list", "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert listed.keys() == set(recipe_names())
    assert listed[LLAMA]["technique"] == "sft_lora" and listed[LLAMA]["is_elastic"] is True
    assert listed[LLAMA]["is_published"] is True and listed["training/tiny/tiny_lm_cpu"]["is_published"] is False
    assert "ml.p5.48xlarge" in listed[LLAMA]["instance_types"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "test"),
    [
        pytest.param(["--family", "qwen"], lambda e: e.family == "qwen", id="family"),
        pytest.param(["--technique", "dpo"], lambda e: (e.technique or "").startswith("dpo"), id="half a technique"),
        pytest.param(["--technique", "sft_fft"], lambda e: e.technique == "sft_fft", id="technique"),
        pytest.param(["--model", "QWEN3"], lambda e: "Qwen3" in e.model_name_or_path, id="model"),
        pytest.param(["--elastic"], lambda e: e.is_elastic, id="elastic"),
        pytest.param(["--static"], lambda e: not e.is_elastic, id="static"),
        pytest.param(["--own"], lambda e: not e.is_published, id="own"),
        pytest.param(["--instance", "g5.12xlarge"], lambda e: "ml.g5.12xlarge" in e.instance_types, id="instance"),
        pytest.param(["llama", "8b", "dpo"], lambda e: all(w in e.name for w in ("llama", "8b", "dpo")), id="words"),
        pytest.param(["--family", "llama", "--static"], lambda e: e.family == "llama" and not e.is_elastic, id="two"),
    ],
)
def test_filters_leave_what_passes_all_of_them(recipes, words, test):
    code, out, _ = recipes("list", *words)
    names = [line.partition("\t")[0] for line in out.splitlines()]
    assert code == 0 and names
    assert names == [entry.name for entry in shipped() if test(entry)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--family", "lama"], "did you mean llama?", id="family"),
        pytest.param(["--technique", "lor"], "did you mean lora?", id="technique"),
        pytest.param(["--instance", "p5.48xlage"], "did you mean ml.p5.48xlarge?", id="instance"),
        pytest.param(["--model", "gqt9"], "list all: recipes list", id="model"),
        pytest.param(["instrct"], "did you mean instruct?", id="word"),
    ],
)
def test_a_filter_that_no_recipe_passes_is_a_problem(recipes, words, says):
    code, out, err = recipes("list", *words)
    assert (code, out) == (2, "") and err.startswith("E802") and says in err


@pytest.mark.slow
def test_filters_that_no_recipe_passes_together_leave_nothing(recipes):
    code, out, err = recipes("list", "--family", "tiny", "--technique", "dpo")
    assert (code, out) == (0, "") and err.startswith("0 of ")


@pytest.mark.slow
def test_a_listing_imports_neither_hydra_nor_the_models_nor_rich():
    code = (
        "import sys; from launcher.cli import main as cli; cli.run(['list']);"
        "print([m for m in ('hydra', 'omegaconf', 'rich.console', 'launcher.model.recipe') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert result.stdout.splitlines()[-1] == "[]"


def test_show_prints_the_resolved_recipe_and_what_differs_by_size(recipes):
    code, out, _ = recipes("show", SHORT)
    tree = dict(compose([f"recipes={LLAMA}"], Path.cwd()).tree["recipes"])
    del tree["scale_config"]
    assert code == 0 and yaml_io.load(out) == tree
    said = [line.split(maxsplit=2)[1:] for line in out.splitlines() if line.startswith("#  ")]
    assert ["micro_train_batch_size", "8 at 1 to 2; 4 at 4; 2 at 8; base 1"] in said
    assert "# 1 to 4, 6, 8, 16 nodes; static unless" in out


@pytest.mark.parametrize("overrides", [[], [AUTO]], ids=["by hand", "planned"])
def test_show_at_a_size_is_what_the_plan_has_there(recipes, prepare, overrides):
    words = [ELASTIC, "cluster=k8s", *overrides]
    _, out, _ = recipes("show", f"{SHORT}@3", *words)
    (point,) = [p for p in prepare(f"recipes={LLAMA}", *words).scales if p.nodes == 3]
    shown = dict(leaves(yaml_io.load(out)))
    of_a_launch = ["run.name", "run.results_dir"]
    assert sorted(path for path, value in leaves(point.config) if shown.get(path) != value) == of_a_launch


def test_show_as_json_has_every_size(recipes):
    _, out, _ = recipes("show", SHORT, "--json")
    shown = json.loads(out)
    assert list(shown["scales"]) == ["1", "2", "3", "4", "6", "8", "16"]
    assert shown["base"]["run"]["name"] == "llama-3-1-8b-instruct"


def test_show_whole_of_one_size_has_the_cluster_and_that_size(recipes):
    _, out, _ = recipes("show", f"{SHORT}@3", "--full", "--json", "cluster=k8s", ELASTIC)
    whole = json.loads(out)
    assert whole["cluster"]["namespace"] and "scale_config" not in whole["recipes"]
    _, out, _ = recipes("show", f"{SHORT}@3", "--json", ELASTIC)
    assert whole["recipes"]["training_config"] == json.loads(out)["training_config"]


def test_show_whole_has_the_cluster(recipes):
    _, out, _ = recipes("show", SHORT, "--full", "cluster=k8s")
    assert {"recipes", "cluster", "instance_type"} <= yaml_io.load(out).keys()


@pytest.mark.parametrize("command", ["show", "explain", "diff"])
def test_a_secret_that_somebody_wrote_is_not_shown(recipes, command):
    token = "hf_" + "a" * 20
    words = {"show": [SHORT], "explain": [SHORT, "hf_access_token"], "diff": [SHORT, f"{SHORT}@3"]}[command]
    _, out, err = recipes(command, *words, f"++recipes.run.hf_access_token={token}")
    assert token not in out + err


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


@pytest.mark.slow
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


def test_a_bundle_is_what_its_overrides_give_now(recipes, elastic_bundle):
    code, out, errors = recipes("diff", elastic_bundle.name, "--exit-code")
    assert (code, out) == (0, "") and errors.endswith("\nno difference\n")


@pytest.mark.slow
def test_a_bundle_is_compared_with_what_its_overrides_give_now(recipes, tmp_path):
    recipe = tmp_path / "mine.yaml"
    text = "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun: {name: %s}\n"
    recipe.write_text(text % "then")
    recipes("render", "mine.yaml")
    recipe.write_text(text % "now")
    (folder,) = Path("results").glob("then-*")
    code, out, _ = recipes("diff", folder.name, "--exit-code")
    lines = ["- recipes.run.name: then", "+ recipes.run.name: now"]
    suffix = folder.name.removeprefix("then-")  # a difference of the launches alone is none of the recipes
    lines += [f"- recipes.run.results_dir: results/then-{suffix}", f"+ recipes.run.results_dir: results/now-{suffix}"]
    path = "recipes.training_config.mlflow"
    lines += [f"- {path}.run_name: then-{suffix}", f"+ {path}.run_name: now-{suffix}"]
    assert (code, out.splitlines()[2:]) == (1, lines)


def test_diff_of_a_recipe_and_its_bundle_is_what_the_overrides_changed(recipes, elastic_bundle):
    _, out, _ = recipes("diff", SHORT, str(elastic_bundle))
    assert out.splitlines()[2:] == [
        "- recipes.elastic_policy.is_elastic: false",
        "+ recipes.elastic_policy.is_elastic: true",
        f"- {RATE}: 0.0001",
        f"+ {RATE}: 0.3",
    ]


def test_diff_of_a_size_and_a_bundle_s_size_reads_what_the_container_reads(recipes, elastic_bundle):
    _, out, _ = recipes("diff", f"{SHORT}@3", f"{elastic_bundle}@3", ELASTIC)
    name = RATE.removeprefix("recipes.")
    assert out.splitlines()[2:] == [f"- {name}: 0.0004", f"+ {name}: 0.3"]


@pytest.mark.slow
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


@pytest.fixture
def own_folder(tmp_path):
    folder = tmp_path / "own"
    for name in ("first", "team/second"):
        path = folder / "recipes" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"defaults: [/recipes/{LLAMA}@_here_, _self_]\ndisplay_name: {path.stem}\n")
    return f"hydra.searchpath=[{folder}]"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first", "second", "team/second"])
def test_recipes_of_another_folder_are_named_like_ours(recipes, own_folder, name):
    code, out, _ = recipes("show", name, own_folder)
    assert code == 0 and yaml_io.load(out)["display_name"] == name.rpartition("/")[2]


@pytest.mark.slow
def test_recipes_of_another_folder_are_listed(recipes, own_folder):
    assert recipes("list", "second", own_folder)[1].startswith("team/second\t")
    assert recipes("list", "first", "cluster=k8s")[2].startswith("E801")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["show", "llama3_1_8b"], "llmft_llama3_1_8b", id="part of a name"),
        pytest.param(["show", "fine-tuning/llama"], "recipes list fine-tuning/llama", id="folder"),
        pytest.param(
            ["explain", SHORT, "lr"], "did you mean training_config.training_args.learning_rate", id="initials"
        ),
        pytest.param(["list", "nonsense"], "list all: recipes list", id="nothing near"),
        pytest.param(["list", "--elastic", "--static"], "E801", id="both kinds"),
        pytest.param(["show", f"{SHORT}@x"], "a size must be a number", id="no size"),
        pytest.param(["diff", "nothere", "nowhere"], "'nowhere'", id="second of two"),
        pytest.param(["show", "."], "E005", id="no name"),
    ],
)
def test_a_wrong_name_is_answered_by_a_right_one(recipes, words, says):
    code, out, err = recipes(*words)
    assert (code, out) == (2, "") and says in err


def test_a_folder_is_no_recipe_s_file(recipes, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    assert "is not a regular file" in recipes("show", str(tmp_path / "folder.yaml"))[2]
