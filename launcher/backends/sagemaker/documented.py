"""Bounds that AWS's documents set and the API's patterns do not: where a job may write, which buckets there can be.

Each function returns the value it is given, or raises ValueError with the reason, as pydantic's validators do.
"""

import posixpath
import re
from pathlib import PurePosixPath

from launcher.common import syntax

FILE = "file:///"
"""What the URI of a folder of this machine begins with."""

INPUT, MODEL = "/opt/ml/input", "/opt/ml/model"
"""Folders that SageMaker fills, and uploads itself. Source: Amazon SageMaker, Training storage folders."""
_SYSTEM = ("/proc", "/sys", "/dev")

_HTTPS = re.compile(r"(?:(?P<bucket>.+)\.)?s3[.-](?:[a-z0-9-]+\.)*amazonaws\.com(?:\.cn)?")
"""Host of S3, with a virtual-hosted bucket or without. Source: Amazon S3 User Guide, Virtual hosting of buckets."""
_KMS_KEY = re.compile(
    r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key/|(?=alias/)))?"
    r"([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}|alias/[a-zA-Z0-9/_-]+)"
)
"""Source: Amazon SageMaker API, OutputDataConfig: KmsKeyId; AWS KMS, Key identifiers."""
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")


def s3_uri(uri: str) -> str:
    """Hold a URI of S3 to what a bucket may be called; a folder of this machine is left to a rule."""
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
    """Hold a container's folder that is copied to S3 to what does not mix with the folders SageMaker itself fills.

    Source: Amazon SageMaker API, CheckpointConfig, TensorBoardOutputConfig, DebugHookConfig: LocalPath.
    """
    folder = PurePosixPath("/", absolute_path(path).strip("/"))
    for own in (INPUT, MODEL):
        if folder.is_relative_to(own) or PurePosixPath(own).is_relative_to(folder):
            raise ValueError(f"{path} overlaps {own}, which SageMaker itself fills or uploads: /opt/ml/checkpoints")
    if any(folder.is_relative_to(own) for own in _SYSTEM):
        raise ValueError(f"{path} holds no files: /opt/ml/checkpoints")
    return path


def absolute_path(path: str) -> str:
    """Hold a path to one that begins with / and has no `.`, `..` or empty parts."""
    if not path.startswith("/") or posixpath.normpath(path).strip("/") != path.strip("/"):
        raise ValueError("must be an absolute path without . and .. parts")
    return path


def image(name: str) -> str:
    """Hold an image to a name by which it can be fetched."""
    if not syntax.is_image(name):
        raise ValueError(f"is not an image reference: {syntax.IMAGE_FORM}")
    return name


def metric_regex(expression: str) -> str:
    """Hold a metric's expression to one that compiles and has a group, which captures the number.

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
    """Hold a key to one of the forms by which KMS knows it."""
    if not _KMS_KEY.fullmatch(key):
        raise ValueError("must be a KMS key's id or ARN, alias/<name>, or the ARN of an alias")
    return key
