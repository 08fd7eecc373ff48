"""The `checkpointing` section of the recipe, as the training program reads it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.common import names

S3 = "s3://"


def bucket_and_key(uri: str) -> tuple[str, str]:
    """Return the bucket and the key, or prefix, of a URI of S3."""
    # Not urlsplit: a key may contain # and ?, which S3 takes literally.
    bucket, _, key = uri.removeprefix(S3).partition("/")
    return bucket, key


PATIENCE_S = 600
"""Seconds for which an unavailable tier is retried while a checkpoint is loaded. Our own choice: throttling and
failovers of storage last minutes."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often a tier is saved to, in optimizer steps, and how many checkpoints it keeps."""

    frequency: int
    retention: int


@dataclass(frozen=True, slots=True)
class TierSettings:
    """The tiers of a job.

    Args:
        namespace: The name under which checkpoints are found again.
        memory, persistent: None for a tier that is not used.
        path: Of the persistent tier: a folder, or `s3://bucket/prefix`.
        s3_endpoint: Address of another store with S3's interface; None for AWS.
        replicas: Number of neighbour nodes that keep a copy of the memory tier.
        patience_s: Seconds for which an unavailable tier is retried while a checkpoint is loaded.
        kms_key: Identifier of the key that encrypts objects in S3; None for the bucket's default encryption.
        s3_checksums: Whether requests to S3 carry checksums, which the store verifies.
    """

    namespace: str
    memory: Cadence | None
    persistent: Cadence | None
    path: str = ""
    s3_endpoint: str | None = None
    replicas: int = 1
    patience_s: float = PATIENCE_S
    kms_key: str | None = None
    s3_checksums: bool = True


def tier_settings(section: Mapping[str, Any] | None) -> TierSettings | None:
    """Return the typed settings of a compiled section; None if there is none."""
    if not section:
        return None
    memory, persistent = section["memory"], section["persistent"]
    return TierSettings(
        namespace=section["namespace"],
        memory=Cadence(memory["frequency"], memory["retention"]) if memory else None,
        persistent=Cadence(persistent["frequency"], persistent["retention"]) if persistent else None,
        path=persistent["path"] if persistent else "",
        s3_endpoint=section["s3_endpoint"],
        replicas=section["replicas"],
        patience_s=float(os.environ.get(names.ENV_CHECKPOINT_PATIENCE) or section.get("patience_s", PATIENCE_S)),
        kms_key=section.get("kms_key"),
        s3_checksums=section.get("s3_checksums", True),
    )


def tier_settings_from_env() -> TierSettings | None:
    """Return the settings that the launcher put into the environment of a script; None if it put none."""
    return tier_settings(json.loads(os.environ.get(names.ENV_CHECKPOINTING) or "null"))
