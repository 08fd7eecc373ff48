"""The command that lists instance types."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import AsJson
from launcher.cli.output import print_json
from launcher.common import console
from launcher.common.problems import fail

if TYPE_CHECKING:
    from launcher.jobs.prices import Prices
    from launcher.model.instances import Instance

_HEAD = ("type", "accelerators", "GiB each", "processes", "vCPUs", "GiB", "EFA", "RDMA", "use", "USD/h", "price of")
_RDMA = {True: "yes", False: "-", None: "?"}
_USES = ("training", "hyperpod")


def instances(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", help="Parts of the name.")] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="NAME", help="Part of its name: H100, NVIDIA, Trainium.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option("--accelerator-memory", metavar="GIB", min=0, help="Minimum GiB of each accelerator."),
    ] = None,
    efa: Annotated[bool, typer.Option("--efa", help="With EFA.")] = False,
    use: Annotated[str | None, typer.Option("--use", metavar="USE", help="training or hyperpod.")] = None,
    most: Annotated[
        float | None, typer.Option("--max-price", metavar="USD", min=0, help="Maximum price per hour, if known.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List instance types. Shows the hardware of each, and its dated price."""
    from launcher.jobs import prices
    from launcher.model.instances import table

    if use not in (None, *_USES):
        raise fail("E801", "--use", "is not a use of instances", value=use, allowed=" or ".join(_USES))
    known = prices.shipped(use or "training")
    found = [
        each
        for each in table().values()
        if all(word.lower() in each.name for word in words or ())
        and (accelerator is None or accelerator.lower() in each.accelerator.lower())
        and (memory is None or each.accelerator_memory_gib >= memory)
        and (not efa or each.efa > 0)
        and (use is None or use in each.use)
        and (most is None or known.per_hour.get(each.name, float("inf")) <= most)
    ]
    if as_json:
        print_json([_plain(each, known) for each in found])
        return
    if found:
        console.show_table(_HEAD, [_cells(each, known) for each in found])
    console.say(f"{len(found)} of {len(table())} instance types", "dim", stderr=True)


def _cells(each: "Instance", known: "Prices") -> tuple[str, ...]:
    count = f"{each.accelerators} x {each.accelerator}" if each.accelerators else "-"
    size = f"{each.accelerator_memory_gib:g}" if each.accelerators else ""
    numbers = (str(each.processes or "any"), str(each.vcpus), str(each.memory_gib), str(each.efa or "-"))
    name = each.name + (" (arm64)" if each.architecture == "arm64" else "")
    cells = (name, count, size, *numbers, _RDMA[each.gpudirect_rdma], "+".join(each.use))
    if each.name not in known.per_hour:
        return *cells, "?", ""
    basis = known.basis[each.name]
    return *cells, f"{known.per_hour[each.name]:,.2f}", f"{basis.kind}, {basis.region}, {basis.date}"


def _plain(each: "Instance", known: "Prices") -> dict[str, object]:
    price = known.per_hour.get(each.name)
    priced = None if price is None else {"usd_per_hour": price, **asdict(known.basis[each.name])}
    return asdict(each) | {"price": priced}
