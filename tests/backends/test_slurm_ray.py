"""Ray jobs on Slurm: their scripts, what is refused, and a real Ray cluster in the step of a real Slurm job."""

import importlib.util
import os
import signal
import sys

import psutil
import pytest
import slurm_cluster
from background import await_true, command_lines
from conftest import written
from log_texts import log_texts
from manifest_schemas import DATA, GRPO
from test_slurm_jobs import SlurmBackend, finished, headline
from test_slurm_rendering import SCRIPTS, files, problem

from launcher import pipeline
from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.model import ray_script
from launcher.model.job_spec import JobState, LogSelection

RAY = (GRPO, "cluster=slurm", "container=null", *DATA)
RAY_FILE = "slurm/ray.sh"
NODES = 4
START_S = 300.0
PROGRAM = """\
import os, sys, time, pathlib
import ray
run = pathlib.Path(os.environ["RECIPES_RUN_DIR"])
(run / "words").write_text(" ".join(sys.argv[1:]))
ray.init(log_to_driver=False)

@ray.remote(num_gpus=8, num_cpus=0)
class Place:
    def node(self):
        return ray.get_runtime_context().get_node_id(), len(ray.get_gpu_ids())

places = [Place.remote() for _ in range(int(os.environ["SLURM_JOB_NUM_NODES"]))]
found = ray.get([place.node.remote() for place in places], timeout=200)
print(len({node for node, _ in found}), [gpus for _, gpus in found], flush=True)
(run / "placed").write_text("\\n")
WAY
"""
"""Connects as verl does, and takes all devices of each node by one actor."""


def python(folder, way):
    """Return a Python that runs PROGRAM in place of verl, ended in a way of its own."""
    (folder / "program.py").write_text(PROGRAM.replace("WAY", way))
    (path := folder / "python").write_text(
        f'#!/bin/bash\n[[ $* != *verl.trainer.main_ppo* ]] || set -- {folder}/program.py "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return f"cluster.python={path}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), 'exec "$@"'),
        (("container=me/image:1",), "docker run --name"),
        (("container=/fsx/image.sqsh",), "--container-image=/fsx/image.sqsh"),
        (("container=/fsx/i.sif", "cluster.container_runtime=apptainer"), "exec apptainer exec --nv"),
        (("container=/fsx/i", "cluster.container_runtime=charliecloud"), "exec ch-run --write"),
    ],
    ids=["none", "docker", "pyxis", "apptainer", "charliecloud"],
)
def test_every_way_to_start_a_ray_node_is_a_sound_script(tmp_path, words, expected, shellcheck):
    made = files(tmp_path, *RAY, *words)
    assert expected in "".join(made[name] for name in SCRIPTS)
    shellcheck(*(made[name] for name in (*SCRIPTS, RAY_FILE)))


def test_the_step_starts_the_head_and_the_program_with_the_bundle_s_configuration(tmp_path):
    made = files(tmp_path, *RAY, "cluster.python=/fsx/python")
    node, ray = made["slurm/node.sh"], made[RAY_FILE]
    assert '"$head" "$port" "$own" "/tmp/ray-$SLURM_JOB_ID" "$logs" /fsx/python\n' in node
    assert '-u -m verl.trainer.main_ppo --config-path "$bundle"/configs --config-name verl_config' in node
    assert "configs/verl_config.yaml" in made and "torch.distributed.run" not in node
    assert "setsid /fsx/python -m ray.scripts.scripts start --block" in ray
    assert "--num-gpus=8 --temp-dir=" in ray
    assert "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN" in made["slurm/job.sh"]


def test_shared_nodes_give_ray_the_cpus_of_its_actors(tmp_path):
    found = problem(tmp_path, *RAY, "cluster.exclusive=false", "cluster.cpus_per_task=3")
    assert (found.code, found.path, found.value) == ("E830", "cluster.cpus_per_task", 3)
    header = files(tmp_path, *RAY, "cluster.exclusive=false", "cluster.cpus_per_task=4")["slurm/job.sh"]
    assert {"#SBATCH --cpus-per-task=4", "#SBATCH --gpus-per-node=8"} <= set(header.splitlines())


def test_a_ray_job_of_changing_size_is_refused(tmp_path):
    policy = "+recipes.elastic_policy={is_elastic: true, min_nodes: 1, max_nodes: 2, use_graceful_shutdown: false}"
    with pytest.raises(ProblemsFound, match="E121"):
        files(tmp_path, *RAY, policy, "++recipes.scale_config=auto")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: the extra ray")
    with (
        slurm_cluster.used(tmp_path_factory.mktemp("slurm"), NODES) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        yield cluster


def submitted(folder, way, nodes=2):
    size = f"recipes.trainer.num_nodes={nodes}"
    bundle = written(folder, *RAY, size, python(folder, way))
    return pipeline.submit(bundle, SlurmBackend())


def left(record):
    """Return the processes of a job's Ray cluster that still run."""
    folder = f"/tmp/ray-{record.handle.native_id}"
    return [*command_lines(folder, str(record.handle.bundle_dir)), *([folder] if os.path.exists(folder) else [])]


@pytest.mark.whole_job
def test_a_program_has_the_devices_of_every_node(cluster, tmp_path):
    record = submitted(tmp_path, "pass", NODES)
    finished(record)
    run = record.handle.bundle_dir / RUN_DIR
    lines = list(log_texts(SlurmBackend(), record.handle, LogSelection(ranks=None), follow=False))
    assert lines == ["rank 0 | 4 [8, 8, 8, 8]"]
    assert (run / "words").read_text().endswith(f"{record.handle.bundle_dir}/configs --config-name verl_config")
    await_true(lambda: left(record) == [])


@pytest.mark.whole_job
def test_a_program_s_exit_code_is_the_job_s(cluster, tmp_path):
    record = submitted(tmp_path, "sys.exit(7)")
    assert headline(finished(record, JobState.FAILED)) == "exit code 7"
    await_true(lambda: left(record) == [])


@pytest.mark.whole_job
def test_a_cancelled_ray_job_leaves_no_process(cluster, tmp_path):
    record = submitted(tmp_path, "time.sleep(600)")
    await_true(lambda: (record.handle.bundle_dir / RUN_DIR / "placed").exists(), timeout_s=START_S)
    assert left(record)
    SlurmBackend().cancel(record.handle)
    await_true(lambda: left(record) == [])


@pytest.mark.whole_job
def test_a_lost_worker_ends_the_job(cluster, tmp_path):
    record = submitted(tmp_path, "time.sleep(600)")
    await_true(lambda: (record.handle.bundle_dir / RUN_DIR / "placed").exists(), timeout_s=START_S)
    workers = [
        each
        for each in psutil.process_iter(["cmdline", "name"])
        if each.info["name"] == "raylet" and f"/tmp/ray-{record.handle.native_id}/" in " ".join(each.info["cmdline"])
    ]
    os.kill(max(workers, key=lambda each: psutil.Process(each.pid).create_time()).pid, signal.SIGKILL)
    finished(record, JobState.FAILED)
    await_true(lambda: left(record) == [])


@pytest.mark.whole_job
def test_a_head_that_never_answers_ends_the_job(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_script, "PATIENCE_S", 5)
    record = submitted(tmp_path, "pass")
    (tmp_path / "python").write_text("#!/bin/bash\nexec sleep 600\n")
    status = finished(record, JobState.FAILED)
    assert "has not answered within 5 s" in status.message
    await_true(lambda: left(record) == [])
