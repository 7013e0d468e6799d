"""Shell sessions: command lines that go on in the background while the model does other things.

A session is a program, with all that it starts, in a worker's process group under its guard. It has a place to write
to and what it says is kept, head and tail, until the model looks. It belongs to one chat, and to the process that
started it: it ends with that process, when the model ends it, and when nobody looked at it for a while. A worker that
takes the chat over starts it anew or not; it is told that the session is not there.

Sessions have no terminal: a program that asks for one, or that holds back what it prints because there is none, has
to be told (`python -u -i`, `stdbuf -oL`).
"""

import asyncio
import contextvars
import os
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from holdfast.errors import ConfigError, ToolFailed
from holdfast.ids import new_id
from holdfast.system import processes
from holdfast.system.capture import Kept, PipeReader
from holdfast.system.cover import ProcessSpec
from holdfast.system.sandbox import Sandbox
from holdfast.tools.base import OUTPUT_BYTES_MAX, Approval, Tool, tool
from holdfast.tools.confinement import Confined, Confinement
from holdfast.tools.context import ToolContext, tool_context
from holdfast.tools.figures import show
from holdfast.tools.permissions.acts import Act, Run, Whereabouts
from holdfast.tools.shell.acts import COMMAND_CHARS_MAX, acts_of
from holdfast.tools.shell.tool import end_words, holds

SESSIONS_MAX = 8  # of a chat, in one process; those that ended and were not looked at since count, too
IDLE_S = 1800.0
WAIT_S = 10.0
WAIT_S_MAX = 600.0
QUIET_S = 0.3  # after which what was said is taken for all that will be said for now
INPUT_BYTES_MAX = 64 << 10  # what Linux lets a pipe hold
OWN_END_S = 15.0  # for a start, or an end, beside the wait

Session = Annotated[str, Field(description="The session's id, as start_session told it.")]
Wait = Annotated[
    float,
    Field(ge=0, le=WAIT_S_MAX, description="How many seconds to wait for output at most; 0 does not wait."),
]


def session_tools(
    *,
    root: str | Path,
    environment: Mapping[str, str] | None = None,
    idle_s: float = IDLE_S,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
    bash: bool = False,
    sandbox: Sandbox | None = None,
) -> list[Tool]:
    """`start_session`, `read_session`, `write_session` and `end_session`: command lines in `root` that go on in the
    background. The rules judge what is started as they do for `shell_tool`; what is written to a session is `run(?)`,
    which no allow matches. With a `sandbox`, each session runs in one of its own.
    """
    if not Path(root).is_dir():
        raise ConfigError(f"session_tools: the root {str(root)!r} is not a folder: make it, or name another")
    if idle_s <= 0:
        raise ConfigError(f"session_tools: idle_s must be above 0, it is {idle_s}")
    known = processes.environment(environment)
    confinement = None if sandbox is None else Confinement(sandbox, root)
    sessions = ChatSessions(str(root), known, "bash" if bash else "/bin/sh", idle_s, output_bytes_max, confinement)
    longest_s = WAIT_S_MAX + OWN_END_S
    bytes_max = output_bytes_max + 1_000  # the words about its state are not output
    starts: bool | Approval = False
    if confinement is not None:
        confinement.settle()
        starts = confinement.approval("start_session", False)
    where = Whereabouts(root=str(Path(root).absolute()), search_path=known["PATH"], sandboxed=holds(sandbox))
    made = [
        tool(deadline_s=longest_s, output_bytes_max=bytes_max, needs_approval=starts)(sessions.start_session),
        tool(replay="pure", deadline_s=longest_s, output_bytes_max=bytes_max)(sessions.read_session),
        tool(deadline_s=longest_s, output_bytes_max=bytes_max)(sessions.write_session),
        tool(replay="idempotent", deadline_s=longest_s, output_bytes_max=bytes_max)(sessions.end_session),
    ]
    return [replace(one, acts=partial(_acts, one.name), whereabouts=where) for one in made]


def _acts(tool: str, arguments: dict[str, Any]) -> Sequence[Act]:
    """What is read of a session, and its end, do nothing that was not judged when it began."""
    match tool:
        case "start_session":
            return acts_of(arguments["command"])
        case "write_session":
            why = "it cannot be told what a program does with what it reads"
            return [Run(argv=(), unknown=why, line=arguments["text"][:COMMAND_CHARS_MAX])]
        case _:
            return ()


class _Session:
    """One of them. Belongs to the event loop that started it."""

    def __init__(
        self, command: str, child: processes.Child, stdin: int, stdout: int, bytes_max: int, idle_s: float
    ) -> None:
        self.command = command
        self.loop = asyncio.get_running_loop()
        self.child = child
        self._stdin = stdin
        self._unseen = Kept(bytes_max)
        self._news = asyncio.Event()
        self._reader = PipeReader(stdout, self._unseen, lambda _: self._news.set())
        self._idle_s = idle_s
        self._began_at = self._looked_at = self.loop.time()
        self._left_alone = False
        self._unwanted = asyncio.Event()
        self.ended = asyncio.Event()
        self.told_end = False
        # In a context of its own: it outlives the call that began it, and its log lines are none of that call's.
        self.life = self.loop.create_task(self._live(), context=contextvars.Context())

    @property
    def here(self) -> bool:
        return self.loop is asyncio.get_running_loop()

    def end(self) -> None:
        self._unwanted.set()

    async def _live(self) -> None:
        exits = asyncio.ensure_future(self.child.exited())
        unwanted = asyncio.ensure_future(self._unwanted.wait())
        try:
            while not self._left_alone:
                left_s = self._looked_at + self._idle_s - self.loop.time()
                done, _ = await asyncio.wait(
                    (exits, unwanted), timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    break
                self._left_alone = self.loop.time() >= self._looked_at + self._idle_s
            if exits.done():
                await self._reader.ended(processes.LINGER_S)
        finally:
            exits.cancel()
            unwanted.cancel()
            await self.child.end()
            self._reader.close()
            self._close_input()
            self.ended.set()
            self._news.set()

    # --- what the model does with it ------------------------------------------------------------------------

    async def listen(self, wait_s: float) -> str:
        """What it said since the last time, and how it stands. Waits until it has said something and then nothing for
        a moment, until it has ended, or as long as it is told. A caller that is cancelled has taken nothing.
        """
        self._looked_at = self.loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self.ended.is_set():
                    self._news.clear()
                    try:
                        async with asyncio.timeout(QUIET_S if self._unseen.total else None):
                            await self._news.wait()
                    except TimeoutError:
                        break
        self._looked_at = self.loop.time()
        self.told_end = self.ended.is_set()
        said = self._unseen.take(whole=self.told_end)
        return f"{said}\n[{self.state()}]" if said and not said.endswith("\n") else f"{said}[{self.state()}]"

    def state(self) -> str:
        if not self.ended.is_set():
            return f"it runs, for {self.loop.time() - self._began_at:,.0f} s now"
        if self._left_alone:
            return f"it was ended: nothing asked for it in {self._idle_s:g} s"
        return end_words(self.child.returncode)

    def write(self, data: bytes, *, closes: bool) -> None:
        """Raises ToolFailed where it does not take all of it."""
        if self._stdin < 0:
            raise ToolFailed("Its input was closed before: start another session.")
        taken = 0
        try:
            taken = os.write(self._stdin, data) if data else 0
        except BlockingIOError:
            pass
        except OSError:
            self._close_input()
            raise ToolFailed("Nothing was written: it reads no more.") from None
        if taken < len(data):
            raise ToolFailed(
                f"It took {taken:,} of {len(data):,} bytes and reads no more for now: write the rest later."
            )
        if closes:
            self._close_input()

    def _close_input(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1


class ChatSessions:
    """The sessions of all chats that use these tools, in this process."""

    def __init__(
        self,
        root: str,
        environment: Mapping[str, str],
        shell: str,
        idle_s: float,
        output_bytes_max: int,
        confinement: Confinement | None,
    ) -> None:
        self._confinement = confinement
        self._root = root
        self._environment = environment
        self._shell = shell
        self._idle_s = idle_s
        self._output_bytes_max = output_bytes_max
        self._by_chat: dict[str, dict[str, _Session]] = {}
        self._starting: Counter[str] = Counter()  # by chat: they have their place before they run
        _all.add(self)

    @property
    def running(self) -> int:
        return sum(not one.ended.is_set() for chat in tuple(self._by_chat.values()) for one in tuple(chat.values()))

    async def start_session(
        self,
        command: Annotated[str, Field(description="The command line, such as a server or an interpreter.")],
        wait_s: Wait = 2.0,
    ) -> str:
        """Start a command line that goes on in the background, such as a server. Its id and first output come back at
        once; standard output and error are one text. It has no terminal. What it says later: read_session.
        """
        context = tool_context()
        if "\x00" in command:
            raise ToolFailed("A command line cannot hold a NUL character.")
        chat, starting = self._of(context), self._starting[context.chat_id]
        if (count := len(chat) + starting) >= SESSIONS_MAX:
            named = ", ".join(chat) or "them"
            raise ToolFailed(f"There are {count} sessions, which is the limit: end one of {named} first.")
        self._starting[context.chat_id] += 1
        try:
            session = await self._start(command, context)
        finally:
            self._starting[context.chat_id] -= 1
            self._starting += Counter()  # without those that are at none
        name = new_id("session")
        self._by_chat.setdefault(context.chat_id, {})[name] = session
        session.life.add_done_callback(lambda _: self._forget_later(context.chat_id, name, session))
        try:
            said = await self._told(context, name, wait_s)
        except asyncio.CancelledError:  # the model will never hear of it, and could not end it
            session.end()
            self._forget(context.chat_id, name)
            await session.ended.wait()
            raise
        return f"{name}\n{said}"

    async def read_session(self, session: Session, wait_s: Wait = WAIT_S) -> str:
        """What a session said since the last look, and whether it still runs."""
        return await self._told(tool_context(), session, wait_s)

    async def write_session(
        self,
        session: Session,
        text: Annotated[str, Field(description="What it reads; a line needs its line end.")],
        close_input: Annotated[bool, Field(description="That was all: it reads the end of its input.")] = False,
        wait_s: Wait = WAIT_S,
    ) -> str:
        """Write to what a session reads, and tell what it says then."""
        context = tool_context()
        data = text.encode(errors="replace")
        if len(data) > INPUT_BYTES_MAX:
            raise ToolFailed(
                f"Nothing was written: {len(data):,} bytes are more than {INPUT_BYTES_MAX:,}. Use a file."
            )
        self._find(context, session).write(data, closes=close_input)
        return await self._told(context, session, wait_s)

    async def end_session(self, session: Session) -> str:
        """End a session with all that it started, and tell the last that it said."""
        context = tool_context()
        if session not in self._of(context):
            return "[it is not there any more]"
        found = self._find(context, session)
        found.end()
        with suppress(TimeoutError):  # not until it is quiet: one that has a last word may take its time after it
            async with asyncio.timeout(OWN_END_S):
                await found.ended.wait()
        return await self._told(context, session, 0)

    # --- inside -----------------------------------------------------------------------------------------------

    async def _start(self, command: str, context: ToolContext) -> _Session:
        confined = Confined() if self._confinement is None else await self._confinement.begin(context)
        argv = [*confined.prefix, self._shell, "-c", "--", command]
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        spec = ProcessSpec(argv, self._environment, self._root, read_in, write_out, write_out, view=confined.view)
        try:
            child = await processes.start_covered(spec, children=context.children)
        except BaseException as error:
            os.close(write_in)
            os.close(read_out)
            if isinstance(error, OSError):
                raise ToolFailed(f"Nothing was started: {error.strerror or error}.") from error
            raise
        finally:
            os.close(read_in)
            os.close(write_out)
        os.set_blocking(write_in, False)
        return _Session(command, child, write_in, read_out, self._output_bytes_max, self._idle_s)

    async def _told(self, context: ToolContext, name: str, wait_s: float) -> str:
        session = self._find(context, name)
        told = await session.listen(wait_s)
        if session.told_end:
            self._forget(context.chat_id, name)
        return told

    def _of(self, context: ToolContext) -> dict[str, _Session]:
        """Those of the chat that live in this event loop; a loop that was closed took its own with it."""
        chat = self._by_chat.get(context.chat_id, {})
        for name in [name for name, session in chat.items() if session.loop.is_closed()]:
            self._forget(context.chat_id, name)
        return chat

    def _find(self, context: ToolContext, name: str) -> _Session:
        session = self._of(context).get(name)
        if session is None or not session.here:
            raise ToolFailed(
                f"There is no session {name[:80]!r} here. It ended and was told of, or it ended with the worker that "
                "had it. Start it again if you need it."
            )
        return session

    def _forget_later(self, chat_id: str, name: str, session: _Session) -> None:
        """One that ended is kept until its last words were told, or for as long as it would have been left alone."""
        if not session.loop.is_closed():
            session.loop.call_later(self._idle_s, self._forget, chat_id, name)

    def _forget(self, chat_id: str, name: str) -> None:
        chat = self._by_chat.get(chat_id, {})
        chat.pop(name, None)
        if not chat:
            self._by_chat.pop(chat_id, None)


_all: "weakref.WeakSet[ChatSessions]" = weakref.WeakSet()


def _figures() -> dict[str, int | str | None]:
    return {"running": sum(sessions.running for sessions in tuple(_all)), "of_a_chat_max": SESSIONS_MAX}


show("sessions", _figures)
