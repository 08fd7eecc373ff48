"""Submits a bundle as a training job, atomically and once: uploads its recipe to S3, then sends the request."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from launcher.backends.sagemaker import JOBS, constraints
from launcher.backends.sagemaker.client import Connection, Refused, api_errors_as_problems, problem
from launcher.backends.sagemaker.constraints import bucket_and_key
from launcher.backends.sagemaker.follow import describe
from launcher.backends.sagemaker.request import RECIPE_CHANNEL, REQUEST, recipe_files
from launcher.bundle.store import json_of
from launcher.common import console
from launcher.common.interrupts import Interrupted, signum
from launcher.common.problems import Problem, ProblemsFound, raise_any
from launcher.model.following import STAYS_RECORDED, in_doubt
from launcher.model.job_spec import Bundle

_INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")
_OUTCOME = f"the training job may exist; {STAYS_RECORDED}"
_COMPARED = ("HyperParameters", "Environment", "RoleArn")
"""Members that identify a bundle's job, beside the URI of its recipe, which contains a digest of the content."""


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
    request = json_of(bundle, REQUEST)
    found = request_problems(request)
    try:
        there = describe(connection, request["TrainingJobName"])
    except Refused as error:
        return (*found, problem(error, JOBS))
    return found if there is None or _is_same(there, request) else (*found, _taken(request))


def submit(connection: Connection, bundle: Bundle) -> tuple[str, bool]:
    """Start the job of a bundle; return its ARN, and whether it is new.

    Raises:
        ProblemsFound: Every reason why it was refused; nothing remains of it, unless E352 says that it may exist.
    """
    request = json_of(bundle, REQUEST)
    raise_any(request_problems(request))
    bucket, prefix = bucket_and_key(recipe_uri(request) or "")
    files = recipe_files(bundle.files) if bucket else {}  # a serverless job has no recipe channel
    try:
        with api_errors_as_problems(f"{JOBS}.recipe_path"):
            if there := describe(connection, request["TrainingJobName"]):
                return _known(there, request), False
            for name, text in files.items():
                connection.call("s3", "put_object", Bucket=bucket, Key=prefix + name, Body=text.encode())
    except KeyboardInterrupt as interrupt:  # the job has not been requested yet
        raise Interrupted(signum(interrupt), is_rolled_back=True) from None
    try:
        return _create(connection, request), True
    except (Refused, ProblemsFound) as error:
        found = error.problems if isinstance(error, ProblemsFound) else (problem(error, JOBS),)
        if _is_unanswered(error) or _may_be_there(connection, request):
            raise ProblemsFound((*found, _in_doubt(bundle)), _OUTCOME) from error
        for name in files:  # if that is refused too, the first refusal is more useful
            with contextlib.suppress(Refused, ProblemsFound):
                connection.call("s3", "delete_object", Bucket=bucket, Key=prefix + name)
        raise ProblemsFound(found) from error
    except KeyboardInterrupt:  # the job still needs its recipe if it is created
        console.show_problems((_in_doubt(bundle),), _OUTCOME)
        raise


def _is_unanswered(error: Refused | ProblemsFound) -> bool:
    """Return whether a request may have been carried out, or still may: one of its attempts got no answer."""
    if isinstance(error, Refused):
        return not error.is_final
    return any(each.code == "E396" for each in error.problems)


def _in_doubt(bundle: Bundle) -> Problem:
    message = "may have started, or may still start: SageMaker did not answer the request for it"
    return in_doubt(bundle.directory, message, json_of(bundle, REQUEST)["TrainingJobName"])


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
    """Return the ARN of a job that already exists; raise a Problem if it is another bundle's."""
    if not _is_same(there, request):
        raise ProblemsFound((_taken(request),))
    arn: str = there["TrainingJobArn"]
    return arn


def _taken(request: Mapping[str, Any]) -> Problem:
    name, remedy = request["TrainingJobName"], "launch the recipe again; names have a random suffix"
    message = "another training job of this account has that name in this region"
    return Problem("E397", "recipes.run.name", message, value=name, remedy=remedy)


def _is_same(there: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    is_same = all((there.get(name) or None) == (request.get(name) or None) for name in _COMPARED)
    return is_same and recipe_uri(there) == recipe_uri(request)


def recipe_uri(job: Mapping[str, Any]) -> str | None:
    """Return the URI of a job's recipe; None for a job that is not the launcher's."""
    for channel in job.get("InputDataConfig") or ():
        if channel["ChannelName"] == RECIPE_CHANNEL:
            uri: str | None = channel["DataSource"].get("S3DataSource", {}).get("S3Uri")
            return uri
    return None
