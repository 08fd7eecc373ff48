"""Chunks to tokens, in this process or in several, in order and with few chunks in memory."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from launcher.common import prctl
from launcher.runtime.finetune.data.encoding import Encoded, Encoder
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import Chunk, Source
from launcher.runtime.finetune.data.tokenization import open_tokenizer

SMALL_BYTES = 32 << 20
"""Files up to this size are prepared in this process: starting another takes half a second."""
MAX_WORKERS = 64
_AHEAD = 2
"""Chunks per worker that are read before the first of them is written."""


def encoded_chunks(encoder: Encoder, source: Source, limit: int) -> Iterator[Encoded]:
    """Yield the tokens of the first `limit` samples, chunk after chunk.

    A large source is tokenized by one process per core, each with one thread: templates run in Python, which threads
    of one process do not speed up.

    Raises:
        DataError: A sample is not valid.
    """
    workers = min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    size = sum(file.stat().st_size for file in source.files)
    if workers < 2 or size <= SMALL_BYTES:
        yield from map(encoder.encode, source.chunks(limit))
        return
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        _start,
        (encoder.settings, encoder.tokenizer.folder, os.getpid()),
    )
    try:
        yield from _in_order(pool, source.chunks(limit), workers * _AHEAD)
    except BrokenProcessPool as error:
        raise DataError(
            "a process that tokenizes was ended from outside; the machine may be out of memory"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, chunks: Iterator[Chunk], most: int) -> Iterator[Encoded]:
    pending: deque[Future[Encoded]] = deque()
    for chunk in chunks:
        pending.append(pool.submit(_encode, chunk))
        if len(pending) >= most:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


_encoder: Encoder
"""Of a worker process."""


def _start(settings: DataSettings, tokenizer_folder: Path, parent: int) -> None:
    global _encoder
    prctl.signal_at_parents_end(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = Encoder(settings, open_tokenizer(tokenizer_folder, settings))


def _encode(chunk: Chunk) -> Encoded:
    return _encoder.encode(chunk)
