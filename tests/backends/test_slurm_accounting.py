"""Jobs on a real Slurm with accounting: one that the controller has forgotten, and what accounts do not allow."""

import os
import re

import pytest
import slurm_cluster
from background import await_true
from conftest import written
from test_slurm_jobs import PLAIN, SlurmBackend, finished, headline, refused

from launcher import pipeline
from launcher.backends.slurm import accounts, queue
from launcher.backends.slurm.place import HERE, RECENT
from launcher.model.job_spec import JobState

pytestmark = pytest.mark.whole_job

MORE = """\
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/disk
GresTypes=disk
SelectTypeParameters=CR_CPU_Memory
PartitionName=closed Nodes=ALL State=DOWN
PartitionName=emptied Nodes=ALL State=DRAIN
PartitionName=teams Nodes=ALL AllowAccounts=team
PartitionName=golden Nodes=ALL AllowQos=gold
PartitionName=others Nodes=ALL DenyAccounts=team
PartitionName=large Nodes=ALL MinNodes=2
PartitionName=single Nodes=ALL MaxNodes=1
PartitionName=lean Nodes=ALL MaxMemPerNode=4000
PartitionName=ample Nodes=ALL MaxMemPerNode=8000
PartitionName=part Nodes=ALL MaxCPUsPerNode=4
PartitionName=first Nodes=n1
PartitionName=hours Nodes=ALL DefaultTime=120
PartitionName=limited Nodes=ALL
"""
OF_QOS = {
    "gold": "maxwall=30",
    "silver": "maxtresperjob=node=1",
    "narrow": "maxtresperjob=cpu=4",
    "slim": "maxtresperjob=mem=4000",
    "bare": "maxtresperjob=gres/disk=1",
    "mine": "maxtresperuser=cpu=4",
    "shared": "grptres=node=1",
    "wide": "mintresperjob=node=2",
    "pieces": "maxtrespernode=cpu=4",
    "brief": "grptresrunmins=cpu=10",
    "idle": "maxjobsperuser=0",
    "none": "maxsubmitjobsperuser=0",
    "one": "maxjobsperuser=1",
    "free": "flags=PartitionMaxNodes,PartitionMinNodes,PartitionTimeLimit",
}
ACCOUNTS = (
    "add account team",
    "add account strangers",
    "add account above grptres=node=1",
    "add account below parent=above",
    *(f"add account {name}" for name in ("minutes", "stopped", "places", "closed", "golden")),
    "add user root account=team maxwall=60 maxnodes=1",
    "add user root account=below",
    "add user root account=minutes maxtresminsperjob=cpu=10",
    "add user root account=stopped maxjobs=0",
    "add user root account=golden",
    "add user root account=closed maxsubmitjobs=0",
    "add user root account=places partition=main maxnodes=1",
    "add user root account=places partition=small",
    *(f"add qos {name} {limit}" for name, limit in OF_QOS.items()),
    "add qos ofpartition maxtresperjob=node=1 maxwall=60",
    f"modify user where name=root set qos+={','.join(OF_QOS)}",
    "modify user where name=root account=golden set qos=gold",
)
HELD = "cluster.additional_parameters={hold:true}"
NODES = "recipes.training_cfg.run.nodes"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.used(
        tmp_path_factory.mktemp("slurm"), 2, has_accounting=True, more=MORE, of_nodes="Gres=disk:2"
    ) as cluster:
        for words in ACCOUNTS:
            cluster.command("sacctmgr", "--immediate", *words.split())
        cluster.command("scontrol", "update", "PartitionName=limited", "QoS=ofpartition")
        yield cluster


def test_sacct_knows_the_tasks_of_an_array(cluster, tmp_path):
    made = [
        written(tmp_path, *PLAIN, f"cluster.python=/bin/{name}", *folder)
        for name, folder in (("true", ()), ("false", (f"base_results_dir={tmp_path}/b",)))
    ]
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
    for name in ("job_id", "state", "nodes", "exit_code", "name", "message"):
        assert getattr(seen, name) == getattr(forgotten, name), name
    assert forgotten.message == headline(status) == "exit code 1"
    named = f"--name={seen.name}"
    assert list(queue._sacct(HERE, named, "--user=root", "--starttime=now-60days")) == [job_id]


@pytest.mark.parametrize(
    ("words", "code", "key", "message"),
    [
        ("cluster.account=nobody", "E445", "cluster.account", "Invalid account"),
        ("cluster.account=strangers", "E445", "cluster.account", "Invalid account"),
        ("cluster.qos=bronze", "E445", "cluster.qos", "Invalid qos"),
        ("cluster.partition=emptied", "E446", "cluster.partition", "is drained"),
        ("cluster.partition=closed", "E446", "cluster.partition", "is down"),
        ("cluster.partition='closed,teams'", "E446", "cluster.partition", "is down"),
        ("cluster.partition=teams", "E446", "cluster.account", "does not take this account"),
        ("cluster.partition=others cluster.account=team", "E446", "cluster.account", "does not take this account"),
        ("cluster.partition=golden", "E446", "cluster.qos", "does not take this qos"),
        ("cluster.partition=large", "E446", NODES, "is less than partition large"),
        ("cluster.partition=single training_cfg.run.nodes=2", "E446", NODES, "is more than partition single"),
        ("cluster.partition=first training_cfg.run.nodes=2", "E446", NODES, "is more than partition first"),
        ("cluster.partition=small cluster.time=31", "E446", "cluster.time", "is more than partition small"),
        ("cluster.partition=small cluster.time='0'", "E446", "cluster.time", "is more than partition small"),
        ("cluster.partition=lean", "E446", "cluster.mem", "is more than partition lean"),
        ("cluster.partition=lean cluster.mem=5000", "E446", "cluster.mem", "is more than partition lean"),
        ("cluster.partition=part", "E445", NODES, "not available"),
        (f"cluster.partition=part {HELD}", "E445", NODES, "not available"),
        (f"cluster.gres=disk:3 {HELD}", "E445", NODES, "not available"),
        ("cluster.account=team cluster.time=120", "E446", "cluster.time", "is more than account team"),
        ("cluster.account=team training_cfg.run.nodes=2", "E446", NODES, "is more than account team"),
        ("cluster.account=team cluster.qos=gold cluster.time=40", "E446", "cluster.time", "is more than QOS gold"),
        ("cluster.qos=silver training_cfg.run.nodes=2", "E446", NODES, "is more than QOS silver"),
        ("cluster.account=team cluster.partition=hours", "E446", "cluster.time", "default of partition hours"),
        ("cluster.account=below training_cfg.run.nodes=2", "E446", NODES, "is more than account above"),
        ("cluster.account=minutes", "E446", "cluster.time", "more than account minutes"),
        ("cluster.account=minutes cluster.time=2", "E446", "cluster.time", "with 8 CPUs"),
        ("cluster.account=stopped", "E446", "cluster.account", "lets no job run"),
        ("cluster.account=closed", "E445", "cluster.account", "AssocMaxSubmitJobLimit"),
        ("cluster.account=places training_cfg.run.nodes=2", "E446", NODES, "is more than account places"),
        ("cluster.partition=limited training_cfg.run.nodes=2", "E446", NODES, "is more than QOS ofpartition"),
        ("cluster.partition=limited cluster.time=61", "E446", "cluster.time", "is more than QOS ofpartition"),
        ("cluster.qos=narrow", "E446", NODES, "at least 8 CPUs, more than QOS narrow"),
        ("cluster.qos=slim", "E446", "cluster.mem", "at least 8000 MiB of memory, more than QOS slim"),
        ("cluster.qos=slim cluster.mem=5000", "E446", "cluster.mem", "at least 5000 MiB"),
        ("cluster.qos=bare", "E446", NODES, "at least 2 gres/disk, more than QOS bare"),
        ("cluster.qos=mine", "E446", NODES, "more than QOS mine"),
        ("cluster.qos=shared training_cfg.run.nodes=2", "E446", NODES, "is more than QOS shared"),
        ("cluster.qos=wide", "E446", NODES, "is less than QOS wide"),
        ("cluster.qos=pieces", "E446", NODES, "more than QOS pieces"),
        ("cluster.qos=brief cluster.time=5", "E446", "cluster.time", "more than QOS brief"),
        ("cluster.qos=idle", "E446", "cluster.qos", "lets no job run"),
        ("cluster.qos=none", "E445", "cluster.qos", "QOSMaxSubmitJobPerUserLimit"),
    ],
)
def test_what_an_account_or_a_partition_never_allows_is_refused(cluster, tmp_path, words, code, key, message):
    (problem,) = refused(tmp_path, *PLAIN, *words.split())
    assert (problem.code, problem.path) == (code, key)
    assert message in problem.message


@pytest.mark.parametrize(
    "words",
    [
        "cluster.partition=teams cluster.account=team",
        "cluster.partition=golden cluster.qos=gold cluster.time=20",
        "cluster.partition=golden cluster.account=golden cluster.time=20",
        "cluster.partition=small cluster.time=31 cluster.additional_parameters={time-min:20}",
        "cluster.partition='closed,main'",
        "cluster.partition=ample",
        "cluster.qos=narrow cluster.exclusive=false cluster.mem=100",
        "cluster.qos=slim cluster.mem=4000",
        "cluster.qos=bare cluster.exclusive=false cluster.gres=disk:1 cluster.mem=100",
        "cluster.account=minutes cluster.time=1",
        "cluster.account=places cluster.partition=small training_cfg.run.nodes=2",
        "cluster.qos=free cluster.partition=single training_cfg.run.nodes=2",
        "cluster.qos=free cluster.partition=large",
        "cluster.qos=free cluster.partition=small cluster.time=60",
    ],
)
def test_what_an_account_allows_is_run(cluster, tmp_path, words):
    finished(pipeline.submit(written(tmp_path, *PLAIN, *words.split()), SlurmBackend()))


def test_without_an_answer_of_sacctmgr_nothing_is_held_against_a_job(cluster, tmp_path, monkeypatch):
    """The controller remembers what it knows of accounts."""
    broken = tmp_path / "bin" / "sacctmgr"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    monkeypatch.setattr(RECENT, "_answers", {})
    waived = "cluster.qos=free cluster.partition=single training_cfg.run.nodes=2"
    finished(pipeline.submit(written(tmp_path, *PLAIN, *waived.split()), SlurmBackend()))
    record = pipeline.submit(written(tmp_path / "teams", *PLAIN, "cluster.partition=teams"), SlurmBackend())
    SlurmBackend().cancel(record.handle)


@pytest.mark.sample
def test_limits_that_a_qos_states_otherwise_are_not_compared():
    row = dict.fromkeys(accounts._QOS, "cpu=1") | {"maxwall": "60"}
    assert accounts._comparable({**row, "flags": "NoDecay,Relative"})["grptres"] == ""
    safe = accounts._comparable({**row, "flags": "UsageFactorSafe"})
    assert (safe["grptresrunmins"], safe["grptres"], safe["maxwall"]) == ("", "cpu=1", "60")


def test_a_limit_that_is_reached_does_not_hide_nodes_that_do_not_fit(cluster, tmp_path):
    """Slurm compares a job with its nodes only once the account lets it run."""
    held = ("sbatch", "--parsable", "--qos=one", "--output=/dev/null", "--mem=100", "--wrap=sleep 600")
    first = cluster.command(*held).strip()
    await_true(lambda: cluster.command("squeue", "--noheader", "--format=%T", "--jobs", first).strip() == "RUNNING")
    for words in (("cluster.gres=disk:3",), ("cluster.partition=part",)):
        (problem,) = refused(tmp_path / words[0], *PLAIN, "cluster.qos=one", *words)
        assert problem.code == "E445"
    cluster.command("scancel", first)


@pytest.mark.parametrize("value", ["ALL", "ANY"])
def test_limits_of_partitions_are_found_however_slurm_enforces_them(cluster, tmp_path, value):
    slurm_cluster._set(cluster.conf, f"EnforcePartLimits={value}")
    cluster.command("scontrol", "reconfigure")
    await_true(lambda: re.search(rf"EnforcePartLimits *= {value}", cluster.command("scontrol", "show", "config")))
    for number, (words, key) in enumerate(
        (
            ("cluster.partition=single training_cfg.run.nodes=2", NODES),
            ("cluster.partition=large", NODES),
            ("training_cfg.run.nodes=3", NODES),
            ("cluster.partition=small cluster.time=31", "cluster.time"),
            ("cluster.partition=lean", "cluster.mem"),
            ("cluster.partition=teams", "cluster.account"),
        )
    ):
        (problem,) = refused(tmp_path / str(number), *PLAIN, *words.split())
        assert (problem.code, problem.path) == ("E446", key)
