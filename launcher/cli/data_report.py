"""What becomes of a file of samples, as lines of text and as JSON."""

import dataclasses
import json
from collections.abc import Iterator, Mapping

from launcher.runtime.finetune.data.errors import printable
from launcher.runtime.finetune.data.report import MOST_PLACES, Shown, Summary

TRAINED, UNTRAINED = "▌ ", "  "
"""Start of a line that is trained, and of one that is not."""
_LINES, _COLUMNS = 24, 160
"""Most lines of a part of a sample, and letters of a line."""
_BINS, _BAR = 12, 40
_NICE = (1, 2, 5)

Line = tuple[str, str]


def lines(found: Summary, name: str) -> Iterator[Line]:
    """Yield the lines of a report, each with its style."""
    counts = found.counts
    for sample in found.samples:
        yield from _sample(sample)
        yield "", ""
    if found.samples:
        yield f"{TRAINED}is trained; the other lines are not. ↵ ends a line of the sample.", "dim"
        yield "", ""
    if found.lengths:
        yield "tokens       samples", "bold"
        yield from ((line, "") for line in histogram(found.lengths))
        yield "", ""
    share = _share(counts.targets, counts.tokens)
    yield f"{printable(name)}: {counts.read} samples read; {counts.tokens} tokens kept, {share} trained", "bold"
    yield f"  {found.num_train} to train on, {found.num_validation} held out for evaluation", ""
    for note in found.notes:
        yield f"  {note}", "yellow"
    yield from ((f"    {printable(place)}  {reason}", "") for place, reason in found.dropped)
    if (others := sum(counts.dropped.values()) - len(found.dropped)) > 0:
        yield f"    and {others} more; the first {MOST_PLACES} are listed", ""


def as_json(found: Summary) -> str:
    """Return a report as JSON; `lengths` holds the number of samples by tokens, `counts.losses` those not trained."""
    text = json.dumps(dataclasses.asdict(found), indent=2, ensure_ascii=False, default=str)
    # JSON allows control characters above 0x7f, which a terminal would follow.
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def bins(lengths: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return a histogram: the first and last length of each bar, and its number of samples."""
    longest = max(lengths)
    width = next(step for power in range(19) for nice in _NICE if (step := nice * 10**power) * _BINS > longest)
    found = [0] * (longest // width + 1)
    for length, number in lengths.items():
        found[length // width] += number
    first = min(lengths) // width
    return [(i * width, (i + 1) * width - 1, found[i]) for i in range(first, len(found))]


def histogram(lengths: Mapping[int, int]) -> Iterator[str]:
    """Yield the lines of a histogram of lengths."""
    found = bins(lengths)
    most = max(number for _, _, number in found)
    for first, last, number in found:
        bar = "█" * -(-number * _BAR // most)
        yield f"{f'{first}–{last}':>12} {bar} {number}".rstrip()


def _sample(sample: Shown) -> Iterator[Line]:
    if sample.dropped:
        yield f"{printable(sample.place)}  dropped: {sample.dropped}", "bold yellow"
        return
    yield f"{printable(sample.place)}  {sample.num_tokens} tokens, {sample.num_targets} trained", "bold"
    for piece in sample.pieces:
        yield from _part(piece.text, is_trained=piece.is_trained)
    if sample.rejected is not None:
        yield "the rejected answer, which is trained against:", "dim"
        yield from _part(sample.rejected, is_trained=True, style="red")


def _part(text: str, *, is_trained: bool, style: str = "green") -> Iterator[Line]:
    mark = TRAINED if is_trained else UNTRAINED
    found = text.split("\n")
    wrapped = [
        row[start : start + _COLUMNS]
        for row in [*(f"{row}↵" for row in found[:-1]), *([found[-1]] if found[-1] else [])]
        for start in range(0, max(1, len(row)), _COLUMNS)
    ]
    for row in wrapped[:_LINES]:
        yield mark + printable(row), style if is_trained else ""
    if len(wrapped) > _LINES:
        yield f"{mark}… {len(wrapped) - _LINES} further lines", "dim"


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.0f} %" if total else "none"
