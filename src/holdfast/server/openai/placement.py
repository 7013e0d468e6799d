"""From a request to the place in a chat where its response begins: a new chat, the same one carried on, or a fork.

Nothing here happens twice: with an `Idempotency-Key` the request as a whole, a tool's result by the id of its call.
"""

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from holdfast.chat import Chat
from holdfast.core.journal import CallChanged, DescendantAnswered, MessageAdded, TurnResumed
from holdfast.core.records import CallState, External, Message, Role, Terms, Text, ToolResult, result_message
from holdfast.core.updates import CallView
from holdfast.errors import InvalidInput, NotFound, RefusedError
from holdfast.server.openai.conversations import Approval, Conversation, conversation
from holdfast.server.openai.history_items import entry_of, messages_of, rows_back
from holdfast.server.openai.ids import APPROVAL, ResponsePlace, outer_call_id, parse_call_id
from holdfast.server.openai.response_state import Telling
from holdfast.server.owned_app import OwnedApp
from holdfast.store.cursor import Cursor
from holdfast.store.receipts import request_hash
from holdfast.store.records import Key
from holdfast.store.update_reader import event_of


async def begin(
    app: OwnedApp, agent: str, said: Conversation, metadata: dict[str, str] | None, key: Key | None
) -> ResponsePlace:
    """A new chat with what was said elsewhere. Its response is everything that comes after its creation."""
    chat = await app.create(
        agent, said.opener, past=said.past, since=said.since, metadata=dict(metadata or {}), key=key
    )
    return ResponsePlace(chat_id=chat.id, start=1)


async def carry_on(
    app: OwnedApp,
    agent: str,
    results: Sequence[ToolResult],
    terms: Terms,
    steering: Message | None = None,
    key: Key | None = None,
) -> ResponsePlace | None:
    """Give a waiting chat the results of the calls it waits for, and what its client asks of the turn from there on.
    None: it is not ours, or it had other results.

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
    given = {call_id: result for call_id, (_, result) in calls.items()}
    if missing := [call_id for call_id in waiting if call_id not in given]:
        raise InvalidInput("input", f"No tool output found for function call {missing[0]}-{chat_id}.")
    answered = [call_id for call_id in given if call_id not in waiting]
    if await _recorded(app, chat_id, {call_id: given[call_id] for call_id in answered}) is None:
        return None
    app.agent(agent).check_client_tools(terms.client_tools)
    last_one = waiting[-1] if waiting else None  # what is asked of the turn comes with what lets it go on
    for call_id in waiting:
        if call_id not in questions and steering is not None:
            await chat.send(steering, "steer", key=_part_of(key, "message"))
            steering = None
        result = given[call_id]
        with suppress(RefusedError):  # another client was faster; whether with the same result the caller sees
            await chat.submit(
                call_id, result.content, files=result.files, terms=terms if call_id == last_one else None
            )
    if steering is not None and waiting:
        await chat.send(steering, "steer", key=_part_of(key, "message"))
    last = await _recorded(app, chat_id, given)
    return ResponsePlace(chat_id=chat_id, start=last) if last is not None else None


async def _recorded(app: OwnedApp, chat_id: str, given: dict[str, ToolResult]) -> int | None:
    """The journal number of the last of these results; None if one of them is not what was recorded."""
    last = 0
    for call_id, result in given.items():
        try:
            spot = await app.store.locate_message(chat_id, f"{call_id}.result")
        except NotFound:
            return None
        rows = await app.chat(chat_id).history(spot.pos, 1)
        found = entry_of(rows[0]).message.parts if rows else ()
        if [(part.content, part.files) for part in found if isinstance(part, ToolResult)] != [
            (result.content, result.files)
        ]:
            return None
        last = max(last, rows[0].seq)
    return last


async def approve(app: OwnedApp, given: Sequence[Approval]) -> ResponsePlace:
    """Answers for a person. The response goes on where the turn does: in the chat at the top, if it is a sub-agent's
    call. An answer that is there already, from this request's first try or from the person, counts as given.
    """
    root_id, first = "", ""
    for approval in given:
        call_id, chat_id = parse_call_id(approval.call_id)
        chat = app.chat(chat_id or "")
        try:
            found = (await chat.snapshot()).chat
        except NotFound as error:
            raise NotFound("approval request", approval.call_id) from error
        with suppress(RefusedError):
            if approval.approve:
                await chat.approve(call_id, by="/v1")
            else:
                await chat.deny(call_id, approval.words, by="/v1")
        root_id, first = found.root_id or found.id, first or call_id
    return ResponsePlace(chat_id=root_id, start=await _went_on(app, root_id, first))


async def _went_on(app: OwnedApp, chat_id: str, call_id: str) -> int:
    """The entry with which the turn went on after this call was answered."""
    chat = (await app.chat(chat_id).snapshot()).chat
    rows = await app.chat(chat_id).history(chat.turn_from, 1)
    cursor: Cursor | str = cursor_before(rows[0].seq if rows else 1)
    answered = False
    while True:
        page = await app.store.read_journal(chat_id, cursor)
        for item in page.items:
            entry = event_of(item).body  # what newer code wrote is passed over
            answered = answered or _answers(entry, call_id)
            if answered and item.seq is not None and isinstance(entry, TurnResumed | DescendantAnswered):
                return item.seq
        cursor = page.cursor
        if not page.more:
            raise RefusedError(
                "this call waits for an answer no more, or its turn is over",
                reason="call_state", state=chat.state, command="approve",
            )  # fmt: skip


def _answers(entry: object, call_id: str) -> bool:
    match entry:
        case CallChanged(call_id=of, state=state):
            return of == call_id and state is CallState.APPROVED
        case DescendantAnswered(call_id=of):
            return of == call_id
        case MessageAdded():
            return entry.message.id == f"{call_id}.result"
    return False


async def follow_up(
    app: OwnedApp,
    agent: str,
    before: Telling,
    results: Sequence[ToolResult],
    opener: Message | None,
    terms: Terms,
    key: Key | None,
) -> ResponsePlace:
    """After an earlier response: in the same chat if nothing was said there since, else in a fork of it. An agent
    that takes over has a chat of its own, with what was said so far.
    """
    chat = app.chat(before.place.chat_id)
    if not before.over:
        raise InvalidInput("previous_response_id", "names a response that is still in progress; wait, or cancel it")
    answered = {parse_call_id(result.call_id)[0] for result in results}
    if missing := [call for call in before.pending.values() if call.id not in answered]:
        raise InvalidInput("input", _missing(missing[0], chat.id))
    if key is not None and (done := await app.store.recall(key)) is not None:
        return ResponsePlace(chat_id=done.chat_id, start=done.seq)  # asked again, whatever became of the chat since
    if (await chat.snapshot()).chat.agent != agent:
        return await _take_over(app, agent, before, results, opener, terms, key)
    if results:
        place = await carry_on(app, agent, results, terms, opener, key)
        if place is None:
            raise RefusedError(
                "these calls were answered before, with other results, or are not waited for any more",
                reason="call_state", state="", command="submit",
            )  # fmt: skip
        return place
    if opener is None:
        raise InvalidInput("input", "needs a message of the user, or the outputs of function calls")
    await _check_unedited(app, before)
    return await _say(app, chat, before, opener, key)


def _missing(call: CallView, chat_id: str) -> str:
    outer = outer_call_id(call.chat_id or chat_id, call.id)
    if call.kind == "approval":
        return f"No approval response found for approval request {APPROVAL}{outer}."
    return f"No tool output found for function call {outer}."


async def _take_over(
    app: OwnedApp,
    agent: str,
    before: Telling,
    results: Sequence[ToolResult],
    opener: Message | None,
    terms: Terms,
    key: Key | None,
) -> ResponsePlace:
    """A chat of another agent with what was said in this one, which ends what it was waiting for."""
    chat = app.chat(before.place.chat_id)
    await _check_unedited(app, before)
    last = await _last_position(app, chat, before.paused_at or before.end)
    said = await messages_of(app.store, chat.id, last + 1)
    brought = [replace(result, call_id=parse_call_id(result.call_id)[0]) for result in results]
    said += [result_message(result, 0) for result in brought]
    found = conversation([*said, opener] if opener is not None else said, "input")
    dressed = replace(
        found.opener,
        instructions=terms.instructions,
        sampling=terms.sampling,
        client_tools=terms.client_tools,
        active_tools=terms.active_tools,
        metadata=terms.metadata,
    )
    if key is None and results:  # they count once, as they do where the same agent goes on
        key = app.key(f"/v1:{before.place.response_id}:{agent}:{request_hash(brought)}")
    place = await begin(app, agent, replace(found, opener=dressed), None, key)
    if before.pending:
        with suppress(RefusedError):
            await chat.stop(turn=before.turn.number or None)
    return place


async def _check_unedited(app: OwnedApp, before: Telling) -> None:
    """A fork of what is left in the chat would go on without the words that its client goes on from."""
    if before.last_message is not None:
        try:
            await app.store.locate_message(before.place.chat_id, before.last_message)
        except NotFound as error:
            raise NotFound("response", f"{before.place.response_id}, which was edited away") from error


async def _say(app: OwnedApp, chat: Chat, before: Telling, opener: Message, key: Key | None) -> ResponsePlace:
    last = await _last_position(app, chat, before.end)
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


async def _last_position(app: OwnedApp, chat: Chat, seq: int) -> int:
    """Of the history as it was at a journal number: looked for from its end."""
    async for row in rows_back(app.store, chat.id, (await chat.snapshot()).chat.length):
        if row.seq <= seq:
            return row.pos
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


def cursor_before(seq: int) -> Cursor:
    return Cursor(seq=seq - 1)
