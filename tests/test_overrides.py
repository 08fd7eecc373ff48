"""Overrides of every form: each sets a value or chooses a file, is a Problem, or is noticed to change nothing."""

import shlex
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA_K8S

from launcher.common import redaction
from launcher.common.problems import ProblemsFound
from launcher.config import parsing
from launcher.config.compose import compose
from launcher.model.config_tree import ABSENT, get, leaves, lookup, merged, replaced, without
from launcher.planning.explain import Sizes, explain, find

ARGS = "recipes.training_config.training_args"
STEPS = "training_config.datasets.preprocessor_cfgs"
"""A list of three mappings in the shipped recipe."""
AT_3 = f"recipes.scale_config.3.{STEPS}"
RING = (*LLAMA_K8S, ELASTIC)


def types_of(tree) -> list[str]:
    return [step["type"] for step in get(tree, STEPS)]


@pytest.fixture
def published(prepare):
    """Return the types of the steps that no override touches."""
    return types_of(prepare(*RING).scales[0].config)


def test_an_item_of_a_list_is_overridden_at_every_size(prepare, published):
    job = prepare(*RING, f"recipes.{STEPS}.0.type=Foo")
    assert [types_of(point.config) for point in job.scales] == [["Foo", *published[1:]]] * len(job.scales)


def test_an_item_of_a_list_is_overridden_at_one_size(prepare, published):
    job = prepare(*RING, f"{AT_3}.0.type=Foo")
    found = {point.nodes: types_of(point.config) for point in job.scales}
    assert found.pop(3) == ["Foo", *published[1:]]
    assert set(map(tuple, found.values())) == {tuple(published)}


@pytest.mark.crossed
@pytest.mark.parametrize("plan", [(), ("recipes.scale_config=auto",)], ids=["table", "auto"])
@pytest.mark.parametrize("order", [1, -1], ids=["base_first", "size_first"])
def test_an_item_of_one_size_lies_over_those_of_every_size(order, plan, prepare, published):
    words = [f"recipes.{STEPS}.1.type=Bar", f"{AT_3}.0.type=Foo"]
    job = prepare(*RING, *plan, *words[::order])
    found = {point.nodes: types_of(point.config) for point in job.scales}
    assert found.pop(3) == ["Foo", "Bar", published[2]]
    assert set(map(tuple, found.values())) == {(published[0], "Bar", published[2])}


def test_an_overridden_list_wins_over_that_of_a_size_and_a_notice_says_so(prepare, tmp_path):
    inherited = f"defaults: [/{LLAMA_K8S[0].replace('=', '/')}@_here_, _self_]\n"
    own = "scale_config: {3: {training_config: {datasets: {preprocessor_cfgs: [{type: Own}]}}}}\n"
    (tmp_path / "mine.yaml").write_text(inherited + own)
    words = ["recipes=mine.yaml", "cluster=k8s", ELASTIC]
    plain, job = prepare(*words), prepare(*words, f"recipes.{STEPS}.2.type=Last")
    assert [types_of(point.config) for point in plain.scales if point.nodes == 3] == [["Own"]]
    assert {types_of(point.config)[2] for point in job.scales} == {"Last"}
    (notice,) = [notice for notice in job.notices if notice.code == "N104"]
    assert "preprocessor_cfgs.2.type=Last" in notice.message and "1 size" in notice.message


@pytest.mark.crossed
@pytest.mark.parametrize(
    "item",
    ["3.type=Foo", "99=Foo", "1_0.type=Foo", "x=1", "x.y=1"],
    ids=["next", "far", "underscore", "word", "below"],
)
@pytest.mark.parametrize("sign", ["", "+", "++"], ids=["plain", "add", "force"])
def test_an_item_that_a_list_does_not_have_is_a_problem(sign, item, problems):
    (problem,) = problems(*RING, f"{sign}recipes.{STEPS}.{item}")
    assert problem.code == "E003" and "has 3 items" in problem.message and problem.allowed == "0 to 2"


def test_an_item_that_one_size_does_not_have_is_a_problem(problems):
    (problem,) = problems(*RING, f"{AT_3}.7.type=Foo")
    assert problem.path.startswith(AT_3) and "list" in str(problem)


def test_an_item_is_not_removed_by_itself(problems):
    (problem,) = problems(*RING, f"~recipes.{STEPS}.1")
    assert problem.code == "E008" and f"recipes.{STEPS}=[…]" in problem.remedy


def test_a_mapping_over_a_list_is_a_problem_that_repeats_no_secret(problems):
    (problem,) = problems(*RING, f"recipes.{STEPS}={{hf_token: hunter2}}")
    assert problem.code == "E003" and "is a list" in problem.message and "hunter2" not in str(problem)


def test_a_key_below_a_reference_is_a_problem(problems):
    """It would replace what the reference stands for."""
    words = ["recipes.training_config.model_config=${recipes.run}", "recipes.training_config.model_config.name=x"]
    (problem,) = problems(*RING, *words)
    assert problem.code == "E003" and "${recipes.run}" in problem.message


def test_an_explanation_knows_overrides_of_items():
    sizes = Sizes(compose([*RING, f"recipes.{STEPS}.0.type=Foo", f"{AT_3}.1.type=Bar"], Path.cwd()))
    assert find(sizes, f"recipes.{STEPS}.0.type") == [f"recipes.{STEPS}"]
    base, *values = explain(sizes, f"recipes.{STEPS}")
    assert base.origin.origin == f"recipes.{STEPS}.0.type=Foo"
    assert [v.origin.origin for v in values if v.nodes == 3] == [f"{AT_3}.1.type=Bar"]


def test_a_key_with_dots_is_one_key():
    tree = {"a": {"b.c/d": 1, "b": {"c": 2}}, "list": [[{"x": 1}], {"y.z": 2}]}
    assert lookup(tree, "a.b.c/d") is ABSENT and lookup({"a": {"b.c/d": 1}}, "a.b.c/d") == 1
    assert get(tree, "list.0.0.x") == 1 and get(tree, "list.1.y.z") == 2
    assert replaced({"a": {"b.c": 1}}, "a.b.c", 5) == {"a": {"b.c": 5}}


@pytest.mark.parametrize("word", ["-1", "01", "²", "1_0", "9" * 5000, "x", ""])
def test_only_a_number_within_a_list_names_an_item(word):
    assert lookup({"a": [1, 2]}, f"a.{word}" if word else "a.") is ABSENT or not word


def test_lists_are_walked_replaced_and_merged_item_by_item():
    tree = {"a": [{"x": 1, "y": [1, 2]}, {"x": 2}]}
    assert replaced(tree, "a.0.y.1", 5) == {"a": [{"x": 1, "y": [1, 5]}, {"x": 2}]}
    assert without(tree, "a.0.y") == {"a": [{"x": 1}, {"x": 2}]} and without(tree, "a.0") == {"a": [{"x": 2}]}
    assert without(tree, "a.5.x") == tree and without(tree, "a.0.x.y") == tree
    assert merged(tree, {"a": {"1": {"x": 7}}}) == {"a": [{"x": 1, "y": [1, 2]}, {"x": 7}]}
    assert merged(tree, {"a": {"2": {"x": 7}}}) == {"a": {"2": {"x": 7}}}
    assert merged(tree, {"a": [1]}) == {"a": [1]}
    assert dict(leaves(tree)) == {"a": tree["a"]}


def texts(job, code: str) -> list[str]:
    return [notice.message for notice in job.notices if notice.code == code]


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("cluster/namespace=prod", "cluster.namespace=…"),
        ("recipes/training_config/training_args/learning_rate=0.9", f"{ARGS}.learning_rate=…"),
        ("+cluster/namespace=prod", "cluster.namespace=…"),
        ("~cluster/namespace", "cluster.namespace=…"),
        ("a/b@c=1", None),
        ("+base/elastic@recipes={a: b}", None),
        ("+base/elastic@recipes=nothing", None),
        ("recipes/training=tiny/tiny_lm_cpu", None),
        ("recipes@x=training/tiny/tiny_lm_cpu", None),
        ("~recipes=training/tiny/tiny_lm_cpu", None),
        ("~cluster=k8s", None),
        ("=1", None),
        ("recipes.trainer@x=1", None),
        ("hydra.searchpath@x=[/tmp]", None),
    ],
)
def test_an_override_that_leads_nowhere_is_a_problem(override, remedy, problems):
    (problem,) = problems(*LLAMA_K8S, override)
    assert remedy is None or remedy in problem.remedy


def test_a_choice_of_a_group_that_exists_is_an_origin():
    word = "+base/elastic@recipes=policy"
    composition = compose(["recipes=training/tiny/tiny_lm_cpu", word], Path.cwd())
    assert word in composition.origins.values() and composition.unused == ()
    assert composition.tree["recipes"]["elastic_policy"]["max_nodes"] > 0


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        ((f"{ARGS}.seed=1", f"{ARGS}.seed=2"), [f"{ARGS}.seed=1"]),
        ((f"{ARGS}.seed=1", f"{ARGS}={{seed: 2}}"), [f"{ARGS}.seed=1"]),
        ((f"{ARGS}={{seed: 2, max_epochs: 3}}", f"{ARGS}.seed=1"), []),
        (("++recipes.env={A: 1}", "~recipes.env"), ["++recipes.env={A: 1}"]),
        (("~recipes.display_name", "++recipes.display_name=x"), ["~recipes.display_name"]),
        ((f"{ARGS}={{}}",), [f"{ARGS}={{}}"]),
        (("cluster.annotations={}",), []),
        (("cluster=k8s",), ["cluster=k8s"]),
        (("hydra.searchpath=[/usr]",), ["hydra.searchpath=[/usr]"]),
        (("hydra.searchpath=[]",), ["hydra.searchpath=[]"]),
        ((f"recipes.{STEPS}=[{{type: A}},{{type: B}}]", f"recipes.{STEPS}.0.type=C"), []),
        ((ELASTIC, "recipes.scale_config=auto", f"{AT_3}.0.type=C"), []),
        (("recipes.scale_config=auto", f"{AT_3}.0.type=C"), [f"{AT_3}.0.type=C"]),
        ((f"{AT_3}.0.type=C",), [f"{AT_3}.0.type=C"]),
    ],
    ids=[
        *("repeated", "replaced_by_a_mapping", "partly_replaced", "removed", "given_back", "empty", "empty_anew"),
        *("cluster", "search_path", "no_search_path", "item", "planned_size", "static_planned_size", "static_size"),
    ],
)
def test_an_override_that_changes_nothing_is_noticed(overrides, idle, prepare):
    job = prepare(*LLAMA_K8S, *overrides)
    assert [text.split(" changes nothing")[0] for text in texts(job, "N165")] == idle


def test_of_two_recipes_the_last_one_is_the_recipe(prepare, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(
            f"defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\nrun: {{name: {name}}}\n"
        )
    job = prepare("recipes=one.yaml", "recipes=two.yaml")
    assert (job.recipe, get(job.config, "recipes.run.name")) == ("two.yaml", "two")
    assert texts(job, "N165") == ["recipes=one.yaml changes nothing: a later override decides"]


@pytest.mark.parametrize("name", ["learning_rate", "train_batch_size"])
def test_what_an_override_removes_is_removed_at_every_size(name):
    word = f"~{ARGS}.{name}"
    sizes = Sizes(compose([*RING, word], Path.cwd()))
    assert [lookup(tree, f"training_config.training_args.{name}") for tree in sizes.trees.values()] == [ABSENT] * 7


def test_a_planned_table_that_is_removed_again_is_not_planned(problems):
    words = ["++recipes.scale_config=auto", "~recipes.scale_config", f"{AT_3}.0.type=Foo"]
    assert problems(*RING, *words)


SPACED, NO_EQUALS, COLON = (
    "has a space before or after its =",
    "lacks a = between key and value",
    "has a : in place of its =",
)


@pytest.mark.parametrize(
    ("words", "joined", "faults"),
    [
        ("a=1 b.c=2", "a=1 b.c=2", []),
        ("recipes = x", "recipes=x", [("recipes", SPACED)]),
        ("MAX.X = x", "MAX.X=x", [("MAX.X", SPACED)]),
        ("recipes =x cluster= k8s", "recipes=x cluster=k8s", [("recipes", SPACED), ("cluster", SPACED)]),
        ("recipes x dry_run true", "recipes=x dry_run=true", [("recipes", NO_EQUALS), ("dry_run", NO_EQUALS)]),
        ("cluster: k8s b.c=2", "cluster=k8s b.c=2", [("cluster", COLON)]),
        ("a.b =c=d", "a.b='c=d'", [("a.b", SPACED)]),
        ("a=1 HF_TOKEN x", "a=1 HF_TOKEN=x", [("HF_TOKEN", NO_EQUALS)]),
        ("recipes =", "recipes =", []),
        ("recipes", "recipes", []),
        ("= =x", "= =x", []),
        ("=b =c", "=b =c", []),
        ("recipes a=b", "recipes a=b", []),
        ("a=b= x", "a=b= x", []),
        ("a=b x", "a=b x", []),
        ("a.b c.d", "a.b c.d", []),
        ("word k8s", "word k8s", []),
        ("a=1 =b", "a=1 =b", []),
        ("~recipes k8s", "~recipes k8s", []),
        ("recipes ~cluster", "recipes ~cluster", []),
    ],
)
def test_words_around_an_equals_sign_are_one_override(words, joined, faults):
    found, problems = parsing.joined(words.split())
    assert found == joined.split()
    assert [(problem.code, problem.path, problem.message) for problem in problems] == [("E001", *f) for f in faults]


@pytest.mark.parametrize("value", ["it's", 'a "b"', "c$HOME", "`d`", "e\\", "f\\'g", "h!i", "j=k", "l\\\\m n"])
def test_a_shell_makes_the_value_of_the_remedy(value):
    _, (problem,) = parsing.joined(["recipes.run.name", "=", value])
    (word,) = shlex.split(problem.remedy)
    (override,) = parsing.parse([word])
    assert override.value == value


def test_the_remedy_for_a_text_with_a_space_is_quoted_for_the_shell():
    (word,), (problem,) = parsing.joined(["recipes.run.name", "=", "my_run"])
    assert word == problem.remedy == "recipes.run.name=my_run"
    (word,), (problem,) = parsing.joined(["recipes.run.name", "=", "my run"])
    assert (word, problem.remedy) == ("recipes.run.name='my run'", "\"recipes.run.name='my run'\"")


ONE_NODE = ("recipes.trainer.num_nodes", 1)
DEVICES, IS_ELASTIC = "recipes.trainer.devices", "recipes.elastic_policy.is_elastic"
ON, OFF = ("rehearse", True), ("rehearse", False)
RANKS = ("rehearse.ranks", 2)
TWO = (RANKS, ONE_NODE, (DEVICES, 2))


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["rehearse=true"], (ON,)),
        (["a=1", "rehearse.ranks=2"], (("a", 1), *TWO)),
        (["rehearse=true", "rehearse.ranks=2"], TWO),
        (["rehearse.ranks=2", "rehearse=true"], TWO),
        (["rehearse.ranks=3", "rehearse.ranks=2"], (("rehearse.ranks", 3), *TWO)),
        (["rehearse=true", "rehearse.steps=4"], (("rehearse.steps", 4),)),
        (["rehearse={ranks: 3}"], (("rehearse", {"ranks": 3}), ONE_NODE, (DEVICES, 3))),
        (["rehearse={steps: 4}"], (("rehearse", {"steps": 4}),)),
        (["rehearse.ranks=2", "rehearse={steps: 4}"], (RANKS, ("rehearse", {"steps": 4}), *TWO[1:])),
        (["rehearse.ranks=2", "rehearse=false"], (RANKS, OFF)),
        (["rehearse.ranks=2", "rehearse=false", "rehearse=true"], (RANKS, OFF, ON)),
        (["rehearse=true", "rehearse=false", "rehearse.steps=4"], (ON, OFF, ("rehearse.steps", 4))),
        (["rehearse.ranks=2", "~rehearse=true"], (RANKS, ON)),
        (["rehearse.ranks=1"], (("rehearse.ranks", 1), ONE_NODE, (DEVICES, 1))),
        (["rehearse.ranks=1024"], (("rehearse.ranks", 1024), ONE_NODE, (DEVICES, 1024))),
        (["rehearse.ranks=1025"], (("rehearse.ranks", 1025),)),
        (["rehearse.ranks=0"], (("rehearse.ranks", 0),)),
        (["rehearse.ranks=true"], (("rehearse.ranks", True),)),
        (["rehearse.ranks=x"], (("rehearse.ranks", "x"),)),
        (["rehearse.ranks=2", f"{IS_ELASTIC}=true"], (RANKS, (IS_ELASTIC, True))),
        ([f"{IS_ELASTIC}=false", "rehearse.ranks=2"], ((IS_ELASTIC, False), *TWO)),
        (["rehearse.ranks=2", "a=true"], (RANKS, ("a", True), *TWO[1:])),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_ranks_of_a_rehearsal_are_the_devices_of_one_node(words, values):
    assert [(each.key, each.value) for each in parsing.parse(words)] == list(values)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("hydra.run.dir=x", ("E009", "hydra.run.dir", None, "hydra.searchpath", None, "hydra.run.dir=x")),
        (
            "hydra.searchpath@x=[/usr]",
            ("E009", "hydra.searchpath", None, "hydra.searchpath", None, "hydra.searchpath@x=[/usr]"),
        ),
        *(
            (word, ("E009", "hydra.searchpath", value, None, "hydra.searchpath=[/path/to/folder]", word))
            for word, value in (
                ("hydra.searchpath=/usr", "/usr"),
                ("hydra.searchpath=[1]", "[1]"),
                ("hydra.searchpath=[/usr,1]", "['/usr', 1]"),
            )
        ),
        (
            "hydra.searchpath=[/absent,/usr,/nowhere]",
            ("E009", "hydra.searchpath", "/absent, /nowhere", None, None, "hydra.searchpath=[/absent,/usr,/nowhere]"),
        ),
        ("~recipes", ("E005", "recipes", None, None, None, "~recipes")),
        ("recipes=1", ("E005", "recipes", None, None, "recipes list shows all recipes", "recipes=1")),
        (
            "cluster=null",
            (
                *("E005", "cluster", None, None),
                "cluster=NAME, NAME one of k8s, local, ray, slurm, sm_jobs, sm_local",
                "cluster=null",
            ),
        ),
        ("recipes@x=y", ("E005", "recipes", None, None, None, "recipes@x=y")),
        (
            "a=1,2",
            (
                "E002",
                "a=1,2",
                None,
                None,
                "a='\"1,2\"' is a text; recipes run --multirun launches a job for each",
                None,
            ),
        ),
    ],
)
def test_a_word_that_is_no_override_of_a_launch_has_one_fault(word, expected):
    with pytest.raises(ProblemsFound) as caught:
        parsing.parse([word])
    (found,) = caught.value.problems
    value = None if found.value is None else str(found.value)
    assert (found.code, found.path, value, found.allowed, found.remedy, found.where) == expected


@pytest.mark.parametrize(
    "value",
    ["{a: 2, a: 3}", "{b: [{a: 2, c: 1, a: 3}]}", "{1: 2, 1: 3}"],
    ids=["top", "nested", "number"],
)
def test_a_key_given_twice_in_a_value_is_a_problem(value):
    with pytest.raises(ProblemsFound) as caught:
        parsing.parse([f"recipes.trainer={value}"])
    (found,) = caught.value.problems
    key = "1" if "1" in value[:2] else "a"
    assert (found.code, found.path, found.message) == ("E003", "recipes.trainer", f"gives the key '{key}' twice")


@pytest.mark.parametrize(
    ("word", "part", "remedy"),
    [
        ("recipes.scale_config.02.trainer.num_nodes=2", "02", "recipes.scale_config.2.trainer.num_nodes=2"),
        ("recipes.x[0].y=a b", "x[0]", '"recipes.x.0.y=a b"'),
        ("env_vars.1X=1", "1X", None),
        ("env_vars.1X_TOKEN=sd", "1X_TOKEN", None),
        ("a..b=1", "", None),
    ],
)
def test_the_faulty_part_of_a_key_is_named(word, part, remedy):
    with pytest.raises(ProblemsFound) as caught:
        parsing.parse([word])
    (found,) = caught.value.problems
    assert (found.code, found.path, found.remedy) == ("E001", word.partition("=")[0], remedy)
    assert found.message == f"{part!r} cannot be a part of a key" and "sd" not in str(found)


@pytest.mark.parametrize("value", ['{x: "a b"}', "{x: 'a b'}", "{x: '`a` $b'}"], ids=["double", "single", "special"])
def test_the_remedy_for_a_mapping_in_place_of_a_list_is_one_word_of_a_shell(value, problems):
    key = "recipes.training_cfg.script_args"
    words = ("recipes=training/custom/script", "recipes.training_cfg.entry_script=a.py", f"++{key}={value}")
    remedy = next(problem.remedy for problem in problems(*words) if problem.path == key)
    assert shlex.split(remedy) == [f"{key}=[{value}]"]


def test_every_fault_of_a_command_line_is_reported():
    with pytest.raises(ProblemsFound) as caught:
        parsing.parse(["a", "=", "1,2", "cluster=null", "b=[", "=1"])
    found = [(problem.code, problem.path) for problem in caught.value.problems]
    assert found == [("E001", "a"), ("E005", "cluster"), ("E001", "b=["), ("E001", "=1")]


def test_the_value_of_a_secret_is_masked_from_then_on():
    parsing.parse(["env_vars.OTHER_TOKEN=kept-to-itself"])
    assert redaction.masked("the value kept-to-itself") == "the value …"


def test_only_folders_of_the_search_path_are_read_of_a_command_line():
    words = [
        "+hydra.searchpath=[/usr,file:///tmp]",
        "a=[",
        "hydra.searchpath=[/etc]",
        "recipes=x",
        "Xhydra.searchpath=1",
    ]
    assert parsing.search_path(words) == [Path("/usr"), Path("/tmp"), Path("/etc")]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("recipes=a,b.yaml", "recipes='a,b.yaml'"),
        ("++recipes=a,b.yaml", "++recipes='a,b.yaml'"),
        ("recipes=c,d", "recipes='c,d'"),
        ("recipes=x=[", "recipes='x=['"),
        ("recipes=e,f", "recipes=e,f"),
        ("recipes=plain", "recipes=plain"),
        ("recipes=", "recipes="),
        ("cluster=a,b.yaml", "cluster=a,b.yaml"),
        ("recipes=a\0[", "recipes=a\0["),
    ],
)
def test_a_recipe_s_name_is_quoted_where_it_would_be_read_in_another_way(word, expected, tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "a,b.yaml").touch()
    (tmp_path / "recipes" / "c,d.yaml").touch()
    words = [f"hydra.searchpath=[{tmp_path}]", word]
    assert parsing.spelled(words, tmp_path) == (words[0], expected)
    if word != "recipes=c,d":
        faulty = ["hydra.searchpath=[/nowhere]", word]
        assert parsing.spelled(faulty, tmp_path) == (faulty[0], expected)


def test_a_value_that_the_grammar_does_not_take_is_quoted_by_the_remedy(problems):
    (problem,) = problems(*LLAMA_K8S, "env_vars.A=x;y")
    assert (problem.code, problem.remedy) == ("E001", "env_vars.A='\"x;y\"'")


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("cluster.srun_args=[--nodes=1, label]", "'cluster.srun_args=[\"--nodes=1\", label]'"),
        ("cluster.nodelist=a[1-", "cluster.nodelist='\"a[1-\"' for a text with brackets"),
        ("git.commit=12e4567", "\"git.commit='12e4567'\""),
        ("git.branch=1.10", "\"git.branch='1.10'\""),
    ],
)
def test_a_remedy_keeps_what_was_typed(prepare, override, remedy):
    with pytest.raises(ProblemsFound) as found:
        prepare(LLAMA_K8S[0], "cluster=slurm", override)
    assert [problem.remedy for problem in found.value.problems] == [remedy]


@pytest.mark.parametrize("key", ["example.com/team", "a b", "a"])
def test_a_remedy_for_a_key_of_a_mapping_can_be_typed(problems, prepare, key):
    words = (*LLAMA_K8S, f"cluster.annotations={{{key}: 1}}")
    (problem,) = problems(*words)
    (word,) = shlex.split(problem.remedy)
    if " " in key:
        assert [each.code for each in problems(*words, word)] == ["E304"]  # about the key alone
    else:
        prepare(*words, word)
