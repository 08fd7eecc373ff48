"""The causes of the operator's decisions and of faults. Pure."""

from collections.abc import Iterable, Iterator

from launcher.timeline.records import HANG, LAUNCHED, Launch, OperatorEvent

ROOTS = ("scenario", "request")
"""Kinds of events from outside of the job."""

_NOTICED_WITHIN_S = 5.0
"""How long the operator may take to notice an event; about 1 s measured."""

_ONE_POLL_S = 0.05
"""Time within which the operator logs everything from one poll."""


class Causes:
    """Finds the cause of a decision; each event of a launch causes at most one.

    A recovery is caused by faults, and these by events of the scenario that hit the job just before. Every other
    decision is caused by a change of the capacity or by a request. The operator logs when it observed the cause, a
    little after it happened.
    """

    def __init__(self, launch: Launch):
        self._launch = launch
        self._used: list[OperatorEvent] = []

    def find(self, decision: OperatorEvent, *, is_given_up: bool) -> tuple[float, str]:
        """Return the time of the cause of a transition's first decision, in seconds since the epoch, and its message.

        If it is given up, it had no effect: the next decision then has the same cause.
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
        """Return the cause that changed a planned transition, as a later decision shows; "" for none."""
        if decision.fields["reason"] == "recover":
            return ""
        together = self._together(float(decision.fields.get("cause_time") or decision.time))
        self._used += together
        return together[0].message if together else ""

    def _together(self, seen: float) -> list[OperatorEvent]:
        """Return the last unused events from outside up to a time, as one poll observed them."""
        events = [event for event in self._external(is_hit=False) if event.time <= seen]
        # One poll may observe an event and its consequences: the first is the cause.
        together = [event for event in events if events[-1].time - event.time <= _ONE_POLL_S]
        return [] if not together or together[-1] in self._used else together

    def of_event(self, event: OperatorEvent) -> str:
        """Return the cause of a fault; "" for other events.

        It is the event that hit its node just before; otherwise, for a worker that exited by itself, the fault of
        another node; otherwise the operator's observation.
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
        """Return the event of the scenario that hit a node just before its fault, or None."""
        hits = [hit for hit in self._external(is_hit=True) if self._led_to(hit, fault)]
        return hits[-1] if hits else None

    def _recovery(self, decision: OperatorEvent, seen: float) -> tuple[float, str]:
        """Return the time of the first cause of a recovery, and the messages of all."""
        faults = self._faults(decision)
        hits = [hit for hit in self._external(is_hit=True) if any(self._led_to(hit, fault) for fault in faults)]
        fresh = [hit for hit in hits if hit not in self._used]
        self._used += fresh
        # The workers of other nodes fail because one is gone: this fault is a cause only if there is no other.
        own = [fault for fault in faults if _is_own(fault) and not any(self._led_to(hit, fault) for hit in fresh)]
        roots = sorted([*fresh, *own], key=lambda event: event.time) or faults[:1]
        if not roots:
            return seen, decision.message
        began = min(event.time for event in (*roots, *faults))
        return began, "; ".join(dict.fromkeys(map(_short, roots)))

    def _led_to(self, hit: OperatorEvent, fault: OperatorEvent) -> bool:
        """Return whether an event of the scenario caused a fault: it hit that node just before, or hung a worker."""
        if "leads_to" not in hit.fields:
            node = hit.fields.get("node", fault.fields.get("node"))
            return node == fault.fields.get("node") and 0 <= fault.time - hit.time <= _NOTICED_WITHIN_S
        # A worker that hangs is noticed by the hang detector, or by the workers that wait for it.
        leads_to = hit.fields["leads_to"]
        is_such = leads_to == fault.fields.get("cause") or (leads_to and not _is_own(fault))
        starts = (event.time for event in self._launch.events if event.kind == "starting")
        return bool(is_such) and hit.time <= fault.time and not any(hit.time < time <= fault.time for time in starts)

    def _faults(self, decision: OperatorEvent) -> list[OperatorEvent]:
        """Return the faults of the attempt that a recovery ends, without those of nodes that had not taken part."""
        earlier = [event for event in self._launch.events if event.time <= decision.time]
        started = max((event.time for event in earlier if event.kind == "starting"), default=self._launch.time)
        return [event for event in running_faults(earlier) if event.time >= started]

    def _external(self, *, is_hit: bool) -> Iterator[OperatorEvent]:
        """Yield events from outside of the job: those that hit it, or those that changed its capacity."""
        for event in self._launch.events:
            if event.kind in ROOTS and bool(event.fields.get("fault")) is is_hit:
                yield event


def running_faults(events: Iterable[OperatorEvent]) -> Iterator[OperatorEvent]:
    """Yield the faults of nodes that took part: others end no attempt."""
    return (event for event in events if event.kind == "fault" and not event.fields.get("warming"))


def _short(root: OperatorEvent) -> str:
    """Return the message of an event; of a hang, for how long: the event itself names the rank and its stack."""
    return root.message.partition(";")[0] if root.fields.get("cause") == HANG else root.message


def _is_own(fault: OperatorEvent) -> bool:
    return bool(fault.fields.get("is_own"))
