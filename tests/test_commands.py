"""A command that is forked from the server is the process that the same command line starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import commands
import psutil
import pytest
from conftest import LLAMA_K8S, ROOT

MAIN, RECIPES = (sys.executable, str(ROOT / "main.py")), (sys.executable, "-m", "launcher")


def forked(*words, **options):
    """Run a command, which must not be started by subprocess."""
    assert commands.forkable(words)
    return commands.run(words, capture_output=True, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [(*RECIPES, "list"), (*RECIPES, "show", "absent"), (*RECIPES, "list", "--absent"), (*MAIN, "cluster=absent")],
    ids=["done", "problem", "usage", "main"],
)
def test_a_forked_command_prints_and_ends_as_a_started_one(words, tmp_path):
    started = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    found = forked(*words, cwd=tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (started.returncode, started.stdout, started.stderr)


@pytest.mark.slow
def test_a_forked_command_has_its_own_folder_environment_and_random_numbers(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/own.db"}
        done = forked(*MAIN, *LLAMA_K8S, "dry_run=true", cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr
    one, two = (next((folder / "results").iterdir()).name for folder in folders)
    assert one != two


@pytest.mark.whole_job
def test_a_forked_command_is_a_child_that_signals_reach(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import time; time.sleep(600)")
    words = (*MAIN, f"cluster.command=['{script}']", "recipes.training_config.mlflow.enabled=false")
    with commands.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert next(line for line in process.stdout if line.startswith("bundle "))
        found = psutil.Process(process.pid)
        assert found.ppid() == os.getpid() and Path(found.cwd()) == tmp_path
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"env": {"LANG": "C", "PATH": os.environ["PATH"]}}, {"preexec_fn": os.getpid}],
    ids=["another_language", "limits"],
)
def test_what_a_fork_cannot_have_starts_a_process(options, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "ask", lambda *_: pytest.fail("it was forked"))
    done = commands.run((*RECIPES, "--version"), cwd=tmp_path, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr


def test_only_the_launcher_s_commands_are_forked():
    assert not commands.forkable((sys.executable, "-c", "pass")) and not commands.forkable("true")
