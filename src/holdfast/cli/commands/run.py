"""`holdfast run`: one turn in the terminal, by a worker of its own; the exit code says how it ended."""

import asyncio
import select
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from holdfast.app import App, have_home
from holdfast.chat import Chat
from holdfast.cli.app_choice import UsageError, know_agent, leave_to_others, make_app, opened, pick_agent
from holdfast.cli.interrupts import interrupts, leave_now
from holdfast.cli.options import Where
from holdfast.cli.terminal.approval import ApprovalView, listed
from holdfast.cli.terminal.journal_reader import Reader, as_json
from holdfast.cli.terminal.screen import AnswerScreen
from holdfast.cli.terminal.turn_follower import Ask, Exit, TurnFollower, Viewer, cursor_now, exit_of, recall, ticking
from holdfast.core.codec import check_text
from holdfast.core.records import Failure, Message, Role, Text
from holdfast.errors import HoldfastError, TurnTimeout
from holdfast.ids import new_id
from holdfast.safe_text import safe, safe_json
from holdfast.store.cursor import Cursor
from holdfast.store.records import Item
from holdfast.store.update_reader import event_of, reader_start
from holdfast.turn import Sent, Turn

SAY_S = 5.0
STDIN_CHARS_MAX = 64 << 20  # more than any message may have: an endless pipe must not fill the memory


class Question(msgspec.Struct, frozen=True):
    """What the command line asked for."""

    text: str | None  # None: follow what is there
    agent: str | None = None
    model: str | None = None
    chat: str | None = None
    json: bool = False
    verbose: bool = False
    where: str = ""  # the options that lead to the same app and data, for hints


def read_question(words: str) -> str:
    """The argument; or, for `-`, what standard input holds. Raises UsageError."""
    text = find_question(words, optional=False)
    assert text is not None
    return text


def find_question(words: str | None, *, optional: bool) -> str | None:
    """The argument; or, for `-` or a pipe, what standard input holds. `optional`: None where there is no word.
    Raises UsageError.
    """
    if words is not None and words != "-":
        text = words
    elif words == "-" or not sys.stdin.isatty():
        _say_that_it_waits()
        try:
            text = sys.stdin.read(STDIN_CHARS_MAX + 1)
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is no text: {error}") from error
    elif optional:
        return None
    else:
        raise UsageError('what is the question? holdfast run "hello", or holdfast run - to read standard input')
    if len(text) > STDIN_CHARS_MAX:
        raise UsageError(f"standard input holds more than {STDIN_CHARS_MAX:,} characters")
    if not text.strip() and optional and words is None:
        return None
    if not text.strip():
        raise UsageError("there is nothing to say: the text is empty")
    return text


def _say_that_it_waits() -> None:
    """A pipe that stays open and empty is waited for, and a person may not know."""
    try:
        ready = select.select([sys.stdin], [], [], SAY_S)[0]
    except (OSError, ValueError):  # no file that can be waited for
        return
    if not ready:
        print("holdfast: reads the question from standard input until that ends", file=sys.stderr, flush=True)


async def run(app_name: str | None, home: str | None, database: str | None, question: Question) -> Exit:
    app = make_app(app_name, home=home, database=database)
    if question.chat is not None and (question.agent is not None or question.model is not None):
        raise UsageError("--chat goes on with a chat and its agent; leave --agent and --model out")
    agent = pick_agent(app, question.agent, question.model) if question.chat is None else ""
    question = msgspec.structs.replace(question, where=Where(app_name, home, database).said)
    if question.text is not None:
        check_text("the question", question.text, bytes_max=app.store.options.limits.message_bytes_max)
    have_home(app.config)  # now that nothing of the command line is wrong
    async with opened(app):
        chat = await (app.create(agent) if question.chat is None else _chat(app, question.chat))
        stopper = Stopper(chat)
        with interrupts(stopper.stop):
            snapshot = await chat.snapshot()
            after = cursor_now(snapshot)  # before our worker goes on with it, which is to be seen
            if question.text is None:
                if snapshot.chat.turn == 0:
                    raise UsageError(f"{chat.id} has had no message yet: say something")
                after = (await reader_start(app.store, chat.id, None)).place  # of the turn that goes on, or the last
            async with working(app):
                sent = None
                if question.text is not None:
                    sent = await chat.send(
                        Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=question.text),))
                    )
                return await _show(app, _Shown(chat, after, sent), question, stopper)


class _Shown(NamedTuple):
    """What is followed: the turn that took a message; without one, what is there."""

    chat: Chat
    after: Cursor
    sent: Sent[Any] | None

    @property
    def message_id(self) -> str:
        return "" if self.sent is None else str(self.sent.message_id)

    async def turn(self) -> Turn[Any]:
        return await (self.chat.turn(timeout_s=0) if self.sent is None else self.sent.turn(timeout_s=0))


class Stopper:
    """The first Ctrl-C: it stops the turn; once that is over, it leaves."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.chat_id = chat.id
        self._tasks: set[asyncio.Task[None]] = set()
        self.viewer: Viewer | None = None  # while there is a turn to stop

    def stop(self) -> None:
        if self.viewer is None:
            leave_now(130)
        self._tasks.add(asyncio.create_task(self.stopped()))

    async def stopped(self) -> None:
        if self.viewer is not None:
            self.viewer.interrupted()
        await stop_turn(self._chat)


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    """A worker of our own, which says what it waits for if its end takes long: it may have taken other chats too."""
    leave_to_others(app)
    running = app.worker()
    worker = await running.__aenter__()
    try:
        yield
    except BrokenPipeError:
        await worker.stop(0.0)  # the rest is not read: it is handed over now
        raise
    finally:
        # The answer was made without their tools. Told when the worker has let go: nobody may be there to read it.
        away = [link for link in worker.tool_servers.links if link.away]
        absences = [f"the MCP server {link.server.name!r} is {link.absence()}" for link in away]
        leaving = asyncio.ensure_future(running.__aexit__(None, None, None))
        if not (await asyncio.wait((leaving,), timeout=SAY_S))[0]:
            print(f"holdfast: hands over {safe(worker.waiting_for())}; Ctrl-C leaves at once", file=sys.stderr)
        await leaving
        for what in absences:
            print(f"holdfast: {safe(what)}; holdfast doctor looks at it", file=sys.stderr)


async def _chat(app: App, chat_id: str) -> Chat:
    chat = await find_chat(app, chat_id)
    know_agent(app, (await chat.snapshot()).chat.agent)
    return chat


async def find_chat(app: App, chat_id: str) -> Chat:
    """`last` is the newest chat that a person began, not one of its sub-agents. Raises NotFound."""
    if chat_id == "last":
        if not (lines := await app.chats(limit=1)):
            raise UsageError('there is no chat yet: holdfast run "hello" makes one')
        chat_id = lines[0].id
        while (parent_id := (await app.chat(chat_id).snapshot()).chat.parent_id) is not None:
            chat_id = parent_id
    chat = app.chat(chat_id)
    await chat.snapshot()
    return chat


async def _show(app: App, shown: _Shown, question: Question, stopper: Stopper) -> Exit:
    with ExitStack() as leaving:
        viewer, ask = _viewer(app, shown.message_id, question, stopper, leaving)
        if isinstance(viewer, Reader):
            await recall(app, shown.chat, viewer, shown.after)
        follower = TurnFollower(app, shown.chat, viewer, ask)
        follower.cursor = shown.after
        stopper.viewer = viewer
        turn = await _followed(follower, shown)
        stopper.viewer = None
        if isinstance(viewer, PipeReader):
            viewer.finish(turn)
    _say_how_it_ended(turn, question)
    return exit_of(turn)


async def _followed(follower: TurnFollower, shown: _Shown) -> Turn[Any]:
    """The turn that took the message, whatever else the chat went through."""
    while True:
        await follower.follow()
        try:
            return await shown.turn()
        except TurnTimeout:
            continue  # a person elsewhere has answered meanwhile, and it goes on


async def stop_turn(chat: Chat) -> None:
    try:
        await chat.stop()
    except HoldfastError as error:
        print(f"holdfast: cannot stop: {safe(str(error))}", file=sys.stderr)


def _viewer(
    app: App, message_id: str, question: Question, stopper: Stopper, leaving: ExitStack
) -> tuple[Viewer, Ask | None]:
    if question.json:
        return JsonLines(stopper.chat_id), None
    if not sys.stdout.isatty():
        reader = PipeReader(verbose=question.verbose)
        reader.own.add(message_id)
        return reader, None
    return _terminal(app, message_id, question, stopper, leaving)


def _terminal(
    app: App, message_id: str, question: Question, stopper: Stopper, leaving: ExitStack
) -> tuple[Viewer, Ask | None]:
    from holdfast.cli.terminal.live_screen import REDRAW_S, LiveTerminal  # noqa: PLC0415  a pipe needs no drawing

    live = leaving.enter_context(LiveTerminal())
    live.screen.busy = True
    reader = Reader(live.screen, verbose=question.verbose)
    reader.own.add(message_id)
    drawing = asyncio.create_task(ticking(live.redraw, REDRAW_S))
    leaving.callback(drawing.cancel)
    if not sys.stdin.isatty():
        return reader, None
    from holdfast.cli.terminal.questions import Person  # noqa: PLC0415  and who asks nothing needs no prompt

    person = Person(app, live.pause, live.resume, stopper.stopped)
    return reader, person.ask


class PipeReader(Reader):
    """For who reads the answer from a pipe."""

    def __init__(self, *, verbose: bool) -> None:
        self._answer_screen = AnswerScreen()
        super().__init__(self._answer_screen, verbose=verbose)

    def finish(self, turn: Turn[Any]) -> None:
        self._answer_screen.finish({"done": turn.partial_text, "stopped": turn.partial_text}.get(turn.state))


class JsonLines:
    def __init__(self, chat_id: str) -> None:
        self._chat_id = chat_id

    def take(self, item: Item) -> object:
        write_line(as_json(self._chat_id, item))
        return event_of(item).body

    def interrupted(self) -> None:
        pass

    def trouble(self, text: str) -> None:
        print(f"holdfast: {safe(text)}", file=sys.stderr)


def write_line(line: bytes) -> None:
    """JSON, with escapes for what a terminal would obey: it means the same."""
    sys.stdout.buffer.write(safe_json(line) + b"\n")
    sys.stdout.buffer.flush()


def _say_how_it_ended(turn: Turn[Any], question: Question) -> None:
    asked = [call.record for call in turn.open]
    if question.json:
        error = turn.error
        result = {
            "chat": turn.chat.id,
            "kind": "result",
            "exit": int(exit_of(turn)),
            "turn": turn.number,
            "state": turn.state,
            "cause": turn.cause,
            "error": None if error is None else _told(error),
            "text": turn.text if turn.state == "done" else None,
            "partial_text": turn.partial_text,
            "finish": turn.finish,
            "usage": turn.usage,
            "cost": turn.cost,
            "asked": asked,
        }
        write_line(msgspec.json.encode(result))
        return
    for open_call in asked:
        what = {"approval": "approve or deny", "question": "answer", "client": "answer"}[open_call.kind]
        place = f"{open_call.chat_id}{question.where}"
        if open_call.kind == "approval" and ApprovalView(open_call).hides:
            what, place = "show", f"{place} --call {open_call.call_id}"
        print(f"holdfast: {listed(open_call)}\nholdfast: holdfast chats {what} {place}", file=sys.stderr)
    if turn.state != "done":
        print(f"holdfast: {_way_on(turn, question.where)}", file=sys.stderr)


def _told(error: Failure) -> dict[str, object]:
    return {"code": error.code, "message": error.message, "advice": error.advice, "chain": error.chain}


def _way_on(turn: Turn[Any], where: str) -> str:
    again = f"holdfast run{where} --chat {turn.chat.id}"
    if turn.state == "waiting":
        return f"then, to go on: {again}"
    if turn.state == "failed":
        return f"to try again: holdfast chats retry {turn.chat.id}{where} && {again}"
    return f'to go on: {again} "…"'
