"""Engines of the tests for a person to try: one command starts one, says how it is used, and stops it."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import engine
import kube_api
import psutil
import pytest
import ray_cluster
import slurm_cluster
from conftest import ROOT

ENGINE = [sys.executable, str(ROOT / "tests/engines/engine.py")]
USES = {
    "s3": "import boto3; print([each['Name'] for each in boto3.client('s3').list_buckets()['Buckets']])",
    "mlflow": "import mlflow; print([each.name for each in mlflow.MlflowClient().search_experiments()])",
    "slurm": "import subprocess; subprocess.run(['sinfo', '--noheader', '--partition=main', '--format=%D'])",
    "ray": "from launcher.backends.ray.client import *; print(len(Cluster(address_of(None)).nodes()), 'nodes')",
    "kubernetes": "from launcher.backends.kubernetes.connection import connect; print(connect(None).get('/version'))",
}
"""What a process with the variables that an engine prints does, by engine."""
ANSWERS = {"s3": "mine", "mlflow": "Default", "slurm": "4", "ray": "3 nodes", "kubernetes": "gitVersion"}


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_an_engine_can_be_used_as_it_says_and_leaves_nothing(name, tmp_path):
    if name == "slurm" and slurm_cluster.absent():
        pytest.skip(f"no Slurm: {slurm_cluster.INSTALL}")
    if name == "kubernetes" and kube_api.binary() is None:
        pytest.skip(f"no kube-apiserver: {kube_api.INSTALL}")
    if name == "ray" and (reason := ray_cluster.absent()):
        pytest.skip(reason)
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([*ENGINE, name], env=environment, stdout=subprocess.PIPE, text=True) as engine:
        said = ""
        while not said.endswith("Ctrl-C stops it.\n"):
            assert (line := engine.stdout.readline()), said
            said += line
        (exported,) = re.findall(r"^export (.+)", said, re.M)
        variables = dict(each.split("=", 1) for each in exported.split())
        used = subprocess.run(
            [sys.executable, "-c", USES[name]],
            env=os.environ | variables | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert ANSWERS[name] in used.stdout, used.stderr
        children = psutil.Process(engine.pid).children(recursive=True)
        engine.send_signal(signal.SIGINT)
        assert engine.wait(200) == 0
    assert not [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize(
    "text", [engine.SLURM, engine.KUBERNETES, engine.MLFLOW, engine.RAY], ids=["slurm", "k8s", "mlflow", "ray"]
)
def test_the_job_that_an_engine_proposes_compiles(text, recipes):
    (command,) = re.findall(r"^recipes (.+)", text.replace("\\\n", ""), re.M)
    words = shlex.split(command.format(url="http://127.0.0.1:9", nodes=2, examples=engine.EXAMPLES))
    code, _, err = recipes(*words, "dry_run=true")
    assert code == 0, err


def test_a_name_that_is_no_engine_is_refused_with_those_that_are():
    done = subprocess.run([*ENGINE, "oracle"], capture_output=True, text=True)
    assert done.returncode == 1 and "s3, mlflow, slurm, kubernetes" in done.stderr
