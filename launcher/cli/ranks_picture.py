"""A picture of ranks: a row of processes for each host, a colour for each replica.

Colours are tints of the palette of Okabe and Ito, which colour-blind people can distinguish; numbers say the same.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import pictures
from launcher.model.parallelism.ranks import Placement, Rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TINTS = ("#F5CF99", "#BBE1F6", "#99D8C7", "#FAF3A8", "#99C7E0", "#EEBF99", "#EBC9DC", "#D3D6D9")
_CELL_WIDTH, _CELL_HEIGHT, _MARGIN, _HEAD, _NARROWEST = 0.82, 0.6, 0.75, 0.8, 6.4
_DPI = 150
"""Lengths in inches; dots per inch."""


def draw(placement: Placement, path: Path) -> None:
    """Draw the placement of ranks to a file whose suffix names the format. The same ranks yield the same bytes.

    Raises:
        ProblemsFound: It cannot be drawn there; see `pictures.save`.
    """
    pictures.save(path, "ranks", lambda: _figure(placement))


def _figure(placement: Placement) -> Any:
    from matplotlib.figure import Figure

    columns, rows = placement.processes_per_host, len(placement.hosts)
    width = max(_MARGIN + columns * _CELL_WIDTH + 0.1, _NARROWEST)
    height = _HEAD + rows * _CELL_HEIGHT + 0.1
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    box = (_MARGIN / width, 0.1 / height, columns * _CELL_WIDTH / width, rows * _CELL_HEIGHT / height)
    axes = figure.add_axes(box, xlim=(0, columns), ylim=(rows, 0))
    axes.set_axis_off()
    figure.text(0.1 / width, 1 - 0.22 / height, title(placement), fontsize=9.5, fontweight="bold", ha="left")
    legend = "a box is a process: its rank, then mp_group · mp_rank and dp_group · dp_rank; a colour is an mp_group"
    figure.text(0.1 / width, 1 - 0.42 / height, legend, fontsize=7, color=pictures.QUIET, ha="left")
    for local in range(columns):
        axes.text(local + 0.5, -0.08, f"local {local}", fontsize=7, color=pictures.QUIET, ha="center", va="bottom")
    for row, host in enumerate(placement.hosts):
        axes.text(-0.1, row + 0.5, host, fontsize=8, ha="right", va="center")
    for rank in placement.ranks:
        _draw_rank(axes, rank, rank.rank // columns)
    return figure


def title(placement: Placement) -> str:
    """Describe a placement in one line."""
    sliced = f" × {placement.tensor} tensor slices" if placement.tensor > 1 else ""
    parts = f"{placement.partitions} partition{'s' if placement.partitions > 1 else ''}{sliced}"
    copies = f"{placement.replicas} replica{'s' if placement.replicas > 1 else ''}"
    hosts = f"{len(placement.hosts)} host{'s' if len(placement.hosts) > 1 else ''}"
    return f"{placement.world_size} ranks on {hosts}: {copies} of {parts}, {placement.strategy}"


def _draw_rank(axes: "Axes", rank: Rank, row: int) -> None:
    from matplotlib.patches import Rectangle

    x, tint = rank.local_rank, _TINTS[rank.mp_group % len(_TINTS)]
    axes.add_patch(Rectangle((x + 0.03, row + 0.05), 0.94, 0.9, facecolor=tint, edgecolor="white"))
    axes.text(x + 0.5, row + 0.28, str(rank.rank), fontsize=9, fontweight="bold", ha="center", va="center")
    for y, words in ((0.57, f"mp {rank.mp_group} · {rank.mp_rank}"), (0.78, f"dp {rank.dp_group} · {rank.dp_rank}")):
        axes.text(x + 0.5, row + y, words, fontsize=6, ha="center", va="center")
