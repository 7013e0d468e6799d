"""`holdfast chats …`: each one a call or two of `app`, on the store directly; no server is needed."""

import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast, get_args

import click
import msgspec
import typer

from holdfast.app import App, have_home
from holdfast.chat import Chat
from holdfast.cli.app_choice import UsageError, app_with_data, list_from_app, look_at_app, opened
from holdfast.cli.commands.prune import days_of
from holdfast.cli.commands.run import JsonLines, find_chat, read_question, write_line
from holdfast.cli.listing import Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.terminal.approval import ApprovalView, Document, as_lines, listed
from holdfast.cli.terminal.journal_reader import Reader
from holdfast.cli.terminal.screen import PlainScreen
from holdfast.cli.terminal.turn_follower import Exit, TurnFollower
from holdfast.cli.words import ago, arguments_of, line
from holdfast.core.codec import decode_message
from holdfast.core.instants import iso
from holdfast.core.journal import FOR_OPERATORS, Traced
from holdfast.core.records import Always, ChatRecord, Message, Role, SendMode, State, ToolCall, ToolResult
from holdfast.core.states import AT_REST
from holdfast.safe_text import revealed, safe
from holdfast.store.open_calls import OpenCallKind, OpenCallLine, OpenCallRecord
from holdfast.store.records import Answer, ChatFilter, ChatLine
from holdfast.store.sub_agents import SubAgent
from holdfast.store.update_reader import event_of
from holdfast.turn import OpenCall

TRACES_SHOWN = 3  # unasked


class Wanted(msgspec.Struct, frozen=True):
    """Which chats a listing shows, as the command line says it."""

    agent: str | None
    state: str | None
    search: str | None
    archived: bool
    limit: int

    @property
    def narrow(self) -> bool:
        """Others may be there that it does not show."""
        return self.archived or any(word is not None for word in (self.agent, self.state, self.search))

    def filter(self) -> ChatFilter:
        if self.state is not None and self.state not in set(State):
            raise UsageError(f"--state is {self.state!r}; it can be {', '.join(State)}")
        state = State(self.state) if self.state is not None else None
        return ChatFilter(agent=self.agent, state=state, search=self.search, archived=self.archived)


@asynccontextmanager
async def _open(where: Where, chat_id: str) -> AsyncIterator[tuple[App, Chat]]:
    app = app_with_data(where)
    have_home(app.config)
    async with opened(app):
        yield app, await find_chat(app, chat_id)


@asynccontextmanager
async def _look(where: Where, chat_id: str) -> AsyncIterator[tuple[App, Chat]]:
    """For what changes nothing."""
    async with opened(look_at_app(where)) as app:
        yield app, await find_chat(app, chat_id)


async def list_chats(where: Where, wanted: Wanted, *, json: bool) -> None:
    async with opened(list_from_app(where)) as app:
        lines = await app.chats(wanted.filter(), limit=wanted.limit)
    if json:
        for found in lines:
            write_line(msgspec.json.encode({name: getattr(found, name) for name in found.__struct_fields__}))
        return
    if not lines:
        print("no such chats" if wanted.narrow else 'no chats; holdfast run "hello" makes one', file=sys.stderr)
        return
    print_listing(("chat", "agent", "state", "queued", "changed", "title"), [_row(found) for found in lines])


def _row(found: ChatLine) -> Row:
    return (
        Field(shown=found.id),
        Field(shown=line(found.agent, 40), plain=found.agent),
        Field(shown=found.state, style=_COLOURS.get(found.state, "")),
        Field(shown=str(found.queued or ""), plain=str(found.queued)),
        Field(shown=ago(found.updated_at), plain=iso(found.updated_at)),
        Field(shown=line(found.called, 60), plain=found.called),
    )


async def inbox(where: Where, kind: str | None, owner: str | None, limit: int, *, json: bool) -> None:
    if kind is not None and kind not in get_args(OpenCallKind):
        raise UsageError(f"--kind is {kind!r}; it can be {', '.join(get_args(OpenCallKind))}")
    async with opened(list_from_app(where)) as app:
        calls = await app.open_calls(kind=cast("OpenCallKind | None", kind), owner=owner, limit=limit)
    if json:
        for call in calls:
            write_line(msgspec.json.encode(call))
        return
    if not calls:
        print("nothing waits for a person or a client", file=sys.stderr)
        return
    print_listing(
        ("chat", "call", "kind", "tool", "asked", "until", "question"), [_asked_row(call) for call in calls]
    )


def _asked_row(call: OpenCallLine) -> Row:
    asked = call.question or call.arguments
    return (
        Field(shown=call.chat_id),
        Field(shown=call.call_id),
        Field(shown=call.kind, style="yellow"),
        Field(shown=line(call.name, 40), plain=call.name),
        Field(shown=ago(call.asked_at), plain=iso(call.asked_at)) if call.asked_at is not None else Field(shown=""),
        Field(shown=iso(call.expires_at) if call.expires_at is not None else ""),
        Field(shown=line(asked, 80), plain=asked),
    )


_COLOURS = {State.FAILED: "red", State.WAITING: "yellow", State.RUNNING: "cyan", State.STOPPING: "cyan"}


async def show(where: Where, chat_id: str, call_id: str | None = None, *, json: bool, verbose: bool = False) -> None:
    if call_id is not None:
        await _show_call(where, chat_id, call_id, json=json)
        return
    async with _look(where, chat_id) as (app, chat):
        snapshot = await chat.snapshot()
        messages = await chat.messages()
        asked = [call.record for call in await chat.open_calls()]
        traces = await _read_traces(app, chat.id)
        children = await chat.children(deep=True)
    found = snapshot.chat
    if json:
        head = {
            name: getattr(found, name) for name in ("id", "agent", "state", "title", "cause", "error", "metadata")
        }
        queue = [queued.body for queued in snapshot.queue]
        write_line(
            msgspec.json.encode(
                {**head, "messages": messages, "queue": queue, "asked": asked, "children": children, "traces": traces}
            )
        )
        return
    print(f"{found.id}  {line(found.agent)}  {found.state}  {ago(found.updated_at)}")
    if found.title:
        print(safe(found.title))
    for message in messages:
        _print_message(message)
    for queued in snapshot.queue:
        print(f"\nqueued: {safe(decode_message(queued.body).text)}")
    _print_children(found.id, children)
    for call in asked:
        print(f"\nwaits for {describe_asked(call)}")
        if call.kind == "approval" and ApprovalView(call).hides:
            print(f"it cannot be allowed before you have seen it: {_where_whole(call, where)}")
        else:
            print("\n".join(f"  {row}" for row in _how_to_answer(call, where)))
    if found.error is not None:
        print(f"\nfailed ({found.error.code}): {safe(found.error.message)}")
        if found.error.advice:
            print(f"  {safe(found.error.advice)}")
        for cause in found.error.chain if verbose else ():
            print(f"  {safe(cause)}")
    if len(traces) > TRACES_SHOWN:
        print(f"\n{len(traces) - TRACES_SHOWN} earlier exceptions are not shown; --json has all")
    for trace in traces[-TRACES_SHOWN:]:
        _print_trace(trace)


def _print_children(chat_id: str, children: list[SubAgent]) -> None:
    """As a tree. Those whose parent is not among them, where there are more than are shown, stand by themselves."""
    below: dict[str, list[SubAgent]] = {}
    for child in sorted(children, key=lambda child: child.chat_id):
        below.setdefault(child.parent_id, []).append(child)
    shown = {child.chat_id for child in children}
    tops = [chat_id, *(parent for parent in below if parent not in shown and parent != chat_id)]
    if children:
        print("\nsub-agents:")
    left = [(child, 1) for top in tops for child in below.get(top, ())][::-1]
    while left:
        child, depth = left.pop()
        words = child.task if child.state not in AT_REST else child.error or child.answer
        print(f"{'  ' * depth}{child.chat_id}  {line(child.agent, 40)}  {child.state}  {line(words, 80)}".rstrip())
        left += [(one, depth + 1) for one in reversed(below.get(child.chat_id, []))]


async def _read_traces(app: App, chat_id: str) -> list[Traced]:
    """What raised in the chat, oldest first. The journal has it for operators."""
    found: list[Traced] = []
    cursor: str | None = None
    more = True
    while more:
        page = await app.store.read_journal(chat_id, cursor)
        bodies = [event_of(item).body for item in page.items if item.body.startswith(FOR_OPERATORS)]
        found += [body for body in bodies if isinstance(body, Traced)]
        cursor, more = page.cursor, page.more
    return found


def _print_trace(trace: Traced) -> None:
    where = f", {trace.call_id}" if trace.call_id is not None else ""
    print(f"\n{trace.source} {line(trace.name)} raised {line(trace.error)} (turn {trace.turn}{where}):")
    print("\n".join(f"  {row}" for row in safe(trace.text).splitlines()))


def _print_message(message: Message) -> None:
    if message.role is not Role.TOOL:
        ended = message.stopped or message.finish
        mark = f"  ({'stopped' if message.stopped else 'not whole'}: {ended})" if ended is not None else ""
        print(f"\n{message.role}{mark}  {message.id}")
        if message.text:
            print(safe(message.text.rstrip()))
    for found in message.expansions:
        print(f"  / {line(found.name)} ({line(found.source)} {found.digest}): {line(found.text, 200)}")
    for call in message.calls:
        print(f"  · {line(call.name)}({arguments_of(call.arguments)})")
    for part in message.parts:
        if isinstance(part, ToolResult):
            word = f" [{part.synthetic}]" if part.synthetic is not None else " [error]" if part.error else ""
            print(f"  = {line(part.name)}{word}: {line(part.content, 200)}")


def describe_asked(asked: OpenCallRecord) -> str:
    return f"{asked.kind} of {listed(asked)}\n  {asked.call_id}"


def _where_whole(asked: OpenCallRecord, where: Where) -> str:
    return f"holdfast chats show {asked.chat_id} --call {asked.call_id}{where.said}"


async def _show_call(where: Where, chat_id: str, call_id: str, *, json: bool) -> None:
    """The whole of one call, an open one or any in the history, and of its result."""
    async with _look(where, chat_id) as (app, chat):
        call = next((found for found in await chat.open_calls() if found.id == call_id), None)
        asked = (await call.read()).record if call is not None else None
        calls, results = _found_in(await chat.messages(), call_id)
        traces = [trace for trace in await _read_traces(app, chat.id) if trace.call_id == call_id]
    if asked is None and not calls:
        raise UsageError(f"{chat.id} has no call {line(call_id)}")
    if json:
        found = {"asked": asked, "calls": calls, "results": results, "traces": traces}
        write_line(msgspec.json.encode(found))
    elif asked is not None:
        _print_whole([*Document(asked).all_lines, "", *_how_to_answer(asked, where)])
    else:
        lines = [row for call in calls for row in as_lines(call.name, call.arguments)]
        lines += [row for result in results for row in ["", *revealed(result.content).lines]]
        _print_whole([*lines, *(row for trace in traces for row in ["", *safe(trace.text).splitlines()])])


def _found_in(messages: list[Message], call_id: str) -> tuple[list[ToolCall], list[ToolResult]]:
    """A provider that gives the same id twice is no reason to show one of them only."""
    calls = [call for message in messages for call in message.calls if call.call_id == call_id]
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolResult)]
    return calls, [part for part in parts if part.call_id == call_id]


def _how_to_answer(asked: OpenCallRecord, where: Where) -> list[str]:
    place = f"{asked.chat_id} --call {asked.call_id}{where.said}"
    if asked.kind != "approval":
        return [f'holdfast chats answer {place} "…"']
    return [f"holdfast chats approve {place} --digest {asked.digest}", f"holdfast chats deny {place}"]


def _print_whole(lines: list[str]) -> None:
    """At a terminal that is too low for it, by a pager."""
    text = "\n".join(lines)
    columns, rows = shutil.get_terminal_size()
    if sys.stdout.isatty() and sum(1 + len(row) // columns for row in lines) > rows - 2:
        click.echo_via_pager(text)
    else:
        print(text)


async def tail(where: Where, chat_id: str, *, json: bool, verbose: bool = False) -> Exit:
    async with _look(where, chat_id) as (app, chat):
        viewer = JsonLines(chat.id) if json else Reader(PlainScreen(err=sys.stdout), verbose=verbose)
        return await TurnFollower(app, chat, viewer, _leave_it).follow()


async def _leave_it(_: OpenCallRecord) -> bool:
    return True  # another person answers; we only look


# --- acting -------------------------------------------------------------------------------------------


async def send(where: Where, chat_id: str, text: str, mode: str) -> None:
    modes: tuple[SendMode, ...] = get_args(SendMode)
    found = next((known for known in modes if known == mode), None)
    if found is None:
        raise UsageError(f"--mode is {mode!r}; it can be {', '.join(modes)}")
    async with _open(where, chat_id) as (_, chat):
        _say((await chat.send(read_question(text), found)).answer)


async def stop(where: Where, chat_id: str, *, clear_queue: bool) -> None:
    async with _open(where, chat_id) as (_, chat):
        _say(await chat.stop(clear_queue=clear_queue))


class Approval(msgspec.Struct, frozen=True):
    """How a call is allowed, as the command line says it."""

    digest: str | None = None
    always: str | None = None
    for_: str | None = None

    def meant(self) -> tuple[Always | None, float | None]:
        """Where the rules that it offers are kept, and for how many seconds. Raises UsageError."""
        scopes: tuple[Always, ...] = get_args(Always)
        scope = next((known for known in scopes if known == self.always), None)
        if self.always is not None and scope is None:
            raise UsageError(f"--always is {self.always!r}; it can be {', '.join(scopes)}")
        if self.for_ is not None and scope is None:
            raise UsageError("--for says how long --always is meant: give both")
        return scope, None if self.for_ is None else days_of("--for", self.for_) * 86_400


async def approve(where: Where, chat_id: str, call_id: str | None, asked: Approval) -> None:
    always, for_s = asked.meant()
    async with _open(where, chat_id) as (_, chat):
        call = await _one(chat, where, call_id, "approval")
        view = ApprovalView(call.record)
        if asked.digest is None and view.hides:
            raise UsageError(
                f"not allowed: of this call {view.hidden} are shown nowhere unasked. Look at all of it first: "
                f"`{_where_whole(call.record, where)}`, which also says how to allow what you have seen"
            )
        if asked.digest is None:
            _say(await call.approve(by="terminal", always=always, for_s=for_s))
        else:
            digest = asked.digest
            _say(await call.chat.approve(call.id, by="terminal", digest=digest, always=always, for_s=for_s))


async def deny(where: Where, chat_id: str, call_id: str | None, words: str) -> None:
    async with _open(where, chat_id) as (_, chat):
        _say(await (await _one(chat, where, call_id, "approval")).deny(words, by="terminal"))


async def answer(where: Where, chat_id: str, call_id: str | None, text: str, *, error: bool) -> None:
    async with _open(where, chat_id) as (_, chat):
        call = await _one(chat, where, call_id, "question", "client")
        _say(await call.submit(read_question(text), error=error))


async def _one(chat: Chat, where: Where, call_id: str | None, *kinds: str) -> OpenCall:
    """The call that is meant. Raises UsageError."""
    asked = [found for found in await chat.open_calls() if found.kind in kinds]
    if call_id is not None:
        asked = [found for found in asked if found.id == call_id]
    if len(asked) == 1:
        return asked[0]
    if not asked:
        raise UsageError(
            f"{chat.id} asks for no such thing now; `holdfast chats show {chat.id}{where.said}` shows what is open"
        )
    listed = "\n".join(f"  {describe_asked(found.record)}" for found in asked)
    raise UsageError(f"{chat.id} asks for several: name one with --call\n{listed}")


async def edit(where: Where, chat_id: str, message_id: str | None, text: str) -> None:
    async with _open(where, chat_id) as (_, chat):
        _say((await chat.edit(message_id or await last_user_message(chat), text)).answer)


async def last_user_message(chat: Chat) -> str:
    for message in reversed(await chat.messages()):
        if message.role is Role.USER and message.synthetic is None:
            return message.id
    raise UsageError(f"{chat.id} has no message of yours")


async def fork(where: Where, chat_id: str, upto: int | None) -> None:
    async with _open(where, chat_id) as (_, chat):
        print((await chat.fork(upto=upto)).id)


async def retry(where: Where, chat_id: str) -> None:
    async with _open(where, chat_id) as (_, chat):
        _say(await chat.retry())


async def go_on(where: Where, chat_id: str) -> None:
    async with _open(where, chat_id) as (_, chat):
        _say(await chat.go_on())


async def compact(where: Where, chat_id: str) -> None:
    async with _open(where, chat_id) as (_, chat):
        _say(await chat.compact())


async def archive(where: Where, chat_id: str, *, undo: bool) -> None:
    async with _open(where, chat_id) as (_, chat):
        _say(await chat.archive(not undo))


async def delete(where: Where, chat_id: str, *, children: bool, ask: bool) -> None:
    async with _open(where, chat_id) as (_, chat):
        if ask:
            _confirm_deletion((await chat.snapshot()).chat)
        for gone in await chat.delete(children=children):
            print(f"{gone}  deleted")


def _confirm_deletion(chat: ChatRecord) -> None:
    """About this very one: `last` may be another by the time of the answer. Raises typer.Abort."""
    title = f", {line(chat.title, 60)}" if chat.title else ""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the event loop's would wait for the answer
    try:
        typer.confirm(f"Delete {chat.id} ({line(chat.agent, 40)}{title}) for good?", abort=True)
    finally:
        signal.signal(signal.SIGINT, before)


def _say(answer: Answer) -> None:
    print(f"{answer.chat_id}  {answer.state}")
    for body in answer.dropped:
        print(f"dropped: {line(decode_message(body).text, 500)}")
