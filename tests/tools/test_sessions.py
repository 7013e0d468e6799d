"""Shell sessions: they go on between calls, say what is new, take input, and none outlives its worker."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.records import Cause
from holdfast.errors import ConfigError
from holdfast.system import processes, sandbox
from holdfast.system.capture import Kept
from holdfast.system.sandbox import Sandbox
from holdfast.tools import floor
from holdfast.tools.base import Tool
from holdfast.tools.context import ToolContext
from holdfast.tools.shell.sessions import SESSIONS_MAX, session_tools
from holdfast.worker.guard import Guard
from holdfast.worker.tool_body import Body, Returned, SyncPool
from tests.support.waiting import until
from tests.tools.marked import living

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are watched by pidfd, which Linux has")


class Hands:
    """What a model does with sessions, in one chat."""

    def __init__(self, tools: list[Tool], guard: Guard, pool: SyncPool, chat: str = "c1") -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.guard = guard
        self.pool = pool
        self.chat = chat

    def body(self, name: str) -> Body:
        return Body(
            self.tools[name], "call", ToolContext(call_id="call", chat_id=self.chat, children=self.guard), set()
        )

    async def __call__(self, name: str, **arguments: Any) -> str:
        returned = await self.body(name).run(json.dumps(arguments), self.pool.run)
        assert isinstance(returned, Returned)
        return f"error: {returned.content}" if returned.error else returned.content

    async def start(self, command: str, wait_s: float = 60.0) -> tuple[str, str]:
        name, _, said = (await self("start_session", command=command, wait_s=wait_s)).partition("\n")
        return name, said


@pytest.fixture
def hands(tmp_path: Path, guard: Guard, pool: SyncPool) -> Callable[..., Hands]:
    def make(chat: str = "c1", **options: Any) -> Hands:
        return Hands(session_tools(root=tmp_path, **options), guard, pool, chat)

    return make


async def test_a_session_goes_on_between_calls_takes_input_and_tells_what_is_new(hands: Callable[..., Hands]) -> None:
    use = hands()
    name, said = await use.start("echo up; while read line; do echo got $line; done; echo over")
    assert said.startswith("up\n[it runs, for ")
    assert (await use("write_session", session=name, text="one\n", wait_s=60)).startswith("got one\n[it runs")
    assert (await use("read_session", session=name, wait_s=0)).startswith("[it runs"), "nothing is told twice"
    last = await use("write_session", session=name, text="two\n", close_input=True, wait_s=60)
    while "[exit code 0]" not in last:
        last += await use("read_session", session=name, wait_s=60)
    assert last.startswith("got two\n")
    assert last.endswith("over\n[exit code 0]")
    assert (await use("read_session", session=name)).startswith("error: There is no session")


async def test_a_session_can_have_a_sandbox(hands: Callable[..., Hands]) -> None:
    if problem := sandbox.problem():
        pytest.skip(problem)
    use = hands(sandbox=Sandbox())
    name, said = await use.start("cd /proc && echo [0-9]*; cat")
    assert said.startswith("1 2\n"), "no other process is there"
    assert (await use("write_session", session=name, text="one\n", wait_s=60)).startswith("one\n[it runs")
    assert "[ended by" in await use("end_session", session=name)


async def test_a_session_that_is_ended_ends_with_all_that_it_started(
    hands: Callable[..., Hands], guard: Guard
) -> None:
    use = hands()
    name, _ = await use.start("trap '' TERM; setsid sleep 300 & echo up; wait")
    assert (await use("end_session", session=name)).endswith("(SIGKILL), perhaps by the system for want of memory]")
    assert living(guard) == []
    assert await use("end_session", session=name) == "[it is not there any more]"


async def test_a_session_that_is_left_alone_ends_and_says_so(hands: Callable[..., Hands], guard: Guard) -> None:
    use = hands(idle_s=0.2)
    _, said = await use.start("echo up; sleep 300")
    assert said.startswith("up\n")
    await until(lambda: living(guard) == [])


async def test_its_last_words_wait_for_the_model(hands: Callable[..., Hands]) -> None:
    use = hands()
    name, _ = await use.start("read line; echo $line; exit 3", wait_s=0)
    session = use.tools["read_session"].function.__self__._by_chat["c1"][name]  # type: ignore[attr-defined]
    session.write(b"farewell\n", closes=False)
    await asyncio.wait_for(session.ended.wait(), 60)
    assert await use("read_session", session=name) == "farewell\n[exit code 3]"


async def test_a_look_that_is_cut_short_takes_nothing_away(hands: Callable[..., Hands]) -> None:
    use = hands()
    name, _ = await use.start("read line; echo $line; sleep 300", wait_s=0)
    look = use.body("read_session")
    looking = asyncio.ensure_future(look.run(json.dumps({"session": name, "wait_s": 60}), use.pool.run))
    await asyncio.sleep(0)
    look.cancel(Cause.USER)
    assert await looking is None
    assert (await use("write_session", session=name, text="still here\n", wait_s=60)).startswith("still here\n")
    await use("end_session", session=name)


async def test_a_session_belongs_to_its_chat_alone_and_there_are_only_so_many(hands: Callable[..., Hands]) -> None:
    use = hands()
    other = Hands(list(use.tools.values()), use.guard, use.pool, "c2")
    names = [(await use.start("cat", wait_s=0))[0] for _ in range(SESSIONS_MAX)]
    assert "which is the limit: end one of " in await use("start_session", command="cat")
    for call in ("read_session", "write_session"):
        arguments = {"session": names[0]} | ({"text": "x"} if call == "write_session" else {})
        assert (await other(call, **arguments)).startswith("error: There is no session")
    assert await other("end_session", session=names[0]) == "[it is not there any more]"
    for name in names:
        await use("end_session", session=name)
    assert use.tools["read_session"].function.__self__._by_chat == {}  # type: ignore[attr-defined]


async def test_sessions_that_are_started_at_once_are_no_more_than_the_limit(
    hands: Callable[..., Hands], tmp_path: Path
) -> None:
    """As in an app that is open: a process is then waited for, and all of them are under way at the same time."""
    use, own = hands(), floor.own(str(tmp_path / "home"), str(tmp_path / "locks"), None)
    floor.protect(own)
    try:
        asked = [use("start_session", command="cat", wait_s=0) for _ in range(SESSIONS_MAX + 4)]
        said = await asyncio.gather(*asked)
        names = [text.partition("\n")[0] for text in said if text.startswith("session_")]
        await asyncio.gather(*(use("end_session", session=name) for name in names))
    finally:
        floor.release(own)
    assert len(names) == SESSIONS_MAX
    assert sum("which is the limit" in text for text in said) == 4


async def test_a_session_that_has_a_last_word_is_ended_when_its_end_is_told(hands: Callable[..., Hands]) -> None:
    use = hands()
    name, _ = await use.start("trap 'echo bye; sleep 0.6; exit 3' TERM; echo up; while :; do sleep 0.05; done")
    said = await use("end_session", session=name)
    assert "bye\n" in said
    assert said.endswith("[exit code 3]")


async def test_a_flood_is_bounded_and_input_that_is_not_read_is_told(hands: Callable[..., Hands]) -> None:
    use = hands(output_bytes_max=10_000)
    name, said = await use.start("head -c 100M /dev/zero | tr '\\0' x; echo over; sleep 300")
    while not said.endswith("over\n") and "over\n[it runs" not in said:
        said = await use("read_session", session=name, wait_s=60)
    assert "bytes left out" in said
    assert len(said) < 11_000
    full = await use("write_session", session=name, text="x" * 65_536, wait_s=0)
    assert full.startswith("[it runs")
    assert "It took 0 of 1 bytes" in await use("write_session", session=name, text="x", wait_s=0)
    assert "are more than 65,536" in await use("write_session", session=name, text="x" * 65_537)
    await use("end_session", session=name)


async def test_what_cannot_be_started_leaves_nothing(hands: Callable[..., Hands], tmp_path: Path) -> None:
    use = hands()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    assert "too long" in await use("start_session", command=f"echo {'x' * 200_000}")
    tmp_path.rmdir()
    assert (await use("start_session", command="echo hello")).startswith("error: Nothing was started")
    tmp_path.mkdir()
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
    with pytest.raises(ConfigError, match="is not a folder"):
        session_tools(root=tmp_path / "none")


async def test_sessions_end_with_their_worker(tmp_path: Path, pool: SyncPool) -> None:
    guard = Guard()
    guard.start()
    use = Hands(session_tools(root=tmp_path), guard, pool)
    name, _ = await use.start("echo up; setsid sleep 300 & sleep 300")
    await asyncio.to_thread(guard.stop)
    assert living(guard) == []
    assert "SIGTERM" in await use("read_session", session=name, wait_s=60)
    await until(lambda: not processes._endings)


def test_a_character_that_is_not_all_there_waits_for_the_rest() -> None:
    for text in ("é", "€", "𝄞"):
        data = text.encode()
        for cut in range(1, len(data)):
            kept = Kept(100)
            kept.add(b"a" + data[:cut])
            assert kept.take(whole=False) == "a"
            kept.add(data[cut:])
            assert kept.take(whole=False) == text
    kept = Kept(100)
    kept.add(b"a\xe2")
    assert kept.take(whole=True) == "a\ufffd"
