import asyncio
import threading

import pytest

from npuserve.core import Event, FinishReason
from npuserve.server.event_router import EventRouter, Inbox


def test_events_of_a_step_reach_their_inboxes_in_order() -> None:
    async def scenario() -> None:
        router, first, second = EventRouter(), Inbox(), Inbox()
        router.bind(asyncio.get_running_loop())
        router.open("a", first)
        router.open("b", second)
        events = [Event("a", (1,)), Event("b", (2,)), Event("nobody", (3,)), Event("a", (4,), FinishReason.STOP)]
        thread = threading.Thread(target=router.deliver, args=(events,))
        thread.start()
        assert [event.token_ids for event in await first.get()] == [(1,), (4,)]
        assert [event.token_ids for event in await second.get()] == [(2,)]
        thread.join()

    asyncio.run(scenario())


def test_closed_request_gets_nothing_more() -> None:
    async def scenario() -> None:
        router, inbox = EventRouter(), Inbox()
        router.bind(asyncio.get_running_loop())
        router.open("a", inbox)
        router.close("a")
        router.close("a")
        router.deliver([Event("a", (1,))])
        await asyncio.sleep(0)
        inbox.wake()
        assert router.num_open == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inbox.get(), 0.01)

    asyncio.run(scenario())


def test_error_comes_before_events_that_wait() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        inbox.put(Event("a", (1,)))
        inbox.fail(ValueError("gone"))
        with pytest.raises(ValueError, match="gone"):
            await inbox.get()

    asyncio.run(scenario())


def test_woken_inbox_returns_nothing() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        waiting = asyncio.ensure_future(inbox.get())
        await asyncio.sleep(0)
        inbox.wake()
        assert await waiting == []

    asyncio.run(scenario())


def test_delivery_after_the_loop_closed_is_no_error() -> None:
    router = EventRouter()
    router.deliver([Event("a")])
    loop = asyncio.new_event_loop()
    router.bind(loop)
    loop.close()
    router.deliver([Event("a")])
