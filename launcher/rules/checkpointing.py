"""Where checkpoints go: whether the tiers fit the job, the cluster and each other."""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from launcher.common.problems import Problem
from launcher.common.syntax import is_bucket
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.checkpointing import MEMORY_STEPS, PERSISTENT_STEPS, S3
from launcher.rules import SIZES, rule
from launcher.rules.elasticity import LIMITS, refuses_elastic

_KEY = "recipes.checkpointing"
_PAGE = "AWS, Accelerate your model training with managed tiered checkpointing on Amazon SageMaker HyperPod"
_PREFIX = re.compile(r"[A-Za-z0-9!_.'()/-]*")
"""Source: Amazon S3, Naming objects: safe characters, without the one that policies take for any other."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@rule("E208", *SIZES, _KEY, source=LIMITS)
def not_tiered(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Managed tiered checkpointing is tied to one world size."""
    section = checked.recipe.checkpointing
    if section and section.has_tiers:
        tiers = [name for name in ("memory", "persistent") if getattr(section, name)]
        yield from refuses_elastic(checked, problem, f"{_KEY}.{tiers[0]}", "managed tiered checkpointing")


@rule("E260", _KEY, source=f"{_PAGE}, Best practices")
def frequencies_fit(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A persistent checkpoint is one of the memory tier's that is also written out, so its steps are a multiple."""
    section = checked.recipe.checkpointing
    if not section or not section.memory or not section.persistent:
        return
    often, seldom = section.memory.frequency or MEMORY_STEPS, section.persistent.frequency or PERSISTENT_STEPS
    if seldom % often:
        near = max(1, round(seldom / often)) * often
        yield problem(
            f"{_KEY}.persistent.frequency",
            f"{seldom} steps are no multiple of the memory tier's {often}",
            value=seldom,
            allowed=f"{often}, {2 * often}, {3 * often}, …",
            remedy=f"{_KEY}.persistent.frequency={near}",
        )


@rule("E261", f"{_KEY}.persistent", source="Amazon S3, General purpose bucket naming rules")
def path_is_reached(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Checkpoints go to a bucket of S3 or to a folder, which a container knows by an absolute path."""
    path = _persistent_path(checked)
    if path is None:
        return
    allowed = "s3://bucket/prefix, or an absolute path such as /fsx/checkpoints"
    if path.startswith(S3):
        bucket, _, prefix = path.removeprefix(S3).partition("/")
        if not is_bucket(bucket):
            yield problem(f"{_KEY}.persistent.path", "names no bucket", value=path, allowed=allowed)
        elif not _PREFIX.fullmatch(prefix):
            message = "has a prefix with signs that mean something else in a policy or an address"
            yield problem(f"{_KEY}.persistent.path", message, value=path, allowed="letters, digits, and !_.'()-/")
    elif _SCHEME.match(path):
        yield problem(
            f"{_KEY}.persistent.path", "is no kind of storage this program knows", value=path, allowed=allowed
        )
    elif checked.backend != "local" and not path.startswith("/"):
        yield problem(f"{_KEY}.persistent.path", "is no absolute path", value=path, allowed=allowed)


@rule("E262", f"{_KEY}.persistent", "cluster", source="Kubernetes, Volumes", backend="k8s")
def path_outlives_the_pod(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """What a pod writes outside its mounts is gone with it."""
    path = _persistent_path(checked)
    if path is None or not path.startswith("/"):
        return
    mounts = [*(checked.settings.volumes or ()), *(checked.settings.persistent_volume_claims or ())]
    places = [each.mountPath for each in mounts if not each.readOnly]
    real = PurePosixPath(posixpath.normpath(path))
    if not any(real.is_relative_to(place) for place in places):
        yield problem(
            f"{_KEY}.persistent.path",
            "lies on no volume that the pods may write to: it would be lost with them",
            value=path,
            allowed=", ".join(f"{place}/…" for place in places) or "s3://bucket/prefix",
            remedy='"+cluster.persistent_volume_claims=[{claimName: fsx-claim, mountPath: /fsx}]"',
        )


@rule("E263", _KEY, "cluster", source=f"{_PAGE}, Conclusion")
def cluster_has_memory_tier(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The memory tier is a service of HyperPod on EKS; this machine has its own stand-in."""
    section = checked.recipe.checkpointing
    if section and section.memory and checked.backend not in ("k8s", "local"):
        yield problem(
            f"{_KEY}.memory",
            f"there is no memory tier on cluster={checked.backend}",
            allowed="cluster=k8s, cluster=local",
            remedy=f"{_KEY}.memory=null",
        )


@rule("E264", _KEY, source="docs/checkpointing.md, The section")
def settings_have_a_tier(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A setting of a tier that is not there would silently do nothing."""
    section = checked.recipe.checkpointing
    if not section:
        return
    is_s3 = bool(section.persistent and section.persistent.path.startswith(S3))
    needs = {
        "replicas": (section.memory, "memory"),
        "memory_percent": (section.memory, "memory"),
        "s3_endpoint": (is_s3, "persistent.path=s3://bucket/prefix"),
        "s3_checksums": (is_s3, "persistent.path=s3://bucket/prefix"),
        "kms_key": (is_s3, "persistent.path=s3://bucket/prefix"),
        "patience_s": (section.has_tiers, "memory, or .persistent"),
        "role_arn": (is_s3, "persistent.path=s3://bucket/prefix"),
    }
    for key, (has, what) in needs.items():
        value = getattr(section, key)
        if value is not None and not has:
            yield problem(f"{_KEY}.{key}", f"does nothing without {_KEY}.{what}", value=value)


def _persistent_path(checked: CheckedRecipe) -> str | None:
    section = checked.recipe.checkpointing
    return section.persistent.path if section and section.persistent else None
