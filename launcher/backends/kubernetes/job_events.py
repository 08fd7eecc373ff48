"""The cluster's events about a job, its StatefulSets and its pods."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from launcher.backends.kubernetes import api_objects, lenient
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.job_watch import (
    POLL_S,
    Objects,
    Observer,
    follower,
    listed,
    read_objects,
    snapshots,
)
from launcher.backends.kubernetes.target import Object, Target, is_event_of
from launcher.model.job_spec import JobEvent


def events(connection: Connection, target: Target, *, follow: bool) -> Iterator[JobEvent]:
    """Yield the events of a job and its pods, oldest first; with `follow`, until it has ended."""
    where = api_objects.path("Event", target.namespace)
    reported: dict[str, int] = {}
    if not follow:
        job, pods = read_objects(connection, target)
        found, _ = listed(connection, where, {})
        yield from _new_events(found, lambda event: is_event_of(event, target, job, pods), target, reported)
        return
    with Observer(follower(connection), target) as observer:

        def observe() -> None:
            for found in snapshots(observer.connection, where, {}):
                observer.put(found)

        def is_own(event: Object) -> bool:
            return is_event_of(event, target, observer.job, observer.pods)

        observer.spawn(observe)
        while True:
            item = observer.next(POLL_S)
            if isinstance(item, Mapping):
                yield from _new_events(item, is_own, target, reported)
            if observer.is_informed and observer.inbox.empty() and observer.status().state.is_final:
                latest, _ = listed(observer.connection, where, {})
                yield from _new_events(latest, is_own, target, reported)
                return


def _new_events(
    found: Objects, is_own: Callable[[Object], bool], target: Target, reported: dict[str, int]
) -> list[JobEvent]:
    """Return the new events; one whose count has grown is returned again."""
    new = []
    for uid, event in found.items():
        about, count = event["involvedObject"], event.get("count") or 1
        if reported.get(uid, 0) < count and is_own(event):
            reported[uid] = count
            label = "" if about.get("uid") == target.uid else f"{about.get('kind')}/{about.get('name')}"
            is_warning = event.get("type") == "Warning"
            kind, message = lenient.text(event.get("reason")), lenient.text(event.get("message"))
            new.append(JobEvent(_time_s(event), kind, message, label, is_warning))
    return sorted(new, key=lambda event: event.time_s)


def _time_s(event: Mapping[str, Any]) -> float:
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp).timestamp()
