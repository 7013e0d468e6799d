"""A chat that never ends: 500 turns, in `make long` 2,000, with a model that takes 4,096 tokens and refuses what is
longer.
"""

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.codec import decode_entry
from holdfast.core.history import problems
from holdfast.core.journal import Compacted, CompactionFailed, MessageAdded, TurnStarted
from holdfast.core.records import Role, State
from holdfast.models.base import Request
from holdfast.models.scripted import Call, Response, Say
from holdfast.tools.base import tool
from tests.support.counting import CountingModel
from tests.support.scale import scaled

TURNS = scaled(500, 2_000)
LIMIT = 4_096
AT_ONCE = 500  # messages that wait in the queue


class Talker(CountingModel):
    """Answers the number it is given; every fifth time it looks first. Remembers the longest that it was asked."""

    longest = 0

    def _choose(self, request: Request) -> Response:
        assert problems(request.messages) == []
        self.longest = max(self.longest, len(request.messages))
        last = request.messages[-1]
        if request.messages[0].id == "compaction":
            return (Say(text="They went on counting."),)
        if last.role is Role.USER and int(last.text.split()[1]) % 5 == 0:
            return (Call(name="look"),)
        return (Say(text="Counted, and noted down, as were all the others before it. " * 3),)


@pytest.mark.timeout(scaled(120, 600))
async def test_a_chat_of_very_many_turns_with_a_small_model_keeps_going(store_url: str) -> None:
    sizes: list[int] = []

    @tool(replay="pure")
    async def look() -> str:
        """Look."""
        sizes.append(worker.history_size)
        return "There is another one, and it looks like all the others before it. " * 5

    model = Talker(context_limit=LIMIT)
    app = App(store_url, agents=[Agent("a", model, instructions="Count.", tools=[look])])
    async with app, app.worker() as worker:
        chat = await app.create("a")
        for start in range(0, TURNS, AT_ONCE):
            for n in range(start, start + AT_ONCE):
                await chat.send(f"Number {n} comes now; keep it in mind for as long as you can.")
            assert await chat.wait(100) is State.IDLE
        snapshot = await chat.snapshot()
        assert (snapshot.chat.turn, snapshot.chat.error) == (TURNS, None)
        written, whys = await rows_by_turn(app, chat.id)
        assert len(await chat.messages()) == 2 * TURNS + 2 * TURNS // 5
        assert worker.compactions.failed == 0
    assert model.refused == 0
    assert max(model.counts) <= LIMIT
    assert max(sizes) <= model.longest < 200, "what is in memory is what is sent"
    assert len(whys) == worker.compactions.made < TURNS // 5
    print(f"{len(whys)} compactions, {model.longest} messages and {max(model.counts)} tokens at most")  # noqa: T201
    early, late = written[50:250], written[-200:]
    assert max(late) <= max(early) * 1.2, "what a step writes does not depend on how long the chat is"


async def rows_by_turn(app: App, chat_id: str) -> tuple[list[int], list[str]]:
    """The bytes that each turn wrote into the journal, and why each compaction was made."""
    written: list[int] = []
    whys: list[str] = []
    after: str | None = None
    while (page := await app.store.read_journal(chat_id, after)).items:
        for item in page.items:
            entry = decode_entry(item.body)
            assert not isinstance(entry, CompactionFailed)
            if isinstance(entry, TurnStarted):
                written.append(0)
            elif isinstance(entry, Compacted):
                whys.append(entry.why)
            if written and isinstance(entry, MessageAdded | Compacted):
                written[-1] += len(item.body)
        after = page.cursor
    return written, whys
