"""The routes under `/v1`. They are described by OpenAI's own documentation, so our OpenAPI file leaves them out."""

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from msgspec import Raw
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.app import App
from holdfast.core.codec import encode
from holdfast.core.records import Message, Role, State, ToolResult
from holdfast.errors import InvalidInput, NotFound, RefusedError
from holdfast.server.chats import AppOf, KeyOf, as_json, streams_of
from holdfast.server.openai import placement, response_follower
from holdfast.server.openai.completions import Chunks, completion_of
from holdfast.server.openai.conversations import conversation, of_items, of_messages
from holdfast.server.openai.errors import DONT_RETRY, STOPPED, error_response, failed_turn
from holdfast.server.openai.ids import ResponsePlace, parse_response_id
from holdfast.server.openai.requests import CompletionAsked, ResponseAsked, read
from holdfast.server.openai.response_state import Telling
from holdfast.server.openai.responses import Events, input_items, response_of
from holdfast.server.streams import Streams
from holdfast.store.records import Key

router = APIRouter(prefix="/v1", include_in_schema=False)

StreamsOf = Annotated[Streams, Depends(streams_of)]
CANCEL_S = 5.0  # how long a cancellation waits to see the end of what it stopped
ITEMS_MAX = 100


# --- models -------------------------------------------------------------------------------------------


@router.get("/models")
async def list_models(app: AppOf) -> Response:
    return as_json({"object": "list", "data": [_model(name) for name in app.agents]})


@router.get("/models/{name:path}")
async def read_model(app: AppOf, name: str) -> Response:
    return as_json(_model(_agent(app, name)))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "holdfast"}


def _agent(app: App, name: str) -> str:
    if name not in app.agents:
        raise NotFound("model", name)
    return name


def _agent_for(app: App, asked: CompletionAsked | ResponseAsked, format: str) -> str:
    """Raises NotFound, and InvalidInput where the client wants another type of answer than the agent gives."""
    name = _agent(app, asked.model)
    if asked.output is not None and app.agents[name].output is not None:
        raise InvalidInput(format, "can be `text`: this agent declares the type of its answers itself")
    return name


# --- chat completions ---------------------------------------------------------------------------------


@router.post("/chat/completions")
async def create_completion(app: AppOf, streams: StreamsOf, key: KeyOf, request: Request) -> Response:
    """A new chat for every request, unless it brings the results of calls that a chat waits for."""
    asked = read(CompletionAsked, await request.body())
    asked.check()
    agent = _agent_for(app, asked, "response_format")
    streams.check(response_follower.client_of(request))
    said = conversation(of_messages(asked.messages), "messages")
    place = await placement.carry_on(app, agent, said.results) if said.results else None
    if place is None:
        tools = asked.client_tools()
        opener = replace(said.opener, instructions=said.instructions, sampling=asked.sampling, client_tools=tools)
        opener = replace(opener, active_tools=() if asked.no_tools else None)
        place = await placement.begin(app, agent, replace(said, opener=opener), asked.metadata, key)
    if asked.stream:
        usage = asked.stream_options is not None and asked.stream_options.include_usage is True
        return response_follower.Told(streams, place, Chunks(agent, include_usage=usage))
    telling = await response_follower.until_over(request, streams, place)
    headers = {"X-Holdfast-Chat": place.chat_id}
    if not telling.over:
        return await _not_yet(app, place, headers, keyed=key is not None)
    if telling.status == "failed":
        return failed_turn(telling.error, headers)
    if telling.status == "cancelled":
        return error_response(409, STOPPED, "turn_stopped", {**headers, **DONT_RETRY})
    return as_json(completion_of(telling, agent), headers=headers)


async def _not_yet(app: App, place: ResponsePlace, headers: dict[str, str], *, keyed: bool) -> Response:
    """A client that asks again with its key gets this chat's answer; one without would begin another chat."""
    headers = headers if keyed else {**headers, **DONT_RETRY}
    if asked := await app.chat(place.chat_id).open_calls():
        words = f"the turn in chat {place.chat_id} waits: " + "; ".join(call.describe() for call in asked)
        return error_response(503, words, "turn_waits", headers)
    words = f"the answer takes longer than this server waits; the turn goes on in chat {place.chat_id}"
    return error_response(503, words, "not_yet", headers)


# --- responses ----------------------------------------------------------------------------------------


@router.post("/responses")
async def create_response(app: AppOf, streams: StreamsOf, key: KeyOf, request: Request) -> Response:
    asked = read(ResponseAsked, await request.body())
    asked.check()
    agent = _agent_for(app, asked, "text.format")
    if asked.stream or not asked.background:
        streams.check(response_follower.client_of(request))
    place = await _begin(app, streams, agent, asked, key)
    if asked.stream:
        return await _stream(streams, place, agent, -1)
    if asked.background:
        return await _shown(app, streams, place)
    telling = await response_follower.until_over(request, streams, place)
    return as_json(response_of(telling, agent), headers={"X-Holdfast-Chat": place.chat_id})


async def _begin(app: App, streams: Streams, agent: str, asked: ResponseAsked, key: Key | None) -> ResponsePlace:
    messages = of_items(asked.input or [])
    if asked.previous_response_id is not None:
        before = await response_follower.read(streams, parse_response_id(asked.previous_response_id))
        said = [message for message in messages if message.role is not Role.SYSTEM]
        if any(message.role is Role.ASSISTANT for message in said):
            raise InvalidInput("input", "holds what the previous response already has; give what is new")
        opener = placement.joined(said)
        system = "\n\n".join(message.text for message in messages if message.role is Role.SYSTEM)
        dressed = _dressed(opener, asked, system) if opener is not None else None
        results = [part for message in said for part in message.parts if isinstance(part, ToolResult)]
        return await placement.follow_up(app, agent, before, results, dressed, key)
    found = conversation(messages, "input")
    place = await placement.carry_on(app, agent, found.results) if found.results else None
    if place is not None:
        return place
    found = replace(found, opener=_dressed(found.opener, asked, found.instructions or ""))
    return await placement.begin(app, agent, found, asked.metadata, key)


def _dressed(opener: Message, asked: ResponseAsked, system: str) -> Message:
    return replace(
        opener,
        instructions="\n\n".join(text for text in (asked.instructions, system) if text) or None,
        sampling=asked.sampling,
        client_tools=asked.client_tools(),
        active_tools=() if asked.no_tools else None,
        metadata=Raw(encode({"openai": asked.echo()})),
    )


@router.get("/responses/{response_id}")
async def read_response(
    app: AppOf,
    streams: StreamsOf,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1, lt=1 << 62)] = -1,
) -> Response:
    place = parse_response_id(response_id)
    if stream:
        agent = (await app.chat(place.chat_id).snapshot()).chat.agent
        return await _stream(streams, place, agent, starting_after)
    return await _shown(app, streams, place)


async def _stream(streams: Streams, place: ResponsePlace, agent: str, after: int) -> Response:
    telling = await _opening(streams, place)
    events = Events(agent, after)
    return response_follower.Told(streams, place, events, begin=events.begin(telling), after=after)


async def _opening(streams: Streams, place: ResponsePlace) -> Telling:
    """As it was when it began, whatever has happened since: its first events are the same whenever they are told."""
    found = await response_follower.read(streams, place)
    opening = Telling(place)
    opening.began_at, opening.echo = found.began_at, found.echo
    return opening


async def _shown(app: App, streams: Streams, place: ResponsePlace) -> Response:
    telling = await response_follower.read(streams, place)
    chat = (await app.chat(place.chat_id).snapshot()).chat
    queued = chat.state is State.RUNNING and chat.worker is None
    return as_json(response_of(telling, chat.agent, queued=queued), headers={"X-Holdfast-Chat": place.chat_id})


@router.post("/responses/{response_id}/cancel")
async def cancel_response(app: AppOf, streams: StreamsOf, response_id: str) -> Response:
    """Stops the turn. What was said so far is kept."""
    place = parse_response_id(response_id)
    chat = app.chat(place.chat_id)
    before = await chat.snapshot()
    telling = await response_follower.read(streams, place)
    # A response that is not over belongs to the turn that the chat was in; what comes after it is not stopped.
    given_up = telling.pending and any(call.id in telling.pending for call in before.open_calls)
    if not telling.over or given_up:
        with suppress(RefusedError):
            await chat.stop(turn=before.chat.turn)
    await response_follower.within(streams, place, CANCEL_S)
    return await _shown(app, streams, place)


@router.delete("/responses/{response_id}")
async def delete_response(app: AppOf, streams: StreamsOf, response_id: str) -> Response:
    """Deletes the chat, if this response is all there is in it."""
    place = parse_response_id(response_id)
    telling = await response_follower.read(streams, place)
    chat = (await app.chat(place.chat_id).snapshot()).chat
    if place.start != 1 or chat.turn != 1 or not telling.over:
        raise RefusedError(
            "this response is part of a longer conversation, or still in progress; "
            f"delete the chat {place.chat_id} as a whole, once it rests",
            reason="state", state=chat.state, command="delete",
        )  # fmt: skip
    await app.chat(place.chat_id).delete()
    return as_json({"id": response_id, "object": "response", "deleted": True})


@router.get("/responses/{response_id}/input_items")
async def list_input_items(
    app: AppOf,
    streams: StreamsOf,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=ITEMS_MAX)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    """Everything that came before the response, as far as it is in the chat."""
    place = parse_response_id(response_id)
    await response_follower.read(streams, place)
    items = await _items_before(app, place)
    if order == "desc":
        items.reverse()
    if after is not None:
        at = next((at for at, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise InvalidInput("after", "names no input item of this response")
        items = items[at + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return as_json({"object": "list", "data": page, **ends, "has_more": len(items) > limit})


async def _items_before(app: App, place: ResponsePlace) -> list[dict[str, Any]]:
    """The history up to the response's first answer."""
    items: list[dict[str, Any]] = []
    start = 0
    while rows := await app.chat(place.chat_id).history(start, 500):
        for row in rows:
            entry = placement.entry_of(row)
            if row.seq > place.start and entry.attempt is not None:
                return items
            items += input_items(place, entry.message)
        start = rows[-1].pos + 1
    return items
