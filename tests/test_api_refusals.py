"""What the Python API refuses, with what it says of it, and what it keeps: exceptions, folders, variables."""

import copy
import importlib
import inspect
import os
import pickle
import shutil

import launch_records
import numpy
import pytest

import launcher
from launcher import Job, ProblemsFound, Session
from launcher.api import composed, instance_types, new_recipe, placement, samples, teams
from launcher.api.generated import schema
from launcher.model.job_spec import JobState, JobStatus
from launcher.operator.snapshot import Attempt, Snapshot, publish

TINY = "tiny_lm_cpu"
SEED = "recipes.training_config.training_args.seed"
P5 = "ml.p5.48xlarge"


def refused(work):
    with pytest.raises(ProblemsFound) as caught:
        work()
    (problem,) = caught.value.problems
    return problem


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return Session(tmp_path_factory.mktemp("refusals"))


@pytest.fixture(scope="module")
def plan(session):
    return launcher.compile(TINY, session=session)


@pytest.fixture(scope="module")
def priced(session):
    return launcher.compile("llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora", cluster="k8s", session=session)


@pytest.mark.parametrize("key", ["dry_run", "server_dry_run"])
def test_a_plan_that_is_only_written_is_not_submitted(session, key):
    found = refused(launcher.compile(TINY, {key: True}, session=session).submit)
    assert (found.code, found.path) == ("E726", key)
    assert not (session.place("results")).exists()


@pytest.mark.parametrize(
    "copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"]
)
def test_exceptions_reach_other_processes_as_they_were(copied):
    with pytest.raises(ProblemsFound) as caught:
        launcher.compile(TINY, {"a b": 1})
    found = copied(caught.value)
    assert (str(found), found.problems, found.outcome) == (str(caught.value), caught.value.problems, None)
    failed = launcher.JobFailed("mine", JobStatus(JobState.FAILED, 1, message="exit status 3"))
    found = copied(failed)
    assert (str(found), found.job, found.status) == ("mine failed: exit status 3", "mine", failed.status)
    assert isinstance(copied(launcher.JobTimeout(caught.value.problems)), TimeoutError)


@pytest.mark.parametrize(
    "given",
    [{"A": 3}, {"A": None}, {"A": "x\0y"}, {"A=B": "1"}, {"": "1"}],
    ids=["int", "none", "nul", "name", "empty"],
)
def test_a_session_takes_texts_as_variables_alone(given):
    found = refused(lambda: Session(environment={**os.environ, **given}))
    assert (found.code, found.path) == ("E001", f"environment.{next(iter(given))}")


@pytest.mark.parametrize("folder", ["out ${x}", "a\\${b", "${oc.env:HOME}"])
def test_a_folder_is_a_name_and_no_reference(plan, folder):
    assert plan.write(folder).parent == plan.session.place(folder)


def test_a_home_that_no_user_has_is_refused_without_a_remedy_that_names_it_again(plan):
    found = refused(lambda: plan.write("~no-such-user/x"))
    assert (found.code, found.remedy) == ("E702", None)


@pytest.mark.parametrize("key", ["scale_config.01", "x.1e3", "x.1a", "a.-b", "a b", "1a", "a..b"])
def test_a_key_that_no_override_has_is_no_key(key):
    found = refused(lambda: launcher.compile(TINY, {key: 1}))
    assert (found.code, found.message) == ("E001", "is not a key")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1: "a", "1": "b"}, "has two keys that an override states alike"),
        (memoryview(b"x"), "is not a value that a configuration has"),
    ],
    ids=["keys", "memory"],
)
def test_a_value_that_would_change_is_refused(value, message):
    found = refused(lambda: launcher.compile(TINY, {"env_vars.X": value}))
    assert (found.code, found.message) == ("E001", message)


@pytest.mark.parametrize("strict", [True, False])
def test_a_key_that_no_override_states_hides_no_other_fault(strict):
    given = {"env_vars": {"A": "1", "": "2", "ü": "3", "B C": "4"}, "trainer.num_nodes": "two"}
    with pytest.raises(ProblemsFound) as caught:
        _ = launcher.compile(TINY, given, strict=strict).files
    found = [(each.code, each.path, each.value) for each in caught.value.problems]
    assert found[:2] == [("E001", "env_vars", "''"), ("E001", "env_vars", "'ü'")]
    assert {each[1] for each in found[2:]} == {"recipes.trainer.num_nodes", "env_vars.B C"}


@pytest.mark.parametrize("given", ["07", "+003"])
def test_the_remedy_of_a_number_in_quotes_is_a_number(given):
    found = refused(lambda: launcher.compile(TINY, [f"{SEED}={given}"]))
    word = found.remedy.removeprefix("did you mean ").rstrip("?")
    assert launcher.compile(TINY, [word]).config.training_config.training_args.seed == int(given)


@pytest.mark.parametrize("given", ["'٣'", "-003"])
def test_the_remedy_of_a_number_of_other_digits_or_below_0_is_left_out(given):
    assert refused(lambda: launcher.compile(TINY, [f"{SEED}={given}"])).remedy is None


@pytest.mark.parametrize("prices", [{P5: 10**400}, {P5: True}, {P5: "3"}, {P5: float("nan")}, []])
def test_prices_are_numbers(priced, prices):
    assert refused(lambda: priced.cost(prices, 1)).code == "E806"


@pytest.mark.parametrize("hours", [10**400, "2", -1, float("inf"), 1_000_001])
def test_hours_are_a_number_that_a_job_may_take(priced, hours):
    found = refused(lambda: priced.cost({P5: 3}, hours))
    assert (found.code, found.path, found.allowed) == ("E806", "hours", "0 to 1,000,000")


def test_numbers_of_numpy_are_prices_and_hours(priced):
    assert priced.cost({P5: numpy.float32(3)}, numpy.int64(2)) == priced.cost({P5: 3.0}, 2)


def test_bytes_are_no_list_of_values(plan):
    found = refused(lambda: launcher.sweep(plan, {SEED: b"ab"}))
    assert (found.code, found.path) == ("E725", SEED)


def test_the_name_of_no_sweep_is_a_problem_however_long_it_is():
    assert refused(lambda: launcher.attach_sweep("x" * 5000)).code == "E721"


@pytest.mark.parametrize("key", ["", None])
def test_an_empty_key_explains_nothing(plan, key):
    assert refused(lambda: plan.explain(key)).code == "E101"


def test_a_remedy_of_a_name_does_not_show_its_secret(monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "tok_abcdefgh12345678")
    for name in ("https://user:p4ssw0rdxyz@host/x", "tok_abcdefgh12345678"):
        with pytest.raises(ProblemsFound) as caught:
            launcher.compile(TINY, {"run.name": name})
        assert "E301" in str(caught.value)
        assert "p4ssw0rdxyz" not in str(caught.value) and "abcdefgh12345678" not in str(caught.value)


def test_a_removed_folder_no_longer_exists_and_a_written_one_was_never_launched(plan, tmp_path):
    folder = plan.write(tmp_path / "two words")
    job = Job(folder)
    never = refused(lambda: job.status)
    assert never.code == "E705" and f"'{folder}'" in never.remedy
    shutil.rmtree(folder)
    assert refused(lambda: job.status).code == "E703"


def test_events_without_the_end_that_the_state_has_give_no_goodput(plan, tmp_path):
    folder = plan.write(tmp_path / "cut")
    run_dir = folder / "run"
    recorded = launch_records.Job(run_dir)
    recorded.start([0])
    recorded.end()
    attempts = (Attempt(0, 0, (0,), launch_records.LAUNCHED),)
    publish(run_dir, Snapshot(JobState.SUCCEEDED, 0, "completed", 0, 1, exit_code=0, attempts=attempts))
    job, events = Job(folder), run_dir / "events.jsonl"
    assert job.timeline().state == "succeeded"
    events.write_text(events.read_text().splitlines()[0] + "\n")
    assert (refused(lambda: job.goodput).code, refused(job.timeline).path) == ("E711", str(events))
    events.unlink()
    assert "is missing" in refused(job.timeline).message
    launch_records.Job(run_dir).start([0])
    publish(run_dir, Snapshot(JobState.FAILED, 0, "the operator failed", 0, 1, exit_code=1, attempts=attempts))
    assert job.timeline().state is None  # such an operator writes no end


def test_a_job_has_the_variables_of_its_session_when_it_is_compiled_again(tmp_path):
    session = Session(tmp_path, environment={**os.environ, "ONLY_HERE": "1"})
    plan = launcher.compile(TINY, {"env_vars.Q": "${oc.env:ONLY_HERE}"}, session=session)
    job = Job(plan.write(), session=session)
    assert job.changed().changes == ()
    with pytest.raises(ProblemsFound, match="ONLY_HERE"):
        pickle.loads(pickle.dumps(job)).changed()


@pytest.mark.parametrize(
    ("words", "conditions", "path"),
    [
        ((), {"elastic": "yes"}, "elastic"),
        ((), {"own": 1}, "own"),
        ((3,), {}, "word"),
        ((), {"family": []}, "family"),
    ],
)
def test_a_condition_of_another_type_is_refused(words, conditions, path):
    found = refused(lambda: launcher.recipes(*words, **conditions))
    assert (found.code, found.path) == ("E802", path)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: launcher.jobs(state=3), "E818"),
        (lambda: launcher.jobs(cluster=3), "E818"),
        (lambda: launcher.jobs(recipe=3), "E818"),
        (lambda: launcher.jobs(newer_than=3), "E818"),
        (lambda: launcher.attach(None), "E703"),
        (lambda: launcher.attach(b"x"), "E703"),
        (lambda: launcher.attach("a\0b"), "E703"),
        (lambda: launcher.jobs(3), "E818"),
        (lambda: launcher.jobs("a\0b"), "E818"),
        (lambda: launcher.jobs(session={}), "E001"),
        (lambda: launcher.attach_sweep(None), "E721"),
        (lambda: Session(environment=["A=hunter2"]), "E001"),
        (lambda: Session(folder="a\0b"), "E001"),
        (lambda: Session(folder=3), "E001"),
        (lambda: Session(user=3), "E001"),
        (lambda: launcher.compile(TINY, session={}), "E001"),
        (lambda: launcher.compile("a\0b"), "E005"),
        (lambda: teams.objects([1]), "E001"),
        (lambda: teams.objects("team=a"), "E001"),
        (lambda: schema.json_schema("nope"), "E104"),
        (lambda: new_recipe.write(3, TINY), "E805"),
        (lambda: new_recipe.write("a.yaml", 3), "E005"),
        (lambda: composed.composed(3), "E005"),
        (lambda: composed.composed(TINY, 3), "E001"),
        (lambda: launcher.recipes(overrides=3), "E001"),
        (lambda: placement.of_numbers("8"), "E801"),
        (lambda: placement.of_numbers(8, partitions=0), "E801"),
    ],
)
def test_an_argument_of_another_type_is_a_problem(call, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = refused(call)
    assert found.code == code and "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda plan: plan.at("2"), "E803"),
        (lambda plan: plan.at(None), "E803"),
        (lambda plan: plan.at(True), "E803"),
        (lambda plan: plan.at(2.0), "E803"),
        (lambda plan: plan.explain(3), "E101"),
        (lambda plan: plan.diff("x"), "E001"),
        (lambda plan: plan.write(3), "E702"),
        (lambda plan: plan.draw(None), "E709"),
        (lambda plan: plan.draw("a\0.png"), "E709"),
        (lambda plan: launcher.sweep("x", {SEED: [1]}), "E725"),
    ],
)
def test_an_argument_of_another_type_is_a_problem_of_a_plan(plan, call, code):
    assert refused(lambda: call(plan)).code == code


def test_numbers_of_numpy_are_sizes_and_files_may_be_texts(plan, tmp_path, monkeypatch):
    assert plan.at(numpy.int64(2)) is plan.at(2)
    monkeypatch.chdir(tmp_path)
    new_recipe.write("mine.yaml", TINY)
    assert (tmp_path / "mine.yaml").is_file()
    words = ["team=research", f"instance_type={P5}", "nodes=8"]
    assert teams.objects(words, out="teams").files == teams.objects(words).files


def _public():
    """Yield every function and method of the API with the name and the declared type of each argument."""
    modules = ("checking", "composed", "instance_types", "job", "listing", "new_recipe", "plan", "samples", "teams")
    for name in (*modules, "placement", "sweeps.sweep"):
        module = importlib.import_module(f"launcher.api.{name}")
        own = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
        methods = [method for each in own if isinstance(each, type) for method in vars(each).values()]
        for function in filter(inspect.isfunction, (*own, *methods)):
            if not function.__name__.startswith("_"):
                for argument in inspect.signature(function).parameters.values():
                    yield function, argument


FLAGS = [(f, each.name) for f, each in _public() if each.annotation in (bool, bool | None) and each.name != "elastic"]
TIMES = [(f, each.name) for f, each in _public() if each.name == "timeout" or each.name.endswith("_s")]


@pytest.mark.parametrize(("function", "name"), FLAGS, ids=lambda each: getattr(each, "__qualname__", each))
@pytest.mark.parametrize("given", ["no", 1, numpy.array([1])], ids=["text", "number", "array"])
def test_every_truth_value_of_the_api_is_one(function, name, given):
    extra = (TINY,) if function is launcher.compile else ()
    found = refused(lambda: function(*extra, **{name: given}))
    assert found.path == name and found.message.startswith("must be True") and found.value


@pytest.mark.parametrize(("function", "name"), TIMES, ids=lambda each: getattr(each, "__qualname__", each))
@pytest.mark.parametrize(
    "given",
    ["5", -1, float("nan"), True, 10**400, "x" * 5000],
    ids=["text", "negative", "nan", "flag", "huge", "long"],
)
def test_every_duration_of_the_api_is_a_number_of_seconds(function, name, given):
    found = refused(lambda: function(**{name: given}))
    assert found.path == name and "a number of seconds, 0 or more" in found.allowed and len(str(found)) < 300


def test_the_arguments_that_are_checked_are_known():
    assert {(f.__qualname__, name) for f, name in FLAGS} >= {
        ("Plan.submit", "detach"), ("Job.logs", "follow"), ("Job.logs", "stderr"), ("Job.events", "follow"),
        ("Job.rerun", "detach"), ("Job.relaunch", "again"), ("launched", "again"), ("compile", "strict"),
    }  # fmt: skip
    assert {f.__qualname__ for f, _ in TIMES} == {
        "Job.changes", "Job.wait", "Job.result", "Plan.doctor", "Sweep.changes", "Sweep.wait",
    }  # fmt: skip


def test_a_position_names_an_argument_too_and_numbers_of_numpy_are_durations(plan, tmp_path):
    job = Job(plan.write(tmp_path / "never"))
    assert refused(lambda: job.wait("5")).path == "timeout"
    assert refused(lambda: job.wait(numpy.float32(1))).code == "E705"


@pytest.mark.parametrize("given", [3, b"x", []])
def test_texts_of_conditions_are_texts(given):
    assert refused(lambda: instance_types.selected(accelerator=given)).path == "accelerator"
    assert refused(lambda: teams.objects(["team=a"], context=given)).path == "context"
    assert refused(lambda: samples.read("a.jsonl", TINY, tokenizer=given)).path == "tokenizer"


def test_a_misspelt_type_among_prices_is_named_and_not_offered(priced):
    found = refused(lambda: priced.cost({"p5.48xlarg": 10}, 2))
    assert (found.code, found.path, found.value) == ("E806", "prices: ml.p5.48xlarg", "ml.p5.48xlarg")
    assert found.remedy == "did you mean ml.p5.48xlarge?"
    found = refused(lambda: priced.cost({"p4d.24xlarge": 10}, 2))
    assert (found.path, found.value, found.remedy) == ("prices", P5, f"add {P5}: <price per hour>")


def test_what_hinders_a_launch_is_reported_at_once(tmp_path):
    session = Session(tmp_path)
    first = launcher.compile(TINY, session=session)
    first.write()
    (tmp_path / "results/mine").mkdir()
    with pytest.raises(ProblemsFound) as caught:
        first.submit(name="mine")
    assert [(each.code, each.path) for each in caught.value.problems] == [
        ("E701", "base_results_dir"),
        ("E717", "name"),
    ]
    assert refused(lambda: first.submit(name="another")).code == "E701"


RATE = "training_config.training_args.learning_rate"


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("tag(log, interval(1e-5", "lacks )) at its end", None),
        ("interval(1e-5, 1e-3", "lacks ) at its end", "interval(1e-5, 1e-3)"),
        ("tag(log, interval(1e-5, 1e-3)", "lacks ) at its end", "tag(log, interval(1e-5, 1e-3))"),
        ("interval(1)", "missing a required argument: 'end'", None),
        ("choice('a,b)", "is not a sweep that can be read", None),
    ],
)
@pytest.mark.slow
@pytest.mark.sample
def test_a_sweep_that_cannot_be_read_is_named_with_its_missing_brackets(plan, text, message, remedy):
    found = refused(lambda: launcher.sweep(plan, space={RATE: text}, objective="loss"))
    assert (found.code, found.path, found.message, found.remedy) == ("E001", RATE, message, remedy)
    assert found.value == text and "tag(log, interval(low, high))" in found.allowed
    if remedy:
        assert launcher.sweep(plan, space={RATE: remedy}, objective="loss", trials=1).name


def test_an_interval_in_a_grid_belongs_to_a_space(plan):
    given = {"objective": "loss", "trials": 0, "sampler": "tpe"}
    found = refused(lambda: launcher.sweep(plan, {RATE: "interval(0.1, 1)"}, **given))
    assert (found.code, found.path) == ("E002", RATE)
    assert "sampler" not in found.allowed and found.remedy.startswith("space={…} in place of grid")


@pytest.mark.parametrize("text", ["${nope", "${oc.env:", "x $HOME ${", "${${nope}", "${oc.env:HOME"])
def test_a_reference_that_is_not_closed_is_named_with_a_text_that_works(text):
    found = refused(lambda: launcher.compile(TINY, {"env_vars.A": text}))
    assert found.message.startswith("has a reference that is not closed: ${") and "INTER" not in str(found)
    start, _, word = found.remedy.partition(", or ")
    assert (found.code, found.path, start) == ("E003", "env_vars.A", "close it with }")
    word = word.removesuffix(" for the text itself").strip("'")
    assert launcher.compile(TINY, [word]).job.config["env_vars"]["A"] == text


@pytest.mark.parametrize("text", ["${}", "${a b}", "${x:{a}}", "${.}", "${oc.env:A,'x}"])
def test_a_reference_that_cannot_be_read_is_named_without_words_of_a_grammar(text):
    found = refused(lambda: launcher.compile(TINY, {"env_vars": {"B": {"A": text}}}))
    assert (found.path, found.message) == ("env_vars.B.A", "has a reference that cannot be read")
    assert found.allowed.startswith("${") and found.remedy == "\\${ for a literal ${"


@pytest.mark.parametrize("word", ["run.name=${nope", "run.name='${nope'", "run.name=a-${nope"])
def test_words_and_files_name_an_open_reference_alike(word, tmp_path):
    found = refused(lambda: launcher.compile(TINY, [f"recipes.{word}"]))
    assert found.message == "has a reference that is not closed: ${nope" and "close it with }" in found.remedy
    file = tmp_path / "own.yaml"
    file.write_text("defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\nrun: {name: '${nope'}\n")
    found = refused(lambda: launcher.compile(file))
    assert (found.code, found.path) == ("E004", f"{file}:2:13") and "close it with }, or \\${nope" in found.remedy


def test_an_open_reference_of_a_secret_is_not_repeated():
    found = refused(lambda: launcher.compile(TINY, {"env_vars.HF_TOKEN": "${hunter2"}))
    assert "not closed" in found.message and "hunter2" not in str(found)


def test_a_name_with_an_escaped_reference_is_refused_as_a_name():
    assert refused(lambda: launcher.compile(TINY, {"run.name": "\\${nope"})).code == "E301"


@pytest.mark.parametrize("folder", ["nope", "file", "file/x", "x" * 5000])
def test_jobs_of_what_is_not_a_folder_are_refused(folder, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    session = Session(tmp_path)
    found = refused(lambda: launcher.jobs(folder, session=session))
    assert (found.code, found.path) == ("E818", "folder") and len(str(found)) < 600
    assert launcher.jobs("empty", session=session) == launcher.jobs(session=session) == ()


@pytest.mark.parametrize(
    "overrides",
    [
        {f"scale_config.{'1' * 5001}": 1}, {f"a.{'1' * 5001}": 1}, {"1" * 5001: 1}, {SEED: 10**5001},
        {SEED: ["1" * 5001]}, [f"recipes.scale_config.{'1' * 5001}.a=1"], [f"{SEED}={'1' * 5001}"], ["1" * 5001],
    ],
    ids=["size", "key", "first", "value", "list", "word", "number", "bare"],
)  # fmt: skip
def test_thousands_of_digits_are_not_printed(overrides):
    with pytest.raises(ProblemsFound) as caught:
        launcher.compile(TINY, overrides)
    assert max(map(len, str(caught.value).splitlines())) < 400


def test_no_state_is_every_state(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert launcher.jobs(state=None) == launcher.jobs(state=[]) == ()


def test_a_session_shows_no_variable():
    assert "hf_" not in repr(Session(environment={"HF_TOKEN": "hf_secretsecret"}))


def test_a_plan_keeps_its_files_and_slices_of_tables_are_tables(plan):
    plan.files["a"] = "b"
    assert "a" not in plan.files
    sizes = plan.sizes
    assert [type(each) for each in (sizes[:2], sizes + sizes, sizes[0])][:2] == [type(sizes)] * 2
    assert len((sizes[1:] + sizes).frame()) == 2 * len(sizes) - 1
