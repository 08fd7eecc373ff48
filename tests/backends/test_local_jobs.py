"""Whole jobs with the real agent: how they end, and that they leave nothing behind.

All jobs run side by side, because most of an agent's time goes into importing torch.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from background import await_true, processes, suspend
from log_texts import log_texts

from launcher.backends.local.backend import LocalBackend
from launcher.backends.local.simulation import Settings
from launcher.common.locks import is_alive
from launcher.common.names import ENV_RUN_DIR, SHARED_MEMORY
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import Bundle, ElasticPolicy, JobHandle, JobSpec, JobState, Resources
from launcher.operator.processes import node_folder
from launcher.operator.snapshot import Snapshot, read_snapshot

pytest.importorskip("hyperpod_elastic_agent")
pytestmark = pytest.mark.whole_job

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 240.0
GONE_TIMEOUT_S = 120.0
WEIRD_NAME = 'it\'s a "bundle" with $HOME'

COLLECTIVE = """
import os, pathlib, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
note = f"{os.getppid()} {os.environ['MASTER_PORT']}"
pathlib.Path(os.environ["RECIPES_RUN_DIR"], f"note-{rank}").write_text(note)
if os.environ.get("FAIL_RANK") == str(rank):
    print("no such corpus", file=sys.stderr)
    sys.exit(3)
total = torch.tensor([rank + 1])
dist.all_reduce(total)
print(f"rank {rank} sum {total.item()} of {dist.get_world_size()}", flush=True)
os._exit(0)  # a plain return after gloo may hang
"""

SLEEPER = """
import os, pathlib, signal, subprocess, sys, time
def save(*_):
    pathlib.Path(os.environ["RECIPES_RUN_DIR"], "saved").touch()
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("asleep", flush=True)
time.sleep(600)
"""


@dataclass
class Running:
    """A submitted job, what belonged to it while it ran, and when it was told to end."""

    backend: LocalBackend
    handle: JobHandle
    ports: set[int] = field(default_factory=set)
    agents: list[int] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.handle.bundle_dir / "run"

    @property
    def snapshot(self) -> Snapshot:
        return read_snapshot(self.run_dir)

    def processes(self) -> list[psutil.Process]:
        """Return what names the run folder in its environment or the bundle on its command line."""
        mine = []
        for process in processes():
            try:
                named = process.environ().get(ENV_RUN_DIR) == str(self.run_dir)
                if named or any(self._names_bundle(word) for word in process.cmdline()):
                    mine.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return mine

    def _names_bundle(self, word: str) -> bool:
        return word == str(self.handle.bundle_dir) or word.startswith(f"{self.handle.bundle_dir}/")

    def take_stock(self) -> None:
        """Note the ports and the agents' pids."""
        for process in self.processes():
            words = process.cmdline()
            if "launcher.runtime.hyperpodrun" in words:
                self.agents.append(process.pid)
                self.folders.append(node_folder(process.ppid()))
                assert self.folders[-1].is_dir()
                self.ports |= {int(word.split("=")[1]) for word in words if word.startswith("--server-port=")}
            if master := process.environ().get("MASTER_PORT"):
                self.ports.add(int(master))

    def take_notes(self) -> None:
        """Note what short-lived workers wrote down: their agents' pids and the store's port."""
        for note in self.run_dir.glob("note-*"):
            agent, port = note.read_text().split()
            self.agents.append(int(agent))
            self.ports.add(int(port))


def write_bundle(directory, worker, num_nodes=1, env=None):
    elastic = ElasticPolicy(1, 4, None, (1, 2, 3, 4), True, None, 20, None, None)
    directory.mkdir(parents=True)
    (directory / "worker.py").write_text(worker)
    job = JobSpec(
        name="job",
        backend="local",
        recipe="r",
        model_type="tiny_lm",
        nproc_per_node=1,
        initial_nodes=num_nodes,
        scales=(),
        elastic=elastic,
        resources=Resources(None, 0, None, 0),
        image=None,
        base_results_dir=directory.parent,
        settings=Settings(command=["bundle:worker.py"], container_mounts=None),
        config={"env_vars": env or {}, "recipes": {"run": {"model_type": "tiny_lm"}}},
    )
    for name, text in LocalBackend().render(job, {}).items():
        (directory / name).write_text(text)
    plan = {"job_name": "job", "backend": "local", "nproc_per_node": 1, "initial_nodes": num_nodes}
    policy = {"use_graceful_shutdown": True, "graceful_shutdown_timeout_s": 600}
    (directory / "plan.json").write_text(json.dumps({**plan, "elastic": policy, "scales": [{"nodes": num_nodes}]}))
    return Bundle("job", directory, {"recipe.yaml": "{}"}, "")


def submit(directory, worker, **options):
    backend = LocalBackend()
    return Running(backend, backend.submit(write_bundle(directory, worker, **options)))


def submit_from_another_process(directory):
    """Submit from a launcher that can be killed."""
    write_bundle(directory, SLEEPER)
    code = (
        "import sys, time; from pathlib import Path;"
        "from launcher.backends.local.backend import LocalBackend; from launcher.model.job_spec import Bundle;"
        "LocalBackend().submit(Bundle('job', Path(sys.argv[1]), {'recipe.yaml': '{}'}, '')); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(directory)]
    launcher = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return launcher, Running(LocalBackend(), JobHandle("local", "job", directory.resolve()))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Return the jobs by name, those that sleep while they do; kill what a failed test leaves."""
    base = tmp_path_factory.mktemp("jobs")
    running = {
        "success": submit(base / WEIRD_NAME, COLLECTIVE, num_nodes=2),
        "failure": submit(base / "failure", COLLECTIVE, num_nodes=2, env={"FAIL_RANK": 1}),
        **{
            name: submit(base / name, SLEEPER)
            for name in ("cancel", "twice", "operator-killed", "agent-killed", "node-killed")
        },
    }
    launcher, running["launcher-killed"] = submit_from_another_process(base / "launcher-killed")
    try:
        for name, job in running.items():
            if name not in ("success", "failure"):
                await_true(
                    lambda job=job: "asleep" in log_texts(job.backend, job.handle, follow=False),
                    name,
                    timeout_s=START_TIMEOUT_S,
                )
                job.take_stock()
        yield SimpleNamespace(**{name.replace("-", "_"): job for name, job in running.items()}, launcher=launcher)
    finally:
        launcher.kill()
        launcher.wait()
        for job in running.values():
            job.backend.cancel(job.handle)


def assert_nothing_left(job):
    await_true(lambda: not job.processes(), f"the end of {job.processes()}", timeout_s=GONE_TIMEOUT_S)
    # A process that ends gives back its memory, and with it its name, before its files and the lock among them.
    await_true(lambda: not is_alive(job.run_dir), "the end of the lock", timeout_s=GONE_TIMEOUT_S)
    for port in job.ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    assert not [folder for folder in job.folders if folder.exists()]


def wait_final(job):
    await_true(lambda: job.backend.status(job.handle).state.is_final, "the end of the job", timeout_s=START_TIMEOUT_S)
    return job.backend.status(job.handle)


def exit_status(job):
    return job.backend._operators[job.handle.bundle_dir].wait(GONE_TIMEOUT_S)


def test_two_nodes_complete_and_their_log_is_followed(jobs):
    assert list(log_texts(jobs.success.backend, jobs.success.handle, follow=True)) == ["rank 0 sum 3 of 2"]
    status = wait_final(jobs.success)
    assert (status.state, status.message, status.nodes) == (JobState.SUCCEEDED, "completed", 0)
    assert (exit_status(jobs.success), jobs.success.snapshot.exit_code) == (0, 0)
    jobs.success.take_notes()
    assert len(jobs.success.agents) == 2
    assert_nothing_left(jobs.success)


def test_a_failed_job_names_the_rank_and_its_last_words(jobs):
    status = wait_final(jobs.failure)
    assert status.state is JobState.FAILED
    assert status.message == "rank 1 (node 1, local rank 0) exited with code 3:\nno such corpus"
    assert (exit_status(jobs.failure), jobs.failure.snapshot.exit_code) == (3, 3)
    jobs.failure.take_notes()
    assert len(jobs.failure.agents) == 2
    assert_nothing_left(jobs.failure)


def test_a_running_bundle_is_not_submitted_twice(jobs):
    with pytest.raises(ProblemsFound) as caught:
        jobs.cancel.backend.submit(Bundle("job", jobs.cancel.handle.bundle_dir, {"recipe.yaml": "{}"}, ""))
    assert [problem.code for problem in caught.value.problems] == ["E405"]


def test_cancel_lets_workers_save_and_leaves_nothing(jobs):
    assert len(jobs.cancel.ports) == 2
    assert len(jobs.cancel.processes()) >= 5  # operator, node, agent, worker and the worker's own child
    jobs.cancel.backend.cancel(jobs.cancel.handle)
    assert_nothing_left(jobs.cancel)
    assert (jobs.cancel.run_dir / "saved").exists()
    assert jobs.cancel.backend.status(jobs.cancel.handle).state is JobState.CANCELLED
    assert (exit_status(jobs.cancel), jobs.cancel.snapshot.exit_code) == (143, 143)


def test_a_second_signal_ends_the_job_at_once(jobs):
    # A stopped worker neither saves nor ends by itself: only the second signal can be quick.
    worker = str(jobs.twice.handle.bundle_dir / "worker.py")
    workers = [each.pid for each in jobs.twice.processes() if worker in each.cmdline()]
    suspend(*(set(workers) - set(jobs.twice.agents)))
    os.kill(jobs.twice.snapshot.pid, signal.SIGINT)
    await_true(lambda: "stopping" in jobs.twice.snapshot.message, "the graceful stop", timeout_s=GONE_TIMEOUT_S)
    os.kill(jobs.twice.snapshot.pid, signal.SIGINT)
    assert_nothing_left(jobs.twice)
    assert (exit_status(jobs.twice), jobs.twice.snapshot.exit_code) == (130, 130)
    assert jobs.twice.snapshot.message == "stopped by SIGINT"
    assert not (jobs.twice.run_dir / "saved").exists()


def test_a_killed_operator_leaves_nothing_and_the_job_counts_as_failed(jobs):
    job = jobs.operator_killed
    os.kill(job.snapshot.pid, signal.SIGKILL)
    assert_nothing_left(job)
    status = job.backend.status(job.handle)
    assert status.state is JobState.FAILED
    assert "operator died" in status.message
    assert list(log_texts(job.backend, job.handle, follow=True)) == ["asleep"]


def assert_restarted(job, before):
    """Assert that new workers run on a new node and that nothing of the old one is left."""
    await_true(lambda: len(job.snapshot.attempts) == 2, "the second attempt", timeout_s=START_TIMEOUT_S)
    assert job.snapshot.attempts[1].nodes == (1,)
    await_true(
        lambda: list(log_texts(job.backend, job.handle, follow=False)).count("asleep") == 2,
        "workers",
        timeout_s=START_TIMEOUT_S,
    )
    assert not {process.pid for process in job.processes()} & before
    job.take_stock()
    job.backend.cancel(job.handle)
    assert_nothing_left(job)


def pids_of_nodes(job):
    return {process.pid for process in job.processes()} - {job.snapshot.pid}


def test_a_killed_agent_takes_its_workers_with_it_and_gets_a_successor(jobs):
    before = pids_of_nodes(jobs.agent_killed)
    os.kill(jobs.agent_killed.agents[0], signal.SIGKILL)
    assert_restarted(jobs.agent_killed, before)


def test_what_a_killed_node_process_leaves_is_ended_by_the_operator(jobs):
    before = pids_of_nodes(jobs.node_killed)
    node = psutil.Process(jobs.node_killed.agents[0]).parent()
    assert "launcher.backends.local.node" in node.cmdline()
    node.kill()
    assert_restarted(jobs.node_killed, before)


def test_a_job_ends_with_the_launcher_that_submitted_it(jobs):
    jobs.launcher.kill()
    jobs.launcher.wait()
    assert_nothing_left(jobs.launcher_killed)
    snapshot = jobs.launcher_killed.snapshot
    assert snapshot.state is JobState.CANCELLED
    assert snapshot.message == "stopped, since the process that launched it has ended"


def test_what_a_job_leaves_that_is_killed_all_at_once_goes_with_the_next_launch(tmp_path):
    launcher, job = submit_from_another_process(tmp_path / "killed")
    living = submit(tmp_path / "living", SLEEPER)
    try:
        for each in (job, living):
            await_true(
                lambda each=each: "asleep" in log_texts(each.backend, each.handle, follow=False),
                "workers",
                timeout_s=START_TIMEOUT_S,
            )
            each.take_stock()
        (folder,) = job.folders
        memory = SHARED_MEMORY / folder.name
        everything = [psutil.Process(launcher.pid), *job.processes()]
        suspend(*(process.pid for process in everything))  # none may see the end of another and clean up after it
        assert folder.is_dir() and memory.is_dir()  # from their end on, a launch of another test may be the next one
        for process in everything:
            process.kill()
        launcher.wait()
        await_true(lambda: not job.processes(), f"the end of {job.processes()}", timeout_s=START_TIMEOUT_S)
        (own,) = living.folders
        assert own.is_dir()
        next_launch = submit(tmp_path / "next", SLEEPER)
        await_true(
            lambda: not folder.exists() and not memory.exists(),
            "the next launch to clean up",
            timeout_s=START_TIMEOUT_S,
        )
        assert own.is_dir() and (SHARED_MEMORY / own.name).is_dir()
        next_launch.backend.cancel(next_launch.handle)
    finally:
        launcher.kill()
        launcher.wait()
        living.backend.cancel(living.handle)


def test_an_agent_that_cannot_start_fails_the_job_with_its_log(tmp_path):
    bundle = write_bundle(tmp_path / "broken", SLEEPER)
    script = bundle.directory / "run.sh"
    script.write_text(script.read_text().replace("--nnodes=1 ", "--nnodes=1:3 "))
    backend = LocalBackend()
    job = Running(backend, backend.submit(bundle))
    status = wait_final(job)
    assert status.state is JobState.FAILED
    assert status.message.startswith("node 3: its agent ended")  # the fourth try
    assert "currently not supported" in status.message
    assert_nothing_left(job)


def test_an_operator_that_cannot_read_its_plan_is_a_failed_job(tmp_path):
    bundle = write_bundle(tmp_path / "broken", SLEEPER)
    (bundle.directory / "plan.json").write_text("{")
    backend = LocalBackend()
    status = backend.status(backend.submit(bundle))
    assert status.state is JobState.FAILED
    assert "is not a bundle directory: plan.json is damaged" in status.message
