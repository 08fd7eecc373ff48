"""Programs that know nothing of this launcher, under the container contract: the vendor's toolkit, and MPI."""

import json
import os
import shutil
import subprocess

import pytest
from conftest import written
from contract_jobs import TIMEOUT_S, J, Started
from engine_cache import cached

from launcher.backends.sagemaker_local import isolation, optml, program
from launcher.backends.sagemaker_local.backend import ContractBackend
from launcher.model.job_spec import JobState

TOOLKIT = cached("install_toolkit.sh", "sagemaker-training") / "bin"
SCRIPT = (
    "recipes=training/custom/script",
    "cluster=local",
    "cluster.contract=sagemaker",
    "training_cfg.entry_script=train.py",
)

pytestmark = pytest.mark.skipif(
    isolation.probe() is isolation.FOLDERS, reason="this kernel does not allow namespaces"
)
needs_toolkit = pytest.mark.skipif(
    not (TOOLKIT / "train").exists(), reason="needs the toolkit: tests/engines/install_toolkit.sh"
)
needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="needs OpenMPI: apt-get install --no-install-recommends openmpi-bin"
)


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a script's job to its end."""

    def run(script: str, *overrides: str) -> Started:
        code = tmp_path / "code"
        code.mkdir()
        (code / "train.py").write_text(script, encoding="utf-8")
        (code / "beside.py").write_text("VALUE = 7\n", encoding="utf-8")
        words = [*SCRIPT, f"{J}.output_path=file://{tmp_path}/out", f"{J}.source_dir={code}", *overrides]
        bundle = written(tmp_path, *words)
        backend = ContractBackend()
        job = Started(backend, backend.submit(bundle), tmp_path / "out")
        job.end(2 * TIMEOUT_S)
        return job

    return run


SAVES = """
import argparse, json, os, beside
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--shape")
parser.add_argument("-v")
found = vars(parser.parse_args()) | {"beside": beside.VALUE}
for name in ("SM_MODEL_DIR", "SM_CHANNELS", "SM_HOSTS", "SM_CURRENT_HOST", "SM_HP_LR", "TRAINING_JOB_NAME"):
    found[name] = os.environ[name]
open(os.environ["SM_MODEL_DIR"] + "/found.json", "w").write(json.dumps(found))
"""
ONE = (
    "instance_type=m5.2xlarge",
    "training_cfg.run.ntasks_per_node=1",
    "training_cfg.script_args=[{--lr: 0.1}, {--shape: a b}, {-v: 'yes'}]",
)


@pytest.mark.slow
@needs_toolkit
def test_the_toolkit_trains_a_script(run, monkeypatch):
    monkeypatch.setenv("PATH", f"{TOOLKIT}:{os.environ['PATH']}")
    job = run(SAVES, *ONE)
    assert job.statuses()[-1] == "Completed", job.log()
    assert json.loads(job.archived()["found.json"]) == {
        "lr": 0.1,
        "shape": "a b",
        "v": "yes",
        "beside": 7,
        "SM_MODEL_DIR": "/opt/ml/model",
        "SM_CHANNELS": '["recipe"]',
        "SM_HOSTS": '["algo-1"]',
        "SM_CURRENT_HOST": "algo-1",
        "SM_HP_LR": "0.1",
        "TRAINING_JOB_NAME": job.handle.job_name,
    }


@pytest.mark.slow
@needs_toolkit
def test_the_toolkits_failure_is_the_jobs_reason(run, monkeypatch):
    monkeypatch.setenv("PATH", f"{TOOLKIT}:{os.environ['PATH']}")
    job = run("raise ValueError('no such luck')", *ONE)
    status = job.backend.status(job.handle)
    assert status.state is JobState.FAILED
    assert status.message.startswith("ExecuteUserScriptError:\nExitCode 1")
    assert "ValueError: no such luck" in job.log()


@pytest.mark.slow
@needs_toolkit
@pytest.mark.parametrize("groups", [("a",), ("a", "b")], ids=["one group", "two groups"])
def test_variables_are_the_toolkits(groups, tmp_path):
    parameters = {
        "sagemaker_program": '"train.py"',
        "sagemaker_mpi_enabled": "true",
        "sagemaker_instance_type": '"ml.m5.xlarge"',
        "lr": "0.1",
        "name": '"é b"',
        "mp_parameters": '{"partitions": 2, "ddp": true}',
        "none": "null",
        "bare": "two words",
        "batch-size": "3",
    }
    if len(groups) > 1:
        parameters["sagemaker_distribution_instance_groups"] = json.dumps(groups)
    request = {"HyperParameters": parameters, "TrainingJobName": "job"}
    resources = [
        {"InstanceGroupName": name, "InstanceType": "ml.m5.xlarge", "InstanceCount": 2 // len(groups)}
        for name in groups
    ]
    hosts = optml.hosts({"InstanceGroups": resources}, tmp_path, is_private=False)
    for host in hosts:
        optml.lay_out(host, hosts, request, {"train": {"TrainingInputMode": "File"}})
    code = (
        "import json; from sagemaker_training.environment import Environment as E;"
        " print(json.dumps([E().to_env_vars(), E().to_cmd_args()]))"
    )
    env = {"SAGEMAKER_BASE_DIR": hosts[1].base, "TRAINING_JOB_NAME": "job", "PATH": os.environ["PATH"]}
    done = subprocess.run([TOOLKIT / "python", "-c", code], env=env, capture_output=True, text=True, timeout=200)
    theirs, words = json.loads(done.stdout.splitlines()[-1])
    ours = program.toolkit(request, hosts, hosts[1])
    inner, known = json.loads(ours.pop("SM_TRAINING_ENV")), json.loads(theirs.pop("SM_TRAINING_ENV"))
    assert ours == theirs
    assert inner == {name: value for name, value in known.items() if name in inner}
    left = {"is_modelparallel_enabled", "is_smddpmprun_installed", "is_smddprun_installed", "topology"}
    assert set(known) - set(inner) <= left | {"distribution_enabled", "current_instance_group_hosts"}
    assert list(program.arguments(program.decoded(request, hosts[1]))) == words


RANKS = """
import os, socket, sys
rank = os.environ["OMPI_COMM_WORLD_RANK"]
found = [os.environ["OMPI_COMM_WORLD_SIZE"], socket.gethostname(), os.environ["SM_HP_LR"], *sys.argv[1:]]
open(f"/opt/ml/model/{rank}", "w").write(" ".join(found))
os.write(1, f"rank {rank} is done\\n".encode())
"""
MPI = (
    "instance_type=p3.16xlarge",
    "training_cfg.run.nodes=3",
    "training_cfg.run.ntasks_per_node=2",
    "++recipes.distribution.mpi.enabled=true",
    "training_cfg.script_args=[{--lr: 0.1}]",
)


@pytest.mark.slow
@needs_mpi
def test_mpirun_starts_ranks_on_every_host(run):
    job = run(RANKS, *MPI)
    assert job.statuses()[-1] == "Completed", job.log()
    assert job.archived() == {str(rank): f"6 algo-{rank // 2 + 1} 0.1 --lr 0.1" for rank in range(6)}
    log = job.log()
    assert all(f"rank {rank} is done" in log for rank in range(6))


@pytest.mark.slow
@needs_mpi
def test_a_rank_that_fails_fails_the_job(run):
    script = "import os, sys, time; os.environ['OMPI_COMM_WORLD_RANK'] == '5' and sys.exit(7); time.sleep(40)"
    job = run(script, *MPI)
    status = job.backend.status(job.handle)
    assert (status.state, status.message) == (JobState.FAILED, "AlgorithmError: , exit code: 7")
