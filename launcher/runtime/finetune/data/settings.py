"""The part of a compiled configuration that decides about the data, its preprocessing steps as one typed chain."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from launcher.runtime.finetune.data.errors import DataError

Technique = Literal["sft", "dpo"]

CHANNELS = {"train_path": ("train", "training"), "validation_path": ("validation", "val", "test")}
"""Names of data channels, by the setting that they fill.

Source: SageMaker training toolkit, environment variables SM_CHANNEL_<NAME>.
"""

Truncation = Literal["right", "left"]
TRUNCATIONS: tuple[Truncation, ...] = ("right", "left")
"""The end of a sample that is cut if it is too long; of a pair, `left` cuts the prompt."""
Turns = Literal["all", "last"]
TURNS: tuple[Turns, ...] = ("all", "last")
"""Which answers of a conversation are trained."""
MAX_LOST_SHARE = 0.1
"""Of the samples, or of the assistant's turns, that may be lost unless the recipe sets another share."""

TECHNIQUES: tuple[Technique, ...] = ("sft", "dpo")

Step = Mapping[str, Any]

SFT_LABEL = "input_ids"
"""Name of a conversation's tokens in a `SequenceLengthFilter`."""
PAIR_LABELS = ("prompt_input_ids", "chosen_input_ids", "rejected_input_ids")
"""Names of a pair's tokens in a `SequenceLengthFilter`."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Everything that the steps of a recipe decide.

    Args:
        ignore_prompt_labels: Whether only the assistant's part is trained.
        template_name: File of a chat template as the recipe spells it; "" for the tokenizer's own.
        template_variables: Further variables of the template, such as `enable_thinking`.
        length_limits: Maximum tokens by label; a longer sample is dropped.
        max_prompt_length: Tokens kept at the end of a pair's prompt; None for all.
        max_completion_length: Tokens kept at the start of each answer of a pair; None for all.
        add_special_tokens: Whether the tokenizer adds its own special tokens to a pair's prompt.
    """

    ignore_prompt_labels: bool = True
    template_name: str = ""
    template_variables: tuple[tuple[str, bool], ...] = ()
    length_limits: tuple[tuple[str, int], ...] = ()
    prompt_key: str = "prompt"
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    max_prompt_length: int | None = None
    max_completion_length: int | None = None
    add_special_tokens: bool = False

    def length_limit(self, label: str) -> int | None:
        """Return the maximum tokens of a label; None for no limit."""
        return min((limit for name, limit in self.length_limits if name == label), default=None)


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
        truncation: The end at which a longer one is cut.
        split_ratio: Part of the samples to train on if `validation_path` is empty, 0 to 1.
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
    truncation: Truncation = "right"
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
        technique = _choice("training_args.trainer_type", args.get("trainer_type"), TECHNIQUES)
        chain = chain_of(data.get("preprocessor_cfgs") or (), technique)
        model = training_config.get("model_config") or {}
        given = [name for name in (chain.template_name, model.get("chat_template_key")) if name]
        train, validation = data.get("train_data") or {}, data.get("val_data") or {}
        ratio, lost = float(data.get("train_val_split_ratio", 1.0)), data.get("max_lost_share")
        share = MAX_LOST_SHARE if lost is None else float(lost)
        if not 0 < ratio <= 1:
            raise DataError(f"datasets.train_val_split_ratio is {ratio}; it must be above 0 and at most 1")
        if not 0 <= share <= 1:
            raise DataError(f"datasets.max_lost_share is {share}; it must be from 0 to 1")
        return cls(
            technique=technique,
            train_path=train.get("file_path") or "",
            validation_path=validation.get("file_path") or "",
            train_limit=_number("datasets.train_data.limit", train.get("limit")),
            validation_limit=_number("datasets.val_data.limit", validation.get("limit")),
            max_samples=_number("training_args.max_samples", args.get("max_samples")) or 10**8,
            max_len=_number("training_args.max_len", args.get("max_len")) or 4096,
            truncation=_choice("training_args.truncation", args.get("truncation") or "right", TRUNCATIONS),
            split_ratio=ratio,
            split_seed=int(data.get("train_val_split_seed") or 0),
            chain=chain,
            template_file=next(filter(_is_path, given), ""),
            image_templates=tuple(itertools.filterfalse(_is_path, given)),
            pretrain_mode=bool(args.get("pretrain_mode")),
            saves_steps=bool(data.get("save_intermediate_processing_steps")),
            data_dir=data.get("data_dir") or "",
            assistant_turns=_choice("datasets.assistant_turns", data.get("assistant_turns") or "all", TURNS),
            max_lost_share=share,
        )

    @property
    def splits(self) -> bool:
        """Whether a part of the training samples is for validation."""
        return self.split_ratio < 1 and not self.validation_path

    def most(self, limit: int | None) -> int:
        """Return the maximum number of samples to read of a data set with this `limit`."""
        return self.max_samples if limit is None else min(self.max_samples, limit)


def _choice(key: str, value: object, known: Sequence[str]) -> Any:
    if value not in known:
        raise DataError(f"{key} is {value!r}; known are {', '.join(known)}")
    return value


def _is_path(name: str) -> bool:
    return "/" in name  # a bare name is one of the published image


def _number(key: str, value: object) -> int | None:
    """Return a count that a recipe may spell as 1e8."""
    if value is None:
        return None
    try:
        number = float(cast(Any, value))
        is_count = not isinstance(value, bool) and number == number // 1 and number >= 0
    except (TypeError, ValueError):
        is_count = False
    if not is_count:
        raise DataError(f"{key} is {value!r}; it must be a whole number from 0")
    return int(number)


def chain_of(steps: Sequence[Step], technique: str) -> Chain:
    """Return the chain of a recipe's `preprocessor_cfgs`.

    Raises:
        DataError: A step is unknown or of another technique, or has an argument that it does not take.

    Source: `preprocessor_cfgs` of the published LLMFT recipes; see the table in docs/data.md.
    """
    chain = Chain()
    for number, step in enumerate(steps):
        where = f"datasets.preprocessor_cfgs[{number}]"
        kind = step.get("type") if isinstance(step, Mapping) else step
        if kind not in _KNOWN:
            raise DataError(f"{where}: unknown step type {kind!r}; known are {', '.join(_KNOWN)}")
        arguments, techniques, read = _KNOWN[kind]
        if technique not in techniques:
            fitting = ", ".join(name for name, known in _KNOWN.items() if technique in known[1])
            raise DataError(f"{where}: {kind} is not a step of trainer_type {technique}; use {fitting}")
        if unknown := sorted(set(step) - {"type", *arguments}):
            takes = ", ".join(arguments) or "no argument"
            raise DataError(f"{where}: {kind} has no argument {', '.join(unknown)}; it takes {takes}")
        try:
            chain = read(chain, step)
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: {kind}: {error}") from error
    return chain


def _unchanged(chain: Chain, step: Step) -> Chain:
    """Accept a step that only arranges columns: nothing but tokens and labels is stored here."""
    return chain


def _template(chain: Chain, step: Step) -> Chain:
    thinking = step.get("enable_thinking")
    given = () if thinking is None else (("enable_thinking", _truth(step, "enable_thinking", True)),)
    return replace(chain, template_variables=given)


def _tokens(chain: Chain, step: Step) -> Chain:
    return replace(
        _template(chain, step),
        template_name=step.get("chat_template_name") or "",
        ignore_prompt_labels=_truth(step, "ignore_prompt_labels", True),
    )


def _length(chain: Chain, step: Step) -> Chain:
    labels = step.get("tokens_labels") or [SFT_LABEL]
    known = (SFT_LABEL, *PAIR_LABELS)
    if unknown := [label for label in labels if label not in known]:
        raise ValueError(f"unknown tokens_labels {unknown}; known are {', '.join(known)}")
    limit = _count(step, "max_seq_length")
    if limit is None:
        raise ValueError("max_seq_length is missing")
    return replace(chain, length_limits=(*chain.length_limits, *((label, limit) for label in labels)))


def _pairs(chain: Chain, step: Step) -> Chain:
    columns = step.get("key_map") or {}
    if unknown := sorted(set(columns) - {"chosen", "rejected"}):
        raise ValueError(f"key_map maps chosen and rejected, not {', '.join(unknown)}")
    return replace(
        chain,
        prompt_key=step.get("prompt_key") or chain.prompt_key,
        chosen_key=columns.get("chosen") or chain.chosen_key,
        rejected_key=columns.get("rejected") or chain.rejected_key,
    )


def _pair_tokens(chain: Chain, step: Step) -> Chain:
    return replace(
        chain,
        max_prompt_length=_count(step, "max_prompt_length"),
        max_completion_length=_count(step, "max_completion_length"),
        add_special_tokens=_truth(step, "add_special_tokens", False),
    )


def _count(step: Step, name: str) -> int | None:
    value = step.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError(f"{name} must be a whole number of tokens from 1, not {value!r}")
    return int(value)


def _truth(step: Step, name: str, default: bool) -> bool:
    value = step.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


_KNOWN: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Chain, Step], Chain]]] = {
    "TrainingSFTSampleConverter": ((), ("sft",), _unchanged),
    "Seq2SeqTokensProcessor": (("chat_template_name", "enable_thinking", "ignore_prompt_labels"), ("sft",), _tokens),
    "DropColumns": (("column_names",), ("sft", "dpo"), _unchanged),
    "SelectColumns": (("selected_columns",), ("sft", "dpo"), _unchanged),
    "SequenceLengthFilter": (("max_seq_length", "tokens_labels"), ("sft", "dpo"), _length),
    "TrainingPOSampleConverter": (("prompt_key", "key_map"), ("dpo",), _pairs),
    "ApplyChatTemplate": (("enable_thinking",), ("dpo",), _template),
    "TokenizeSampleDPO": (
        ("max_prompt_length", "max_completion_length", "add_special_tokens"),
        ("dpo",),
        _pair_tokens,
    ),
}
"""Arguments, techniques and reader of each step."""
