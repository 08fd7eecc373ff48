"""The plan, for people and for programs."""

from typing import Any

from launcher import batch, layout
from launcher.specs import JobSpec, ScalePoint

COLUMNS = ("nodes", "ranks", "samples per rank", "micro x steps", "learning rate", "")
BALANCE = "balance"
_MOST_BARS = 40
_LEAST_BAR = 10
"""Columns a bar has on the narrowest terminal."""


def row(point: ScalePoint) -> tuple[str, ...]:
    """Return one size of the plan, a text for each of COLUMNS."""
    return (
        str(point.nodes),
        str(point.ranks),
        samples_per_rank(point),
        f"{point.micro_batch_size} x {point.grad_accumulation}",
        f"{point.learning_rate:g}",
        "" if point.split.is_even else "uneven",
    )


def table(job: JobSpec) -> list[str]:
    """Return the plan as aligned lines, the head first."""
    rows = [[*row(point)[:-1], words] for point, words in zip(job.scales, _split(job), strict=True)]
    return layout.table([COLUMNS, *rows], right=range(2))


def table_in_full(job: JobSpec) -> list[str]:
    """Return the plan as aligned lines, the head first, with what each size costs and is worth.

    A step takes as long as the largest share; `speed` is that of the smallest size divided by this one's.
    """
    first, start = job.scales[0], len(COLUMNS) - 1
    slowest = first.split.large / first.samples_per_step
    rows = [
        (
            *row(point)[:-1],
            f"{100 * point_idle(point):.1f} %",
            f"{slowest * point.samples_per_step / point.split.large:.2f}",
            "yes" if other is None else f"as {other} node{'s' if other > 1 else ''}",
        )
        for point, other in zip(job.scales, as_fast_as(job), strict=True)
    ]
    head = (*COLUMNS[:3], "passes", "rate", "idle", "speed", "worth")
    return layout.table([head, *rows], right=(0, 1, start, start + 1))


def point_balance(point: ScalePoint) -> float:
    """Return how many times as long a step takes as it would with equal shares."""
    return batch.balance(point.split, point.data_parallel_size)


def point_idle(point: ScalePoint) -> float:
    """Return the part of all ranks' time, 0 to 1, that is spent waiting for the largest share."""
    return batch.idle_fraction(point.split, point.data_parallel_size)


def as_fast_as(job: JobSpec) -> list[int | None]:
    """Return for each size the nodes of the smallest one that is as fast, None where none is."""
    shares = [point.split.large / point.samples_per_step for point in job.scales]
    return [None if i is None else job.scales[i].nodes for i in batch.no_faster_than(shares)]


def _split(job: JobSpec) -> list[str]:
    """Return what is to be said of each size: nothing, where its shares are equal."""
    words = []
    for point, other in zip(job.scales, as_fast_as(job), strict=True):
        parts = [] if point.split.is_even else ["uneven"]
        words.append(", ".join(parts if other is None else [*parts, f"no faster than {other}"]))
    return words


def chart(job: JobSpec, width: int = 80) -> list[str]:
    """Return bars of each size's largest share, its idle part hatched, for a terminal of `width` columns.

    Where there are many sizes, the first and last of them are shown.
    """
    points = list(job.scales)
    gap = len(points) > _MOST_BARS
    shown = [*points[: _MOST_BARS // 2], *points[-_MOST_BARS // 2 :]] if gap else points
    largest = max(point.split.large for point in shown)
    labels = [str(point.nodes) for point in shown]
    values = [str(point.split.large) for point in shown]
    pad = max(len("nodes"), *map(len, labels))
    room = max(_LEAST_BAR, width - pad - max(map(len, values)) - 5)
    lines = [f" {'nodes'.rjust(pad)}  largest share of a step; hatched: what equal shares would save"]
    for point, label, value in zip(shown, labels, values, strict=True):
        bar = max(1, round(room * point.split.large / largest))
        busy = max(1, round(bar / point_balance(point)))
        lines.append(f" {label.rjust(pad)}  {'█' * busy}{'░' * (bar - busy)} {value}")
    if gap:
        lines.insert(1 + _MOST_BARS // 2, f" {'…'.rjust(pad)}")
    return lines


def _samples(job: JobSpec) -> str:
    counts = sorted({point.samples_per_step for point in job.scales})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def samples_per_rank(point: ScalePoint) -> str:
    """Return how the samples fall on the ranks, as `16` or `5 on 16, 6 on 8`."""
    split = point.split
    if split.is_even:
        return str(split.large)
    return f"{split.small} on {split.num_small}, {split.large} on {point.data_parallel_size - split.num_small}"


def kind(job: JobSpec) -> str:
    """Return what the job is and how far it scales, in a few words."""
    what = {
        "local": "local processes",
        "contract": "SageMaker training job on this machine",
        "k8s": "HyperPodPyTorchJob",
        "sm_jobs": "SageMaker training job",
    }.get(job.backend, job.backend)
    if getattr(job.settings, "use_hyperpod_pytorch_job", None) is False:
        what = "Kubeflow PyTorchJob"
    where = f" on {job.resources.instance_type}" if job.resources.instance_type else ""
    first, last = job.scales[0].nodes, job.scales[-1].nodes
    size = f"{first} to {last} nodes" if last > first else f"{first} node{'s' if first > 1 else ''}"
    return f"{what}{where}, {size}"


def plan_json(job: JobSpec) -> dict[str, Any]:
    """Return the plan as plain data. Times in seconds, batch sizes in samples."""
    elastic = job.elastic
    return {
        "job_name": job.name,
        "backend": job.backend,
        "recipe": job.recipe,
        "model_type": job.model_type,
        "nproc_per_node": job.nproc_per_node,
        "initial_nodes": job.initial_nodes,
        "instance_type": job.resources.instance_type,
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
    split = point.split
    return {
        "nodes": point.nodes,
        "ranks": point.ranks,
        "data_parallel_size": point.data_parallel_size,
        "samples_per_step": point.samples_per_step,
        "samples_per_rank": {
            "small": split.small,
            "large": split.large,
            "num_small": 0 if split.is_even else split.num_small,
        },
        "micro_batch_size": point.micro_batch_size,
        "grad_accumulation": point.grad_accumulation,
        "learning_rate": point.learning_rate,
        "balance": round(point_balance(point), 4),
        "idle_fraction": round(point_idle(point), 4),
        "as_fast_as_nodes": as_fast,
    }


def plan_markdown(job: JobSpec) -> str:
    """Return the plan as a Markdown page."""
    head = [*COLUMNS[:-1], BALANCE, "split"]
    lines = [f"# {job.name}", "", f"{kind(job)}. Recipe `{job.recipe}`.", ""]
    lines += [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head)]
    for point, words in zip(job.scales, _split(job), strict=True):
        lines.append(f"| {' | '.join((*row(point)[:-1], f'{point_balance(point):.2f}', words or 'even'))} |")
    lines += [
        "",
        f"{_samples(job)} samples per optimizer step; starts on {job.initial_nodes}"
        f" node{'s' if job.initial_nodes > 1 else ''}.",
    ]
    if job.notices:
        lines += ["", *(f"- {notice.code} {notice.message}" for notice in job.notices)]
    return "\n".join(lines) + "\n"
