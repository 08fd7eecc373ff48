"""The command that shows what a model sees of a file of samples."""

import dataclasses
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson, Overrides, Picture, complete_recipe, composed, full_name
from launcher.cli.output import say_picture
from launcher.common import console
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.model.config_tree import get

if TYPE_CHECKING:
    from launcher.runtime.finetune.data.settings import DataSettings

_PACKAGES = ("tokenizers", "jinja2", "numpy", "xxhash")
_MODEL = "training_config.model_config.model_name_or_path"
_PREPARED_BY = "A recipe of another family than llm_finetuning_aws prepares its data itself."


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
    from launcher.runtime.finetune.data.errors import DataError

    if not recipe:
        raise fail("E801", "recipes data", "missing option --recipe", remedy=f"recipes data {file} --recipe RECIPE")
    if tokenizer is not None and rehearse:
        message = "two tokenizers are given"
        raise fail("E801", "recipes data", message, allowed="one of --tokenizer and --rehearse")
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        message = f"reading samples needs {', '.join(missing)}"
        raise fail("E808", "recipes data", message, remedy="pip install '.[local,trainer]'")
    tree = _tree(recipe, overrides)
    try:
        settings = dataclasses.replace(_settings(recipe, tree), train_path=str(file))
        with _tokenizer(tree, tokenizer, settings, rehearse=rehearse) as folder:
            from launcher.runtime.finetune.data.report import summarize

            found = summarize(settings, folder, samples)
    except DataError as error:
        raise ProblemsFound(tuple(Problem("E808", str(file), message) for message in error.messages)) from error
    from launcher.cli import data_report

    if picture is not None:
        data_report.draw(found, settings.max_len, file.name, picture)
    if as_json:
        print(data_report.as_json(found))
    else:
        console.say_all(data_report.lines(found, str(file)))
        say_picture(picture)


def _tree(recipe: str, overrides: list[str] | None) -> Mapping[str, Any]:
    """Return a recipe that prepares its data by steps from samples to tokens."""
    full_name(recipe, overrides or ())
    found = get(composed(recipe, overrides).tree, "recipes")
    if not isinstance(found, Mapping) or get(found, "training_config.datasets.preprocessor_cfgs") is None:
        message = "the recipe has no training_config.datasets.preprocessor_cfgs, the steps from samples to tokens"
        raise fail("E808", recipe, message, remedy=_PREPARED_BY)
    return found


def _settings(recipe: str, tree: Mapping[str, Any]) -> "DataSettings":
    from launcher.runtime.finetune.data.settings import DataSettings

    try:
        return DataSettings.of(tree["training_config"])
    except (KeyError, TypeError, AttributeError) as error:
        message = f"the recipe lacks a value that the data depend on, or has one of another type ({error})"
        raise fail("E808", recipe, message, remedy=f"recipes check {recipe}") from error


@contextmanager
def _tokenizer(
    tree: Mapping[str, Any], given: Path | None, settings: "DataSettings", *, rehearse: bool
) -> Iterator[Path]:
    from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

    if rehearse:
        with tempfile.TemporaryDirectory() as folder:
            yield write_rehearsal_data(Path(folder), settings.technique, seed=0).tokenizer_folder
        return
    model = get(tree, _MODEL)
    if given is None and not (isinstance(model, str) and model and Path(model).is_dir()):
        message = "the tokenizer is unknown: the recipe names no folder of a model on this machine"
        remedy = "--tokenizer FOLDER, as save_pretrained writes it, or --rehearse for a rehearsal's small tokenizer"
        raise fail("E808", f"recipes.{_MODEL}", message, value=model or None, remedy=remedy)
    yield given or Path(str(model))
