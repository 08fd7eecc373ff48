"""The lines that the state machine writes to the event log. `launcher.timeline` reads their kinds and fields."""

from launcher.operator.types import Event, Fault


def transition(reason: str, from_nodes: int, to_nodes: int, cause_s: float | None) -> Event:
    """Return the event of a change from one number of nodes to another."""
    fields = {"reason": reason, "from_nodes": from_nodes, "to_nodes": to_nodes}
    return Event("transition", f"{reason}: {from_nodes} → {count_nodes(to_nodes)}", fields, cause_s)


def transition_to(size: int, from_nodes: int, cause_s: float | None) -> Event:
    """Return the event of a change to `size` nodes, with the reason that the sizes give."""
    reason = "suspend" if not size else "scale-down" if size < from_nodes else "scale-up"
    return transition("restart" if size == from_nodes else reason, from_nodes, size, cause_s)


def stopping_event(attempt: int, nodes: tuple[int, ...], *, graceful: bool) -> Event:
    """Return the event of a command to stop workers."""
    return Event("stopping", "", {"attempt": attempt, "nodes": nodes, "graceful": graceful})


def fault_event(fault: Fault, *, warming: bool = False) -> Event:
    """Return the event of a fault; `warming` for a node that had not taken part yet."""
    fields: dict[str, object] = {} if fault.node < 0 else {"node": fault.node}
    fields |= {"cause": str(fault.cause), "is_own": fault.is_own, "warming": warming}
    return Event("fault", str(fault), fields)


def count_nodes(count: int) -> str:
    """Return a number of nodes as text."""
    return f"{count} node{'' if count == 1 else 's'}"
