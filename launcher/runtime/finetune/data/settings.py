"""The part of a compiled configuration that decides about the data."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.steps import Chain, chain_of

Technique = Literal["sft", "dpo"]

CHANNELS = {"train_path": ("train", "training"), "validation_path": ("validation", "val", "test")}
"""Names of data channels, by the setting that they fill.

Source: SageMaker training toolkit, environment variables SM_CHANNEL_<NAME>.
"""

Turns = Literal["all", "last"]
TURNS: tuple[Turns, ...] = ("all", "last")
"""Which answers of a conversation are trained."""
MAX_LOST_SHARE = 0.1
"""Of the samples, or of the assistant's turns, that may be lost unless the recipe sets another share."""

TECHNIQUES: tuple[Technique, ...] = ("sft", "dpo")


@dataclass(frozen=True, slots=True)
class DataSettings:
    """What samples are read and how they become tokens.

    Args:
        technique: `sft` reads conversations, `dpo` preference pairs.
        train_path: File or folder of training samples.
        validation_path: File or folder of validation samples; "" takes a part of the training samples.
        train_limit: Maximum training samples read; None for all.
        validation_limit: Maximum validation samples read; None for all.
        max_samples: Maximum samples read of either.
        max_len: Tokens kept of a sample.
        split_ratio: Part of the samples to train on if `validation_path` is empty, 0 to 1.
        split_seed: Seed of that split.
        chain: The recipe's preprocessing steps.
        template_file: A chat template of the user's own; "" for the tokenizer's.
        image_templates: Names of templates that exist only in the published image.
        pretrain_mode: Whether every token is trained, and plain text is accepted.
        saves_steps: Whether the first samples are written as JSON beside the arrays.
        data_dir: Folder for prepared data; "" for the one under the run folder.
        assistant_turns: Which answers of a conversation are trained.
        max_lost_share: Part of the samples, or of the assistant's turns, that may be lost, 0 to 1.
    """

    technique: Technique
    train_path: str
    validation_path: str = ""
    train_limit: int | None = None
    validation_limit: int | None = None
    max_samples: int = 10**8
    max_len: int = 4096
    split_ratio: float = 0.9
    split_seed: int = 42
    chain: Chain = Chain()
    template_file: str = ""
    image_templates: tuple[str, ...] = ()
    pretrain_mode: bool = False
    saves_steps: bool = False
    data_dir: str = ""
    assistant_turns: Turns = "all"
    max_lost_share: float = 1.0

    @classmethod
    def of(cls, training_config: Mapping[str, Any]) -> "DataSettings":
        """Return the settings in a compiled recipe's `training_config`.

        Raises:
            DataError: A value is not usable.
        """
        args, data = training_config["training_args"], training_config["datasets"]
        technique = _technique(args)
        chain = chain_of(data.get("preprocessor_cfgs") or (), technique)
        model = training_config.get("model_config") or {}
        given = [name for name in (chain.template_name, model.get("chat_template_key")) if name]
        train, validation = data.get("train_data") or {}, data.get("val_data") or {}
        return cls(
            technique=technique,
            train_path=_text(train, "file_path"),
            validation_path=_text(validation, "file_path"),
            train_limit=_number("datasets.train_data.limit", train.get("limit")),
            validation_limit=_number("datasets.val_data.limit", validation.get("limit")),
            max_samples=_number("training_args.max_samples", args.get("max_samples")) or 10**8,
            max_len=_number("training_args.max_len", args.get("max_len")) or 4096,
            split_ratio=_ratio(data),
            split_seed=int(data.get("train_val_split_seed") or 0),
            chain=chain,
            template_file=next(filter(_is_path, given), ""),
            image_templates=tuple(itertools.filterfalse(_is_path, given)),
            pretrain_mode=bool(args.get("pretrain_mode")),
            saves_steps=bool(data.get("save_intermediate_processing_steps")),
            data_dir=_text(data, "data_dir"),
            assistant_turns=_turns(data),
            max_lost_share=_lost_share(data),
        )

    def most(self, limit: int | None) -> int:
        """Return the maximum number of samples to read of a data set with this `limit`."""
        return self.max_samples if limit is None else min(self.max_samples, limit)


def _text(section: Mapping[str, Any], key: str) -> str:
    return section.get(key) or ""


def _technique(args: Mapping[str, Any]) -> Technique:
    found = args.get("trainer_type")
    if found not in TECHNIQUES:
        raise DataError(f"training_args.trainer_type is {found!r}; known are {', '.join(TECHNIQUES)}")
    return cast(Technique, found)


def _ratio(data: Mapping[str, Any]) -> float:
    ratio = float(data.get("train_val_split_ratio", 1.0))
    if not 0 < ratio <= 1:
        raise DataError(f"datasets.train_val_split_ratio is {ratio}; it must be above 0 and at most 1")
    return ratio


def _turns(data: Mapping[str, Any]) -> Turns:
    found = data.get("assistant_turns") or "all"
    if found not in TURNS:
        raise DataError(f"datasets.assistant_turns is {found!r}; known are {', '.join(TURNS)}")
    return cast(Turns, found)


def _lost_share(data: Mapping[str, Any]) -> float:
    found = data.get("max_lost_share")
    share = MAX_LOST_SHARE if found is None else float(found)
    if not 0 <= share <= 1:
        raise DataError(f"datasets.max_lost_share is {share}; it must be from 0 to 1")
    return share


def _is_path(name: str) -> bool:
    """Return whether the name of a template is a path; a bare name is one of the published image."""
    return "/" in name


def _number(key: str, value: object) -> int | None:
    """Return a count that a recipe may spell as 1e8.

    Raises:
        DataError: It is not a whole number from 0.
    """
    if value is None:
        return None
    try:
        number = float(cast(Any, value))
    except (TypeError, ValueError) as error:
        raise DataError(f"{key} is {value!r}; it must be a whole number from 0") from error
    if isinstance(value, bool) or number != number // 1 or number < 0:
        raise DataError(f"{key} is {value!r}; it must be a whole number from 0")
    return int(number)
