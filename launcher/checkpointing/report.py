"""A forecast of checkpoints, for people and for programs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from launcher.checkpointing.forecast import GB, GIB, MEMORY, PERSISTENT, WAYS, Forecast, Saving, daly, mtbf_s, young
from launcher.common.text_table import with_head
from launcher.common.texts import counted
from launcher.model.checkpointing import OPTIMIZERS, SHARDINGS


def lines(expected: Forecast, nodes: int) -> Iterator[tuple[str, str]]:
    """Yield the report on one size, each line with its style."""
    content = expected.content
    of_model = f" of {content.parameters:,}" if content.parameters and content.parameters != content.saved else ""
    assumed = f", as many as {expected.assumed_model}, the recipe's model, has" if expected.assumed_model else ""
    yield f"{content.saved:,}{of_model} parameters in {content.dtype}{assumed}", "bold"
    yield from with_head(_size_rows(expected), right=(1, 2, 3))
    yield f"{counted(nodes, 'node')} of {counted(expected.ranks_per_node, 'rank')}", "bold"
    yield from with_head(_share_rows(expected, nodes), right=range(1, 5))
    failures_s = mtbf_s(expected.failures_per_node_hour, nodes)
    yield (
        f"one failure in {_time(failures_s)}; {_time(expected.restart_s)} to restart; GB/s a node: copy"
        f" {expected.copy_rate:g}, memory {expected.memory_rate:g}, persistent {expected.persistent_rate:g}",
        "bold",
    )
    yield from with_head(_way_rows(expected, nodes), right=range(1, 8))
    for own in configured(expected, nodes):
        every = f"every {counted(own['steps'], 'step')}, {_time(own['interval_s'])}"
        yield f"this job saves to {own['way']} {every}: goodput {100 * own['goodput']:.2f} %", ""
    if copies := expected.copies(nodes):
        every, memory = counted(copies.every, "step"), _amount(copies.node_bytes / GIB)
        cost = f"{memory} GiB of each node's memory, training waits {_time(copies.blocked_s)}"
        yield f"this job copies its rows to neighbours every {every}: {cost}", ""


def _size_rows(expected: Forecast) -> list[tuple[str, ...]]:
    content = expected.content

    def row(name: str, size: int, remark: str = "") -> tuple[str, ...]:
        return name, f"{size / content.saved:.4g}", _amount(size / GIB), _amount(size / GB), remark

    rows = [("checkpoint", "bytes a parameter", "GiB", "GB", ""), row("weights", content.weight_bytes)]
    for name in OPTIMIZERS:
        if name != "none":
            total = content._replace(optimizer=name).total_bytes
            rows.append(row(f"with {name}", total, "<- this job" if name == content.optimizer else ""))
    return rows


def _share_rows(expected: Forecast, nodes: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("GiB", "a rank holds", "a rank writes", "a node writes", "ranks write", "")]
    for sharding in SHARDINGS:
        own = expected.share(nodes, sharding)
        sizes = [_amount(size / GIB) for size in (own.held, own.written, own.node_written)]
        here = "<- as this job saves" if sharding == expected.content.sharding else ""
        rows.append((sharding, *sizes, str(own.writers), here))
    return rows


def _way_rows(expected: Forecast, nodes: int) -> list[tuple[str, ...]]:
    head = ("saving to", "save", "training waits", "Young", "Daly", "save every", "goodput", "steps")
    rows: list[tuple[str, ...]] = [head]
    for way in WAYS:
        saving = expected.saving(way, nodes)
        times = (saving.save_s, saving.blocked_s, *_textbook(saving), saving.interval_s)
        steps = str(steps_of(saving, expected.step_s)) if expected.step_s else ""
        rows.append((way, *map(_time, times), f"{100 * saving.goodput(saving.interval_s):.2f} %", steps))
    return rows


def _textbook(saving: Saving) -> tuple[float, float]:
    return young(saving.blocked_s, saving.mtbf_s), daly(saving.blocked_s, saving.mtbf_s)


def configured(expected: Forecast, nodes: int) -> Iterator[dict[str, Any]]:
    """Yield the cost of each of the recipe's own tiers, if the time of a step is known."""
    section, step_s = expected.section, expected.step_s
    for way, tier in ((MEMORY, section.memory), (PERSISTENT, section.persistent)):
        if tier and step_s:
            goodput = expected.saving(way, nodes).goodput(tier.steps * step_s)
            yield {"way": way, "steps": tier.steps, "interval_s": tier.steps * step_s, "goodput": goodput}


def steps_of(saving: Saving, step_s: float) -> int:
    """Return the best interval in optimizer steps, at least one."""
    return max(1, round(saving.interval_s / step_s))


def as_json(expected: Forecast, nodes: int) -> dict[str, Any]:
    """Return the report on one size as plain data. Sizes in bytes, times in seconds, rates in GB/s a node."""
    content = expected.content
    return {
        **content._asdict(),
        "assumed_model": expected.assumed_model or None,
        "weight_bytes": content.weight_bytes,
        "optimizer_bytes": content.optimizer_bytes,
        "total_bytes": content.total_bytes,
        "nodes": nodes,
        "ranks_per_node": expected.ranks_per_node,
        "shares": [dataclasses.asdict(expected.share(nodes, sharding)) for sharding in SHARDINGS],
        "failures_per_node_hour": expected.failures_per_node_hour,
        "restart_s": expected.restart_s,
        "step_s": expected.step_s,
        "rates": {
            "copy": expected.copy_rate,
            "memory": expected.memory_rate,
            "persistent": expected.persistent_rate,
            "storage": expected.storage_rate,
        },
        "configured": list(configured(expected, nodes)),
        "copies": dataclasses.asdict(copies) if (copies := expected.copies(nodes)) else None,
        "ways": [_way_json(way, expected, nodes) for way in WAYS],
    }


def _way_json(way: str, expected: Forecast, nodes: int) -> dict[str, Any]:
    saving = expected.saving(way, nodes)
    first, higher = _textbook(saving)
    return {
        "way": way,
        **dataclasses.asdict(saving),
        "young_s": first,
        "daly_s": higher,
        "interval_s": saving.interval_s,
        "goodput": saving.goodput(saving.interval_s),
        "interval_steps": steps_of(saving, expected.step_s) if expected.step_s else None,
    }


def _amount(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.3g}"


def _time(seconds: float) -> str:
    """Return a time in the largest unit of which it has at least two."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.3g} s"
