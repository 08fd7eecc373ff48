"""Sessions: what a process has, one of its compilations may have otherwise, and nothing stale is ever seen."""

import concurrent.futures
import json
import os
import sys
import threading

import pytest
from conftest import LLAMA, SHORT

import launcher
from launcher import ProblemsFound, Session
from launcher.common import redaction
from launcher.config import catalogue
from launcher.config.files import keep

RATE = "training_config.training_args.learning_rate"
K8S = {"instance_type": "p5.48xlarge", "container": "me/image:1"}
OURS = """\
defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]
training_config:
  training_args:
    learning_rate: {}
"""
VALUE = "pa55Wörd-and-more"


def rate(recipe: str, **given) -> float:
    return launcher.compile(recipe, **given).config.training_config.training_args.learning_rate


def test_a_recipe_that_is_edited_is_compiled_as_it_is_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.yaml"
    for value in (0.25, 0.5, 0.125):
        mine.write_text(OURS.format(value))
        assert rate("./mine.yaml") == value
    mine.write_text(OURS.format("fast"))
    with pytest.raises(ProblemsFound, match="E102"):
        rate("./mine.yaml")
    mine.unlink()
    with pytest.raises(ProblemsFound, match="E005"):
        rate("./mine.yaml")


@pytest.mark.parametrize("suffix", ["../..", "ABCDE", "abcd", "", 12345, None], ids=repr)
def test_a_suffix_that_no_name_of_a_job_has_is_a_problem(tmp_path, suffix):
    with pytest.raises(ProblemsFound, match="E301 suffix"):
        launcher.compile("tiny_lm_cpu", session=Session(tmp_path, suffix=lambda: suffix))


@pytest.mark.parametrize("time", ["2026-01-31T12:00:00", "yesterday", 3, None], ids=repr)
def test_a_clock_that_returns_no_time_with_its_zone_is_a_problem(tmp_path, time):
    with pytest.raises(ProblemsFound, match="E001 session.clock"):
        launcher.compile("tiny_lm_cpu", session=Session(tmp_path, clock=lambda: time))


def test_the_time_of_a_clock_is_kept_in_utc(tmp_path):
    session = Session(tmp_path, clock=lambda: "2026-01-31T12:00:00+02:00")
    bundle = launcher.compile("tiny_lm_cpu", session=session).bundle
    assert json.loads(bundle.files["bundle.json"])["created"] == "2026-01-31T10:00:00+00:00"


def test_files_that_appear_on_the_search_path_are_found(tmp_path):
    path = [f"hydra.searchpath=[{tmp_path}]"]
    with pytest.raises(ProblemsFound, match="E005"):
        rate("fine-tuning/ours", overrides=path)
    ours = tmp_path / "recipes/fine-tuning/ours.yaml"
    ours.parent.mkdir(parents=True)
    ours.write_text("defaults: [/base/ours@_here_, _self_]\n")
    with pytest.raises(ProblemsFound, match="E004|E005"):
        rate("fine-tuning/ours", overrides=path)
    part = tmp_path / "base/ours.yaml"
    part.parent.mkdir()
    part.write_text(OURS.format(0.25))
    assert rate("fine-tuning/ours", overrides=path) == 0.25
    assert rate("ours", overrides=path) == 0.25
    part.write_text(OURS.format(0.5))
    assert rate("ours", overrides=path) == 0.5


def test_a_part_of_the_collection_that_is_edited_is_read_again(tmp_path):
    part = tmp_path / "part.yaml"
    part.write_text("a: 1\n")
    assert catalogue.values_of(part) == {"a": 1}
    part.write_text("a: {b: 22}\n")
    assert catalogue.values_of(part) == {"a.b": 22}


@pytest.mark.slow
def test_relative_paths_start_from_the_folder_of_the_session(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    (tmp_path / "mine.yaml").write_text(OURS.format(0.25))
    session = Session(tmp_path, suffix=lambda: "x068q")
    plan = launcher.compile("./mine.yaml", session=session)
    assert plan.config.training_config.training_args.learning_rate == 0.25
    assert plan.write() == tmp_path / "results/tiny-lm-cpu-x068q"
    assert launcher.jobs(session=session) == ()
    with pytest.raises(ProblemsFound, match="E705"):
        launcher.attach("tiny-lm-cpu-x068q", session=session)
    with pytest.raises(ProblemsFound, match="E703"):
        launcher.attach("tiny-lm-cpu-x068q")


def test_an_unknown_job_is_compared_with_those_of_the_session(tmp_path, monkeypatch):
    for folder, name in (("here", "tiny-lm-cpu-x068q"), ("there", "tiny-lm-cpu-x068p")):
        job = tmp_path / folder / "results" / name
        job.mkdir(parents=True)
        (job / "bundle.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ProblemsFound) as found:
        launcher.attach("tiny-lm-cpu-x068q", session=Session(tmp_path / "there"))
    (problem,) = found.value.problems
    assert problem.message.endswith(f"under {tmp_path / 'there' / 'results'}/")
    assert (problem.allowed, problem.remedy) == ("tiny-lm-cpu-x068p", "did you mean tiny-lm-cpu-x068p?")


def test_a_session_has_environment_variables_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_RATE", "0.5")
    given = {"overrides": ["env_vars.A=${oc.env:OUR_RATE}", "env_vars.B=${oc.env:ABSENT,none}"]}

    def variables(session) -> dict:
        found = launcher.compile("tiny_lm_cpu", session=session, **given).job.config["env_vars"]
        return {name: found[name] for name in "AB"}

    assert variables(Session(tmp_path)) == {"A": "0.5", "B": "none"}
    assert variables(Session(tmp_path, environment={"OUR_RATE": "1", "ABSENT": "2"})) == {"A": "1", "B": "2"}
    with pytest.raises(ProblemsFound, match="OUR_RATE"):
        variables(Session(tmp_path, environment={}))


def test_questions_before_a_launch_see_the_variables_of_the_session(tmp_path):
    given = {"env_vars.HF_TOKEN": {"env": "OUR_TOKEN"}}

    def findings(environment) -> list[str]:
        session = Session(tmp_path, environment={**os.environ, **environment})
        plan = launcher.compile("tiny_lm_cpu", given, session=session)
        return [each.message for each in plan.doctor() if "OUR_TOKEN" in each.message]

    assert findings({}) == ["env_vars.HF_TOKEN: the variable OUR_TOKEN, which holds HF_TOKEN, is not set"]
    assert findings({"OUR_TOKEN": VALUE}) == ["set in this environment: OUR_TOKEN"]


@pytest.mark.whole_job
def test_a_job_on_this_machine_has_the_variables_of_the_session(tmp_path):
    pytest.importorskip("hyperpod_elastic_agent")
    program = tmp_path / "program.py"
    program.write_text("import os; print(sorted(os.environ['HF_TOKEN']), os.environ.get('OURS'), flush=True)\n")
    given = {"env_vars.HF_TOKEN": {"env": "OUR_TOKEN"}, "cluster.command": [str(program)]}
    session = Session(tmp_path, environment={**os.environ, "OUR_TOKEN": VALUE, "OURS": "yes"})
    job = launcher.compile("tiny_lm_cpu", given, session=session).submit()
    job.result(timeout=300)
    assert f"{sorted(VALUE)} yes" in [line.text for line in job.logs()]
    assert not [path for path in job.folder.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]


def refused(session, value=VALUE) -> bool:
    try:
        launcher.compile(SHORT, {**K8S, "env_vars": {"PLAIN": value}}, cluster="k8s", session=session)
        return False
    except ProblemsFound as error:
        assert value not in str(error)
        return {problem.code for problem in error.problems} == {"E610"}


@pytest.mark.slow
def test_a_secret_variable_that_is_set_after_the_first_compilation_is_known(tmp_path, monkeypatch):
    session = Session(tmp_path)
    assert not refused(session)
    monkeypatch.setenv("DB_PASS", VALUE)
    assert refused(session)
    monkeypatch.delenv("DB_PASS")
    assert not refused(session)
    assert refused(Session(tmp_path, environment={"DB_PASS": VALUE}))
    assert VALUE not in redaction.masked(f"a {VALUE}"), "what any session knows is masked"


def test_values_of_variables_that_a_recipe_refers_to_are_masked(tmp_path):
    values = {
        "HUB": "Hub-Val7719qq",
        "PLACE": "eu-west-1b",
        "OTHER": "aB3xY9kQ2mZ7pL4wN8tR1s",
        "KEY_OF": "Val-8820-zz",
    }
    session = Session(tmp_path, environment=values)
    named = {"recipes.run.hf_access_token": {"env": "HUB"}, "env_vars.MY_KEY.env": "KEY_OF"}
    others = {"env_vars.ZONE": {"env": "PLACE"}, "env_vars.X": {"env": "OTHER"}}
    launcher.compile(SHORT, named | others, cluster="slurm", session=session, strict=False)
    for name, is_secret in (("HUB", True), ("KEY_OF", True), ("OTHER", True), ("PLACE", False)):
        assert (values[name] not in redaction.masked(f"a {values[name]} b")) is is_secret, name
        assert refused(session, values[name]) is is_secret, "what another name refers to may be a plain value"


def test_a_secret_of_one_session_refuses_no_file_of_another(tmp_path):
    first, second = Session(tmp_path), Session(tmp_path)
    value = "an0ther-Wörd-of-length"
    launcher.compile(SHORT, {**K8S, "env_vars.MY_PASSWORD": value}, cluster="k8s", session=first, strict=False)
    assert refused(first, value)
    assert not refused(second, value)


@pytest.mark.slow
def test_secrets_that_threads_learn_at_once_are_all_masked():
    values = [f"s3cret-{number:04}-Wörd" for number in range(60)]

    def learn(value):
        redaction.learn({"password": value})
        assert value not in redaction.masked(f"a {value} b")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(learn, values))
    assert not any(value in redaction.masked(value) for value in values)


def test_a_full_cache_is_shared_by_threads():
    known: dict[int, int] = {}
    at_once = threading.Barrier(8)

    def fill(first):
        at_once.wait()
        for number in range(first, 40_000, 8):
            keep(known, number, number, 4)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # a thread is interrupted anywhere
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(fill, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert len(known) == 4


def test_the_environment_of_a_session_is_not_that_of_the_process(tmp_path):
    before = dict(os.environ)
    launcher.compile(LLAMA, K8S, cluster="k8s", session=Session(tmp_path, environment={"A": "1"}))
    assert dict(os.environ) == before
