"""A job that the controller has forgotten, on a real Slurm with accounting."""

import pytest
import slurm_cluster
from background import await_true
from test_slurm_jobs import PLAIN, SlurmBackend, finished, written

from launcher import pipeline
from launcher.backends.slurm import queue
from launcher.backends.slurm.place import HERE
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


def test_sacct_answers_like_squeue(cluster, tmp_path):
    record = pipeline.submit(written(tmp_path, *PLAIN, "cluster.python=/bin/false"), SlurmBackend())
    status = finished(record, JobState.FAILED)
    job_id = record.handle.native_id
    seen = queue._squeue(HERE, "--jobs", job_id)[job_id]
    # The database has the name last.
    await_true(lambda: [job.name for job in queue._sacct(HERE, "--jobs", job_id).values()] == [seen.name])
    forgotten = queue._sacct(HERE, "--jobs", job_id)[job_id]
    for name in ("job_id", "state", "nodes", "exit_code", "submitted_s", "name", "message"):
        assert getattr(seen, name) == getattr(forgotten, name), name
    assert forgotten.message == status.message == "exit code 1"
    named = f"--name={seen.name}"
    assert list(queue._sacct(HERE, named, "--user=root", "--starttime=now-60days")) == [job_id]
