"""Examines a Ray cluster by its dashboard before a job is sent to it."""

import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import ClassVar

from launcher.backends.ray import request, submit
from launcher.backends.ray.client import ADDRESS, Cluster, address_of
from launcher.backends.ray.request import Request
from launcher.common.problems import ProblemsFound
from launcher.model.finding import Answer, Question, clock, found, http_time, ok, or_ok, unknown, warning
from launcher.model.job_spec import Bundle, JobSpec

_ANSWER_S = 10.0


class RayDoctor:
    """Examines the cluster behind a dashboard."""

    unanswered: ClassVar[frozenset[str]] = frozenset({"E823", "E825"})

    def examine(self, job: JobSpec, bundle: Bundle) -> Iterator[Answer]:
        """Yield whether the dashboard answers, and the questions about nodes and code."""
        made = request.read(bundle)
        try:
            address = address_of(made.address)
        except ProblemsFound as error:  # then a launch knows no address either
            yield from (found("cluster", each) for each in error.problems)
            return
        cluster = Cluster(address)
        yield from _version(address)
        yield Question("nodes", partial(_nodes, cluster, made))
        yield Question("code", partial(_code, made))


def _version(address: str) -> Iterator[Answer]:
    """Yield the cluster's version beside that of the client here, and the clock of its head."""
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=_ANSWER_S) as answer:
            theirs, date = str(json.load(answer).get("ray_version")), answer.headers.get("Date")
    except (OSError, ValueError) as error:
        yield ok("cluster", f"{ADDRESS}={address} answers")
        yield unknown("versions", f"the dashboard does not state its version: {error}")
        return
    own = metadata.version("ray")
    yield ok("cluster", f"{address} answers, Ray {theirs}")
    if own.split(".")[:2] != theirs.split(".")[:2]:
        yield warning("versions", f"Ray {own} here, {theirs} on the cluster", f"pip install 'ray[default]=={theirs}'")
    else:
        yield ok("versions", f"Ray {own} here, {theirs} on the cluster")
    if now := http_time(date):
        yield clock("the cluster's head", now)


def _nodes(cluster: Cluster, made: Request) -> Iterator[Answer]:
    problems, notices = submit.lacks(cluster, made)
    each = ", ".join(f"{count:g} {kind}" for kind, count in made.accelerators.items())
    message = f"the cluster has {made.nodes} with {each}" if each else "the script requests its own"
    return or_ok("nodes", (*problems, *notices), message)


def _code(made: Request) -> Iterator[Answer]:
    message = f"{made.working_dir} is copied to the cluster" if made.working_dir else "the image has it"
    return or_ok("code", submit.folder_problems(made), message)
