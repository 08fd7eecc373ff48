"""Requirements of a job's tiers on a cluster and a bucket: files of its bundle, for their administrators."""

import json

from launcher.model.backend_registry import described
from launcher.model.checkpointing import Checkpointing
from launcher.model.config_tree import get
from launcher.model.job_spec import JobSpec
from launcher.runtime.tiers.tier_settings import S3, bucket_and_key


def files(job: JobSpec) -> dict[str, str]:
    """Return the policies and the cluster's setting that a job's tiers need, relative path to text; none without.

    These are a policy of the pods' IAM role, those of a bucket and a KMS key in another account, a rule for
    unfinished uploads, and a part of a request.

    Source: AWS, managed tiered checkpointing, Configure your cluster: policies for a bucket of the same and of
    another account; Amazon SageMaker API, CreateCluster and UpdateCluster: TieredStorageConfig.
    """
    tree = get(job.config, "recipes.checkpointing")
    if not (tree and described(job.backend).files.has_containers):
        return {}
    section = Checkpointing.model_validate(tree)
    found: dict[str, str] = {}
    place = section.persistent.path if section.persistent else ""
    if place.startswith(S3):
        found["role-policy"] = _policy(section, place, None)
        if section.role_arn:
            found["bucket-policy"] = _policy(section, place, section.role_arn)
        if section.kms_key and section.role_arn:
            found["key-policy"] = _rendered("key", principal=section.role_arn)
        prefix = bucket_and_key(place)[1].strip("/")
        found["lifecycle"] = _rendered("lifecycle", prefix=f"{prefix}/" if prefix else "")
    if section.memory:
        found["cluster"] = _rendered("cluster", percent=section.memory_percent)
    return {f"checkpointing/{name}.json": text for name, text in found.items()}


def _policy(section: Checkpointing, place: str, principal: str | None) -> str:
    """Return a policy for the checkpoints at an S3 URL: of a role, or of a bucket if a principal is named."""
    bucket, prefix = bucket_and_key(place)
    partition = section.role_arn.split(":")[1] if section.role_arn else "aws"
    return _rendered(
        "policy",
        bucket=f"arn:{partition}:s3:::{bucket}",
        prefix=prefix.strip("/"),
        principal=principal,
        kms_key=None if principal else section.kms_key,  # a bucket policy grants no use of keys
    )


def _rendered(template: str, **values: object) -> str:
    from launcher.common.templating import render_template  # start-up time: few jobs need jinja2

    text = render_template(f"checkpointing/{template}.json.j2", **values)
    return json.dumps(json.loads(text), indent=2) + "\n"
