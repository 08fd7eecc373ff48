"""A job's scenario: read from its file and the command line, checked, and completed for the job."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from launcher.backends.local.rehearsal import Progress, advance, begin
from launcher.backends.local.scenario import (
    OWN_CLASS,
    PRIORITY_CLASSES,
    At,
    Event,
    Scenario,
    ScenarioFile,
    Tier,
)
from launcher.backends.local.simulation import local_options
from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, first_line, shown
from launcher.common.suggestions import did_you_mean
from launcher.common.texts import counted
from launcher.model.composition import nearest_origin
from launcher.model.config_tree import get
from launcher.model.family_registry import interface
from launcher.model.job_spec import JobSpec, start_size
from launcher.model.validation import type_problems

SHIPPED = COLLECTION / "scenarios"
PREEMPTION = "recipes.elastic_policy.preemption"
_FILE_PATH = "cluster.scenario"


_NOT_READ = ScenarioFile(events=[])

_Events = list[tuple[str, Event]]
"""Every event with its dotted path, in order."""


def shipped_names() -> list[str]:
    """Return the names of the scenarios that come with the launcher, sorted."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def resolve(job: JobSpec) -> tuple[Scenario | None, tuple[Problem, ...]]:
    """Return the scenario of a job of cluster=local, from the file it names and the events it lists.

    Returns:
        The scenario, None if it cannot be read; and every Problem found in it.
    """
    settings = local_options(job)
    own, own_problems, lines = _read(settings.scenario, job.cwd) if settings.scenario else (_NOT_READ, (), {})
    inline, inline_problems = type_problems(ScenarioFile, {"events": settings.events or []}, "cluster")
    typed = {text.lstrip("+").partition("=")[0]: shown(text) for text in job.overrides}
    origins = {**typed, **lines}

    def located(problems: Iterable[Problem]) -> tuple[Problem, ...]:
        return tuple(replace(problem, where=nearest_origin(origins, problem.path)) for problem in problems)

    if problems := (*own_problems, *inline_problems):
        return None, located(problems)
    written = _rehearsed(job, settings.scenario, own.events)
    events = [(f"{_FILE_PATH}.events.{i}", event) for i, event in enumerate(written)]
    events += [(f"cluster.events.{i}", event) for i, event in enumerate(inline.events)]
    # Without a number of nodes, the cluster has those that the job would start with without a scenario.
    planned = start_size(get(job.config, "recipes.trainer.num_nodes"), [point.nodes for point in job.scales])
    scenario = Scenario(
        about=own.about or "",
        nodes=planned if own.nodes is None else own.nodes,
        priority_classes=PRIORITY_CLASSES if own.priority_classes is None else own.priority_classes,
        tiers=_tiers(job),
        nproc_per_node=job.nproc_per_node,
        events=[event for _, event in events],
    )
    return scenario, located(
        (
            *_unknown_classes(scenario, events),
            *_tiers_out_of_order(scenario),
            *_arrivals_and_departures(events),
            *_never_fits(job, scenario),
        )
    )


def initial_nodes(job: JobSpec) -> int | None:
    """Return the first number of nodes of a job in its scenario; None if it never gets enough.

    In a scenario a job takes the largest of its sizes that fits, whatever size its recipe starts with.
    """
    scenario, problems = resolve(job)
    if scenario is None or problems:
        return None
    cluster = begin(scenario)
    for now_s in sorted({0.0, *(event.at.seconds for event in scenario.events if event.at.seconds is not None)}):
        cluster, _ = advance(cluster, Progress(now_s, 0, 0), 0)
        if fitting := [point.nodes for point in job.scales if point.nodes <= cluster.capacity]:
            return max(fitting)
    return None


def _rehearsed(job: JobSpec, scenario: str | None, events: list[Event]) -> list[Event]:
    """Return a file's events; those of a shipped file earlier where the job is a rehearsal."""
    is_shorter = job.is_rehearsal and scenario in shipped_names()
    steps = interface(job).rehearsal_steps(job)[0] if is_shorter else 0
    return _brought_forward(events, steps) if steps else events


def _brought_forward(events: list[Event], steps: int) -> list[Event]:
    """Return the events of a shipped scenario, which are written for longer jobs, within `steps` steps.

    Those counted in steps keep their order and proportions; the last comes after two thirds of the steps.
    """
    in_steps = [event.at.step for event in events if event.at.step]
    last = max(1, steps * 2 // 3)
    if not in_steps or max(in_steps) <= last:
        return events
    scale = last / max(in_steps)
    return [
        event.model_copy(update={"at": At(step=max(1, round(event.at.step * scale)))}) if event.at.step else event
        for event in events
    ]


def _read(name: str, cwd: Path) -> tuple[ScenarioFile, tuple[Problem, ...], Mapping[str, str]]:
    """Read a scenario: a file if the name ends in .yaml or .yml, otherwise one of those shipped.

    Returns:
        The scenario, a placeholder if it has Problems; and `file:line` of each dotted path.
    """
    is_file = name.endswith((".yaml", ".yml"))
    if not is_file and name not in (known := shipped_names()):
        remedy = did_you_mean(name, known) or "your own file must end in .yaml"
        message, allowed = "no such scenario", ", ".join(known)
        return _NOT_READ, (Problem("E406", _FILE_PATH, message, name, allowed, remedy),), {}
    file = cwd / os.path.expanduser(name) if is_file else SHIPPED / f"{name}.yaml"
    try:
        tree, node = yaml_io.load_with_nodes(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        return _NOT_READ, (Problem("E407", _FILE_PATH, _unreadable(error), name),), {}
    origins = dict(_lines(node, _FILE_PATH, name if is_file else f"scenarios/{file.name}"))
    written, problems = type_problems(ScenarioFile, tree, _FILE_PATH)
    # Of a missing or mistyped key the remedy is an override: values in a file cannot be overridden.
    shown_problems = tuple(replace(each, remedy=None) if each.code in ("E102", "E103") else each for each in problems)
    return written, shown_problems, origins


def _unreadable(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8: {error.reason} at byte {error.start}"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"is not valid YAML at line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return f"is not valid YAML: {first_line(error)}"


def _lines(node: yaml.Node | None, path: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield dotted path and `file:line` of every value, `path` itself among them."""
    pending = [(path, node)] if node else []
    seen: set[int] = set()  # an alias refers to its anchor
    while pending:
        here, value = pending.pop()
        yield here, f"{name}:{value.start_mark.line + 1}"
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, yaml.MappingNode):
            pending += [(f"{here}.{key.value}", child) for key, child in value.value]
        elif isinstance(value, yaml.SequenceNode):
            pending += [(f"{here}.{i}", child) for i, child in enumerate(value.value)]


def _tiers(job: JobSpec) -> list[Tier]:
    preemption = job.elastic.preemption if job.elastic else None
    if preemption is None or job.elastic is None:
        return [Tier(name="job", nodes=job.max_nodes, priority_class=OWN_CLASS)]
    base, most = job.elastic.min_nodes, job.elastic.max_nodes
    return [
        Tier(name="base", nodes=base, priority_class=preemption.base_priority_class),
        Tier(name="elastic", nodes=most - base, priority_class=preemption.elastic_priority_class),
    ]


def _unknown_classes(scenario: Scenario, events: _Events) -> Iterator[Problem]:
    """Check that each job's priority class is defined by the scenario."""
    classes = scenario.priority_classes
    for path, event in events:
        if event.job_arrives and (name := event.job_arrives.priority) not in classes:
            yield _unknown_class(f"{path}.job_arrives.priority", name, classes)
    for tier in scenario.tiers:
        if tier.priority_class not in classes:
            path = f"{_FILE_PATH}.priority_classes"
            if tier.name != "job":
                path = f"{PREEMPTION}.{tier.name}_priority_class"
            yield _unknown_class(path, tier.priority_class, classes)


def _unknown_class(path: str, name: str, classes: Mapping[str, int]) -> Problem:
    is_own = path.startswith(_FILE_PATH) and path.endswith("classes")
    message = f"lacks {name}, the class of this job" if is_own else "is not a priority class of the scenario"
    allowed = ", ".join(sorted(classes, key=classes.__getitem__)) or None
    remedy = f"add {name}: {PRIORITY_CLASSES[name]}" if is_own else did_you_mean(name, sorted(classes))
    return Problem("E409", path, message, None if is_own else name, allowed, remedy)


def _tiers_out_of_order(scenario: Scenario) -> Iterator[Problem]:
    """Check that the base part of a job outranks its elastic part."""
    classes = scenario.priority_classes
    priorities = [classes[tier.priority_class] for tier in scenario.tiers if tier.priority_class in classes]
    if len(priorities) == 2 and priorities[0] <= priorities[1]:
        base, elastic = scenario.tiers
        path, first = f"{PREEMPTION}.base_priority_class", base.priority_class
        message = f"{first} ({priorities[0]}) does not outrank {elastic.priority_class} ({priorities[1]})"
        remedy = "give the base part the class with the higher number"
        yield Problem("E411", path, message, first, remedy=remedy)


def _arrivals_and_departures(events: _Events) -> Iterator[Problem]:
    """Check that each job arrives before it leaves, and leaves before it arrives again."""
    names = dict.fromkeys(name for _, event in events if (name := _other_job(event)))
    for name in names:
        is_present = False
        for path, event in _in_order(name, events):
            if event.job_arrives and is_present:
                message = f"job {name} arrives a second time before it leaves"
                yield Problem("E408", f"{path}.job_arrives.name", message, name)
            elif event.job_leaves and not is_present:
                message = f"job {name} leaves at {event.at}, before any such job has arrived"
                arriving = sorted({each.job_arrives.name for _, each in events if each.job_arrives})
                remedy, allowed = did_you_mean(name, [n for n in arriving if n != name]), ", ".join(arriving) or None
                yield Problem("E408", f"{path}.job_leaves", message, name, allowed, remedy)
            is_present = bool(event.job_arrives)


def _in_order(name: str, events: _Events) -> _Events:
    """Return the events of another job by time or, if their units differ, as listed: only the run has their order."""
    own = [(path, event) for path, event in events if _other_job(event) == name]
    if len({event.at.unit for _, event in own}) == 1:
        own.sort(key=lambda item: item[1].at.value)
    return own


def _other_job(event: Event) -> str | None:
    return event.job_arrives.name if event.job_arrives else event.job_leaves


def _never_fits(job: JobSpec, scenario: Scenario) -> Iterator[Problem]:
    """Check that the job gets nodes before its first step: while it waits, only time passes."""
    smallest = min(point.nodes for point in job.scales)
    timed = [event for event in scenario.events if event.at.seconds is not None or event.at.value == 0]
    most = max(scenario.nodes, *(event.capacity or 0 for event in timed), 0)
    if most < smallest:
        needed = counted(smallest, "node")
        message = f"the job needs {needed}, but the cluster has no more than {most} before its first step"
        allowed = f"{smallest} or more, at first or at some second"
        yield Problem("E410", f"{_FILE_PATH}.nodes", message, scenario.nodes, allowed)
