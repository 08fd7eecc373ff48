"""The record that a bundle has of its code, data, image and packages: made, written, read and compared.

It is not part of the bundle's digest: the same job is the same bytes wherever its code and data have changed.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import VERSION
from launcher.common import os_errors
from launcher.common.names import REPRODUCE_FILE
from launcher.common.problems import fail
from launcher.model.context import current_time
from launcher.model.job_spec import Bundle
from launcher.model.sources import Sources
from launcher.model.typed_json import as_type
from launcher.reproduction.code import code_state
from launcher.reproduction.digests import Budget
from launcher.reproduction.inputs import input_states
from launcher.reproduction.packages import PROGRAMS, versions
from launcher.runtime.durable import write_text

_FORMAT = 1
_LAUNCHER = "launcher"
"""Name of the code that is this package."""
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
SECTIONS = ("code", "data", "image", "environment")


@dataclass(frozen=True, slots=True)
class Record:
    """What a bundle records beside its configuration.

    Args:
        sources: Where everything comes from.
        recorded: When, ISO 8601 in UTC: at the last launch, or when the bundle was written.
        code: State of each code, by name.
        data: State of each model or data file, by key.
        image: `reference`, and `digest` if the reference has one.
        environment: Version by package; empty if the image's packages act.
    """

    sources: Sources
    recorded: str
    code: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, Mapping[str, Any]]
    image: Mapping[str, str]
    environment: Mapping[str, str]

    @property
    def notes(self) -> Iterator[str]:
        """What it does not have, one line each."""
        for section, states in (("code", self.code), ("data", self.data)):
            for name, state in states.items():
                if note := state.get("note"):
                    at = f"{state['at']}: " if state.get("at") else ""
                    yield f"{section} {name}: {at}{note}"
        if self.image and not self.image.get("digest"):
            yield f"image {self.image['reference']}: has no digest, so its tag may name another image now"
        if not self.environment:
            yield "environment: " + ("that of the image" if self.image else "not known on this machine")


def take(sources: Sources) -> Record:
    """Read the present state of everything that a job is made of. Bounded: see `digests`."""
    budget = Budget()
    code: dict[str, Mapping[str, Any]] = {
        name: code_state(place, sources.results, budget, is_part=name == _LAUNCHER)
        for name, place in sources.code.items()
    }
    code |= {
        name: {
            "kind": "reference",
            "at": where,
            "note": "not recorded: the job fetches it" if name == "repository" else "not recorded",
        }
        for name, where in sources.elsewhere.items()
    }
    image = {"reference": sources.image} if sources.image else {}
    if digest := _DIGEST.search(sources.image or ""):
        image["digest"] = digest[1]
    environment: dict[str, str] = {}
    if sources.packages != "none":
        environment = {**versions(None if sources.packages == "all" else PROGRAMS), "recipe-launcher": VERSION}
    return Record(sources, current_time(), code, input_states(sources, Budget()), image, environment)


def as_text(record: Record) -> str:
    """Return the content of the record's file. Names that are not UTF-8 are escaped."""
    fields = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    return json.dumps({"format": _FORMAT, **fields, "sources": record.sources._asdict()}, indent=1) + "\n"


def read(folder: Path) -> Record | None:
    """Return the record of the bundle in `folder`; None if an earlier version wrote it.

    Raises:
        ProblemsFound: It is damaged (E711).
    """
    try:
        fields = json.loads((folder / REPRODUCE_FILE).read_text(encoding="utf-8"))
        return as_type(Record, fields) if fields.pop("format") == _FORMAT else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        remedy = "remove it; code and data of the job are then unknown"
        raise fail("E711", str(folder / REPRODUCE_FILE), f"is damaged: {error!r}", remedy=remedy) from error


def renew(bundle: Bundle) -> None:
    """Record anew what a bundle that is launched now uses; one of an earlier version stays without a record.

    Raises:
        ProblemsFound: The disk refuses (E702), or the record is damaged (E711).
    """
    if bundle.sources is None and (known := read(bundle.directory)):
        try:
            write_text(bundle.directory / REPRODUCE_FILE, as_text(take(known.sources)))
        except OSError as error:
            raise os_errors.refused("E702", str(bundle.directory), error, bundle.directory) from error


def flat(record: Record) -> dict[str, dict[str, str]]:
    """Return the values of a record that determine a result, section by section, by their paths."""
    return {
        "code": dict(_leaves(record.code)),
        "data": dict(_leaves(record.data)),
        "image": dict(record.image),
        "environment": dict(record.environment),
    }


def _leaves(states: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, state in states.items():
        for key in ("kind", "at", "revision"):
            if key in state and (key != "at" or state["kind"] in ("reference", "hub")):
                yield f"{name}.{key}", state[key]
        if files := state.get("files"):
            yield from ((f"{name}/{path}", digest) for path, digest in files.items())
        elif "digest" in state:
            yield f"{name}.digest", state["digest"]
