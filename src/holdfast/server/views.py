"""What the HTTP API takes and gives, as the OpenAPI description shows it. Answers are built from records, once."""

from typing import Annotated, Any, Literal

from msgspec import Raw, json
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from holdfast.agent import Agent
from holdfast.core.records import (
    Always,
    Call,
    CallState,
    Cause,
    ClientTool,
    External,
    Failure,
    File,
    Message,
    Queued,
    Replay,
    Role,
    SendMode,
    Snapshot,
    State,
    Text,
)
from holdfast.core.updates import TurnState
from holdfast.ids import new_id
from holdfast.models.choice import label_of
from holdfast.principals import Scope
from holdfast.server.bodies import FirstWrong, check_fields
from holdfast.slash_commands import SlashCommand, SlashSourceName
from holdfast.standing import Doing, Standing
from holdfast.store.open_calls import OpenCallLine, OpenCallRecord
from holdfast.store.records import PAGE_BYTES, Answer, ChatLine, Placement
from holdfast.store.sub_agents import SubAgent
from holdfast.turn import Turn

Id = Annotated[str, Field(min_length=1, max_length=200)]
RECORD = "x-record"  # marks a record of the core in a schema: server/described.py puts the record's own there
MessageRecord = Annotated[dict[str, Any], WithJsonSchema({RECORD: "Message"})]
HistoryRecord = Annotated[dict[str, Any], WithJsonSchema({RECORD: "HistoryMessage"})]
FOR_S_MAX = 10 * 365 * 24 * 3600
Ms = Annotated[int, Field(description="milliseconds since 1970")]


class Given(BaseModel):
    """A request's body: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _few = model_validator(mode="before")(check_fields)


class TextGiven(Given):
    kind: Literal["text"]
    text: str


class FileGiven(Given):
    """An https URL, a data: URI with the bytes, or the `uri` of a file that this chat holds already."""

    kind: Literal["file"]
    media_type: Annotated[str, Field(max_length=200)]
    uri: str
    name: Annotated[str | None, Field(max_length=500)] = None


PartGiven = Annotated[TextGiven | FileGiven, Field(discriminator="kind")]
Content = Annotated[
    str | Annotated[list[PartGiven], FirstWrong()],
    Field(description="what the user says: a text, or a list of texts and files"),
]


class ClientToolGiven(Given):
    """A tool that the client runs: it reads the call in the events and posts the result."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: Annotated[str, Field(max_length=20_000)] = ""
    parameters: dict[str, Any] = Field({"type": "object", "properties": {}}, description="a JSON schema")
    expires_ms: Annotated[int | None, Field(ge=1, lt=1 << 53)] = 300_000
    needs_approval: bool = False


ClientTools = Annotated[list[ClientToolGiven], Field(max_length=128)]


class NewChatGiven(Given):
    agent: Id
    message: Content | None = Field(None, description="with a message the chat starts to run")
    owner: Annotated[str, Field(max_length=200)] = ""
    metadata: dict[str, Any] = {}
    active_tools: Annotated[list[str] | None, Field(max_length=1000)] = None
    client_tools: ClientTools = []
    title: Annotated[str | None, Field(max_length=200)] = None


class MessageGiven(Given):
    message: Content
    mode: SendMode = "queue"
    active_tools: Annotated[list[str] | None, Field(max_length=1000)] = None
    client_tools: ClientTools = Field([], description="for the turn that this message begins")


class EditGiven(Given):
    message: Content


class ChatPatch(Given):
    title: Annotated[str | None, Field(max_length=200)] = None
    archived: bool | None = None


class StopGiven(Given):
    clear_queue: bool = False


class ForkGiven(Given):
    upto: Annotated[int | None, Field(ge=0, lt=1 << 53, description="history position; None: all of it")] = None
    owner: Annotated[str | None, Field(max_length=200)] = None


class ApproveGiven(Given):
    digest: Annotated[
        str | None,
        Field(
            max_length=100, description="of the call as it was shown: refused if it would run with other arguments"
        ),
    ] = None
    always: Annotated[
        Always | None,
        Field(
            description="also keep the rules of `offer`: for this chat, for this agent's or all chats of its owner"
        ),
    ] = None
    for_s: Annotated[
        float | None, Field(gt=0, le=FOR_S_MAX, description="how long they are kept; null: until they are revoked")
    ] = None


class DenyGiven(Given):
    words: Annotated[str, Field(max_length=10_000, description="for the model to read")] = ""


class ResultGiven(Given):
    content: str
    error: bool = False


class Shown(BaseModel):
    """An answer's body."""


class Problem(Shown):
    """RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str


class CallShown(Shown):
    id: str
    name: str
    state: CallState
    replay: Replay
    external: External | None
    question: str | None
    child_id: str | None
    started_at: int | None
    expires_at: int | None


class OpenCallShown(Shown):
    """What a person or a client has to answer, in the chat that it names."""

    chat_id: str
    agent: str
    call_id: str
    name: str
    kind: Literal["approval", "question", "client"]
    question: str | None
    arguments: str = Field(description="those that would run, without secrets")
    whole: bool = Field(description="false: `arguments` is an excerpt, and the call's own route has the whole")
    digest: str = Field(description="names the call with these arguments; who approves it gives it back")
    expires_at: int | None
    offer: list[str] = Field(description="the rules that `always` would keep; empty: it is not offered")


class OpenCallListed(OpenCallShown):
    """One of those in all chats; its arguments may be an excerpt."""

    owner: str = Field(description="of the chat")
    title: str | None = Field(description="of the chat")
    opening: str | None = Field(description="the first words of the chat")
    parent_id: str | None = Field(description="the chat that this one works for; null: a person's own")
    asked_at: int | None = Field(description="when the model asked for the call")


class OpenCallPage(Shown):
    calls: list[OpenCallListed]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


class OpenCallList(Shown):
    calls: list[OpenCallShown]


class SubAgentShown(Shown):
    """A chat that a call of another one spawned."""

    chat_id: str
    parent_id: str
    depth: int = Field(description="1: spawned by the chat at the top")
    agent: str
    title: str | None
    state: State
    cause: Cause | None = Field(description="why its turn stops, or was cut short")
    error: str | None
    turn: int
    queued: int
    task: str = Field(description="the beginning of what its turn began with")
    answer: str = Field(description="the beginning of its last answer; empty: it gave none")
    tokens: int = Field(description="of its turn: the one that goes on, or the last")
    cost: float
    created_at: Ms
    updated_at: Ms


class SubAgentList(Shown):
    children: list[SubAgentShown]


class FailureShown(Shown):
    code: str
    message: str
    cause: Cause | None
    chain: list[str]
    advice: str = Field("", description="what to change, where that is known: a variable, a setting")


class TurnUsageShown(Shown):
    responses: int
    input_tokens: int
    output_tokens: int
    total_tokens: int = Field(description="what counts against its budget: lost attempts, summaries, the title too")


class TurnShown(Shown):
    """How a turn stands."""

    chat_id: str
    number: int | None
    state: TurnState
    cause: Cause | None = Field(description="why it was cut short")
    detail: str | None
    error: FailureShown | None
    finish: str | None = Field(description="why the model broke its last response off: length, refused, other")
    text: str | None = Field(description="the answer; null unless the turn is done")
    partial_text: str = Field(description="what was said last, however the turn stands")
    open: list[OpenCallShown] = Field(description="what people and clients have to answer first")
    usage: TurnUsageShown
    cost: float | None


class QueuedShown(Shown):
    id: str
    mode: SendMode
    message: MessageRecord


class ChatSummary(Shown):
    id: str
    agent: str
    owner: str
    title: str | None
    state: State
    archived: bool
    queued: int
    metadata: dict[str, Any]
    created_at: Ms
    updated_at: Ms
    worker: str | None = Field(description="who drives it now")
    wake_at: int | None = Field(description="when somebody looks at it next")


class ChatListed(ChatSummary):
    opening: str | None = Field(
        description="the first words of its first message; null if that is no text, or a huge one"
    )


class ChatShown(ChatSummary):
    parent_id: str | None
    forked_from: str | None
    active_tools: list[str] | None
    turn: int
    step: int
    turn_tokens: int
    turn_cost: float
    messages: int = Field(description="how many there are in its history")
    cause: Cause | None
    error: FailureShown | None
    calls: list[CallShown] = Field(description="the calls of the last response that are not answered yet")
    queue: list[QueuedShown] = Field(description="its head, as far as a page goes: GET …/queue has the rest")


class TroubleShown(Shown):
    """Something that went wrong in the chat of late."""

    at: Ms
    what: str = Field(description="the tool, hook or model")
    error: str
    call_id: str | None


class StandingShown(Shown):
    """Why a chat stands where it stands."""

    chat_id: str
    agent: str
    state: State
    turn: int
    step: int
    fence: int
    doing: Doing = Field(description="a stable code of what it does or waits for")
    words: str = Field(description="the same for people")
    since: int | None
    deadline_at: int | None
    deadline: str | None = Field(description="which deadline that is")
    next: str = Field(description="what happens then")
    worker: str | None
    worker_heard_at: int | None
    queued: int
    error: FailureShown | None
    troubles: list[TroubleShown]
    child: "StandingShown | None" = Field(description="of the sub-agent that it waits for")


class ChatPage(Shown):
    chats: list[ChatListed]
    next: str | None = Field(description="give it as `before` for the next page; null: there is none")


class CompactionShown(Shown):
    """What a model is given in place of the messages before a position. The history stays whole."""

    upto: int = Field(description="the position of the first message that it does not stand for")
    summary: str
    created_at: int


class MessagePage(Shown):
    messages: list[HistoryRecord]
    next: int | None = Field(description="give it as `start` for the next page; null: that was all")
    compactions: list[CompactionShown] = Field(
        description="that end on this page, behind its first position, in order; older ones are forgotten in time"
    )


class QueuePage(Shown):
    queue: list[QueuedShown]
    next: str | None = Field(description="give it as `after` for the next page; null: that was all")


class AnswerShown(Shown):
    """What a request did. The same request with the same Idempotency-Key gets the same answer."""

    chat_id: str
    seq: int = Field(description="the last journal entry when it was done")
    state: State
    dropped: list[MessageRecord] = Field(description="queued messages that will not be delivered")
    turn: int = Field(description="that the chat is in, or was in last")
    message_id: str | None = Field(description="of the message that came with the request")
    placed: Placement | None = Field(
        description="what became of that message: it is queued, it began the turn, or joined the one that was open"
    )


class Deleted(Shown):
    deleted: list[str]


class OwnerShown(Shown):
    owner: str
    chats: int


class OwnerPage(Shown):
    owners: list[OwnerShown]
    next: str | None = Field(description="give it as `after` for the next page; null: there is none")


class OwnerDeletedShown(Shown):
    owner: str
    chats: int = Field(description="that were deleted by this request")
    stopped: int = Field(description="of these")
    tokens: int = Field(description="that were revoked")
    done: bool = Field(description="false: there is more; send the request again")


class AgentShown(Shown):
    name: str
    model: str
    fallbacks: list[str]
    instructions: str
    tools: list[str]
    servers: list[str] = Field(description="tool servers; what they offer comes beside `tools`")


class AgentList(Shown):
    agents: list[AgentShown]


class SlashCommandShown(Shown):
    name: str
    description: str
    argument_hint: str = Field(description="what comes after the name, for people; empty: nothing is known of it")
    source: SlashSourceName = Field(description="a skill of the agent, or a prompt of one of its tool servers")


class SlashCommandList(Shown):
    slash_commands: list[SlashCommandShown]


class WorkerShown(Shown):
    id: str
    pid: int
    started_at: Ms
    lease_ttl_ms: int = Field(description="how long it may be silent before another worker ends its lease")
    lease_renewed_at: int = Field(description="when the worker was heard of last")
    lease_ended: str | None = Field(description="how its lease ended: retired, died or silent; null while it lasts")
    info: dict[str, Any]


class WorkerList(Shown):
    workers: list[WorkerShown]


class PrincipalShown(Shown):
    """Whom a request comes from, and what that one may do."""

    name: str
    owner: str | None = Field(description="whose chats it sees and makes; null: those of every owner")
    scopes: list[Scope]
    operates: bool = Field(description="whether it is told what is told of all owners")
    chat: str | None = Field(description="it sees this chat and those of its sub-agents alone; null: no such limit")
    expires_at: int | None
    version: str = Field(description="of the server")


class Health(Shown):
    model_config = ConfigDict(extra="allow")

    status: Literal["ok", "degraded", "draining", "unhealthy"]
    reasons: list[str]
    version: str


class Diagnostics(Health):
    diagnostics: dict[str, Any]


# --- from records -------------------------------------------------------------------------------------


def line_of(line: ChatLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in line.__struct_fields__}


def chat_of(snapshot: Snapshot) -> dict[str, Any]:
    chat = snapshot.chat
    return {
        **{name: getattr(chat, name) for name in _SAME},
        "queued": len(snapshot.queue),
        "messages": chat.length,
        "error": _failure_of(chat.error),
        "calls": [call_of(call) for call in snapshot.open_calls],
        "queue": queue_of(snapshot)["queue"],
    }


_SAME = (
    *("id", "agent", "owner", "title", "state", "archived", "metadata", "created_at", "updated_at", "worker"),
    *("wake_at", "parent_id", "forked_from", "active_tools", "turn", "step", "turn_tokens", "turn_cost", "cause"),
)


def _failure_of(error: Failure | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {name: getattr(error, name) for name in FailureShown.model_fields}


_TURN_SAME = ("number", "state", "cause", "detail", "finish", "partial_text", "cost")


def turn_of(turn: Turn[Any]) -> dict[str, Any]:
    return {
        **{name: getattr(turn, name) for name in _TURN_SAME},
        "chat_id": turn.chat.id,
        "text": turn.text if turn.state == "done" else None,
        "error": _failure_of(turn.error),
        "open": [open_call_of(call.record) for call in turn.open],
        "usage": {name: getattr(turn.usage, name) for name in TurnUsageShown.model_fields},
    }


def standing_of(standing: Standing) -> dict[str, Any]:
    return {
        **{name: getattr(standing, name) for name in StandingShown.model_fields},
        "error": _failure_of(standing.error),
        "child": None if standing.child is None else standing_of(standing.child),
    }


def call_of(call: Call) -> dict[str, Any]:
    return {name: getattr(call, name) for name in CallShown.model_fields}


def queue_of(snapshot: Snapshot, after: str | None = None) -> dict[str, Any]:
    """A page, bounded in bytes: one message at least. A message that is not there any more stood before the rest."""
    ids = [queued.id for queued in snapshot.queue]
    rest = snapshot.queue[ids.index(after) + 1 :] if after in ids else snapshot.queue
    page: list[Queued] = []
    size = 0
    for queued in rest:
        size += len(bytes(queued.body))
        if page and size > PAGE_BYTES:
            break
        page.append(queued)
    shown = [{"id": queued.id, "mode": queued.mode, "message": queued.body} for queued in page]
    return {"queue": shown, "next": page[-1].id if len(page) < len(rest) else None}


def answer_of(answer: Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in AnswerShown.model_fields}


def agent_of(agent: Agent) -> dict[str, Any]:
    return {
        "name": agent.name,
        "model": label_of(agent.model),
        "fallbacks": [label_of(model) for model in agent.fallbacks],
        "instructions": agent.instructions,
        "tools": sorted(agent.tools),
        "servers": [server.name for server in agent.servers],
    }


def slash_command_of(command: SlashCommand) -> dict[str, Any]:
    return {name: getattr(command, name) for name in SlashCommandShown.model_fields}


def open_call_of(call: OpenCallRecord) -> dict[str, Any]:
    return {name: getattr(call, name) for name in OpenCallShown.model_fields}


def listed_call_of(call: OpenCallLine) -> dict[str, Any]:
    return {name: getattr(call, name) for name in OpenCallListed.model_fields}


def sub_agent_of(child: SubAgent) -> dict[str, Any]:
    return {name: getattr(child, name) for name in SubAgentShown.model_fields}


def client_tools_of(given: list[ClientToolGiven]) -> list[ClientTool]:
    return [
        ClientTool(
            name=tool.name,
            description=tool.description,
            schema=Raw(json.encode(tool.parameters)),
            expires_ms=tool.expires_ms,
            needs_approval=tool.needs_approval,
        )
        for tool in given
    ]


def message_of(content: str | list[TextGiven | FileGiven]) -> str | Message:
    """A text stays one: then the same words under the same key are the same request."""
    if isinstance(content, str):
        return content
    parts = tuple(
        Text(text=part.text)
        if isinstance(part, TextGiven)
        else File(media_type=part.media_type, uri=part.uri, name=part.name)
        for part in content
    )
    return Message(id=new_id("msg"), role=Role.USER, parts=parts)
