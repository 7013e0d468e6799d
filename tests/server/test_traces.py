"""What is for operators alone is in no stream of events, and no reader stands still before it."""

import asyncio

from holdfast import Agent, App, tool
from holdfast.core.codec import encode
from holdfast.core.journal import FOR_OPERATORS, Traced
from holdfast.server.feeds import FeedReader, Feeds
from holdfast.testing import Call, ScriptedModel

WAIT_S = 30.0


@tool
async def fall() -> str:
    """Fall."""
    raise ValueError("off the rock")


def test_the_entry_of_a_trace_begins_as_streams_look_for_it() -> None:
    assert encode(Traced(source="tool", name="pay", error="E", text="t")).startswith(FOR_OPERATORS)


async def test_a_reader_of_the_native_stream_goes_past_a_trace_without_seeing_it(store_url: str) -> None:
    app = App(store_url, agents=[Agent("a", ScriptedModel([Call(name="fall")], "Done."), tools=[fall])])
    async with app.worker():
        chat = await app.create("a", "go")
        assert await chat.text() == "Done."
        kept = [event.raw async for event in chat.events()]
        assert [b"Traceback" in raw for raw in kept].count(True) == 1
        reader = FeedReader(app.store, Feeds(app.store), chat.id, None)
        told = b""
        async with asyncio.timeout(WAIT_S):
            while True:
                frames = await reader.next()
                told += b"".join(frame.data for frame in frames)
                if frames[-1].rest:
                    break
        reader.close()
    assert b"off the rock" in told, "what the model is told, its clients are told"
    assert b"Traceback" not in told
    assert b"event: trace" not in told
    assert b"event: turn.ended" in told
