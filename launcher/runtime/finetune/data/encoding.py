"""A chunk of samples as tokens, with the trained part of each.

The tokenizer takes most of the time: 0.7 ms for a sample of 1,100 tokens, to which the rest adds 0.2 ms.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy
import numpy.typing
import tokenizers

from launcher.runtime.finetune.data import losses
from launcher.runtime.finetune.data.conversations import ASSISTANT, Conversation, Pair, pair_sample, sft_sample
from launcher.runtime.finetune.data.errors import SampleError, TemplateFault
from launcher.runtime.finetune.data.losses import Counts, Loss
from launcher.runtime.finetune.data.prepared import Flags, Ids
from launcher.runtime.finetune.data.settings import PAIR_LABELS, SFT_LABEL, DataSettings
from launcher.runtime.finetune.data.sources import Chunk
from launcher.runtime.finetune.data.templates import ChatTemplate, Span
from launcher.runtime.finetune.data.tokenization import ModelTokenizer
from launcher.runtime.finetune.data.turns import TurnFinder

_NO_IDS, _NO_FLAGS = numpy.empty(0, numpy.uint32), numpy.empty(0, numpy.uint8)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a chunk, in the order of the arrays to write; `width` is 1 for conversations and 3 for pairs.

    Args:
        ids: All tokens, shape `(num_tokens,)`.
        trained: Which tokens are trained, shape `(num_tokens,)`; None for pairs.
        lengths: Tokens of each sample, or of each part of a pair, shape `(n, width)`.
        targets: Trained tokens of each sample, or of both answers of a pair, shape `(n,)` or `(n, 2)`.
        positions: Position of each kept sample in its source, shape `(n,)`.
        dropped: Position, place and reason of each dropped sample.
        losses: What is not trained of the chunk; see `Counts`.
        turns: Turns of the assistant in all samples.
    """

    ids: Ids
    trained: Flags | None
    lengths: numpy.typing.NDArray[numpy.int64]
    targets: numpy.typing.NDArray[numpy.int32]
    positions: numpy.typing.NDArray[numpy.uint64]
    dropped: tuple[tuple[int, str, str], ...]
    losses: tuple[Loss, ...]
    turns: int

    def __len__(self) -> int:
        return len(self.positions)

    def counts(self) -> Counts:
        """Return what became of the samples of the chunk."""
        targets = int(self.targets.sum())
        return Counts.of_losses(len(self), self.losses, tokens=len(self.ids), targets=targets, turns=self.turns)


class _Gathered:
    """The samples of a chunk that are encoded so far."""

    def __init__(self, chunk: Chunk, width: int):
        self.turns = 0
        self._ids: list[Ids] = []
        self._trained: list[Flags] = []
        self._targets: list[int | tuple[int, int]] = []
        self._positions: list[int] = []
        self._dropped: list[tuple[int, str, str]] = []
        self._losses: list[Loss] = []
        self._chunk, self._width = chunk, width

    def keep(
        self, index: int, parts: Sequence[Ids], targets: int | tuple[int, int], trained: Flags = _NO_FLAGS
    ) -> None:
        self._ids += parts
        self._trained.append(trained)
        self._targets.append(targets)
        self._positions.append(self._chunk.first + index)

    def lose(self, reason: str, index: int, turns: int, tokens: int = 0, *, is_drop: bool = False) -> None:
        """Count a part of a sample of the chunk that is not trained, or all of it if `is_drop`."""
        place = self._chunk.place(index)
        self._losses.append(Loss(reason, is_drop, 1, turns, tokens, place))
        if is_drop:
            self._dropped.append((self._chunk.first + index, place, reason))

    def encoded(self) -> Encoded:
        lengths = numpy.array([len(part) for part in self._ids], numpy.int64)
        is_pairs = self._width > 1
        return Encoded(
            numpy.concatenate([_NO_IDS, *self._ids]),
            None if is_pairs else numpy.concatenate([_NO_FLAGS, *self._trained]),
            lengths.reshape(-1, self._width),
            numpy.array(self._targets, numpy.int32).reshape((-1, 2) if is_pairs else -1),
            numpy.array(self._positions, numpy.uint64),
            tuple(self._dropped),
            losses.merged(self._losses),
            self.turns,
        )


class Rendered(NamedTuple):
    """The text of a sample.

    Args:
        spans: Trained parts; None if all of it is trained.
        is_plain: Whether it is not the text of a template, so that the tokenizer marks its start and end.
        turns: Turns of the assistant in the sample.
        untrained: Number of those that have no part in `spans`, by reason.
        is_exact: Whether a sample is dropped if a token is only partly in a trained part.
    """

    text: str
    spans: Sequence[Span] | None
    is_plain: bool = False
    turns: int = 0
    untrained: Mapping[str, int] = MappingProxyType({})
    is_exact: bool = False

    @property
    def dropped(self) -> str | None:
        """Why nothing of it can be trained; None if something can, tokens permitting."""
        if self.spans is None:
            return None if self.text else losses.NO_TEXT
        if any(stop > start for start, stop in self.spans):
            return None
        if not self.turns:
            return losses.NO_TURN
        return losses.NO_WEIGHT if self.untrained.get(losses.WEIGHT) == self.turns else losses.NO_TEXT


class Tokens(NamedTuple):
    """The tokens of a sample.

    Args:
        ids: Shape `(n,)`.
        trained: 1 for each trained token, shape `(n,)`.
        turns: First token of each trained part.
        divides: Whether a token is partly in a trained part, and must not be.
    """

    ids: Ids
    trained: Flags
    turns: Sequence[int] = ()
    divides: bool = False


class Encoder:
    """Turns chunks of samples into tokens by the settings of a recipe."""

    def __init__(self, settings: DataSettings, tokenizer: ModelTokenizer):
        self.settings, self.tokenizer = settings, tokenizer

    def encode(self, chunk: Chunk) -> Encoded:
        """Return the tokens of a chunk.

        Raises:
            DataError: Samples are not valid; the messages name their file and line.
        """
        return self._pairs(chunk) if self.settings.technique == "dpo" else self._conversations(chunk)

    def rendered(self, chunk: Chunk) -> list[Rendered]:
        """Return the text of each conversation of a chunk."""
        return chunk.each(lambda record: self._rendered(sft_sample(record, self.settings.pretrain_mode)))

    def _rendered(self, sample: Conversation | str) -> Rendered:
        if isinstance(sample, str):
            return Rendered(sample, None, is_plain=True)
        template = self.tokenizer.required_template()
        turns = [number for number, message in enumerate(sample.messages) if message["role"] == ASSISTANT]
        if self.settings.pretrain_mode or not self.settings.chain.ignore_prompt_labels:
            if sample.unweighted:
                found = f"messages[{min(sample.unweighted)}].weight is 0, but the recipe trains every token"
                raise SampleError(f"{found}; remove the weight, or set ignore_prompt_labels=true")
            return Rendered(template.render(sample.messages, sample.tools), None, turns=len(turns))
        untrained = Counter(
            losses.IN_PROMPT if turn < sample.prompt_messages else losses.WEIGHT
            for turn in turns
            if turn < sample.prompt_messages or turn in sample.unweighted
        )
        trained = [turn for turn in turns if turn >= sample.prompt_messages and turn not in sample.unweighted]
        if template.has_marks:
            return self._marked(template, sample, turns, untrained)
        if self.settings.assistant_turns == "last":
            untrained[losses.EARLIER] += len(trained[:-1])
            trained = trained[-1:]
        if trained:
            text, spans = self._finder.find(sample.messages, sample.tools, trained)
        else:
            text, spans = template.render(sample.messages, sample.tools), []
        return Rendered(text, spans, turns=len(turns), untrained=+untrained, is_exact=True)

    @cached_property
    def _finder(self) -> TurnFinder:
        return TurnFinder(self.tokenizer.required_template(), self.tokenizer.answer_start)

    def _marked(
        self, template: ChatTemplate, sample: Conversation, turns: Sequence[int], untrained: Counter[str]
    ) -> Rendered:
        text, spans = template.marked(sample.messages, sample.tools)
        if sample.unweighted:
            if len(spans) != len(turns):
                raise TemplateFault(
                    f"the chat template of {template.origin} marks {len(spans)} parts of a conversation with "
                    f"{len(turns)} turns of the assistant, so it is unknown which of them has weight 0"
                )
            spans = [span for turn, span in zip(turns, spans, strict=True) if turn not in sample.unweighted]
        spans = [(start, stop) for start, stop in spans if stop > start]
        untrained[losses.UNMARKED] = max(0, len(turns) - len(sample.unweighted) - len(spans))
        if sample.prompt_messages and spans:
            prompt = template.render(sample.messages[: sample.prompt_messages], sample.tools, generation_prompt=True)
            start = self.tokenizer.answer_start(prompt, (text,))
            spans = [(max(start, first), stop) for first, stop in spans if stop > start]
        if self.settings.assistant_turns == "last":
            untrained[losses.EARLIER] += len(spans[:-1])
            spans = spans[-1:]
        return Rendered(text, spans, turns=len(turns), untrained=+untrained)

    def _conversations(self, chunk: Chunk) -> Encoded:
        texts = self.rendered(chunk)
        found = _Gathered(chunk, 1)
        limit = self.settings.chain.length_limit(SFT_LABEL)
        max_len = self.settings.max_len
        for index, (text, tokens) in enumerate(zip(texts, self._tokens(texts), strict=True)):
            found.turns += text.turns
            num_tokens = len(tokens.ids)
            start = max(0, num_tokens - max_len) if self.settings.truncation == "left" else 0
            kept, mask = tokens.ids[start : start + max_len], tokens.trained[start : start + max_len]
            targets = int(mask[1:].sum())
            if reason := _dropped(text, tokens, targets, limit):
                found.lose(reason, index, text.turns, num_tokens, is_drop=True)
                continue
            for why, turns in text.untrained.items():
                found.lose(why, index, turns)
            if num_tokens > max_len:
                cut = sum(not start <= first < start + max_len for first in tokens.turns)
                found.lose(losses.CUT, index, cut, num_tokens - max_len)
            found.keep(index, [kept], targets, mask)
        return found.encoded()

    def _tokens(self, texts: Sequence[Rendered]) -> list[Tokens]:
        if all(each.spans is None for each in texts):
            return [Tokens(ids, numpy.ones(len(ids), numpy.uint8)) for ids in self._complete(texts)]
        encodings = self.tokenizer.encodings([each.text for each in texts])
        return [self._flagged(encoding, each) for encoding, each in zip(encodings, texts, strict=True)]

    def _flagged(self, encoding: tokenizers.Encoding, text: Rendered) -> Tokens:
        ids = numpy.array(encoding.ids, numpy.uint32)
        flags = numpy.zeros(len(ids), numpy.uint8)
        parts = [
            (*tokens, start, stop) for start, stop in text.spans or () for tokens in _tokens_of(encoding, start, stop)
        ]
        for first, last, _, _ in parts:
            flags[first : last + 1] = 1
        divides = text.is_exact and any(self._divides(encoding, text.text, *part) for part in parts)
        return Tokens(ids, flags, [first for first, *_ in parts], divides)

    def _divides(
        self, encoding: tokenizers.Encoding, text: str, first: int, last: int, start: int, stop: int
    ) -> bool:
        """Return whether a token that begins or ends a trained part is only partly in it."""
        nothing = (start, stop)
        if (encoding.token_to_chars(first) or nothing)[0] < start:
            return True
        if (encoding.token_to_chars(last) or nothing)[1] > stop:
            return True
        if start == 0 or encoding.char_to_token(start - 1) is not None:
            return False
        # Some tokenizers do not count the spaces of a token as a part of it.
        return self.tokenizer.ids([text[:start]])[0] != encoding.ids[:first]

    def _complete(self, texts: Sequence[Rendered]) -> list[Ids]:
        """Return the tokens of texts that are trained in full."""
        eos = self.tokenizer.eos
        plain = self.tokenizer.ids([each.text for each in texts if each.is_plain], add_special_tokens=True)
        closed = iter(ids if eos is None or ids[-1:] == [eos] else [*ids, eos] for ids in plain)
        rendered = iter(self.tokenizer.ids([each.text for each in texts if not each.is_plain]))
        return [numpy.array(next(closed if each.is_plain else rendered), numpy.uint32) for each in texts]

    def _pairs(self, chunk: Chunk) -> Encoded:
        pairs = chunk.each(lambda record: self.pair_texts(pair_sample(record, self.settings.chain)))
        texts = [text for pair in pairs for text in pair]
        tokens = self.tokenizer.ids(texts)
        if self.settings.chain.add_special_tokens:
            tokens[::3] = self.tokenizer.ids(texts[::3], add_special_tokens=True)
        found = _Gathered(chunk, 3)
        for index in range(len(chunk)):
            self._add_pair(found, index, *tokens[3 * index : 3 * index + 3])
        return found.encoded()

    def pair_texts(self, pair: Pair) -> tuple[str, str, str]:
        """Return the texts of a pair's prompt, with the start of the answer, and of both answers."""
        template = self.tokenizer.required_template()
        prompt = template.render(pair.prompt, pair.tools, generation_prompt=True)
        chosen = template.render(pair.prompt + pair.chosen, pair.tools)
        rejected = template.render(pair.prompt + pair.rejected, pair.tools)
        shared = self.tokenizer.answer_start(prompt, (chosen, rejected))
        return chosen[:shared], chosen[shared:], rejected[shared:]

    def _add_pair(
        self, found: _Gathered, index: int, prompt: list[int], chosen: list[int], rejected: list[int]
    ) -> None:
        chain = self.settings.chain
        num_tokens = len(prompt) + len(chosen) + len(rejected)
        found.turns += 2
        limit = chain.max_prompt_length or len(prompt)
        if self.settings.truncation == "left":
            limit = min(limit, max(0, self.settings.max_len - max(len(chosen), len(rejected))))
        kept = prompt[max(0, len(prompt) - limit) :]
        most = max(0, self.settings.max_len - len(kept))
        if chain.max_completion_length is not None:
            most = min(most, chain.max_completion_length)
        parts = (kept, chosen[:most], rejected[:most])
        limits = [(chain.length_limit(label), part) for label, part in zip(PAIR_LABELS, parts, strict=True)]
        first = 0 if kept else 1  # nothing precedes the first token of an answer without a prompt
        targets = (max(0, len(parts[1]) - first), max(0, len(parts[2]) - first))
        reason = None
        if any(limit is not None and len(part) > limit for limit, part in limits):
            reason = losses.TOO_LONG
        elif not all(targets):
            reason = losses.OUT_OF_REACH if len(chosen) > first and len(rejected) > first else losses.NO_TEXT
        if reason:
            found.lose(reason, index, 2, num_tokens, is_drop=True)
            return
        if lost := num_tokens - sum(map(len, parts)):
            found.lose(losses.CUT, index, 0, lost)
        found.keep(index, [numpy.array(part, numpy.uint32) for part in parts], targets)


def _dropped(text: Rendered, tokens: Tokens, targets: int, limit: int | None) -> str | None:
    """Return why a conversation is dropped; None if it is not."""
    if limit is not None and len(tokens.ids) > limit:
        return losses.TOO_LONG
    if tokens.divides:
        return losses.DIVIDED
    if targets:
        return None
    return text.dropped or (losses.OUT_OF_REACH if tokens.trained[1:].any() else losses.NO_TEXT)


def _tokens_of(encoding: tokenizers.Encoding, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last token of a part of a text; nothing if no token holds any of its characters.

    A token that is only partly in it counts, as in transformers' `return_assistant_tokens_mask`.
    """
    first = next((t for place in range(start, stop) if (t := encoding.char_to_token(place)) is not None), None)
    if first is not None:
        places = reversed(range(start, stop))
        yield first, next(t for place in places if (t := encoding.char_to_token(place)) is not None)
