"""The stages of a launch, in order.

overrides ─compose→ Composition ─check→ CheckedRecipe ─plan, notices→ JobSpec
    ─render→ Bundle ─write, submit→ JobRecord
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from launcher import rules
from launcher.bundle import store as bundles
from launcher.bundle.render import directory, render_bundle
from launcher.bundle.store import existing
from launcher.common import redaction
from launcher.common.names import REPRODUCE_FILE
from launcher.common.problems import Problem, ProblemsFound, raise_any
from launcher.config.compose import compose
from launcher.config.composed_files import CompositionCache
from launcher.job_store import chains, notifications, registry, tracking
from launcher.job_store.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.context import LaunchContext, current_user
from launcher.model.family_registry import interface
from launcher.model.job_spec import Bundle, JobHandle, JobSpec, JobState
from launcher.model.validation import with_origin
from launcher.planning.check import check, is_misspelt_choice, type_faults
from launcher.planning.job_planner import plan
from launcher.reproduction import record as records


class Prepared(NamedTuple):
    """A job before it is rendered: the typed recipe, and its plan."""

    checked: CheckedRecipe
    job: JobSpec


def prepare(overrides: Sequence[str], context: LaunchContext, cache: CompositionCache | None = None) -> JobSpec:
    """Return the planned job, as `prepared` does."""
    return prepared(overrides, context, cache).job


def prepared(
    overrides: Sequence[str],
    context: LaunchContext,
    cache: CompositionCache | None = None,
    *,
    needs_inputs: bool = True,
) -> Prepared:
    """Compose, check, plan and collect what the user should know. Pure, but for files that `cache` has read.

    Args:
        overrides: Hydra overrides, as on the command line.
        context: Everything else that a launch depends on.
        cache: Files that earlier launches of this process have read; None for the first.
        needs_inputs: Whether what `absent` returns is a fault.

    Raises:
        ProblemsFound: Every fault in what the user gave.
    """
    try:
        found = _prepared(overrides, context, cache)
        if needs_inputs:
            raise_any(absent(found))
        return found
    except ProblemsFound as error:
        from launcher.planning import corrections, hidden_faults  # only a faulty command line pays for them

        def faults_of(words: Sequence[str]) -> frozenset[tuple[str, str]]:
            try:
                raise_any(absent(_prepared(words, context, cache)))
            except ProblemsFound as found:
                return frozenset((problem.code, problem.path) for problem in found.problems)
            return frozenset()

        def tree_of(words: Sequence[str]) -> Mapping[str, Any] | None:
            try:
                return compose(words, context.cwd, cache=cache).tree
            except ProblemsFound:
                return None

        def typed(words: Sequence[str]) -> Sequence[Problem]:
            return type_faults(compose(words, context.cwd, cache=cache))

        cache = cache or CompositionCache()
        problems = error.problems
        if all(map(is_misspelt_choice, problems)) or tree_of(overrides) is None:
            problems, overrides = hidden_faults.with_hidden(problems, overrides, typed)
        raise ProblemsFound(corrections.corrected(problems, overrides, tree_of, faults_of)) from error


def _prepared(overrides: Sequence[str], context: LaunchContext, cache: CompositionCache | None) -> Prepared:
    composition = compose(overrides, context.cwd, context.suffix, cache)
    checked = check(composition)
    job = plan(checked, context)
    return Prepared(checked, dataclasses.replace(job, notices=rules.notices(checked, job)))


def absent(prepared: Prepared) -> tuple[Problem, ...]:
    """Return what a valid job lacks on this machine: its files and packages, and what its backend supports."""
    checked, job = prepared
    backend: Backend = backend_registry.load_backend(job.backend)
    found = [*interface(job).absent_inputs(job), *tracking.unusable(job), *backend.check(job)]
    return (*with_origin(checked.composition, found), *notifications.problems(job))


def render(job: JobSpec, context: LaunchContext) -> Bundle:
    """Render a planned job. Pure: the same job and context give the same bytes."""
    bundle = render_bundle(job, context, backend_registry.load_backend(job.backend))
    remedy = backend_registry.described(job.backend).secrets.in_env_vars
    # A secret may have reached a file from elsewhere than a value of the configuration, which the check reads.
    exposed = {where: name for name, text in reversed([*bundle.files.items()]) for where in redaction.exposed(text)}
    raise_any(
        Problem("E610", f"{bundle.directory.name}/{name}", f"would hold the value of {where}", remedy=remedy)
        for where, name in exposed.items()
    )
    return bundle


def validate(job: JobSpec, context: LaunchContext) -> None:
    """Validate a job where it is to run. Writes and creates nothing.

    Raises:
        ProblemsFound: Every reason for which it would be refused.
    """
    backend, bundle = backend_registry.load_backend(job.backend), render(job, context)
    waited = chains.queued(bundle, backend).problems if backend_registry.described(job.backend).queue() else ()
    raise_any((*waited, *backend.validate(bundle)))


def track(job: JobSpec, context: LaunchContext, *, is_launched: bool = True, is_visible: bool = False) -> JobSpec:
    """Reserve the job's MLflow run, after everything that can fail without it has been tried.

    Args:
        is_launched: Whether its bundle is launched now; if not, `complete` reserves the run at the launch.
        is_visible: Whether the run is visible before the job is launched.

    Raises:
        ProblemsFound: The bundle cannot be written where it should, or tracking refuses.
    """
    if not tracking.is_tracked(job):
        return job
    bundles.refuse_unwritable(directory(job))
    if not is_launched:
        return postponed(job, context)
    return tracking.reserve_run(job, context, is_visible=is_visible)


def postponed(job: JobSpec, context: LaunchContext) -> JobSpec:
    """Return a job whose MLflow run its launch reserves. Writes nothing.

    Raises:
        ProblemsFound: The job could not reach the tracking store, or a plugin is missing.
    """
    return tracking.postpone_run(job, context) if tracking.is_tracked(job) else job


def complete(bundle: Bundle) -> Bundle:
    """Reserve the MLflow run of a bundle on disk, if a dry run left that to the launch.

    Raises:
        ProblemsFound: The tracking store or the disk refuses.
    """
    if not tracking.lacks_run(bundle):
        run_id = bundles.assigned_run(bundle.directory)  # an interrupted launch may not have written it everywhere
        return bundles.assign_run(bundle, run_id) if run_id else bundle
    with registry.launching(bundle.directory):
        return tracking.assign_run(bundle)


def write(bundle: Bundle) -> None:
    """Write a bundle to disk, with a record of the code, data, image and packages that its job would use now.

    Raises:
        ProblemsFound: Something of that name exists, or the disk refuses.
    """
    record = records.take(bundle.sources) if bundle.sources else None
    bundles.write(bundle, {REPRODUCE_FILE: records.as_text(record)} if record else None)


def submit(bundle: Bundle, backend: Backend) -> JobRecord:
    """Start the job of a bundle that is on disk, and record where it runs.

    Raises:
        ProblemsFound: The backend, the tracking store or the disk refuses.
    """
    return submit_all((bundle,), backend)[0]


def submit_all(bundles: Sequence[Bundle], backend: Backend) -> tuple[JobRecord, ...]:
    """Start the jobs of bundles that are on disk, all or none, and record where they run.

    Args:
        bundles: One bundle, or several of a backend with a queue.

    Raises:
        ProblemsFound: The backend, the tracking store or the disk refuses.
    """
    for bundle in bundles:
        registry.refuse_unwritable(bundle.directory)
        records.renew(bundle)
    _start_runs(bundles, backend)
    handles: tuple[JobHandle, ...] = ()
    try:
        with contextlib.ExitStack() as submitting:
            for bundle in bundles:
                submitting.enter_context(registry.submitting(bundle, backend, current_user()))
                submitting.enter_context(existing(bundle.directory))
            handles = _started(bundles, backend)
        found = zip(bundles, handles, strict=True)
        return tuple(registry.record(bundle, handle, current_user()) for bundle, handle in found)
    except (ProblemsFound, KeyboardInterrupt) as error:
        is_undone = not handles and getattr(error, "outcome", None) is None
        if is_undone or backend_registry.described(backend.name).runs_here:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            for bundle, handle in itertools.zip_longest(bundles, handles):
                _end_refused(bundle, backend, handle, is_interrupted=is_interrupted)
        raise


def _start_runs(bundles: Sequence[Bundle], backend: Backend) -> None:
    """Mark the MLflow runs of bundles as running; if one is refused, those before it have failed."""
    for number, bundle in enumerate(bundles):
        try:
            tracking.start(bundle)
        except (ProblemsFound, KeyboardInterrupt):
            for started in bundles[:number]:
                _end_refused(started, backend, None, is_interrupted=False)
            raise


def _started(bundles: Sequence[Bundle], backend: Backend) -> tuple[JobHandle, ...]:
    if queue := backend_registry.described(backend.name).queue():
        return queue.submit_all([chains.queued(bundle, backend) for bundle in bundles])
    (bundle,) = bundles
    return (backend.submit(bundle),)


def _end_refused(bundle: Bundle, backend: Backend, handle: JobHandle | None, *, is_interrupted: bool) -> None:
    """End a job that this process cannot follow, and set its run's final state; the first refusal is reported."""
    with contextlib.suppress(ProblemsFound):
        if handle:
            backend.cancel(handle)
        if (state := registry.refused(bundle.directory, backend)).is_final:
            tracking.finish(bundle, JobState.CANCELLED if is_interrupted and state is JobState.FAILED else state)
