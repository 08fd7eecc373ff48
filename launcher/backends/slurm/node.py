"""One node of an elastic job: a process that starts the node's agent, and ends with everything below it.

    python -m launcher.backends.slurm.node BUNDLE INDEX ADDRESS

The address of the agent is published once its workers can be forked from the node's warm process: the operator stops
the workers of the other nodes only then.

Slurm sends SIGTERM to every process of a step when a preemption begins, and to the batch script only when its grace
period ends. Agents and workers therefore have the signal blocked, and this process notes it for the operator.

Source: seen with Slurm 22.05; slurm.conf(5), PreemptMode and GraceTime.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from launcher.backends.slurm.run_files import AGENT_FILE, JobFiles
from launcher.common import prctl
from launcher.common.names import ENV_WARM_SOCKET, WARM_MODULE
from launcher.model.following import until
from launcher.operator import stacks
from launcher.operator.processes import (
    hold_node_folders,
    kill_descendants,
    port_of,
    remove_node_folder,
    reserve_port,
)
from launcher.runtime.durable import write_text
from launcher.runtime.warm_client import ANSWER_TIMEOUT_S, answers

NUM_MASTER_PORTS = 8
"""Ports that a node reserves for rank 0's store: consecutive starts of the workers use different ones."""

_PING_S, _POLL_S, _STACKS_POLL_S = 1.0, 0.05, 2.0


def main(argv: list[str] | None = None) -> int:
    """Run the agent of a node to its end and return its exit status (128 + N for signal N)."""
    bundle, index, address = sys.argv[1:] if argv is None else argv
    files = JobFiles(Path(bundle), os.environ["SLURM_JOB_ID"])
    note = files.term(int(index))

    def take(_signum: int, _frame: FrameType | None) -> None:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()

    prctl.adopt_orphans()
    signal.signal(signal.SIGTERM, take)
    # Blocked while children are started: they inherit that.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        return _run(files, int(index), address, hold_node_folders(os.getpid()))
    finally:
        kill_descendants()
        remove_node_folder(os.getpid())


def _run(files: JobFiles, index: int, address: str, own: dict[str, str]) -> int:
    agent_port, *master_ports = (reserve_port(address) for _ in range(1 + NUM_MASTER_PORTS))
    script = files.bundle_dir / AGENT_FILE
    warm: subprocess.Popen[bytes] | None = None
    if WARM_MODULE in script.read_text(encoding="utf-8"):
        own[ENV_WARM_SOCKET] = f"recipes-warm-{files.job_id}-{index}-{os.getpid()}"
        warm = _start(script, own, "warm", own[ENV_WARM_SOCKET])
    agent = _start(script, own, str(index), address, str(port_of(agent_port)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    if warm:
        _await_imports(warm, own[ENV_WARM_SOCKET], agent)
    ports = {"agent_port": port_of(agent_port), "master_ports": [port_of(each) for each in master_ports]}
    file = files.address(index)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps({"address": address, **ports}))
    status = _await_end(agent, files)
    return status if status >= 0 else 128 - status


def _await_end(agent: "subprocess.Popen[bytes]", files: JobFiles) -> int:
    """Wait for the agent, and pass on the operator's requests for stacks; return its exit status."""
    seen = files.requested_stacks()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return agent.wait(_STACKS_POLL_S)
        asked = files.requested_stacks()
        if asked and asked != seen:
            stacks.request_stacks(asked[1])
            seen = asked


def _await_imports(warm: "subprocess.Popen[bytes]", socket: str, agent: "subprocess.Popen[bytes]") -> None:
    """Wait until the warm process has imported everything; without it, workers start cold."""

    def is_over() -> bool:
        return warm.poll() is not None or agent.poll() is not None or answers(socket, _PING_S)

    until(is_over, ANSWER_TIMEOUT_S, _POLL_S)


def _start(script: Path, own: dict[str, str], *words: str) -> "subprocess.Popen[bytes]":
    command = ["bash", str(script), *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **own})


if __name__ == "__main__":
    sys.exit(main())
