"""A long coding task: tools that return a megabyte each, a model that never asks for the same thing twice, and a
judge of what it was shown and of what summaries were made of.
"""

import re
from collections import Counter

from holdfast import CompactionPolicy
from holdfast.agent import Agent, AgentLimits
from holdfast.app import App
from holdfast.core.records import Message, Role, State, ToolResult
from holdfast.models.base import Request
from holdfast.models.scripted import Call, Response, Say
from holdfast.store.records import StoreOptions
from holdfast.tools.base import tool
from tests.support.counting import CountingModel
from tests.support.turns import QUICK

CONTEXT = 200_000
RESULT_BYTES = 1_000_000
WHOLE = AgentLimits(result_chars=None)  # only what does not fit is cut
_LINE = "    return the_value_of(something_else)  # and so on, as files do\n"
_HEAD = re.compile(r"first line of file (\d+)\.")
_TAIL = re.compile(r"last line of file (\d+)\.")


@tool(replay="pure", output_bytes_max=2 * RESULT_BYTES)
async def read(file: int) -> str:
    """Read a file."""
    head, tail = f"first line of file {file}.\n", f"last line of file {file}."
    return head + _LINE * ((RESULT_BYTES - len(head) - len(tail)) // len(_LINE)) + tail


class Coder(CountingModel):
    """Reads so many files, some of them together, each of them once, and writes down which ones it was shown."""

    def __init__(self, files: int, together: int = 3) -> None:
        super().__init__(context_limit=CONTEXT, holds=CONTEXT)
        self.files = files
        self.together = together
        self.asked: list[int] = []
        self.seen: set[int] = set()
        self.shown: dict[int, str] = {}  # what the file looked like when it was first shown
        self.changed: set[int] = set()  # those that looked otherwise later

    def _choose(self, request: Request) -> Response:
        for message in request.messages:
            self._read(message)
        left = self.files - len(self.asked)
        if not left:
            return (Say(text="Done."),)
        batch = range(len(self.asked), len(self.asked) + min(left, 1 + len(self.asked) % self.together))
        self.asked += batch
        return tuple(Call(name="read", arguments={"file": file}, piece_chars=100) for file in batch)

    def _read(self, message: Message) -> None:
        for part in message.parts:
            if message.role is not Role.TOOL or not isinstance(part, ToolResult):
                continue
            head, tail = _HEAD.search(part.content), _TAIL.search(part.content)
            if head is None or tail is None or head[1] != tail[1]:
                continue
            file = int(head[1])
            self.seen.add(file)
            if self.shown.setdefault(file, part.content) != part.content:
                self.changed.add(file)


class Summariser(CountingModel):
    """Counts how often it was shown what was read of a file."""

    def __init__(self) -> None:
        super().__init__(context_limit=CONTEXT, holds=CONTEXT)
        self.made_of: Counter[int] = Counter()
        self.made = 0

    def _choose(self, request: Request) -> Response:
        self.made += 1
        transcript = request.messages[1].text
        self.made_of.update(int(found[1]) for found in _HEAD.finditer(transcript))
        return (Say(text=f"Files were read, part {self.made}."),)


async def carry_out(url: str, files: int, together: int, wait_s: float) -> tuple[Coder, Summariser]:
    """The whole task, judged."""
    coder, summariser = Coder(files, together), Summariser()
    agent = Agent("coder", coder, tools=[read], compaction=CompactionPolicy(model=summariser), limits=WHOLE)
    app = App(url, agents=[agent], retry=QUICK, options=StoreOptions(lease_ttl_ms=10_000))
    async with app, app.worker(poll_s=0.5):
        chat = await app.create("coder", "Read all files.")
        assert await chat.wait(wait_s) is State.IDLE
        assert await chat.text() == "Done."
    assert coder.asked == list(range(files)), "it never repeats itself"
    assert coder.seen == set(range(files)), "no result is unseen"
    assert not coder.changed, "what was shown of a file stays as it was, so that prompt caches stay warm"
    assert max(summariser.made_of.values(), default=0) <= 1, "no summary is paid twice"
    assert (coder.refused, summariser.refused) == (0, 0)
    return coder, summariser
