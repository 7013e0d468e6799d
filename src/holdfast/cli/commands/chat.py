"""`holdfast chat`: talk in the terminal. What goes on is drawn above the line that is being typed."""

import asyncio
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console, RenderableType
from rich.text import Text

from holdfast import __version__
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.cli.app_choice import UsageError, know_agent, open_app, opened, pick_agent
from holdfast.cli.commands.chats import last_user_message
from holdfast.cli.commands.memory import kind_of, place_of
from holdfast.cli.commands.run import find_chat, stop_turn, working
from holdfast.cli.interrupts import Pressed, interrupts, leave_now
from holdfast.cli.options import Where
from holdfast.cli.terminal import questions
from holdfast.cli.terminal.approval import ApprovalView
from holdfast.cli.terminal.journal_reader import Reader
from holdfast.cli.terminal.keyboard import Keyboard
from holdfast.cli.terminal.live_screen import REDRAW_S, TerminalScreen
from holdfast.cli.terminal.turn_follower import concerns_people, cursor_now, recall, ticking
from holdfast.cli.words import line
from holdfast.core import journal as jn
from holdfast.core.codec import decode_message
from holdfast.core.records import Message, Role, SendMode, State
from holdfast.core.records import Text as TextPart
from holdfast.errors import HoldfastError
from holdfast.ids import new_id
from holdfast.models.choice import label_of
from holdfast.models.resolve import DEFAULTS, GOOGLE_KEYS
from holdfast.safe_text import safe
from holdfast.slash_commands import SlashCommand
from holdfast.store.cursor import AfterCursor, Cursor
from holdfast.store.records import Answer
from holdfast.system.disk import have_private_file

LOCAL = "local"  # the default where no key is set
MEMORIES_SHOWN = 50
SHOWN_MAX = 100  # journal entries of an older chat that are shown at the start

HELP = """\
/stop            stop the turn; what was said is kept (Ctrl-C)
/queue [words]   say something after this turn, as a plain message does; alone: show the queue
/steer words     say something into the running turn
/edit [words]    replace your last message and what came after it
/retry           try a failed turn again
/fork            go on in a copy of this chat
/compact         let a summary stand for the older part
/new             begin a new chat
/memory words    what the agent remembers; with words, search it and past chats
/skills          what else can be called by a name: skills, and prompts of tool servers
/call name words call one of them that has the name of a command above
/exit            leave (Ctrl-D); a turn that is not done goes on when a worker takes it
A space before a / sends the line as it is.
Enter sends; Alt-Enter, or a \\ at the end, begins a new line. Ctrl-C twice leaves at once."""


async def talk(
    where: Where, *, agent: str | None, model: str | None, chat_id: str | None, verbose: bool = False
) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`holdfast chat` needs a terminal; `holdfast run` reads pipes")
    app = open_app(where.app, home=where.home, database=where.database)
    async with AsyncExitStack() as leaving:
        await leaving.enter_async_context(opened(app))
        chat = await find_chat(app, chat_id) if chat_id is not None else None
        name = (await chat.snapshot()).chat.agent if chat is not None else pick_agent(app, agent, model)
        know_agent(app, name)
        talk = Talk(app, name, banner(app, name, ours=not (where.app or app.config.app)), verbose=verbose)
        leaving.enter_context(interrupts(talk.stop, talk.keyboard.restore, talk.pressed))
        await leaving.enter_async_context(working(app))
        leaving.push_async_callback(talk.unfollow)
        if chat is not None:
            await talk.show(chat)
        await talk.run()
    return 0


def banner(app: App, agent: str, *, ours: bool) -> str:
    """Who answers. With agents of `ours`: which variable would give a better model than the one that needs none."""
    model = app.agents[agent].model
    named = label_of(model)
    shown = f"holdfast {__version__} · {line(agent, 60)} · {line(named, 80)} · /help, Ctrl-D leaves"
    if not ours or model != LOCAL:
        return shown
    keys = "; ".join(
        f"{variable} gives {better}" for variable, better in DEFAULTS.items() if variable != GOOGLE_KEYS[1]
    )
    return f"{shown}\n{LOCAL} is a very small model on this machine. Set a key, and a better one answers: {keys}"


class Talk:
    def __init__(self, app: App, agent: str, banner: str, *, verbose: bool = False) -> None:
        self._app = app
        self._banner = banner
        self._agent = agent
        self._chat: Chat | None = None  # none before the first message
        self._console = Console(highlight=False)
        self._screen = TerminalScreen(self._emit)
        self._reader = Reader(self._screen, verbose=verbose)
        self._waiting: list[RenderableType] = []  # to be printed above the prompt
        self._asked: list[ApprovalView] = []  # what waits for an answer, as far as it was shown
        self._follower: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.pressed = Pressed()
        self.keyboard = Keyboard()
        self._left = False
        self._callable: list[SlashCommand] = []  # as they were listed last
        self._default, self._editing = "", ""  # what the next line begins with, and the message that it replaces
        history_path = str(Path(app.config.home) / "history")
        have_private_file(history_path)
        history = FileHistory(history_path)
        self._session: PromptSession[str] = PromptSession(
            self._prompt,
            history=history,
            multiline=True,
            key_bindings=self._keys(),
            prompt_continuation="  ",
            completer=WordCompleter(self._completions, sentence=True),
            complete_while_typing=Condition(self._names_command),
            input=self.keyboard,
        )
        self._commands: dict[str, Callable[[str], asyncio.Future[None] | object]] = {
            "/help": self._help, "/stop": self._stop, "/queue": self._queue, "/steer": self._steer,
            "/edit": self._edit, "/retry": self._retry, "/fork": self._fork, "/compact": self._compact,
            "/new": self._new, "/skills": self._skills, "/call": self._call,
            "/memory": self._memory,
        }  # fmt: skip

    # --- the loop -------------------------------------------------------------------------------------

    async def run(self) -> None:
        with self.keyboard.cooked_mode():
            leaves = await self._converse()
        if leaves:
            leave_now(130)

    async def _converse(self) -> bool:
        """True: Ctrl-C was pressed twice."""
        self._console.print(Text(self._banner, style="dim"))
        self._callable = await self._app.slash_commands(self._agent)
        drawing = asyncio.create_task(ticking(self._redraw, REDRAW_S))
        try:
            while True:
                default, self._default = self._default, ""
                try:
                    typed = await self._session.prompt_async(default=default, handle_sigint=False)
                except EOFError:
                    return False
                except KeyboardInterrupt:
                    return True
                self.pressed.once = False
                text = typed.strip()
                if typed.rstrip() in ("/exit", "/quit"):
                    return False
                if text:
                    await self._take(typed.rstrip() if text.startswith("/") else text)
        finally:
            self._left = True
            drawing.cancel()

    async def _take(self, text: str) -> None:
        try:
            if text.startswith("/"):
                await self._command(text)
            elif self._editing:
                editing, self._editing = self._editing, ""
                await self._replace(editing, text)
            elif self._asked:
                await self._answer(self._asked[0], text)
            else:
                await self._send(text)
        except HoldfastError as error:
            self._screen.error(str(error))
        await self._flush()

    async def _answer(self, view: ApprovalView, text: str) -> None:
        try:
            instead = await questions.answer(self._app, view, text)
        except HoldfastError:
            self._forget(view)  # another person was quicker, or it is another call now: the next look tells
            raise
        if instead is None:
            self._forget(view)
        else:
            self._screen.note(instead)

    def _forget(self, view: ApprovalView) -> None:
        self._asked = [other for other in self._asked if other is not view]

    async def _command(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        command = self._commands.get(word)
        if command is None:
            await self._call(text.removeprefix("/"))
            return
        done = command(rest.strip())
        if asyncio.iscoroutine(done):
            await done

    # --- what one can do ------------------------------------------------------------------------------

    async def _send(self, text: str, mode: SendMode = "queue") -> Answer:
        message = Message(id=new_id("msg"), role=Role.USER, parts=(TextPart(text=text),))
        if not self._screen.busy and not self._asked:
            self._reader.own.add(message.id)  # it stands just above; one that waits is shown when its turn comes
        if self._chat is None:
            chat = await self._app.create(self._agent)
            await self._follow(chat, cursor_now(await chat.snapshot()))
        assert self._chat is not None
        return (await self._chat.send(message, mode)).answer

    def _help(self, _: str) -> None:
        self._screen.note(HELP)

    async def _skills(self, _: str) -> None:
        self._callable = await self._app.slash_commands(self._agent)
        self._screen.note("\n".join(map(_described, self._callable)) or "this agent has no skills and no prompts")

    async def _memory(self, query: str) -> None:
        """That of the agent and of chats that nobody owns, as those of this terminal are; or of the chat's owner."""
        memory = self._app.memory
        owner = (await self._chat.snapshot()).chat.owner if self._chat is not None else ""
        if query:
            found = await memory.search(query, owner=owner, agent=self._agent)
            told = [f"{place_of(one)}  {line(one.text, 300)}" for one in found.passages]
            self._screen.note("\n".join(told) or "nothing found")
            return
        blocks = await memory.blocks(owner=owner, agent=self._agent)
        told = [f"{block.id}  block {block.name}\n{safe(block.text) or '(empty)'}" for block in blocks]
        records = await memory.list(owner=owner, agent=self._agent, limit=MEMORIES_SHOWN)
        told += [f"{record.id}  {kind_of(record)}: {line(record.text, 200)}" for record in records]
        words = "this agent has nothing to remember with" if self._app.agents[self._agent].memory is None else ""
        how = "`holdfast memory edit|accept|forget ID` changes it"
        self._screen.note("\n".join([*told, how]) if told else words or "nothing is remembered yet")

    async def _call(self, text: str) -> None:
        """A skill, or a prompt of a tool server: what it stands for is found where the message is accepted."""
        self._callable = await self._app.slash_commands(self._agent)
        name = text.split(maxsplit=1)[0] if text.split() else ""
        if name not in {command.name for command in self._callable}:
            words = "/help and /skills list what there is; a space before it sends it as it is"
            self._screen.error(f"there is no /{line(name, 40)}; {words}")
            return
        if self._editing:
            editing, self._editing = self._editing, ""
            await self._replace(editing, f"/{text}")
        else:
            await self._send(f"/{text}")

    def _completions(self) -> list[str]:
        return [*self._commands, "/exit", *(f"/{command.name}" for command in self._callable)]

    async def _stop(self, _: str) -> None:
        if self._chat is not None:
            await self._chat.stop()

    async def _queue(self, text: str) -> None:
        if text:
            await self._send(text)
            return
        queue = (await self._chat.snapshot()).queue if self._chat is not None else ()
        shown = [f"{n}. {line(decode_message(queued.body).text)}" for n, queued in enumerate(queue, 1)]
        self._screen.note("\n".join(shown) or "the queue is empty")

    async def _steer(self, text: str) -> None:
        if not text:
            raise UsageError("/steer what?")
        answer = await self._send(text, "steer")
        if answer.placed == "began":
            self._screen.note("no turn goes on that it could go into: it begins one")
        elif answer.state is State.STOPPING:
            self._screen.note("the turn is being stopped: it comes after that")

    async def _edit(self, text: str) -> None:
        chat = self._need_chat()
        message_id = await last_user_message(chat)
        if text:
            await self._replace(message_id, text)
            return
        old = next(message for message in await chat.messages() if message.id == message_id)
        self._editing, self._default = message_id, old.text

    async def _replace(self, message_id: str, text: str) -> None:
        message = Message(id=new_id("msg"), role=Role.USER, parts=(TextPart(text=text),))
        self._reader.own.add(message.id)
        answer = await self._need_chat().edit(message_id, message)
        for body in answer.dropped:
            self._screen.note(f"dropped from the queue: {line(decode_message(body).text)}")

    async def _retry(self, _: str) -> None:
        await self._need_chat().retry()

    async def _fork(self, _: str) -> None:
        forked = await self._need_chat().fork()
        await self._follow(forked, cursor_now(await forked.snapshot()))
        self._screen.note(f"now in {forked.id}, a copy")

    async def _compact(self, _: str) -> None:
        await self._need_chat().compact()

    async def _new(self, _: str) -> None:
        await self.unfollow()
        self._chat = None
        self._screen.note("a new chat begins with your next message")

    def _need_chat(self) -> Chat:
        if self._chat is None:
            raise UsageError("there is no chat yet: say something first")
        return self._chat

    # --- following ------------------------------------------------------------------------------------

    async def show(self, chat: Chat) -> None:
        """An older chat, with the end of what it holds."""
        seq = (await chat.snapshot()).chat.seq
        await self._follow(chat, Cursor(seq=max(seq - SHOWN_MAX, 0)))

    async def _follow(self, chat: Chat, cursor: Cursor) -> None:
        await self.unfollow()
        self._chat = chat
        self._reader.begin_anew()
        await recall(self._app, chat, self._reader, cursor)
        self._follower = asyncio.create_task(self._read(chat, cursor))

    async def unfollow(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower
        self._asked.clear()
        self._screen.busy = False

    async def _read(self, chat: Chat, cursor: AfterCursor) -> None:
        store = self._app.store
        look = True
        while True:
            try:
                page = await store.wait_journal(chat.id, cursor, deadline_s=60.0 if not look else 0.0)
                entries = [self._reader.take(item) for item in page.items]
                cursor = page.cursor
                self._note_state(entries, at_rest=page.at_rest)
                if look or not page.items or any(map(concerns_people, entries)):
                    look = False
                    await self._look_for_questions(chat)
            except HoldfastError as error:
                self._screen.error(str(error))
                await asyncio.sleep(1.0)
            await self._flush()
            if self._session.app.is_running:
                self._session.app.invalidate()  # also when nothing was printed and nothing goes on any more

    def _note_state(self, entries: Sequence[object], *, at_rest: bool) -> None:
        for entry in entries:
            if isinstance(entry, jn.TurnStarted | jn.TurnResumed):
                self._screen.busy = True
                self._screen.status("")
            elif isinstance(entry, jn.TurnEnded | jn.ChatFailed | jn.TurnWaiting):
                self._screen.busy = False
                self.pressed.once = False
        if at_rest:
            self._screen.busy = False
            self._asked.clear()

    async def _look_for_questions(self, chat: Chat) -> None:
        known = {view.asked.digest: view for view in self._asked}
        views: list[ApprovalView] = []
        for asked in [call.record for call in await chat.open_calls()]:
            if asked.kind == "client":
                continue
            view = known.get(asked.digest)
            if view is None:
                view = await questions.view_of(self._app, asked)
                self._screen.note(questions.opening(view))
            views.append(view)
        self._asked = views

    # --- the screen -----------------------------------------------------------------------------------

    def _emit(self, what: RenderableType) -> None:
        self._waiting.append(what)

    async def _flush(self) -> None:
        """What is finished goes above the prompt, for good."""
        batch, self._waiting = self._waiting, []
        if batch:
            await run_in_terminal(lambda: self._print(batch))

    def _print(self, batch: list[RenderableType]) -> None:
        for what in batch:
            self._console.print(what)

    def _redraw(self) -> None:
        if self._screen.busy and self._session.app.is_running:
            self._session.app.invalidate()

    def _prompt(self) -> StyleAndTextTuples:
        """What goes on, and below it the mark before the line; of a line that was sent only the mark stays."""
        mark = "> "
        if self._asked:
            mark = _mark(self._asked[0])
        fragments: StyleAndTextTuples = [("bold ansicyan", mark)]
        if self._session.app.is_done or not self._screen.busy:
            return fragments
        return [*to_formatted_text(ANSI(self._drawn())), *fragments]

    def _drawn(self) -> str:
        text = io.StringIO()
        size = self._console.size
        canvas = Console(file=text, force_terminal=True, width=size.width, height=max(size.height - 4, 4))
        canvas.print(self._screen.drawing(canvas))
        return text.getvalue()

    # --- keys -----------------------------------------------------------------------------------------

    def _names_command(self) -> bool:
        text = self._session.default_buffer.document.text
        return text.startswith("/") and not text[-1].isspace()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.text_before_cursor.endswith("\\"):
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if self.pressed.once:
                event.app.exit(exception=KeyboardInterrupt())
                return
            event.current_buffer.reset()
            self.stop()

        @keys.add("c-z")
        async def _(_: KeyPressEvent) -> None:
            await run_in_terminal(self.keyboard.suspend)

        return keys

    def stop(self) -> None:
        """The first Ctrl-C."""
        self.pressed.once = True
        if self._left:
            leave_now(130)
        if self._chat is not None and (self._screen.busy or self._asked):
            self._reader.interrupted()
            task = asyncio.create_task(stop_turn(self._chat))
        else:
            self._screen.note("Ctrl-C again, or Ctrl-D, leaves")
            task = asyncio.create_task(self._flush())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _described(command: SlashCommand) -> str:
    """Whatever wrote it: on one line, and safe to print."""
    called = f"/{command.name} {command.argument_hint}".strip()
    return f"{line(called, 60)}  ({command.source}) {line(command.description, 160)}"


def _mark(view: ApprovalView) -> str:
    """Before the line that answers it."""
    if view.asked.kind != "approval":
        return "your answer > "
    if view.hides:
        return "allow it? v shows the rest, n, or why not > "
    return "allow it? y/n, a for always, or why not > " if view.asked.offer else "allow it? y/n, or why not > "
