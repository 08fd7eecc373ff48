"""The plan, for people and for programs."""

from typing import Any

from launcher.common.texts import counted
from launcher.model import batch
from launcher.model.backend_registry import described
from launcher.model.family_registry import interface, recipe_model
from launcher.model.job_spec import JobSpec, ScalePoint

LEARNING_RATE = "learning rate"
COLUMNS = ("nodes", "ranks", "samples per rank", "micro x accum", LEARNING_RATE)
"""Headings of the plan's columns, wherever it is shown. `micro x accum`: samples per forward pass of a rank, and the
forward passes accumulated for one optimizer step."""
IDLE, SPEEDUP = "idle", "speedup"
"""Further columns: the fraction of all ranks' time spent waiting, and the speed relative to the smallest size's."""
REMARKS = "remarks"
Columns = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings of columns, and their cells for each size."""
NO_COLUMNS: Columns = ((), [])
_NONE = "none"
START_MARK = "*"
_NUMBERS = ("nodes", "ranks", IDLE, SPEEDUP)
"""Columns that are aligned to the right."""
BARS = "share, ░ idle"
"""Heading of the bars."""
_WIDEST_BAR = 40


def row(point: ScalePoint) -> tuple[str, ...]:
    """Return one size of the plan, a text for each of COLUMNS."""
    return (
        str(point.nodes),
        str(point.ranks),
        samples_per_rank(point),
        f"{point.batch.micro_batch_size} x {point.batch.grad_accumulation}" if point.batch else _NONE,
        _NONE if point.learning_rate is None else f"{point.learning_rate:g}",
    )


def table(job: JobSpec, *, in_full: bool = False, costs: Columns = NO_COLUMNS) -> Columns:
    """Return the headings of the plan and a row for each size, with a last column for remarks if there are any.

    The size that the job starts with has START_MARK. A step takes as long as the largest share of its samples.

    Args:
        in_full: Whether to add how long the ranks of a size idle, and its speedup over the smallest size.
        costs: Headings and cells of the costs of each size.
    """
    remarks, rows = _remarks(job), []
    for i, (point, remark) in enumerate(zip(job.scales, remarks, strict=True)):
        idle = point.idle
        idle_text = _NONE if idle is None else f"{100 * idle:.1f} %"
        further = (idle_text, _speedup(job.scales[0], point)) if in_full else ()
        paid = costs[1][i] if costs[0] else ()
        nodes = f"{START_MARK} {point.nodes}" if point.nodes == job.initial_nodes else str(point.nodes)
        rows.append((nodes, *row(point)[1:], *further, *paid, *([remark] if any(remarks) else [])))
    head = (*COLUMNS, *((IDLE, SPEEDUP) if in_full else ()), *costs[0], *([REMARKS] if any(remarks) else []))
    return head, rows


def _speedup(first: ScalePoint, point: ScalePoint) -> str:
    if not first.largest_share or not point.largest_share:
        return _NONE
    return f"{first.largest_share / point.largest_share:.2f}"


def aligned(job: JobSpec, *, in_full: bool = False, costs: Columns = NO_COLUMNS) -> Columns:
    """Return `table` with the cells of its numbers padded, so that they align to the right."""
    head, rows = table(job, in_full=in_full, costs=costs)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    numbers = (*_NUMBERS, *costs[0])
    padded = [
        tuple(cell.rjust(widths[i]) if head[i] in numbers else cell for i, cell in enumerate(cells))
        for cells in (head, *rows)
    ]
    return padded[0], padded[1:]


def summary(job: JobSpec) -> str:
    """Return the batch of a job, if it has one, the size it starts with and who trains it, in a line."""
    nodes, batch_text = job.initial_nodes, ""
    if counts := sorted({samples for point in job.scales if (samples := point.samples_per_step)}):
        low, high = counts[0], counts[-1]
        text = counted(low, "sample") if low == high else f"{low} to {high} samples"
        batch_text = f"{text} per optimizer step; "
    trainer_text = f"; {job.trainer} trainer" if job.trainer else ""
    rehearsal_text = ", a rehearsal" if job.is_rehearsal else ""
    fixed = recipe_model(job.model_type).fixed_size
    size_text = f"; always this size: {fixed}" if fixed else ""
    stays = job.in_place_timeout_s is not None
    resize_text = "; workers stay when it changes its size" if stays else ""
    programs = ", ".join(f"{name} {count}" for name, count in components(job).items())
    nodes_text = f"{counted(nodes, 'node')} ({programs})" if programs else counted(nodes, "node")
    return f"{batch_text}{START_MARK} starts on {nodes_text}{trainer_text}{rehearsal_text}{size_text}{resize_text}"


def components(job: JobSpec) -> dict[str, int]:
    """Return the nodes of each program of a job of several, by the ending of its objects' names."""
    return {role.component.name: role.nodes(job) for role in interface(job).components if role.component}


def as_fast_as(job: JobSpec) -> list[int | None]:
    """Return for each size the nodes of the smallest one that is as fast, None if there is none or it is unknown."""
    shares = [share for point in job.scales if (share := point.largest_share)]
    if len(shares) < len(job.scales):
        return [None] * len(job.scales)
    return [None if i is None else job.scales[i].nodes for i in batch.no_faster_than(shares)]


def _remarks(job: JobSpec) -> list[str]:
    remarks = []
    for point, other in zip(job.scales, as_fast_as(job), strict=True):
        parts = ["uneven"] if point.batch and not point.batch.split.is_even else []
        remarks.append(", ".join(parts if other is None else [*parts, f"no faster than {other}"]))
    return remarks


def bars(job: JobSpec, room: int) -> list[str]:
    """Return a bar of each size's largest share, its idle part hatched, at most `room` wide.

    There are none without a batch, for one size, or without room.
    """
    points = [(point, point.batch.split.large) for point in job.scales if point.batch]
    if not 1 < len(points) == len(job.scales) or room < len(BARS):
        return []
    most, found = min(room, _WIDEST_BAR), []
    largest = max(share for _, share in points)
    for point, share in points:
        bar = max(1, round(most * share / largest))
        busy = max(1, round(bar / (point.balance or 1)))
        found.append("█" * busy + "░" * (bar - busy))
    return found


def common_learning_rate(job: JobSpec) -> str | None:
    """Return the learning rate of all sizes; None if they differ."""
    found = {row(point)[COLUMNS.index(LEARNING_RATE)] for point in job.scales}
    return found.pop() if len(found) == 1 else None


def samples_per_rank(point: ScalePoint) -> str:
    """Return the distribution of samples to ranks, as `16` or `5 on 16, 6 on 8`."""
    if point.batch is None:
        return _NONE
    split = point.batch.split
    if split.is_even:
        return str(split.large)
    return f"{split.small} on {split.num_small}, {split.large} on {point.data_parallel_size - split.num_small}"


def kind(job: JobSpec) -> str:
    """Return the kind of job and how far it scales, in a few words."""
    what = described(job.backend).job_kind(job)
    where = f" on {job.resources.instance_type}" if job.resources.instance_type else ""
    first, last = job.scales[0].nodes, job.scales[-1].nodes
    size = f"{first} to {last} nodes" if last > first else counted(first, "node")
    return f"{what}{where}, {size}"


def plan_json(job: JobSpec) -> dict[str, Any]:
    """Return the plan as plain data. Times in seconds, batch sizes in samples."""
    elastic = job.elastic
    return {
        "job_name": job.name,
        "backend": job.backend,
        "recipe": job.recipe,
        "model_type": job.model_type,
        "trainer": job.trainer,
        "rehearsal": job.is_rehearsal,
        "nproc_per_node": job.nproc_per_node,
        "initial_nodes": job.initial_nodes,
        "instance_type": job.resources.instance_type,
        "components": components(job),
        "elastic": elastic
        and {
            "min_nodes": elastic.min_nodes,
            "max_nodes": elastic.max_nodes,
            "replica_values": [point.nodes for point in job.scales],
            "replica_increment_step": elastic.replica_increment_step,
            "use_graceful_shutdown": elastic.use_graceful_shutdown,
            "scaling_timeout_s": elastic.scaling_timeout_s,
            "graceful_shutdown_timeout_s": elastic.graceful_shutdown_timeout_s,
            "faulty_timeout_s": elastic.faulty_timeout_s,
            "scale_up_snooze_s": elastic.scale_up_snooze_s,
        },
        "scales": [_scale_json(point, other) for point, other in zip(job.scales, as_fast_as(job), strict=True)],
        "notices": [{"code": notice.code, "message": notice.message} for notice in job.notices],
    }


def _scale_json(point: ScalePoint, as_fast: int | None) -> dict[str, Any]:
    own, balance, idle = point.batch, point.balance, point.idle
    return {
        "nodes": point.nodes,
        "ranks": point.ranks,
        "data_parallel_size": point.data_parallel_size,
        "samples_per_step": point.samples_per_step,
        "samples_per_rank": own
        and {
            "small": own.split.small,
            "large": own.split.large,
            "num_small": 0 if own.split.is_even else own.split.num_small,
        },
        "micro_batch_size": own and own.micro_batch_size,
        "grad_accumulation": own and own.grad_accumulation,
        "learning_rate": point.learning_rate,
        "balance": None if balance is None else round(balance, 4),
        "idle_fraction": None if idle is None else round(idle, 4),
        "as_fast_as_nodes": as_fast,
    }


def plan_markdown(job: JobSpec) -> str:
    """Return the plan as a Markdown page."""
    head, rows = table(job, in_full=True)
    lines = [f"# {job.name}", "", f"{kind(job)}. Recipe `{job.recipe}`.", ""]
    lines += [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head)]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    lines += ["", f"{summary(job)}."]
    if job.notices:
        lines += ["", *(f"- {notice.code} {notice.message}" for notice in job.notices)]
    return "\n".join(lines) + "\n"


def usual_codes(job: JobSpec) -> list[str]:
    """Return the codes of those notices that every elastic job gets, in their order."""
    if not job.elastic:
        return []
    from launcher import rules  # a job of one size needs none

    codes = {each.code for each in rules.notice_rules_for(job.backend, job.model_type) if each.is_usual}
    return [notice.code for notice in job.notices if notice.code in codes]
