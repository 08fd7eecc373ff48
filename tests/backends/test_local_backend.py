"""Checking and rendering for this machine, and run.sh as a shell reads it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from log_texts import log_texts

from launcher.backends.local.backend import LocalBackend
from launcher.backends.local.simulation import Hang, Settings
from launcher.common.locks import lock
from launcher.common.paths import python_path
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import PUBLISHED, ElasticPolicy, JobHandle, JobSpec, JobState, JobStatus, Resources
from launcher.operator.job_request import HangLimits, read_job_request
from launcher.operator.snapshot import Snapshot, publish

ELASTIC = ElasticPolicy(1, 4, None, (1, 2, 3, 4), True, None, 20, None, None)
WEIRD_NAME = 'it\'s a "bundle" with $HOME and ; `true`'


def job(**changes):
    fields = {
        "name": "tiny",
        "backend": "local",
        "recipe": "training/tiny/tiny_lm_cpu",
        "model_type": "tiny_lm",
        "nproc_per_node": 2,
        "initial_nodes": 1,
        "scales": (),
        "elastic": ELASTIC,
        "resources": Resources(None, 0, None, 0),
        "image": None,
        "base_results_dir": Path("/results"),
        "settings": Settings(command=None, container_mounts=None),
        "config": {"env_vars": {}},
    }
    fields |= changes
    fields["config"] = {"recipes": {"run": {"model_type": fields["model_type"]}}, **fields["config"]}
    return JobSpec(**fields)


def script(**changes):
    return LocalBackend().render(job(**changes), {})["run.sh"]


def run_with_echo(text, directory, words=("1", "4567")):
    """Run the script with a `python` that prints its environment and words, one a line."""
    directory.mkdir()
    (directory / "run.sh").write_text(text)
    echo = directory / "echo"
    echo.write_text('#!/bin/bash\nprintf "%s\\n" "RUN=$RECIPES_RUN_DIR" "A=${A:-}" "$@"\n')
    echo.chmod(0o755)
    environment = {"PYTHON": str(echo), "PATH": "/usr/bin:/bin"}
    command = ["bash", str(directory / "run.sh"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_run_sh_passes_the_agents_options_from_any_folder(tmp_path):
    bundle = tmp_path / WEIRD_NAME
    text = script(
        config={"env_vars": {"A": "it's $A"}},
        settings=Settings(command=["t.py", "--x", "a b'c"], container_mounts=None),
    )
    assert run_with_echo(text, bundle) == [
        f"RUN={bundle}/run",
        "A=it's $A",
        "-m",
        "launcher.runtime.hyperpodrun",
        "--nnodes=1",
        "--nproc-per-node=2",
        "--rdzv-backend=hyperpod",
        "--rdzv-id=tiny",
        f"--rdzv-conf=resource_config_dir={bundle}/run/nodes/node-1",
        "--server-host=127.0.0.1",
        "--server-port=4567",
        "--server-log-level=warning",
        f"--log-dir={bundle}/run/logs/node-1",
        "--redirects=3",
        "--",
        "t.py",
        "--x",
        "a b'c",
    ]


def test_the_default_command_reads_the_bundles_configs(tmp_path):
    words = run_with_echo(script(), tmp_path / WEIRD_NAME)
    configs = f"{tmp_path / WEIRD_NAME}/configs"
    assert words[-4:] == ["-m", "launcher.runtime.entrypoint", "--config-path", configs]


def test_only_our_own_trainer_is_started_warm_with_the_jobs_variables(tmp_path):
    words = run_with_echo(script(), tmp_path / WEIRD_NAME, ("warm", "a-socket"))
    assert words[2:] == ["-m", "launcher.runtime.warm", "a-socket", "launcher.runtime.trainer"]
    assert "warm" not in script(settings=Settings(command=["t.py"], container_mounts=None))


def test_a_secret_is_read_from_the_shell_and_never_written(tmp_path):
    text = script(config={"env_vars": {"A": {"env": "MINE"}}})
    (tmp_path / "run.sh").write_text(text)
    command = ["bash", tmp_path / "run.sh", "1", "4567"]
    away = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert away.returncode != 0 and "MINE: holds a secret of this job" in away.stderr
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/bash\necho "$A"\n')
    echo.chmod(0o755)
    there = {"PATH": "/usr/bin:/bin", "MINE": "it's", "PYTHON": str(echo)}
    assert subprocess.run(command, env=there, capture_output=True, text=True, check=True).stdout == "it's\n"


def test_run_sh_without_arguments_launches_the_bundle(tmp_path):
    (tmp_path / "run.sh").write_text(script())
    done = subprocess.run(
        ["bash", str(tmp_path / "run.sh")], env={"PYTHON": "/bin/echo"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"-m launcher launch {tmp_path}\n"


def test_run_sh_refuses_one_argument(tmp_path):
    (tmp_path / "run.sh").write_text(script())
    done = subprocess.run(["bash", str(tmp_path / "run.sh"), "1"], capture_output=True, text=True)
    assert (done.returncode, "usage:" in done.stderr) == (2, True)


@pytest.mark.parametrize("elastic", [ELASTIC, None], ids=["elastic", "fixed"])
@pytest.mark.parametrize("command", [None, ["-m", "mine", "bundle:recipe.yaml", "$x"]], ids=["default", "own"])
def test_shellcheck_finds_nothing_in_run_sh(tmp_path, elastic, command, shellcheck):
    path = tmp_path / "run.sh"
    path.write_text(script(elastic=elastic, settings=Settings(command=command, container_mounts=None)))
    # SC2016: a user's word with a $ in it is quoted because it must stay as it is.
    shellcheck(path, exclude="SC2016")


def test_workers_see_scale_events_only_where_the_recipe_is_graceful():
    line = "export HYPERPOD_SIGNAL_COORDINATION=distributed"
    assert line in script()
    assert line not in script(elastic=None)


def test_a_recipes_variables_override_the_backends():
    text = script(config={"env_vars": {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 2, "UNSET": None}})
    assert "export GLOO_SOCKET_IFNAME=eth0" in text
    assert "export NCCL_SOCKET_IFNAME=lo" in text
    assert "export OMP_NUM_THREADS=2" in text
    assert "UNSET" not in text


def test_check_accepts_a_job_where_everything_is_installed():
    assert LocalBackend().check(job()) == ()


def test_check_says_how_to_install_the_agent(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name.startswith("hyperpod") else object())
    (problem,) = LocalBackend().check(job())
    assert problem.code == "E401"
    assert "hyperpod_elastic_agent" in problem.message
    assert "pip install '.[local]'" in problem.remedy
    assert "pip install --no-deps hyperpod-elastic-agent==1.1.3" in problem.remedy


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"base_results_dir": Path("/a,b")}, "E403"),
        ({"model_type": "llm_finetuning_aws", "trainer": PUBLISHED}, "E404"),
    ],
    ids=["comma", "program"],
)
def test_check_refuses_what_cannot_run_here(changes, code):
    assert [problem.code for problem in LocalBackend().check(job(**changes))] == [code]


@pytest.mark.slow
def test_the_backend_is_imported_without_the_agent_torch_or_httpx():
    code = "import sys, launcher.backends.local.backend; print({'torch', 'httpx', 'psutil'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=python_path(), capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_bundle_that_was_never_submitted_is_pending(tmp_path):
    handle = JobHandle("local", "tiny", tmp_path)
    assert LocalBackend().status(handle) == JobStatus(JobState.PENDING, 0, "not submitted")
    assert list(log_texts(LocalBackend(), handle, follow=False)) == []
    LocalBackend().cancel(handle)


@pytest.mark.slow
def test_who_waits_for_a_job_whose_folder_is_removed_has_a_problem(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    publish(run_dir, Snapshot(JobState.RUNNING, 1, "training", 0, 1))
    handle = JobHandle("local", "job", tmp_path, native_id="1")
    with lock(run_dir):
        states = LocalBackend().wait(handle)
        assert next(states).state is JobState.RUNNING
        run_dir.rename(tmp_path / "aside")
        with pytest.raises(ProblemsFound, match="E418"):
            next(states)


def test_a_job_that_was_never_submitted_is_pending(tmp_path):
    states = LocalBackend().wait(JobHandle("local", "job", tmp_path), timeout_s=0)
    assert [status.state for status in states] == [JobState.PENDING]


@pytest.mark.parametrize("timeout_s", [None, 2.5])
def test_the_collective_timeout_is_a_variable_of_the_workers(timeout_s):
    settings = Settings(command=None, container_mounts=None, collective_timeout=timeout_s)
    text = script(settings=settings)
    assert ("export RECIPES_COLLECTIVE_TIMEOUT=2.5" in text) == (timeout_s is not None)


def test_the_limits_of_a_hang_are_in_the_bundle(tmp_path):
    hang = Hang(expectedRecurringFrequencyInSeconds=30, stopPattern="finished", otherWorkCutOffInSeconds=7200)
    files = LocalBackend().render(job(settings=Settings(command=None, container_mounts=None, hang=hang)), {})
    plan = {"job_name": "job", "nproc_per_node": 1, "initial_nodes": 1, "elastic": None, "scales": [{"nodes": 1}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "local.json").write_text(files["local.json"])
    assert read_job_request(tmp_path).hang == HangLimits(recurring_s=30, stop_pattern="finished", other_work_s=7200)
    (tmp_path / "local.json").unlink()  # a bundle of an earlier version
    assert read_job_request(tmp_path).hang == HangLimits()


@pytest.mark.parametrize(
    ("key", "variables", "seconds"),
    [(None, {}, 600.0), (90, {}, 90.0), (90, {"RECIPES_COLLECTIVE_TIMEOUT": "30"}, 30.0)],
)
def test_no_derived_limit_is_below_the_timeout_of_collectives(key, variables, seconds):
    settings = Settings(command=None, container_mounts=None, collective_timeout=key)
    spec = job(settings=settings, config={"env_vars": variables})
    hang = json.loads(LocalBackend().render(spec, {})["local.json"])["hang"]
    assert (hang["collective_timeout_s"], hang["start_cut_off_s"]) == (seconds, None)


@pytest.mark.parametrize(("start_s", "watches"), [(None, False), (600, True)])
def test_the_start_of_a_script_of_ones_own_is_watched_where_that_is_asked_for(start_s, watches):
    hang = Hang(expectedStartCutOffInSeconds=start_s)
    settings = Settings(command=["t.py"], container_mounts=None, hang=hang)
    files = LocalBackend().render(job(settings=settings), {})
    assert json.loads(files["local.json"])["hang"]["watches_start"] is watches


def test_a_stop_pattern_that_is_no_regular_expression_is_a_problem():
    hang = Hang(stopPattern="finished (")
    settings = Settings(command=[sys.executable], container_mounts=None, hang=hang)
    problems = LocalBackend().check(job(settings=settings))
    assert [(problem.code, problem.path) for problem in problems] == [("E417", "cluster.hang.stopPattern")]


@pytest.mark.slow
def test_wait_returns_once_the_operator_has_removed_its_files(tmp_path):
    backend, handle = LocalBackend(), JobHandle("local", "job", tmp_path)
    (tmp_path / "run").mkdir()
    publish(tmp_path / "run", Snapshot(JobState.SUCCEEDED, 0, "done", 0, os.getpid(), exit_code=0))
    with subprocess.Popen(["sleep", "1"]) as operator:  # removes what the job left
        backend._operators[tmp_path] = operator
        assert [status.state for status in backend.wait(handle)] == [JobState.SUCCEEDED]
        assert operator.poll() == 0


def test_a_state_that_is_gone_or_cannot_be_read_is_a_problem_not_a_job_that_was_never_launched(tmp_path):
    backend, handle, run_dir = LocalBackend(), JobHandle("local", "job", tmp_path), tmp_path / "run"
    run_dir.mkdir()
    state, log = run_dir / "state.json", run_dir / "operator.log"
    log.write_text("")
    assert backend.status(handle).message == "not submitted"  # an operator is about to begin
    log.write_text("operator: running: training\n")
    for ask in (backend.status, lambda job: list(backend.logs(job, follow=False))):
        with pytest.raises(ProblemsFound, match=r"E414 .*state.json\n +is missing"):
            ask(handle)
    launched = dataclasses.replace(handle, bundle_dir=tmp_path / "without run", native_id="7")
    asks = (backend.status, lambda job: next(backend.wait(job)), lambda job: list(backend.logs(job, follow=False)))
    for ask in asks:
        with pytest.raises(ProblemsFound, match=r"E414 .*without run/run/state.json\n +is missing"):
            ask(launched)
    state.mkdir()
    with pytest.raises(ProblemsFound, match="E414 .*state.json\n +cannot be read: Is a directory"):
        backend.status(handle)
    (run_dir / "operator.lock").mkdir()
    with pytest.raises(ProblemsFound, match="E414 .*operator.lock\n +cannot be read: Is a directory"):
        backend.status(handle)
