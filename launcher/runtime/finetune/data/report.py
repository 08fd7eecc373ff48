"""Samples as a person reads them: the text a model sees with the trained parts apart, and what becomes of a file."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from launcher.common.texts import counted, in_line
from launcher.runtime.finetune.data import split
from launcher.runtime.finetune.data.encoding import Encoder
from launcher.runtime.finetune.data.losses import CUT, Counts, Loss
from launcher.runtime.finetune.data.prepared import Flags, Ids
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import Chunk, open_source
from launcher.runtime.finetune.data.tokenization import ModelTokenizer, open_tokenizer
from launcher.runtime.finetune.data.workers import encoded_chunks

MOST_PLACES = 20
"""Dropped samples that a summary lists."""


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
        record: As it is in the file.
        pieces: The text; for a pair, that of the prompt and the chosen answer.
        rejected: The text of the other answer of a pair; None for a conversation.
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


@dataclass(frozen=True, slots=True)
class Summary:
    """What becomes of a file of samples.

    Args:
        lengths: Number of kept samples by their tokens.
        dropped: File, line and reason of the first dropped samples.
        samples: The first samples.
        notes: What a user should know, one line each.
    """

    counts: Counts
    num_train: int
    num_validation: int
    lengths: dict[int, int]
    dropped: tuple[tuple[str, str], ...]
    samples: tuple[Shown, ...]
    notes: tuple[str, ...]


def summarize(settings: DataSettings, tokenizer_folder: Path, num_samples: int) -> Summary:
    """Return what becomes of the training samples, and the first `num_samples` of them; write nothing.

    Raises:
        DataError: Data, template or tokenizer are not usable.
    """
    encoder = Encoder(settings, open_tokenizer(tokenizer_folder, settings))
    source = open_source(settings.train_path, "train")
    limit = settings.most(settings.train_limit)
    counts = Counts.of_losses(0, ())
    lengths: Counter[int] = Counter()
    dropped: list[tuple[str, str]] = []
    total, num_train = source.count(limit), 0
    for found in encoded_chunks(encoder, source, limit):
        counts = counts.plus(found.counts())
        lengths.update(found.lengths.sum(axis=1).tolist())
        dropped += [(place, reason) for _, place, reason in found.dropped[: MOST_PLACES - len(dropped)]]
        chosen = split.is_trained(found.positions, total, settings.split_ratio, settings.split_seed)
        num_train += int(chosen.sum()) if settings.splits else len(found)
    samples = (sample for chunk in source.chunks(num_samples) for sample in shown(encoder, chunk))
    return Summary(
        counts,
        num_train,
        num_validation=counts.kept - num_train,
        lengths=dict(sorted(lengths.items())),
        dropped=tuple(dropped),
        samples=tuple(itertools.islice(samples, num_samples)),
        notes=tuple(notes(settings, encoder.tokenizer, counts)),
    )


def first_losses(settings: DataSettings, tokenizer_folder: Path, num_samples: int) -> Counts:
    """Return what the text of the first conversations of the training data loses, without tokens or lengths."""
    encoder = Encoder(settings, open_tokenizer(tokenizer_folder, settings))
    source = open_source(settings.train_path, "train")
    found: list[Loss] = []
    read = turns = 0
    for chunk in source.chunks(min(num_samples, settings.most(settings.train_limit))):
        for index, text in enumerate(encoder.rendered(chunk)):
            read += 1
            turns += text.turns
            place = chunk.place(index)
            if reason := text.dropped:
                found.append(Loss(reason, True, 1, text.turns, 0, place))
            else:
                found += (Loss(why, False, 1, number, 0, place) for why, number in text.untrained.items())
    kept = read - sum(loss.is_drop for loss in found)
    return Counts.of_losses(kept, found, turns=turns)


def notes(settings: DataSettings, tokenizer: ModelTokenizer, counts: Counts) -> list[str]:
    """Return what a user should know about prepared data, one line each."""
    found = []
    if settings.image_templates and not settings.template_file and tokenizer.template is not None:
        names = ", ".join(settings.image_templates)
        found.append(f"template {names} exists only in the published image; the tokenizer's own is used instead")
    found += [note(loss, counts) for loss in counts.losses]
    return found


def note(loss: Loss, counts: Counts) -> str:
    """Return what is not trained for one reason, as a line."""
    turns = counted(loss.turns, "turn") + " of the assistant" if loss.turns else ""
    tokens = counted(loss.tokens, "token") if loss.tokens else ""
    if loss.is_drop:
        share = f"{100 * loss.samples / counts.read:.3g} %"
        what = f"{loss.samples} of {counted(counts.read, 'sample')} dropped ({share}): {loss.reason}"
        lost = ", ".join(filter(None, (turns, tokens)))
    elif loss.reason == CUT:
        what = f"{counted(loss.samples, 'sample')} {loss.reason}"
        lost = ", ".join(filter(None, (tokens and f"{tokens} less", turns and f"{turns} not trained")))
    else:
        what = f"{turns} in {counted(loss.samples, 'sample')} not trained: {loss.reason}"
        lost = ""
    return in_line("; ".join(filter(None, (what, lost, f"such as {loss.example}"))))


def shown(encoder: Encoder, chunk: Chunk) -> Iterator[Shown]:
    """Yield each sample of a chunk."""
    found = encoder.encode(chunk)
    reasons = {position: reason for position, _, reason in found.dropped}
    number_of = {int(position): number for number, position in enumerate(found.positions)}
    starts = numpy.concatenate([[0], numpy.cumsum(found.lengths)])
    width = found.lengths.shape[1]
    for index, record in enumerate(chunk.each(dict)):
        place = chunk.place(index)
        number = number_of.get(chunk.first + index)
        if number is None:
            yield Shown(place, record, (), None, 0, 0, reasons[chunk.first + index])
            continue
        borders = starts[width * number : width * (number + 1) + 1]
        parts = [found.ids[start:stop] for start, stop in itertools.pairwise(borders)]
        length, targets = sum(map(len, parts)), int(found.targets[number].sum())
        if found.trained is None:
            prompt, chosen, rejected = (_text(encoder, ids) for ids in parts)
            yield Shown(place, record, (Piece(prompt, False), Piece(chosen, True)), rejected, length, targets)
        else:
            pieces = tuple(_pieces(encoder, parts[0], found.trained[borders[0] : borders[1]]))
            yield Shown(place, record, pieces, None, length, targets)


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
