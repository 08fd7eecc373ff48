"""What the cluster reports about a job, its StatefulSets and its pods."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from launcher.backends.kubernetes import api_objects, lenient
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.job_watch import (
    LOOK_AGAIN_S,
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
    where, told = api_objects.path("Event", target.namespace), {}
    if not follow:
        job, pods = read_objects(connection, target)
        found, _ = listed(connection, where, {})
        yield from _new_events(found, lambda event: is_event_of(event, target, job, pods), target, told)
        return
    with Observer(follower(connection), target) as observer:

        def observe() -> None:
            for found in snapshots(observer.connection, where):
                observer.tell(found)

        def is_own(event: Object) -> bool:
            return is_event_of(event, target, observer.job, observer.pods)

        observer.spawn(observe)
        while True:
            found = observer.next(LOOK_AGAIN_S)
            if found is not None:
                yield from _new_events(found, is_own, target, told)
            if observer.is_informed and observer.inbox.empty() and observer.status().state.is_final:
                latest, _ = listed(observer.connection, where, {})
                yield from _new_events(latest, is_own, target, told)
                return


def _new_events(
    found: Objects, is_own: Callable[[Object], bool], target: Target, told: dict[str, int]
) -> list[JobEvent]:
    """Return what is new among events; one whose count has grown is returned again."""
    new = []
    for uid, event in found.items():
        about, count = event["involvedObject"], event.get("count") or 1
        if told.get(uid, 0) < count and is_own(event):
            told[uid] = count
            label = "" if about.get("uid") == target.uid else f"{about.get('kind')}/{about.get('name')}"
            is_warning = event.get("type") == "Warning"
            kind, message = lenient.text(event.get("reason")), lenient.text(event.get("message"))
            new.append(JobEvent(_time_s(event), kind, message, label, is_warning))
    return sorted(new, key=lambda event: event.time_s)


def _time_s(event: Mapping[str, Any]) -> float:
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp).timestamp()
