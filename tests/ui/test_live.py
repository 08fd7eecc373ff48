"""Streams of changes: what is sent, to whom, and what is left when a reader has gone."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.exceptions import HTTPException

from launcher.ui import live
from launcher.ui.live import Hub


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(live, "_LOOK_S", 0.005)


def finish(coroutine):
    """Run a coroutine in a thread of its own: Playwright's driver runs a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


class Counting:
    """A view of a value that the test changes."""

    def __init__(self):
        self.value, self.is_gone, self.is_removed, self.num_renderings = 1, False, True, 0

    def version(self):
        if self.is_gone:
            raise HTTPException(404) if self.is_removed else OSError(5, "Input/output error")
        return self.value

    def parts(self):
        self.num_renderings += 1
        return {"same": "<p>same</p>", "value": f"<b>{self.value}</b>"}


async def next_parts(stream, number):
    """Return the next parts of a stream by their ids, as many as asked for."""
    found = []
    while len(found) < number:
        event = await asyncio.wait_for(anext(stream), 30)
        if event.startswith("event: part"):
            each = json.loads(event.partition("data: ")[2])
            found.append((each["id"], each["html"]))
    return found


def test_a_stream_begins_with_every_part_and_goes_on_with_those_that_change():
    async def run():
        hub, view = Hub(), Counting()
        stream = hub.follow("/a", view)
        assert dict(await next_parts(stream, 2)) == {"same": "<p>same</p>", "value": "<b>1</b>"}
        view.value = 2
        assert await next_parts(stream, 1) == [("value", "<b>2</b>")]
        await stream.aclose()

    finish(run())


def test_pages_of_one_address_share_a_view_which_ends_with_the_last_of_them():
    async def run():
        hub, view, other = Hub(), Counting(), Counting()
        first, second = hub.follow("/a", view), hub.follow("/a", other)
        await next_parts(first, 2)
        assert dict(await next_parts(second, 2))["value"] == "<b>1</b>"
        assert (view.num_renderings, other.num_renderings) == (1, 0)
        await first.aclose()
        view.value = 5
        assert await next_parts(second, 1) == [("value", "<b>5</b>")]
        await second.aclose()
        assert len(hub._followed) == 0
        looked = view.num_renderings
        view.value = 6
        await asyncio.sleep(0.05)
        assert view.num_renderings == looked

    finish(run())


@pytest.mark.parametrize(("is_removed", "event"), [(True, "gone"), (False, "fault")])
def test_a_page_is_told_once_that_its_subject_is_gone_and_goes_on_when_it_is_back(is_removed, event):
    async def run():
        hub, view = Hub(), Counting()
        stream = hub.follow("/a", view)
        await next_parts(stream, 2)
        view.is_gone, view.is_removed = True, is_removed
        assert (await asyncio.wait_for(anext(stream), 30)).startswith(f"event: {event}")
        view.is_gone, view.value = False, 9
        assert (await asyncio.wait_for(anext(stream), 30)).startswith("event: back")
        assert await next_parts(stream, 1) == [("value", "<b>9</b>")]
        await stream.aclose()

    finish(run())


def test_two_pages_that_begin_at_the_same_time_share_a_view():
    async def run():
        hub, made = Hub(), [Counting() for _ in range(3)]
        streams = [hub.follow("/a", view) for view in made]
        for found in await asyncio.gather(*(next_parts(each, 2) for each in streams)):
            assert dict(found)["value"] == "<b>1</b>"
        assert len(hub._followed) == 1
        for each in streams:
            await each.aclose()
        looked = [view.num_renderings for view in made]
        for view in made:
            view.value = 7
        await asyncio.sleep(0.05)
        assert [view.num_renderings for view in made] == looked

    finish(run())


def test_there_are_not_more_streams_than_a_server_bears(monkeypatch):
    monkeypatch.setattr(live, "_MOST_VIEWS", 2)

    async def run():
        hub = Hub()
        streams = [hub.follow(f"/{number}", Counting()) for number in range(3)]
        await next_parts(streams[0], 2)
        await next_parts(streams[1], 2)
        with pytest.raises(StopAsyncIteration):
            await anext(streams[2])
        for each in streams:
            await each.aclose()

    finish(run())
