"""The questions about a job, and their answers in order. Nothing is written, and nothing is created."""

from collections.abc import Callable, Iterator, Sequence

from launcher import pipeline
from launcher.common.problems import Problem, ProblemsFound
from launcher.common.texts import counted
from launcher.config.composed_files import CompositionCache
from launcher.doctor import inputs, machine, services
from launcher.model import family_registry
from launcher.model.backend_registry import described
from launcher.model.context import LaunchContext
from launcher.model.finding import Finding, FindingState, Question, answers, found, ok
from launcher.model.job_spec import JobSpec
from launcher.pipeline import Prepared

DEADLINE_S = 30.0
"""Time limit of all questions together: they are asked at the same time."""
_RECIPE, _PLACE = "recipe", "cluster"


def would_fail(findings: Sequence[Finding]) -> bool:
    """Return whether a job with these findings would be refused, would never start, or would fail."""
    return any(finding.state is FindingState.FAILURE for finding in findings)


def examine(
    overrides: Sequence[str],
    context: LaunchContext,
    cache: CompositionCache | None = None,
    *,
    deadline_s: float = DEADLINE_S,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Finding]:
    """Yield what is found about the job that overrides compile to, at least one line for each subject.

    Args:
        overrides: As on the command line.
        context: Everything else that a launch depends on.
        cache: Files that earlier compilations have read.
        deadline_s: Time limit of all questions together, in seconds.
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
    questions = list(_here(prepared, context, {subject for subject, _ in lacking}))
    doctor = described(job.backend).doctor()
    if doctor:
        try:
            bundle = pipeline.render(job, context)
            questions.append(Question(_PLACE, lambda: doctor.examine(job, bundle)))
        except ProblemsFound as error:
            yield from (found(_RECIPE, problem) for problem in error.problems)
    yield from answers(questions, deadline_s, doctor.unanswered if doctor else frozenset(), show)


def _here(prepared: Prepared, context: LaunchContext, known: set[str]) -> Iterator[Question]:
    """Yield the questions that this machine answers, but those whose subject is known to be faulty."""
    every = (*inputs.questions(prepared), *machine.questions(prepared), *services.questions(prepared, context))
    yield from (question for question in every if question.subject not in known)


def _subject(job: JobSpec, problem: Problem) -> str:
    """Return the subject of what a job lacks on this machine."""
    if given := family_registry.open_recipe(job.recipe_tree):
        subjects = {given.train: "data", given.validation: "data", given.model: "model", given.adapters: "model"}
        if subject := subjects.get(problem.path.removeprefix("recipes.")):
            return subject
    return "messages" if problem.path.startswith("notify") else "this machine"
