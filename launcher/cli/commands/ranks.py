"""The command that shows the placement of a model-parallel job's ranks, as a table and as a picture.

The picture has a row of processes for each host, and a colour for each replica; numbers say the same.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.api import placement as placing
from launcher.api.placement import Placement, Rank, columns, spans
from launcher.cli.commands.arguments import AsJson, Overrides, Picture, complete_recipe
from launcher.cli.output import print_json, say_picture
from launcher.common import console
from launcher.common.problems import fail
from launcher.common.text_table import table, with_head
from launcher.common.texts import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TINTS = ("#F5CF99", "#BBE1F6", "#99D8C7", "#FAF3A8", "#99C7E0", "#EEBF99", "#EBC9DC", "#D3D6D9")
"""Of a replica: tints of the palette of Okabe and Ito, which colour-blind people can distinguish."""
_CELL_WIDTH, _CELL_HEIGHT, _MARGIN, _HEAD, _NARROWEST = 0.82, 0.6, 0.75, 0.8, 6.4
"""Lengths in inches."""


def ranks(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE[@NODES]]",
            help="A recipe with distribution, or one size of it. Without it, use the options below.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Overrides = None,
    hosts: Annotated[int | None, typer.Option(metavar="N", min=1, help="Hosts.")] = None,
    processes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes per host.")] = None,
    partitions: Annotated[int | None, typer.Option(metavar="N", min=1, help="Partitions of the model.")] = None,
    tensor: Annotated[int | None, typer.Option(metavar="N", min=1, help="Tensor parallel degree.")] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="NAME", help="cluster, spread, or an order such as PTD.")
    ] = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Show the placement of ranks. Host, local rank and both groups of each, for a recipe or for given numbers."""
    if recipe is None:
        if processes is None:
            remedy = "recipes ranks --hosts 2 --processes 8 --partitions 4"
            raise fail("E801", "recipes ranks", "give a recipe, or the number of processes per host", remedy=remedy)
        placement = placing.of_numbers(processes, hosts or 1, partitions or 1, tensor or 1, strategy or "cluster")
    elif any(value is not None for value in (hosts, processes, partitions, tensor, strategy)):
        message = "a recipe determines its own placement; the options are for use without one"
        raise fail("E801", "recipes ranks", message, remedy=f"recipes ranks {recipe} KEY=VALUE…")
    else:
        from launcher.api.composed import composed

        found = composed(recipe, overrides)
        checked = placing.placeable(found)
        console.show_notice(*found.notices, stderr=True)
        placement = placing.of_recipe(found, checked)
    if picture is not None:
        from launcher.common import pictures

        pictures.save(picture, "ranks", lambda: _figure(placement))
    if as_json:
        print_json(_as_json(placement))
    else:
        console.say_all(_lines(placement))
        say_picture(picture)


def _as_json(placement: Placement) -> dict[str, object]:
    return {
        "hosts": placement.hosts,
        "processes_per_host": placement.processes_per_host,
        "world_size": placement.world_size,
        "partitions": placement.partitions,
        "tensor_parallel_degree": placement.tensor,
        "placement_strategy": placement.strategy,
        "replicas": placement.replicas,
        "mp_groups": placement.mp_groups,
        "dp_groups": placement.dp_groups,
        "ranks": [{name: getattr(rank, name) for name in columns(placement)} for rank in placement.ranks],
    }


def _lines(placement: Placement) -> Iterator[tuple[str, str]]:
    yield _title(placement), "bold"
    names = columns(placement)
    rows = [names, *([str(getattr(rank, name)) for name in names] for rank in placement.ranks)]
    yield from with_head(rows, right=[i for i, name in enumerate(names) if name != "host"])
    for name, groups in (("mp_group", placement.mp_groups), ("dp_group", placement.dp_groups)):
        yield name, "bold"
        yield from ((line, "") for line in table([(str(i), spans(g)) for i, g in enumerate(groups)], right=(0,)))


def _title(placement: Placement) -> str:
    sliced = f" × {placement.tensor} tensor slices" if placement.tensor > 1 else ""
    parts = f"{counted(placement.partitions, 'partition')}{sliced}"
    copies, hosts = counted(placement.replicas, "replica"), counted(len(placement.hosts), "host")
    return f"{placement.world_size} ranks on {hosts}: {copies} of {parts}, {placement.strategy}"


def _figure(placement: Placement) -> "Figure":
    from launcher.common import pictures

    per_host, rows = placement.processes_per_host, len(placement.hosts)
    width = max(_MARGIN + per_host * _CELL_WIDTH + 0.1, _NARROWEST)
    height = _HEAD + rows * _CELL_HEIGHT + 0.1
    figure = pictures.figure(width, height)
    box = (_MARGIN / width, 0.1 / height, per_host * _CELL_WIDTH / width, rows * _CELL_HEIGHT / height)
    axes = figure.add_axes(box, xlim=(0, per_host), ylim=(rows, 0))
    axes.set_axis_off()
    figure.text(0.1 / width, 1 - 0.22 / height, _title(placement), fontsize=9.5, fontweight="bold", ha="left")
    legend = "a box is a process: its rank, then mp_group · mp_rank and dp_group · dp_rank; a colour is an mp_group"
    figure.text(0.1 / width, 1 - 0.42 / height, legend, fontsize=7, color=pictures.QUIET, ha="left")
    for local in range(per_host):
        axes.text(local + 0.5, -0.08, f"local {local}", fontsize=7, color=pictures.QUIET, ha="center", va="bottom")
    for row, host in enumerate(placement.hosts):
        axes.text(-0.1, row + 0.5, host, fontsize=8, ha="right", va="center")
    for rank in placement.ranks:
        _draw_rank(axes, rank, rank.rank // per_host)
    return figure


def _draw_rank(axes: "Axes", rank: Rank, row: int) -> None:
    from matplotlib.patches import Rectangle

    x, tint = rank.local_rank, _TINTS[rank.mp_group % len(_TINTS)]
    axes.add_patch(Rectangle((x + 0.03, row + 0.05), 0.94, 0.9, facecolor=tint, edgecolor="white"))
    axes.text(x + 0.5, row + 0.28, str(rank.rank), fontsize=9, fontweight="bold", ha="center", va="center")
    for y, words in ((0.57, f"mp {rank.mp_group} · {rank.mp_rank}"), (0.78, f"dp {rank.dp_group} · {rank.dp_rank}")):
        axes.text(x + 0.5, row + y, words, fontsize=6, ha="center", va="center")
