"""The table of benchmarks/RESULTS.md, from the JSON of stages."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HEAD = ("what", "goal", "measured", "floor", "ratio")


def table(files: Iterable[Path]) -> str:
    """Return the stages' figures in Markdown, with the machine, the versions and what could not be measured."""
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return "\n\n".join(_section(record) for record in records) + "\n"


def _section(record: Mapping[str, Any]) -> str:
    parts = [f"### {record['stage']}", _described(record)]
    # Tiny shapes reach no goal, and miss none.
    rows = [_row(each | {"meets_goal": None} if record["tiny"] else each) for each in record["measurements"]]
    if rows:
        parts.append("\n".join(_line(row) for row in (HEAD, ["---"] * len(HEAD), *rows)))
    parts += [f"- Not measured: {_first_line(each)}" for each in record["problems"]]
    return "\n\n".join(parts)


def _described(record: Mapping[str, Any]) -> str:
    machine, versions = record["machine"], record["versions"]
    where = (
        f"{machine['gpus']} × {machine['gpu']}" if machine["gpus"] else f"{machine['processors']} processors, no GPU"
    )
    tiny = "; **tiny shapes: the figures mean nothing**" if record["tiny"] else ""
    used = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "transformers", "peft", "trl") if versions[name]
    )
    return f"{record['state']} in {record['seconds']:.0f} s on {where}; {used}{tiny}."


def _row(measurement: Mapping[str, Any]) -> list[str]:
    unit, shape = measurement["unit"], measurement["shape"]
    sizes = ", ".join(f"{key} {value}" for key, value in shape.items() if value is not None)
    goal = measurement["goal"]
    sign = "≥" if measurement["goal_is_least"] else "≤"
    measured = _number(measurement["value"], unit)
    met = {True: ", met", False: ", missed", None: ""}[measurement["meets_goal"]]
    note = f"; {measurement['note']}" if measurement["note"] else ""
    floor = _number(measurement["floor"], unit) if measurement["floor"] is not None else ""
    return [
        measurement["name"] + (f" ({sizes})" if sizes else ""),
        f"{sign} {_number(goal, unit)}" if goal is not None else "",
        f"**{measured}**{met}{note}" if measurement["value"] is not None else f"–{note}",
        f"{floor}, {measurement['floor_name']}" if floor else "",
        f"{measurement['ratio']:.3g} ×" if measurement["ratio"] is not None else "",
    ]


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
