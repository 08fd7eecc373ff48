"""Bounds that AWS documents but the API's patterns omit: where a job may write, and valid bucket names.

Each function returns its argument, or raises ValueError with the reason, as pydantic's validators do.
"""

import posixpath
import re
from pathlib import PurePosixPath

from launcher.common import syntax

FILE = "file:///"
"""Prefix of the URI of a folder of this machine."""

INPUT, MODEL = "/opt/ml/input", "/opt/ml/model"
"""Folders that SageMaker itself fills or uploads. Source: Amazon SageMaker, Training storage folders."""
_SYSTEM = ("/proc", "/sys", "/dev")

_HTTPS = re.compile(r"(?:(?P<bucket>.+)\.)?s3[.-](?:[a-z0-9-]+\.)*amazonaws\.com(?:\.cn)?")
"""Host of S3, with or without a virtual-hosted bucket. Source: Amazon S3 User Guide, Virtual hosting of buckets."""
_KMS_KEY = re.compile(
    r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key/|(?=alias/)))?"
    r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}|alias/[a-zA-Z0-9/_-]+)"
)
"""Source: Amazon SageMaker API, OutputDataConfig: KmsKeyId; AWS KMS, Key identifiers."""
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")


def s3_uri(uri: str) -> str:
    """Require an S3 URI to have a valid bucket name; a rule checks folders of this machine."""
    if uri.startswith(FILE):
        return uri
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    bucket = host
    if scheme == "https":
        if not (found := _HTTPS.fullmatch(host)):
            raise ValueError(f"{host} is not an address of S3: s3://bucket/folder")
        bucket = found["bucket"] or path.partition("/")[0]
    if not syntax.is_bucket(bucket):
        raise ValueError(f"{bucket!r} is not a valid bucket name: {syntax.BUCKET_FORM}")
    return uri


def kept_folder(path: str) -> str:
    """Require that a container's folder copied to S3 does not overlap those that SageMaker itself fills.

    Source: Amazon SageMaker API, CheckpointConfig, TensorBoardOutputConfig, DebugHookConfig: LocalPath.
    """
    folder = PurePosixPath("/", absolute_path(path).strip("/"))
    for own in (INPUT, MODEL):
        if folder.is_relative_to(own) or PurePosixPath(own).is_relative_to(folder):
            raise ValueError(f"{path} overlaps {own}, which SageMaker itself fills or uploads: /opt/ml/checkpoints")
    if any(folder.is_relative_to(own) for own in _SYSTEM):
        raise ValueError(f"{path} cannot hold files: /opt/ml/checkpoints")
    return path


def absolute_path(path: str) -> str:
    """Require a path to begin with / and to have no `.`, `..` or empty parts."""
    if not path.startswith("/") or posixpath.normpath(path).strip("/") != path.strip("/"):
        raise ValueError("must be an absolute path without . and .. parts")
    return path


def image(name: str) -> str:
    """Require an image to be a valid image reference."""
    if not syntax.is_image(name):
        raise ValueError(f"is not an image reference: {syntax.IMAGE_FORM}")
    return name


def metric_regex(expression: str) -> str:
    """Require a metric's expression to compile and to have a group, which captures the number.

    Source: SageMaker AI, Define training metrics. Groups may be named as in Python or as in Java.
    """
    try:
        compiled = re.compile(_NAMED_GROUP.sub("(?P<", expression))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if not compiled.groups:
        raise ValueError("has no group that captures the number: loss=([0-9.]+)")
    return expression


def kms_key(key: str) -> str:
    """Require a key to have one of the forms of KMS key identifiers."""
    if not _KMS_KEY.fullmatch(key):
        raise ValueError("must be a KMS key's id or ARN, alias/<name>, or the ARN of an alias")
    return key
