"""The plan, for people and for programs."""

from typing import Any

from launcher.specs import JobSpec, ScalePoint

COLUMNS = ("nodes", "ranks", "samples per rank", "micro x steps", "learning rate", "")


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
    rows = [COLUMNS, *(row(point) for point in job.scales)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(COLUMNS))]
    numbers = 2  # columns aligned to the right
    return [
        " "
        + "  ".join(
            c.rjust(w) if i < numbers else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in rows
    ]


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
    what = {"local": "local processes", "k8s": "HyperPodPyTorchJob"}.get(job.backend, job.backend)
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
        "scales": [_scale_json(point) for point in job.scales],
        "notices": [{"code": notice.code, "message": notice.message} for notice in job.notices],
    }


def _scale_json(point: ScalePoint) -> dict[str, Any]:
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
    }


def plan_markdown(job: JobSpec) -> str:
    """Return the plan as a Markdown page."""
    head = [name or "split" for name in COLUMNS]
    lines = [f"# {job.name}", "", f"{kind(job)}. Recipe `{job.recipe}`.", ""]
    lines += [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head)]
    lines += [f"| {' | '.join((*row(point)[:-1], row(point)[-1] or 'even'))} |" for point in job.scales]
    lines += [
        "",
        f"{_samples(job)} samples per optimizer step; starts on {job.initial_nodes}"
        f" node{'s' if job.initial_nodes > 1 else ''}.",
    ]
    if job.notices:
        lines += ["", *(f"- {notice.code} {notice.message}" for notice in job.notices)]
    return "\n".join(lines) + "\n"
