"""The preprocessing steps of the published recipes, as one typed chain.

Source: `preprocessor_cfgs` of the published LLMFT recipes; see the table in docs/data.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.runtime.finetune.data.errors import DataError

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
        prompt_key: Column of a pair's prompt.
        chosen_key: Column of the preferred answer.
        rejected_key: Column of the other answer.
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


def chain_of(steps: Sequence[Step], technique: str) -> Chain:
    """Return the chain of a recipe's `preprocessor_cfgs`.

    Raises:
        DataError: A step is unknown or of another technique, or has an argument that it does not take.
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


def _tokens(chain: Chain, step: Step) -> Chain:
    thinking = step.get("enable_thinking")
    return replace(
        chain,
        template_name=step.get("chat_template_name") or "",
        ignore_prompt_labels=_truth(step, "ignore_prompt_labels", True),
        template_variables=() if thinking is None else (("enable_thinking", _truth(step, "enable_thinking", True)),),
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
    "Seq2SeqTokensProcessor": (
        ("chat_template_name", "enable_thinking", "ignore_prompt_labels"),
        ("sft",),
        _tokens,
    ),
    "DropColumns": (("column_names",), ("sft", "dpo"), _unchanged),
    "SelectColumns": (("selected_columns",), ("sft", "dpo"), _unchanged),
    "SequenceLengthFilter": (("max_seq_length", "tokens_labels"), ("sft", "dpo"), _length),
    "TrainingPOSampleConverter": (("prompt_key", "key_map"), ("dpo",), _pairs),
    "ApplyChatTemplate": ((), ("dpo",), _unchanged),
    "TokenizeSampleDPO": (
        ("max_prompt_length", "max_completion_length", "add_special_tokens"),
        ("dpo",),
        _pair_tokens,
    ),
}
"""Arguments, techniques and reader of each step."""
