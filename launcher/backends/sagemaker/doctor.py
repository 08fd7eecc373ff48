"""Examines an AWS account before a training job: its request, role, image, inputs, output and quota. Reads only.

A job runs with the rights of its role, and this with those of the user: what the user may not read is unknown.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

from launcher.backends.sagemaker import JOBS, submit
from launcher.backends.sagemaker.backend import connection_of
from launcher.backends.sagemaker.client import Connection, Refused, connect, problem
from launcher.backends.sagemaker.constraints import ECR_IMAGE, bucket_and_key
from launcher.backends.sagemaker.keys import path_of
from launcher.backends.sagemaker.request import REQUEST, key_of, of_job
from launcher.bundle.store import json_of
from launcher.common.problems import Problem
from launcher.common.texts import counted
from launcher.model.finding import Answer, Question, clock, found, http_time, ok, or_ok, unknown
from launcher.model.job_spec import Bundle, JobSpec

_SILENT = frozenset({"E396"})
_NOWHERE = ("404", "NoSuchBucket", "NotFound")
"""Codes of S3 for a bucket that does not exist. Source: Amazon S3, Error responses; HeadBucket has no body."""
_NO_IMAGE = ("ImageNotFoundException", "RepositoryNotFoundException")
_SERVICE = "sagemaker.amazonaws.com"
"""Principal that a role must trust. Source: Amazon SageMaker, How to use SageMaker AI execution roles."""
_PAGES = 100
"""Pages of quotas that are read at most, of some hundred quotas each."""


class SageMakerDoctor:
    """Examines the account and the region of a training job."""

    unanswered: ClassVar[frozenset[str]] = _SILENT | {"E395"}

    def examine(self, job: JobSpec, bundle: Bundle) -> Iterator[Answer]:
        """Yield whether AWS knows the user, and the questions about the request's members."""
        connection = connection_of(bundle)
        try:
            identity = connection.call("sts", "get_caller_identity")
        except Refused as error:
            yield problem(error, JOBS)
            return
        yield ok("cluster", f"{identity.get('Arn')}, region {connection.region}")
        headers = identity.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        if theirs := http_time(headers.get("date")):
            yield clock("AWS", theirs)
        request = json_of(bundle, REQUEST)
        yield Question("request", partial(_request, connection, bundle))
        yield Question("role", partial(_role, connection, path_of(job, "role"), str(request["RoleArn"])))
        if match := ECR_IMAGE.fullmatch(request.get("AlgorithmSpecification", {}).get("TrainingImage") or ""):
            yield Question("registry", partial(_registry, connection, match))
        for key, channel in of_job(job).channels.items():
            yield Question("data", partial(_channel, connection, key, channel))
        yield Question("output", partial(_output, connection, job, request))
        if request.get("ResourceConfig"):
            yield Question("quota", partial(_quota, connection, request))


def _request(connection: Connection, bundle: Bundle) -> Iterator[Answer]:
    """Yield why SageMaker would refuse the request; what the user may not ask here, a launch may not either."""
    faults = (found("request", fault, _SILENT) for fault in submit.validate(connection, bundle))
    return or_ok("request", faults, "its members are what the API takes, and its name is free")


def _role(connection: Connection, key: str, arn: str) -> Iterator[Answer]:
    """Yield whether the role exists, and SageMaker may take it."""
    name = arn.rpartition("/")[2]
    try:
        role = connection.call("iam", "get_role", RoleName=name)["Role"]
    except Refused as error:
        if error.code == "NoSuchEntity":
            yield Problem(
                "E337", key, f"no such role: {error.message}", value=arn, remedy="name a role of the account"
            )
        else:
            yield problem(error, key)
        return
    if _SERVICE in str(role.get("AssumeRolePolicyDocument")):
        yield ok("role", f"{name} exists, and trusts SageMaker; its own rights are not known here")
    else:
        message = f"its trust policy does not name {_SERVICE}"
        yield Problem("E337", key, message, value=arn, remedy="add the principal to the role's trust policy")


def _registry(connection: Connection, image: re.Match[str]) -> Iterator[Answer]:
    """Yield whether the registry has the image."""
    by = {"imageDigest": image["digest"]} if image["digest"] else {"imageTag": image["tag"] or "latest"}
    there = connection if image["region"] == connection.region else connect(image["region"])
    named = {"registryId": image["account"], "repositoryName": image["name"], "imageIds": [by]}
    try:
        (details,) = there.call("ecr", "describe_images", **named)["imageDetails"]
        size_gib = details.get("imageSizeInBytes", 0) / 2**30
        yield ok("registry", f"{image['name']} is there, {details.get('imageDigest')}, {size_gib:.1f} GiB")
    except Refused as error:
        if error.code in _NO_IMAGE:
            remedy = "push it, or name another image in container"
            yield Problem("E339", "container", error.message, value=image[0], remedy=remedy)
        else:
            yield problem(error, "container")


def _channel(connection: Connection, key: str, channel: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield whether the channel that is given at `key` has objects."""
    name, sources = channel["ChannelName"], channel["DataSource"]
    if "DatasetSource" in sources:
        yield unknown("data", f"channel {name} is a data set of a hub, which is not read")
        return
    if "S3DataSource" not in sources:
        yield unknown("data", f"channel {name} is a file system, which only the job's network reaches")
        return
    key, uri = key_of(key, "s3"), sources["S3DataSource"]["S3Uri"]
    bucket, prefix = bucket_and_key(uri)
    try:
        count = connection.call("s3", "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1).get("KeyCount", 0)
    except Refused as error:
        yield _of_bucket(error, key, uri)
        return
    if count:
        yield ok("data", f"channel {name}: {uri} has objects")
    else:
        remedy = "correct the prefix, or copy the data there: aws s3 cp --recursive"
        yield Problem("E389", key, "no object's key begins with it", value=uri, remedy=remedy)


def _output(connection: Connection, job: JobSpec, request: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield whether the buckets of results and checkpoints exist."""
    places = {
        "output_path": request["OutputDataConfig"]["S3OutputPath"],
        "checkpoints.s3_uri": (request.get("CheckpointConfig") or {}).get("S3Uri"),
    }
    for key, uri in places.items():
        if uri:
            try:
                connection.call("s3", "head_bucket", Bucket=bucket_and_key(uri)[0])
                yield ok("output", f"{uri}: its bucket exists")
            except Refused as error:
                yield _of_bucket(error, path_of(job, key), uri)


def _of_bucket(error: Refused, key: str, uri: str) -> Problem:
    if error.code in _NOWHERE:
        return Problem("E389", key, "no such bucket", value=uri, remedy="create it, or correct the name")
    return problem(error, key)


def _quota(connection: Connection, request: Mapping[str, Any]) -> Iterator[Answer]:
    """Yield whether the account may have as many instances at a time, jobs that run now apart.

    Source: Service Quotas, Amazon SageMaker: <type> for training job usage, <type> for spot training job usage.
    """
    config = request["ResourceConfig"]
    groups = config.get("InstanceGroups") or [config]
    wanted: dict[str, int] = {}
    for group in groups:
        wanted[group["InstanceType"]] = wanted.get(group["InstanceType"], 0) + group["InstanceCount"]
    kind = "spot training job usage" if request.get("EnableManagedSpotTraining") else "training job usage"
    try:
        quotas = _quotas(connection)
    except Refused as error:
        yield problem(error, "instance_type")
        return
    for instance_type, count in wanted.items():
        allowed = quotas.get(f"{instance_type} for {kind}")
        if allowed is None:
            yield unknown("quota", f"the account's quotas do not list {instance_type} for {kind}")
        elif allowed < count:
            message = f"the account's quota for {kind} is {allowed:g}, and the job has {count}"
            remedy = "request a larger one: Service Quotas, Amazon SageMaker; or take fewer nodes"
            yield Problem("E338", "instance_type", message, value=instance_type, remedy=remedy)
        else:
            yield ok("quota", f"{counted(count, 'instance')} of {instance_type}; the account may have {allowed:g}")


def _quotas(connection: Connection) -> dict[str, float]:
    """Return the account's quotas for SageMaker by their names."""
    found_: dict[str, float] = {}
    token: dict[str, str] = {}
    for _ in range(_PAGES):
        page = connection.call("service-quotas", "list_service_quotas", ServiceCode="sagemaker", **token)
        found_ |= {each["QuotaName"]: float(each["Value"]) for each in page.get("Quotas", ())}
        if not page.get("NextToken"):
            break
        token = {"NextToken": page["NextToken"]}
    return found_
