"""Submits a bundle as a training job, atomically and once: uploads its recipe to S3, then sends the request."""

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from launcher.backends.sagemaker import constraints
from launcher.backends.sagemaker.client import Connection, Refused, problem
from launcher.backends.sagemaker.default_values import RECIPE_CHANNEL
from launcher.backends.sagemaker.follow import describe
from launcher.backends.sagemaker.request import REQUEST, recipe_files
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.model.job_spec import Bundle

_INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")
_COMPARED = ("HyperParameters", "Environment", "RoleArn")
"""Members that identify a bundle's job, beside the URI of its recipe, which contains a digest of the content."""


def request_of(bundle: Bundle) -> dict[str, Any]:
    """Return the request of a bundle.

    Raises:
        ProblemsFound: It has no request.
    """
    try:
        request: dict[str, Any] = json.loads(bundle.files[REQUEST])
        return request
    except (KeyError, ValueError) as error:
        raise fail("E703", str(bundle.directory), f"has no {REQUEST}: {error!r}") from error


def request_problems(request: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return what the API would refuse in a complete request, by the API's names.

    The service may know newer instance types than `api.json`: E379 checks which one a job may have.
    """
    return tuple(
        Problem("E399", f"{REQUEST}: {fault.member}", fault.message, value=fault.value, allowed=fault.allowed)
        for fault in constraints.faults(request)
        if not (fault.member.endswith("InstanceType") and _INSTANCE_TYPE.fullmatch(str(fault.value)))
    )


def validate(connection: Connection, bundle: Bundle) -> tuple[Problem, ...]:
    """Return why SageMaker would refuse a bundle, as far as it reports that without creating a job."""
    request = request_of(bundle)
    found = request_problems(request)
    try:
        there = describe(connection, request["TrainingJobName"])
    except Refused as error:
        return (*found, problem(error, "cluster.sm_jobs_config"))
    return found if there is None or _is_same(there, request) else (*found, _taken(request))


def submit(connection: Connection, bundle: Bundle) -> tuple[str, bool]:
    """Start the job of a bundle; return its ARN, and whether it is new.

    Raises:
        ProblemsFound: Every reason why it was refused; nothing remains of it.
    """
    request = request_of(bundle)
    if found := request_problems(request):
        raise ProblemsFound(found)
    try:
        if there := describe(connection, request["TrainingJobName"]):
            return _known(there, request), False
        bucket, prefix = _place(request)
        _upload(connection, bucket, prefix, recipe_files(bundle.files))
    except Refused as error:
        raise ProblemsFound((problem(error, "cluster.sm_jobs_config.recipe_path"),)) from error
    try:
        return _create(connection, request), True
    except BaseException as error:
        if may_exist := _may_be_there(connection, request):
            outcome = f"the job {request['TrainingJobName']} may have started; launching the bundle again finds it"
        else:
            _take_back(connection, bucket, prefix, recipe_files(bundle.files))
        if isinstance(error, Refused | ProblemsFound):
            raise ProblemsFound(_problems(error), outcome if may_exist else None) from error
        raise


def _problems(error: Refused | ProblemsFound) -> tuple[Problem, ...]:
    return error.problems if isinstance(error, ProblemsFound) else (problem(error, "cluster.sm_jobs_config"),)


def _create(connection: Connection, request: Mapping[str, Any]) -> str:
    try:
        arn: str = connection.call("sagemaker", "create_training_job", **request)["TrainingJobArn"]
        return arn
    except Refused as error:
        if error.code != "ResourceInUse":
            raise
        # If a request is repeated because its answer was lost, the existing job is this one.
        there = describe(connection, request["TrainingJobName"])
        if there is None:
            raise
        return _known(there, request)


def _may_be_there(connection: Connection, request: Mapping[str, Any]) -> bool:
    """Return whether the job exists although its answer was lost, or may: it then still has to read its recipe."""
    try:
        there = describe(connection, request["TrainingJobName"])
    except (Refused, ProblemsFound):
        return True
    return there is not None and _is_same(there, request)


def _known(there: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """Return the ARN of a job that already exists.

    Raises:
        ProblemsFound: It is another bundle's job.
    """
    if not _is_same(there, request):
        raise ProblemsFound((_taken(request),))
    arn: str = there["TrainingJobArn"]
    return arn


def _taken(request: Mapping[str, Any]) -> Problem:
    name = request["TrainingJobName"]
    message = "another training job of this account has that name in this region"
    return Problem(
        "E397", "recipes.run.name", message, value=name, remedy="launch the recipe again; names have a random suffix"
    )


def _is_same(there: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    is_same = all((there.get(name) or None) == (request.get(name) or None) for name in _COMPARED)
    return is_same and _recipe_uri(there) == _recipe_uri(request)


def _recipe_uri(job: Mapping[str, Any]) -> str | None:
    """Return the URI of a job's recipe; None for a job that is not the launcher's."""
    for channel in job.get("InputDataConfig") or ():
        if channel["ChannelName"] == RECIPE_CHANNEL:
            uri: str | None = channel["DataSource"].get("S3DataSource", {}).get("S3Uri")
            return uri
    return None


def _place(request: Mapping[str, Any]) -> tuple[str, str]:
    """Return bucket and prefix of a request's recipe."""
    # Not urlsplit: a key may contain # and ?, which S3 takes literally.
    bucket, _, prefix = (_recipe_uri(request) or "").removeprefix("s3://").partition("/")
    return bucket, prefix


def _upload(connection: Connection, bucket: str, prefix: str, files: Mapping[str, str]) -> None:
    if not bucket:  # a serverless job has no recipe channel
        return
    for name, text in files.items():
        connection.call("s3", "put_object", Bucket=bucket, Key=prefix + name, Body=text.encode())


def _take_back(connection: Connection, bucket: str, prefix: str, files: Mapping[str, str]) -> None:
    """Remove the recipe of a job that was not created. If that is refused too, the first refusal is more useful."""
    for name in files if bucket else ():
        with contextlib.suppress(Refused, ProblemsFound):
            connection.call("s3", "delete_object", Bucket=bucket, Key=prefix + name)
