"""A job that the controller has forgotten, on a real Slurm with accounting."""

import pytest
import slurm_cluster
from background import await_true
from conftest import frozen_context
from test_slurm_jobs import PLAIN, SlurmBackend, finished, written

from launcher import pipeline
from launcher.backends.slurm import queue
from launcher.model.job_spec import JobState

pytestmark = [pytest.mark.whole_job, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if missing := slurm_cluster.absent():
        pytest.skip(f"no {', '.join(missing)}: {slurm_cluster.INSTALL}")
    with (
        slurm_cluster.running(tmp_path_factory.mktemp("slurm"), 2, has_accounting=True) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


def test_sacct_knows_the_tasks_of_an_array(cluster, tmp_path):
    context = frozen_context(tmp_path)
    made = [
        pipeline.render(pipeline.prepare((*PLAIN, f"cluster.python=/bin/{name}", *folder), context), context)
        for name, folder in (("true", ()), ("false", (f"base_results_dir={tmp_path}/b",)))
    ]
    for bundle in made:
        pipeline.write(bundle)
    records = pipeline.submit_all(made, SlurmBackend())
    states = (JobState.SUCCEEDED, JobState.FAILED)
    for record, state in zip(records, states, strict=True):
        finished(record, state)
    ids = [record.handle.native_id for record in records]
    array = queue.array_of(ids[0])
    assert ids == [f"{array}_0", f"{array}_1"]
    await_true(lambda: tuple(job.state for job in queue._sacct("--jobs", array).values()) == states)
    waiting = cluster.command(
        "sbatch", "--hold", "--parsable", "--array=0-2", "--job-name=held", "--wrap=true"
    ).strip()
    await_true(lambda: [*queue._sacct("--jobs", waiting)] == [f"{waiting}_{task}" for task in range(3)])


def test_sacct_answers_like_squeue(cluster, tmp_path):
    record = pipeline.submit(written(tmp_path, *PLAIN, "cluster.python=/bin/false"), SlurmBackend())
    status = finished(record, JobState.FAILED)
    job_id = record.handle.native_id
    seen = queue._squeue("--jobs", job_id)[job_id]
    # The database has the name last.
    await_true(lambda: [job.name for job in queue._sacct("--jobs", job_id).values()] == [seen.name])
    forgotten = queue._sacct("--jobs", job_id)[job_id]
    for name in ("job_id", "state", "nodes", "exit_code", "submitted_s", "name", "message"):
        assert getattr(seen, name) == getattr(forgotten, name), name
    assert forgotten.message == status.message == "exit code 1"
    named = f"--name={seen.name}"
    assert list(queue._sacct(named, "--user=root", "--starttime=now-60days")) == [job_id]
