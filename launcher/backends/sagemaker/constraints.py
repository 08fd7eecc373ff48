"""The constraints of CreateTrainingJob's members, all checked before the service is called.

botocore itself checks required members, types and minima only.

Source: `api.json`, the service model of the Amazon SageMaker API 2017-07-24. A test compares it with botocore's.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.runtime.tiers import tier_settings

FILE = "file:///"
"""Prefix of the URI of a folder of this machine, which only cluster=sm_local accepts."""

ECR_IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.(?:com(?:\.cn)?|eu)|on\.aws)"
    r"/(?P<name>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?"
)
"""An image in Amazon ECR. Source: Amazon ECR, Endpoints and quotas."""

_S3_HOST = re.compile(r"(?:(?P<bucket>.+)\.)?s3[.-](?:[a-z0-9-]+\.)*amazonaws\.com(?:\.cn)?")
"""Host of S3, with or without a virtual-hosted bucket. Source: Amazon S3 User Guide, Virtual hosting of buckets."""

_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "string": (str, "a text"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "long": (int, "a whole number"),
    "list": ((list, tuple), "a list"),
    "map": (Mapping, "a mapping"),
    "structure": (Mapping, "a mapping"),
}
"""Python's types of each of the API's, and their name in messages."""
_BITS = {"integer": 32, "long": 64}
"""Source: Smithy, Simple types."""
_FORMS = {".*": "one line", ".+": "one line, not empty"}
"""Patterns in words."""

# Java's meaning of a character class that Python lacks or defines differently.
_OUTSIDE = {r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]", ".": "[^\n\r\u0085\u2028\u2029]"}
_INSIDE = {
    r"\p{Alnum}": "A-Za-z0-9",
    r"\p{L}": r"\w",
    r"\p{N}": "",  # \w includes digits
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
}
_TOKEN = re.compile(r"\\p\{\w+\}|\\.|.", re.S)


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that the service would refuse, or an absent one.

    Args:
        member: Its path in the request, as `ResourceConfig.InstanceGroups.0.InstanceCount`; "" for the request.
    """

    member: str
    message: str
    value: Any = None
    allowed: str | None = None


def bucket_and_key(uri: str) -> tuple[str, str]:
    """Return bucket and key of a URI of S3: s3:// or https://, with the bucket in the host or in the path.

    Raises:
        ValueError: The host of an https:// URI is not that of S3.
    """
    if not uri.startswith("https://"):
        return tier_settings.bucket_and_key(uri)
    host, _, path = uri.removeprefix("https://").partition("/")
    if not (found := _S3_HOST.fullmatch(host)):
        raise ValueError(f"{host} is not an address of S3: s3://bucket/folder")
    if found["bucket"]:
        return found["bucket"], path
    bucket, _, key = path.partition("/")
    return bucket, key


def faults(value: Any, path: str = "", at: str | None = None) -> Iterator[Fault]:
    """Yield everything that the service would refuse about a request, or about the value of one of its members.

    Args:
        path: Path of the member in `api.json`; "" for the request itself.
        at: Path of the value in the request; that of the member by default.
    """
    shape, name, at = _members()[path], _name(path), path if at is None else at
    kind = shape["type"]
    types, allowed = _TYPES[kind]
    if not isinstance(value, types) or (kind in _BITS and isinstance(value, bool)):
        yield Fault(at, f"{name} has the wrong type", value, allowed)
        return
    yield from _own_faults(value, shape, name, at)
    content: Any = value  # its type is checked above, by the name of its shape
    if kind == "list":
        for i, item in enumerate(content):
            yield from faults(item, f"{path}[]", f"{at}.{i}")
    elif kind == "map":
        for key, item in content.items():
            yield from faults(key, f"{path}{{key}}", f"{at}.{key}")
            yield from faults(item, f"{path}{{value}}", f"{at}.{key}")
    elif kind == "structure":
        yield from _member_faults(content, shape, path, at)


def member(path: str) -> Callable[[Any], Any]:
    """Return a pydantic validator for a field whose value becomes a member of the request."""

    def validate(value: Any) -> Any:
        found = next(faults(value, path), None)
        if found:
            message = found.message.removeprefix(f"{_name(path)} ")  # several keys share a type
            raise ValueError(": ".join(filter(None, (message, found.allowed))))
        return value

    return validate


def instance_types() -> frozenset[str]:
    """Return every instance type that runs training jobs, with its `ml.` prefix."""
    return frozenset(_model()["enums"]["TrainingInstanceType"])


def _member_faults(value: Mapping[str, Any], shape: Mapping[str, Any], path: str, at: str) -> Iterator[Fault]:
    for required in shape.get("required", ()):
        if required not in value:
            yield Fault(_below(at, required), f"{_name(path)} lacks {required}")
    for key, item in value.items():
        if (inner := _below(path, key)) in _members():
            yield from faults(item, inner, _below(at, key))
        else:
            below = (each.removeprefix(_below(path, "")) for each in _members() if each.startswith(_below(path, "")))
            allowed = ", ".join(name for name in below if name and not any(sign in name for sign in ".[{"))
            yield Fault(_below(at, key), f"{_name(path)} has no member of that name", key, allowed)


def _own_faults(value: Any, shape: Mapping[str, Any], name: str, at: str) -> Iterator[Fault]:
    """Yield what is wrong with a value: its size, its form, or that it is not one of the listed values."""
    kind, least, most = shape["type"], shape.get("min"), shape.get("max")
    if (least, most) != (None, None):
        size = value if kind in _BITS else len(value)
        unit = "" if kind in _BITS else " characters" if kind == "string" else " entries"
        if (least is not None and size < least) or (most is not None and size > most):
            allowed = f"at least {least}" if most is None else f"{least or 0} to {most}"
            yield Fault(at, f"{name} is {size}{unit}", value if len(str(value)) < 80 else None, f"{allowed}{unit}")
    if kind in _BITS and value.bit_length() >= _BITS[kind]:
        yield Fault(at, f"{name} has more than {_BITS[kind]} bits", value)
    enum = shape.get("enum")
    names = _model()["enums"][enum] if isinstance(enum, str) else enum
    if names and value not in names:
        yield Fault(at, f"{name} has no such value", value, ", ".join(names) if len(names) < 20 else None)
    pattern = shape.get("pattern")
    if pattern and not java_pattern(pattern).fullmatch(value):
        yield Fault(at, f"{name} has the wrong form", value, _FORMS.get(pattern, f"all of {pattern}"))


@cache
def java_pattern(pattern: str) -> re.Pattern[str]:
    """Return a pattern of the service model as Python's; use its `fullmatch`, as the service does.

    Source: Java, java.util.regex.Pattern: \\d and \\w are ASCII, and a dot matches all but five line ends.
    """
    is_inside, words = False, []
    for token in _TOKEN.findall(pattern):
        if token in ("[", "]"):
            is_inside = token == "["
        table = _INSIDE if is_inside else _OUTSIDE
        words.append(table.get(token, token))
    return re.compile("".join(words))


def _name(path: str) -> str:
    """Return a member's name as messages show it."""
    text = path.replace("[]", "").replace("{value}", " value").replace("{key}", " key")
    return text or "CreateTrainingJob"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _members() -> dict[str, dict[str, Any]]:
    members: dict[str, dict[str, Any]] = _model()["members"]
    return members


@cache
def _model() -> dict[str, Any]:
    model: dict[str, Any] = json.loads(Path(__file__).with_name("api.json").read_text(encoding="utf-8"))
    return model
