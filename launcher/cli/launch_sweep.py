"""`--multirun`, and `recipes launch` of several bundles: jobs are submitted together where there is a queue."""

import contextlib
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from launcher.cli import launch, terminal
from launcher.cli.output import refused
from launcher.common import console
from launcher.common.interrupts import exit_code, signals_as_interrupts
from launcher.common.problems import ProblemsFound
from launcher.common.process import USER_ERROR
from launcher.config import multirun
from launcher.config.composed_files import CompositionCache
from launcher.config.multirun import SIGNALLED
from launcher.jobs import registry
from launcher.jobs.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.job_spec import Bundle

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

    held: dict[str, list[Bundle]] = field(default_factory=dict)
    rendered: dict[str, list[Bundle]] = field(default_factory=dict)
    waits: bool = False

    def takes(self, bundle: Bundle, backend: str, *, is_rendered_only: bool, wait: bool) -> bool:
        """Take a job whose backend has a queue; return whether that is so."""
        if not backend_registry.described(backend).queue():
            return False
        (self.rendered if is_rendered_only else self.held).setdefault(backend, []).append(bundle)
        self.waits |= wait
        return True


def run(launch_one: Callable[..., int], jobs: Sequence[Sequence[str]], cache: CompositionCache) -> int:
    """Launch the jobs of a command line: in turn, and those with a queue together, once all are compiled.

    Args:
        launch_one: Launches one; called with its overrides, the cache, and the sweep that may take it.
        jobs: The overrides of each.

    Returns:
        The highest exit code.
    """
    sweep = Sweep() if len(jobs) > 1 else None
    codes: list[int] = []

    def each(words: Sequence[str]) -> int:
        codes.append(launch_one(words, cache=cache, sweep=sweep))
        return codes[-1]

    highest = multirun.run_all(each, jobs)
    if sweep is None:
        return highest
    for bundles in sweep.rendered.values():
        console.say(f"{_command(bundles)}  submits them together", "dim")
    if USER_ERROR in codes or highest > SIGNALLED:
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


def _command(bundles: Sequence[Bundle]) -> str:
    return " ".join(["recipes launch", *(terminal.typed_path(bundle.directory) for bundle in bundles)])


def launch_all(bundles: Sequence[Bundle], backend_name: str, *, wait: bool = False, is_again: bool = False) -> int:
    """Start the jobs of bundles on disk: together where there is a queue, else in turn until a signal ends one.

    Returns the highest exit code. The arguments are those of `launch.launch`.
    """
    backend = backend_registry.load_backend(backend_name)
    queue = backend_registry.described(backend_name).queue()
    if len(bundles) == 1 or queue is None:
        return _in_turn(bundles, backend_name, wait=wait, is_again=is_again)
    with signals_as_interrupts():
        for notice in queue.array_notices(bundles):
            console.show_notice(notice)
        _allow_open_files(len(bundles))
        bundles = [launch.completed(bundle) for bundle in bundles]
        records = launch.submit(bundles, backend, is_again=is_again)
        with launch.submitted_nevertheless(records):
            return _attended(bundles, backend, records, wait=wait)


def _in_turn(bundles: Sequence[Bundle], backend_name: str, *, wait: bool, is_again: bool) -> int:
    highest = 0
    for bundle in bundles:
        highest = max(highest, launch.launch(bundle, backend_name, wait=wait, is_again=is_again))
        if highest > SIGNALLED:
            break
    return highest


def _attended(bundles: Sequence[Bundle], backend: Backend, records: Sequence[JobRecord], *, wait: bool) -> int:
    """Print how jobs were submitted and, with `wait`, follow one after another to its end."""
    for bundle, record in zip(bundles, records, strict=True):
        terminal.show_submitted(record.handle, place=bundle.directory)
    if not wait:
        console.say("recipes jobs  their states; recipes logs, wait and cancel take each by its folder", "dim")
        return 0
    highest = 0
    for bundle, record in zip(bundles, records, strict=True):
        console.say(bundle.job_name, "bold")
        code = launch.attend(bundle, backend, record, wait=True)
        highest = max(highest, code)
        if code > SIGNALLED and registry.submitted(bundle.directory).ended is None:
            break  # a signal ended the following, not the job
    return highest


def _allow_open_files(count: int) -> None:
    """Allow a lock file for each job of a sweep, as far as the system does."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if limit < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
