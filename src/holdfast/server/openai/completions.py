"""A turn as a chat completion: one message, or chunks of it."""

from collections.abc import Sequence
from typing import Any

from holdfast.core.records import Cause
from holdfast.core.updates import CallView
from holdfast.server.openai.errors import STOPPED, error_body
from holdfast.server.openai.ids import ResponsePlace, outer_call_id
from holdfast.server.openai.response_follower import sse
from holdfast.server.openai.response_state import (
    Called,
    Happening,
    ResponseEnded,
    Said,
    Spoke,
    Spoken,
    Telling,
    Withdrawn,
)

STEPS_APART = "\n\n"  # between what the model said before and after it used a tool of the agent
DONE = b"data: [DONE]\n\n"


def completion_of(telling: Telling, model: str) -> dict[str, Any]:
    place = telling.place
    texts = [output.text for output in telling.outputs if isinstance(output, Spoke)]
    message: dict[str, Any] = {"role": "assistant", "content": STEPS_APART.join(texts) or None, "refusal": None}
    calls = [_call(place, call) for call in telling.pending.values()]
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return {
        **_head(telling, model, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(telling), "logprobs": None}],
        "usage": usage_of(telling),
    }


def finish_reason(telling: Telling) -> str:
    if telling.pending:
        return "tool_calls"
    if telling.incomplete in (Cause.BUDGET, Cause.DEADLINE) or telling.finish == "length":
        return "length"
    return "content_filter" if telling.finish == "refused" else "stop"


def usage_of(telling: Telling) -> dict[str, Any]:
    """As the agent's provider counted, for all of its responses together."""
    usage = telling.turn.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "prompt_tokens_details": {"cached_tokens": telling.cached_tokens},
        "completion_tokens": usage.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": telling.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _head(telling: Telling, model: str, kind: str) -> dict[str, Any]:
    return {
        "id": telling.place.completion_id,
        "object": kind,
        "created": telling.began_at // 1000,
        "model": model,
        "system_fingerprint": None,
    }


def _call(place: ResponsePlace, call: CallView) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return {"id": outer_call_id(call.chat_id or place.chat_id, call.id), "type": "function", "function": function}


class Chunks:
    """What was told cannot be taken back here. After a lost attempt the new text is held back until it has caught up
    with what was told; one that turns out to be another text ends the stream with an error.
    """

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._model = model
        self._include_usage = include_usage
        self._told = ""  # of the message that is being told
        self._attempt = ""  # the open attempt's text
        self._before = False  # a message was told before this one
        self._calls = 0
        self._begun = False
        self.broken = False

    def __call__(self, telling: Telling, happenings: Sequence[Happening]) -> bytes:
        out: list[bytes] = []
        for happening in happenings:
            if self.broken:
                break
            match happening:
                case Said(text=text):
                    self._attempt += text
                    out += self._say(telling)
                case Withdrawn():
                    self._attempt = ""
                case Spoken():
                    out += self._spoken(telling)
                case Called(call=call):
                    out.append(self._call(telling, _call(telling.place, call)))
                case ResponseEnded():
                    out += self._end(telling)
        return b"".join(out)

    def _say(self, telling: Telling) -> list[bytes]:
        if len(self._attempt) <= len(self._told):
            return [] if self._told.startswith(self._attempt) else self._break()
        if not self._attempt.startswith(self._told):
            return self._break()
        new, first = self._attempt[len(self._told) :], not self._told
        self._told = self._attempt
        return [self._chunk(telling, {"content": STEPS_APART + new if first and self._before else new})]

    def _spoken(self, telling: Telling) -> list[bytes]:
        if self._told != self._attempt:
            return self._break()  # it ended sooner than the one that was lost
        self._told, self._attempt, self._before = "", "", True
        return []

    def error(self, message: str, kind: str, code: str | None) -> bytes:
        return sse(error_body(message, kind, code))

    def _break(self) -> list[bytes]:
        self.broken = True
        words = (
            "the answer broke off and was begun anew with other words; ask for the chat, or send the request again"
        )
        return [sse(error_body(words, "server_error", "answer_restarted"))]

    def _call(self, telling: Telling, call: dict[str, Any]) -> bytes:
        index, self._calls = self._calls, self._calls + 1
        return self._chunk(telling, {"tool_calls": [{"index": index, **call}]})

    def _end(self, telling: Telling) -> list[bytes]:
        if telling.status == "failed" and telling.error is not None:
            self.broken = True
            return [sse(error_body(telling.error.message, "server_error", telling.error.code))]
        if telling.status == "cancelled":
            self.broken = True
            return [sse(error_body(STOPPED, "server_error", "turn_stopped"))]
        out = [self._chunk(telling, {}, finish_reason(telling))]
        if self._include_usage:
            out.append(
                sse(
                    {
                        **_head(telling, self._model, "chat.completion.chunk"),
                        "choices": [],
                        "usage": usage_of(telling),
                    }
                )
            )
        return [*out, DONE]

    def _chunk(self, telling: Telling, delta: dict[str, Any], finish: str | None = None) -> bytes:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", "content": "", **delta}
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        chunk = {**_head(telling, self._model, "chat.completion.chunk"), "choices": [choice]}
        return sse({**chunk, "usage": None} if self._include_usage else chunk)
