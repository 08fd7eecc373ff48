"""What has changed since a job was launched, what differs between two jobs, and a job launched once more."""

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher import pipeline
from launcher.api import comparing, metrics, running, values
from launcher.api import session as sessions
from launcher.api.comparing import Change, changes
from launcher.api.observing import Observer
from launcher.api.session import Session
from launcher.bundle import store
from launcher.bundle.manifest import MANIFEST
from launcher.common import yaml_io
from launcher.common.names import METRICS_FILE, RUN_DIR, RUN_ID_AT_LAUNCH
from launcher.common.problems import ProblemsFound, fail, raise_any
from launcher.common.redaction import masked
from launcher.common.text_table import value_text
from launcher.common.texts import counted, in_line
from launcher.config.compose import compose
from launcher.config.overrides import typed_key
from launcher.job_store import job_names
from launcher.model.config_tree import ABSENT, get, leaves
from launcher.model.context import LaunchContext
from launcher.model.job_spec import Bundle, JobSpec
from launcher.planning import explain
from launcher.reproduction import record as records
from launcher.reproduction.record import SECTIONS, Record

_CONFIGURATION, _FILES, _METRICS = "configuration", "files", "metrics"
_RECIPE = "recipe.yaml"
_RUN_ID = "recipes.training_config.mlflow.run_id"
_UNMETERED = ("step", "time", "attempt", "cursor", "samples")
"""Numbers of a step that count or date it."""
_HEX = re.compile(r"(?<=\b[0-9a-f]{12})[0-9a-f]{28,}")
"""The end of a digest or a revision, which is not printed."""
_MOST_CHANGES = 20
"""Changes of a section that are printed; files may be thousands."""


@dataclass(frozen=True)
class Comparison:
    """How two jobs differ, or a job and what it would be now.

    Args:
        old: Title of the first side.
        new: Title of the second.
        sections: The changes of `configuration`, `files` of the bundle, `code`, `data`, `image`, `environment` and
            `metrics`; only those that were compared.
        notes: What could not be compared, one line each.
        equal: The number of values of each section that do not differ.
    """

    old: str
    new: str
    sections: Mapping[str, tuple[Change, ...]]
    notes: tuple[str, ...] = ()
    equal: Mapping[str, int] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[tuple[str, Change], ...]:
        """Every change with its section."""
        return tuple((name, each) for name, found in self.sections.items() for each in found)

    def lines(self) -> Iterator[str]:
        """Yield `- key: before` and `+ key: after` lines; the section precedes the key, but for the configuration."""
        for name, found in self.sections.items():
            title = "" if name == _CONFIGURATION else f"{name} "
            most = len(found) if name == _CONFIGURATION else _MOST_CHANGES
            for each in found[:most]:
                for sign, text in each.sides:
                    yield f"{sign} {title}{in_line(each.key)}: {_HEX.sub('', in_line(text))}"
            if len(found) > most:
                yield f"… {title}{counted(len(found) - most, 'more change')}"


@dataclass(frozen=True, slots=True)
class Origin:
    """A value of a job's configuration, and who set it.

    Args:
        value: As the bundle has it, without secrets.
        set_by: `file:line`, an override, or another source; None if nothing in files or overrides sets it, or if the
            recipe no longer composes to this value.
        sizes: Other values at some sizes: each with the sizes in nodes and who sets it there.
        shadowed: Who else sets it, and to what, overridden by `set_by`; the nearest first.
    """

    key: str
    value: str
    set_by: str | None
    sizes: tuple[tuple[str, tuple[int, ...], str | None], ...] = ()
    shadowed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Rerun:
    """A job that is to be launched once more.

    Args:
        comparison: What differs from the job without the new overrides.
        job: The new job, planned.
        context: Of its launch.
        session: Its variables, and the secrets that no file may hold.
    """

    comparison: Comparison
    job: JobSpec
    context: LaunchContext
    session: Session

    def write(self, *, allow_changes: bool = False, name: str | None = None) -> Bundle:
        """Write the bundle of the new job.

        Args:
            allow_changes: Whether it may differ from the job in more than the new overrides.
            name: A name for the new job, which commands accept.

        Raises:
            ProblemsFound: It does (E731), the name is not valid or taken (E717), or the disk or the cluster refuses.
        """
        self.check(allow_changes=allow_changes)
        raise_any(job_names.problems(name, self.job.base_results_dir))
        with self.session.active():
            bundle, *_ = running.write(self.job, self.context, Observer(), name=name, is_launched=False)
        return bundle

    def check(self, *, allow_changes: bool) -> None:
        """Raise a Problem if something has changed, unless that is allowed (E731)."""
        if allow_changes or not (found := self.comparison.changes):
            return
        names = list(dict.fromkeys(section for section, _ in found))
        shown = "; ".join(f"{name} {each.key}" for name, each in found[:3])
        more = f" and {counted(len(found) - 3, 'more change')}" if len(found) > 3 else ""
        message = f"would not be the same job: {', '.join(names)} changed ({shown}{more})"
        remedy = f"undo that, or accept it: --allow-changes. recipes diff {self.comparison.old} shows every change"
        raise fail("E731", self.comparison.old, message, remedy=remedy)


def rerun(name: str | Path, overrides: values.Overrides = (), session: Session | None = None) -> Rerun:
    """Compile a job again, as it was and with further overrides. Writes nothing.

    Args:
        name: Its name, its given name, or its bundle's folder.
        overrides: Further ones, as `compile` takes them.
        session: User, clock and names; the folder is the one that the job was launched from.

    Raises:
        ProblemsFound: It no longer compiles, or an override held a secret, which is not recorded (E732).
    """
    then = _Then.read(name)
    session = sessions.given(session)
    kept = [word for word in then.overrides if typed_key(word) not in comparing.HOW]
    words = (*kept, *values.words(overrides))
    context = session.context()._replace(cwd=then.cwd)
    with session.active():
        return Rerun(_since(then, session), pipeline.prepare(words, context, session.cache), context, session)


def since(name: str | Path, session: Session | None = None) -> Comparison:
    """Return what differs if a job is compiled again now, its code, data and packages included.

    Raises:
        ProblemsFound: It no longer compiles, or an override held a secret, which is not recorded (E732).
    """
    session = sessions.given(session)
    with session.active():
        return _since(_Then.read(name), session)


def own_configuration(name: str | Path) -> dict[str, str]:
    """Return the values of a job's configuration as text, without those that each launch fills in.

    Raises:
        ProblemsFound: It is not a bundle, or was changed (E703, E704, E713).
    """
    return _own_configuration(_Then.read(name))


def origins(name: str | Path, session: Session | None = None) -> tuple[tuple[Origin, ...], tuple[str, ...]]:
    """Return every value of a job's configuration with who set it; and what is not known of that, one line each.

    Origins come from composing the job's overrides again: a value that is another now has none.

    Raises:
        ProblemsFound: It is not a bundle, or was changed (E703, E704, E713).
    """
    session, then = sessions.given(session), _Then.read(name)
    stored, notes = dict(leaves(yaml_io.load(then.bundle.files[_RECIPE]))), list(then.notes)
    found: dict[str, tuple[explain.Value, ...]] = {}
    with session.active():
        try:
            composition = compose(then.overrides, then.cwd, comparing.suffix_of(then.bundle), session.cache)
            sizes = explain.Sizes(composition)
            found = {path: explain.explain(sizes, path) for path in sizes.base}
        except ProblemsFound as error:
            notes.append(
                f"who set a value is unknown, since it no longer composes: {in_line(str(error.problems[0]))}"
            )
    return tuple(
        _origin(key, stored[key], found.get(key, ())) for key in sorted(stored, key=comparing.in_order)
    ), tuple(notes)


def _origin(key: str, stored: Any, values: tuple[explain.Value, ...]) -> Origin:
    text = _shown(key, stored)
    if not values or (values[0].value != stored and key not in comparing.AT_LAUNCH):
        return Origin(key, text, None)
    base, sizes = values[0], dict[tuple[str, str | None], list[int]]()
    for each in explain.differing(values):
        by = each.origin.origin if each.origin else None
        shown = "absent" if each.value is ABSENT else _shown(key, each.value)
        sizes.setdefault((shown, by), []).append(each.nodes or 0)
    at_sizes = tuple((shown, tuple(nodes), by) for (shown, by), nodes in sizes.items())
    shadowed = tuple((_shown(key, each.value), each.origin) for each in base.shadowed)
    by = "filled in by the launch" if key in comparing.AT_LAUNCH else base.origin and base.origin.origin
    return Origin(key, text, by, at_sizes, shadowed)


def _shown(key: str, value: Any) -> str:
    return masked(value_text(value, key))


@dataclass(frozen=True, slots=True)
class _Then:
    """A bundle on disk, with its record."""

    title: str
    bundle: Bundle
    manifest: Mapping[str, Any]
    record: Record | None

    @classmethod
    def read(cls, name: str | Path) -> "_Then":
        folder = store.locate(os.fspath(name))
        bundle, _ = store.read(folder)
        return cls(os.fspath(name), bundle, json.loads(bundle.files[MANIFEST]), records.read(folder))

    @property
    def cwd(self) -> Path:
        """Folder that it was launched from; the current one if that is unknown or no longer exists."""
        known = self.record and Path(self.record.sources.cwd)
        return known if known and known.is_dir() else Path.cwd()

    @property
    def notes(self) -> Iterator[str]:
        """What is not known of it, one line each."""
        if self.record is None:
            yield f"{self.title}: has no record of its code, data and packages; an earlier version wrote it"
        elif str(self.cwd) != self.record.sources.cwd:
            place = self.record.sources.cwd
            yield f"{self.title}: {place}, where it was launched, no longer exists; paths start in this folder"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Its overrides.

        Raises:
            ProblemsFound: One held a secret (E732).
        """
        words = self.record.sources.overrides if self.record else tuple(self.manifest["overrides"])
        if hidden := [word for word in words if word.endswith("…")]:
            message = f"was launched with {', '.join(hidden)}, whose value is not recorded"
            raise fail("E732", self.title, message, remedy="compile it with recipes run and all of its overrides")
        return words


def _since(then: _Then, session: Session) -> Comparison:
    manifest = then.manifest
    context = session.context()._replace(
        cwd=then.cwd,
        suffix=comparing.suffix_of(then.bundle),
        created=manifest["created"],
        user=manifest["user"],
    )
    job = pipeline.prepare(then.overrides, context, session.cache)
    now = pipeline.render(pipeline.postponed(job, context), context)
    old, new = _files(then.bundle), _files(now)
    if get(yaml_io.load(new[_RECIPE]), _RUN_ID) == RUN_ID_AT_LAUNCH and (
        run_id := get(yaml_io.load(old[_RECIPE]), _RUN_ID)
    ):  # as a dry run writes the files, without the id of the MLflow run
        old = {name: text.replace(run_id, RUN_ID_AT_LAUNCH) for name, text in old.items()}
    configuration = tuple(changes(_configuration(old), _configuration(new)))
    # those of a changed configuration follow from it
    files = () if configuration else tuple(changes(_hashes(old), _hashes(new)))
    versions = [
        f"{name} was {before}, is {context.versions.get(name)}"
        for name, before in manifest["versions"].items()
        if before != context.versions.get(name)
    ]
    notes = [*then.notes, *([f"compiled by other versions: {', '.join(versions)}"] if versions else [])]
    sections = {_CONFIGURATION: configuration, _FILES: files}
    if then.record and now.sources:
        found, _, unknown = _of_records(then.record, records.take(now.sources))
        sections, notes = sections | found, [*notes, *unknown]
    return Comparison(then.title, "now", sections, tuple(notes))


def _files(bundle: Bundle) -> dict[str, str]:
    return {name: text for name, text in bundle.files.items() if name != MANIFEST}


def _configuration(files: Mapping[str, str]) -> dict[str, str]:
    return {path: value_text(value, path) for path, value in leaves(yaml_io.load(files[_RECIPE]))}


def _hashes(files: Mapping[str, str]) -> dict[str, str]:
    return {name: f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" for name, text in files.items()}


def _num_equal(old: Mapping[str, str], new: Mapping[str, str]) -> int:
    return sum(new.get(key) == value for key, value in old.items())


def _of_records(old: Record, new: Record) -> tuple[dict[str, tuple[Change, ...]], dict[str, int], list[str]]:
    """Return by section the changes between two records and the number of equal values; and what is not known."""
    before, after = records.flat(old), records.flat(new)
    arguments = {key.partition("/")[0] for key in new.sources.arguments} - old.data.keys()
    # a folder that the job itself has made is none of its inputs
    after["data"] = {
        key: value for key, value in after["data"].items() if not any(key.startswith(each) for each in arguments)
    }
    for found, state in ((before["code"], old.code), (after["code"], new.code)):
        for key in {*before["code"], *after["code"]} - found.keys():
            if state.get(key.partition("/")[0], {}).get("kind") == "git" and "/" in key:
                found[key] = "as committed"
    sections = {name: tuple(changes(before[name], after[name])) for name in SECTIONS}
    equal = {name: _num_equal(before[name], after[name]) for name in SECTIONS}
    return sections, equal, list(dict.fromkeys([*old.notes, *new.notes]))


def of_jobs(old: str | Path, new: str | Path, *, has_metrics: bool = True) -> Comparison:
    """Return how two jobs differ: configuration, code, data, image, packages, and the metrics of both.

    Values that are made of a job's own name, and the ids of their MLflow runs, are no differences.

    Args:
        old: Name, given name or bundle's folder of a job.
        new: The same.
        has_metrics: Whether their metrics are compared, which takes seconds for a million steps.

    Raises:
        ProblemsFound: One of them is not a bundle, or was changed (E703, E704), or its record is damaged (E711).
    """
    first, second = sides = (_Then.read(old), _Then.read(new))
    configurations = [_own_configuration(side) for side in sides]
    sections, equal = (
        {_CONFIGURATION: tuple(changes(*configurations))},
        {_CONFIGURATION: _num_equal(*configurations)},
    )
    notes = [note for side in sides for note in side.notes]
    if first.record and second.record:
        found, alike, unknown = _of_records(first.record, second.record)
        sections, equal, notes = sections | found, equal | alike, [*notes, *unknown]
    metered = [_metrics(side.bundle.directory / RUN_DIR / METRICS_FILE) for side in sides if has_metrics]
    notes += [
        f"{side.title}: this machine has no metrics" for side, each in zip(sides, metered, strict=False) if not each
    ]
    if metered and all(metered):
        sections[_METRICS], equal[_METRICS] = tuple(changes(*metered)), _num_equal(*metered)
    return Comparison(first.title, second.title, sections, tuple(notes), equal)


def _own_configuration(side: _Then) -> dict[str, str]:
    """Return the configuration of a job without what each launch fills in."""
    found = comparing.without_launch(comparing.of_bundle(side.bundle.directory, None, is_sized=False))
    return replace(found, job_name=side.bundle.job_name).texts()


def _metrics(file: Path) -> dict[str, str]:
    """Return the last, lowest and highest value of each metric; none if this machine has no records."""
    last: dict[str, float] = {}
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    with contextlib.suppress(OSError):  # a run folder of another machine
        for row in metrics.rows(file):
            for name, value in row.items():
                if isinstance(value, bool) or not isinstance(value, int | float) or name in _UNMETERED:
                    continue
                last[name] = value
                if math.isfinite(value):
                    lowest[name] = min(value, lowest.get(name, value))
                    highest[name] = max(value, highest.get(name, value))
    kinds = (("last", last), ("lowest", lowest), ("highest", highest))
    return {f"{name}.{kind}": f"{found[name]:.6g}" for name in last for kind, found in kinds if name in found}
