"""The picture of docs/architecture.md: packages in the order of their imports, and the values passed between stages.

Everything in it is read from the code: the layers from import-linter's contracts in pyproject.toml, the purpose of a
package from its docstring, the flow from the docstring of launcher/pipeline.py. matplotlib is imported to draw.
"""

import ast
import functools
import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FLOW = re.compile(r"\s*─([^→]+)→\s*")
"""An arrow of the flow, with its stages."""
_WIDTH, _ROW, _GAP, _HEAD, _FOOT = 11.0, 0.46, 0.08, 1.5, 0.3
"""Inches: the picture's width, a layer, the space between two, what is above and below them."""
_LEFT, _NAME, _RIGHT = 0.15, 1.45, 10.45
"""Inches: the left edge of the layers, the width of a name, the right edge of the layers."""
_LINE, _CHARACTER = 0.2, 0.066
"""Inches: the height of a contract's line, the width of a description's character."""
_TINTS = ("#DCEBF7", "#E3F2EA")
_ACCENT = "#0072B2"


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the launcher: its name, its purpose, and the packages inside it."""

    name: str
    purpose: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """The content of the picture.

    Attributes:
        flow: Values and the stages between them, alternating.
        layers: From the top; packages of the same layer do not import each other.
        contracts: Names of the import contracts beside the order of the layers.
    """

    flow: tuple[str, ...]
    layers: tuple[tuple[Package, ...], ...]
    contracts: tuple[str, ...]


@functools.cache
def outline() -> Outline:
    """Read the outline of the checkout that this module is part of."""
    root = Path(__file__).resolve().parents[3]
    contracts = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (ordered,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = [re.findall(r"launcher\.(\w+)", layer) for layer in ordered]
    return Outline(
        flow=tuple(_FLOW.split(" ".join(_docstring(root / "launcher/pipeline.py").split("\n\n")[-1].split()))),
        layers=tuple(tuple(_package(root / "launcher", name) for name in layer) for layer in names),
        contracts=tuple(contract["name"] for contract in contracts if contract["type"] != "layers"),
    )


def draw(path: Path) -> None:
    """Draw the packages to a file whose suffix names the format; `pictures.shows` finds the outline again in it."""
    pictures.save(path, "architecture", _figure, source=repr(outline()))


def _package(folder: Path, name: str) -> Package:
    file = folder / name / "__init__.py"
    parts = sorted(child.parent.name for child in file.parent.glob("*/__init__.py"))
    text = _docstring(file if file.is_file() else folder / f"{name}.py")
    return Package(name, text.splitlines()[0].replace("`", "").removesuffix("."), tuple(parts))


def _docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def _figure() -> Any:
    shown = outline()
    height = _HEAD + len(shown.layers) * (_ROW + _GAP) + _FOOT + len(shown.contracts) * _LINE + 0.15
    figure = pictures.figure(_WIDTH, height)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    _draw_flow(axes, shown.flow)
    for number, layer in enumerate(shown.layers):
        _draw_layer(axes, layer, _HEAD + number * (_ROW + _GAP), _TINTS[number % 2])
    bottom = _HEAD + len(shown.layers) * (_ROW + _GAP) - _GAP
    style = {"arrowstyle": "-|>", "color": _ACCENT, "linewidth": 1.6, "mutation_scale": 14}
    axes.annotate("", xy=(_RIGHT + 0.2, bottom), xytext=(_RIGHT + 0.2, _HEAD), arrowprops=style)
    text: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center", "color": _ACCENT, "fontsize": 9}
    axes.text(_RIGHT + 0.38, (_HEAD + bottom) / 2, "a package imports only those below it", **text)
    for number, name in enumerate(shown.contracts):
        axes.text(
            _LEFT, bottom + _FOOT + number * _LINE, f"•  {name}", fontsize=8.5, color=pictures.QUIET, va="center"
        )
    return figure


def _draw_flow(axes: "Axes", flow: tuple[str, ...]) -> None:
    """Draw the values in boxes, with an arrow for each stage."""
    axes.text(_LEFT, 0.22, "The stages of a launch (pipeline.py)", fontsize=11, fontweight="bold", va="center")
    axes.text(_LEFT, 1.3, "Packages of launcher/", fontsize=11, fontweight="bold", va="center")
    values, stages = flow[::2], flow[1::2]
    box = 1.2
    step = (_WIDTH - 2 * _LEFT - box) / max(len(stages), 1)
    for number, value in enumerate(values):
        _box(axes, _LEFT + number * step, 0.5, box, 0.45, "white", edge=_ACCENT)
        middle = _LEFT + number * step + box / 2
        axes.text(middle, 0.725, value, fontsize=8.5, fontweight="bold", ha="center", va="center")
    for number, stage in enumerate(stages):
        begin, end = _LEFT + number * step + box, _LEFT + (number + 1) * step
        style = {"arrowstyle": "-|>", "color": _ACCENT, "linewidth": 1.2, "shrinkA": 1, "shrinkB": 1}
        axes.annotate("", xy=(end, 0.725), xytext=(begin, 0.725), arrowprops=style)
        text = textwrap.fill(stage, 8)
        axes.text((begin + end) / 2, 0.67, text, fontsize=8, color=_ACCENT, ha="center", va="bottom")


def _draw_layer(axes: "Axes", layer: tuple[Package, ...], top: float, tint: str) -> None:
    """Draw the packages of a layer beside each other, each with its name, its purpose and its parts."""
    width = (_RIGHT - _LEFT - (len(layer) - 1) * _GAP) / len(layer)
    for number, package in enumerate(layer):
        left = _LEFT + number * (width + _GAP)
        _box(axes, left, top, width, _ROW, tint)
        axes.text(left + 0.12, top + _ROW / 2, package.name, fontsize=10, fontweight="bold", va="center")
        parts = "  ".join(package.parts)
        axes.text(
            left + width - 0.12, top + _ROW / 2, parts, fontsize=8, color=pictures.QUIET, ha="right", va="center"
        )
        room = int((width - _NAME) / _CHARACTER) - len(parts)
        lines = "\n".join(textwrap.wrap(package.purpose, room))
        axes.text(left + _NAME, top + _ROW / 2, lines, fontsize=8.5, va="center", linespacing=1.1)


def _box(axes: "Axes", x: float, y: float, width: float, height: float, face: str, edge: str = "none") -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=face, edgecolor=edge))
