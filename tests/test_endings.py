"""How both programs end: whoever interrupts them, stops reading, or asks for more than there is room for."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from conftest import ELASTIC, LLAMA_K8S, ROOT, SHORT, in_process

from launcher.api.session import CompositionCache
from launcher.cli import launch_sweep, run_command
from launcher.common.problems import ProblemsFound
from launcher.common.text_table import value_text
from launcher.config import multirun
from launcher.planning.check import MOST_SIZES

MAIN = (sys.executable, str(ROOT / "main.py"))
RECIPES = (sys.executable, "-m", "launcher")
UNTRACKED = "recipes.training_config.mlflow.enabled=false"
STEPS = (*LLAMA_K8S, ELASTIC, "~recipes.scale_config", "++recipes.elastic_policy.replica_increment_step=1")
ARGS = "recipes.training_config.training_args"
MAX_NODES = "recipes.elastic_policy.max_nodes"
PRINTING = {
    "hydra-help": (*MAIN, "--hydra-help"),
    "help": (*MAIN, "--help"),
    "cfg": (*MAIN, "--cfg", "job"),
    **{f"info-{what}": (*MAIN, "--info", what) for what in ("all", "config", "defaults", "plugins", "searchpath")},
    "info": (*MAIN, "--info"),
    "completion": (*MAIN, "-sc", "install=bash"),
    "dry-run": (*MAIN, *LLAMA_K8S, "dry_run=true"),
    **{f"recipes-{name}": (*RECIPES, name) for name in ("--help", "list", "rules", "schema")},
    **{f"recipes-{name}": (*RECIPES, name, SHORT) for name in ("show", "checkpoint")},
    **{f"recipes-{name}": (*RECIPES, name, SHORT, "cluster=k8s") for name in ("plan", "check")},
    "recipes-stdout": (*RECIPES, "render", SHORT, "cluster=k8s", "--stdout"),
    "recipes-completion": (*RECIPES, "--show-completion", "bash"),
}


def ended(command, cwd, **streams):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    streams = {"stdout": subprocess.PIPE} | streams
    return commands.run(command, cwd=cwd, env=environment, stderr=subprocess.PIPE, text=True, timeout=200, **streams)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTING)
def test_nobody_reads_on_is_exit_code_141(name, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    result = ended(PRINTING[name], tmp_path, stdout=writer)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(("words", "code"), [((), 0), (("recipes.trainer.lr=3",), 2)], ids=["valid", "faulty"])
def test_a_stream_that_the_parent_process_closed_changes_no_exit_code(closed, words, code, tmp_path):
    command = ("bash", "-c", f'exec "$@" {closed}', "bash", *MAIN, "dry_run=true", UNTRACKED, *words)
    result = ended(command, tmp_path)
    assert (result.returncode, "Traceback" in result.stderr) == (code, False), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cfg", "help", "dry-run", "recipes-list", "recipes-stdout"])
def test_an_output_on_a_full_disk_is_named(name, tmp_path):
    with Path("/dev/full").open("w") as full:
        result = ended(PRINTING[name], tmp_path, stdout=full)
    assert (result.returncode, result.stderr) == (2, "the output cannot be written: No space left on device\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dry-run", "cfg", "recipes-plan", "recipes-list"])
@pytest.mark.parametrize("imports", [1, 20, 60, 120, 180])
def test_ctrl_c_while_a_program_imports_is_exit_code_130(name, imports, tmp_path):
    """Python itself handles what comes before its first line: no program can."""
    program, *words = PRINTING[name]
    process = subprocess.Popen(
        [program, "-X", "importtime", *words],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    said = iter(process.stderr)
    next(line for line in said if line.endswith(" launcher.common.process\n"))
    list(itertools.islice(said, imports))
    process.send_signal(signal.SIGINT)
    rest = "".join(said)
    assert process.wait(200) in (130, 0)  # it may have been done before the signal came
    assert "Traceback" not in rest and "KeyboardInterrupt" not in rest


def test_ctrl_c_that_an_import_would_swallow_ends_a_program(tmp_path):
    swallowing = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept:\n    pass\n"
    (tmp_path / "pydantic.py").write_text(swallowing)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [
        sys.executable,
        "-c",
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')",
        MAIN[1],
        "dry_run=true",
    ]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stderr) == (130, "")


# Numbers that bound nothing


@pytest.mark.parametrize(
    ("overrides", "path", "says"),
    [
        ((*STEPS, f"{MAX_NODES}=20000"), MAX_NODES, f"at most {MOST_SIZES} sizes"),
        ((*STEPS, f"{MAX_NODES}=1000000000"), MAX_NODES, "less than or equal to 100000"),
        (
            (*LLAMA_K8S, ELASTIC, "recipes.scale_config=auto", f"{MAX_NODES}=100000"),
            MAX_NODES,
            f"at most {MOST_SIZES}",
        ),
        ((*LLAMA_K8S, f"{ARGS}.train_batch_size={10**12}"), f"{ARGS}.train_batch_size", "less than or equal to"),
        ((*LLAMA_K8S, "recipes.trainer.devices=1000000"), "recipes.trainer.devices", "less than or equal to 1024"),
        ((*LLAMA_K8S, f"{ARGS}.max_len={'9' * 60}"), f"{ARGS}.max_len", "less than or equal to"),
        ((*LLAMA_K8S, f"{ARGS}.max_len={'9' * 4500}"), None, "more than 64 digits"),
        ((*LLAMA_K8S, f"{ARGS}.max_len=[{'9' * 70}]"), f"{ARGS}.max_len", "more than 64 digits"),
        ((*LLAMA_K8S, ELASTIC, f"++recipes.scale_config.{'9' * 5000}={{}}"), None, "is not a number of nodes"),
    ],
    ids=["sizes", "nodes", "planned", "batch", "devices", "int64", "digits", "in_a_list", "size"],
)
def test_a_number_too_large_is_a_problem_at_once(problems, overrides, path, says):
    found = problems(*overrides)
    assert len(found) == 1 and says in str(found[0]) and found[0].path == (path or found[0].path)


@pytest.mark.slow
def test_the_largest_batch_and_the_largest_table_are_planned(prepare):
    largest = f"{ARGS}.train_batch_size={2**31 - 1}"
    prepare(
        *LLAMA_K8S, ELASTIC, "recipes.scale_config=auto", largest, "++recipes.planner.max_micro_batch_size=2147483647"
    )
    job = prepare(
        *STEPS[:2],
        ELASTIC,
        "recipes.scale_config=auto",
        f"{MAX_NODES}={MOST_SIZES}",
        f"{ARGS}.train_batch_size=65536",
    )
    assert job.scales[-1].nodes == MOST_SIZES


@pytest.mark.slow
def test_a_batch_that_divides_at_no_size_gets_no_remedy_of_thousands_of_digits(problems):
    (problem,) = problems(*STEPS, f"{MAX_NODES}={MOST_SIZES}")
    assert problem.code == "E221" and len(str(problem)) < 1000


def test_ranks_are_listed_while_they_are_few(recipes):
    code, out, err = recipes("ranks", "--hosts", "1000000000", "--processes", "8")
    assert (code, out) == (2, "") and "too many to print" in err


# Sweeps


def test_a_sweep_is_its_combinations():
    found = multirun.jobs(["a=1,2", "b=x", "+c=range(0,3,2)", "~d"])
    assert found == [[f"a={a}", "b=x", f"+c={c}", "~d"] for a in (1, 2) for c in (0, 2)]
    assert multirun.jobs(["recipes=glob(training/tiny/*)"]) == [["recipes=training/tiny/tiny_lm_cpu"]]
    assert [words[0] for words in multirun.jobs(["a=range(0,1,0.25)"])] == [f"a={n}" for n in (0.0, 0.25, 0.5, 0.75)]


@pytest.mark.parametrize(
    "sweep",
    [
        *("range(1,1000000000)", "range(0,1,1e-9)", "range(1,2,0)", "range(5,1)", "interval(0,1)", "glob(*)"),
        *("range(1,99999999999999999999999)", "range(0,1e308,1e-300)", "range(1,1e400)"),
    ],
)
def test_a_sweep_that_does_not_end_is_a_problem(sweep):
    with pytest.raises(ProblemsFound) as caught:
        multirun.jobs([f"a={sweep}"])
    assert [problem.code for problem in caught.value.problems] == ["E002"]


def test_too_many_combinations_are_a_problem():
    with pytest.raises(ProblemsFound, match="is 1000000 jobs"):
        multirun.jobs(["a=range(0,1000)", "b=range(0,1000)"])


@pytest.mark.parametrize("words", [("a=x", "a=x,y"), ("a=y", "b=1", "a=x,y")])
def test_a_sweep_over_a_key_that_is_also_set_names_every_choice(words, capsys):
    assert launch_sweep.run(lambda words, **_: 0, multirun.jobs(words), CompositionCache()) == 0
    assert capsys.readouterr().out == "job 1 of 2: a=x\njob 2 of 2: a=y\n"


@pytest.mark.parametrize("last", [130, 143])
def test_a_signal_ends_a_sweep(last):
    codes = iter([2, last, 0])
    assert launch_sweep.run(lambda words, **_: next(codes), [["a"], ["b"], ["c"]], CompositionCache()) == last
    assert next(codes) == 0


@pytest.mark.parametrize("text", ["x=choice(a,b),c", "x=[choice(1,2)]", "x={a: range(3)}"])
@pytest.mark.parametrize("flags", [(), ("--multirun",)], ids=["one", "several"])
def test_a_sweep_inside_a_value_is_a_problem(text, flags, tmp_path):
    result = in_process(run_command.run, *flags, text, "dry_run=true", cwd=tmp_path)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "a sweep inside another value" in result.stderr or "sweeps over several values" in result.stderr


def test_a_key_that_looks_like_a_type_is_an_unknown_key(problems, tmp_path):
    (tmp_path / "own.yaml").write_text(
        'defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\n"run[name]": {"größe": -2.5}\n'
    )
    found = problems(f"recipes={tmp_path / 'own.yaml'}")
    assert [(problem.code, problem.path) for problem in found] == [("E101", "recipes.run[name]")]


def test_a_text_with_a_meaning_in_yaml_is_quoted():
    assert value_text("=") == '"="'
