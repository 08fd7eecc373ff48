"""Slurm's commands and ssh as a user's machine has them: their environment, and what a failure of theirs leads to."""

import os

import pytest
from conftest import written
from test_slurm_rendering import OPEN, PUBLISHED

from launcher.backends.slurm import programs, queue
from launcher.backends.slurm.backend import SlurmBackend
from launcher.backends.slurm.host import LoginNode
from launcher.backends.slurm.place import HERE
from launcher.common.problems import ProblemsFound


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return a function that lets commands of Slurm, which this machine then has no others of, print and fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    for name in ("squeue", "sacct", "sbatch", "scontrol", "scancel", "sacctmgr", "ssh"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)

    def fail(name, message, code=1):
        (folder / name).write_text(f"#!/bin/sh\ncat > /dev/null\nprintf '%s\\n' '{message}' >&2\nexit {code}\n")
        return folder / name

    return fail


def test_no_variable_of_slurm_s_commands_reaches_them(monkeypatch):
    for prefix in programs.PREFIXES:
        monkeypatch.setenv(f"{prefix}PARTITION", "small")
    for name in programs.KEPT:
        monkeypatch.setenv(name, "mine")
    shown = programs.environment({"SLURM_TIME_FORMAT": "%s"})
    found = {name for name in shown if name.startswith(programs.PREFIXES)}
    assert found == {*programs.KEPT, "SLURM_TIME_FORMAT"}
    assert shown["HOME"] == os.environ["HOME"]


PING = "scontrol ping"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Unable to contact slurm controller (connect failure)", PING),
        ("Socket timed out on send/recv operation", PING),
        ("Access/permission denied", "ask your administrator for the right"),
        ("Invalid user id", "make you known"),
        ("Protocol authentication error", "munge -n"),
        ("If munged is up, restart with --num-threads=10; Munge encode failed: Failed to connect", "munge -n"),
        ("Incompatible versions of client and server code", "sinfo --version"),
        ("fatal: Unable to process configuration file", "SLURM_CONF"),
        ("fatal: Could not establish a configuration source", "SLURM_CONF"),
        ("Slurm temporarily unable to accept job, sleeping and retrying", "try again later"),
        ("squeue: something new", "run the command by hand"),
    ],
)
def test_a_failure_of_squeue_gets_the_remedy_that_fits(commands, message, remedy):
    commands("squeue", f"squeue: error: {message}")
    with pytest.raises(ProblemsFound, match="E447") as error:
        queue.Queue(HERE).find("7")
    (problem,) = error.value.problems
    assert remedy in problem.remedy and message.removeprefix("squeue: ") in problem.message
    assert (PING in problem.remedy) == (remedy in (PING, "run the command by hand"))


@pytest.mark.parametrize(
    ("message", "key", "remedy"),
    [
        ("Batch job submission failed: Access/permission denied", "cluster.partition", "for the right"),
        ("The group is not permitted to use this partition", "cluster.partition", "for the right"),
        ("Invalid account or account/partition combination specified", "cluster.account", "sacctmgr show assoc"),
        ("Invalid qos specification", "cluster.qos", "sacctmgr show assoc"),
        ("Memory specification can not be satisfied", "cluster.mem", "cluster.mem_per_cpu"),
        ("CPU count per node can not be satisfied", "cluster.cpus_per_task", "lower cluster.cpus_per_task"),
        ("Job violates accounting/QOS policy (job submit limit)", "cluster.account", "wait for your other jobs"),
        ("Pathname of a file, directory or other parameter too long", "cluster", "shorter base_results_dir"),
        ("sbatch: unrecognized option --gpus-per-node=3", "cluster", "does not know it"),
    ],
)
def test_a_refusal_of_sbatch_gets_the_remedy_that_fits(commands, tmp_path, message, key, remedy):
    commands("sbatch", f"sbatch: error: {message}")
    problem = refused(tmp_path)
    assert (problem.code, problem.path) == ("E445", key)
    assert remedy in problem.remedy


def refused(folder, *words):
    bundle = written(folder, *PUBLISHED, *OPEN, *words)
    with pytest.raises(ProblemsFound) as error:
        SlurmBackend().submit(bundle)
    return error.value.problems[0]


def test_a_command_that_may_not_be_executed_is_no_missing_one(commands, monkeypatch):
    command = commands("squeue", "")
    command.chmod(0o644)
    monkeypatch.setenv("PATH", str(command.parent))
    with pytest.raises(ProblemsFound, match="may not be executed by you") as error:
        queue.Queue(HERE).find("7")
    assert "administrator" in error.value.problems[0].remedy


def test_a_job_is_not_taken_for_unknown_while_accounting_does_not_answer(commands):
    """The controller has forgotten a job that has ended: a second launch would submit it again."""
    commands("sacct", "sacct: error: Unable to connect to database")
    with pytest.raises(ProblemsFound, match="E447") as error:
        queue.named(["job"], HERE)
    assert "sacctmgr ping" in error.value.problems[0].remedy
    for message in ("Slurm accounting storage is disabled", "not running a supported accounting_storage plugin"):
        commands("sacct", message)
        assert queue.named(["job"], HERE) == []


@pytest.mark.parametrize(
    ("message", "code", "remedy"),
    [
        ("ada@cluster: Permission denied (publickey).", "E456", "ssh-add"),
        ("ssh: connect to host cluster port 22: Connection refused", "E455", "runs no ssh server"),
        ("ssh: connect to host cluster port 22: Connection timed out", "E455", "firewall"),
        ("ssh: connect to host cluster port 22: Network is unreachable", "E455", "to a network"),
        ("kex_exchange_identification: Connection closed by remote host", "E455", "ended the connection"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "E456", "ssh-keygen -R cluster"),
        ("Unable to negotiate: no matching host key type found. Their offer: ssh-rsa", "E456", "HostKeyAlgorithms"),
        ("Bad owner or permissions on /root/.ssh/config", "E456", "chmod 600"),
        ("something new", "E455", "must work without a question"),
    ],
)
def test_a_failure_of_ssh_gets_the_remedy_that_fits(commands, message, code, remedy):
    commands("ssh", message, 255)
    with pytest.raises(ProblemsFound) as error:
        LoginNode("cluster", "jobs").run("squeue")
    (problem,) = error.value.problems
    assert problem.code == code and remedy in problem.remedy and message in problem.message


def test_each_text_has_the_remedy_of_its_row():
    """A row before it does not hide it."""
    rows = [(text, remedy) for parts, remedy in programs._REMEDIES for text in parts]
    assert [programs.remedy_of(text) for text, _ in rows] == [remedy for _, remedy in rows]
    assert programs.remedy_of("something new") is None
