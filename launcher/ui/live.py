"""Parts of pages that follow their subjects: pages of the same address share one look and one rendering."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Hashable, Mapping
from pathlib import Path
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.status import HTTP_404_NOT_FOUND

from launcher.common.problems import ProblemsFound

_LOOK_S = 0.5
_BEAT_S = 15.0
"""After how long a line is sent although nothing changed: a connection that is gone is noticed then."""
_MOST_VIEWS = 200


class View(Protocol):
    """What a page follows. Both methods run in threads, one at a time."""

    def version(self) -> Hashable:
        """Return what changes whenever `parts` may; cheap, since it is asked twice a second."""

    def parts(self) -> Mapping[str, str]:
        """Return the HTML of elements by their ids."""


def stamp(path: Path) -> tuple[int, int] | None:
    """Return the size and the time of a file, for the version of a view that reads it; None if it does not exist."""
    try:
        known = path.stat()
    except OSError:
        return None
    return known.st_size, known.st_mtime_ns


class _Followed:
    """A view that pages follow."""

    def __init__(self, view: View):
        self.view = view
        self.task: asyncio.Task[None] | None = None
        self.readers: set[asyncio.Queue[str | None]] = set()
        self.sent: dict[str, str] = {}

    def tell(self, event: str) -> None:
        """Send an event to every reader."""
        for queue in self.readers:
            queue.put_nowait(event)


class Hub:
    """The views that are followed now, by the address of their pages."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}

    async def follow(self, address: str, view: View) -> AsyncIterator[str]:
        """Yield the events of a stream: every part at first, then those that have changed.

        Args:
            view: Of the address; unused if another page follows one already.
        """
        followed = self._followed.get(address)
        if followed is None:
            if len(self._followed) >= _MOST_VIEWS:
                return
            followed = self._followed[address] = _Followed(view)
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        followed.readers.add(queue)
        for event in _events(followed.sent):
            queue.put_nowait(event)
        if followed.task is None:
            followed.task = asyncio.create_task(self._look(address, followed))
        try:
            yield "retry: 1000\n\n"
            while True:
                try:
                    item = await asyncio.wait_for(queue.get(), _BEAT_S)
                except TimeoutError:
                    item = ": \n\n"
                if item is None:
                    return
                yield item
        finally:
            followed.readers.discard(queue)
            if not followed.readers and self._followed.get(address) is followed:
                del self._followed[address]
                if followed.task:
                    followed.task.cancel()

    def close(self) -> None:
        """End every stream."""
        for followed in self._followed.values():
            for queue in followed.readers:
                queue.put_nowait(None)

    async def _look(self, address: str, followed: _Followed) -> None:
        version: Hashable = None
        trouble = ""
        while True:
            try:
                now = await run_in_threadpool(followed.view.version)
                if trouble:
                    followed.tell("event: back\ndata: {}\n\n")
                    trouble, version = "", None
                if now != version:
                    parts = await run_in_threadpool(followed.view.parts)
                    version = now
                    changed = {name: html for name, html in parts.items() if followed.sent.get(name) != html}
                    followed.sent = dict(parts)
                    for event in _events(changed):
                        followed.tell(event)
            except Exception as error:  # such as the folder of a removed job: pages say so, and stay
                is_gone = isinstance(error, HTTPException) and error.status_code == HTTP_404_NOT_FOUND
                kind = "gone" if is_gone else "fault"
                if trouble != kind:
                    trouble = kind
                    followed.tell(f"event: {kind}\ndata: {{}}\n\n")
                    if not is_gone:
                        said, unknown = (error, None) if isinstance(error, ProblemsFound) else ("a fault", error)
                        log = logging.getLogger(__name__)
                        log.warning("%s cannot be followed: %s", address, said, exc_info=unknown)
            await asyncio.sleep(_LOOK_S)


def _events(parts: Mapping[str, str]) -> list[str]:
    return [f"event: part\ndata: {json.dumps({'id': name, 'html': html})}\n\n" for name, html in parts.items()]


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    """Return a stream of server-sent events."""

    async def closing() -> AsyncIterator[str]:
        async with contextlib.aclosing(events) as each:  # type: ignore[type-var]
            async for event in each:
                yield event

    return StreamingResponse(closing(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
