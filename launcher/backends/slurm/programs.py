"""Runs Slurm's own commands. Their failures become Problems with Slurm's reason, and what to do about it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launcher.common.problems import ProblemsFound, fail

_LOOK = "run the command by hand; scontrol ping shows whether the controller answers"
PATIENCE_S = 120.0
"""Time limit of a command: Slurm's own commands wait for a controller that restarts."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
NOT_STARTED = {
    NOT_EXECUTABLE: (
        "may not be executed by you on",
        "ask your administrator for the right, or let PATH name other commands of Slurm",
    ),
    NOT_FOUND: (
        "is not installed on",
        "use a login node of the cluster, where Slurm's commands are on the path: launch there, or cluster.ssh",
    ),
}
"""What exit codes of a shell for a command that it cannot start mean on a machine, and the remedy.

Source: bash(1), Command Execution.
"""
_ERROR = 255
"""Exit code of Slurm's commands for a mistake in their options; between 128 and it, a shell names a signal."""
PREFIXES = (
    *("SACCT_", "SACCTMGR_", "SALLOC_", "SATTACH_", "SBATCH_", "SBCAST_", "SCANCEL_", "SCONTROL_", "SCRONTAB_"),
    *("SCRUN_", "SDIAG_", "SINFO_", "SLURM_", "SPRIO_", "SQUEUE_", "SREPORT_", "SRUN_", "SSHARE_", "SSTAT_"),
    "STRIGGER_",
)
"""Beginnings of the variables that Slurm's commands read in place of options: they would choose other jobs, clusters,
columns or times, override a batch script's options, or describe a job that this process runs in.

Source: each command's manual page, Environment Variables; Slurm 22.05 to 24.11.
"""
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""Those that name the cluster and prove who the user is. Source: slurm.conf(5); Slurm, Configless and JWT."""
LOST = (
    *("Connection timed out", "Socket timed out", "Zero Bytes were", "Connection reset", "Message send failure"),
    *("Message receive failure", "(send failure)", "(receive failure)", "(shutdown failure)"),
)
"""Parts of Slurm's messages about a controller that was contacted and did not answer. Source: slurm_errno.c."""
UNREACHABLE = (
    *("Unable to contact slurm controller", "Connection refused", *LOST),
    *("controller in standby mode", "Controller is in standby mode", "No route to host"),
)
"""Parts of Slurm's messages about a controller that does not answer. Source: Slurm 22.05, slurm_errno.c."""
WAIT = "try again when the controller answers: scontrol ping"
_RIGHTS = "use a partition, an account and jobs of your own, or ask your administrator for the right"
_CONFIG = "let SLURM_CONF name the configuration of the cluster, or use one of its login nodes"
_KEYS = "compare munge and the clock of this machine with the controller's: munge -n | unmunge"
_LIMIT = "wait for your other jobs, request less, or choose another cluster.account or cluster.qos"
_PARTITION = "cluster.partition=<one that is up>: sinfo --summarize"
_REMEDIES = (
    (UNREACHABLE, WAIT),
    (("ermission denied", "not permitted", "Access denied"), _RIGHTS),
    (("Invalid user id", "Invalid group id", "User not found"), "ask your administrator to make you known to Slurm"),
    (("System submissions disabled", "Requested operation is presently disabled"), "ask your administrator why"),
    (("authentication", "Munge", "credential"), _KEYS),
    (("Incompatible versions", "Protocol version"), "use commands of the cluster's version: sinfo --version"),
    (("configuration source", "configuration file", "s_p_parse_file", "Parsing error"), _CONFIG),
    (("Unable to resolve", "Can't find an address"), _CONFIG),
    (("storage is disabled", "accounting_storage plugin"), "it needs accounting, which this cluster does not have"),
    (("Unable to connect to database", "slurmdbd"), "try again when accounting answers: sacctmgr ping"),
    (("temporarily unable to accept", "Resource temporarily", "try again"), "try again later"),
    (("Invalid job id",), "the job has ended, or is of another cluster"),
    (("already completing or completed", "has already finished"), "nothing: the job has ended"),
    (("violates accounting/QOS policy", "Limit"), _LIMIT),
    (("Invalid account",), "cluster.account=<one of yours>: sacctmgr show associations user=$USER"),
    (("Invalid qos",), "cluster.qos=<one of yours>: sacctmgr show associations user=$USER format=account,qos"),
    (("artition specified", "No partition", "partition not available", "Partition in DOWN"), _PARTITION),
    (("Memory", "memory"), "request less memory: cluster.mem, cluster.mem_per_cpu; sinfo --format='%n %m' lists it"),
    (("generic resource", "gres", "GRES"), "sinfo --format='%n %G' lists what nodes have"),
    (("CPU count", "processors", "more tasks"), "lower cluster.cpus_per_task; sinfo --format='%n %c' lists CPUs"),
    (("Node count specification", "node configuration"), "sinfo --format='%D %c %m %G' lists what nodes have"),
    (("Invalid node name", "Requested nodes not in"), "sinfo --Node lists nodes and their partitions"),
    (("feature",), "sinfo --format='%n %f' lists features of nodes"),
    (("reservation",), "scontrol show reservation lists them"),
    (("time limit", "Time limit"), "sinfo --format='%P %l' lists the time limits of partitions"),
    (("No space left", "Disk quota"), "make room in the file system that the message names"),
    (("too long",), "choose a shorter base_results_dir"),
    (("Unrecognized option", "unrecognized option", "invalid option"), "remove it: this Slurm does not know it"),
)
"""Parts of a message, and its remedy; the first that fits counts. Source: Slurm 22.05, slurm_errno.c."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command.

    Args:
        code: Its exit code; one of NOT_STARTED if it did not start.
        error: Its standard error, without the command's name in front of lines.
    """

    code: int
    out: str
    error: str

    @property
    def is_unreachable(self) -> bool:
        """Whether the controller did not answer."""
        return self.code != 0 and any(words in self.error for words in UNREACHABLE)

    @property
    def is_lost(self) -> bool:
        """Whether the controller may still act on the request: no answer came, or a signal ended the command."""
        is_killed = self.code < 0 or 128 < self.code < _ERROR
        return is_killed or (self.code != 0 and any(words in self.error for words in LOST))


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command: this process's, without options of Slurm's commands and jobs of Slurm."""
    own = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(PREFIXES)}
    return {**own, **more}


def start_step(
    job_id: str,
    host: str,
    name: str,
    command: Sequence[str],
    *,
    options: Sequence[str] = (),
    log: IO[bytes] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a command on a node of a running job, as a step beside others; return the srun that waits for it.

    Args:
        name: Of the step.
        options: Further options of srun.
        log: Gets what the command writes; None discards it.
    """
    words = ["srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--mem=0"]
    # The other variables of the batch script describe the allocation as it was at its start.
    own = {name: os.environ[name] for name in ("SLURM_RESTART_COUNT",) if name in os.environ}
    return subprocess.Popen(
        [*words, "--input=none", f"--job-name={name}", *options, *command],
        env=environment({"SLURM_JOB_ID": job_id, **own}),
        stdin=subprocess.DEVNULL,
        stdout=log or subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def steps(job_id: str, selection: str) -> dict[str, str] | None:
    """Return the names of some steps of a job, by their ids; None if Slurm does not answer."""
    answer = run("squeue", "--steps", f"--jobs={job_id}", selection, "--noheader", "--format=%i %j")
    return None if answer.code else dict(line.partition(" ")[::2] for line in answer.out.splitlines())


def fields(line: str) -> dict[str, str]:
    """Return the fields of a line of `scontrol --oneliner`; the first of a name, as comments come last."""
    return dict(word.partition("=")[::2] for word in reversed(line.split()))


def run(*words: str, folder: Path | None = None, env: Mapping[str, str] | None = None, text: str = "") -> Answer:
    """Run a command of Slurm with a working folder, further variables and standard input; return its answer.

    Raises:
        ProblemsFound: It did not end in time (E447).
    """
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment(env or {}),
            stdin=None if text else subprocess.DEVNULL,
            input=text or None,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE_S,
        )
    except FileNotFoundError:
        return not_started(words[0], NOT_FOUND, "this machine")
    except PermissionError:
        return not_started(words[0], NOT_EXECUTABLE, "this machine")
    except subprocess.TimeoutExpired as error:
        raise fail("E447", "cluster", f"{words[0]} does not end after {PATIENCE_S:g} s", remedy=WAIT) from error
    return answer(words[0], done.returncode, done.stdout, done.stderr)


def not_started(name: str, code: int, machine: str) -> Answer:
    """Return the answer of a command that could not be started."""
    return Answer(code, "", f"{name} {NOT_STARTED[code][0]} {machine}")


def answer(name: str, code: int, out: str, error: str) -> Answer:
    """Return the answer of a command that has ended, whose name is not repeated in front of its messages."""
    lines = [line.removeprefix(f"{name}: ").removeprefix("error: ") for line in error.splitlines()]
    return Answer(code, out, "\n".join(lines).strip())


def unanswered(words: str, failed: Answer) -> ProblemsFound:
    """Return the Problem that a command failed for a reason that is not the job's (E447)."""
    if failed.code in NOT_STARTED:
        return fail("E447", "cluster", failed.error, remedy=NOT_STARTED[failed.code][1])
    remedy = remedy_of(failed.error) or _LOOK
    return fail("E447", "cluster", f"{words}: {failed.error or f'exit code {failed.code}'}", remedy=remedy)


def remedy_of(message: str) -> str | None:
    """Return what to do about a message of one of Slurm's commands; None if the message is not known."""
    return next((remedy for parts, remedy in _REMEDIES if any(part in message for part in parts)), None)
