"""A provider at the wire for programs that run as processes of their own: it answers by what it is asked.

Which answer is due follows from the tool results in the request, so a program that is killed and started again, or
asks twice, gets the answer that fits. A thread serves it, on loopback; what it was asked is kept.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.message import Message
from typing import Any

from msgspec import Struct

from tests.support.chat_server import Reply, Step, body_of
from tests.support.speakers import Call, Speaker
from tests.support.threaded_server import QuietHandler, serving


class Answer(Struct, frozen=True):
    text: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()


# What is answered to a request with these tool results.
Choice = Callable[[Sequence[str]], Answer]


def in_order(*answers: Answer) -> Choice:
    """The first one to a request without tool results, the next to one with one, the last to those with more."""
    return lambda results: answers[min(len(results), len(answers) - 1)]


class Provider:
    def __init__(self, speaker: Speaker, choose: Choice) -> None:
        self._speaker = speaker
        self._choose = choose
        self._speaking = threading.Lock()
        self.url = ""
        self.asked: list[Any] = []
        self.headers: list[Message] = []

    def respond(self, body: Any) -> bytes:
        with self._speaking:  # a speaker keeps what it has said so far
            self.asked.append(body)
            answer = self._choose(results_in(body))
            steps: list[Step] = [*self._speaker.begin()]
            if answer.text:
                steps += self._speaker.text(*answer.text)
            if answer.calls:
                steps += self._speaker.calls(*answer.calls, at=len(answer.text[:1]))
            steps += self._speaker.end("tool_calls" if answer.calls else "stop")
            return body_of(Reply(steps=tuple(steps)))


def results_in(body: Any) -> list[str]:
    """The tool results of a request, in the words of Responses or of Messages."""
    if "input" in body:
        return [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
    blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
    return [json.dumps(block["content"]) for block in blocks if block.get("type") == "tool_result"]


@contextmanager
def providing(speaker: Speaker, choose: Choice) -> Iterator[Provider]:
    provider = Provider(speaker, choose)

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            provider.headers.append(self.headers)
            body = provider.respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as provider.url:
        yield provider
