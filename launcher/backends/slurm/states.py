"""Slurm's states of a job, and their reasons. Pure."""

import re
import signal
from collections.abc import Iterable

from launcher.common.texts import signal_name
from launcher.model.job_spec import JobState

_WORDS = {
    JobState.PENDING: (
        *("PENDING", "CONFIGURING", "EXPEDITING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"),
        *("RESV_DEL_HOLD", "SUSPENDED", "STOPPED", "POWER_UP_NODE"),
    ),
    JobState.RUNNING: ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING", "UPDATE_DB"),
    JobState.SUCCEEDED: ("COMPLETED",),
    JobState.CANCELLED: ("CANCELLED",),
    JobState.FAILED: (
        *("BOOT_FAIL", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    ),
}
STATES = {word: state for state, words in _WORDS.items() for word in words}
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
_NOT_LAUNCHED = 53
"""In place of a signal, if a node could not start the batch script; one that is killed has the same reason. Seen with
Slurm 22.05."""
_UNMET = "a job that it waits for did not end as required"
UNWRITABLE = 74
"""Exit code of a batch script that cannot write into the job's folder. Source: sysexits.h, EX_IOERR."""
TERM_CODE = 128 + signal.SIGTERM
"""Exit code of a batch script that Slurm ended, until it has noted another one."""
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
_WAITS = {
    "AssociationJobLimit": "until other jobs of your account have ended",
    "AssociationResourceLimit": "until other jobs of your account have ended",
    "BeginTime": "until its begin time; Slurm lets a job that it has requeued wait for two minutes",
    "BurstBufferResources": "until burst buffers are free",
    "BurstBufferStageIn": "until its burst buffer is filled",
    "Cleaning": "until its last run has been cleaned up",
    "Dependency": "until the jobs that it depends on have ended",
    "FrontEndDown": "until a front end node is up",
    "JobArrayTaskLimit": "until another job of the sweep has ended; cluster.array_parallelism limits them",
    "JobHeldAdmin": "an administrator has held it",
    "JobHeldUser": "it is held; `scontrol release` lets it start",
    "Licenses": "until a license is free",
    "MaxRequeue": "it is held, since it was requeued too often; `scontrol release` lets it start",
    "NodeDown": "until a node that it needs is up",
    "PENDING": "until Slurm has considered it",
    "PartitionDown": "until the partition is up",
    "PartitionInactive": "until the partition starts jobs",
    "Priority": "until jobs of higher priority have started",
    "Prolog": "until its nodes are prepared",
    "QOSJobLimit": "until other jobs of its QOS have ended",
    "QOSResourceLimit": "until other jobs of its QOS have ended",
    "ReqNodeNotAvail": "until the nodes that it needs are available: they may be down, drained or reserved",
    "Reservation": "until its reservation begins",
    "Resources": "until enough nodes, CPUs, memory or GPUs are free",
    "WaitingForScheduling": "until Slurm has considered it",
    "job_requeue_in_held_state": "it was requeued and held; `scontrol release` lets it start",
    "job_requeued_in_held_state": "it was requeued and held; `scontrol release` lets it start",
    "launch_failed_requeued_held": "a node could not start it; `scontrol release` lets it try again",
}
"""What a job waits for, by Slurm's reason, or its state without one.

Source: squeue(1), Job Reason Codes; Slurm 22.05, job_reason_string.
"""
_WAITS_FOR_OTHERS = (
    (re.compile(r"(Assoc|QOS)Grp\w*"), "until other jobs of its account or QOS have ended"),
    (re.compile(r"(Assoc|QOS)Max(Jobs|\w*PerUser|\w*PerAccount)\w*"), "until your other jobs have ended"),
    (re.compile(r"ReqNodeNotAvail.*"), _WAITS["ReqNodeNotAvail"]),
    (re.compile(r"Nodes required for job are DOWN, DRAINED.*"), _WAITS["ReqNodeNotAvail"]),
)
"""The same for reasons that come in many forms."""


def state_of(word: str) -> JobState:
    """Return the state for Slurm's name of it, such as `CANCELLED by 1000`; running if it is unknown."""
    return STATES.get(_name(word), JobState.RUNNING)


def _name(word: str) -> str:
    return word.partition(" ")[0].rstrip("+")


def message_of(word: str, reason: str, exit_code: tuple[int, int]) -> str:
    """Return why a job is pending, or why it ended; "" if nothing is to be said.

    Args:
        word: Slurm's name of the state.
        reason: Slurm's reason, such as Resources.
        exit_code: Exit code and signal of the batch script.
    """
    state, name = state_of(word), _name(word)
    because = "" if reason in ("None", "N/A", "") else reason
    if state is JobState.PENDING:
        return f"waits: {because or name}{_explained(because or name)}"
    if state is JobState.FAILED:
        return _failure(name, because, exit_code)
    if state is JobState.CANCELLED:
        return "cancelled" + (f": {_UNMET}" if because == "DependencyNeverSatisfied" else "")
    return ""


def _explained(reason: str) -> str:
    """Return what a pending job waits for, after its reason; "" if that is not known."""
    if key := _FOREVER.get(reason) or _first(_BARRED, reason):
        return f": it never starts like this, see {key}"
    text = _WAITS.get(reason) or _first(_WAITS_FOR_OTHERS, reason)
    return f": {text}" if text else ""


def _first(forms: Iterable[tuple[re.Pattern[str], str]], reason: str) -> str | None:
    return next((text for form, text in forms if form.fullmatch(reason)), None)


def _failure(name: str, reason: str, exit_code: tuple[int, int]) -> str:
    code, number = exit_code
    if reason == "JobLaunchFailure" and number in (0, _NOT_LAUNCHED):
        return "could not be started: its folder, or the folder of its log, is not reached from the node"
    if name in _FAILURES:
        return _FAILURES[name]
    if number:
        return f"ended by {signal_name(number)}"
    if code == UNWRITABLE:
        return f"exit code {code}: the batch script could not write into the job's folder; its disk may be full"
    return f"exit code {code}" if code else f"{name}: {reason}".rstrip(": ")
