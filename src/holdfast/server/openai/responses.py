"""A response as its clients see it: an object, and the events that lead to it."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.records import File, Message, Role, Text, ToolCall, ToolResult
from holdfast.server.openai.errors import failure_code
from holdfast.server.openai.ids import ResponsePlace, outer_call_id
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

_DEFAULTS: dict[str, Any] = {
    "previous_response_id": None,
    "instructions": None,
    "metadata": {},
    "background": False,
    "temperature": None,
    "top_p": None,
    "max_output_tokens": None,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "disabled",
    "text": {"format": {"type": "text"}},
}


def response_of(telling: Telling, model: str, *, queued: bool = False) -> dict[str, Any]:
    place, over = telling.place, telling.over
    failure = None
    if telling.error is not None:
        failure = {"code": failure_code(telling.error), "message": telling.error.message}
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
        "usage": _usage(telling) if over else None,
    }


def _why(telling: Telling) -> str:
    return "content_filter" if telling.incomplete is None and telling.finish == "refused" else "max_output_tokens"


def _usage(telling: Telling) -> dict[str, Any]:
    return {
        "input_tokens": telling.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": telling.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": telling.input_tokens + telling.output_tokens,
    }


def item_of(place: ResponsePlace, output: Spoke | ToolCall) -> dict[str, Any]:
    if isinstance(output, Spoke):
        return _message(output.item_id, [_text(output.text)], "incomplete" if output.cut_off else "completed")
    return _function_call(place, output, output.arguments or "{}", "completed")


def _message(item_id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _function_call(place: ResponsePlace, call: ToolCall, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": f"fc_{call.call_id}",
        "type": "function_call",
        "call_id": outer_call_id(place.chat_id, call.call_id),
        "name": call.name,
        "arguments": arguments,
        "status": status,
    }


# --- events -------------------------------------------------------------------------------------------


class Events:
    """Encodes what happens; what a client has seen before, by its numbers, is left out."""

    def __init__(self, model: str, after: int = -1) -> None:
        self._model = model
        self._after = after

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
        data = msgspec.json.encode({"type": kind, "sequence_number": number, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

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


def _call_events(place: ResponsePlace, called: Called) -> Iterator[tuple[str, int, dict[str, Any]]]:
    number, call, at = called.number, called.call, {"output_index": called.index}
    arguments = call.arguments or "{}"
    piece = {**at, "item_id": f"fc_{call.call_id}"}
    begun = _function_call(place, call, "", "in_progress")
    yield "response.output_item.added", number, {**at, "item": begun}
    yield "response.function_call_arguments.delta", number + 1, {**piece, "delta": arguments}
    yield "response.function_call_arguments.done", number + 2, {**piece, "name": call.name, "arguments": arguments}
    yield "response.output_item.done", number + 3, {**at, "item": _function_call(place, call, arguments, "completed")}


# --- input items --------------------------------------------------------------------------------------


def input_items(place: ResponsePlace, message: Message) -> Iterator[dict[str, Any]]:
    """A message of the history as the items that stand for it."""
    content = [_input_part(message.role, part) for part in message.parts if isinstance(part, Text | File)]
    if content:
        yield {"id": message.id, "type": "message", "role": message.role, "status": "completed", "content": content}
    for part in message.parts:
        if isinstance(part, ToolCall):
            yield _function_call(place, part, part.arguments or "{}", "completed")
        elif isinstance(part, ToolResult):
            call_id = outer_call_id(place.chat_id, part.call_id)
            item = {"id": message.id, "type": "function_call_output", "call_id": call_id, "status": "completed"}
            yield {**item, "output": part.content}


def _input_part(role: Role, part: Text | File) -> dict[str, Any]:
    if isinstance(part, Text):
        return _text(part.text) if role is Role.ASSISTANT else {"type": "input_text", "text": part.text}
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": part.uri, "detail": "auto"}
    return {"type": "input_file", "filename": part.name, "file_url": part.uri}
