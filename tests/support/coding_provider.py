"""A provider for the coding programs on the command line: Messages, Responses and Gemini's own wire on one port.

What it answers is told for each case by a `Script`: the answer to a request that has n tool results in it. Side
requests that the programs make by themselves (titles, token counts, routing) get a harmless answer and do not count.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from tests.support.chat_server import Data, Reply, body_of
from tests.support.speakers import Anthropic, Call, Gemini, Responses, Speaker
from tests.support.threaded_server import QuietHandler, serving


class Words(Struct, frozen=True):
    """An answer: text, calls, both or neither."""

    text: str = ""
    calls: tuple[Call, ...] = ()


class Refusal(Struct, frozen=True):
    """An error in place of an answer."""

    status: int = 400
    message: str = "the provider says no"


class Silence(Struct, frozen=True):
    """Nothing, until the server ends. `CodingProvider.silent` tells that it has begun."""


Said = Words | Refusal | Silence
# What is said to a request, given the texts of the user and the number of tool results in it.
Script = Callable[[str, int], Said]


def in_turn(*answers: Said) -> Script:
    """The n-th answer to a request with n tool results; the last one to those with more."""
    return lambda _, results: answers[min(results, len(answers) - 1)]


class CodingProvider:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self.asked: list[str] = []  # what users said, of each request that counts
        self.silent = threading.Event()
        self.over = threading.Event()

    def reply(self, path: str, body: Any) -> bytes | Reply | None:
        """Bytes of JSON, a stream, or None for silence."""
        speaker = _speaker(path)
        if speaker is None:
            return b"{}"
        if "count_tokens" in path or "countTokens" in path:
            return b'{"input_tokens": 7, "totalTokens": 7}'
        if _is_aside(body):
            return _plain(speaker, "{}") if "streamGenerateContent" not in path else _stream(speaker, Words("{}"))
        said, results = _asked(body)
        self.asked.append(said)
        answer = self.script(said, results)
        match answer:
            case Silence():
                self.silent.set()
                return None
            case Refusal():
                return speaker.refusing(answer.status, "invalid_request_error", answer.message)
        if isinstance(speaker, Gemini) and "streamGenerateContent" not in path:
            return _plain(speaker, answer.text)
        return _with_own_ids(_stream(speaker, answer), len(self.asked))


def _speaker(path: str) -> Speaker | None:
    if "/messages" in path:
        return Anthropic()
    if path.endswith("/responses"):
        return Responses()
    return Gemini() if "enerateContent" in path or "countTokens" in path else None


def _stream(speaker: Speaker, answer: Words) -> Reply:
    steps = [*speaker.begin()]
    if answer.text:
        steps += speaker.text(answer.text)
    if answer.calls:
        steps += speaker.calls(*answer.calls, at=1 if answer.text else 0)
    return Reply(steps=(*steps, *speaker.end("tool_calls" if answer.calls else "stop")))


def _with_own_ids(reply: Reply, n: int) -> Reply:
    """The programs tell messages and calls of one conversation apart by their ids."""
    steps = []
    for step in reply.steps:
        assert isinstance(step, Data)
        text = json.dumps(step.value)
        for kind in ("msg_", "toolu_", "id_", "fc_"):
            text = text.replace(f'"{kind}', f'"{kind}{n}_')
        steps.append(Data(json.loads(text), step.name))
    return Reply(steps=tuple(steps))


def _plain(speaker: Speaker, text: str) -> bytes:
    """To a request that does not stream."""
    if isinstance(speaker, Gemini):
        content = {"parts": [{"text": text}], "role": "model"}
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
        return json.dumps(
            {"candidates": [{"content": content, "index": 0, "finishReason": "STOP"}], "usageMetadata": usage}
        ).encode()
    usage = {"input_tokens": 7, "output_tokens": 3}
    block = {"type": "text", "text": text}
    head = {"id": "msg_2", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    return json.dumps({**head, "content": [block], "usage": usage}).encode()


def _is_aside(body: Any) -> bool:
    """A title, or the choice of a model: structured answers, and requests without tools."""
    config = body.get("generationConfig") or {}
    if "contents" in body:
        return "responseSchema" in config or "responseJsonSchema" in config
    if "messages" in body:
        return not body.get("tools") or not body.get("stream")
    return False


def _asked(body: Any) -> tuple[str, int]:
    texts: list[str] = []
    results = 0
    for item in body.get("messages") or body.get("contents") or body.get("input") or ():
        if item.get("type") == "function_call_output" or item.get("type") == "custom_tool_call_output":
            results += 1
        content = item.get("content") or item.get("parts") or ()
        blocks = [{"text": content}] if isinstance(content, str) else content
        results += sum(block.get("type") == "tool_result" or "functionResponse" in block for block in blocks)
        if item.get("role") == "user":
            texts += [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    return "\n".join(texts), results


@contextmanager
def coding_provider(script: Script) -> Iterator[CodingProvider]:
    provider = CodingProvider(script)

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            reply = provider.reply(self.path.partition("?")[0], json.loads(raw or b"{}"))
            if reply is None:
                provider.over.wait()
                self.close_connection = True
                return
            status, kind = 200, "application/json"
            if isinstance(reply, Reply):
                status = reply.status
                kind = dict(reply.headers).get("content-type", kind)
                reply = body_of(reply)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()

        do_HEAD = do_GET

    with serving(Handler) as provider.url:
        try:
            yield provider
        finally:
            provider.over.set()


def said_of(asked: Sequence[str], words: str) -> int:
    """In how many requests these words were."""
    return sum(words in said for said in asked)
