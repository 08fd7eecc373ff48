"""The Python API: what it compiles is what the command line compiles, and values mean what overrides mean."""

import concurrent.futures
import dataclasses
import enum
import inspect
import json
import os
import re
import string
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import hypothesis
import numpy
import pytest
from conftest import ELASTIC, LLAMA, RATE, ROOT, SHORT
from hypothesis import strategies as st

import launcher
from launcher import ProblemsFound, Session
from launcher.api import values
from launcher.cli import launch
from launcher.common.names import REPRODUCE_FILE
from launcher.common.texts import object_text
from launcher.config.parsing import parse
from launcher.model import context as contexts
from launcher.planning import plan_report


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.StrEnum):
    A = "a b"


SESSION = Session(suffix=lambda: "x068q")
NOW = "2026-01-02T03:04:05+00:00"


def fixed(folder: Path, suffix: str = "x068q") -> Session:
    return Session(folder, "ada", suffix=lambda: suffix)


def codes(problems) -> list[str]:
    return [problem.code for problem in problems]


@pytest.mark.slow
def test_importing_the_package_loads_nothing_and_every_name_is_found():
    script = (
        "import sys, launcher; print(*sorted(name for name in sys.modules if name.startswith('launcher')));"
        "print(all(getattr(launcher, name) for name in launcher.__all__));"
        "print(sorted({'torch', 'mlflow', 'kubernetes', 'hydra', 'pandas'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["launcher", "True", "[]"]


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="compiler"):
        _ = launcher.compiler


def test_every_public_name_has_a_docstring():
    from launcher.api import job, plan, tables

    public = [each for name in launcher.__all__ if callable(each := getattr(launcher, name))]
    for owner in (plan.Plan, job.Job, tables.Table):
        public += [
            each for name, each in vars(owner).items() if not name.startswith("_") and inspect.isfunction(each)
        ]
    assert [each for each in public if not inspect.getdoc(each)] == []


STATED = f"{string.ascii_letters}{string.digits}_-./+$%*@?|\\()[]{{}}:=, \t"
WORDS = st.from_regex(r"\A-{0,2}[a-z][\w./-]{0,5}\Z", fullmatch=True)
KEYS = WORDS | st.text(STATED, max_size=5) | st.integers(-9, 99)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text().filter(lambda t: "${" not in t)
    | st.floats(width=32).map(numpy.float32)
    | st.integers(-9, 9).map(numpy.int64)
    | st.booleans().map(numpy.bool_)
    | st.sampled_from([Path("/data/x y"), Level.LOW, Kind.A, (1, "a"), numpy.array([[1, 2], [3, 4]])]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def plain(value):
    """Return a value as a configuration has it: keys are texts, and NumPy's values those of Python."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return plain(value.tolist()) if hasattr(value, "tolist") else value


@pytest.mark.slow
@hypothesis.given(VALUES)
@hypothesis.example("it's a \\'path\\'")
@hypothesis.example("null")
@hypothesis.example("1e3")
@hypothesis.example(" x ")
@hypothesis.example("a\nb, {c: d}")
@hypothesis.example({"nan": 1})
@hypothesis.example({"a.b/c-d": {"1": 1e-4}})
@hypothesis.example({"--lr": 0.1, "-n": {"a b": "${", "x:y": [1]}})
@hypothesis.example({3: {"trainer": {"num_nodes": 3}}})
def test_a_value_of_python_arrives_unchanged(value):
    given = {"value": value, "extra_keys": ["value"]}
    plan = launcher.compile("tiny_lm_cpu", given, strict=False, session=SESSION)
    if plan.problems:  # what no override can state is refused, never changed
        assert set(codes(plan.problems)) <= {"E001", "E003"}
        return
    found = plan.job.config["recipes"]["value"]
    assert repr(found) == repr(plain(value))  # also of nan, and with its type


@pytest.mark.slow
@hypothesis.given(st.text(STATED, max_size=6) | st.text(max_size=3))
@hypothesis.example("--lr")
@hypothesis.example("-inf")
@hypothesis.example(" a,b: {c} = [d] \\")
@hypothesis.example("1e3")
@hypothesis.example("True")
@hypothesis.example("it's")
def test_a_key_within_a_value_is_stated_wherever_an_override_can_state_it(key):
    try:
        [word] = values.words({"value": {key: 1}})
    except ProblemsFound as found:
        assert codes(found.problems) == ["E001"]
        is_respelled = re.fullmatch(r"(?i)[+-]?([\d._]+(e[+-]?[\d_]+)?|nan|inf)|true|false|null", key)
        assert not key or set(key) - set(STATED) or is_respelled
    else:
        assert parse([word])[0].value == {key: 1}


def test_an_argument_of_a_script_is_given_in_a_mapping():
    given = {
        "training_cfg.entry_script": "/a.py",
        "training_cfg.run.ntasks_per_node": 8,
        "training_cfg.script_args": [{"--lr": 0.1}, {"-v": None}],
    }
    plan = launcher.compile("training/custom/script", given, cluster="slurm", session=SESSION)
    assert plan.job.config["recipes"]["training_cfg"]["script_args"] == [{"--lr": 0.1}, {"-v": None}]


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -0.0, 1e-4, float("inf"), float("nan"), "", "a, b", "${recipes.run.name}", "größe", "${", "???"]
    + ["x\ny", "{a: 1}", "1", "null", [1, [None]], {"a-b": {"c.d/e": "it's"}}, numpy.float64(0.1), Path("/x")],
    ids=repr,
)
def test_a_value_means_what_the_same_override_of_a_command_line_means(value):
    def text(value):
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{text(each)}" for key, each in value.items()) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(text, value))}]"
        return f'"{value}"' if isinstance(value, str) else repr(value).lower().replace("none", "null")

    words = [f"++recipes.value={text(plain(value))}", "recipes.extra_keys=[value]"]
    one = launcher.compile("tiny_lm_cpu", {"value": value, "extra_keys": ["value"]}, strict=False, session=SESSION)
    other = launcher.compile("tiny_lm_cpu", words, strict=False, session=SESSION)
    assert [dataclasses.replace(each, where=None) for each in one.problems] == [
        dataclasses.replace(each, where=None) for each in other.problems
    ]
    if not one.problems:
        assert repr(one.job.config["recipes"]["value"]) == repr(other.job.config["recipes"]["value"])


@pytest.mark.parametrize("rate", [1e-4, numpy.float64(1e-4), numpy.float32(0.25), numpy.int64(1)], ids=repr)
def test_a_typed_recipe_has_the_given_value(rate):
    plan = launcher.compile(
        LLAMA, {"training_config.training_args.learning_rate": rate}, cluster="k8s", session=SESSION
    )
    found = plan.config.training_config.training_args.learning_rate
    assert (found, type(found)) == (rate, float)


def test_a_key_starts_at_the_recipe_or_at_the_top_level():
    given = {
        "trainer.num_nodes": 2,
        "recipes.run.name": "a",
        "cluster.namespace": "b",
        "container": None,
        "wait": True,
    }
    assert values.words(given) == [
        "++recipes.trainer.num_nodes=2",
        "++recipes.run.name=a",
        "++cluster.namespace=b",
        "++container=null",
        "++wait=true",
    ]
    assert values.words({"cluster": "k8s"}) == ["cluster=k8s"]


def test_all_values_that_no_override_can_state_are_refused_at_once():
    loop: list = []
    loop.append(loop)
    with pytest.raises(ProblemsFound) as refused:
        values.words({"a": object(), "b c": 1, "d": {"e'f": 1}, "g": loop, 3: 4, "h": 1, "i": Fraction(1, 3)})
    found = refused.value.problems
    assert codes(found) == ["E001"] * 6
    assert [problem.path for problem in found] == ["a", "b c", "d", "g", "3", "i"]


class Broken(dict):
    """A value of another program, whose every method fails."""

    def items(self):
        raise KeyError("boom")

    def __iter__(self):
        raise OSError("boom")

    __fspath__ = tolist = __repr__ = items


@pytest.mark.parametrize("overrides", [Broken(), {"a": Broken()}, {"a": [Broken()]}, (Broken()[0] for _ in "a")])
def test_a_value_whose_own_methods_fail_is_a_problem(overrides):
    with pytest.raises(ProblemsFound) as refused:
        values.words(overrides)
    assert codes(refused.value.problems) == ["E001"]
    assert "cannot be read: KeyError" in refused.value.problems[0].message


@pytest.mark.parametrize("recipe", [None, 3, b"tiny_lm_cpu", ["tiny_lm_cpu"], Broken()], ids=object_text)
def test_a_recipe_that_is_not_a_text_is_a_problem(recipe):
    with pytest.raises(ProblemsFound, match="E005"):
        launcher.compile(recipe)


def test_a_recipe_may_be_a_path(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\n")
    assert launcher.compile(Path("mine.yaml"), session=Session(str(tmp_path))).recipe == "mine.yaml"


@pytest.mark.parametrize("overrides", [None, 3, b"a=1", [1], ["a=1", None]], ids=repr)
def test_what_is_neither_words_nor_a_mapping_is_a_problem(overrides):
    with pytest.raises(ProblemsFound, match="E001"):
        launcher.compile("tiny_lm_cpu", overrides)


def test_a_part_is_chosen_by_its_key_as_on_the_command_line():
    assert values.words({"base/elastic@recipes": "policy"}) == ["+base/elastic@recipes=policy"]


def test_a_name_that_cannot_be_given_leaves_no_bundle(tmp_path):
    for name in ("a b", 3):
        with pytest.raises(ProblemsFound, match="E717"):
            launcher.compile("tiny_lm_cpu", session=fixed(tmp_path)).submit(name=name)
    assert list(tmp_path.iterdir()) == []


def test_one_text_is_not_a_list_of_overrides():
    with pytest.raises(ProblemsFound, match="a list of overrides"):
        launcher.compile("tiny_lm_cpu", "trainer.num_nodes=2")


@pytest.mark.parametrize(
    ("recipe", "overrides", "cluster", "elastic"),
    [
        (SHORT, {"training_config.training_args.learning_rate": 1e-4}, "k8s", True),
        ("tiny_lm_cpu", {"env_vars": {"A": "x y"}}, None, None),
        (LLAMA, [f"{RATE}=0.001"], "slurm", False),
    ],
)
def test_a_plan_writes_what_the_command_line_writes(
    tmp_path, monkeypatch, capsys, recipe, overrides, cluster, elastic
):
    monkeypatch.setattr(contexts, "random_suffix", lambda: "x068q")
    monkeypatch.setattr(contexts, "current_time", lambda: NOW)
    monkeypatch.chdir(tmp_path)
    plan = launcher.compile(
        recipe, overrides, cluster=cluster, elastic=elastic, session=Session(suffix=lambda: "x068q")
    ).with_overrides(["dry_run=true"])
    here = plan.write()
    on_disk = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    assert on_disk == {*plan.files, REPRODUCE_FILE}
    kept = {path: text for path, text in plan.files.items()}
    here.rename(tmp_path / "kept")
    assert launch.main(plan.overrides) == 0
    capsys.readouterr()
    assert {path: (here / path).read_text() for path in kept} == kept


def test_a_plan_with_faults_has_them_all_and_nothing_else(tmp_path):
    plan = launcher.compile(
        "tiny_lm_cpu", {"trainer.num_nodes": "x", "foo": 3}, strict=False, session=fixed(tmp_path)
    )
    assert codes(plan.problems) == ["E102", "E101"]
    for use in (lambda: plan.config, lambda: plan.files, lambda: plan.sizes, plan.write, plan.submit):
        with pytest.raises(ProblemsFound) as refused:
            use()
        assert refused.value.problems == plan.problems
    assert "E102" in plan._repr_html_()
    assert list(tmp_path.iterdir()) == []


def test_faults_of_names_and_values_are_problems_of_the_plan_too(tmp_path):
    for recipe, overrides, code in (("no_such", {}, "E005"), ("tiny_lm_cpu", {"a b": 1}, "E001")):
        plan = launcher.compile(recipe, overrides, strict=False, session=fixed(tmp_path))
        assert codes(plan.problems) == [code]
        with pytest.raises(ProblemsFound):
            launcher.compile(recipe, overrides, session=fixed(tmp_path))
        for use in (plan.with_overrides, plan.trial, plan.explain):  # they would be about a job without this recipe
            with pytest.raises(ProblemsFound) as refused:
                use({})
            assert refused.value.problems == plan.problems


def test_a_plan_is_one_short_line_in_a_terminal_and_a_key_of_a_mapping(plan):
    assert repr(plan) == f"<Plan {plan.job.name}: {plan.job.recipe}, {plan_report.kind(plan.job)}>"
    assert repr(launcher.compile("tiny_lm_cpu", {"a b": 1}, strict=False)) == "<Plan of 'tiny_lm_cpu' with 1 fault>"
    assert {plan: 1, plan.session: 2}[plan] == 1


@pytest.mark.slow
def test_git_is_asked_once_and_only_for_a_bundle(tmp_path, monkeypatch):
    asked: list[Path] = []
    monkeypatch.setattr(contexts, "CHECKOUT", tmp_path)
    monkeypatch.setattr(contexts, "_git_revision", lambda folder: asked.append(folder) or "0" * 40)
    plan = launcher.compile("tiny_lm_cpu", session=fixed(tmp_path))
    assert plan.sizes and plan._repr_html_() and asked == []
    for each in (plan, plan, plan.with_overrides({"training_config.training_args.max_epochs": 2}), plan.trial({})):
        assert json.loads(each.files["bundle.json"])["git_revision"] == "0" * 40
    assert len(asked) == 1


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    overrides = {"training_config.training_args.learning_rate": 3e-4}
    return launcher.compile(LLAMA, overrides, cluster="k8s", elastic=True, session=fixed(folder))


def test_a_plan_has_the_typed_recipe_at_every_size(plan):
    assert plan.config.training_config.training_args.learning_rate == 3e-4
    for row in plan.sizes:
        sized = plan.at(row["nodes"])
        assert sized.trainer.num_nodes == row["nodes"]
        assert sized.training_config.training_args.train_batch_size == row["samples_per_step"]
    with pytest.raises(ProblemsFound, match="no such size"):
        plan.at(5)


def test_a_plan_has_the_recipe_of_its_family_alone(plan):
    from launcher.families import tiny_lm
    from launcher.families.llm_finetuning_aws.recipe import Recipe

    assert plan.config_as(Recipe) is plan.config
    with pytest.raises(TypeError, match=r"llm_finetuning_aws.*not of .*tiny_lm"):
        plan.config_as(tiny_lm.Recipe)


def test_a_mistake_is_shown_as_text_that_no_recipe_can_mark_up(tmp_path):
    with pytest.raises(ProblemsFound) as refused:
        launcher.compile("tiny_lm_cpu", {"trainer.num_nodes": "<b>"}, session=fixed(tmp_path))
    assert "value: &#x27;&lt;b&gt;&#x27;" in refused.value._repr_html_()
    head, place, *rest = refused.value._render_traceback_()
    assert (head, rest) == ("ProblemsFound:", str(refused.value).splitlines())
    assert 'launcher.compile("tiny_lm_cpu"' in place


def test_a_plan_explains_who_set_a_value(plan):
    (found,) = plan.explain("learning_rate").values()
    assert found[0].value == 3e-4
    assert found[0].origin.origin == f"+{'+'}{RATE}=0.0003"
    assert found[0].shadowed[0].origin.startswith("base/llmft/")
    with pytest.raises(ProblemsFound, match="E101"):
        plan.explain("learning_rat")


def test_the_difference_of_two_plans_names_what_was_changed_alone(plan, tmp_path):
    other = launcher.compile(LLAMA, cluster="k8s", elastic=True, session=fixed(tmp_path, "other"))
    assert plan.diff(plan) == ()
    key = "recipes.training_config.training_args.learning_rate"
    assert [line for line in plan.diff(other) if "scale_config" not in line and "results" not in line] == [
        f"- {key}: 0.0003",
        f"+ {key}: {other.config.training_config.training_args.learning_rate:g}",
    ]


def test_costs_are_those_of_the_given_prices(plan):
    found = plan.cost({"ml.p5.48xlarge": 10, "p4d.24xlarge": 5.0}, hours=2)
    assert [(cost.nodes, cost.per_hour, cost.most) for cost in found][:2] == [(1, 10.0, 20.0), (2, 20.0, 40.0)]
    assert plan.cost()[0].per_hour > 10
    with pytest.raises(ProblemsFound, match="not a price"):
        plan.cost({"ml.p5.48xlarge": "cheap"})


@pytest.mark.slow
def test_sizes_are_a_data_frame(plan):
    pandas = pytest.importorskip("pandas")
    frame = plan.sizes.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["nodes"]) == [row["nodes"] for row in plan.sizes]


@pytest.mark.slow
def test_a_notebook_shows_the_table_and_the_picture_and_no_markup_of_a_recipe(tmp_path):
    plan = launcher.compile(LLAMA, {"run.name": "a"}, cluster="k8s", elastic=True, session=fixed(tmp_path))
    shown = plan._repr_html_()
    assert shown.count("<tr>") == 1 + len(plan.sizes)
    assert "<svg" in shown
    faulty = launcher.compile(
        "tiny_lm_cpu", {"run.name": "<script>x</script>"}, strict=False, session=fixed(tmp_path)
    )
    assert "<script>" not in faulty._repr_html_()
    assert "<script>" not in launcher.Table([{"a": "<script>"}])._repr_html_()


@pytest.mark.slow
def test_compiles_in_eight_threads_give_the_bytes_of_one_by_one(tmp_path):
    found = launcher.recipes("llmft", "llama", technique="sft_lora")
    names = [entry.name for entry in found][:10]
    every = [(name, cluster) for name in names for cluster in ("k8s", "slurm")] * 10
    session = fixed(tmp_path)

    def digest(job) -> str:
        overrides = {"instance_type": "p5.48xlarge", "container": "me/image:1"}
        return launcher.compile(job[0], overrides, cluster=job[1], strict=False, session=session).bundle.digest

    expected = {job: digest(job) for job in set(every)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(digest, every)) == [expected[job] for job in every]


@pytest.mark.slow
def test_recipes_are_listed_as_the_command_lists_them(capsys):
    from launcher.cli import main as cli

    assert cli.run(["list", "--technique", "dpo", "--family", "llama", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry.name for entry in launcher.recipes(technique="dpo", family="llama")] == [
        each["name"] for each in listed
    ]
    with pytest.raises(ProblemsFound, match="E802"):
        launcher.recipes(technique="dpoo")


def test_nothing_is_printed(plan, capfd):
    launcher.compile("no_such", strict=False)
    _ = plan.files, plan.explain("learning_rate"), plan.cost()
    assert capfd.readouterr() == ("", "")


def test_a_job_that_does_not_exist_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProblemsFound, match="E703"):
        launcher.attach("nothing-x068q")
    assert launcher.jobs() == ()
    with pytest.raises(ProblemsFound, match="E818"):
        launcher.jobs(state="runing")


def test_the_words_of_a_plan_are_those_of_a_command_line(plan):
    assert plan.overrides == (f"recipes={LLAMA}", f"++{RATE}=0.0003", "cluster=k8s", ELASTIC)
