"""`--multirun`, and `recipes launch` of several bundles: jobs are submitted together where there is a queue."""

import contextlib
import itertools
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.api import launching, running
from launcher.api.job import Job
from launcher.cli import launch, terminal
from launcher.cli.output import refused
from launcher.common import console
from launcher.common.interrupts import exit_code, signals_as_interrupts
from launcher.common.problems import ProblemsFound, shown
from launcher.common.process import USER_ERROR

if TYPE_CHECKING:
    from launcher.api.observing import Backend, Bundle, JobRecord
    from launcher.api.session import CompositionCache

SIGNALLED = 128
"""Exit codes above this are of a job that a signal ended. Source: Bash manual, Exit Status."""
_OTHER_FILES = 256
"""Files that a launch opens beside the locks of its jobs, at most."""


@dataclass(slots=True)
class Sweep:
    """The jobs of a sweep whose bundles are written, and which are submitted together after the last.

    Args:
        held: Their bundles, by backend.
        rendered: The same for jobs that are not to be submitted.
        waits: Whether to follow them.
    """

    held: dict[str, "list[Bundle]"] = field(default_factory=dict)
    rendered: dict[str, "list[Bundle]"] = field(default_factory=dict)
    waits: bool = False

    def takes(self, bundle: "Bundle", backend: str, *, is_rendered_only: bool, wait: bool) -> bool:
        """Take a job whose backend has a queue; return whether that is so."""
        if not launching.queue_of(backend):
            return False
        (self.rendered if is_rendered_only else self.held).setdefault(backend, []).append(bundle)
        self.waits |= wait
        return True


def run(launch_one: Callable[..., int], jobs: Sequence[Sequence[str]], cache: "CompositionCache") -> int:
    """Launch the jobs of a command line: in turn until a signal ends one, and those with a queue together at the end.

    Args:
        launch_one: Launches one; called with its overrides, the cache, and the sweep that may take it.
        jobs: The overrides of each.

    Returns:
        The highest exit code.
    """
    sweep = Sweep() if len(jobs) > 1 else None
    codes: list[int] = []
    for heading, words in zip(_headings(jobs), jobs, strict=True):
        if sweep:
            console.say(heading, "bold")
        codes.append(launch_one(words, cache=cache, sweep=sweep))
        if codes[-1] > SIGNALLED:
            break
    highest = max(codes, default=0)
    if sweep is None:
        return highest
    is_partial = USER_ERROR in codes or highest > SIGNALLED
    for bundles in sweep.rendered.values():
        if is_partial:
            message = "the sweep has jobs that were not compiled: only the bundles of the others were written"
            console.say(message, "bold", stderr=True)
        else:
            console.say(f"{_command(bundles)}  submits them together", "dim")
    if is_partial:
        for bundles in sweep.held.values():
            message = "the compiled jobs were not submitted, since the sweep has others that were not compiled"
            console.say(message, "bold", stderr=True)
            console.say(f"{_command(bundles)}  submits them", "dim", stderr=True)
        return highest
    for name, bundles in sweep.held.items():
        try:
            highest = max(highest, launch_all(bundles, name, wait=sweep.waits))
        except KeyboardInterrupt as interrupt:
            highest = max(highest, exit_code(interrupt))
        except (ProblemsFound, OSError) as error:
            highest = max(highest, refused(error, "the bundles were written, nothing was submitted"))
    return highest


def _headings(found: Sequence[Sequence[str]]) -> list[str]:
    """Return for each job its number and the overrides in whose place not all of the jobs have the same."""
    is_swept = [len(set(alternatives)) > 1 for alternatives in zip(*found, strict=True)]
    own = [" ".join(shown(word) for word in itertools.compress(words, is_swept)) for words in found]
    return [f"job {i} of {len(found)}: {text}".rstrip(": ") for i, text in enumerate(own, 1)]


def _command(bundles: "Sequence[Bundle]") -> str:
    return " ".join(["recipes launch", *(console.typed_path(bundle.directory) for bundle in bundles)])


def launch_all(bundles: "Sequence[Bundle]", backend_name: str, *, wait: bool = False, is_again: bool = False) -> int:
    """Start the jobs of bundles on disk: together where there is a queue, else in turn until a signal ends one.

    Returns the highest exit code. The arguments are those of `launch.launch`.
    """
    backend = launching.backend_of(backend_name)
    queue = launching.queue_of(backend_name)
    if len(bundles) == 1 or queue is None:
        return _in_turn(bundles, backend_name, wait=wait, is_again=is_again)
    with signals_as_interrupts():
        console.show_notice(*queue.array_notices(bundles))
        _allow_open_files(len(bundles))
        bundles = [running.completed(bundle, launch.SHOWN) for bundle in bundles]
        records = launching.submit(bundles, backend, is_again=is_again)
        with launching.submitted_nevertheless(records):
            return _attended(bundles, backend, records, wait=wait)


def _in_turn(bundles: "Sequence[Bundle]", backend_name: str, *, wait: bool, is_again: bool) -> int:
    highest = 0
    for bundle in bundles:
        highest = max(highest, launch.launch(bundle, backend_name, wait=wait, is_again=is_again))
        if highest > SIGNALLED:
            break
    return highest


def _attended(bundles: "Sequence[Bundle]", backend: "Backend", records: "Sequence[JobRecord]", *, wait: bool) -> int:
    """Print how jobs were submitted and, with `wait`, follow one after another to its end."""
    for bundle, record in zip(bundles, records, strict=True):
        terminal.show_submitted(record.handle, place=bundle.directory)
    if not wait:
        console.say("recipes jobs  their states; recipes logs, wait and cancel take each by its folder", "dim")
        return 0
    highest = 0
    for bundle, record in zip(bundles, records, strict=True):
        console.say(bundle.job_name, "bold")
        code = launch.code_of(running.attend(bundle, backend, record, launch.SHOWN, wait=True))
        highest = max(highest, code)
        if code > SIGNALLED and Job(bundle.directory).record.ended is None:
            break  # a signal ended the following, not the job
    return highest


def _allow_open_files(count: int) -> None:
    """Allow a lock file for each job of a sweep, as far as the system does."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if limit < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
