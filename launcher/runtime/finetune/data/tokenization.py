"""The tokenizer of a model's folder, without transformers."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from launcher.runtime.file_kinds import irregular
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.templates import ChatTemplate, common_prefix

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_SPECIAL = "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
"""Files of a tokenizer. Source: transformers documentation, save_pretrained; the last since version 4.51."""
_LONGEST = 256
"""Characters of an added token, at most."""
_TEMPLATE_REMEDY = (
    "Give one: datasets.preprocessor_cfgs[1].chat_template_name=./template.jinja (a path with a slash), or, for "
    "preference pairs, model_config.chat_template_key=./template.jinja; or save it with the tokenizer as "
    f"{_TEMPLATE}"
)


@dataclass(frozen=True)
class ModelTokenizer:
    """Texts to tokens, and messages to texts.

    Args:
        template: None if the tokenizer has none and the user gives none.
        content: Everything that decides about the tokens, for a digest; first the text of its `tokenizer.json`.
        eos_token: The token that ends a text; None if the tokenizer names none.
    """

    template: ChatTemplate | None
    content: tuple[str, ...]
    eos_token: str | None
    folder: Path

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer, which neither pads nor truncates. It is parsed at its first use: that takes a second."""
        try:
            found = tokenizers.Tokenizer.from_str(self.content[0])
        except Exception as error:  # the library raises no class of its own
            raise DataError(f"{self.folder / _TOKENIZER}: not a valid tokenizer: {error}") from error
        found.no_truncation()
        found.no_padding()
        return found

    @cached_property
    def eos(self) -> int | None:
        return None if self.eos_token is None else self.tokenizer.token_to_id(self.eos_token)

    def ids(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        """Return the tokens of each text."""
        return [each.ids for each in self.tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    def encodings(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Return the tokens of each text and their places in it."""
        return self.tokenizer.encode_batch(texts, add_special_tokens=False)

    def required_template(self) -> ChatTemplate:
        """Return the template; without one, no sample can become text."""
        if self.template is None:
            raise DataError(f"{self.folder}: the tokenizer has no chat template. {_TEMPLATE_REMEDY}.")
        return self.template

    @cached_property
    def _added(self) -> re.Pattern[str]:
        names = sorted((each.content for each in self.tokenizer.get_added_tokens_decoder().values()), key=len)
        return re.compile("|".join(map(re.escape, reversed(names))) or r"(?!)")

    def answer_start(self, prompt: str, texts: Sequence[str]) -> int:
        """Return where the answer starts in texts that a prompt is the start of, in characters.

        Some templates write the start of an answer in another way than the end of a prompt. The texts then start with
        what is common to all; no token such as `<think>` is divided.
        """
        place = min(common_prefix(prompt, text) for text in texts)
        if place == len(prompt):
            return place
        return min(self._border(text, place) for text in (prompt, *texts))

    def _border(self, text: str, place: int) -> int:
        """Return `place`, or the start of the added token that it would divide."""
        for match in self._added.finditer(text, max(0, place - _LONGEST), place + _LONGEST):
            if match.start() < place < match.end():
                return match.start()
        return place


def open_tokenizer(folder: Path, settings: DataSettings) -> ModelTokenizer:
    """Return the tokenizer of a folder that `save_pretrained` wrote, with the template that the settings choose.

    Raises:
        DataError: A file is missing or not valid.
    """
    path = folder / _TOKENIZER
    if not path.is_file() and not irregular(path):
        raise DataError(
            f"{folder}: no {_TOKENIZER}. A tokenizer is a folder that transformers' save_pretrained writes; "
            "an older one is converted by AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
        )
    config = _config(folder)
    named = {key: token.get("content") if isinstance(token, Mapping) else token for key, token in config.items()}
    special = {key: text for key, text in named.items() if key.endswith("_token") and isinstance(text, str)}
    source, origin = _template(folder, config, settings.template_file)
    variables = special | dict(settings.chain.template_variables)
    return ModelTokenizer(
        None if source is None else ChatTemplate(source, variables, origin),
        (_read(path), source or "", json.dumps(variables, sort_keys=True)),
        special.get("eos_token"),
        folder,
    )


def _config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (_SPECIAL, _CONFIG):
        path = folder / name
        if not path.is_file() and not irregular(path):
            continue
        try:
            tree = json.loads(_read(path))
        except ValueError as error:
            raise DataError(f"{path}: not valid JSON: {error}") from error
        if not isinstance(tree, dict):
            raise DataError(f"{path}: must be a JSON object")
        found |= {key: value for key, value in tree.items() if value is not None}
    return found


def _template(folder: Path, config: Mapping[str, Any], own: str) -> tuple[str | None, str]:
    if own:
        return _read(Path(own)), own
    if (path := folder / _TEMPLATE).is_file() or irregular(path):
        return _read(path), str(path)
    found = config.get("chat_template")
    if isinstance(found, list):  # several named ones, as transformers wrote them before version 4.51
        by_name = {each.get("name"): each.get("template") for each in found if isinstance(each, Mapping)}
        found = by_name.get("default")
    return found if isinstance(found, str) else None, str(folder / _CONFIG)


def _read(path: Path) -> str:
    if kind := irregular(path):  # opening a FIFO blocks
        raise DataError(f"{path}: is {kind}, not a file of text")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
