"""The command that writes the build context of an image."""

from pathlib import Path
from typing import Annotated

import typer


def container(
    base: Annotated[str, typer.Option("--base", metavar="IMAGE", help="Base image, with python3, pip and torch.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the build.", file_okay=False)],
) -> None:
    """Write the build context of an image. It adds the agent and this launcher's runtime to yours."""
    from launcher.bundle import container as images
    from launcher.cli.commands.governance import write
    from launcher.common import console

    write(out, images.files(base))
    console.say(f"{console.shown_path(out.absolute())}   next: docker build --tag <registry>/<name>:<tag> {out}")
