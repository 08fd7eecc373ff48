"""What a model sees of a file of samples."""

import dataclasses
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.api.arguments import checked, text_of
from launcher.api.composed import composed
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.model import family_registry
from launcher.model.config_tree import get
from launcher.runtime.finetune.data.errors import DataError

if TYPE_CHECKING:
    from launcher.runtime.finetune.data.report import Shown, Summary
    from launcher.runtime.finetune.data.settings import DataSettings

__all__ = ["Report", "Shown", "Summary", "read"]

_PACKAGES = ("tokenizers", "jinja2", "numpy", "xxhash")
_MODEL = "model_config.model_name_or_path"
_PREPARED_BY = "Its own program prepares the data."


class Report(NamedTuple):
    """What becomes of a file of samples, and the most tokens of a sample."""

    summary: "Summary"
    max_len: int


@checked("E808")
def read(
    file: Path | str,
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    tokenizer: Path | str | None = None,
    rehearse: bool = False,
    samples: int = 3,
) -> Report:
    """Return what the open trainer makes of a file of samples, by a recipe that it trains. Writes nothing.

    Args:
        file: JSONL, parquet, or a folder of them.
        tokenizer: A tokenizer's folder, in place of the model's.
        rehearse: Whether to use the small tokenizer of a rehearsal.
        samples: Number of samples that the summary shows.

    Raises:
        ProblemsFound: A package is missing, or recipe, tokenizer or file are not usable (E808).
    """
    file = text_of(file, "E808", "file")
    tokenizer = None if tokenizer is None else Path(text_of(tokenizer, "E808", "tokenizer"))
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        message = f"reading samples needs {', '.join(missing)}"
        raise fail("E808", "recipes data", message, remedy="pip install '.[local,trainer]'")
    try:
        settings, model, key = _settings(recipe, overrides)
        settings = dataclasses.replace(settings, train_path=file)
        with _tokenizer(model, key, tokenizer, settings, rehearse=rehearse) as folder:
            from launcher.runtime.finetune.data.report import summarize

            return Report(summarize(settings, folder, samples), settings.max_len)
    except DataError as error:
        raise ProblemsFound(tuple(Problem("E808", file, message) for message in error.messages)) from error


def _settings(recipe: str, overrides: Sequence[str]) -> tuple["DataSettings", object, str]:
    """Return what the open trainer reads of a recipe's data, and the model that the recipe names by its key."""
    from launcher.runtime.finetune.data.settings import DataSettings

    found = get(composed(recipe, overrides).composition.tree, "recipes")
    has_family = isinstance(found, Mapping) and family_registry.name_of(get(found, "run.model_type"))
    given = family_registry.open_recipe(found) if has_family else None
    if given is None:
        message = "the open trainer does not train the recipe, so that nothing here prepares its data"
        raise fail("E808", recipe, message, remedy=_PREPARED_BY)
    try:
        training = given.trained(found)["training_config"]
        training["datasets"]["preprocessor_cfgs"]
        return DataSettings.of(training), get(training, _MODEL), f"recipes.{given.model}"
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"the recipe lacks a value that the data depend on, or has one of another type ({error})"
        raise fail("E808", recipe, message, remedy=f"recipes check {recipe}") from error


@contextmanager
def _tokenizer(
    model: object, key: str, given: Path | None, settings: "DataSettings", *, rehearse: bool
) -> Iterator[Path]:
    from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

    if rehearse:
        with tempfile.TemporaryDirectory() as folder:
            yield write_rehearsal_data(Path(folder), settings.technique, seed=0).tokenizer_folder
        return
    if given is None and not (isinstance(model, str) and model and Path(model).is_dir()):
        message = "the tokenizer is unknown: the recipe names no folder of a model on this machine"
        remedy = "--tokenizer FOLDER, as save_pretrained writes it, or --rehearse for a rehearsal's small tokenizer"
        raise fail("E808", key, message, value=model or None, remedy=remedy)
    yield given or Path(str(model))
