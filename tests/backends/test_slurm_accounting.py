"""Jobs on a real Slurm with accounting: one that the controller has forgotten, and what accounts do not allow."""

import pytest
import slurm_cluster
from background import await_true
from conftest import frozen_context
from test_slurm_jobs import PLAIN, SlurmBackend, finished, refused, written

from launcher import pipeline
from launcher.backends.slurm import queue
from launcher.backends.slurm.place import HERE
from launcher.model.job_spec import JobState

pytestmark = [pytest.mark.whole_job, pytest.mark.slow]

MORE = """\
AccountingStorageEnforce=associations,limits,qos
PartitionName=closed Nodes=ALL State=DOWN
PartitionName=emptied Nodes=ALL State=DRAIN
PartitionName=teams Nodes=ALL AllowAccounts=team
PartitionName=golden Nodes=ALL AllowQos=gold
PartitionName=others Nodes=ALL DenyAccounts=team
PartitionName=large Nodes=ALL MinNodes=2
"""
ACCOUNTS = (
    "add account team",
    "add account strangers",
    "add user root account=team maxwall=60 maxnodes=1",
    "add qos gold maxwall=30",
    "add qos silver maxtresperjob=node=1",
    "modify user root set qos+=gold,silver",
)
NODES = "recipes.training_cfg.run.nodes"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if missing := slurm_cluster.absent():
        pytest.skip(f"no {', '.join(missing)}: {slurm_cluster.INSTALL}")
    with (
        slurm_cluster.running(tmp_path_factory.mktemp("slurm"), 2, has_accounting=True, more=MORE) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(cluster.conf))
        for words in ACCOUNTS:
            cluster.command("sacctmgr", "--immediate", *words.split())
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
    await_true(lambda: tuple(job.state for job in queue._sacct(HERE, "--jobs", array).values()) == states)
    waiting = cluster.command(
        "sbatch", "--hold", "--parsable", "--array=0-2", "--job-name=held", "--output=/dev/null", "--wrap=true"
    ).strip()
    await_true(lambda: [*queue._sacct(HERE, "--jobs", waiting)] == [f"{waiting}_{task}" for task in range(3)])


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


@pytest.mark.parametrize(
    ("words", "code", "key", "message"),
    [
        ("cluster.account=nobody", "E445", "cluster.account", "Invalid account"),
        ("cluster.account=strangers", "E445", "cluster.account", "Invalid account"),
        ("cluster.qos=bronze", "E445", "cluster.qos", "Invalid qos"),
        ("cluster.partition=emptied", "E445", "cluster.partition", "not available"),
        ("cluster.partition=closed", "E446", "cluster.partition", "is down"),
        ("cluster.partition='closed,teams'", "E446", "cluster.partition", "is down"),
        ("cluster.partition=teams", "E446", "cluster.account", "does not take this account"),
        ("cluster.partition=others cluster.account=team", "E446", "cluster.account", "does not take this account"),
        ("cluster.partition=golden", "E446", "cluster.qos", "does not take this qos"),
        ("cluster.partition=large", "E445", NODES, "not available"),
        ("cluster.account=team cluster.time=120", "E446", "cluster.time", "is more than account team"),
        ("cluster.account=team training_cfg.run.nodes=2", "E446", NODES, "is more than account team"),
        ("cluster.account=team cluster.qos=gold cluster.time=40", "E446", "cluster.time", "is more than QOS gold"),
        ("cluster.qos=silver training_cfg.run.nodes=2", "E446", NODES, "is more than QOS silver"),
    ],
)
def test_what_an_account_or_a_partition_never_allows_is_refused(cluster, tmp_path, words, code, key, message):
    (problem,) = refused(tmp_path, *PLAIN, *words.split())
    assert (problem.code, problem.path) == (code, key)
    assert message in problem.message


@pytest.mark.parametrize(
    "words",
    ["cluster.partition=teams cluster.account=team", "cluster.partition=golden cluster.qos=gold cluster.time=20"],
)
def test_what_an_account_allows_is_run(cluster, tmp_path, words):
    finished(pipeline.submit(written(tmp_path, *PLAIN, *words.split()), SlurmBackend()))
