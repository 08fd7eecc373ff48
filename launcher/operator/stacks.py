"""The stacks of the workers of a job, which each writes to a file at a signal: they explain a job without a new step.

The signal is sent where the workers are: by the operator on this machine, by the process of each node elsewhere.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from launcher.common.texts import first_of
from launcher.operator.event_log import EventWriter
from launcher.operator.hang_detector import Overdue
from launcher.operator.snapshot import Attempt
from launcher.runtime.durable import write_text
from launcher.runtime.stacks import STACK_SIGNAL, stack_file, stacks_folder

REPORT_FILE = "report.txt"
"""Beside the stacks: the message, the ranks that lag, and the stack of each rank's main thread."""

ANSWER_S = 10.0
"""Time for the workers to write their stacks; they do so as soon as they get a processor."""

_MAX_NAMED = 8

STOPPED = "its process is stopped"
_HEAD = re.compile(r"rank (\d+), process (\d+)")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?+) in (.*)$', re.MULTILINE)
_OF_LIBRARY = "/lib/python"
_COLLECTIVES, _AGENT = "/torch/distributed/", "/torch/distributed/elastic/"
_WAITS = (
    ("_engine_run_backward", ""),
    *((name, "stop_consensus.py") for name in ("end_step", "loss", "any_rank")),
    ("number", "finite_steps.py"),
)
"""Functions, and ends of files, that exchange with other ranks in C++: below them there is no Python frame.

Source: torch.autograd.graph; launcher.runtime.stop_consensus and finite_steps, which read a sum of all ranks.
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def is_library(self) -> bool:
        """Whether it is code that comes with Python or was installed, other than this launcher's."""
        return _OF_LIBRARY in self.file and "/launcher/" not in self.file


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of a rank's main thread, innermost call first; empty if it has not answered.

    Args:
        is_stopped: Whether its process is stopped: it does not run, whatever it was doing.
    """

    frames: tuple[Frame, ...] = ()
    is_stopped: bool = False

    @property
    def place(self) -> Frame | None:
        """The innermost call in code that is not a library's."""
        return next((frame for frame in self.frames if not frame.is_library), next(iter(self.frames), None))

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, in a collective or in a backward pass that exchanges gradients."""
        for frame in self.frames:
            if any(frame.function == name and frame.file.endswith(end) for name, end in _WAITS):
                return True
            if _COLLECTIVES in frame.file and _AGENT not in frame.file:
                return True
            if not frame.is_library:
                return False
        return False

    def __str__(self) -> str:
        return STOPPED if self.is_stopped else str(self.place or "its process does not answer")


def request_stacks(folder: Path) -> None:
    """Send the signal to the workers below this process that have a file in `folder`; note those that are stopped."""
    workers = {(pid, stack_file(folder, rank)) for rank, pid in _processes(folder).items()}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            # Nodes share the folder, and number their processes alike.
            own = next((file for pid, file in workers if pid == process.pid and _has_open(pid, file)), None)
            if own is None:
                continue
            if process.status() == psutil.STATUS_STOPPED:  # not one that a debugger holds
                with own.open("a", encoding="utf-8") as file:
                    file.write(f"{STOPPED}\n")
            elif _handles_signal(process.pid):
                process.send_signal(STACK_SIGNAL)


def _has_open(pid: int, file: Path) -> bool:
    """Return whether a process has a file open, by whatever path: it keeps its own to write stacks."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if descriptor.samefile(file):
                return True
    return False


def _handles_signal(pid: int) -> bool:
    """Return whether a process has a handler of the signal, which ends any other process.

    Source: proc(5), /proc/pid/status, SigCgt: a mask whose lowest bit is signal 1.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(found and int(found[1], 16) >> (STACK_SIGNAL - 1) & 1)


def _processes(folder: Path) -> dict[int, int]:
    """Return the process of each rank that has a file."""
    found = {}
    for path in folder.glob("rank-*.txt"):
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            if head := _HEAD.match(file.readline()):
                found[int(head[1])] = int(head[2])
    return found


def sizes(folder: Path) -> dict[int, int]:
    """Return the size in bytes of each rank's file."""
    return {rank: stack_file(folder, rank).stat().st_size for rank in _processes(folder)}


def texts_after(folder: Path, sizes: Mapping[int, int]) -> dict[int, str]:
    """Return what each rank's file has gained since it had a size."""
    return {
        rank: stack_file(folder, rank).read_bytes()[size:].decode(errors="replace") for rank, size in sizes.items()
    }


def parse(text: str) -> Stack:
    """Return the stack that a rank wrote last.

    Source: CPython, Python/traceback.c, _Py_DumpTracebackThreads: the main thread, the oldest, comes last.
    """
    main = _THREAD.split(text)[-1] if _THREAD.search(text) else ""
    frames = tuple(Frame(*each) for each in _FRAME.findall(main))
    return Stack(frames, is_stopped=text.rstrip().endswith(STOPPED))


def lagging(stacks: Mapping[int, Stack]) -> tuple[int, ...]:
    """Return the ranks that the others wait for; none if their stacks do not differ.

    They are stopped; or they do not wait for other ranks, while others do; or they have not answered; or they are
    somewhere else than most.
    """
    if stopped := _ranks(stacks, lambda stack: stack.is_stopped):
        return stopped
    busy = _ranks(stacks, lambda stack: not stack.waits)
    if busy and len(busy) < len(stacks):
        return busy
    silent = _ranks(stacks, lambda stack: not stack.frames)
    if silent and len(silent) < len(stacks):
        return silent
    places = Counter(stack.place for stack in stacks.values())
    ((most, count),) = places.most_common(1) or ((None, 0),)
    return _ranks(stacks, lambda stack: stack.place != most) if 2 * count > len(stacks) else ()


def _ranks(stacks: Mapping[int, Stack], is_one: Callable[[Stack], bool]) -> tuple[int, ...]:
    return tuple(rank for rank, stack in sorted(stacks.items()) if is_one(stack))


class SlowJob:
    """Requests the stacks of a job that is overdue, and reports each such time once.

    Args:
        request: Requests the stacks of the workers with a file in a folder.
        events: Where a slow job is reported that is not known to hang.
    """

    def __init__(self, run_dir: Path, nproc_per_node: int, request: Callable[[Path], None], events: EventWriter):
        self._run_dir, self._nproc_per_node = run_dir, nproc_per_node
        self._request, self._events = request, events
        self._sizes: dict[int, int] | None = None
        self._texts: dict[int, str] = {}
        self._until_s = 0.0
        self._is_reported = False
        self.lagging_nodes: tuple[int, ...] = ()
        """Nodes of the ranks that the others waited for, when their stacks were last looked at."""

    def poll(self, now_s: float, attempt: Attempt, overdue: Overdue | None) -> str:
        """Return why the job hangs, and which rank lags; "" while it does not, or its stacks are not written yet."""
        if overdue is None:
            self._sizes, self._is_reported = None, False
            return ""
        if self._is_reported and not overdue.is_hang:
            return ""
        try:
            return self._examined(now_s, attempt, overdue)
        except OSError:  # a full disk, say: what made the job slow must not end its operator
            return overdue.message if overdue.is_hang else ""

    def _examined(self, now_s: float, attempt: Attempt, overdue: Overdue) -> str:
        folder = stacks_folder(self._run_dir, attempt.number)
        if self._sizes is None:
            self._sizes, self._until_s = sizes(folder), now_s + ANSWER_S
            self._request(folder)
        before, self._texts = self._texts, texts_after(folder, self._sizes)
        texts = self._texts
        if now_s < self._until_s and not (all(texts.values()) and texts == before):  # written in many pieces
            return ""
        self._sizes = None
        found = {rank: parse(text) for rank, text in texts.items()}
        message = self._report(folder, attempt, overdue, found)
        if overdue.is_hang or any(stack.is_stopped for stack in found.values()):
            return message
        self._is_reported = True
        self._events.add("slow", f"slow: {message}; the job is not stopped", {"ranks": lagging(found)})
        return ""

    def _report(self, folder: Path, attempt: Attempt, overdue: Overdue, found: dict[int, Stack]) -> str:
        """Write the report and return its first line."""
        self.lagging_nodes = tuple(sorted({self._node(attempt, rank) for rank in lagging(found)}))
        if not found:
            return overdue.message
        path = (folder / REPORT_FILE).relative_to(self._run_dir.parent)
        message = f"{overdue.message}; {self._place(attempt, found)}; stacks: {path}"
        lines = [message]
        for rank, stack in sorted(found.items()):
            frames = [f"  {frame}" for frame in stack.frames] or [f"  {stack}"]
            lines += ["", f"rank {rank} (node {self._node(attempt, rank)}), innermost call first:", *frames]
        write_text(folder / REPORT_FILE, "\n".join(lines) + "\n")
        return message

    def _place(self, attempt: Attempt, found: dict[int, Stack]) -> str:
        """Return which ranks lag, and where the first of them is."""
        late = lagging(found)
        first = min(late or found)
        named = f"rank {first} (node {self._node(attempt, first)})"
        if not late:
            return f"{named} is at {found[first]}" + (", and no rank lags" if len(found) > 1 else "")
        others = first_of(list(map(str, late[1:])), _MAX_NAMED - 1)
        return f"{named} lags: {found[first]}" + (f"; as do ranks {others}" if others else "")

    def _node(self, attempt: Attempt, rank: int) -> int:
        return attempt.nodes[min(rank // self._nproc_per_node, len(attempt.nodes) - 1)]
