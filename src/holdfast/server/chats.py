"""The routes of chats: each one call of `app`, nothing decided here."""

import asyncio
import contextlib
import time
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends, Header, Path, Query, Request
from starlette.responses import Response

from holdfast.chat import Chat
from holdfast.core.codec import decode_entry
from holdfast.core.journal import MessageAdded
from holdfast.core.records import Role, State
from holdfast.errors import InvalidInput, NotFound, RecordError, TurnTimeout
from holdfast.server import problems, views
from holdfast.server.guarded import Routes
from holdfast.server.html_feeds import html_of
from holdfast.server.owned_app import AppOf, KeyOf, OwnedApp
from holdfast.server.streams import EventStream
from holdfast.store.open_calls import OpenCallKind
from holdfast.store.records import PAGE_BYTES, Answer, ChatFilter, HistoryRow
from holdfast.tools.files.pictures import media_type

PROBLEM = {"content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {**PROBLEM, "description": "The request was wrong, or not possible in this state"},
    "5XX": {**PROBLEM, "description": "The server, or its store, cannot answer now"},
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/StreamEvent"}}},
        "description": "Server-sent events, each as the schema says",
    },
    204: {"description": "`end` was told, and nothing happened since: do not come back by yourself"},
}

BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "description": "The bytes; of an image that a browser shows, under its type",
    },
}

RENDER_S = 2.0  # for the messages of a page; one of them is rendered however long that takes
TURN_WAIT_S_MAX = 60.0  # proxies give up on a silent request soon after

routes = Routes(prefix="/api", tags=["chats"], responses=PROBLEMS)

ChatId = Annotated[str, Path(max_length=512)]
MessageId = Annotated[str, Path(max_length=512)]
CallId = Annotated[str, Path(max_length=512)]


async def chat_of(chat_id: ChatId, app: AppOf) -> Chat:
    return app.chat(chat_id)


ChatOf = Annotated[Chat, Depends(chat_of)]


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def _answered(answer: Answer) -> Response:
    return as_json(views.answer_of(answer))


@routes.get("/chats", scope="read", response_model=views.ChatPage)
async def list_chats(
    app: AppOf,
    owner: Annotated[str | None, Query(max_length=200)] = None,
    agent: Annotated[str | None, Query(max_length=200)] = None,
    state: State | None = None,
    archived: bool | None = None,
    search: Annotated[str | None, Query(max_length=200, description="in titles and first messages")] = None,
    metadata: Annotated[list[str] | None, Query(max_length=20, description="`key:value`, repeatable")] = None,
    before: Annotated[str | None, Query(max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Newest first, in pages."""
    wanted = ChatFilter(
        owner=owner, agent=agent, state=state, archived=archived, search=search, metadata=_pairs(metadata or [])
    )
    lines = await app.chats(wanted, before=before, limit=limit)
    last = lines[-1].id if len(lines) == limit else None
    return as_json({"chats": [views.line_of(line) for line in lines], "next": last})


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name:
            raise InvalidInput("metadata", f"{text[:80]!r} is not `key:value`")
        pairs[name] = value
    return pairs


@routes.post("/chats", scope="chat", status_code=201, response_model=views.ChatShown)
async def create_chat(app: AppOf, given: views.NewChatGiven, key: KeyOf, request: Request) -> Response:
    """A new chat; with a message it starts to run."""
    chat = await app.create(
        given.agent,
        views.message_of(given.message) if given.message is not None else None,
        owner=given.owner,
        metadata=given.metadata,
        active_tools=given.active_tools,
        client_tools=views.client_tools_of(given.client_tools),
        title=given.title,
        key=key,
    )
    place = {"Location": f"{request.scope.get('root_path', '')}/api/chats/{chat.id}"}
    return as_json(views.chat_of(await chat.snapshot()), 201, place)


@routes.get("/chats/{chat_id}", scope="read", response_model=views.ChatShown)
async def read_chat(chat: ChatOf) -> Response:
    return as_json(views.chat_of(await chat.snapshot()))


@routes.patch("/chats/{chat_id}", scope="chat", response_model=views.ChatShown)
async def change_chat(chat: ChatOf, given: views.ChatPatch) -> Response:
    """Rename it, archive it, or bring it back."""
    if given.title is not None:
        await chat.rename(given.title)
    if given.archived is not None:
        await chat.archive(given.archived)
    return as_json(views.chat_of(await chat.snapshot()))


@routes.delete("/chats/{chat_id}", scope="chat", response_model=views.Deleted)
async def delete_chat(
    chat: ChatOf, children: Annotated[bool, Query(description="and the chats that it spawned")] = False
) -> Response:
    """Really gone. Refused unless it is at rest."""
    return as_json({"deleted": await chat.delete(children=children)})


@routes.post("/chats/{chat_id}/fork", scope="chat", status_code=201, response_model=views.ChatShown)
async def fork_chat(chat: ChatOf, key: KeyOf, given: views.ForkGiven | None = None) -> Response:
    """A copy of its history under a new id, at rest."""
    given = given or views.ForkGiven()
    forked = await chat.fork(upto=given.upto, owner=given.owner, key=key)
    return as_json(views.chat_of(await forked.snapshot()), 201)


# --- messages -----------------------------------------------------------------------------------------


@routes.get("/chats/{chat_id}/messages", scope="read", response_model=views.MessagePage)
async def list_messages(
    chat: ChatOf,
    app: AppOf,
    start: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    render: Annotated[
        Literal["html"] | None, Query(description="what a model said as sanitised HTML, too: `html` of its messages")
    ] = None,
) -> Response:
    """The history from a position on, in order. Large messages make a page shorter than `limit`, and so do those that
    take long to render. With them come the summaries that end on this page.
    """
    await chat.snapshot()  # raises NotFound: an empty history is not a missing chat
    rows = await app.store.read_history(chat.id, start=start, limit=limit, bytes_max=PAGE_BYTES)
    full = len(rows) == limit or sum(len(row.body) for row in rows) >= PAGE_BYTES
    found: list[dict[str, Any]] = []
    until = time.monotonic() + RENDER_S
    for row in rows:
        if found and render is not None and time.monotonic() > until:
            full = True
            break
        found.append(await _history_message(row, render=render is not None))
    following = found[-1]["pos"] + 1 if full else None
    end = following if following is not None else start + limit
    summaries = await app.store.read_compactions(chat.id, start=start, end=end)
    return as_json({"messages": found, "next": following, "compactions": summaries})


async def _history_message(row: HistoryRow, *, render: bool) -> dict[str, Any]:
    entry = decode_entry(row.body)
    assert isinstance(entry, MessageAdded)
    shown = {"pos": row.pos, **msgspec.json.decode(entry.raw)}
    if render and shown["role"] == Role.ASSISTANT:
        with contextlib.suppress(RecordError):  # newer code wrote it
            shown["html"] = await html_of(entry.message.text)
    return shown


@routes.post("/chats/{chat_id}/messages", scope="chat", response_model=views.AnswerShown)
async def send_message(chat: ChatOf, given: views.MessageGiven, key: KeyOf) -> Response:
    """`queue`: after what is going on. `steer`: into the running turn. `interrupt`: now."""
    content = views.message_of(given.message)
    client_tools = views.client_tools_of(given.client_tools)
    sent = await chat.send(content, given.mode, active_tools=given.active_tools, client_tools=client_tools, key=key)
    return _answered(sent.answer)


@routes.post("/chats/{chat_id}/messages/{message_id}/edit", scope="chat", response_model=views.AnswerShown)
async def edit_message(chat: ChatOf, message_id: MessageId, given: views.EditGiven, key: KeyOf) -> Response:
    """Replace a user message and everything after it. `dropped` holds the queued messages that this removed."""
    sent = await chat.edit(message_id, views.message_of(given.message), key=key)
    return _answered(sent.answer)


@routes.get("/chats/{chat_id}/files/{digest}", scope="read", responses=BYTES)
async def read_file(chat: ChatOf, app: AppOf, digest: Annotated[str, Path(max_length=64)]) -> Response:
    """The bytes of a file that a part of a message names: its `uri` is `holdfast:files/` and the digest."""
    data = await app.store.read_file(chat.id, digest)
    kind = media_type(data[:16])
    shown = "inline" if kind is not None and kind.startswith("image/") else "attachment"
    return Response(data, 200, {"content-disposition": shown}, media_type=kind or "application/octet-stream")


@routes.get("/chats/{chat_id}/queue", scope="read", response_model=views.QueuePage)
async def list_queue(chat: ChatOf, after: Annotated[str | None, Query(max_length=512)] = None) -> Response:
    """What waits for its turn, in order. Large messages make a page short."""
    return as_json(views.queue_of(await chat.snapshot(), after))


@routes.post("/chats/{chat_id}/queue/{message_id}/promote", scope="chat", response_model=views.AnswerShown)
async def promote_message(chat: ChatOf, message_id: MessageId, key: KeyOf) -> Response:
    """Take it next: what is running now is superseded."""
    return _answered(await chat.promote(message_id, key=key))


@routes.delete("/chats/{chat_id}/queue/{message_id}", scope="chat", response_model=views.AnswerShown)
async def withdraw_message(chat: ChatOf, message_id: MessageId, key: KeyOf) -> Response:
    """Take it back: `dropped` holds it. With a key, who asks again learns that it was taken back, not delivered."""
    return _answered(await chat.withdraw(message_id, key=key))


# --- the turn -----------------------------------------------------------------------------------------


@routes.get("/chats/{chat_id}/turn", scope="read", response_model=views.TurnShown)
async def read_turn(
    chat: ChatOf,
    app: AppOf,
    number: Annotated[
        int | None,
        Query(ge=1, lt=1 << 53, description="which one; without it the one that the chat is in, or was"),
    ] = None,
    wait_s: Annotated[
        float, Query(ge=0, le=TURN_WAIT_S_MAX, description="how long to wait until it is over, or waits for people")
    ] = 0.0,
) -> Response:
    """How a turn stands, over or not: `state` says which. `text` is the answer, and null unless the turn is done."""
    waiting = asyncio.ensure_future(chat.turn(number, timeout_s=wait_s))
    try:
        await app.streams.wait_for((waiting,), app.grant)
        # A server that goes answers how it stands now: its client comes back to whichever is there then.
        turn = await (waiting if waiting.done() else chat.turn(number, timeout_s=0.0))
    except TurnTimeout as error:
        turn = error.turn
    finally:
        waiting.cancel()
    return as_json(views.turn_of(turn))


@routes.post("/chats/{chat_id}/stop", scope="chat", response_model=views.AnswerShown)
async def stop_chat(chat: ChatOf, key: KeyOf, given: views.StopGiven | None = None) -> Response:
    """End the turn: what was said so far is kept, open calls are answered."""
    return _answered(await chat.stop(clear_queue=given is not None and given.clear_queue, key=key))


@routes.post("/chats/{chat_id}/retry", scope="chat", response_model=views.AnswerShown)
async def retry_chat(chat: ChatOf, key: KeyOf) -> Response:
    """Try a failed turn again."""
    return _answered(await chat.retry(key=key))


@routes.post("/chats/{chat_id}/go-on", scope="chat", response_model=views.AnswerShown)
async def go_on(chat: ChatOf, key: KeyOf) -> Response:
    """Go on with a turn that a budget ended, without a new message."""
    return _answered(await chat.go_on(key=key))


@routes.post("/chats/{chat_id}/compact", scope="chat", response_model=views.AnswerShown)
async def compact_chat(chat: ChatOf, key: KeyOf) -> Response:
    """Have the older part of the history summarised for the model; nothing of it is deleted."""
    return _answered(await chat.compact(key=key))


@routes.get("/calls", scope="read", response_model=views.OpenCallPage)
async def list_calls_of_all_chats(
    app: AppOf,
    kind: Annotated[OpenCallKind | None, Query(description="only these")] = None,
    owner: Annotated[str | None, Query(max_length=512, description="only in this one's chats")] = None,
    before: Annotated[str | None, Query(max_length=1024, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """What people and clients have to answer, in every chat that you see: the newest chat first. Long arguments are
    an excerpt here.
    """
    lines = await app.open_calls(kind=kind, owner=owner, before=before, limit=limit)
    rest = lines[-1].place if len(lines) == limit else None
    return as_json({"calls": [views.listed_call_of(line) for line in lines], "next": rest})


@routes.get("/chats/{chat_id}/calls", scope="read", response_model=views.OpenCallList)
async def list_open_calls(chat: ChatOf) -> Response:
    """What people and clients have to answer, in this chat and in those of its sub-agents."""
    await chat.snapshot()  # raises NotFound
    return as_json({"calls": [views.open_call_of(call.record) for call in await chat.open_calls()]})


@routes.get("/chats/{chat_id}/children", scope="read", response_model=views.SubAgentList)
async def list_children(
    chat: ChatOf, deep: Annotated[bool, Query(description="and theirs, at any depth")] = False
) -> Response:
    """The chats that calls of this one spawned: those at work first, then the newest, 200 at most."""
    await chat.snapshot()  # raises NotFound
    return as_json({"children": [views.sub_agent_of(child) for child in await chat.children(deep=deep)]})


@routes.get("/chats/{chat_id}/calls/{call_id}", scope="read", response_model=views.OpenCallShown)
async def read_open_call(chat: ChatOf, call_id: CallId) -> Response:
    """One that a person or a client has to answer in this chat, whole however large it is."""
    return as_json(views.open_call_of((await chat.open_call(call_id)).record))


@routes.post("/chats/{chat_id}/calls/{call_id}/approve", scope="approve", response_model=views.AnswerShown)
async def approve_call(
    chat: ChatOf, call_id: CallId, app: AppOf, key: KeyOf, given: views.ApproveGiven | None = None
) -> Response:
    """Give the `digest` of what was shown; long arguments, which events tell by an excerpt, need it. With `always`
    the rules that the call offers are kept with the approval, or neither happens.
    """
    given = given or views.ApproveGiven()
    if given.digest is None:
        await _check_that_nothing_is_hidden(app, chat, call_id)
    answer = await chat.approve(call_id, digest=given.digest, always=given.always, for_s=given.for_s, key=key)
    return _answered(answer)


async def _check_that_nothing_is_hidden(app: OwnedApp, chat: Chat, call_id: str) -> None:
    """Events tell of long arguments by an excerpt: who has read no more than that has not seen what would run."""
    try:
        asked = await chat.open_call(call_id)
    except NotFound:
        return  # refused by what is wrong with it, or answered by its key
    shown_max = app.store.options.limits.excerpt_chars_max
    if asked.kind == "approval" and len(asked.arguments) > shown_max:
        raise InvalidInput(
            "digest",
            f"is needed: the arguments have {len(asked.arguments):,} characters, of which events show {shown_max}. "
            f"GET …/calls/{call_id} has all of them, and the digest",
        )


@routes.post("/chats/{chat_id}/calls/{call_id}/deny", scope="approve", response_model=views.AnswerShown)
async def deny_call(chat: ChatOf, call_id: CallId, key: KeyOf, given: views.DenyGiven | None = None) -> Response:
    """`words` reach the model."""
    return _answered(await chat.deny(call_id, given.words if given is not None else "", key=key))


@routes.post("/chats/{chat_id}/calls/{call_id}/result", scope="chat", response_model=views.AnswerShown)
async def submit_result(chat: ChatOf, call_id: CallId, given: views.ResultGiven, key: KeyOf) -> Response:
    """The result of a client's tool, or the answer to a question."""
    return _answered(await chat.submit(call_id, given.content, error=given.error, key=key))


@routes.get("/chats/{chat_id}/events", scope="read", response_class=Response, responses=STREAM)
async def read_events(
    chat: ChatOf,
    app: AppOf,
    after: Annotated[
        str | None, Query(max_length=200, description="a cursor: the `id` of the last event seen")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
    follow: Annotated[bool, Query(description="stay when the chat rests")] = False,
    whole_turn: Annotated[
        bool, Query(description="begin with the turn that the cursor is in, or the last one; `place` is where it was")
    ] = False,
    live: Annotated[bool, Query(description="say `live` once all was told that there was")] = False,
    render: Annotated[
        Literal["html"] | None, Query(description="what the model says as sanitised HTML, too: `html` events")
    ] = None,
) -> Response:
    """Everything that happens, from a cursor on; ends when the chat rests and all was told."""
    after = last_event_id or after
    return await EventStream(
        app, chat.id, after, follow=follow, whole_turn=whole_turn, live=live, render=render is not None
    ).begin()
