"""Forms of names that registries and stores define: images and buckets. Pure."""

import ipaddress
import re

IMAGE = re.compile(
    r"(?:(?:[a-zA-Z0-9](?:[-a-zA-Z0-9.]*[a-zA-Z0-9])?)(?::\d{1,5})?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9+._-]+:[0-9a-fA-F]{32,})?"
)
"""A container image; use its `fullmatch`. Source: Distribution, reference grammar."""
IMAGE_FORM = "[registry[:port]/]name[:tag][@digest]"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_RESERVED = ("xn--", "sthree-", "amzn-s3-demo-")
BUCKET_FORM = "3 to 63 lower-case letters, digits, - and ., beginning and ending with a letter or digit"


def is_bucket(name: str) -> bool:
    """Return whether a bucket of S3, or the alias of an access point, can have a name.

    Source: Amazon S3 User Guide, General purpose bucket naming rules.
    """
    if not _BUCKET.fullmatch(name) or ".." in name or name.startswith(_RESERVED):
        return False
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return True
    return False
