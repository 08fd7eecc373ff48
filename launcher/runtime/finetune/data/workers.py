"""Chunks to tokens, in this process or in several, in order and with few chunks in memory.

A worker is a program of its own, `python -m launcher.runtime.finetune.data.workers`: a process of multiprocessing
would import the user's main program again, and would outlive a parent that is killed. This one ends with its input.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from launcher.runtime.finetune.data.encoding import Encoded, Encoder
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.sources import Chunk, Source
from launcher.runtime.finetune.data.tokenization import open_tokenizer

Made = TypeVar("Made")

SMALL_BYTES = 32 << 20
"""Files up to this size are prepared in this process: starting another takes half a second."""
MAX_WORKERS = 64
_AHEAD = 2
"""Chunks per worker that are read before the first of them is written."""


def in_order(submitted: Iterator[Future[Made]], most: int) -> Iterator[Made]:
    """Yield the results of submitted calls, in their order; up to `most` of them wait for their use."""
    waiting: deque[Future[Made]] = deque()
    for future in submitted:
        waiting.append(future)
        if len(waiting) > most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def encoded_chunks(encoder: Encoder, source: Source, limit: int) -> Iterator[Encoded]:
    """Yield the tokens of the first `limit` samples, chunk after chunk.

    A large source is tokenized by one process per core, each with one thread: templates run in Python, which threads
    of one process do not speed up.
    """
    num_workers = min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    if num_workers < 2 or sum(file.stat().st_size for file in source.files) <= SMALL_BYTES:
        yield from map(encoder.encode, source.chunks(limit))
        return
    with ExitStack() as stack:
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for _ in range(num_workers):
            idle.put(stack.enter_context(_Worker(encoder)))
        threads = ThreadPoolExecutor(num_workers)  # each waits for the answer of one worker
        stack.callback(threads.shutdown, cancel_futures=True)

        def encode(chunk: Chunk) -> Encoded:
            worker = idle.get()
            try:
                return worker.encode(chunk)
            finally:
                idle.put(worker)

        submitted = (threads.submit(encode, chunk) for chunk in source.chunks(limit))
        yield from in_order(submitted, num_workers * _AHEAD - 1)


class _Worker:
    """A process that tokenizes; only one thread uses it at a time."""

    def __init__(self, encoder: Encoder):
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],  # -P: no module of the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._settings = (encoder.settings, encoder.tokenizer.folder)

    def __enter__(self) -> "_Worker":
        self._send(self._settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        assert self._process.stdin is not None
        with self._process, suppress(BrokenPipeError):  # what an ended process was not sent
            self._process.stdin.close()  # ends it

    def encode(self, chunk: Chunk) -> Encoded:
        """Return the tokens of a chunk."""
        self._send(chunk)
        assert self._process.stdout is not None
        try:
            found: Encoded | tuple[str, ...] = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._ended() from error
        if isinstance(found, tuple):
            raise DataError(*found)
        return found

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(value, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def _ended(self) -> DataError:
        code = self._process.wait()
        why = "its output names the reason" if code >= 0 else "the machine may be out of memory"
        return DataError(f"a process that tokenizes ended with code {code}; {why}")


def _work() -> None:
    """Answer each chunk of the standard input with its tokens, or with the messages of an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    chunks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not an answer
    settings, folder = pickle.load(chunks)
    encoder = Encoder(settings, open_tokenizer(Path(folder), settings))
    while True:
        try:
            chunk = pickle.load(chunks)
        except EOFError:
            return
        answer: Encoded | tuple[str, ...]
        try:
            answer = encoder.encode(chunk)
        except DataError as error:
            answer = error.messages
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _work()
