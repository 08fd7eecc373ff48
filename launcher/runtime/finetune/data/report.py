"""Samples as a person reads them: the text a model sees, with the trained parts apart."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from launcher.runtime.finetune.data.encoding import Encoder, Flags, Ids
from launcher.runtime.finetune.data.sources import Chunk


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a sample's text whose tokens are all trained, or all not."""

    text: str
    is_trained: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A sample as the model sees it.

    Args:
        place: Its file and line.
        record: The sample as it is in the file.
        pieces: The text; for a pair, that of the prompt and the chosen answer.
        rejected: The text of the other answer of a pair; None for a conversation.
        num_tokens: Tokens of it.
        num_targets: Trained tokens; for a pair, of both answers.
        dropped: Why it is not used; "" if it is.
    """

    place: str
    record: dict[str, Any]
    pieces: tuple[Piece, ...]
    rejected: str | None
    num_tokens: int
    num_targets: int
    dropped: str = ""


def shown(encoder: Encoder, chunk: Chunk) -> Iterator[Shown]:
    """Yield each sample of a chunk.

    Raises:
        DataError: A sample is not valid.
    """
    found = encoder.encode(chunk)
    reasons = dict(found.dropped)
    number_of = {int(position): number for number, position in enumerate(found.positions)}
    starts = numpy.concatenate([[0], numpy.cumsum(found.lengths)])
    width = found.lengths.shape[1]
    for index, record in enumerate(chunk.records()):
        place = chunk.place(index)
        number = number_of.get(chunk.first + index)
        if number is None:
            yield Shown(place, dict(record), (), None, 0, 0, reasons[chunk.first + index])
            continue
        borders = starts[width * number : width * (number + 1) + 1]
        parts = [found.ids[start:stop] for start, stop in itertools.pairwise(borders)]
        length, targets = sum(map(len, parts)), int(found.targets[number].sum())
        if found.trained is None:
            prompt, chosen, rejected = (_text(encoder, ids) for ids in parts)
            yield Shown(place, dict(record), (Piece(prompt, False), Piece(chosen, True)), rejected, length, targets)
        else:
            pieces = tuple(_pieces(encoder, parts[0], found.trained[borders[0] : borders[1]]))
            yield Shown(place, dict(record), pieces, None, length, targets)


def steps_of(encoder: Encoder, chunk: Chunk) -> Iterator[dict[str, Any]]:
    """Yield each sample of a chunk with what the preprocessing steps made of it, for a JSON file."""
    for sample in shown(encoder, chunk):
        yield {
            "place": sample.place,
            "sample": sample.record,
            "text": "".join(piece.text for piece in sample.pieces),
            "trained": [piece.text for piece in sample.pieces if piece.is_trained],
            "rejected": sample.rejected,
            "tokens": sample.num_tokens,
            "targets": sample.num_targets,
            "dropped": sample.dropped or None,
        }


def _pieces(encoder: Encoder, ids: Ids, trained: Flags) -> Iterator[Piece]:
    start = 0
    for stop in range(1, len(ids) + 1):
        if stop == len(ids) or trained[stop] != trained[start]:
            yield Piece(_text(encoder, ids[start:stop]), bool(trained[start]))
            start = stop


def _text(encoder: Encoder, ids: Ids) -> str:
    text: str = encoder.tokenizer.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    return text
