"""GRPO in a training job: its request and scripts, and a real Ray cluster of simulated hosts."""

import importlib.util
import json
import os
import signal
import sys

import psutil
import pytest
from background import await_true, command_lines
from conftest import frozen_context, written
from contract_jobs import J, Started
from log_texts import log_texts

from launcher import pipeline
from launcher.backends.sagemaker.request import recipe_files
from launcher.backends.sagemaker_local import isolation
from launcher.backends.sagemaker_local.backend import ContractBackend
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.model import ray_script
from launcher.model.job_spec import JobState, LogSelection

TRAINING = "recipes.training_config"
GRPO = (
    "recipes=fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora",
    "instance_type=p5.48xlarge",
    "recipes.trainer.num_nodes=2",
    f"{TRAINING}.data.train_files=/opt/ml/input/data/train/line.csv",
    f"{TRAINING}.data.val_files=/opt/ml/input/data/train/line.csv",
)
ON_AWS = (
    *(
        *GRPO,
        "cluster=sm_jobs",
        f"{J}.role=arn:aws:iam::123456789012:role/train",
        f"{J}.output_path=s3://results/out",
    ),
    *(f"{J}.inputs.s3={{train: s3://data/train/}}", f"{J}.checkpoints.s3_uri=s3://results/checkpoints/"),
    f"{TRAINING}.trainer.default_local_dir=/opt/ml/checkpoints",
)
PATIENCE_S = 240.0
PROGRAM = """\
import csv, os, pathlib, signal, subprocess, sys, time
import ray, yaml

def guard():
    without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    tried = subprocess.run([sys.executable, "-c", "import ray; ray.init()"], env=without, capture_output=True)
    return "guarded" if b"oken" in tried.stderr else tried.stderr

words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(f"{words['--config-path']}/{words['--config-name']}.yaml") as file:
    config = yaml.safe_load(file)
nodes, gpus = config["trainer"]["nnodes"], config["trainer"]["n_gpus_per_node"]
ray.init(log_to_driver=False)

@ray.remote(num_gpus=gpus, num_cpus=0)
class Worker:
    def __init__(self, samples):
        self.samples = samples
    def gradient(self, slope):
        return sum(2 * (slope * x - y) * x for x, y in self.samples) / len(self.samples)
    def place(self):
        return ray.get_runtime_context().get_node_id(), len(ray.get_gpu_ids()), ray.util.get_node_ip_address()

with open(config["data"]["train_files"]) as file:
    samples = [(float(x), float(y)) for x, y in csv.reader(file)]
workers = [Worker.remote(samples[rank::nodes]) for rank in range(nodes)]
places = ray.get([worker.place.remote() for worker in workers], timeout=200)
addresses, counts = sorted(address for _, _, address in places), (count for _, count, _ in places)
print("placed", addresses, sum(counts), flush=True)
slope = 0.0
for step in range(40):
    slope -= 0.5 * sum(ray.get([worker.gradient.remote(slope) for worker in workers])) / nodes
(folder := pathlib.Path(config["trainer"]["default_local_dir"])).mkdir(exist_ok=True)
(folder / "slope").write_text(f"{slope:.3f} {os.environ.get('MLFLOW_TRACKING_URI')}")
WAY
"""
"""Reads verl's configuration, and trains with one actor on each host, which takes all of its devices."""
GUARD = "print(guard(), flush=True)"
"""Prints whether a process without the token is refused."""

SAVES = """\
def save(*_):
    left = sum(ray.get([worker.gradient.remote(slope) for worker in workers]))
    (folder / "saved").write_text(f"{abs(left):.3f}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("waits", flush=True)
time.sleep(600)"""
"""Saves with its workers' help on SIGTERM."""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a job whose package verl is a program that trains a line by Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: the extra ray")
    if isolation.probe() is isolation.FOLDERS:
        pytest.skip("this kernel does not allow namespaces")
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
    (data := tmp_path / "data").mkdir()
    (data / "line.csv").write_text("".join(f"{x / 8},{3 * x / 8}\n" for x in range(8)))

    def started(way, *words) -> Started:
        stand_in(tmp_path, monkeypatch, way)
        own = (f"{J}.output_path=file://{tmp_path}/out", f"{J}.inputs.s3={{train: 'file://{data}'}}")
        bundle = written(tmp_path, *GRPO, "cluster=sm_local", *own, *words)
        backend = ContractBackend()
        return Started(backend, backend.submit(bundle), tmp_path / "out")

    return started


def stand_in(folder, monkeypatch, way="pass"):
    """Install a package of verl's name, for this process and those that it starts."""
    (package := folder / "code" / "verl" / "trainer").mkdir(parents=True)
    (package / "main_ppo.py").write_text(PROGRAM.replace("WAY", way))
    monkeypatch.syspath_prepend(str(folder / "code"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder / "code"), os.environ.get("PYTHONPATH", ""))))


def left(job):
    """Return the processes of a job that still run, and the folders of its hosts."""
    hosts = [str(path) for path in (job.run_dir / "hosts").glob("*")]
    return [*command_lines("/opt/ml/ray/", str(job.handle.bundle_dir)), *hosts]


def test_the_request_brings_verl_s_resolved_configuration_and_what_starts_ray(render):
    bundle = render(*ON_AWS)
    request = json.loads(bundle.files["request.json"])
    assert request["AlgorithmSpecification"]["ContainerEntrypoint"][-1] == "/opt/ml/input/data/recipe/start.sh"
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert [each["ChannelName"] for each in request["InputDataConfig"]] == ["train", "recipe"]
    assert request["CheckpointConfig"]["S3Uri"] == "s3://results/checkpoints/"
    assert request["Environment"]["TRAIN_FILES"] == "/opt/ml/input/data/train/line.csv"
    assert {"config.yaml", "verl_config.yaml", "start.sh", "ray.sh"} == set(recipe_files(bundle.files))
    text = bundle.files["configs/verl_config.yaml"]
    assert "${" not in text and yaml_io.load(text)["trainer"]["nnodes"] == 2
    start, ray = bundle.files["start.sh"], bundle.files["ray.sh"]
    assert 'python -u -m verl.trainer.main_ppo --config-path "$recipes_configs" --config-name verl_config' in start
    assert (
        "torchrun" not in start and 'exec bash "$recipes_configs/ray.sh" "$recipes_index" "$recipes_hosts"' in start
    )
    assert "setsid python -m ray.scripts.scripts start --block" in ray and "--num-gpus=8" in ray
    assert "nodes * 8" in ray


def test_a_change_of_what_starts_ray_is_another_recipe(render, monkeypatch):
    def place():
        channels = json.loads(render(*ON_AWS).files["request.json"])["InputDataConfig"]
        return channels[-1]["DataSource"]["S3DataSource"]["S3Uri"]

    before = place()
    monkeypatch.setattr(ray_script, "PATIENCE_S", 5)
    assert place() != before


@pytest.mark.slow
def test_the_scripts_of_hosts_are_sound(render, shellcheck):
    files = render(*ON_AWS).files
    shellcheck(files["start.sh"], files["ray.sh"])


def test_mlflow_s_run_is_in_the_environment(render):
    own = [f"{TRAINING}.mlflow.{key}" for key in ("tracking_uri=https://mlflow.example", "run_id=abc")]
    found = json.loads(render(*ON_AWS, *own).files["request.json"])["Environment"]
    assert (found["MLFLOW_TRACKING_URI"], found["MLFLOW_RUN_ID"]) == ("https://mlflow.example", "abc")


def test_a_secret_is_not_written_into_the_request(problems):
    (found,) = problems(*ON_AWS, "env_vars={HF_TOKEN: {env: HF_TOKEN}}")
    assert (found.code, found.path) == ("E384", "env_vars.HF_TOKEN")


def test_without_verl_the_job_is_refused_here(tmp_path):
    if importlib.util.find_spec("verl"):
        pytest.skip("verl is installed")
    words = (*GRPO, "cluster=sm_local", f"{J}.output_path=file://{tmp_path}/out")
    with pytest.raises(ProblemsFound) as caught:
        pipeline.prepare(words, frozen_context(tmp_path))
    (found,) = caught.value.problems
    assert (found.code, found.path) == ("E430", "cluster")
    assert found.message.endswith("verl") and found.remedy.endswith("verl")


def test_without_namespaces_hosts_have_no_addresses_for_ray(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch)
    words = (*GRPO, "cluster=sm_local", f"{J}.output_path=file://{tmp_path}/out")
    bundle = written(tmp_path, *words)
    with pytest.raises(ProblemsFound, match="E432"):
        ContractBackend(chosen=isolation.FOLDERS).submit(bundle)


@pytest.mark.whole_job
def test_hosts_train_together(start):
    job = start(GUARD, f"{TRAINING}.mlflow.tracking_uri=https://mlflow.example", f"{TRAINING}.mlflow.run_id=abc")
    assert job.end(PATIENCE_S).state is JobState.SUCCEEDED, job.log() + job.log("algo-2")
    assert {"placed ['127.1.0.1', '127.1.0.2'] 16", "guarded"} <= set(job.log().splitlines())
    assert job.archived() == {"slope": "3.000 https://mlflow.example"}
    shown = list(log_texts(job.backend, job.handle, LogSelection(ranks=(0,)), follow=False))
    assert "placed ['127.1.0.1', '127.1.0.2'] 16" in shown
    await_true(lambda: left(job) == [])


@pytest.mark.whole_job
def test_one_host_is_a_cluster_too(start):
    job = start(GUARD, "recipes.trainer.num_nodes=1", "recipes.trainer.devices=4")
    assert job.end(PATIENCE_S).state is JobState.SUCCEEDED, job.log()
    assert {"placed ['127.1.0.1'] 4", "guarded"} <= set(job.log().splitlines())


@pytest.mark.whole_job
def test_the_program_s_failure_is_the_job_s(start):
    job = start("pathlib.Path('/opt/ml/output/failure').write_text('no reward'); sys.exit(7)")
    status = job.end(PATIENCE_S)
    assert (status.state, status.message) == (JobState.FAILED, "no reward")
    await_true(lambda: left(job) == [])


@pytest.mark.whole_job
def test_a_stopped_job_s_program_saves_with_its_cluster(start):
    job = start(SAVES)
    job.await_line("waits")
    job.backend.cancel(job.handle)
    assert job.backend.status(job.handle).state is JobState.CANCELLED
    assert job.archived()["saved"] == "0.000", job.log()
    await_true(lambda: left(job) == [])


@pytest.mark.whole_job
def test_a_host_whose_ray_ends_fails_the_job(start):
    job = start("print('waits', flush=True); time.sleep(600)")
    job.await_line("waits")
    raylets = [each for each in psutil.process_iter(["cmdline", "name"]) if each.info["name"] == "raylet"]
    second = [each for each in raylets if "--node_ip_address=127.1.0.2" in (each.info["cmdline"] or ())]
    assert len(second) == 1
    os.kill(second[0].pid, signal.SIGKILL)
    status = job.end(PATIENCE_S)
    assert (status.state, status.message) == (JobState.FAILED, "node 1: Ray has ended")
    await_true(lambda: left(job) == [])


@pytest.mark.whole_job
def test_a_host_that_does_not_join_fails_the_job_with_the_reason(start, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_script, "PATIENCE_S", 30)
    (folder := tmp_path / "bin").mkdir()
    (folder / "python").write_text(
        f'#!/bin/bash\n[[ $* != *--address=* ]] || exec sleep 600\nexec {sys.executable} "$@"\n'
    )
    (folder / "python").chmod(0o755)
    path = f"{folder}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
    status = (job := start("pass", f"{J}.environment={{PATH: '{path}'}}")).end(PATIENCE_S)
    assert status.state is JobState.FAILED
    assert status.message == "node 0: the Ray cluster has not registered 16 devices within 30 s"
    await_true(lambda: left(job) == [])
