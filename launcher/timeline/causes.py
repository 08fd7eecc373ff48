"""What led to a decision of the operator, and to a fault. Pure."""

from collections.abc import Iterable, Iterator

from launcher.timeline.records import LAUNCHED, WORKER_FAILED, Launch, OperatorEvent

ROOTS = ("scenario", "request")
"""Kinds of events that come upon a job from outside."""

_NOTICED_WITHIN_S = 5.0
"""What the operator may take to see what happened; about 1 s seen."""

_ONE_LOOK_S = 0.05
"""Within what the operator writes down all that one look of its has shown."""


class Causes:
    """Finds what led to a decision; each of a launch's events leads to one at most.

    A recovery comes from faults, and those from what hit the job just before, if the scenario did. Every other
    decision comes from what the scenario did to the capacity, or from a request. The operator tells when it saw
    the cause, which is a little after it came.
    """

    def __init__(self, launch: Launch):
        self._launch = launch
        self._used: list[OperatorEvent] = []

    def find(self, decision: OperatorEvent, *, is_given_up: bool) -> tuple[float, str]:
        """Return when the cause of a decision came, in seconds since the epoch, and what it was.

        Args:
            decision: The first of a transition.
            is_given_up: Whether nothing came of it: the next decision then has the same cause.
        """
        if decision.message == LAUNCHED:
            return decision.time, LAUNCHED
        seen = float(decision.fields.get("cause_time") or decision.time)
        if decision.fields["reason"] == "recover":
            return self._recovery(decision, seen)
        together = self._together(seen)
        if not together:
            return seen, decision.message
        if not is_given_up:
            self._used += together
        root = together[0]
        return (root.time if seen - root.time <= _NOTICED_WITHIN_S else seen), root.message

    def overtaking(self, decision: OperatorEvent) -> str:
        """Return what changed a planned transition on its way, as a later decision shows; "" for nothing new."""
        if decision.fields["reason"] == "recover":
            return ""
        together = self._together(float(decision.fields.get("cause_time") or decision.time))
        self._used += together
        return together[0].message if together else ""

    def _together(self, seen: float) -> list[OperatorEvent]:
        """Return what came last from outside until a moment, as one look has shown it; none that is used."""
        told = [event for event in self._told(is_hit=False) if event.time <= seen]
        # One look of the operator's may tell an event and what followed from that: the first is the cause.
        together = [event for event in told if told[-1].time - event.time <= _ONE_LOOK_S]
        return [] if not together or together[-1] in self._used else together

    def of_event(self, event: OperatorEvent) -> str:
        """Return what led to a fault; "" for other events.

        That is what hit its node just before; else, for a worker that ended by itself, the fault of another node that
        it missed; else what the operator saw.
        """
        if event.kind != "fault":
            return ""
        if hit := self._hit(event):
            return hit.message
        others = [] if _is_own(event) else list(filter(_is_own, running_faults(self._launch.events)))
        missed = [other for other in others if abs(other.time - event.time) <= _NOTICED_WITHIN_S]
        if missed:
            return (self._hit(missed[0]) or missed[0]).message
        return str(event.fields.get("cause") or event.message)

    def _hit(self, fault: OperatorEvent) -> OperatorEvent | None:
        """Return what the scenario did to a node just before its fault, or None."""
        hits = [hit for hit in self._told(is_hit=True) if self._led_to(hit, fault)]
        return hits[-1] if hits else None

    def _recovery(self, decision: OperatorEvent, seen: float) -> tuple[float, str]:
        """Return when the first cause of a recovery came, and all of them."""
        faults = self._faults(decision)
        hits = [hit for hit in self._told(is_hit=True) if any(self._led_to(hit, fault) for fault in faults)]
        fresh = [hit for hit in hits if hit not in self._used]
        self._used += fresh
        # The workers of other nodes fail because one is gone: such a fault is a cause only where there is no other.
        own = [fault for fault in faults if _is_own(fault) and not any(self._led_to(hit, fault) for hit in fresh)]
        roots = sorted([*fresh, *own], key=lambda event: event.time) or faults[:1]
        if not roots:
            return seen, decision.message
        came = min(event.time for event in (*roots, *faults))
        return came, "; ".join(dict.fromkeys(root.message for root in roots))

    def _led_to(self, hit: OperatorEvent, fault: OperatorEvent) -> bool:
        """Return whether a fault comes from what the scenario did: it hit that node just before, or hung a worker."""
        if "leads_to" not in hit.fields:
            node = hit.fields.get("node", fault.fields.get("node"))
            return node == fault.fields.get("node") and 0 <= fault.time - hit.time <= _NOTICED_WITHIN_S
        # A worker that hangs is found by the watch, or by the workers that it keeps waiting.
        leads_to = hit.fields["leads_to"]
        is_such = leads_to == fault.fields.get("cause") or (leads_to and not _is_own(fault))
        starts = (event.time for event in self._launch.events if event.kind == "starting")
        return bool(is_such) and hit.time <= fault.time and not any(hit.time < time <= fault.time for time in starts)

    def _faults(self, decision: OperatorEvent) -> list[OperatorEvent]:
        """Return the faults of the attempt that a recovery ends, those of nodes that only got ready left out."""
        earlier = [event for event in self._launch.events if event.time <= decision.time]
        started = max((event.time for event in earlier if event.kind == "starting"), default=self._launch.time)
        return [event for event in running_faults(earlier) if event.time >= started]

    def _told(self, *, is_hit: bool) -> Iterator[OperatorEvent]:
        """Yield what came upon the job from outside: what hit it, or what changed the nodes it may have."""
        for event in self._launch.events:
            if event.kind in ROOTS and bool(event.fields.get("fault")) is is_hit:
                yield event


def running_faults(events: Iterable[OperatorEvent]) -> Iterator[OperatorEvent]:
    """Yield the faults of nodes that took part; one that only got ready ends no attempt."""
    return (event for event in events if event.kind == "fault" and not event.fields.get("warming"))


def _is_own(fault: OperatorEvent) -> bool:
    return bool(fault.fields.get("is_own", fault.fields.get("cause") != WORKER_FAILED))
