"""The command that serves the page."""

import os
import shlex
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.api.bundles import RESULTS, is_job
from launcher.common import console
from launcher.common.problems import fail

if TYPE_CHECKING:
    from launcher.ui.server import Address


def ui(
    folder: Annotated[str, typer.Argument(metavar="[RESULTS]", help="The results folder.")] = RESULTS,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Port; by default 8765, or a free one.")
    ] = None,
    may_write: Annotated[
        bool, typer.Option("--write", help="Let the page launch, scale and cancel; without it, it only reads.")
    ] = False,
    has_browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser if there is one.")
    ] = True,
) -> None:
    """Show jobs, recipes and plans in a browser. Serves a page on this machine alone, until Ctrl-C, and prints its
    address with the token that opens it."""
    from launcher.ui import server  # the packages of the page load only here

    def say(address: "Address") -> None:
        # The token is a secret, which the masked stream would hide.
        print(address.url, file=sys.__stdout__, flush=True)
        if address.tunnel:
            console.say(f"from your own machine, first: {address.tunnel}", stderr=True)
        elif has_browser and _has_screen():
            threading.Thread(target=_open, args=(server.door(address),), daemon=True).start()
        console.say(
            "it may launch, scale and cancel" if may_write else "it only reads; --write changes that", stderr=True
        )

    _refuse_other_folder(folder)
    server.serve(Path(folder), port=port, may_write=may_write, say=say)


def _refuse_other_folder(folder: str) -> None:
    """Raise a Problem if a folder cannot be that of results; `results` itself may not exist yet."""
    path = Path(folder)
    if is_job(path):
        remedy = f"recipes ui {shlex.quote(str(path.parent))}"
        raise fail("E745", folder, "is the folder of one job, not of results", remedy=remedy)
    if not path.is_dir() and (folder != RESULTS or os.path.lexists(path)):
        raise fail("E745", folder, "is not a folder", remedy="recipes ui, where jobs are launched, shows results/")


def _has_screen() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(url: str) -> None:
    import webbrowser

    webbrowser.open(url)
