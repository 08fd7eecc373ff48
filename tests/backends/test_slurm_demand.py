"""What a job requests of a partition, and what Slurm's words about a job mean: values to values."""

import json
import math
from pathlib import Path

import pytest

from launcher.backends.slurm import demand, limits, states
from launcher.backends.slurm.programs import Answer
from launcher.backends.slurm.requests import Request
from launcher.model.job_spec import Bundle, JobState

PLAN = json.dumps({"scales": [{"nodes": 4}, {"nodes": 2}, {"nodes": 8}]})


def requested(*options, words=(), recipes=None, **cluster):
    """Return the demand of a job with these options in its header."""
    bundle = Bundle("job", Path("results/job"), {"plan.json": PLAN}, "0" * 64)
    text = "\n".join(["#!/bin/bash", *(f"#SBATCH --{option}" for option in options), "srun --nodes=9 true"])
    config = {"cluster": cluster, "recipes": recipes or {"trainer": {"num_nodes": 2}}}
    return demand.demand_of(Request("job", (bundle,), Path(), "job.sh", text, config, words))


def test_the_least_and_the_most_nodes_are_those_of_plan_and_request():
    found = requested("nodes=2-8")
    assert (found.nodes_key, found.nodes, found.most_nodes) == ("recipes.trainer.num_nodes", 2, 8)
    assert requested("nodes=16").most_nodes == 16


def test_the_nodes_of_a_script_have_a_key_of_their_own():
    recipes = {"trainer": {"num_nodes": 1}, "training_cfg": {"run": {"nodes": 3}}}
    assert requested("nodes=3", recipes=recipes).nodes_key == "recipes.training_cfg.run.nodes"
    empty = {"trainer": {"num_nodes": 1}, "training_cfg": {"run": {"nodes": None}}}
    assert requested("nodes=3", recipes=empty).nodes_key == "recipes.trainer.num_nodes"


@pytest.mark.parametrize(
    ("options", "words", "is_exclusive", "is_plain"),
    [
        (["exclusive"], (), True, True),
        ([], (), False, True),
        ([], ("--exclusive",), True, True),
        (["exclusive", "oversubscribe"], (), False, False),
        (["constraint=a100"], (), False, False),
        ([], ("--nodelist=n1",), False, False),
        (['job-name="a job"', "time=10"], (), False, True),
    ],
    ids=["exclusive", "shared", "beside", "oversubscribed", "constraint", "nodelist", "quoted"],
)
def test_options_decide_whether_nodes_are_whole_and_which_may_be_taken(options, words, is_exclusive, is_plain):
    found = requested("nodes=2", "mem=0", *options, words=words)
    assert (found.is_exclusive, found.is_plain) == (is_exclusive, is_plain)


def test_memory_of_nodes_restricts_which_may_be_taken():
    found = requested("nodes=2", "mem=4G")
    assert (found.memory_mib, found.is_plain, found.memory_key) == (4096.0, False, "cluster.mem")
    assert (requested("nodes=2", "mem=0").memory_mib, requested("nodes=2", "mem=0").is_plain) == (0.0, True)
    assert (requested("nodes=2").memory_mib, requested("nodes=2").is_plain) == (1.0, False)


def test_memory_for_each_cpu_or_gpu_is_that_of_a_node():
    of_cpus = requested("nodes=2", "ntasks-per-node=4", "cpus-per-task=3", "mem-per-cpu=100")
    assert (of_cpus.cpus, of_cpus.memory_mib, of_cpus.memory_key) == (12, 1200.0, "cluster.mem_per_cpu")
    of_gpus = requested("nodes=2", "gpus-per-node=8", "mem-per-gpu=2G")
    assert (of_gpus.memory_mib, of_gpus.memory_key) == (16384.0, "cluster.mem_per_gpu")
    assert requested("nodes=2", "mem-per-gpu=2G").memory_mib == 2048.0


@pytest.mark.parametrize(
    ("time", "time_min", "minutes"),
    [(30, None, 30), ("1-00:00:00", None, 1440), ("2:00:00", "30", 30), (None, None, None), (0, None, math.inf)],
    ids=["number", "days", "at least", "default", "none"],
)
def test_the_shortest_limit_that_a_job_accepts(time, time_min, minutes):
    options = [f"time-min={time_min}"] if time_min else []
    found = requested("nodes=1", *options, time=time)
    assert (found.time, found.minutes) == (time, minutes)


def test_generic_resources_are_counted_under_every_name_that_limits_give_them():
    found = requested("nodes=1", "gres=gpu:a100:2,lustre,gpu:1,shard:7", "gpus-per-node=h100:4")
    assert found.gres == {
        "gres/gpu": 7,
        "gres/gpu:a100": 2,
        "gres/gpu:h100": 4,
        "gres/lustre": 1,
        "gres/shard": 7,
    }
    assert requested("nodes=1").gres == {}


NODES = (
    {"cpu": 64, "mem": 500.0, "gres/gpu": 8},
    {"cpu": 32, "mem": 900.0},
    {"cpu": 96, "mem": 700.0, "gres/gpu": 4},
)


@pytest.mark.parametrize(
    ("name", "shared", "exclusive"),
    [("node", 2, 2), ("cpu", 2, 96), ("mem", 1200.0, 1200.0), ("gres/gpu", 4, 6), ("gres/other", 0, 0)],
)
def test_whole_nodes_take_what_the_smallest_have(name, shared, exclusive):
    assert requested("nodes=2", "mem=0", "gres=gpu:2").least(name, NODES, 2) == shared
    assert requested("nodes=2", "mem=0", "gres=gpu:2", "exclusive").least(name, NODES, 2) == exclusive


def test_requested_memory_is_taken_on_each_node():
    assert requested("nodes=2", "exclusive", "mem=300").least("mem", NODES, 3) == 900


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("COMPLETED", JobState.SUCCEEDED),
        ("NODE_FAIL", JobState.FAILED),
        ("SOMETHING_NEW", JobState.RUNNING),
        ("", JobState.RUNNING),
    ],
)
def test_a_word_of_slurm_is_a_state(word, state):
    assert states.state_of(word) is state


NODES_KEY = "recipes.trainer.num_nodes"
NEVER = ": it never starts like this, see"
UNMET = "a job that it waits for did not end as required"
UNREACHED = "could not be started: its folder, or the folder of its log, is not reached from the node"
UNWRITABLE = "the batch script could not write into the job's folder; its disk may be full"


@pytest.mark.parametrize(
    ("word", "reason", "code", "message"),
    [
        ("PENDING", "Resources", (0, 0), "waits: Resources: until enough nodes, CPUs, memory or GPUs are free"),
        ("PENDING", "None", (0, 0), "waits: PENDING: until Slurm has considered it"),
        ("REQUEUED+", "", (0, 0), "waits: REQUEUED"),
        ("PENDING", "InvalidQOS", (0, 0), f"waits: InvalidQOS{NEVER} cluster.qos"),
        ("PENDING", "QOSMaxNodePerJobLimit", (0, 0), f"waits: QOSMaxNodePerJobLimit{NEVER} {NODES_KEY}"),
        ("PENDING", "xQOSMaxNodePerJobLimit", (0, 0), "waits: xQOSMaxNodePerJobLimit"),
        ("FAILED", "NonZeroExitCode", (3, 0), "exit code 3"),
        ("FAILED", "RaisedSignal", (0, 9), "ended by SIGKILL"),
        ("FAILED", "RaisedSignal", (0, 200), "ended by signal 200"),
        ("FAILED", "None", (0, 0), "FAILED"),
        ("RECONFIG_FAIL", "Reboot", (0, 0), "RECONFIG_FAIL: Reboot"),
        ("FAILED", "None", (74, 0), f"exit code 74: {UNWRITABLE}"),
        ("FAILED", "JobLaunchFailure", (1, 0), UNREACHED),
        ("TIMEOUT", "TimeLimit", (0, 15), "the time limit was reached"),
        ("CANCELLED by 1", "None", (0, 0), "cancelled"),
        ("CANCELLED", "DependencyNeverSatisfied", (0, 0), f"cancelled: {UNMET}"),
        ("RUNNING", "None", (0, 0), ""),
        ("COMPLETED", "None", (0, 0), ""),
        ("", "None", (0, 0), ""),
    ],
)  # fmt: skip
def test_why_a_job_waits_or_ended_is_said_in_words(word, reason, code, message):
    assert states.message_of(word, reason, code) == message


class Place:
    """A cluster, as its commands show it."""

    user = "ada"

    def __init__(self, of_all="", of_partition=""):
        self.answers = {
            "config": f"SelectTypeParameters = CR_CPU_MEMORY\n{of_all}",
            "partition": f"PartitionName=main Default=YES TotalNodes=1 {of_partition}",
            "node": "NodeName=n1 Partitions=main CfgTRES=cpu=4,mem=8000M",
        }

    def run(self, *words, **_options):
        return Answer(0, self.answers[words[-1]], "")


@pytest.mark.parametrize(
    ("of_all", "of_partition", "has_share"),
    [
        ("", "", True),
        ("JobDefaults = (null)\nDefMemPerNode = UNLIMITED", "JobDefaults=(null) DefMemPerNode=UNLIMITED", True),
        ("JobDefaults = DefCpuPerGPU=2", "", True),
        ("", "JobDefaults=DefCpuPerGPU=2", True),
        ("JobDefaults = DefMemPerGPU=0", "", True),
        ("JobDefaults = DefCpuPerGPU=2,DefMemPerGPU=100", "", False),
        ("", "JobDefaults=DefMemPerGPU=100", False),
        ("DefMemPerCPU = 100", "", False),
        ("", "DefMemPerNode=100", False),
    ],
)
def test_a_shared_job_gets_its_share_of_memory_unless_a_default_names_memory(of_all, of_partition, has_share):
    place = Place(of_all, of_partition)
    share = limits.share_of_memory({"exclusive": False}, place)
    assert share == (("--mem-per-cpu=2000",) if has_share else ())
