"""Syntax of names: images, paths, buckets, DNS names, variables, keys of Secrets; regular expressions. Pure."""

import ipaddress
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from posixpath import isabs, normpath

_HOST = r"[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?P<name>(?:(?:{_HOST}(?:\.{_HOST})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*)"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]+))?"
)
_DIGESTS = {"sha256": 64, "sha384": 96, "sha512": 128}
_LONGEST_IMAGE = 255
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
"""Source: Distribution, reference grammar, NameTotalLengthMax; OCI Image Specification, Digests."""
IMAGE_FORM = "[registry[:port]/]name[:tag][@sha256:digest]"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_RESERVED = ("xn--", "sthree-", "amzn-s3-demo-")
BUCKET_FORM = "3 to 63 lower-case letters, digits, - and ., beginning and ending with a letter or digit"


def compiled(pattern: str) -> re.Pattern[str] | str:
    """Return a regular expression compiled, or why it is not valid."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)


def is_image(text: str) -> bool:
    """Return whether a text is an image reference that a node can resolve."""
    match = _IMAGE.fullmatch(text)
    if not match or len(match["name"]) > _LONGEST_IMAGE or _IMAGE_ID.fullmatch(match["name"]):
        return False
    algorithm, _, value = (match["digest"] or "").partition(":")
    return not algorithm or len(value) == _DIGESTS.get(algorithm)


PATH_LIMIT = 4095
"""Bytes of a path. Source: path_resolution(7), PATH_MAX less its null byte."""


def path_fault(path: str) -> str | None:
    """Return what is wrong with the path of a folder on a node, as a text to mount it by; None if nothing is.

    Source: Kubernetes, Volumes: hostPath; validatePathNoBacksteps of the API's validation.
    """
    if not isabs(path):
        return "is not an absolute path"
    if ".." in path.split("/"):
        return "contains '..'"
    if "\0" in path or len(path.encode()) > PATH_LIMIT:
        return f"is longer than {PATH_LIMIT} bytes, or contains a null character"
    return None


def mount_fault(path: str, unmountable: Sequence[str]) -> str | None:
    """Return what is wrong with a mount path in a container; None if nothing is.

    Source: Kubernetes API, VolumeMount: mountPath must not contain ':', nor may a mount of a container runtime.

    Args:
        unmountable: Folders in which nothing can be mounted.
    """
    if fault := path_fault(path):
        return fault
    if ":" in path:
        return "contains ':', which a mount path must not"
    if place(path) == "/":
        return "would replace the image's files, and no container could start"
    if folder := next((each for each in unmountable if is_below(path, each)), None):
        return f"is in {folder}, where nothing can be mounted"
    return None


def place(path: str) -> str:
    """Return the canonical form of an absolute path: `//data/` becomes `/data`."""
    return "/" + normpath(path).lstrip("/")


def rooted(path: str) -> str | None:
    """Return a path from the root in place of a relative one; None if it is not that which is at fault."""
    bare = path.strip()
    if not bare or path.startswith("/") or bare.startswith("~") or ".." in bare.split("/"):
        return None
    return bare if bare.startswith("/") else f"/{bare}"


def is_below(path: str, folder: str) -> bool:
    """Return whether an absolute path is a folder, or in it."""
    return PurePosixPath(place(path)).is_relative_to(place(folder))


def is_bucket(name: str) -> bool:
    """Return whether a name is valid for an S3 bucket or the alias of an access point.

    Source: Amazon S3 User Guide, General purpose bucket naming rules.
    """
    if not _BUCKET.fullmatch(name) or ".." in name or name.startswith(_RESERVED):
        return False
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return True
    return False


def bucket_fault(name: str) -> str | None:
    """Return what is wrong with the bucket that an address names; None if nothing is."""
    if not name:
        return "names no bucket"
    return None if is_bucket(name) else f"{name!r} is not a valid bucket name: {BUCKET_FORM}"


_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Source: Kubernetes, Object Names and IDs: RFC 1123 label names."""
_DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""Source: Kubernetes, Object Names and IDs: DNS subdomain names."""


def is_dns_label(text: str) -> bool:
    """Return whether a text is an RFC 1123 label."""
    return bool(_DNS_LABEL.fullmatch(text))


def is_dns_subdomain(text: str) -> bool:
    """Return whether a text is a DNS subdomain name, as most objects have."""
    return bool(_DNS_SUBDOMAIN.fullmatch(text))


QUOTED = re.compile(r"""(["'])((?:\\.|(?!\1).)*)\1""")
"""A text in quotes, as languages and Hydra's grammar write it; its second group is what is in them."""
VARIABLE_NAME = "[A-Za-z_][A-Za-z0-9_]*"
"""Name of an environment variable. Source: POSIX, Environment Variables: what every shell can set."""

SET_BY_BASH = frozenset(
    (
        *("_", "UID", "EUID", "PPID", "GROUPS", "SHLVL", "SECONDS", "RANDOM", "SRANDOM", "SHELLOPTS", "BASHOPTS"),
        *("EPOCHSECONDS", "EPOCHREALTIME", "LINENO", "FUNCNAME", "DIRSTACK", "PIPESTATUS", "HISTCMD", "OPTIND"),
        *("BASHPID", "BASH_ALIASES", "BASH_ARGC", "BASH_ARGV", "BASH_CMDS", "BASH_COMMAND", "BASH_LINENO"),
        *("BASH_REMATCH", "BASH_SOURCE", "BASH_SUBSHELL", "BASH_VERSINFO"),
    )
)
"""Names to which bash gives values of its own, so that programs receive no other; some end a script that sets them.
Source: bash(1), Shell Variables; tried with bash 5.2."""

_SECRET_KEY = re.compile(r"\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*")
_LONGEST_KEY = 253


def is_secret_key(text: str) -> bool:
    """Return whether a text is a valid key of a Secret. Source: Kubernetes, Secrets: keys of data."""
    return bool(_SECRET_KEY.fullmatch(text)) and len(text) <= _LONGEST_KEY
