"""A channel's content: the objects below a prefix, those of a manifest, or the lines of an augmented one.

Source: Amazon SageMaker API 2017-07-24, S3DataSource and ShuffleConfig; Amazon SageMaker AI Developer Guide,
Augmented Manifest Files for Training Jobs.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from launcher.backends.sagemaker_local.objects import Object, Stores
from launcher.common.problems import Problem, fail, raise_any

Piece: TypeAlias = Object | bytes
"""A unit of streaming: an object's bytes, or a value of an augmented manifest."""

_MOST_SHOWN = 10
_FORM = '[{"prefix": "s3://bucket/folder/"}, "key", …]'


@dataclass(frozen=True, slots=True)
class Entry:
    """A unit of sharing and shuffling: an object, or a line of an augmented manifest.

    Args:
        path: Its file's path below the channel's folder; "" for a line, which is not a file.
        pieces: The pieces to stream, in order.
    """

    path: str
    pieces: tuple[Piece, ...]

    @property
    def objects(self) -> tuple[Object, ...]:
        """The objects among its pieces: one, unless it is a line of an augmented manifest."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Object))


def read(source: Mapping[str, Any], stores: Stores) -> list[Entry]:
    """Return the entries of a request's S3DataSource, in its order.

    Raises:
        ProblemsFound: Everything that is wrong with it.
    """
    kind, uri = source["S3DataType"], source["S3Uri"]
    if kind == "ManifestFile":
        return _manifest(uri, stores)
    if kind == "AugmentedManifestFile":
        return _augmented(uri, source["AttributeNames"], stores)
    if kind != "S3Prefix":
        raise fail("E423", uri, f"{kind} is read by AWS's own algorithms only", allowed="S3Prefix or a manifest")
    entries = [Entry(_path_below(uri, found.uri), (found,)) for found in stores.list(uri)]
    if not entries:
        raise fail("E420", uri, "no object begins with this")
    return entries


def share(entries: Sequence[Entry], index: int, count: int, seed: int | None, epoch: int) -> list[Entry]:
    """Return the part of the entries for one of `count` hosts; with a seed, shuffled differently in each epoch."""
    found = list(entries)
    if seed is not None:
        random.Random(f"{seed} {epoch}").shuffle(found)
    return found[index::count]


def path_problems(entries: Sequence[Entry]) -> Iterator[Problem]:
    """Yield why entries cannot be files of one folder: paths that leave it, or that two entries need."""
    taken: dict[str, str] = {}
    for entry in entries:
        (found,) = entry.objects
        uri = found.uri
        if "\0" in entry.path or any(part in ("", ".", "..") for part in entry.path.split("/")):
            yield Problem("E422", uri, "is not a path below a folder", value=entry.path)
        elif taken.setdefault(entry.path, uri) != uri:
            yield Problem("E422", uri, f"would be the same file as {taken[entry.path]}", value=entry.path)
    folders = {path[:at] for path in taken for at, letter in enumerate(path) if letter == "/"}
    for path in sorted(folders & taken.keys()):
        yield Problem("E422", taken[path], "is an object and a folder of others", value=path)


def _path_below(prefix: str, uri: str) -> str:
    """Return an object's path below the folder of a prefix.

    The folder data/train of the prefix data/train is left out of the path; in data/train-2/x, where the prefix is a
    part of a name, the complete name stays.
    """
    folder = prefix.rpartition("/")[0] + "/"
    name = prefix.removeprefix(folder)
    path = uri.removeprefix(folder)
    return path.removeprefix(f"{name}/") if name else path


def _manifest(uri: str, stores: Stores) -> list[Entry]:
    """Return the objects of a manifest: [{"prefix": "s3://…"}, "key", …]."""
    prefix, keys = _listed(uri, stores)
    there = {found.uri: found for found in stores.list(prefix)}
    missing = [key for key in keys if prefix + key not in there]
    problems = [Problem("E420", prefix + key, "does not exist", where=uri) for key in missing[:_MOST_SHOWN]]
    if (more := len(missing) - _MOST_SHOWN) > 0:
        problems.append(Problem("E420", uri, f"lists {more} more objects that do not exist"))
    raise_any(problems)
    return [Entry(key.lstrip("/"), (there[prefix + key],)) for key in keys]


def _listed(uri: str, stores: Stores) -> tuple[str, list[str]]:
    """Return a manifest's prefix and keys."""
    try:
        with stores.open(uri) as stream:
            listed = json.load(stream)
    except ValueError as error:
        raise fail("E423", uri, f"is not valid JSON: {error}") from error
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
        raise fail("E423", uri, "is not a list that begins with a prefix", allowed=_FORM)
    first, *keys = listed
    prefix = first.get("prefix")
    if list(first) != ["prefix"] or not isinstance(prefix, str) or not prefix:
        raise fail("E423", uri, "has no prefix", value=first, allowed=_FORM)
    wrong = [key for key in keys if not isinstance(key, str)]
    if wrong or not keys:
        message = "lists an item that is not a key" if wrong else "lists no object"
        raise fail("E423", uri, message, value=wrong[:1] or None, allowed=_FORM)
    return prefix, keys


def _augmented(uri: str, names: Sequence[str], stores: Stores) -> list[Entry]:
    """Return the lines of an augmented manifest: the chosen attributes of each, with references resolved."""
    entries, problems = [], []
    with stores.open(uri) as stream:
        lines = stream.read().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            entries.append(Entry("", tuple(_piece(found, name) for name in names)))
        except KeyError as error:
            problems.append(Problem("E423", uri, f"line {number}: has no attribute {error}"))
        except TypeError:
            problems.append(Problem("E423", uri, f"line {number}: is not a JSON object"))
        except ValueError as error:
            problems.append(Problem("E423", uri, f"line {number}: {error}"))
    raise_any(problems[:_MOST_SHOWN])
    if not entries:
        raise fail("E423", uri, "has no lines")
    return entries


def _piece(line: Mapping[str, Any], name: str) -> Piece:
    """Return an attribute's piece: texts unchanged, other values as JSON."""
    value = line[name]
    if name.endswith("-ref"):
        if not isinstance(value, str) or "://" not in value:
            raise ValueError(f"{name} does not refer to an object: {value!r}")
        return Object(value, -1)
    return (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))).encode()
