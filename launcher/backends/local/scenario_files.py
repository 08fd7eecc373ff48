"""A job's scenario: read from its file and the command line, checked, and completed for the job."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from launcher.common.problems import Problem, shown
from launcher.common.suggestions import did_you_mean
from launcher.common.texts import counted
from launcher.families import interface
from launcher.model.composition import nearest_origin
from launcher.model.config_tree import get
from launcher.model.job_spec import JobSpec, start_size
from launcher.model.validation import type_problems

SHIPPED = COLLECTION / "scenarios"
PREEMPTION = "recipes.elastic_policy.preemption"
_FILE_PATH = "cluster.scenario"


@dataclass(frozen=True, slots=True)
class _Reading:
    """A scenario as read from its file, a placeholder if it has problems; and `file:line` of each dotted path."""

    written: ScenarioFile
    problems: tuple[Problem, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Listing:
    """Every event with its dotted path, in order, and the place where each path is set."""

    events: tuple[tuple[str, Event], ...]
    origins: Mapping[str, str]

    def problem(self, code: str, path: str, message: str, **details: Any) -> Problem:
        """Return a Problem with its origin."""
        return Problem(code, path, message, where=nearest_origin(self.origins, path), **details)


def shipped_names() -> list[str]:
    """Return the names of the scenarios that come with the launcher, sorted."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def resolve(job: JobSpec) -> tuple[Scenario | None, tuple[Problem, ...]]:
    """Return the scenario of a job of cluster=local, from the file it names and the events it lists.

    Returns:
        The scenario, None if it cannot be read; and every Problem found in it.
    """
    settings = local_options(job)
    reading = _read(settings.scenario, job.cwd) if settings.scenario else _unread()
    inline, inline_problems = type_problems(ScenarioFile, {"events": settings.events or []}, "cluster")
    typed = {text.lstrip("+").partition("=")[0]: shown(text) for text in job.overrides}
    origins = {**typed, **reading.origins}
    if problems := (*reading.problems, *inline_problems):
        return None, tuple(replace(problem, where=nearest_origin(origins, problem.path)) for problem in problems)
    written = _rehearsed(job, settings.scenario, reading.written.events)
    events = [(f"{_FILE_PATH}.events.{i}", event) for i, event in enumerate(written)]
    events += [(f"cluster.events.{i}", event) for i, event in enumerate(inline.events)]
    own = reading.written
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
    listing = _Listing(tuple(events), origins)
    rules = (_unknown_classes, _tiers_out_of_order, _arrivals_and_departures, _never_fits)
    return scenario, tuple(problem for rule in rules for problem in rule(job, scenario, listing))


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
    steps = interface(job.model_type, job.trainer).rehearsal_steps(job)[0] if is_shorter else 0
    return _brought_forward(events, steps) if steps else events


def _brought_forward(events: list[Event], steps: int) -> list[Event]:
    """Return the events of a shipped scenario, which are written for longer jobs, within `steps` steps.

    Those counted in steps keep their order and proportions; the last comes after two thirds of the steps.
    """
    counted = [event.at.step for event in events if event.at.step]
    last = max(1, steps * 2 // 3)
    if not counted or max(counted) <= last:
        return events
    scale = last / max(counted)
    return [
        event.model_copy(update={"at": At(step=max(1, round(event.at.step * scale)))}) if event.at.step else event
        for event in events
    ]


def _read(name: str, cwd: Path) -> _Reading:
    """Read a scenario: a file if the name ends in .yaml or .yml, otherwise one of those shipped."""
    is_file = name.endswith((".yaml", ".yml"))
    if not is_file and name not in (known := shipped_names()):
        remedy = did_you_mean(name, known) or "your own file must end in .yaml"
        message, allowed = "no such scenario", ", ".join(known)
        return _unread(Problem("E406", _FILE_PATH, message, value=name, allowed=allowed, remedy=remedy))
    file = cwd / os.path.expanduser(name) if is_file else SHIPPED / f"{name}.yaml"
    try:
        text = file.read_text(encoding="utf-8")
        tree, node = yaml_io.load(text), yaml_io.load_nodes(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        return _unread(Problem("E407", _FILE_PATH, _unreadable(error), value=name))
    origins = dict(_lines(node, _FILE_PATH, name if is_file else f"scenarios/{file.name}"))
    written, problems = type_problems(ScenarioFile, tree, _FILE_PATH)
    # Of a missing or mistyped key the remedy is an override: values in a file cannot be overridden.
    shown_problems = tuple(replace(each, remedy=None) if each.code in ("E102", "E103") else each for each in problems)
    return _Reading(written, shown_problems, origins)


def _unread(*problems: Problem) -> _Reading:
    return _Reading(ScenarioFile(events=[]), problems)


def _unreadable(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8: {error.reason} at byte {error.start}"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"is not valid YAML at line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return f"is not valid YAML: {str(error).splitlines()[0]}"


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


def _unknown_classes(_job: JobSpec, scenario: Scenario, listing: _Listing) -> Iterator[Problem]:
    """Check that each job's priority class is defined by the scenario."""
    classes = scenario.priority_classes
    for path, event in listing.events:
        if event.job_arrives and (name := event.job_arrives.priority) not in classes:
            yield _unknown_class(f"{path}.job_arrives.priority", name, classes, listing)
    for tier in scenario.tiers:
        if tier.priority_class not in classes:
            path = f"{_FILE_PATH}.priority_classes"
            if tier.name != "job":
                path = f"{PREEMPTION}.{tier.name}_priority_class"
            yield _unknown_class(path, tier.priority_class, classes, listing)


def _unknown_class(path: str, name: str, classes: Mapping[str, int], listing: _Listing) -> Problem:
    is_own = path.startswith(_FILE_PATH) and path.endswith("classes")
    message = f"lacks {name}, the class of this job" if is_own else "is not a priority class of the scenario"
    allowed = ", ".join(sorted(classes, key=classes.__getitem__)) or None
    remedy = f"add {name}: {PRIORITY_CLASSES[name]}" if is_own else did_you_mean(name, sorted(classes))
    return listing.problem("E409", path, message, value=None if is_own else name, allowed=allowed, remedy=remedy)


def _tiers_out_of_order(_job: JobSpec, scenario: Scenario, listing: _Listing) -> Iterator[Problem]:
    """Check that the base part of a job outranks its elastic part."""
    classes = scenario.priority_classes
    priorities = [classes[tier.priority_class] for tier in scenario.tiers if tier.priority_class in classes]
    if len(priorities) == 2 and priorities[0] <= priorities[1]:
        base, elastic = scenario.tiers
        path, first = f"{PREEMPTION}.base_priority_class", base.priority_class
        message = f"{first} ({priorities[0]}) does not outrank {elastic.priority_class} ({priorities[1]})"
        remedy = "give the base part the class with the higher number"
        yield listing.problem("E411", path, message, value=first, remedy=remedy)


def _arrivals_and_departures(_job: JobSpec, _scenario: Scenario, listing: _Listing) -> Iterator[Problem]:
    """Check that each job arrives before it leaves, and leaves before it arrives again."""
    names = dict.fromkeys(name for _, event in listing.events if (name := _other_job(event)))
    for name in names:
        is_present = False
        for path, event in _in_order(name, listing):
            if event.job_arrives and is_present:
                message = f"job {name} arrives a second time before it leaves"
                yield listing.problem("E408", f"{path}.job_arrives.name", message, value=name)
            elif event.job_leaves and not is_present:
                message = f"job {name} leaves at {event.at}, before any such job has arrived"
                arriving = sorted({each.job_arrives.name for _, each in listing.events if each.job_arrives})
                remedy, allowed = did_you_mean(name, [n for n in arriving if n != name]), ", ".join(arriving) or None
                yield listing.problem(
                    "E408", f"{path}.job_leaves", message, value=name, allowed=allowed, remedy=remedy
                )
            is_present = bool(event.job_arrives)


def _in_order(name: str, listing: _Listing) -> list[tuple[str, Event]]:
    """Return the events of another job by time or, if their units differ, as listed: only the run has their order."""
    own = [(path, event) for path, event in listing.events if _other_job(event) == name]
    if len({event.at.unit for _, event in own}) == 1:
        own.sort(key=lambda item: item[1].at.value)
    return own


def _other_job(event: Event) -> str | None:
    return event.job_arrives.name if event.job_arrives else event.job_leaves


def _never_fits(job: JobSpec, scenario: Scenario, listing: _Listing) -> Iterator[Problem]:
    """Check that the job gets nodes before its first step: while it waits, only time passes."""
    smallest = min(point.nodes for point in job.scales)
    timed = [event for event in scenario.events if event.at.seconds is not None or event.at.value == 0]
    most = max(scenario.nodes, *(event.capacity or 0 for event in timed), 0)
    if most < smallest:
        needed = counted(smallest, "node")
        message = f"the job needs {needed}, but the cluster has no more than {most} before its first step"
        allowed = f"{smallest} or more, at first or at some second"
        yield listing.problem("E410", f"{_FILE_PATH}.nodes", message, value=scenario.nodes, allowed=allowed)
