"""A real Slurm on this machine: slurmctld and several slurmd on loopback ports, as long as a test run needs it."""

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from background import await_true, suspend
from ports import free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "slurmdbd", "mariadbd")
INSTALL = "tests/engines/install_programs.sh"
PARTITION, SMALL, URGENT = "main", "small", "urgent"
GRACE_S = 20
"""Seconds that a job of PARTITION has before one of URGENT takes its nodes."""
SMALL_NODES, SMALL_MINUTES = 2, 30
"""Limits of the partition SMALL."""
_SYSTEM = "/usr/sbin:/sbin"
_CONF = """\
ClusterName=test
FirstJobId={first_job}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool-%n
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldTimeout=30
SlurmdTimeout=60
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1,permit_job_expansion
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO GraceTime={grace}
PartitionName={urgent} Nodes=ALL PriorityTier=10 PreemptMode=OFF
PartitionName={small} Nodes=n[1-{small_nodes}] MaxTime={small_minutes}
"""

_ACCOUNTED = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[0]}
AccountingStoragePass={folder}/munge.sock
"""
_DBD = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports[0]}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[1]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""
_GRANTS = """\
create database slurm_acct;
create user 'slurm'@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to 'slurm'@'127.0.0.1';
create user 'slurm'@'localhost' identified by 'slurm'; grant all on slurm_acct.* to 'slurm'@'localhost';
"""


def absent() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:{_SYSTEM}") is None]


@dataclass
class Cluster:
    """A running cluster.

    Args:
        folder: Of its configuration, state and logs.
        num_nodes: Its nodes are n1, n2, ….
        database_port: Port of the database of its accounting; 0 without.
        daemons: Its running daemons, by name.
    """

    folder: Path
    num_nodes: int
    database_port: int = 0
    daemons: dict[str, subprocess.Popen] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self, name: str) -> None:
        """Start munged, slurmctld, or the slurmd of a node."""
        words = {
            "munged": ["munged", "--foreground", "--force", "--num-threads=4"]
            + [f"--{key}={self.folder / f'munge.{end}'}" for key, end in _MUNGE.items()],
            "slurmdbd": ["slurmdbd", "-D"],
            "mariadbd": ["mariadbd", "--no-defaults", f"--datadir={self.folder / 'db'}", "--bind-address=127.0.0.1"]
            + [f"--socket={self.folder / 'mysql.sock'}", f"--port={self.database_port}", "--user=root"]
            + [f"--pid-file={self.folder / 'mariadb.pid'}", "--innodb-buffer-pool-size=64M"],
            "slurmctld": ["slurmctld", "-D", "-f", str(self.conf)],
        }.get(name, ["slurmd", "-D", "-N", name, "-f", str(self.conf)])
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                words,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:{_SYSTEM}", "SLURM_CONF": str(self.conf)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, name: str, signum: int = signal.SIGTERM) -> None:
        """Stop a daemon and wait for its end."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(signum)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def lose(self, name: str) -> None:
        """Kill a node's daemons and every process of its jobs, as if its machine had lost power."""
        # A daemon has its node's log open.
        daemons = [pid for pid in _running() if _has_open(pid, self.folder / f"{name}.log")]
        lost = [*daemons, *(below for daemon in daemons for below in _descendants(daemon))]
        # All stop before the first one dies: an srun that outlives its parent would cancel its step.
        suspend(*lost)
        for pid in lost:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemons.pop(name).wait()

    def command(self, *words: str) -> str:
        """Run a command of Slurm; return its output."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def nodes_of(self, job_id: str) -> int:
        """Return how many nodes a job has; 0 while the controller does not answer."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        words = ["squeue", "--noheader", "--jobs", job_id, "--format=%D"]
        answer = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout.strip()
        return int(answer) if answer.isdigit() else 0

    def hosts_of(self, job_id: str) -> list[str]:
        """Return the names of a job's nodes, that of its batch script first."""
        nodes = self.command("squeue", "--noheader", "--jobs", job_id, "--format=%N").strip()
        first = self.command("squeue", "--noheader", "--jobs", job_id, "--format=%B").strip()
        return sorted(self.command("scontrol", "show", "hostnames", nodes).split(), key=lambda each: each != first)

    @contextlib.contextmanager
    def slow_to_end(self, seconds: float) -> Iterator[None]:
        """Let every node be free only some seconds after a job, as those of a cluster with an epilog are."""
        (script := self.folder / "epilog.sh").write_text(f"#!/bin/sh\nsleep {seconds}\n")
        script.chmod(0o755)
        before = self.conf.read_text()
        _set(self.conf, f"Epilog={script}")
        self.command("scontrol", "reconfigure")
        try:
            yield
        finally:
            self.conf.write_text(before)
            self.command("scontrol", "reconfigure")

    def await_ready(self) -> None:
        """Start the nodes that do not run, and wait until every node is idle; show what keeps them, if that fails."""
        for name in (f"n{number}" for number in range(1, self.num_nodes + 1)):
            if name not in self.daemons:
                self.start(name)
        try:
            await_true(self._is_ready_or_resumes)
        except AssertionError:
            shown = "sinfo --Node --long", "sinfo --list-reasons", "squeue --all", "squeue --steps"
            states = "\n".join(self.command(*words.split()) for words in shown)
            log = (self.folder / "slurmctld.log").read_text().splitlines()[-60:]
            raise AssertionError("\n".join(["nodes are not idle", states, *log])) from None

    def _is_ready_or_resumes(self) -> bool:
        if "drain" in (states := self._states()):
            self._resume_drained()
        return self._are_idle(states)

    def _resume_drained(self) -> None:
        """Resume nodes that Slurm drained since it saw a process end late, as on a machine with much else to do."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        words = ["sinfo", "--list-reasons", "--noheader", "--format=%n|%E"]
        for line in subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout.splitlines():
            node, _, reason = line.partition("|")
            if reason.strip() == "Kill task failed":
                self.command("scontrol", "update", f"NodeName={node.strip()}", "State=RESUME")

    def is_ready(self) -> bool:
        """Return whether the controller answers and every node is idle."""
        return self._are_idle(self._states())

    def _are_idle(self, states: str) -> bool:
        return states.split() == ["idle", str(self.num_nodes)]

    def _states(self) -> str:
        """Return each state of nodes and how many have it; nothing if the controller does not answer."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        words = ["sinfo", "--noheader", "--partition", PARTITION, "--format=%T %D"]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout


_MUNGE = {
    "key-file": "key",
    "socket": "sock",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}


@contextlib.contextmanager
def running(
    folder: Path, num_nodes: int = 4, *, has_accounting: bool = False, more: str = "", of_nodes: str = ""
) -> Iterator[Cluster]:
    """Run a cluster of simulated nodes until the block ends, its jobs cancelled; accounting needs root.

    Args:
        folder: Of its configuration, state and logs.
        num_nodes: Number of its nodes.
        has_accounting: Whether slurmdbd keeps its jobs in a database.
        more: Further lines of its configuration.
        of_nodes: What each node has beside processors and memory.
    """
    ports = free_ports(2)
    cluster = Cluster(folder, num_nodes, database_port=ports[1] if has_accounting else 0)
    _configure(cluster, more, of_nodes)
    cluster.start("munged")
    await_true(lambda: (folder / "munge.sock").exists())
    try:
        if has_accounting:
            _account(cluster, ports)
        cluster.start("slurmctld")
        cluster.await_ready()
        yield cluster
        cluster.command("scancel", "--user", getpass.getuser())
        await_true(lambda: not cluster.command("squeue", "--noheader").strip())
    finally:
        for name in reversed(list(cluster.daemons)):
            cluster.stop(name)


@contextlib.contextmanager
def used(folder: Path, num_nodes: int = 4, **options: Any) -> Iterator[Cluster]:
    """Run a cluster that this process and its children use, with one thread each; skip the test without Slurm."""
    if missing := absent():
        pytest.skip(f"no {', '.join(missing)}: {INSTALL}")
    with running(folder, num_nodes, **options) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.conf))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield cluster


def _configure(cluster: Cluster, more: str, of_nodes: str) -> None:
    folder = cluster.folder
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(64))
    (folder / "munge.key").chmod(0o600)
    ports = free_ports(1 + cluster.num_nodes)
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=8000 {of_nodes}"
        for number, port in enumerate(ports[1:], 1)
    )
    cluster.conf.write_text(
        _CONF.format(
            host=host,
            ports=ports,
            user=getpass.getuser(),
            folder=folder,
            nodes=nodes,
            partition=PARTITION,
            small=SMALL,
            urgent=URGENT,
            grace=GRACE_S,
            small_nodes=SMALL_NODES,
            small_minutes=SMALL_MINUTES,
            first_job=random.randrange(1, 1_000_000),  # two clusters on this machine: ports follow from ids
        )
    )
    for line in more.splitlines():
        _set(cluster.conf, line)


def _set(conf: Path, line: str) -> None:
    """Add a line, in the place of the present one of the same key; a configuration may have several partitions."""
    key = line.partition("=")[0]
    present = conf.read_text().splitlines()
    left = [each for each in present if key == "PartitionName" or each.partition("=")[0] != key]
    conf.write_text("\n".join([*left, line, ""]))


def _account(cluster: Cluster, ports: list[int]) -> None:
    """Start the database and slurmdbd, and let the controller use them."""
    folder = cluster.folder
    words = ["mysql_install_db", "--no-defaults", f"--datadir={folder / 'db'}", "--user=root", "--skip-test-db"]
    subprocess.run([*words, "--auth-root-authentication-method=normal"], check=True, capture_output=True)
    cluster.start("mariadbd")
    client = ["mariadb", "--no-defaults", "-S", str(folder / "mysql.sock"), "-u", "root"]
    await_true(lambda: subprocess.run([*client, "-e", "select 1"], capture_output=True).returncode == 0)
    subprocess.run(client, input=_GRANTS, text=True, check=True, capture_output=True)
    made = {"folder": folder, "ports": ports, "user": getpass.getuser()}
    (folder / "slurmdbd.conf").write_text(_DBD.format(**made))
    (folder / "slurmdbd.conf").chmod(0o600)
    with cluster.conf.open("a") as conf:
        conf.write(_ACCOUNTED.format(**made))
    cluster.start("slurmdbd")
    env = {**os.environ, "SLURM_CONF": str(cluster.conf)}
    add = ["sacctmgr", "--immediate", "add", "cluster", "test"]
    await_true(lambda: subprocess.run(add, env=env, capture_output=True).returncode == 0)


def _running() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _has_open(pid: int, file: Path) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return any(os.path.realpath(each) == str(file) for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _descendants(pid: int) -> list[int]:
    """Return the processes below one, the nearest first."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found
