"""Elastic jobs on a real Slurm: they shrink, grow, lose nodes and return to the queue, and lose no sample."""

import json
import signal
from collections import Counter

import pytest
import slurm_cluster
from background import await_true
from whole_jobs import (
    ARGS,
    bundle_of,
    graceful_stops,
    held,
    kept_attempts,
    left_behind,
    losses_in_the_model,
    mlflow_run,
    records,
    run,
    samples_in_the_model,
    trained_alone,
)

from launcher.backends.slurm.backend import SlurmBackend
from launcher.common.names import RUN_DIR
from launcher.job_store import registry
from launcher.model.job_spec import JobState
from launcher.operator.job_request import REQUEST_FILE, size_request
from launcher.runtime.durable import write_text

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

NODES, NUM_SAMPLES, EPOCHS, STEPS = 4, 400, 12, 150
TRAINED = (
    "recipes.training_config.model_config.hidden_size=32",
    f"{ARGS}.max_epochs={EPOCHS}",
    f"{ARGS}.save_steps=10",
    f"{ARGS}.log_samples=true",
    "recipes.trainer.devices=1",
    "++recipes.scale_config=auto",
)
REQUEUE_WAIT_S = 120
"""Time for which Slurm keeps a requeued job from starting."""
PACE = f"{ARGS}.min_step_seconds"
JOB = (
    *("recipes=training/tiny/tiny_lm_cpu", "cluster=slurm", "instance_type=m5.2xlarge", *TRAINED, f"{PACE}=0.2"),
    *("recipes.elastic_policy.faulty_timeout=2", "recipes.elastic_policy.graceful_shutdown_timeout=20"),
    "cluster.comment='not NodeList=n9 BatchHost=n9'",  # looks like what Slurm says of the job
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of the same training in a single process."""
    return trained_alone(tmp_path_factory, "slurm", *TRAINED)


@pytest.fixture(scope="module", params=[True, False], ids=["accounting", "plain"])
def cluster(request, tmp_path_factory):
    with slurm_cluster.used(tmp_path_factory.mktemp("slurm"), NODES, has_accounting=request.param) as cluster:
        cluster.adds_nodes = request.param
        yield cluster


@pytest.fixture(autouse=True)
def idle(cluster):
    """Wait for the nodes of the test before: a job starts on those that are idle."""
    cluster.await_ready()


class ElasticJob:
    """A submitted job, and what its files tell."""

    def __init__(self, folder, *words):
        code, out, err = run(*JOB, *words, cwd=folder)
        assert code == 0, out + err
        self.record = registry.read(bundle_of(folder))
        self.folder = folder
        self.run_dir = self.record.handle.bundle_dir / RUN_DIR
        self.job_id = self.record.handle.native_id

    @property
    def log(self):
        return "".join(path.read_text() for path in self.run_dir.glob("slurm-*.log"))

    def events(self, kind):
        return [event for event in records(self.run_dir / "events.jsonl") if event["kind"] == kind]

    @property
    def sizes(self):
        """Sizes at which the workers did a step, in order."""
        return [event["size"] for event in self.events("running")]

    @property
    def step(self):
        return max((line["step"] for line in records(self.run_dir / "metrics.jsonl")), default=0)

    def await_size(self, size, steps=3):
        """Wait until the job's last start, of this size, has done some steps."""
        await_true(lambda: self.sizes[-1:] == [size])
        seen = self.step
        await_true(lambda: self.step >= seen + steps)

    def scale(self, size):
        """Resize the job; it does no step until its stop begins, however long that takes."""
        stops = graceful_stops(self.folder)
        with held(self.folder):
            SlurmBackend().scale(self.record.handle, size)
            await_true(lambda: graceful_stops(self.folder) > stops)

    def finish(self, code=0):
        assert run("wait", str(self.record.handle.bundle_dir), cwd=self.folder, module=True)[0] == code, self.log

    def assert_samples(self, epochs=EPOCHS):
        """Every sample was trained on once an epoch."""
        assert sorted(kept_attempts(self.run_dir)) == list(range(1, STEPS * epochs // EPOCHS + 1))
        samples = samples_in_the_model(self.run_dir)
        assert len(samples) == epochs * NUM_SAMPLES
        for epoch in range(epochs):
            assert Counter(samples[epoch * NUM_SAMPLES : (epoch + 1) * NUM_SAMPLES]) == Counter(range(NUM_SAMPLES))

    def assert_whole(self, alone):
        """Every sample was trained on once an epoch, as in one process, in one MLflow run."""
        self.assert_samples()
        assert losses_in_the_model(self.run_dir) == pytest.approx(alone, abs=1e-6)
        _, tracked = mlflow_run(self.folder)
        assert tracked.info.status == "FINISHED"


on_accounted = pytest.mark.parametrize("cluster", [True], indirect=True, ids=["accounting"])
on_plain = pytest.mark.parametrize("cluster", [False], indirect=True, ids=["plain"])


def test_a_job_shrinks_and_grows(cluster, tmp_path, alone):
    job = ElasticJob(tmp_path)
    job.await_size(4)
    job.scale(2)
    job.await_size(2)
    with held(tmp_path):
        await_true(lambda: cluster.nodes_of(job.job_id) == 2)
    job.scale(4)
    job.await_size(4)
    job.finish()
    assert job.sizes == [4, 2, 4], job.log
    job.assert_whole(alone)
    assert bool(job.events("granted")) is cluster.adds_nodes
    assert any("to grow" in event["message"] for event in job.events("operator")) is not cluster.adds_nodes
    assert json.loads((job.run_dir / "timeline.json").read_text())["transitions"]


@on_plain
def test_a_lost_node_is_a_smaller_job_until_slurm_has_it_again(cluster, tmp_path, alone):
    job = ElasticJob(tmp_path)
    job.await_size(4)
    cluster.lose("n3")
    job.await_size(3)
    cluster.start("n3")
    job.finish()
    assert job.sizes[:2] == [4, 3], job.log
    assert job.events("fault")
    job.assert_whole(alone)
    cluster.await_ready()


@on_plain
def test_a_preempted_job_saves_in_its_grace_period_and_comes_back(cluster, tmp_path, alone):
    """On all nodes that are free, and without Slurm's two minutes, though no node is free at once after a job."""
    with cluster.slow_to_end(2):
        job = ElasticJob(tmp_path)
        job.await_size(4)
        words = (f"--partition={slurm_cluster.URGENT}", "--nodes=2", "--exclusive", "--output=/dev/null")
        urgent = cluster.command("sbatch", "--parsable", *words, "--wrap=sleep 600").strip()
        await_true(lambda: "RUNNING" in cluster.command("squeue", "--noheader", "--jobs", urgent, "--format=%T"))
        job.await_size(2)
        cluster.command("scancel", urgent)
        job.finish()
        cluster.await_ready()
    assert [each["saved"] for each in job.events("stopped")][0] is True
    assert "higher priority" in job.events("operator")[0]["message"]
    assert job.sizes[:2] == [4, 2] and job.sizes[-1] == 4, job.log
    left = [event["time"] for event in job.events("dropped")]
    back = [event["time"] for event in job.events("operator") if "is back" in event["message"]]
    assert max(later - earlier for earlier, later in zip(left, back, strict=True)) < REQUEUE_WAIT_S
    job.assert_whole(alone)


@on_plain
def test_a_job_goes_on_after_its_time_limit(cluster, tmp_path, alone):
    job = ElasticJob(tmp_path, "cluster.time=2", "recipes.elastic_policy.graceful_shutdown_timeout=5", f"{PACE}=0.4")
    await_true(lambda: any("is back" in event["message"] for event in job.events("operator")))
    cluster.command("scontrol", "update", f"JobId={job.job_id}", "TimeLimit=60")
    job.finish()
    assert job.sizes == [4, 4] and "time limit" in job.events("operator")[0]["message"]
    job.assert_whole(alone)


@on_plain
def test_workers_that_stay_shrink_lose_a_node_and_save_when_the_job_is_cancelled(cluster, tmp_path, alone):
    """4 → 3 → one lost → 2 nodes, with the state in memory alone; then a checkpoint of the last step."""
    job = ElasticJob(tmp_path, f"{PACE}=0.4", "recipes.elastic_policy.resize=in_place")
    job.await_size(4)
    job.scale(3)
    job.await_size(3)
    cluster.lose("n2")
    job.await_size(2)
    SlurmBackend().cancel(job.record.handle)
    assert SlurmBackend().status(job.record.handle).state is JobState.CANCELLED, job.log
    kept = [start["kept_by"] for start in records(job.run_dir / "starts.jsonl")]
    assert kept == [None, 3, 2], job.log
    lines = {line["step"]: line["loss"] for line in records(job.run_dir / "metrics.jsonl")}
    assert sorted(lines) == list(range(1, job.step + 1))
    assert [lines[step] for step in sorted(lines)] == pytest.approx(alone[: job.step], abs=1e-6)
    assert records(job.run_dir / "checkpoints.jsonl")[-1]["step"] == job.step
    assert left_behind(tmp_path) == []
    cluster.await_ready()


@on_accounted
def test_a_job_goes_on_while_the_controller_restarts(cluster, tmp_path, alone):
    job = ElasticJob(tmp_path)
    job.await_size(4)
    cluster.stop("slurmctld", signal.SIGKILL)
    try:
        write_text(job.run_dir / REQUEST_FILE, size_request(2))
        await_true(lambda: job.sizes[-1:] == [2])
    finally:
        cluster.start("slurmctld")
    with held(tmp_path):
        await_true(lambda: cluster.nodes_of(job.job_id) == 2)
        await_true(lambda: job.events("released"))  # written once Slurm has answered
    job.finish()
    assert job.sizes[:2] == [4, 2]
    job.assert_whole(alone)


@on_accounted
def test_a_cancelled_job_saves_and_leaves_nothing(cluster, tmp_path):
    job = ElasticJob(tmp_path)
    job.await_size(4)
    SlurmBackend().cancel(job.record.handle)
    status = SlurmBackend().status(job.record.handle)
    assert status.state is JobState.CANCELLED, (status, job.log)
    assert [each["graceful"] for each in job.events("stopping")] == [True]
    last = records(job.run_dir / "checkpoints.jsonl")[-1]["step"]
    assert last == job.step
    assert left_behind(tmp_path) == []
    cluster.await_ready()


# The last one: Slurm 22.05 may leave out a node that was lost in this way until its controller restarts.
@on_plain
def test_a_job_comes_back_without_the_node_of_its_batch_script(cluster, tmp_path, alone):
    job = ElasticJob(tmp_path)
    job.await_size(4)
    (first, *_) = cluster.hosts_of(job.job_id)
    cluster.lose(first)
    # An administrator who is quicker than Slurm, which waits for SlurmdTimeout.
    cluster.command("scontrol", "update", f"NodeName={first}", "State=DOWN", "Reason=lost")
    await_true(lambda: len(job.sizes) > 1)
    cluster.start(first)
    job.finish()
    assert job.sizes[0] == 4 > job.sizes[1], job.log
    assert "batch script is lost" in "".join(path.read_text() for path in job.run_dir.glob("slurm/*/guard.log"))
    job.assert_whole(alone)
    await_true(lambda: left_behind(tmp_path) == [])
