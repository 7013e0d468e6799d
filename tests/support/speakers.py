"""The same answers in the words of each wire: text, thoughts, calls, ends, errors. What a speaker says is `Step`s.

Shapes are those of the providers' own documentation and SDK types.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from tests.support.chat_server import DONE, Data, Reply, Step, chunk, more_of_call, started_call
from tests.support.chat_server import refusing as refusing_with
from tests.support.chat_server import usage as chat_usage

SIGNED = "c2lnbmVkIGJ5IG1l"  # base64, as they all are


class Call(Struct, frozen=True):
    """A call, with its arguments in the pieces they come in; wires without pieces send them whole."""

    name: str
    pieces: tuple[str, ...] = ("{}",)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class Speaker(Protocol):
    """One response is `begin`, then any of the middle ones in order, then `end`. Blocks are numbered by `at`."""

    kind: ClassVar[str]  # what stands before the colon in a model's name
    reasons: ClassVar[dict[str, str]]  # our reason: the provider's
    response_id: ClassVar[str]  # of every response
    signs: ClassVar[bool]  # reasoning comes with a signature of the provider's

    def begin(self) -> tuple[Step, ...]: ...
    def text(self, *words: str, at: int = 0) -> tuple[Step, ...]: ...
    def thought(self, *words: str, at: int = 0) -> tuple[Step, ...]: ...
    def calls(self, *calls: Call, at: int = 0) -> tuple[Step, ...]: ...
    def end(self, reason: str = "stop") -> tuple[Step, ...]: ...
    def error(self, kind: str, message: str) -> Data: ...
    def refusing(self, status: int, kind: str, message: str, **headers: str) -> Reply: ...
    def unknown(self) -> tuple[Step, ...]: ...


def saying(speaker: Speaker, *words: str, reason: str = "stop") -> Reply:
    return Reply(steps=(*speaker.begin(), *speaker.text(*words), *speaker.end(reason)))


# What every good answer counts, as we count it: input with what was cached, output with what was thought.
INPUT, CACHED, OUTPUT, THOUGHT = 7, 2, 3, 1


class Chat:
    kind: ClassVar[str] = "compatible"
    response_id: ClassVar[str] = "chatcmpl-1"
    reasons: ClassVar[dict[str, str]] = {
        "stop": "stop",
        "length": "length",
        "tool_calls": "tool_calls",
        "refused": "content_filter",
    }
    signs: ClassVar[bool] = False

    def begin(self) -> tuple[Step, ...]:
        return (chunk({"role": "assistant", "content": ""}),)

    def text(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        return tuple(chunk({"content": word}) for word in words)

    def thought(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        return tuple(chunk({"reasoning_content": word}) for word in words)

    def calls(self, *calls: Call, at: int = 0) -> tuple[Step, ...]:
        started = [started_call(n, f"id_{n}", call.name) for n, call in enumerate(calls)]
        pieces = max((len(call.pieces) for call in calls), default=0)
        mixed = [
            more_of_call(n, call.pieces[k])
            for k in range(pieces)
            for n, call in enumerate(calls)
            if k < len(call.pieces)
        ]
        return (*started, *mixed)

    def end(self, reason: str = "stop") -> tuple[Step, ...]:
        return (chunk({}, self.reasons[reason]), chat_usage(INPUT, OUTPUT, CACHED, THOUGHT), DONE)

    def error(self, kind: str, message: str) -> Data:
        return Data({"error": {"message": message, "type": kind, "code": None}})

    def refusing(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return refusing_with(status, {"error": {"message": message, "type": kind, "code": None}}, **headers)

    def unknown(self) -> tuple[Step, ...]:
        return (Data({"object": "chat.completion.surprise"}), chunk({"audio": {"id": "x"}}))


class Responses:
    kind: ClassVar[str] = "compatible-responses"
    response_id: ClassVar[str] = "resp_1"
    reasons: ClassVar[dict[str, str]] = {
        "stop": "completed",
        "length": "max_output_tokens",
        "tool_calls": "completed",
        "refused": "content_filter",
    }
    signs: ClassVar[bool] = True

    def __init__(self) -> None:
        self._n = 0
        self._made: list[Any] = []

    def _data(self, type: str, **fields: Any) -> Data:
        self._n += 1
        return Data({"type": type, "sequence_number": self._n, **fields}, type)

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        empty: dict[str, Any] = {
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": 1.0,
        }
        more = {
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "output": list(self._made),
        }
        head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status}
        return {**head, **empty, **more, **fields}

    def begin(self) -> tuple[Step, ...]:
        self._n, self._made = 0, []
        return (
            self._data("response.created", response=self._response("in_progress")),
            self._data("response.in_progress", response=self._response("in_progress")),
        )

    def text(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        where = {"item_id": f"msg_{at}", "output_index": at, "content_index": 0}
        part = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}
        item = {"id": f"msg_{at}", "type": "message", "role": "assistant"}
        done = {**item, "status": "completed", "content": [part]}
        self._made.append(done)
        return (
            self._data(
                "response.output_item.added", output_index=at, item={**item, "status": "in_progress", "content": []}
            ),
            self._data("response.content_part.added", **where, part={**part, "text": ""}),
            *(self._data("response.output_text.delta", **where, delta=word, logprobs=[]) for word in words),
            self._data("response.output_text.done", **where, text="".join(words), logprobs=[]),
            self._data("response.content_part.done", **where, part=part),
            self._data("response.output_item.done", output_index=at, item=done),
        )

    def thought(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        where = {"item_id": f"rs_{at}", "output_index": at, "summary_index": 0}
        part = {"type": "summary_text", "text": "".join(words)}
        item = {"id": f"rs_{at}", "type": "reasoning", "summary": [], "encrypted_content": "half"}
        done = {**item, "summary": [part], "encrypted_content": SIGNED}
        self._made.append(done)
        return (
            self._data("response.output_item.added", output_index=at, item=item),
            self._data("response.reasoning_summary_part.added", **where, part={**part, "text": ""}),
            *(self._data("response.reasoning_summary_text.delta", **where, delta=word) for word in words),
            self._data("response.reasoning_summary_text.done", **where, text="".join(words)),
            self._data("response.reasoning_summary_part.done", **where, part=part),
            self._data("response.output_item.done", output_index=at, item=done),
        )

    def calls(self, *calls: Call, at: int = 0) -> tuple[Step, ...]:
        steps: list[Step] = []
        for n, call in enumerate(calls, start=at):
            item = {"id": f"fc_{n}", "type": "function_call", "call_id": f"id_{n}", "name": call.name}
            done = {**item, "arguments": call.arguments, "status": "completed"}
            self._made.append(done)
            where = {"item_id": f"fc_{n}", "output_index": n}
            started = {**item, "arguments": "", "status": "in_progress"}
            steps += [
                self._data("response.output_item.added", output_index=n, item=started),
                *(
                    self._data("response.function_call_arguments.delta", **where, delta=piece)
                    for piece in call.pieces
                ),
                self._data(
                    "response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments
                ),
                self._data("response.output_item.done", output_index=n, item=done),
            ]
        return tuple(steps)

    def end(self, reason: str = "stop") -> tuple[Step, ...]:
        usage = {
            "input_tokens": INPUT,
            "input_tokens_details": {"cached_tokens": CACHED, "cache_write_tokens": 0},
            "output_tokens": OUTPUT,
            "output_tokens_details": {"reasoning_tokens": THOUGHT},
            "total_tokens": INPUT + OUTPUT,
        }
        why = self.reasons[reason]
        if why == "completed":
            return (self._data("response.completed", response=self._response("completed", usage=usage)),)
        details = {"usage": usage, "incomplete_details": {"reason": why}}
        return (self._data("response.incomplete", response=self._response("incomplete", **details)),)

    def error(self, kind: str, message: str) -> Data:
        return self._data("error", code=kind, message=message, param=None)

    def refusing(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return refusing_with(
            status, {"error": {"message": message, "type": kind, "code": None, "param": None}}, **headers
        )

    def unknown(self) -> tuple[Step, ...]:
        item = {"id": "x_1", "type": "dream", "content": [{"type": "cloud"}]}
        return (
            self._data("response.surprise", delta="no"),
            self._data("response.output_item.added", output_index=90, item=item),
            self._data("response.output_item.done", output_index=90, item=item),
        )


class Anthropic:
    kind: ClassVar[str] = "compatible-anthropic"
    response_id: ClassVar[str] = "msg_1"
    reasons: ClassVar[dict[str, str]] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "refused": "refusal",
    }
    signs: ClassVar[bool] = True

    def _data(self, type: str, **fields: Any) -> Data:
        return Data({"type": type, **fields}, type)

    def begin(self) -> tuple[Step, ...]:
        usage = {
            "input_tokens": INPUT - CACHED - 1,
            "cache_read_input_tokens": CACHED,
            "cache_creation_input_tokens": 1,
            "output_tokens": 1,
        }
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
        return (
            self._data("message_start", message={**message, "stop_reason": None, "stop_sequence": None}),
            self._data("ping"),
        )

    def _block(self, at: int, block: dict[str, Any], *deltas: dict[str, Any]) -> tuple[Step, ...]:
        return (
            self._data("content_block_start", index=at, content_block=block),
            *(self._data("content_block_delta", index=at, delta=delta) for delta in deltas),
            self._data("content_block_stop", index=at),
        )

    def text(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        return self._block(
            at, {"type": "text", "text": ""}, *({"type": "text_delta", "text": word} for word in words)
        )

    def thought(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        return self._block(
            at,
            {"type": "thinking", "thinking": "", "signature": ""},
            *({"type": "thinking_delta", "thinking": word} for word in words),
            {"type": "signature_delta", "signature": SIGNED},
        )

    def calls(self, *calls: Call, at: int = 0) -> tuple[Step, ...]:
        steps: list[Step] = []
        for n, call in enumerate(calls, start=at):
            block = {"type": "tool_use", "id": f"toolu_{n}", "name": call.name, "input": {}}
            deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in ("", *call.pieces))
            steps += self._block(n, block, *deltas)
        return tuple(steps)

    def end(self, reason: str = "stop") -> tuple[Step, ...]:
        usage = {"output_tokens": OUTPUT, "output_tokens_details": {"thinking_tokens": THOUGHT}}
        delta = {"stop_reason": self.reasons[reason], "stop_sequence": None}
        return (self._data("message_delta", delta=delta, usage=usage), self._data("message_stop"))

    def error(self, kind: str, message: str) -> Data:
        return self._data("error", error={"type": kind, "message": message})

    def refusing(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return refusing_with(status, {"type": "error", "error": {"type": kind, "message": message}}, **headers)

    def unknown(self) -> tuple[Step, ...]:
        return (
            self._data("surprise", index=90),
            *self._block(90, {"type": "dream", "text": "no"}, {"type": "dream_delta", "dream": "no"}),
        )


class Gemini:
    kind: ClassVar[str] = "compatible-google"
    response_id: ClassVar[str] = "r"
    reasons: ClassVar[dict[str, str]] = {
        "stop": "STOP",
        "length": "MAX_TOKENS",
        "tool_calls": "STOP",
        "refused": "SAFETY",
    }
    signs: ClassVar[bool] = True

    def _parts(self, *parts: dict[str, Any], finish: str | None = None) -> Data:
        content = {"parts": list(parts), "role": "model"}
        candidate = {"content": content, "index": 0, **({} if finish is None else {"finishReason": finish})}
        counted = {"promptTokenCount": INPUT, "totalTokenCount": INPUT, "cachedContentTokenCount": CACHED}
        if finish is not None:
            counted |= {"candidatesTokenCount": OUTPUT - THOUGHT, "thoughtsTokenCount": THOUGHT}
        return Data({"candidates": [candidate], "usageMetadata": counted, "modelVersion": "m", "responseId": "r"})

    def begin(self) -> tuple[Step, ...]:
        return ()

    def text(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        return tuple(self._parts({"text": word}) for word in words)

    def thought(self, *words: str, at: int = 0) -> tuple[Step, ...]:
        """What it thought; the signature comes with the part that follows."""
        return tuple(self._parts({"text": word, "thought": True}) for word in words)

    def calls(self, *calls: Call, at: int = 0) -> tuple[Step, ...]:
        steps: list[Step] = []
        for n, call in enumerate(calls):
            part: dict[str, Any] = {"functionCall": {"name": call.name, "args": _object(call.arguments)}}
            steps.append(self._parts({**part, **({"thoughtSignature": SIGNED} if n == 0 else {})}))
        return tuple(steps)

    def end(self, reason: str = "stop") -> tuple[Step, ...]:
        return (self._parts({"text": ""}, finish=self.reasons[reason]),)

    def error(self, kind: str, message: str) -> Data:
        return Data({"error": {"code": 500, "message": message, "status": kind}})

    def refusing(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return refusing_with(status, {"error": {"code": status, "message": message, "status": kind}}, **headers)

    def unknown(self) -> tuple[Step, ...]:
        return (
            Data({"surprise": 1}),
            self._parts({"dream": {"cloud": 1}}),
            self._parts({"executableCode": {"code": "1"}}),
        )


def _object(arguments: str) -> Any:
    return json.loads(arguments)


def all_speakers() -> Sequence[Speaker]:
    return (Chat(), Responses(), Anthropic(), Gemini())
