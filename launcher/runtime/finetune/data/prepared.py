"""Prepared data as every rank reads it: token ids in memory-mapped arrays."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy
import numpy.typing

from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.losses import Counts

Ids = numpy.typing.NDArray[numpy.uint32]
Flags = numpy.typing.NDArray[numpy.uint8]

TRAIN, VALIDATION = "train", "validation"
"""Folders of the parts."""
SUMMARY = "prepared.json"
FORMAT = 2
"""Version of the files; a part of the digest."""


@dataclass(frozen=True, slots=True)
class PreparedConversations:
    """Conversations, or plain texts, as tokens.

    Args:
        ids: Tokens of all samples, shape `(num_tokens,)`.
        trained: 1 where a token is a target, shape `(num_tokens,)`.
        offsets: Start of each sample and the end of the last, shape `(n + 1,)`, int64.
        targets: Trained tokens of each sample, shape `(n,)`, int32. The first token of a sample is never a target,
            since nothing precedes it.
    """

    ids: Ids
    trained: Flags
    offsets: numpy.typing.NDArray[numpy.int64]
    targets: numpy.typing.NDArray[numpy.int32]

    def __len__(self) -> int:
        return len(self.targets)

    def sample(self, index: int) -> tuple[Ids, Flags]:
        """Return the tokens of a sample and which of them are trained, both of shape `(length,)`."""
        start, stop = self.offsets[index], self.offsets[index + 1]
        return self.ids[start:stop], self.trained[start:stop]


@dataclass(frozen=True, slots=True)
class PreparedPairs:
    """Preference pairs as tokens.

    Args:
        ids: Tokens of all pairs, shape `(num_tokens,)`.
        offsets: Start of prompt, chosen and rejected answer of each pair and the end of the last, shape
            `(3 n + 1,)`, int64.
        targets: Trained tokens of the two answers, shape `(n, 2)`, int32.
    """

    ids: Ids
    offsets: numpy.typing.NDArray[numpy.int64]
    targets: numpy.typing.NDArray[numpy.int32]

    def __len__(self) -> int:
        return len(self.targets)

    def sample(self, index: int) -> tuple[Ids, Ids, Ids]:
        """Return the tokens of a pair's prompt, chosen and rejected answer."""
        a, b, c, d = self.offsets[3 * index : 3 * index + 4]
        return self.ids[a:b], self.ids[b:c], self.ids[c:d]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The prepared data of a job.

    Args:
        folder: Its name is the digest.
        digest: Identifies files, tokenizer, template and settings.
        notes: What a user should know, one line each.
    """

    folder: Path
    train: PreparedConversations | PreparedPairs
    validation: PreparedConversations | PreparedPairs | None
    digest: str
    counts: Counts
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield what is printed before training: how much of the data is used, and a line for each note."""
        counts = self.counts
        yield f"data  {counts.kept} of {counts.read} samples, {counts.targets} of {counts.tokens} tokens trained"
        yield from (f"data  {note}" for note in self.notes)


def load(folder: Path) -> Prepared:
    """Return the data that `prepare` wrote into `folder`; no tokenizer is needed.

    Raises:
        DataError: The folder does not hold prepared data.
    """
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        validation = folder / VALIDATION
        return Prepared(
            folder,
            _part(folder / TRAIN, summary["technique"]),
            _part(validation, summary["technique"]) if validation.is_dir() else None,
            summary["digest"],
            Counts.of(summary["counts"]),
            tuple(summary["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder}: not complete prepared data ({error}); delete the folder to prepare it again"
        ) from error


def _part(folder: Path, technique: Literal["sft", "dpo"]) -> PreparedConversations | PreparedPairs:
    def array(name: str) -> numpy.typing.NDArray[Any]:
        path = folder / f"{name}.npy"
        try:
            found: numpy.typing.NDArray[Any] = numpy.load(path, mmap_mode="c", allow_pickle=False)
        except ValueError:
            found = numpy.load(path, allow_pickle=False)  # an array without rows cannot be mapped
        return found

    if technique == "dpo":
        return PreparedPairs(array("ids"), array("offsets"), array("targets"))
    return PreparedConversations(array("ids"), array("trained"), array("offsets"), array("targets"))
