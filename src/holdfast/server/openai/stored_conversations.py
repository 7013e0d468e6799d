"""`/v1/conversations`, `/v1/responses/compact` and `/v1/responses/input_tokens`.

A conversation is a chat. It is made before a model is named, so until its first response it stands under the app's
first agent, and the one that is named then is written into it.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from holdfast.chat import Chat
from holdfast.core.codec import decode_json
from holdfast.core.compaction import estimated, estimated_message
from holdfast.core.journal import Compacted, CompactionFailed
from holdfast.core.records import ChatRecord, Message, Role
from holdfast.errors import InvalidInput, LimitReached, NotFound, RefusedError
from holdfast.server.chats import as_json
from holdfast.server.guarded import Routes
from holdfast.server.openai.conversations import checked, of_items, sealed_summary
from holdfast.server.openai.errors import not_yet
from holdfast.server.openai.history_items import entry_of, item_page, listed, message_of, rows_back, rows_on
from holdfast.server.openai.ids import CONVERSATION, ResponsePlace, parse_conversation_id, parse_response_id
from holdfast.server.openai.references import resolved
from holdfast.server.openai.requests import Given, Metadata, Records, ResponseAsked, read
from holdfast.server.openai.responses import input_items
from holdfast.server.owned_app import AppOf, KeyOf, OwnedApp
from holdfast.store.records import Answer, HistoryRow, Key

routes = Routes(prefix="/v1", include_in_schema=False)

COMPACT_S = 120.0  # how long a summary is waited for
ITEMS_MAX = 100
ITEMS_GIVEN_MAX = 20
TRIES_MAX = 5  # while others add items, too


class ConversationGiven(Given):
    items: Records | None = None
    metadata: Metadata | None = None


class CompactionAsked(Given):
    model: str
    input: str | Records | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    service_tier: str | None = None


# --- conversations ------------------------------------------------------------------------------------


@routes.post("/conversations", scope="chat")
async def create_conversation(app: AppOf, key: KeyOf, request: Request) -> Response:
    asked = await read(ConversationGiven, request)
    chat = await app.create(
        next(iter(app.agents)), past=await _said(app, asked.items or []), metadata=dict(asked.metadata or {}), key=key
    )
    return as_json(_shown((await chat.snapshot()).chat))


@routes.get("/conversations/{conversation_id}", scope="read")
async def read_conversation(app: AppOf, conversation_id: str) -> Response:
    return as_json(_shown(await _record(app, conversation_id)))


@routes.delete("/conversations/{conversation_id}", scope="chat")
async def delete_conversation(app: AppOf, conversation_id: str) -> Response:
    found = await _record(app, conversation_id)
    await app.chat(found.id).delete()
    return as_json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@routes.get("/conversations/{conversation_id}/items", scope="read")
async def list_conversation_items(
    app: AppOf,
    conversation_id: str,
    limit: Annotated[int, Query(ge=1, le=ITEMS_MAX)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    found = await _record(app, conversation_id)
    place = ResponsePlace(chat_id=found.id, start=1)
    return as_json(await item_page(app.store, place, found.length, limit=limit, order=order, after=after))


@routes.post("/conversations/{conversation_id}/items", scope="chat")
async def add_conversation_items(app: AppOf, key: KeyOf, conversation_id: str, request: Request) -> Response:
    """Before its first response; after that, what is new is the input of the next one."""
    found = await _record(app, conversation_id)
    asked = await read(ConversationGiven, request)
    if len(asked.items or ()) > ITEMS_GIVEN_MAX:
        raise InvalidInput("items", f"can be {ITEMS_GIVEN_MAX} at a time")
    added = await _added(app, found, await _said(app, asked.items or []), key)
    place = ResponsePlace(chat_id=found.id, start=1)
    items = [item for message in added for item in input_items(place, message)]
    return as_json(listed(items, has_more=False))


def _shown(chat: ChatRecord) -> dict[str, Any]:
    metadata = decode_json(bytes(chat.metadata))
    named = {"id": f"{CONVERSATION}{chat.id}", "object": "conversation"}
    return {**named, "created_at": chat.created_at // 1000, "metadata": metadata}


async def _record(app: OwnedApp, conversation_id: str) -> ChatRecord:
    try:
        return (await app.chat(parse_conversation_id(conversation_id)).snapshot()).chat
    except NotFound as error:
        raise NotFound("conversation", conversation_id) from error


async def _said(app: OwnedApp, given: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    messages = of_items(await resolved(app, given))
    return checked([message for message in messages if message.role is not Role.SYSTEM], "items")


async def _added(app: OwnedApp, found: ChatRecord, new: Sequence[Message], key: Key | None) -> list[Message]:
    """Behind what is there, in one write. Returns them as they are kept: by its key, a request that comes again gets
    those of its first try.
    """
    if key is not None and (done := await app.store.recall(key)) is not None:
        return await _kept(app, done, len(new))
    for _ in range(TRIES_MAX):
        await _check_new_calls(app, found, new)
        try:
            return await _kept(app, await app.chat(found.id).give(new, length=found.length, key=key), len(new))
        except RefusedError as refusal:
            if refusal.reason == "limit":
                most = app.store.options.limits.given_messages_max
                raise LimitReached("items", found.length + len(new), most, "give fewer, or a summary") from refusal
            if refusal.reason != "moved_on":
                raise
        found = (await app.chat(found.id).snapshot()).chat  # others were added meanwhile
    raise RefusedError(
        "others add items to this conversation all the time: ask again",
        reason="moved_on", state=found.state, command="give",
    )  # fmt: skip


async def _kept(app: OwnedApp, answer: Answer, count: int) -> list[Message]:
    """They are the last lines of the write that was answered."""
    length = (await app.chat(answer.chat_id).snapshot()).chat.length
    rows: list[HistoryRow] = []
    async for row in rows_back(app.store, answer.chat_id, length):
        if row.seq <= answer.seq - count:
            break
        rows = [row, *rows] if row.seq <= answer.seq else rows
    return [await message_of(app.store, answer.chat_id, row) for row in rows]


async def _check_new_calls(app: OwnedApp, found: ChatRecord, new: Sequence[Message]) -> None:
    """The core knows how long a history is, not what is in it."""
    ids = {call.call_id for message in new for call in message.calls}
    if not ids:
        return
    async for row in rows_on(app.store, found.id, 0, found.length):
        if again := ids.intersection(call.call_id for call in entry_of(row).message.calls):
            raise InvalidInput("items", f"function call {again.pop()} is in this conversation already")


async def chat_for(app: OwnedApp, conversation_id: str, agent: str) -> Chat:
    """The chat in which the next response of a conversation is given. Raises NotFound and InvalidInput."""
    found = await _record(app, conversation_id)
    if found.agent == agent:
        return app.chat(found.id)
    if found.turn:
        raise InvalidInput("model", f"is another one than that of the conversation, which is {found.agent}")
    await app.chat(found.id).give(agent=agent)
    return app.chat(found.id)


# --- summaries and counting ---------------------------------------------------------------------------


@routes.post("/responses/input_tokens", scope="read")
async def count_input_tokens(app: AppOf, request: Request) -> Response:
    """As holdfast estimates them for its own limits: what a provider counts, only it knows."""
    asked = await read(ResponseAsked, request)
    if asked.model not in app.agents:
        raise NotFound("model", asked.model)
    agent = app.agents[asked.model]
    tokens = estimated(agent.instructions) + estimated(asked.instructions or "")
    tokens += sum(map(estimated_message, of_items(await resolved(app, asked.input or []))))
    if asked.previous_response_id is not None:
        place = parse_response_id(asked.previous_response_id)
        async for row in rows_on(app.store, place.chat_id):
            tokens += estimated_message(entry_of(row).message)
    tokens += sum(estimated(bytes(tool.schema).decode() + tool.description) for tool in asked.declared())
    return as_json({"object": "response.input_tokens", "input_tokens": tokens})


@routes.post("/responses/compact", scope="chat")
async def compact_response(app: AppOf, request: Request) -> Response:
    """A summary of what was said, by the agent's model, as an item that stands for it from then on."""
    asked = await read(CompactionAsked, request)
    if asked.model not in app.agents:
        raise NotFound("model", asked.model)
    said = [
        message for message in of_items(await resolved(app, asked.input or [])) if message.role is not Role.SYSTEM
    ]
    if asked.previous_response_id is not None:
        place = parse_response_id(asked.previous_response_id)
        said = [*await app.chat(place.chat_id).messages(), *said]
    if not said:
        raise InvalidInput("input", "holds nothing to be summarised")
    chat = await app.create(asked.model, past=checked(said, "input"))
    try:
        made = await _awaited_summary(app, chat)
    except TimeoutError:
        return not_yet("no summary was made in time", {}, keyed=False)
    found = (await chat.snapshot()).chat
    await chat.wait(COMPACT_S)
    await chat.delete()  # its summary goes to the client, which keeps it
    return as_json(_compaction(found, said, made))


def _compaction(chat: ChatRecord, said: Sequence[Message], made: Compacted | None) -> dict[str, Any]:
    place = ResponsePlace(chat_id=chat.id, start=1)
    kept = said[made.upto :] if made is not None else said
    items: list[dict[str, Any]] = []
    if made is not None:
        sealed = sealed_summary(made.summary)
        items.append({"id": f"cmp_{chat.id}", "type": "compaction", "encrypted_content": sealed})
    items += [item for message in kept for item in input_items(place, message)]
    tokens = made.tokens if made is not None else 0
    usage = {"input_tokens": tokens, "input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens}
    named = {"id": place.response_id, "object": "response.compaction"}
    return {**named, "created_at": chat.created_at // 1000, "output": items, "usage": usage}


async def _awaited_summary(app: OwnedApp, chat: Chat) -> Compacted | None:
    """Raises TimeoutError, also where the server goes first, and Unauthorized once the token has ended."""
    waiting = asyncio.ensure_future(_summary(chat))
    try:
        await app.streams.wait_for((waiting,), app.grant, COMPACT_S)
        if not waiting.done():
            raise TimeoutError
        return waiting.result()
    finally:
        waiting.cancel()


async def _summary(chat: Chat) -> Compacted | None:
    """None: there was nothing that a summary could stand for."""
    await chat.compact()
    async for event in chat.events():
        if isinstance(event.body, Compacted):
            return event.body
        if isinstance(event.body, CompactionFailed):
            return None
    return None
