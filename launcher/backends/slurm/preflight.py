"""Reasons why Slurm would refuse a job, or would accept it and never start it. Creates nothing."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.slurm import programs
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.queue import Seen, queue_of
from launcher.backends.slurm.rendering import JOB_FILE
from launcher.common import yaml_io
from launcher.common.problems import Problem
from launcher.model.config_tree import get
from launcher.model.environment import secret_references
from launcher.model.job_spec import Bundle, JobState

_NODES = ("recipes.trainer.num_nodes", "recipes.training_cfg.run.nodes")
_KEYS = (
    ("partition specified", "cluster.partition"),
    ("account", "cluster.account"),
    ("qos", "cluster.qos"),
    ("time limit", "cluster.time"),
    ("--time", "cluster.time"),
    ("node name", "cluster.nodelist"),
    ("feature", "cluster.constraint"),
    ("gres", "cluster.gres"),
    ("reservation", "cluster.reservation"),
    ("dependency", "cluster.dependency"),
    ("memory", "cluster.mem"),
    ("--signal", "cluster.signal"),
    ("mail", "cluster.mail_type"),
    ("node count", _NODES[0]),
    ("node configuration", _NODES[0]),
)
"""Part of a refusal of sbatch, in lower case, to the key that it is about. Source: Slurm 22.05, slurm_errno.c."""
_DEPENDENCY = re.compile(r"([a-z]+)((?::[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?)+)")


def problems(bundle: Bundle, name: str, place: Place) -> tuple[Problem, ...]:
    """Return every reason why a bundle's job would not run.

    Args:
        bundle: The bundle, on disk or not.
        name: The name that its job would have.
        place: Where it would be submitted.

    Raises:
        ProblemsFound: Slurm does not answer (E447).
    """
    config = yaml_io.load(bundle.files["recipe.yaml"])
    found = list(missing_secrets(config))
    found += _refusals(bundle, name, config, place) or [
        *_limits(config, place),
        *_dependencies(config["cluster"], place),
    ]
    return tuple(found)


def missing_secrets(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a Problem for each secret that is not in this process's environment, from which the job gets it."""
    for name, path, reference in secret_references(config):
        source = reference.get("env")
        if source and source not in os.environ:
            remedy = f"export {source}=… before the launch"
            yield Problem("E448", path, f"the variable {source}, which holds {name}, is not set", remedy=remedy)


def secret_values(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of this process's environment to which a job's secrets refer."""
    sources = (str(reference.get("env")) for _, _, reference in secret_references(config))
    return {source: os.environ[source] for source in sources if source in os.environ}


def refusal(answer: programs.Answer, config: Mapping[str, Any]) -> Problem:
    """Return the Problem of a job that sbatch refused, with its reason and the key that the reason is about.

    Raises:
        ProblemsFound: The controller did not answer, or sbatch is not installed (E447).
    """
    if answer.code == 127 or answer.is_unreachable:
        raise programs.unanswered("sbatch", answer)
    lines = [line.removeprefix("allocation failure: ") for line in answer.error.splitlines()]
    text = "; ".join(line for line in lines if line) or f"exit code {answer.code}"
    path = next((key for words, key in _KEYS if words in text.lower()), "cluster")
    path = _nodes(config)[0] if path in _NODES else path
    value = get(config, path) if path != "cluster" else None
    return Problem("E445", path, f"Slurm refuses the job: {text}", value=value)


def _refusals(bundle: Bundle, name: str, config: Mapping[str, Any], place: Place) -> list[Problem]:
    words = ("sbatch", "--test-only", f"--job-name={name}")
    answer = place.run(*words, text=bundle.files[JOB_FILE])
    return [refusal(answer, config)] if answer.code else []


def _nodes(config: Mapping[str, Any]) -> tuple[str, int]:
    """Return the key of the number of nodes, and its value."""
    return next((key, int(value)) for key in reversed(_NODES) if (value := get(config, key)) is not None)


def _limits(config: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """Yield what a partition never allows; Slurm accepts it nevertheless unless EnforcePartLimits is set.

    Of several partitions one has to allow the job.
    """
    answer = place.run("scontrol", "--oneliner", "show", "partition")
    if answer.code:
        raise programs.unanswered("scontrol", answer)
    known = [dict(word.partition("=")[::2] for word in line.split()) for line in answer.out.splitlines()]
    cluster = config["cluster"]
    names = (cluster.get("partition") or "").split(",")
    chosen = [each for each in known if each.get("PartitionName") in names or (names == [""] and _is_default(each))]
    found = [list(_over(each, config)) for each in chosen]
    yield from min(found, key=len, default=())


def _is_default(partition: Mapping[str, str]) -> bool:
    return partition.get("Default") == "YES"


def _over(partition: Mapping[str, str], config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is beyond the limits of one partition."""
    name, (key, nodes) = partition["PartitionName"], _nodes(config)
    wanted, limit = minutes(config["cluster"].get("time")), minutes(partition.get("MaxTime"))
    if wanted is not None and limit is not None and wanted > limit:
        message = f"is more than partition {name} allows; the job would stay pending for ever"
        value = config["cluster"]["time"]
        yield Problem("E446", "cluster.time", message, value=value, allowed=f"at most {partition['MaxTime']}")
    counts = [int(partition[field]) for field in ("MaxNodes", "TotalNodes") if partition.get(field, "").isdigit()]
    if counts and nodes > min(counts):
        message = f"is more than partition {name} allows; the job would stay pending for ever"
        yield Problem("E446", key, message, value=nodes, allowed=f"1 to {min(counts)}")


def minutes(limit: object) -> float | None:
    """Return a time limit of Slurm in minutes; None if there is none.

    Source: sbatch(1), --time.
    """
    text = "" if limit is None else str(limit)
    days, dash, rest = text.rpartition("-")
    if not re.fullmatch(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}", text):
        return None
    numbers = [int(part) for part in rest.split(":")]
    if dash:
        hours, mins, seconds = (*numbers, 0, 0)[:3]
        return int(days) * 1440 + hours * 60 + mins + seconds / 60
    if len(numbers) == 3:
        return numbers[0] * 60 + numbers[1] + numbers[2] / 60
    return numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)


def _dependencies(cluster: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """Yield the dependencies that Slurm would ignore, and those that are never fulfilled."""
    value = cluster.get("dependency") or ""
    for match in _DEPENDENCY.finditer(value):
        for word in match[2].split(":")[1:]:
            job_id = re.split(r"[_+]", word)[0]
            if message := _unmet(match[1], queue_of(place).find(job_id), job_id):
                yield Problem("E446", "cluster.dependency", message, value=value)


def _unmet(kind: str, job: Seen | None, job_id: str) -> str | None:
    """Return why waiting for a job has no effect or no end; None if it has both."""
    if job is None:
        return f"Slurm does not know job {job_id}, and would not wait for it"
    has_failed = job.state in (JobState.FAILED, JobState.CANCELLED)
    if (kind == "afterok" and has_failed) or (kind == "afternotok" and job.state is JobState.SUCCEEDED):
        return f"job {job_id} has ended as {job.word}; the job would stay pending for ever"
    return None
