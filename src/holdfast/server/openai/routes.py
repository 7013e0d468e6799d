"""The routes under `/v1`. They are described by OpenAI's own documentation, so our OpenAPI file leaves them out."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Query, Request
from msgspec import Raw
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.codec import encode
from holdfast.core.records import NOTHING, Message, Role, State, Terms, ToolResult
from holdfast.errors import InvalidInput, NotFound, RefusedError
from holdfast.server.chats import as_json
from holdfast.server.guarded import Routes
from holdfast.server.openai import placement, response_follower
from holdfast.server.openai.completions import Chunks, completion_of
from holdfast.server.openai.conversations import approvals_of, conversation, of_items, of_messages
from holdfast.server.openai.errors import (
    DONT_RETRY,
    FAILED,
    STOPPED,
    TURN_WAITS,
    error_response,
    failed_turn,
    not_yet,
)
from holdfast.server.openai.history_items import entry_of, item_page, rows_on
from holdfast.server.openai.ids import ResponsePlace, parse_response_id
from holdfast.server.openai.references import resolved
from holdfast.server.openai.requests import CompletionAsked, ResponseAsked, read
from holdfast.server.openai.response_state import Telling
from holdfast.server.openai.responses import Events, response_of
from holdfast.server.openai.stored_conversations import chat_for
from holdfast.server.owned_app import AppOf, KeyOf, OwnedApp
from holdfast.store.records import Key

routes = Routes(prefix="/v1", include_in_schema=False)

CANCEL_S = 5.0  # how long a cancellation waits to see the end of what it stopped
ITEMS_MAX = 100


# --- models -------------------------------------------------------------------------------------------


@routes.get("/models", scope="read")
async def list_models(app: AppOf) -> Response:
    return as_json({"object": "list", "data": [_model(name) for name in app.agents]})


@routes.get("/models/{name:path}", scope="read")
async def read_model(app: AppOf, name: str) -> Response:
    return as_json(_model(_agent(app, name)))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "holdfast"}


def _agent(app: OwnedApp, name: str) -> str:
    if name not in app.agents:
        raise NotFound("model", name)
    return name


def _agent_for(app: OwnedApp, asked: CompletionAsked | ResponseAsked, format: str) -> str:
    """Raises NotFound, and InvalidInput where the client wants another type of answer than the agent gives."""
    name = _agent(app, asked.model)
    if asked.output is not None and app.agents[name].output is not None:
        raise InvalidInput(format, "can be `text`: this agent declares the type of its answers itself")
    agent = app.agents[name]
    asked.check_choice({*agent.tools, *([asked.choice.forced or ""] if agent.servers else [])})
    return name


# --- chat completions ---------------------------------------------------------------------------------


@routes.post("/chat/completions", scope="chat")
async def create_completion(app: AppOf, key: KeyOf, request: Request) -> Response:
    """A new chat for every request, unless it brings the results of calls that a chat waits for."""
    asked = await read(CompletionAsked, request)
    asked.check()
    agent = _agent_for(app, asked, "response_format")
    app.streams.shares.check(app.client)
    said = conversation(of_messages(asked.messages), "messages")
    terms = _terms(app, asked, said.instructions)
    place = await placement.carry_on(app, agent, said.results, terms) if said.results else None
    if place is None:
        place = await placement.begin(
            app, agent, replace(said, opener=_dressed(said.opener, terms)), asked.metadata, key
        )
    telling = Telling(place, through_approvals=True)
    if asked.stream:
        usage = asked.stream_options is not None and asked.stream_options.include_usage is True
        return response_follower.Told(app, telling, Chunks(agent, include_usage=usage))
    waits = await response_follower.until_over(request, app, telling)
    headers = {"X-Holdfast-Chat": place.chat_id}
    if waits:
        words = response_follower.waits_for(place, waits)
        return error_response(FAILED, words, TURN_WAITS, {**headers, **DONT_RETRY})
    if not telling.over:
        return not_yet(f"the turn goes on in chat {place.chat_id}", headers, keyed=key is not None)
    if telling.status == "failed":
        return failed_turn(telling.error, headers)
    if telling.status == "cancelled":
        return error_response(FAILED, STOPPED, "turn_stopped", {**headers, **DONT_RETRY})
    return as_json(completion_of(telling, agent), headers=headers)


# --- responses ----------------------------------------------------------------------------------------


@routes.post("/responses", scope="chat")
async def create_response(app: AppOf, key: KeyOf, request: Request) -> Response:
    asked = await read(ResponseAsked, request)
    asked.check()
    agent = _agent_for(app, asked, "text.format")
    if asked.stream or not asked.background:
        app.streams.shares.check(app.client)
    place = await _begin(app, agent, asked, key)
    if asked.stream:
        return await _stream(app, place, agent, -1)
    if asked.background:
        return await _shown(app, place)
    telling = Telling(place)
    await response_follower.until_over(request, app, telling)
    headers = {"X-Holdfast-Chat": place.chat_id}
    if not telling.over:
        words = f"the turn goes on; retrieve the response {place.response_id}"
        return not_yet(words, headers, keyed=key is not None)
    return as_json(response_of(telling, agent), headers=headers)


async def _begin(app: OwnedApp, agent: str, asked: ResponseAsked, key: Key | None) -> ResponsePlace:
    given = await resolved(app, asked.input or [])
    approvals, messages = approvals_of(given), of_items(given)
    if approvals:
        return await placement.approve(app, approvals)
    if asked.previous_response_id is not None:
        before = await response_follower.read(app, parse_response_id(asked.previous_response_id))
        said = [message for message in messages if message.role is not Role.SYSTEM]
        if any(message.role is Role.ASSISTANT for message in said):
            raise InvalidInput("input", "holds what the previous response already has; give what is new")
        system = "\n\n".join(message.text for message in messages if message.role is Role.SYSTEM)
        terms = _terms(app, asked, "\n\n".join(text for text in (asked.instructions, system) if text))
        opener = placement.joined(said)
        dressed = _dressed(opener, terms) if opener is not None else None
        results = [part for message in said for part in message.parts if isinstance(part, ToolResult)]
        return await placement.follow_up(app, agent, before, results, dressed, terms, key)
    if asked.conversation_id is not None:
        return await _in_conversation(app, agent, asked, messages, key)
    found = conversation(messages, "input")
    terms = _terms(app, asked, "\n\n".join(text for text in (asked.instructions, found.instructions) if text))
    place = await placement.carry_on(app, agent, found.results, terms) if found.results else None
    if place is not None:
        return place
    found = replace(found, opener=_dressed(found.opener, terms))
    return await placement.begin(app, agent, found, asked.metadata, key)


async def _in_conversation(
    app: OwnedApp, agent: str, asked: ResponseAsked, messages: Sequence[Message], key: Key | None
) -> ResponsePlace:
    said = [message for message in messages if message.role is not Role.SYSTEM]
    system = "\n\n".join(message.text for message in messages if message.role is Role.SYSTEM)
    terms = _terms(app, asked, "\n\n".join(text for text in (asked.instructions, system) if text))
    opener = placement.joined(said)
    dressed = _dressed(opener, terms) if opener is not None else None
    results = [part for message in said for part in message.parts if isinstance(part, ToolResult)]
    chat = await chat_for(app, asked.conversation_id or "", agent)
    if results and (place := await placement.carry_on(app, agent, results, terms, dressed, key)) is not None:
        return place
    if dressed is None:
        raise InvalidInput("input", "needs a message of the user, or the outputs of function calls that are open")
    if (await chat.snapshot()).chat.state not in (State.IDLE, State.FAILED):
        raise InvalidInput("conversation", "has a response in progress, or one that waits for results: end it first")
    sent = await chat.send(dressed, key=key)
    return ResponsePlace(chat_id=sent.chat.id, start=sent.answer.seq)


def _terms(app: OwnedApp, asked: CompletionAsked | ResponseAsked, instructions: str | None) -> Terms:
    """What this request asks of the turn, whether it begins it or goes on with it."""
    return Terms(
        instructions=instructions or None,
        sampling=asked.sampling,
        client_tools=asked.client_tools(app.config.client_results_wait_s),
        active_tools=asked.active_tools(),
        metadata=Raw(encode({"openai": asked.echo()})) if isinstance(asked, ResponseAsked) else NOTHING,
    )


def _dressed(opener: Message, terms: Terms) -> Message:
    return replace(
        opener,
        instructions=terms.instructions,
        sampling=terms.sampling,
        client_tools=terms.client_tools,
        active_tools=terms.active_tools,
        metadata=terms.metadata,
    )


@routes.get("/responses/{response_id}", scope="read")
async def read_response(
    app: AppOf,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1, lt=1 << 62)] = -1,
) -> Response:
    place = parse_response_id(response_id)
    if stream:
        agent = (await app.chat(place.chat_id).snapshot()).chat.agent
        return await _stream(app, place, agent, starting_after)
    return await _shown(app, place)


async def _stream(app: OwnedApp, place: ResponsePlace, agent: str, after: int) -> Response:
    telling = await _opening(app, place)
    events = Events(agent, after)
    return response_follower.Told(app, Telling(place, after), events, begin=events.begin(telling))


async def _opening(app: OwnedApp, place: ResponsePlace) -> Telling:
    """As it was when it began, whatever has happened since: its first events are the same whenever they are told."""
    found = await response_follower.read(app, place)
    opening = Telling(place)
    opening.began_at, opening.echo = found.began_at, found.echo
    return opening


async def _shown(app: OwnedApp, place: ResponsePlace) -> Response:
    telling = await response_follower.read(app, place)
    chat = (await app.chat(place.chat_id).snapshot()).chat
    queued = chat.state is State.RUNNING and chat.worker is None
    return as_json(response_of(telling, chat.agent, queued=queued), headers={"X-Holdfast-Chat": place.chat_id})


@routes.post("/responses/{response_id}/cancel", scope="chat")
async def cancel_response(app: AppOf, response_id: str) -> Response:
    """Stops the turn. What was said so far is kept."""
    place = parse_response_id(response_id)
    chat = app.chat(place.chat_id)
    before = await chat.snapshot()
    telling = await response_follower.read(app, place)
    # A response that is not over belongs to the turn that the chat was in; what comes after it is not stopped.
    given_up = telling.pending and any(call.id in telling.pending for call in before.open_calls)
    if not telling.over or given_up:
        with suppress(RefusedError):
            await chat.stop(turn=before.chat.turn)
    await response_follower.within(app, place, CANCEL_S)
    return await _shown(app, place)


@routes.delete("/responses/{response_id}", scope="chat")
async def delete_response(app: AppOf, response_id: str) -> Response:
    """Deletes the chat, if this response is all there is in it."""
    place = parse_response_id(response_id)
    telling = await response_follower.read(app, place)
    chat = (await app.chat(place.chat_id).snapshot()).chat
    if place.start != 1 or chat.turn != 1 or not telling.over:
        raise RefusedError(
            "this response is part of a longer conversation, or still in progress; "
            f"delete the chat {place.chat_id} as a whole, once it rests",
            reason="state", state=chat.state, command="delete",
        )  # fmt: skip
    await app.chat(place.chat_id).delete()
    return as_json({"id": response_id, "object": "response", "deleted": True})


@routes.get("/responses/{response_id}/input_items", scope="read")
async def list_input_items(
    app: AppOf,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=ITEMS_MAX)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: Annotated[str | None, Query(max_length=512)] = None,
) -> Response:
    """Everything that came before the response, as far as it is in the chat."""
    place = parse_response_id(response_id)
    await response_follower.read(app, place)
    end = await _first_answer(app, place)
    return as_json(await item_page(app.store, place, end, limit=limit, order=order, after=after))


async def _first_answer(app: OwnedApp, place: ResponsePlace) -> int:
    """The position of the response's first answer, or the end of the history."""
    async for row in rows_on(app.store, place.chat_id):
        if row.seq > place.start and entry_of(row).attempt is not None:
            return row.pos
    return (await app.chat(place.chat_id).snapshot()).chat.length
