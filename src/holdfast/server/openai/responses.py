"""A response as its clients see it: an object, and the events that lead to it.

The object has every field that the Open Responses specification requires, null where it allows that. What a client
did not ask for is shown with the protocol's default; what the agent's model really used is the agent's affair.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.records import File, Message, Role, Text, ToolCall, ToolResult
from holdfast.core.updates import CallView
from holdfast.server.openai.errors import error_fields, failure_code
from holdfast.server.openai.ids import APPROVAL, CALL, ResponsePlace, outer_call_id
from holdfast.server.openai.response_state import (
    Begun,
    Called,
    Happening,
    ResponseEnded,
    Said,
    Spoke,
    Spoken,
    Telling,
    Withdrawn,
)

SERVER_LABEL = "holdfast"  # whose tools people are asked about
APPROVAL_REQUIRED = "approval_required"  # why a response is not complete whose turn waits for a person

_DEFAULTS: dict[str, Any] = {
    "previous_response_id": None,
    "conversation": None,
    "instructions": None,
    "metadata": {},
    "background": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "disabled",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}


def response_of(telling: Telling, model: str, *, queued: bool = False) -> dict[str, Any]:
    place, over = telling.place, telling.over
    failure = None
    if telling.error is not None:
        # AI SDK reads an answer with an error only where this has a `type`, as errors have elsewhere.
        failure = error_fields(telling.error.message, "server_error", failure_code(telling.error))
    return {
        **_DEFAULTS,
        **telling.echo,
        "id": place.response_id,
        "object": "response",
        "created_at": telling.began_at // 1000,
        "completed_at": telling.ended_at // 1000 if telling.ended_at and telling.status == "completed" else None,
        "status": "queued" if queued and not telling.outputs and not over else telling.status,
        "error": failure,
        "incomplete_details": {"reason": _why(telling)} if telling.status == "incomplete" else None,
        "model": model,
        "output": [item_of(place, output) for output in telling.outputs],
        "store": True,
        "usage": usage_of(telling) if over else None,
    }


def _why(telling: Telling) -> str:
    if telling.asked:
        return APPROVAL_REQUIRED
    return "content_filter" if telling.incomplete is None and telling.finish == "refused" else "max_output_tokens"


def usage_of(telling: Telling) -> dict[str, Any]:
    """As the agent's provider counted, for all of its responses together."""
    usage = telling.turn.usage
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": telling.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": telling.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def item_of(place: ResponsePlace, output: Spoke | CallView) -> dict[str, Any]:
    if isinstance(output, Spoke):
        return _message(output.item_id, [_text(output.text)], "incomplete" if output.cut_off else "completed")
    if output.kind == "approval":
        return _approval_request(place, output)
    return _call_item(place, output, output.arguments or "{}", "completed")


def _message(item_id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _outer_id(place: ResponsePlace, call: CallView) -> str:
    return outer_call_id(call.chat_id or place.chat_id, call.id)


def _call_item(place: ResponsePlace, call: CallView, arguments: str, status: str) -> dict[str, Any]:
    return _function_call(_outer_id(place, call), call.name, arguments, status)


def _function_call(call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": f"{CALL}{call_id}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def _approval_request(place: ResponsePlace, call: CallView) -> dict[str, Any]:
    """The protocol's words for a call that a person has to allow; elsewhere they are for calls of a tool server."""
    return {
        "id": APPROVAL + _outer_id(place, call),
        "type": "mcp_approval_request",
        "server_label": SERVER_LABEL,
        "name": call.name,
        "arguments": call.arguments or "{}",
    }


# --- events -------------------------------------------------------------------------------------------


class Events:
    """Encodes what happens; what a client has seen before, by its numbers, is left out."""

    def __init__(self, model: str, after: int = -1) -> None:
        self._model = model
        self._after = after
        self._last = after

    def begin(self, telling: Telling) -> bytes:
        """Told first of all, and the same whenever it is told."""
        shown = response_of(telling, self._model)
        opening = [("response.created", 0, {"response": shown}), ("response.in_progress", 1, {"response": shown})]
        return b"".join(self._event(*event) for event in opening)

    def __call__(self, telling: Telling, happenings: Sequence[Happening]) -> bytes:
        told = (event for happening in happenings for event in self._events(telling, happening))
        return b"".join(self._event(*event) for event in told)

    def _event(self, kind: str, number: int, fields: dict[str, Any]) -> bytes:
        if number <= self._after:
            return b""
        self._last = number
        return _encoded(kind, number, fields)

    def error(self, message: str, kind: str, code: str | None) -> bytes:
        """Nested as the specification has it, and flat as the first clients read it. It has the number of the event
        before it: a client that goes on from there misses nothing.
        """
        fields = error_fields(message, kind, code)
        flat = {name: value for name, value in fields.items() if name != "type"}
        return _encoded("error", max(self._last, 0), {**flat, "error": fields})

    def _events(self, telling: Telling, happening: Happening) -> Iterator[tuple[str, int, dict[str, Any]]]:
        number = happening.number
        if isinstance(happening, ResponseEnded):
            kind = "incomplete" if telling.status == "cancelled" else telling.status
            yield f"response.{kind}", number, {"response": response_of(telling, self._model)}
            return
        at = {"output_index": happening.index}
        if isinstance(happening, Called):
            yield from _call_events(telling.place, happening)
            return
        part = {**at, "item_id": happening.item_id, "content_index": 0}
        match happening:
            case Begun(item_id=item_id):
                yield "response.output_item.added", number, {**at, "item": _message(item_id, [], "in_progress")}
                yield "response.content_part.added", number + 1, {**part, "part": _text("")}
            case Said(text=text):
                yield "response.output_text.delta", number, {**part, "delta": text, "logprobs": []}
            case Withdrawn(item_id=item_id):
                yield "response.output_item.done", number, {**at, "item": _message(item_id, [], "incomplete")}
            case Spoken(item_id=item_id, text=text):
                whole = _message(item_id, [_text(text)], "incomplete" if happening.cut_off else "completed")
                yield "response.output_text.done", number, {**part, "text": text, "logprobs": []}
                yield "response.content_part.done", number + 1, {**part, "part": _text(text)}
                yield "response.output_item.done", number + 2, {**at, "item": whole}


def _encoded(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    data = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _call_events(place: ResponsePlace, called: Called) -> Iterator[tuple[str, int, dict[str, Any]]]:
    number, call, at = called.number, called.call, {"output_index": called.index}
    if call.kind == "approval":
        item = _approval_request(place, call)
        yield "response.output_item.added", number, {**at, "item": item}
        yield "response.output_item.done", number + 1, {**at, "item": item}
        return
    arguments = call.arguments or "{}"
    piece = {**at, "item_id": CALL + _outer_id(place, call)}
    begun = _call_item(place, call, "", "in_progress")
    yield "response.output_item.added", number, {**at, "item": begun}
    yield "response.function_call_arguments.delta", number + 1, {**piece, "delta": arguments}
    yield "response.function_call_arguments.done", number + 2, {**piece, "name": call.name, "arguments": arguments}
    yield "response.output_item.done", number + 3, {**at, "item": _call_item(place, call, arguments, "completed")}


# --- input items --------------------------------------------------------------------------------------


def input_items(place: ResponsePlace, message: Message) -> Iterator[dict[str, Any]]:
    """A message of the history as the items that stand for it."""
    content = [_input_part(message.role, part) for part in message.parts if isinstance(part, Text | File)]
    if content:
        yield {"id": message.id, "type": "message", "role": message.role, "status": "completed", "content": content}
    for part in message.parts:
        if isinstance(part, ToolCall):
            call_id = outer_call_id(place.chat_id, part.call_id)
            yield _function_call(call_id, part.name, part.arguments or "{}", "completed")
        elif isinstance(part, ToolResult):
            call_id = outer_call_id(place.chat_id, part.call_id)
            item = {"id": message.id, "type": "function_call_output", "call_id": call_id, "status": "completed"}
            shown = [{"type": "input_text", "text": part.content}]
            shown += [_input_part(message.role, file) for file in part.files]
            yield {**item, "output": shown if part.files else part.content}


def _input_part(role: Role, part: Text | File) -> dict[str, Any]:
    if isinstance(part, Text):
        return _text(part.text) if role is Role.ASSISTANT else {"type": "input_text", "text": part.text}
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": part.uri, "detail": "auto"}
    return {"type": "input_file", "filename": part.name, "file_url": part.uri}
