"""From a request to the place in a chat where its response begins: a new chat, the same one carried on, or a fork.

Nothing here happens twice: with an `Idempotency-Key` the request as a whole, a tool's result by the id of its call.
"""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.codec import decode_entry
from holdfast.core.journal import MessageAdded, TurnResumed
from holdfast.core.records import CallState, External, Message, Role, Text, ToolResult
from holdfast.errors import InvalidInput, NotFound, RefusedError
from holdfast.server.openai.conversations import Conversation
from holdfast.server.openai.ids import ResponsePlace, parse_call_id
from holdfast.server.openai.response_state import Telling
from holdfast.store.cursor import Cursor
from holdfast.store.records import HistoryRow, Key

PAGE_ROWS = 200


async def begin(
    app: App, agent: str, said: Conversation, metadata: dict[str, str] | None, key: Key | None
) -> ResponsePlace:
    """A new chat with what was said elsewhere. Its response is everything that comes after its creation."""
    chat = await app.create(
        agent, said.opener, past=said.past, since=said.since, metadata=dict(metadata or {}), key=key
    )
    return ResponsePlace(chat_id=chat.id, start=1)


async def carry_on(
    app: App, agent: str, results: Sequence[ToolResult], steering: Message | None = None, key: Key | None = None
) -> ResponsePlace | None:
    """Give a waiting chat the results of the calls it waits for. None: it is not ours, or it had other results.

    A result that is there already, from this request's first try, counts as given.
    """
    calls = {call_id: (chat_id, result) for result in results for call_id, chat_id in [parse_call_id(result.call_id)]}
    chat_ids = {chat_id for chat_id, _ in calls.values()}
    chat_id = chat_ids.pop() if len(chat_ids) == 1 else None
    if chat_id is None:
        return None
    chat = app.chat(chat_id)
    try:
        snapshot = await chat.snapshot()
    except NotFound:
        return None
    if snapshot.chat.agent != agent:
        return None
    open_calls = [call for call in snapshot.open_calls if call.state is CallState.EXTERNAL]
    # Questions first: an open one would take the message beside the results for its answer.
    questions = [call.id for call in open_calls if call.external is External.QUESTION]
    waiting = questions + [call.id for call in open_calls if call.external is External.CLIENT]
    given = {call_id: result.content for call_id, (_, result) in calls.items()}
    if missing := [call_id for call_id in waiting if call_id not in given]:
        raise InvalidInput("input", f"No tool output found for function call {missing[0]}-{chat_id}.")
    answered = [call_id for call_id in given if call_id not in waiting]
    if await _recorded(app, chat_id, {call_id: given[call_id] for call_id in answered}) is None:
        return None
    await _submit(chat, questions, given)
    if steering is not None and waiting:
        await chat.send(steering, "steer", key=_part_of(key, "message"))
    await _submit(chat, waiting[len(questions) :], given)
    last = await _recorded(app, chat_id, given)
    return ResponsePlace(chat_id=chat_id, start=await _resumed(app, chat_id, last)) if last is not None else None


async def _submit(chat: Chat, call_ids: Sequence[str], given: dict[str, str]) -> None:
    for call_id in call_ids:
        with suppress(RefusedError):  # another client was faster; whether with the same result the caller sees
            await chat.submit(call_id, given[call_id])


async def _recorded(app: App, chat_id: str, given: dict[str, str]) -> int | None:
    """The journal number of the last of these results; None if one of them is not what was recorded."""
    last = 0
    for call_id, content in given.items():
        try:
            spot = await app.store.locate_message(chat_id, f"{call_id}.result")
        except NotFound:
            return None
        rows = await app.chat(chat_id).history(spot.pos, 1)
        found = entry_of(rows[0]).message.parts if rows else ()
        if [part.content for part in found if isinstance(part, ToolResult)] != [content]:
            return None
        last = max(last, rows[0].seq)
    return last


async def _resumed(app: App, chat_id: str, seq: int) -> int:
    """The entry with which the turn went on: the one after the last result, if that was the last to be waited for."""
    page = await app.store.read_journal(chat_id, cursor_before(seq + 1), limit=1)
    resumed = (
        page.items and page.items[0].seq == seq + 1 and isinstance(decode_entry(page.items[0].body), TurnResumed)
    )
    return seq + 1 if resumed else seq


async def follow_up(
    app: App, agent: str, before: Telling, results: Sequence[ToolResult], opener: Message | None, key: Key | None
) -> ResponsePlace:
    """After an earlier response: in the same chat if nothing was said there since, else in a fork of it."""
    chat = app.chat(before.place.chat_id)
    if (await chat.snapshot()).chat.agent != agent:
        raise InvalidInput("model", "is another one than that of the previous response, which a chat cannot change")
    if not before.over:
        raise InvalidInput("previous_response_id", "names a response that is still in progress; wait, or cancel it")
    answered = {parse_call_id(result.call_id)[0] for result in results}
    if missing := [call_id for call_id in before.pending if call_id not in answered]:
        raise InvalidInput("input", f"No tool output found for function call {missing[0]}-{chat.id}.")
    if results:
        place = await carry_on(app, agent, results, opener, key)
        if place is None:
            raise RefusedError(
                "these calls were answered before, with other results, or are not waited for any more",
                reason="call_state", state="", command="submit",
            )  # fmt: skip
        return place
    if opener is None:
        raise InvalidInput("input", "needs a message of the user, or the outputs of function calls")
    if key is not None and (done := await app.store.recall(key)) is not None:
        return ResponsePlace(chat_id=done.chat_id, start=done.seq)  # asked again, whatever became of the chat since
    await _check_unedited(app, before)
    return await _say(chat, before, opener, key)


async def _check_unedited(app: App, before: Telling) -> None:
    """A fork of what is left in the chat would go on without the words that its client goes on from."""
    if before.last_message is not None:
        try:
            await app.store.locate_message(before.place.chat_id, before.last_message)
        except NotFound as error:
            raise NotFound("response", f"{before.place.response_id}, which was edited away") from error


async def _say(chat: Chat, before: Telling, opener: Message, key: Key | None) -> ResponsePlace:
    last = await _last_position(chat, before.end)
    try:
        sent = await chat.send(opener, length=last + 1, key=key)
    except RefusedError as refusal:
        if refusal.reason != "moved_on":
            raise
        forked = await chat.fork(upto=last, key=_part_of(key, "fork"))
        sent = await forked.send(opener, key=key)
    return ResponsePlace(
        chat_id=sent.chat.id, start=sent.answer.seq
    )  # of the fork, if this very request made one before


async def _last_position(chat: Chat, seq: int) -> int:
    """Of the history as it was at a journal number: looked for from its end."""
    end = (await chat.snapshot()).chat.length
    while end > 0:
        start = max(0, end - PAGE_ROWS)
        rows = [row for row in await chat.history(start, end - start) if row.seq <= seq and row.pos < end]
        if rows:
            return rows[-1].pos
        end = start
    raise NotFound("response", f"{seq} of {chat.id}")


def _part_of(key: Key | None, part: str) -> Key | None:
    """For one of several things that a request does."""
    return replace(key, key=f"{key.key}:{part}", request=None) if key is not None else None


def joined(messages: Sequence[Message]) -> Message | None:
    """Several messages of a user as the one that begins a turn."""
    users = [message for message in messages if message.role is Role.USER]
    if not users:
        return None
    parts = [part for message in users for part in (*message.parts, Text(text="\n\n"))][:-1]
    return replace(users[0], parts=tuple(parts))


def entry_of(row: HistoryRow) -> MessageAdded:
    entry = decode_entry(row.body)
    assert isinstance(entry, MessageAdded)
    return entry


def cursor_before(seq: int) -> Cursor:
    return Cursor(seq=seq - 1)
