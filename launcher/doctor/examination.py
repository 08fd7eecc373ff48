"""The questions about a job, and their answers in order. Nothing is written, and nothing is created."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from launcher import pipeline
from launcher.common.problems import Problem, ProblemsFound
from launcher.common.texts import counted
from launcher.config.composed_files import CompositionCache
from launcher.doctor import inputs, machine
from launcher.job_store import tracking, tracking_store
from launcher.model import family_registry
from launcher.model.backend_registry import described
from launcher.model.context import LaunchContext
from launcher.model.finding import Answer, Finding, Question, answers, clock, found, ok
from launcher.model.job_spec import JobSpec

_RECIPE, _PLACE, _TRACKING = "recipe", "cluster", "tracking"


def examine(
    overrides: Sequence[str],
    context: LaunchContext,
    cache: CompositionCache,
    deadline_s: float,
    show: Callable[[int, int], None],
) -> Iterator[Finding]:
    """Yield what is found about the job that overrides compile to, at least one line for each subject.

    Args:
        overrides: As on the command line.
        context: Everything else that a launch depends on.
        cache: Files that earlier compilations have read.
        deadline_s: Time limit of all questions together, in seconds: they are asked at the same time.
        show: Called with the number of answered questions, and of all, while it waits.
    """
    try:
        prepared = pipeline.prepared(overrides, context, cache, needs_inputs=False)
    except ProblemsFound as error:
        yield from (found(_RECIPE, problem) for problem in error.problems)
        return
    job = prepared.job
    sizes = f"{counted(len(job.scales), 'size')}, {job.scales[0].nodes} to {counted(job.max_nodes, 'node')}"
    yield ok(_RECIPE, f"{job.recipe} is valid at {sizes}" if job.elastic else f"{job.recipe} is valid")
    lacking = [(_subject(job, problem), problem) for problem in pipeline.absent(prepared)]
    yield from (found(subject, problem) for subject, problem in lacking)
    questions = [*inputs.questions(prepared), *machine.questions(prepared)]
    if tracking.is_tracked(job):
        questions.append(Question(_TRACKING, partial(_tracking, job, context)))
    faulty = {subject for subject, _ in lacking}
    questions = [question for question in questions if question.subject not in faulty]
    doctor = described(job.backend).doctor()
    if doctor:
        try:
            bundle = pipeline.render(job, context)
            questions.append(Question(_PLACE, lambda: doctor.examine(job, bundle)))
        except ProblemsFound as error:
            yield from (found(_RECIPE, problem) for problem in error.problems)
    yield from answers(questions, deadline_s, doctor.unanswered if doctor else frozenset(), show)


def _tracking(job: JobSpec, context: LaunchContext) -> Iterator[Answer]:
    """Yield whether the tracking server answers, and its clock, which is compared with this machine's."""
    uri, now = tracking.contacted(job, context)
    yield ok(_TRACKING, f"{uri} {'answers' if now else 'is where runs are written'}")
    if now:
        yield clock("the tracking server", now)


def _subject(job: JobSpec, problem: Problem) -> str:
    """Return the subject of what a job lacks on this machine."""
    if given := family_registry.open_recipe(job.recipe_tree):
        subjects = {given.train: "data", given.validation: "data", given.model: "model", given.adapters: "model"}
        if subject := subjects.get(problem.path.removeprefix("recipes.")):
            return subject
    if problem.path == tracking_store.URI:
        return _TRACKING
    return "messages" if problem.path.startswith("notify") else "this machine"
