"""Submits the jobs of bundles once: their names in the queue have a digest, by which a later launch finds them."""

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher.backends.slurm import code, limits, preflight, programs, queue, requests, run_files
from launcher.backends.slurm.host import damage_refused, place_of, unique_name
from launcher.backends.slurm.place import Place, configured
from launcher.backends.slurm.queue import Seen, queue_of
from launcher.backends.slurm.rendering import job_secrets
from launcher.backends.slurm.requests import Request
from launcher.backends.slurm.run_files import ArrayTask, is_elastic, jobs_folder
from launcher.backends.slurm.sbatch_options import plain
from launcher.bundle import store
from launcher.common import console, os_errors, variables
from launcher.common.locks import locked
from launcher.common.problems import Notice, Problem, ProblemsFound, fail, raise_any
from launcher.common.texts import first_of
from launcher.model.earlier_jobs import KEY, EarlierJob, QueuedJob
from launcher.model.job_spec import Bundle, JobHandle
from launcher.operator.snapshot import STATE_FILE
from launcher.runtime.durable import write_text

_KILL = "kill-on-invalid-dep"
_MARK, _UNANSWERED = "submitted", "unanswered\n"
"""File that shows that a launch of the bundle has called sbatch; without it there is no job to look for. Its content,
while the controller may still act on a request whose answer no launch has seen."""
_REQUEST_S = 10
"""Time limit of a request to the controller unless it is configured. Source: slurm.conf(5), MessageTimeout."""
_SENT_AT_ONCE = 4
"""Bundles that are copied at the same time; sshd allows ten commands per connection. Source: sshd_config(5)."""
_MAY_BE_QUEUED = "the job may be in Slurm's queue"
_NAMED = 5
"""Entries that a notice names."""
_PATIENCE_S = 120.0
"""Time limit for a controller that restarts to answer whether it has a job; its own commands wait for 10 to 20 s."""


def found(handle: JobHandle) -> tuple[str, Seen | None]:
    """Return the id of a bundle's job, "" if it has none, and the job as Slurm has it, None if it does not know it.

    A launch that was killed has recorded no id: its job is found by its name, which has a digest. An id counts only
    with such a name, since a cluster may use an id again.
    """
    folder = handle.bundle_dir
    if not handle.native_id:
        seen = existing([folder]).get(folder)
        return (seen.job_id if seen else ""), seen
    seen = queue_of(place_at(folder)).find(handle.native_id)
    return handle.native_id, seen if seen and _is_of(seen, *_identity(folder)) else None


def place_at(folder: Path) -> Place:
    """Return where the job of a bundle's folder is submitted and followed; E703 if the bundle is damaged."""
    with damage_refused(folder):
        return place_of(_cluster(folder))


def _cluster(folder: Path) -> Mapping[str, Any]:
    cluster: Mapping[str, Any] = store.composed((folder / "recipe.yaml").read_text(encoding="utf-8"))["cluster"]
    return cluster


def _identity(folder: Path) -> tuple[str, ArrayTask | None]:
    """Return the name that a bundle's own job has in Slurm's queue, and the task of an array that it is."""
    with damage_refused(folder):
        name = f"{_cluster(folder)['job_name_prefix']}{unique_name(folder)}"
    return name, run_files.array_task(folder)


def _is_of(job: Seen, own: str, its: ArrayTask | None) -> bool:
    """Return whether a job has a bundle's own name, or is its task of an array."""
    return job.name == own or bool(its and job.name == its.array and job.job_id.endswith(f"_{its.task}"))


def existing(folders: Sequence[Path]) -> dict[Path, Seen]:
    """Return the jobs that launches of bundles have submitted, alone or in an array, by the bundle's folder.

    Jobs that were cleared do not count.
    """
    known = {folder: _identity(folder) for folder in folders}
    names: dict[Place, set[str]] = {}
    for folder, (name, its) in known.items():
        names.setdefault(place_at(folder), set()).update((name, *([its.array] if its else [])))
    jobs = {place: queue.named(wanted, place) for place, wanted in names.items()}
    found = {}
    for folder, identity in known.items():
        own = [job for job in jobs[place_at(folder)] if _is_of(job, *identity)]
        if seen := queue.chosen(own, run_files.cleared(folder)):
            found[folder] = seen
    return found


def submit_all(jobs: Sequence[QueuedJob]) -> list[tuple[str, bool]]:
    """Submit the jobs of bundles unless they exist, those that may share an array in one; all of them, or none.

    Returns:
        The id of each, and whether it is new.
    """
    folders = [job.bundle.directory for job in jobs]
    sent: list[tuple[Request, str]] = []
    with _alone(folders):
        known = [folder for folder in folders if any(jobs_folder(folder).iterdir())]
        ids = {folder: (seen.job_id, False) for folder, seen in _settled(known).items()} if known else {}
        try:
            for request in _accepted([job for job in jobs if job.bundle.directory not in ids]):
                sent.append((request, _send(request)))
        except ProblemsFound as error:
            _take_back(sent, error)
            raise
    for request, native_id in sent:
        ids |= {folder: (job_id, True) for folder, job_id in request.job_ids(native_id).items()}
    return [ids[folder] for folder in folders]


def _settled(folders: Sequence[Path]) -> dict[Path, Seen]:
    """Return the jobs that exist, once the controller has acted on every earlier request for one, or never will.

    A controller that answers has every earlier request, but lists a job only when it has handled its request. An
    sbatch that outlived its launch may send one later (E352).
    """
    first_s: float | None = None
    while True:
        found = existing(folders)
        open_ = [each for each in folders if each not in found and _mark_of(each) == _UNANSWERED]
        now_s = time.monotonic()
        first_s = now_s if first_s is None else first_s
        late = [each for each in open_ if now_s - first_s >= _request_limit_s(place_at(each))]
        if running := [each for each in late if _is_asking(each)]:
            message = "may be submitted yet: the sbatch of an earlier launch still asks the controller"
            remedy = "launch it again when that has ended: pgrep -fa sbatch"
            raise ProblemsFound(
                tuple(Problem("E352", "job", message, value=_identity(each)[0], remedy=remedy) for each in running),
                "no further job was submitted",
            )
        if late == open_:
            _note_answers(jobs_folder(each) / _MARK for each in found if _mark_of(each) == _UNANSWERED)
            return found
        time.sleep(queue.POLL_S)


def _mark_of(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return (jobs_folder(folder) / _MARK).read_text(encoding="ascii")
    return ""


def _request_limit_s(place: Place) -> int:
    given = configured("MessageTimeout", place).partition(" ")[0]
    return int(given) if given.isdigit() else _REQUEST_S


def _is_asking(folder: Path) -> bool:
    """Return whether an sbatch of an earlier launch of a bundle runs where it was called."""
    name, its = _identity(folder)
    names = "|".join(re.escape(each) for each in (name, *([its.array] if its else [])))
    return place_at(folder).run("pgrep", "--full", "--", f"--job-name=({names})( |$)").code == 0


@contextlib.contextmanager
def _alone(folders: Sequence[Path]) -> Iterator[None]:
    """Make the bundles' folders of jobs, and let no other launch of the bundles submit within the block."""
    with contextlib.ExitStack() as locks:
        for folder in sorted(set(folders)):  # in one order, so that no two launches wait for each other
            with os_errors.refusing("E702", "base_results_dir", folder):
                jobs_folder(folder).mkdir(parents=True, exist_ok=True)
                locks.enter_context(locked(jobs_folder(folder)))
        yield


def _take_back(sent: Sequence[tuple[Request, str]], error: ProblemsFound) -> None:
    """Cancel what was submitted before a refusal, so that it can be launched anew."""
    for request, native_id in sent:
        if request.place.run("scancel", native_id).code:
            raise ProblemsFound(
                error.problems, f"job {native_id} was submitted, and could not be cancelled"
            ) from error
        for folder, job_id in request.job_ids(native_id).items():
            run_files.clear(folder, job_id)
        request.discard()


def _accepted(jobs: Sequence[QueuedJob]) -> list[Request]:
    """Return the requests that submit jobs, or raise every reason why one of them would be refused."""
    waiting = {job.bundle.directory: job for job in jobs}
    made, problems = [], [problem for job in jobs for problem in job.problems]
    groups = requests.grouped([job.bundle for job in jobs])
    for bundles in groups:
        job, config = waiting[bundles[0].directory], store.config_of(bundles[0])
        cluster = config["cluster"]
        if job.after and "?" in (dependency := cluster.get("dependency") or ""):
            message = f"has alternatives, which cannot be combined with {KEY}"
            remedy = f"name every job in cluster.dependency, and {KEY}=null"
            problems.append(Problem("E454", "cluster.dependency", message, value=dependency, remedy=remedy))
        memory = limits.share_of_memory(cluster, place_of(cluster))
        request = requests.request_for(bundles, (*_dependency_words(job.after, cluster), *memory))
        problems += preflight.problems(request, is_tried=len(groups) > 1)
        made.append(request)
    raise_any(each for i, each in enumerate(problems) if each not in problems[:i])
    return made


def _dependency_words(after: Sequence[EarlierJob], cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options for what a job waits for, beside `cluster.dependency`.

    A job that can no longer start is cancelled, unless the user wants otherwise, so that a chain ends.
    """
    if not after:
        return
    waits = [f"after{each.condition}:{_id(each)}" for each in after]
    yield f"--dependency={','.join((*waits, *filter(None, [cluster.get('dependency')])))}"
    if _KILL not in map(plain, cluster.get("additional_parameters") or ()):
        yield f"--{_KILL}=yes"


def _id(earlier: EarlierJob) -> str:
    """Return the id of a job that another waits for; Slurm would not wait for one that it does not know."""
    job_id, seen = found(earlier.handle)
    if seen is None:
        raise fail("E451", KEY, "is not known to Slurm, which would not wait for it", value=earlier.handle.job_name)
    return job_id


def _send(request: Request) -> str:
    """Submit a request; return the id of its job or array.

    Raises:
        ProblemsFound: sbatch refuses, or the controller does not answer whether it has the job (E352).
    """
    try:
        request.prepare()
        folder = _made_available(request)
        env = request.place.environment(request.folder)
        new = _mark(request)
    except ProblemsFound:
        request.discard()
        raise
    for bundle in request.bundles:
        sources = job_secrets(store.config_of(bundle)).values()
        env |= {name: value for name in sources if (value := variables.current().get(name)) is not None}
    try:
        answer = preflight.answer_of_sbatch(request, "--parsable", request.file, folder=folder, env=env)
    except ProblemsFound as error:  # Slurm may have the job, although its answer was lost
        native_id = queue.array_of(_found_again(request, error))
    else:
        native_id = answer.out.strip().partition(";")[0]
        if answer.code or not native_id.isdigit():
            native_id = _looked_up(request, answer, new)
    finally:
        queue_of(request.place).forget()
    _note_answers(_marks(request.bundles))
    return native_id


def _looked_up(request: Request, answer: programs.Answer, new: Sequence[Path]) -> str:
    """Return the id of a job that sbatch did not print, or raise why it has none."""
    is_unanswered = answer.is_lost or answer.code == 0
    if (answer.is_unreachable or is_unanswered) and (job := _in_doubt(request)):
        return queue.array_of(job.job_id)
    if is_unanswered:  # a controller that works on the request does not list the job yet
        raise ProblemsFound((*programs.unanswered("sbatch", answer).problems, _unknown(request)), _MAY_BE_QUEUED)
    request.discard()
    _note_answers(_marks(request.bundles), refused=new)
    raise ProblemsFound((preflight.refusal(answer, request.config),))


def _mark(request: Request) -> list[Path]:
    """Note that sbatch is called; return the files that no earlier call has made."""
    marks = _marks(request.bundles)
    new = [mark for mark in marks if not mark.exists()]
    with os_errors.refusing("E702", "base_results_dir", request.folder):
        for bundle in request.bundles:
            if is_elastic(bundle.directory):  # what an earlier job published is not this one's
                request.place.remove(bundle.directory, (STATE_FILE,))
        for mark in marks:
            write_text(mark, _UNANSWERED)
    return new


def _marks(bundles: Sequence[Bundle]) -> list[Path]:
    return [jobs_folder(bundle.directory) / _MARK for bundle in bundles]


def _note_answers(marks: Iterable[Path], refused: Sequence[Path] = ()) -> None:
    """Note that the outcomes of calls are known; where the only one was refused, there is no job to look for."""
    for mark in marks:
        with contextlib.suppress(OSError):  # the next launch looks twice
            if mark in refused:
                mark.unlink(missing_ok=True)
            else:
                write_text(mark, "")


def _in_doubt(request: Request) -> Seen | None:
    """Return the job of a submission whose answer was lost; None if the controller does not have it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _arrived(request)
        except ProblemsFound as error:
            if time.monotonic() > deadline:
                raise ProblemsFound((_unknown(request), *error.problems), _MAY_BE_QUEUED) from error
        time.sleep(queue.POLL_S)


def _unknown(request: Request) -> Problem:
    message = "may have been submitted: the controller broke off, and has not listed the job since"
    return Problem("E352", "job", message, value=request.name, remedy="launch it again; it is submitted once")


def _arrived(request: Request) -> Seen | None:
    cleared = [] if request.is_array else run_files.cleared(request.folder)
    return queue.chosen(queue.named([request.name], request.place), cleared)


def _found_again(request: Request, lost: ProblemsFound) -> str:
    """Return the id of a job whose submission was not answered. If it is not found, the next launch looks again."""
    with contextlib.suppress(ProblemsFound):
        if job := _arrived(request):
            return job.job_id
    names = " ".join(bundle.directory.name for bundle in request.bundles)
    outcome = f"whether Slurm has the job is not known: recipes launch {names} finds or submits it"
    raise ProblemsFound(lost.problems, outcome) from lost


def _made_available(request: Request) -> str:
    """Copy the code of the jobs, and everything to where it is submitted; return the folder to submit from."""
    for bundle in request.bundles:
        source = code.of_bundle(bundle)
        if source and (left_out := code.place(source, bundle.directory.resolve())):
            message = f"left out of the copy of the code: {first_of(left_out, _NAMED)}"
            console.show_notice(Notice("N196", message), stderr=True)

    folder = request.place.send(request.bundles[0])  # and what all of them need
    if not request.is_array:
        return folder
    with ThreadPoolExecutor(_SENT_AT_ONCE) as pool:
        list(pool.map(request.place.send, request.bundles[1:]))
    return request.place.send_array(request.folder, request.bundles)
