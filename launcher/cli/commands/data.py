"""The command that shows what a model sees of a file of samples."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.commands.arguments import AsJson, Overrides, Picture, complete_recipe
from launcher.cli.output import say_picture
from launcher.common import console
from launcher.common.problems import fail


def data(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL, parquet, or a folder of them.")],
    overrides: Overrides = None,
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="RECIPE", help="Path under recipes/.", autocompletion=complete_recipe)
    ] = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A tokenizer's folder, in place of the model's.", file_okay=False),
    ] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Use the small tokenizer of a rehearsal.")] = False,
    samples: Annotated[int, typer.Option(metavar="N", min=0, help="Samples to print.")] = 3,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model sees of a file of samples. Trained parts, lengths, and what is dropped and why."""
    if not recipe:
        remedy = f"recipes data {console.typed_path(file)} --recipe RECIPE"
        raise fail("E801", "recipes data", "missing option --recipe", remedy=remedy)
    if tokenizer is not None and rehearse:
        message = "two tokenizers are given"
        raise fail("E801", "recipes data", message, allowed="one of --tokenizer and --rehearse")
    from launcher.api.samples import read
    from launcher.cli import data_report

    found, max_len = read(file, recipe, overrides or (), tokenizer=tokenizer, rehearse=rehearse, samples=samples)
    if picture is not None:
        data_report.draw(found, max_len, file.name, picture)
    if as_json:
        print(data_report.as_json(found))
    else:
        console.say_all(data_report.lines(found, str(file)))
        say_picture(picture)
