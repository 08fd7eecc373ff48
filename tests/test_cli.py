"""The `recipes` command as a whole: names, help, how it ends, colours, completion."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from conftest import LLAMA, ROOT, SHORT
from terminals import on_a_terminal

from launcher.api import naming
from launcher.cli import main as cli
from launcher.common import yaml_io
from launcher.config import catalogue

MICRO = "recipes.training_config.training_args.micro_train_batch_size"


def process(*words, **variables):
    return commands.run(
        [sys.executable, "-m", "launcher", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("llmft_llama3_1_8b_instruct_seq4k_gpu_sft", SHORT, id="last word"),
        pytest.param(LLAMA + "x", LLAMA, id="path"),
        pytest.param("mine.yaml", "no such file", id="file"),
        pytest.param("zzz", "list all: recipes list", id="nothing near"),
    ],
)
def test_a_recipe_that_is_not_there_gets_the_nearest_names(recipes, name, says):
    code, _, err = recipes("plan", name)
    assert code == 2 and err.startswith("E005") and says in err


@pytest.mark.parametrize(
    "words",
    ["show {}", "show {}@2", "check {}", "explain {} recipes.run.name", "checkpoint {}", "diff {} {}@2"],
    ids=["show", "size", "check", "explain", "checkpoint", "diff"],
)
def test_a_recipe_may_be_named_as_the_override_that_chooses_it(recipes, words):
    name = "training/tiny/tiny_lm_cpu"
    plain, chosen = (recipes(*words.replace("{}", each).split()) for each in (name, f"recipes={name}"))
    assert (plain[0], plain[2]) == (chosen[0], chosen[2]) and plain[0] == 0
    assert chosen[1].replace("recipes=", "") == plain[1]  # a diff names its sides as they are typed


def test_a_word_that_two_recipes_end_in_is_a_problem(recipes, monkeypatch):
    monkeypatch.setattr(naming, "recipe_names", lambda *_: ["a/same", "b/same"])
    code, _, err = recipes("show", "same")
    assert code == 2 and err.startswith("E802") and "a/same, b/same" in err


def test_a_recipe_s_file_may_have_any_name(recipes):
    path = Path("it's {my} recipe, (1).yaml")
    path.write_text("defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun: {name: mine}\n")
    assert yaml_io.load(recipes("show", str(path))[1])["run"]["name"] == "mine"


COMMANDS = [name for commands in cli._COMMANDS.values() for name in commands]


def test_help_lists_every_command(recipes):
    for words in (["--help"], ["-h"]):
        code, out, _ = recipes(*words)
        rows = out.partition("Recipes:")[2].splitlines()
        assert code == 0 and [row[2:].partition("  ")[0] for row in rows if row.startswith("  ")] == COMMANDS
        assert not any("..." in row for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_arguments(recipes, command):
    code, out, _ = recipes(*command.split(), "--help")
    by_hydra = "Compile a recipe and launch it.\n\n  recipes run "
    begin = by_hydra if command == "run" else f"Usage: recipes {command} [OPTIONS]"
    assert code == 0 and out.startswith(begin) and "<str>" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["plam"], "plan", id="command"),
        pytest.param(["list", "--elast"], "did you mean --elastic", id="option"),
        pytest.param(["jobs", "--dry-run"], "recipes jobs --help", id="key-where-none-is-taken"),
        pytest.param(["plan", "x", "--dry-run"], "did you mean dry_run=true", id="key"),
        pytest.param(["checkpoint", "x", "--failures=1"], "did you mean --failures-per-node-hour", id="abbreviation"),
        pytest.param(["plan"], "missing argument 'RECIPE'", id="argument"),
        pytest.param(["logs", "x", "--rank", "one"], "--rank", id="type"),
        pytest.param(["scale", "x", "--nodes", "0"], "--nodes", id="range"),
        pytest.param(["list", "--family"], "recipes list --help", id="value"),
        pytest.param(["plan", "x", "--picture", "."], "--picture", id="folder"),
    ],
)
def test_a_command_line_that_is_not_understood_is_a_problem(recipes, words, says):
    code, out, err = recipes(*words)
    assert (code, out) == (2, "") and err.startswith("E801 recipes") and says in err
    assert err.endswith("1 problem; nothing was done\n")


@pytest.mark.slow
def test_no_words_print_the_help():
    result = process()
    assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith("Usage: recipes")


def test_ctrl_c_is_exit_code_130_without_a_traceback(recipes, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "entries", interrupt)
    assert recipes("list") == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["list"], ["show", SHORT], ["rules"]], ids=lambda words: words[0])
def test_a_reader_that_goes_away_is_no_traceback(words):
    command = [
        sys.executable,
        "-c",
        f"from launcher.cli import main as cli; import sys; sys.exit(cli.run({words!r} * 1))",
    ]
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=200)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "has_colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "empty NO_COLOR", "dumb"],
)
def test_a_terminal_gets_colours_unless_it_must_not(variables, has_colours):
    variables = {"NO_COLOR": "", **variables}
    assert ("\x1b[" in on_a_terminal("rules", "E101", **variables)) is has_colours


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.crossed
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
        pytest.param(f"plan {SHORT} cluster_", ["cluster_type="], id="key of the launch"),
        pytest.param(
            f"plan {SHORT} cluster=",
            ["cluster=k8s", "cluster=local", "cluster=ray", "cluster=slurm", "cluster=sm_jobs", "cluster=sm_local"],
            id="clusters",
        ),
        pytest.param(f"plan {SHORT} instance_type=p4d.", ["instance_type=p4d.24xlarge"], id="instance type"),
        pytest.param(f"plan {SHORT} instance_type=ml.p4d.", ["instance_type=ml.p4d.24xlarge"], id="with its prefix"),
        pytest.param(f"plan {SHORT} cluster=k8s cluster.namesp", ["cluster.namespace="], id="key of the cluster"),
        pytest.param("plan tiny_lm_cpu cluster.scenario=pre", ["cluster.scenario=preemption"], id="scenario"),
        pytest.param(f"plan {SHORT} dry_run=", ["dry_run=true", "dry_run=false"], id="true and false"),
        pytest.param(f"plan {SHORT} ++recipes.planner.sizes=w", ["++recipes.planner.sizes=worthwhile"], id="words"),
        pytest.param(f"plan {SHORT} recipes.trainer.num_nodes=", ["recipes.trainer.num_nodes=1"], id="current value"),
        pytest.param(
            f"plan {SHORT} recipes.scale_config.2.training_config.training_args.ring_attn_size=",
            ["recipes.scale_config.2.training_config.training_args.ring_attn_size=1"],
            id="one size",
        ),
        pytest.param(f"plan {SHORT} recipes.run.hf_access_token=", [], id="secret"),
        pytest.param(f"plan {SHORT} recipes.nonsense=", [], id="no such key"),
        pytest.param(f"plan {SHORT} cluster=nonsense dry_run=t", ["dry_run=true"], id="faulty"),
        pytest.param("check tiny_lm_cpu cluster=l", ["cluster=local"], id="check's value"),
        pytest.param("run --mul", ["--multirun"], id="flag of a launch"),
        pytest.param("run cluster.scenario=pre", ["cluster.scenario=preemption"], id="value of the tiny recipe"),
        pytest.param(f"run recipes={LLAMA[:-8]}dpo_", [f"recipes={LLAMA[:-8]}dpo_fft"], id="recipe of a launch"),
        pytest.param(f"run -m recipes={LLAMA} cluster=k8s cluster.namesp", ["cluster.namespace="], id="its keys"),
        pytest.param("jobs rem", ["remove"], id="command of two words"),
        pytest.param("jobs --state fai", ["failed"], id="state"),
    ],
)
def test_shells_complete(recipes, monkeypatch, shell, words, offers):
    out = completed(recipes, monkeypatch, shell, words)
    if shell == "zsh":
        found = [line.partition('"')[2].partition('"')[0] for line in out.replace("((", "\n").splitlines()[1:]]
    else:
        found = [line.partition("\t")[0] for line in out.splitlines() if line]
    assert found == offers


def test_a_launch_offers_the_choice_of_a_recipe_before_its_keys(recipes, monkeypatch):
    found = completed(recipes, monkeypatch, "bash", "run reci").splitlines()
    assert found[0] == "recipes=" and "recipes.trainer.num_nodes=" in found


SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'; source {script}"),
    "zsh": (["-f", "-i"], "autoload -Uz compinit; compinit -u -D; source {script}"),
    "fish": (["--no-config", "-i"], "source {script}"),
}
"""Of each shell: its options, and what makes it complete `recipes`."""


def typed(shell, keys, folder):
    """Type keys into a shell, with its own completion and a real terminal; return what its line has become."""
    options, setup = SHELLS[shell]
    script = process("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    (folder / "script").write_text(script)
    program = folder / "recipes"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m launcher "$@"\n')
    program.chmod(0o755)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        own = {"TERM": "dumb" if shell == "bash" else "xterm", "COLUMNS": "200", "LINES": "50", "HOME": str(folder)}
        os.environ |= own | {"PATH": f"{folder}:{os.environ['PATH']}"}
        os.execvp(shell, [shell, *options])
    try:
        drive(terminal, f"{setup.format(script=folder / 'script')}; echo > ready\r", folder / "ready")
        # The line becomes the words of an echo into a file: what a terminal shows is each shell's own.
        drive(terminal, f"{keys}\x01echo \x05 > partial; mv partial line\r", folder / "line")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return (folder / "line").read_text().strip()


def drive(terminal, keys, file):
    """Type keys, then take what the terminal shows until a file exists."""
    os.write(terminal, keys.encode())
    while not file.exists():
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 65536)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("keys", "line"),
    [
        pytest.param("recipes sch\t", "recipes schema", id="command"),
        pytest.param("recipes plan tiny_lm_cpu cluster=k\t", "recipes plan tiny_lm_cpu cluster=k8s", id="cluster"),
        pytest.param(
            "recipes plan tiny_lm_cpu instance_type=ml.p4d.\t",
            "recipes plan tiny_lm_cpu instance_type=ml.p4d.24xlarge",
            id="instance type",
        ),
        pytest.param(
            "recipes plan tiny_lm_cpu ++recipes.planner.sizes=w\t",
            "recipes plan tiny_lm_cpu ++recipes.planner.sizes=worthwhile",
            id="value",
        ),
        pytest.param(
            "recipes explain tiny_lm_cpu@2 micro_tr\t",
            "recipes explain tiny_lm_cpu@2 micro_train_batch_size",
            id="after a size",
        ),
    ],
)
def test_a_shell_completes_at_the_tab_key(tmp_path, shell, keys, line):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    assert typed(shell, keys, tmp_path) == line


@pytest.mark.slow
def test_bash_leaves_no_blank_between_a_key_and_its_value(tmp_path):
    keys = "recipes plan tiny_lm_cpu cluster.scen\tpreem\t"
    assert typed("bash", keys, tmp_path) == "recipes plan tiny_lm_cpu cluster.scenario=preemption"


@pytest.mark.slow
def test_bash_completes_with_the_script_it_is_given(recipes, tmp_path):
    script = process("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    program = tmp_path / "recipes"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m launcher "$@"\n')
    program.chmod(0o755)
    lines = ["COMP_WORDS=(recipes sch)", "COMP_CWORD=1", f"_recipes_completion {program}", 'echo "${COMPREPLY[@]}"']
    result = subprocess.run(["bash", "--norc", "-c", "\n".join([script, *lines])], capture_output=True, text=True)
    assert result.stdout == "schema\n"


@pytest.mark.slow
def test_lines_of_problems_are_cut_between_words():
    err = on_a_terminal("check", "tiny_lm_cpu", "recipes.nonsense=1", NO_COLOR="1")
    lines = err.replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80
    start = next(i for i, line in enumerate(lines) if "allowed:" in line)
    assert lines[start + 1].startswith(" " * 7)
