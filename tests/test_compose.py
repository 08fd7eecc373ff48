import json
import os
import shlex
from pathlib import Path

import pytest
from conftest import LLAMA, LLAMA_K8S, ROOT
from omegaconf import OmegaConf

from launcher.common.problems import ProblemsFound
from launcher.config.compose import compose
from launcher.config.composed_files import CompositionCache
from launcher.config.files import Choices

SCALE_3 = "recipes.scale_config.3.training_config.training_args"
PUBLISHED = ROOT / "tests" / "golden" / "llama_published_values.json"


def test_published_recipe_composes_to_its_published_values():
    expected = json.loads(PUBLISHED.read_text())
    composed = json.loads(json.dumps(compose(LLAMA_K8S, Path.cwd()).tree["recipes"]))
    expected["run"]["results_dir"] = "results/llama-3-1-8b-instruct"  # there, still an interpolation
    assert composed == expected


@pytest.mark.parametrize(
    "overrides",
    [("recipes={}", "cluster=k8s"), ("cluster=k8s", "debug=false", "recipes={}"), ("cluster_type=k8s", "recipes={}")],
    ids=["first", "last", "cluster_type_alone"],
)
def test_recipes_may_stand_anywhere(overrides):
    composition = compose([o.format(LLAMA) for o in overrides], Path.cwd())
    assert (composition.recipe, composition.backend) == (LLAMA, "k8s")
    assert composition.tree["training_config"] == LLAMA


@pytest.mark.parametrize(
    ("overrides", "chosen"),
    [
        (("cluster=k8s",), "cluster=k8s"),
        (("cluster_type=k8s",), "cluster_type=k8s"),
        (("cluster=local", "cluster.contract=sagemaker"), "cluster=local, cluster.contract=sagemaker"),
        (("cluster_type=sm_local", "cluster.contract=other"), "cluster_type=sm_local"),
    ],
    ids=["choice", "type", "contract", "type_beside_contract"],
)
def test_the_cluster_knows_which_overrides_choose_it(overrides, chosen):
    assert compose([LLAMA_K8S[0], *overrides], Path.cwd()).chosen["cluster"] == chosen


def test_default_is_the_tiny_recipe_on_this_machine():
    composition = compose([], Path.cwd())
    assert (composition.recipe, composition.backend) == ("training/tiny/tiny_lm_cpu", "local")


def test_every_leaf_knows_where_it_came_from():
    override = "recipes.training_config.training_args.seed=7"
    composition = compose([*LLAMA_K8S, override], Path.cwd())
    leaves = composition.origins
    assert leaves["recipes.training_config.training_args.seed"] == override
    for path, file in {
        f"{SCALE_3}.uneven_batch.small_local_batch_size": "gbs128_micro8.yaml",
        "recipes.run.name": "llama3_1_8b_instruct.yaml",
        "cluster.namespace": "cluster/k8s.yaml",
        "container": "base/llmft/image.yaml",
    }.items():
        name, _, line = leaves[path].rpartition(":")
        assert name.endswith(file)
        key = path.rpartition(".")[2]
        assert key in (ROOT / "recipes_collection" / name).read_text().splitlines()[int(line) - 1]


def test_origins_cover_every_leaf():
    from launcher.model.config_tree import leaves

    composition = compose(LLAMA_K8S, Path.cwd())
    without = [p for p, _ in leaves(composition.tree) if p not in composition.origins]
    assert without == []


def test_recipe_file_by_absolute_and_relative_path(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nrun:\n  name: mine\n")
    for name in (str(file), "mine.yaml"):
        composition = compose([f"recipes={name}", "cluster=k8s"], tmp_path)
        assert composition.tree["recipes"]["run"]["name"] == "mine"
        assert composition.tree["recipes"]["trainer"]["devices"] == 8
        assert composition.origin("recipes.run.name") == f"{file}:5"


def test_recipe_folder_on_the_search_path(tmp_path):
    (tmp_path / "recipes" / "team").mkdir(parents=True)
    file = tmp_path / "recipes" / "team" / "own.yaml"
    file.write_text("defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun:\n  name: own\n")
    composition = compose([f"hydra.searchpath=[{tmp_path}]", "recipes=team/own"], Path("/"))
    assert composition.tree["recipes"]["run"]["name"] == "own"
    assert composition.origin("recipes.run.name") == f"{file}:5"


@pytest.mark.parametrize("name", ["it's mine.yaml", 'my(1), "x".yaml', "ü.yaml"])
def test_recipe_files_may_have_any_name(tmp_path, name):
    (tmp_path / name).write_text(
        "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun: {name: odd}\n"
    )
    escaped = str(tmp_path / name).replace("\\", "\\\\").replace("'", "\\'")
    composition = compose([f"recipes='{escaped}'"], tmp_path)
    assert composition.tree["recipes"]["run"]["name"] == "odd"


def test_a_recipe_file_and_a_search_path_in_either_order(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults:\n  - /base/own@_here_\n")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "own.yaml").write_text("run: {name: own}\n")
    words = [f"hydra.searchpath=[{tmp_path}]", f"recipes={tmp_path}/mine.yaml"]
    for overrides in (words, words[::-1]):
        assert compose(overrides, tmp_path).tree["recipes"]["run"]["name"] == "own"


def test_a_changed_file_is_read_again(tmp_path):
    file = tmp_path / "mine.yaml"
    text = "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun:\n  name: {}\n"
    for name in ("one", "two"):
        file.write_text(text.format(name))
        os.utime(file, ns=(0, hash(name) % 10**9))
        assert compose([f"recipes={file}"], tmp_path).tree["recipes"]["run"]["name"] == name


@pytest.mark.parametrize("key", ["recipes.training_config.training_args.learning_rate", "container"])
def test_a_key_put_below_a_value_is_where_that_comes_from(key):
    override = f"++{key}.x=3"
    composition = compose([f"recipes={LLAMA}", "cluster=k8s", override], Path("/"))
    assert composition.origin(key) == composition.origin(f"{key}.x") == override


@pytest.mark.parametrize(
    "text",
    ["trainer: {num_nodes: {x: 1}}", "x: &x {num_nodes: 2}\ntrainer: {<<: *x}", "x: &x {num_nodes: 2}\ntrainer: *x"],
    ids=["mapping_over_scalar", "merge_key", "alias"],
)
def test_a_value_of_an_own_recipe_comes_from_its_line(text, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"{text}\ndefaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\n")
    composition = compose(["recipes=mine.yaml"], tmp_path)
    key = "recipes.trainer.num_nodes"
    assert composition.origin(key) == f"{file}:1"
    assert composition.sources.settings(key)[-1].origin == f"{file}:1"


def test_an_item_of_a_list_leaves_the_list_its_origin():
    key = "recipes.training_config.datasets.preprocessor_cfgs"
    composition = compose([f"recipes={LLAMA}", "cluster=k8s", f"{key}.0.type=Foo"], Path("/"))
    assert composition.origin(key).startswith("base/") and composition.origin(f"{key}.0.type").endswith("=Foo")


def test_resolvers(tmp_path):
    values = "[${multiply:3,4},${divide_ceil:7,2},${divide_floor:7,2},${add:1,2,3}]"
    assert compose([f"+numbers={values}"], tmp_path).tree["numbers"] == [12, 4, 3, 6]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "code", "says"),
    [
        ("recipes=fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lor", "E005", LLAMA),
        ("cluster=k9s", "E005", "cluster=k8s"),
        ("recipes=/nowhere/x.yaml", "E005", "no such file"),
        ("a=b=[c", "E001", "a=b=[c"),
        ("recipes.run.name=a,b", "E002", "--multirun"),
        ("~recipes.nothing", "E008", "no such key"),
        ("~cluster", "E005", "cannot be removed"),
        ("cluster=null", "E005", "must name one"),
        ("+cluster/contract=sagemaker cluster=k8s", "E005", "not a group"),
        ("recipes.display_name=${nothing}", "E007", "nothing"),
        ("recipes.display_name=???", "E006", "needs a value"),
    ],
)
def test_a_bad_override_is_a_problem(override, code, says):
    with pytest.raises(ProblemsFound) as caught:
        compose(override.split(" "), Path.cwd())
    assert [p.code for p in caught.value.problems] == [code]
    assert says in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["${HOME}/x", '"${HOME}, ${recipes.trainer.num_nodes} ${HOME}"'])
def test_the_remedy_of_a_variable_of_a_shell_is_its_text(value):
    with pytest.raises(ProblemsFound) as caught:
        compose([f"env_vars.FOO={value}"], Path.cwd())
    (problem,) = caught.value.problems
    (word,) = shlex.split(problem.remedy.removesuffix(" for the text itself"))
    found = compose([word], Path.cwd()).tree["env_vars"]["FOO"]
    assert found == value.strip('"').replace("${recipes.trainer.num_nodes}", "1")


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("env_vars.FOO=${git.zzqqxx}", "add git.zzqqxx=… or 'env_vars.FOO=\\${git.zzqqxx}' for the text itself"),
        ("env_vars.FOO=[${HOME}]", "\\${HOME} is the text itself"),
        ("env_vars.MY_TOKEN=hunter2${HOME}", "\\${HOME} is the text itself"),
        ("env_vars.FOO=${.BAR}", "did you mean env_vars.FOO?"),
    ],
)
def test_the_remedy_of_an_absent_key_is_one_that_can_be_typed(override, remedy):
    with pytest.raises(ProblemsFound) as caught:
        compose([override], Path.cwd())
    (problem,) = caught.value.problems
    assert problem.remedy == remedy


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("x ${oc.env:NOPE_X}", "the variable NOPE_X is not set", "${oc.env:NOPE_X,default}"),
        ("${oc.env:MY_TOKEN}", "MY_TOKEN is a secret's name", "use {env: MY_TOKEN} in env_vars"),
        ("${oc.env:}", "arguments that it does not take", "${oc.env:NAME,default}"),
        ("${divide_ceil:1,0}", "arguments that it does not take", "${divide_ceil:7,2}"),
        ("${mul:2,2}", "calls mul, which is not a function", "did you mean multiply?"),
        ("${now:%Y}", "calls now, which is not a function", "oc.env, multiply"),
        ("${recipes.display_name}", "leads back to itself", "give it a value"),
    ],
    ids=["variable", "secret", "no_name", "zero", "slip", "unknown", "itself"],
)
def test_a_faulty_reference_is_one_problem_in_plain_words(text, message, remedy, tmp_path):
    recipe = f"defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\ndisplay_name: '{text}'\n"
    (tmp_path / "mine.yaml").write_text(recipe + "run: {name: 'a-${recipes.display_name}'}\n")
    with pytest.raises(ProblemsFound) as caught:
        compose(["recipes=mine.yaml"], tmp_path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path, problem.where) == ("E007", "recipes.display_name", f"{tmp_path}/mine.yaml:2")
    assert message in problem.message and remedy in str(problem) and "interpolation" not in str(problem)


@pytest.mark.parametrize(
    "call", ["add:hunter2hunter2,1", "divide_ceil:hunter2hunter2,1", "oc.decode:'[hunter2hunter2'"]
)
def test_a_secret_in_a_faulty_reference_is_not_repeated(call):
    with pytest.raises(ProblemsFound) as caught:
        compose([f"+env_vars.DB_PASSWORD=${{{call}}}"], Path.cwd())
    assert "E007" in str(caught.value) and "hunter2" not in str(caught.value)


def test_only_functions_of_the_launcher_are_called():
    OmegaConf.register_new_resolver("foreign", lambda: "x")
    try:
        with pytest.raises(ProblemsFound, match="calls foreign, which is not a function"):
            compose(["recipes.display_name='a ${foreign:}'"], Path.cwd())
    finally:
        OmegaConf.clear_resolver("foreign")


def test_a_secret_in_a_bad_override_is_not_repeated():
    for override in ("+env_vars.MY_TOKEN=hunter2[", "++recipes.run={hf_access_token: hunter2]"):
        with pytest.raises(ProblemsFound) as caught:
            compose([override], Path.cwd())
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["???", "${nothing}"])
def test_a_value_that_others_follow_is_one_problem_with_its_origin(value):
    with pytest.raises(ProblemsFound) as caught:  # run.results_dir follows from run.name
        compose([f"recipes.run.name={value}"], Path.cwd())
    (problem,) = caught.value.problems
    assert (problem.path, problem.where) == ("recipes.run.name", f"recipes.run.name={value}")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("recipes=nope cluster=k9s x", ["E001 x", "E005 recipes", "E005 cluster"]),
        ("recipes=no.yaml cluster=k9s cluster/x=y", ["E005 recipes", "E005 cluster/x", "E005 cluster"]),
        ("cluster=k8s recipes.run.name=[ recipes=null", ["E001 recipes.run.name=[", "E005 recipes"]),
        ("hydra.searchpath=[/absent] recipes=own", ["E009 hydra.searchpath"]),
    ],
    ids=["names", "file", "syntax", "search_path"],
)
def test_what_is_not_an_override_hides_no_faulty_choice(words, found, tmp_path):
    with pytest.raises(ProblemsFound) as caught:
        compose(words.split(" "), tmp_path)
    assert [f"{problem.code} {problem.path}" for problem in caught.value.problems] == found


def test_every_bad_override_is_reported():
    with pytest.raises(ProblemsFound) as caught:
        compose(["a=[", "b=1,2", "c=]"], Path.cwd())
    assert [p.code for p in caught.value.problems] == ["E001", "E002", "E001"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("defaults:\n  - /base/nothing@_here_\n", "base/nothing"),
        ("defaults:\n  - /recipes/file/recipe@_here_\n", ""),
        ("- a\n- b\n", "mapping of keys"),
        ("just text", "mapping of keys"),
    ],
    ids=["missing_default", "cyclic_default", "list", "text"],
)
def test_a_broken_recipe_file_is_a_problem(tmp_path, text, says):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ProblemsFound) as caught:
        compose(["recipes=bad.yaml"], tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [(b"a: [1\nb: 2", ":2:"), (b"a: 1\na: 2", "given twice"), (b"a: \xff", "UTF-8")],
    ids=["syntax", "duplicate", "encoding"],
)
def test_a_file_that_is_not_yaml_says_where(tmp_path, text, says):
    (tmp_path / "bad.yaml").write_bytes(text)
    with pytest.raises(ProblemsFound) as caught:
        compose(["recipes=bad.yaml"], tmp_path)
    (problem,) = caught.value.problems
    assert problem.code == "E004" and says in str(problem)


def test_a_key_without_recipes_before_it_is_told_where_it_stands():
    key = "training_config.training_args.learning_rate"
    with pytest.raises(ProblemsFound) as error:
        compose([*LLAMA_K8S, f"{key}=0.1"], Path.cwd())
    (problem,) = error.value.problems
    assert (problem.code, problem.remedy) == ("E101", f"did you mean recipes.{key}?")


def test_a_recipe_without_a_policy_gets_the_default_one():
    full = LLAMA.removesuffix("lora") + "fft"
    words = [f"recipes={full}", "cluster=k8s", "++recipes.elastic_policy.is_elastic=true"]
    composition = compose([*words, "++recipes.elastic_policy.max_nodes=4"], Path.cwd())
    policy = composition.tree["recipes"]["elastic_policy"]
    assert [policy[key] for key in ("is_elastic", "min_nodes", "max_nodes")] == [True, 1, 4]
    assert composition.origin("recipes.elastic_policy.min_nodes").startswith("base/elastic/policy.yaml:")
    assert not compose(LLAMA_K8S, Path.cwd()).has_default_policy


def test_a_cache_composes_a_changed_file_again_and_an_unchanged_one_once(tmp_path):
    recipe, cache = tmp_path / "mine.yaml", CompositionCache()
    choices = Choices(("recipes=training/tiny/tiny_lm_cpu", "cluster=local"), ())
    assert cache.composed(choices) is cache.composed(choices)
    for seed in (1, 22):
        args = f"training_config: {{training_args: {{seed: {seed}}}}}"
        recipe.write_text(f"defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\n{args}\n")
        os.utime(recipe, ns=(seed, seed))
        composition = compose([f"recipes={recipe}"], tmp_path, cache=cache)
        assert composition.tree["recipes"]["training_config"]["training_args"]["seed"] == seed
        assert composition.origin("recipes.training_config.training_args.seed") == f"{recipe}:2"
