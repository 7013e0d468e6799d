"""The HTTP cases of the Open Responses compliance suite, against a live server.

The records here say what the published schema (version 2026-04-24) asks of a response and of its events, as far as
these cases reach: which fields there must be, of which types, and which may be null. They are written from its text,
and they read what came over the wire, without an SDK that would forgive what is missing.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tests.server.openai_client import LiveServer, live_server

Number = int | float
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Choice = Literal["none", "auto", "required"]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


class Strict(BaseModel):
    """A field without a default must be there; more than is asked for is allowed."""

    model_config = ConfigDict(strict=True)


# --- items --------------------------------------------------------------------------------------------


class OutputText(Strict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any] = []


class Refusal(Strict):
    type: Literal["refusal"]
    refusal: str


Part = Annotated[OutputText | Refusal, Field(discriminator="type")]


class MessageItem(Strict):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Part]


class FunctionCallItem(Strict):
    type: Literal["function_call"]
    id: str
    call_id: str = Field(min_length=1, max_length=64)
    name: str
    arguments: str
    status: ItemStatus


class CompactionItem(Strict):
    type: Literal["compaction"]
    id: str
    encrypted_content: str


ItemField = Annotated[MessageItem | FunctionCallItem | CompactionItem, Field(discriminator="type")]


# --- the response -------------------------------------------------------------------------------------


class FunctionTool(Strict):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class FunctionChoice(Strict):
    type: Literal["function"]
    name: str | None = None


class AllowedChoice(Strict):
    type: Literal["allowed_tools"]
    tools: list[FunctionChoice]
    mode: Choice


class PlainFormat(Strict):
    type: Literal["text", "json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    name: str
    description: str | None
    strict: bool


class TextField(Strict):
    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")]


class ReasoningField(Strict):
    effort: Literal["none", "low", "medium", "high", "xhigh"] | None
    summary: Literal["concise", "detailed", "auto"] | None


class ErrorField(Strict):
    code: str
    message: str


class IncompleteDetails(Strict):
    reason: str


class CachedTokens(Strict):
    cached_tokens: int


class ReasoningTokens(Strict):
    reasoning_tokens: int


class UsageField(Strict):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class ResponseResource(Strict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[ItemField]
    error: ErrorField | None
    tools: list[FunctionTool]
    tool_choice: Choice | FunctionChoice | AllowedChoice
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: TextField
    top_p: Number
    presence_penalty: Number
    frequency_penalty: Number
    top_logprobs: int
    temperature: Number
    reasoning: ReasoningField | None
    user: str | None
    usage: UsageField | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class CompactResource(Strict):
    id: str
    object: Literal["response.compaction"]
    output: list[Any]
    created_at: int
    usage: UsageField


# --- events -------------------------------------------------------------------------------------------


class Numbered(Strict):
    sequence_number: int


class Snapshot(Numbered):
    type: Literal[
        "response.created", "response.queued", "response.in_progress",
        "response.completed", "response.failed", "response.incomplete",
    ]  # fmt: skip
    response: ResponseResource


class ItemChanged(Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: ItemField | None


class OfItem(Numbered):
    item_id: str
    output_index: int


class PartChanged(OfItem):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: Part


class TextChanged(OfItem):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str


class TextDone(OfItem):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str


class ArgumentsChanged(OfItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(OfItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


class ErrorPayload(Strict):
    type: str
    code: str | None
    message: str
    param: str | None


class ErrorTold(Numbered):
    type: Literal["error"]
    error: ErrorPayload


AnyEvent = Annotated[
    Snapshot | ItemChanged | PartChanged | TextChanged | TextDone | ArgumentsChanged | ArgumentsDone | ErrorTold,
    Field(discriminator="type"),
]
EVENT: TypeAdapter[Any] = TypeAdapter(AnyEvent)


# --- a client without an SDK --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home: Path = tmp_path_factory.mktemp("home")
    with live_server(f"sqlite:///{home}/holdfast.db", home) as server:
        yield server


def post(server: LiveServer, body: dict[str, Any], path: str = "responses") -> bytes:
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    data = json.dumps({"model": "plain", **body}).encode()
    request = urllib.request.Request(f"{server.url}/v1/{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def respond(server: LiveServer, **body: Any) -> ResponseResource:
    return ResponseResource.model_validate_json(post(server, {**body, "stream": False}))


def stream(server: LiveServer, **body: Any) -> list[Any]:
    """Every event fits, is named in its `event` line as in its data, and the numbers grow."""
    found = []
    for block in post(server, {**body, "stream": True}).decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":") and line)
        if not lines or lines["data"] == "[DONE]":
            continue
        event = EVENT.validate_json(lines["data"])
        assert lines["event"] == event.type
        found.append(event)
    numbers = [event.sequence_number for event in found]
    assert numbers == sorted(set(numbers))
    return found


def user(text: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


# --- the cases ----------------------------------------------------------------------------------------


def test_a_basic_text_response(server: LiveServer) -> None:
    found = respond(server, input=[user("Say hello.")])
    assert (found.status, [item.type for item in found.output]) == ("completed", ["message"])
    assert found.completed_at is not None
    assert found.usage is not None
    details = found.usage.input_tokens_details.cached_tokens, found.usage.output_tokens_details.reasoning_tokens
    assert (found.usage.total_tokens, details) == (37, (20, 3)), "as the provider counted"


def test_a_streamed_response(server: LiveServer) -> None:
    events = stream(server, input=[user("Count.")])
    assert [event.type for event in events if event.type != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    final = events[-1].response
    assert (final.status, final.output[0].content[0].text) == ("completed", "".join(deltas))


def test_a_system_message_in_the_input(server: LiveServer) -> None:
    said = [{"type": "message", "role": "system", "content": "You are a pirate."}, user("Say hello.")]
    found = respond(server, input=said)
    assert (found.status, len(found.output)) == ("completed", 1)


def test_a_tool_call(server: LiveServer) -> None:
    found = respond(server, input=[user("Does it rain?")], tools=[WEATHER])
    (call,) = found.output
    assert (found.status, call.type) == ("completed", "function_call")
    assert isinstance(call, FunctionCallItem)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"location": "San Francisco, CA"})
    assert [tool.name for tool in found.tools] == ["get_weather"]


def test_a_streamed_tool_call(server: LiveServer) -> None:
    events = stream(server, input=[user("Does it rain?")], tools=[WEATHER])
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    added, done = events[2].item, events[5].item
    assert (added.type, done.type, added.id) == ("function_call", "function_call", done.id)
    assert {events[3].item_id, events[4].item_id} == {added.id}


def test_an_image_in_the_input(server: LiveServer) -> None:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
    found = respond(server, input=[user([{"type": "input_text", "text": "What is this?"}, picture])])
    assert (found.status, len(found.output)) == ("completed", 1)


def test_a_conversation_of_several_turns(server: LiveServer) -> None:
    answer = {"type": "message", "role": "assistant", "content": "Hello Alice!"}
    found = respond(server, input=[user("My name is Alice."), answer, user("What is my name?")])
    assert (found.status, len(found.output)) == ("completed", 1)


# --- what the cases do not reach, and the schema asks for as well -------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"tool_choice": "none"},
        {"text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}}},
        {"reasoning": {"effort": "low"}},
        {"temperature": 0, "top_p": 1, "metadata": {"a": "b"}, "instructions": "Be brief.", "user": "ann"},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": "auto"},
        {"max_output_tokens": 16, "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k"},
    ],
    ids=lambda asked: "-".join(asked),
)
def test_what_was_asked_for_is_shown_as_the_schema_has_it(server: LiveServer, asked: dict[str, Any]) -> None:
    found = respond(server, input="hi", **asked)
    again = respond(server, input="hi", previous_response_id=found.id) if "tools" not in asked else None
    assert again is None or again.previous_response_id == found.id
    for name in asked.keys() - {"text", "tools", "reasoning", "service_tier"}:
        assert getattr(found, name) == asked[name]


@pytest.mark.parametrize(("model", "last"), [("broken", "response.failed"), ("wordy", "response.incomplete")])
def test_how_a_response_ends_otherwise_fits_as_well(server: LiveServer, model: str, last: str) -> None:
    assert stream(server, model=model, input="hi")[-1].type == last
    assert respond(server, model=model, input="hi").status == last.removeprefix("response.")


def test_a_compacted_conversation_fits(server: LiveServer) -> None:
    said = [{**user(f"{at} " + "words " * 200), "role": ("user", "assistant")[at % 2]} for at in range(40)]
    found = CompactResource.model_validate_json(post(server, {"input": said}, "responses/compact"))
    CompactionItem.model_validate(found.output[0])
    assert respond(server, input=[found.output[0], user("And now?")]).status == "completed"
