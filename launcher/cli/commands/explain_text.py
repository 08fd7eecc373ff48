"""Formats the output of `recipes explain`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile

from launcher.api.composed import ABSENT, Setting, Value, differing, spans
from launcher.common.text_table import clipped, table, value_text, with_head

_MOST_VALUE = 48
"""Columns of a value beside others; a single value has twice as many."""
_OVERRIDE = "your override"


def one(path: str, values: Sequence[Value], width: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines, with their styles, that explain one key: its value in the base recipe, then at each size."""
    yield path, "bold"
    rows: list[tuple[str, ...]] = [("nodes", "value", "set by")]
    styles = ["dim"]
    at_base = (values[0].origin, *values[0].shadowed)
    for (text, _), same in groupby(values, key=lambda v: (_value(path, v), _places(path, v))):
        group = list(same)
        rows.append((_nodes(group, len(values)), text, _origin(path, group[0].origin)))
        styles.append("")
        for setting in group[0].shadowed:
            if group[0] is not values[0] and setting in at_base:
                continue  # listed once, at the base
            rows.append(("", f"({_text(path, setting.value)})", _origin(path, setting)))
            styles.append("dim")
    if len(values) == 1:
        rows = [row[1:] for row in rows]
    right = (0,) if len(values) == 1 else (0, 1)
    yield from zip(_lines(rows, right, width), styles, strict=True)
    if any(row[-2].startswith("(") for row in rows):
        yield "(…) is set there too, but overridden", "dim"


def several(found: Mapping[str, Sequence[Value]], width: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines, with their styles, that explain several keys: their base values, and which differ by size."""
    parent = _common_parent(list(found))
    rows = [("key", "value", "set by")]
    for path, values in found.items():
        text = clipped(_value(path, values[0]), _MOST_VALUE)
        rows.append((path.removeprefix(f"{parent}."), text, _origin(path, values[0].origin)))
    if parent:
        yield parent, "bold"
    if width is None or max(map(len, table(rows))) <= width:
        yield from with_head(rows)
    else:  # the origin moves below, where it fits uncut
        for line, row in zip(table([row[:2] for row in rows]), rows, strict=True):
            yield clipped(line, width), ""
            yield f"     {row[2]}", "dim"
    if names := [path.removeprefix("recipes.") for path, values in found.items() if [*differing(values)]]:
        yield f"differ by size: {', '.join(names)}", "yellow"


def _common_parent(paths: Sequence[str]) -> str:
    parents = [path.split(".")[:-1] for path in paths]
    same = takewhile(lambda words: len(set(words)) == 1, zip(*parents, strict=False))
    return ".".join(words[0] for words in same)


def _lines(rows: Sequence[Sequence[str]], right: Sequence[int], width: int | None) -> list[str]:
    """Return a table with one line per row; the last cell is cut if the terminal is too narrow."""
    lines = table(rows, right)
    if width is None or max(map(len, lines)) <= width:
        return lines
    columns = list(zip(*rows, strict=True))
    taken = sum(max(map(len, column)) + 2 for column in columns[:-1]) + 1
    if taken + 24 > width:  # too narrow for a useful last column
        return lines
    room = width - taken
    short = [(*row[:-1], row[-1] if len(row[-1]) <= room else f"…{row[-1][-(room - 1) :]}") for row in rows]
    return table(short, right)


def _nodes(group: Sequence[Value], num_values: int) -> str:
    if len(group) == num_values > 1:
        return "all"
    nodes = [value.nodes for value in group if value.nodes is not None]
    is_base = len(nodes) < len(group)
    return ", ".join([*(["base"] if is_base and num_values > 1 else []), *([spans(nodes)] if nodes else [])])


def _places(path: str, value: Value) -> tuple[str, ...]:
    return tuple(_origin(path, place) for place in (value.origin, *value.shadowed))


def _value(path: str, value: Value) -> str:
    return "absent" if value.value is ABSENT else _text(path, value.value)


def _text(path: str, value: object) -> str:
    return clipped(value_text(value, path), _MOST_VALUE * 2)


def _origin(path: str, setting: Setting | None) -> str:
    """Return the text for an origin; an override of the key itself does not repeat the key and its value."""
    if setting is None:
        return "-"
    if not setting.is_override:
        return setting.origin
    key = setting.origin.lstrip("+~").partition("=")[0]
    if setting.origin.startswith("~"):
        return f"removed by {setting.origin}"
    if key.startswith("recipes.scale_config.") and key.endswith(path.removeprefix("recipes")):
        return f"{_OVERRIDE} of this size"
    return _OVERRIDE if key == path else f"{_OVERRIDE} {setting.origin}"
