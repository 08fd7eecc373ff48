"""Whole jobs as a user runs them: the command line, real agents, a real process group, a real MLflow store."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import commands
import psutil
import pytest
import yaml
from background import await_true, processes, suspend
from conftest import ROOT, made_once

from launcher.runtime.warm import fork_name

ARGS = "recipes.training_config.training_args"


def start(*arguments, cwd, module=False):
    command = [sys.executable, *(["-m", "launcher"] if module else [str(ROOT / "main.py")]), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return commands.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process, timeout_s=540.0):
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def run(*arguments, cwd, timeout_s=540.0, module=False):
    """Run a command to its end; return its status and what it wrote to stdout and stderr."""
    return finish(start(*arguments, cwd=cwd, module=module), timeout_s)


def program_of(text, folder):
    """Return the override that runs a Python program in place of the recipe's."""
    script = folder / "program.py"
    script.write_text(text)
    return f"cluster.command=['{script}']"


def bundle_of(folder):
    (bundle,) = (path for path in (folder / "results").iterdir() if (path / "bundle.json").exists())
    return bundle


def mlflow_run(folder, experiment="tiny-lm-cpu"):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/results/mlflow.db")
    (found,) = client.search_experiments(filter_string=f"name = '{experiment}'")
    (run,) = client.search_runs([found.experiment_id])
    return client, run


def curve(folder, metric="loss", experiment="tiny-lm-cpu"):
    client, run = mlflow_run(folder, experiment)
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, metric)]


def processes_of(folder):
    """Return the processes that belong to a job under `folder`, by their command line or their environment."""
    found = []
    for process in processes():
        try:
            named = " ".join([*process.cmdline(), process.environ().get("RECIPES_RUN_DIR", "")])
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if str(folder) in named and process.pid != os.getpid():
            found.append(process)
    return found


def left_behind(folder):
    """Return the command lines of processes that still belong to a job under `folder`."""
    found = []
    for process in processes_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            found.append(" ".join(process.cmdline()))
    return found


def listening_addresses(folder):
    """Return the addresses that processes of a job under `folder` listen on."""
    found = set()
    for process in processes_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            connections = process.net_connections(kind="inet")
            found |= {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    return found


def hold_until(folder, step, is_over):
    """Hold the workers of the job under `folder` from `step` until `is_over()`, so that no later step comes before.

    What an event brings, such as a new node, takes as long as the machine needs for it.
    """

    def last_step():
        done = [line for path in folder.glob("results/*/run/metrics.jsonl") for line in records(path)]
        return done[-1]["step"] if done else 0

    await_true(lambda: last_step() >= step, f"step {step}")
    if not is_over():
        with held(folder):
            await_true(is_over, f"what comes at step {step}")


@contextlib.contextmanager
def held(folder):
    """Hold the workers of the job under `folder` while the block runs: they do no step."""
    workers = []
    for process in processes_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            workers += [process] if process.name().startswith(fork_name("")) or "RANK" in process.environ() else []
    try:
        suspend(*(process.pid for process in workers))
        yield
    finally:
        for process in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def graceful_stops(folder):
    """Return how often a job under `folder` was stopped to go on at another size."""
    happened = records(bundle_of(folder) / "run" / "events.jsonl")
    return sum(event["kind"] == "stopping" and event["graceful"] for event in happened)


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kept_attempts(run_dir):
    """Return, for each step, the attempt whose work the final model holds: the last that did the step."""
    return {line["step"]: line["attempt"] for line in records(run_dir / "metrics.jsonl")}


def samples_in_the_model(run_dir):
    """Return every sample the final model has learned from, as the ranks wrote down, in the stream's order."""
    kept = kept_attempts(run_dir)
    lines = [line for path in (run_dir / "samples").iterdir() for line in records(path)]
    lines = [line for line in lines if kept.get(line["step"]) == line["attempt"]]
    return [sample for line in sorted(lines, key=lambda line: line["position"]) for sample in line["samples"]]


def losses_in_the_model(run_dir):
    lines = {line["step"]: line["loss"] for line in records(run_dir / "metrics.jsonl") if "loss" in line}
    return [lines[step] for step in sorted(lines)]


def trained_alone(factory: pytest.TempPathFactory, name: str, *overrides: str) -> list[float]:
    """Return the losses of a training in one process, without agent or ranks; it is done once for all tests."""

    def make(folder: Path) -> None:
        code, _, err = run(*overrides, "dry_run=true", cwd=folder)
        assert code == 0, err
        losses = _train(bundle_of(folder), folder / "alone", is_rehearsal="rehearse=true" in overrides)
        (folder / "losses.json").write_text(json.dumps(losses))

    return json.loads((made_once(factory, name, make) / "losses.json").read_text())


def _train(bundle: Path, folder: Path, *, is_rehearsal: bool) -> list[float]:
    """Train a bundle's recipe in one process."""
    of_one_node, *_ = sorted((bundle / "configs").iterdir())
    config = yaml.safe_load(of_one_node.read_text())
    config["training_config"]["mlflow"]["enabled"] = False
    further = ["--rehearse"] if is_rehearsal else []
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "config.yaml").write_text(yaml.safe_dump(config))
    subprocess.run(
        [sys.executable, "-m", "launcher.runtime.entrypoint", "--config-path", str(folder / "configs"), *further],
        env=os.environ | {"PYTHONPATH": str(ROOT), "RECIPES_RUN_DIR": str(folder / "run")},
        cwd=folder,
        check=True,
        timeout=540,
        stdout=subprocess.DEVNULL,
    )
    return losses_in_the_model(folder / "run")
