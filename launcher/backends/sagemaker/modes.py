"""Input modes of channels, and the sources that each supports.

Source: Amazon SageMaker API 2017-07-24, Channel and S3DataSource; How Amazon SageMaker Provides Training Information.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_SLASHES = 3
"""Number of slashes in the URI of an object, at least."""


def misfits(
    source: Mapping[str, Any], channel: Mapping[str, Any], mode: str
) -> Iterator[tuple[str, str, Any, str | None]]:
    """Yield what a channel's mode does not support: the launcher's key, message, value and allowed values.

    Args:
        source: The channel's DataSource.
        channel: Its other members.
        mode: Its own mode, or the job's.
    """
    if "FileSystemDataSource" in source:
        if mode != "File":
            yield "mode", f"{mode} mode reads S3, but a file system is mounted", mode, "File"
        return
    objects = source.get("S3DataSource")
    if objects is None:
        return
    yield from _object_misfits(objects["S3DataType"], objects["S3Uri"], mode)
    yield from _attribute_misfits(objects["S3DataType"], objects.get("AttributeNames"), mode)
    for key, member in (("compression", "CompressionType"), ("record_wrapper", "RecordWrapperType")):
        if channel.get(member) not in (None, "None") and mode != "Pipe":
            yield key, f"is for Pipe mode, not for {mode} mode", channel[member], "None"


def _object_misfits(kind: str, uri: str, mode: str) -> Iterator[tuple[str, str, Any, str | None]]:
    if kind in ("ManifestFile", "AugmentedManifestFile") and (uri.endswith("/") or uri.count("/") < _SLASHES):
        yield "s3", f"{kind} must be one object, but this is a folder", uri, "s3://bucket/folder/data.manifest"
    if mode == "FastFile" and kind != "S3Prefix":
        yield "s3_data_type", "FastFile mode supports prefixes only", kind, "S3Prefix"
    elif mode == "FastFile" and not uri.endswith("/"):
        yield (
            "s3",
            "FastFile mode needs a folder, and a prefix without a final slash may end inside a name",
            uri,
            f"{uri}/",
        )


def _attribute_misfits(kind: str, names: Any, mode: str) -> Iterator[tuple[str, str, Any, str | None]]:
    if kind != "AugmentedManifestFile":
        if names is not None:
            yield "attribute_names", f"belong to an augmented manifest; this is {kind}", names, None
    elif mode != "Pipe":
        yield "s3_data_type", f"{mode} mode cannot read an augmented manifest", kind, "mode: Pipe"
    elif not names:
        yield "attribute_names", "are missing: the attributes of each line to stream", None, "[source-ref, …]"
