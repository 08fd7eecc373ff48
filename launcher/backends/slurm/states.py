"""Slurm's states of a job, and their reasons. Pure."""

import re
import signal

from launcher.model.job_spec import JobState

STATES = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SUSPENDED": JobState.PENDING,
    "STOPPED": JobState.PENDING,
    "POWER_UP_NODE": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "COMPLETED": JobState.SUCCEEDED,
    "CANCELLED": JobState.CANCELLED,
    "BOOT_FAIL": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "FAILED": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "PREEMPTED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "REVOKED": JobState.FAILED,
    "TIMEOUT": JobState.FAILED,
    "UPDATE_DB": JobState.RUNNING,
    "EXPEDITING": JobState.PENDING,
}
"""Every state that squeue and sacct show. Source: squeue(1), Job State Codes; sacct(1), Job State Codes."""

_FAILURES = {
    "BOOT_FAIL": "a node did not boot",
    "DEADLINE": "the job's deadline has passed",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "out of memory",
    "PREEMPTED": "preempted, and not requeued",
    "REVOKED": "the job runs on another cluster",
    "TIMEOUT": "the time limit was reached",
    "LAUNCH_FAILED": "the job could not be started",
}
_UNMET = "a job that it waits for did not end as required"
UNWRITABLE = 74
"""Exit code of a batch script that cannot write into the job's folder. Source: sysexits.h, EX_IOERR."""
_FOREVER = {
    "PartitionTimeLimit": "cluster.time",
    "PartitionNodeLimit": "recipes.trainer.num_nodes",
    "PartitionConfig": "cluster.partition",
    "DependencyNeverSatisfied": "after and cluster.dependency",
    "BadConstraints": "cluster.constraint",
    "InvalidAccount": "cluster.account",
    "InvalidQOS": "cluster.qos",
}
"""Reasons for which a job stays pending for ever, and the key behind each. Source: squeue(1), Job Reason Codes."""
_BARRED = (
    (
        re.compile(r"(Assoc|QOS)Max(Node|Cpu|CPU|GRES|Mem|BB|License|Billing)\w*PerJob\w*"),
        "recipes.trainer.num_nodes",
    ),
    (re.compile(r"(Assoc|QOS)MaxWallDurationPerJobLimit"), "cluster.time"),
    (re.compile(r"Job's account not (permitted|known).*"), "cluster.account"),
    (re.compile(r"Job's QOS not (permitted|known).*"), "cluster.qos"),
)
"""The same for reasons that come in many forms. Source: Slurm 22.05, job_mgr.c: part_policy_valid_acct."""


def state_of(word: str) -> JobState:
    """Return the state for Slurm's name of it, such as `CANCELLED by 1000`; running if it is unknown."""
    return STATES.get((word.split() or [""])[0].rstrip("+"), JobState.RUNNING)


def message_of(word: str, reason: str, exit_code: tuple[int, int]) -> str:
    """Return why a job is pending, or why it ended; "" if nothing is to be said.

    Args:
        word: Slurm's name of the state.
        reason: Slurm's reason, such as Resources.
        exit_code: Exit code and signal of the batch script.
    """
    state, name = state_of(word), word.split()[0].rstrip("+") if word.split() else ""
    because = "" if reason in ("None", "N/A", "") else reason
    if state is JobState.PENDING:
        key = _FOREVER.get(because) or next((key for form, key in _BARRED if form.fullmatch(because)), None)
        never = f": it never starts like this, see {key}" if key else ""
        return f"waits: {because or name}{never}"
    if state is JobState.FAILED:
        return _failure(name, because, exit_code)
    if state is JobState.CANCELLED:
        return "cancelled" + (f": {_UNMET}" if because == "DependencyNeverSatisfied" else "")
    return ""


def _failure(name: str, reason: str, exit_code: tuple[int, int]) -> str:
    if reason == "JobLaunchFailure":
        return "could not be started: its folder, or the folder of its log, is not reached from the node"
    if name in _FAILURES:
        return _FAILURES[name]
    code, number = exit_code
    if number:
        try:
            return f"ended by {signal.Signals(number).name}"
        except ValueError:
            return f"ended by signal {number}"
    if code == UNWRITABLE:
        return f"exit code {code}: the batch script could not write into the job's folder; its disk may be full"
    return f"exit code {code}" if code else f"{name}: {reason}".rstrip(": ")
