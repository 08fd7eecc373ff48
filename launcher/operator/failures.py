"""Why a job with an operator failed: found in the logs of its last attempt and in its faults."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher import causes
from launcher.causes import Failure
from launcher.model.job_spec import LogLine, LogSelection
from launcher.operator.event_log import job_events
from launcher.operator.snapshot import Attempt
from launcher.operator.types import Cause, Fault, failed_workers
from launcher.operator.worker_logs import AGENT_LOG, follow_attempts, node_logs, tail

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def find(
    run_dir: Path, attempts: tuple[Attempt, ...], nproc_per_node: int, faults: Sequence[Fault], oom_kills: int
) -> Failure | None:
    """Return why a job failed; None if neither its logs nor its faults show an error.

    Args:
        faults: Those that ended it.
        oom_kills: Processes that the kernel killed in this job's cgroup since its launch, because memory was short.
    """
    lines = _lines(run_dir, attempts, nproc_per_node) if attempts else iter(())
    return causes.find(lines, _records(run_dir, attempts, nproc_per_node, faults, oom_kills))


def _lines(run_dir: Path, attempts: tuple[Attempt, ...], nproc_per_node: int) -> Iterator[LogLine]:
    last = attempts[-1]
    selection = LogSelection(None, last.number, is_stderr=None, is_excerpt=True)
    for line in follow_attempts(run_dir, lambda: (attempts, True), None, selection, nproc_per_node):
        yield line._replace(host=_host(last.nodes[(line.rank or 0) // nproc_per_node]))


def _records(
    run_dir: Path, attempts: tuple[Attempt, ...], nproc_per_node: int, faults: Sequence[Fault], oom_kills: int
) -> Iterator[LogLine]:
    """Yield the faults as lines: of a worker's its exit, of a node's the end of its agent's log too."""
    last = attempts[-1] if attempts else None
    noticed = {event.about: event.time_s for event in job_events(run_dir, lambda: True, None) if event.is_warning}
    for fault in faults:
        host = None if fault.node < 0 else _host(fault.node)
        time_s = noticed.get(host or "")
        if fault.cause is not Cause.WORKER:
            log = "" if host is None else tail(node_logs(run_dir, fault.node) / AGENT_LOG)
            yield LogLine("fault", None, f"{fault}\n{log}", host=host, time_s=time_s)
        if last is None or fault.node not in last.nodes:
            continue
        for worker in failed_workers(fault.detail):
            rank = last.nodes.index(fault.node) * nproc_per_node + worker.local_rank
            is_oom = worker.was_killed and oom_kills
            words = f"was killed by the kernel, oom_kill {oom_kills} in its cgroup" if is_oom else f"{worker}"
            yield LogLine("fault", rank, words, last.number, host, time_s)


def _host(node: int) -> str:
    return f"node {node}"


def oom_kills(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> int:
    """Return how many processes the kernel has killed in this process's cgroup, because memory was short.

    0 where cgroups cannot be read. Processes of other jobs in the same cgroup count too.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst, memory.events; cgroup-v1/memory.rst, memory.oom_control.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            root = cgroups / controllers
            name = "memory.oom_control" if controllers else "memory.events"
            for folder in (root / path.lstrip("/"), root):  # in a container, its own is mounted as the root
                for entry in _read(folder / name):
                    if entry.startswith("oom_kill "):
                        return int(entry.split()[1])
    return 0


def _read(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8").splitlines()
    return []
