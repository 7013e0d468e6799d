"""A provider at the wire that keeps its own bill, in tokens and money: what it streamed is what it bills, whatever
its client made of it. It speaks Anthropic Messages, from a thread, on loopback, to programs that run as processes.

The name of the model says what it does. Words have three bytes each and are a token each, which is what an attempt
that is cut off is estimated by. Prices are whole numbers, and so are the sums: a unit is a hundred-millionth.
"""

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from holdfast.config import ModelFacts, Price
from tests.support.chat_server import Data
from tests.support.provider import Choice, results_in
from tests.support.speakers import Anthropic
from tests.support.threaded_server import QuietHandler, serving

UNIT = 1e-8
CUT_OFF = ("ab ",) * 6  # what comes of an answer that is cut off
ONE_MAX = 10 + 12 + 4 + 2 + 20 + 28  # what one request is billed with, at most


class Tariff(NamedTuple):
    """Per million tokens, in hundredths."""

    fresh: int
    made: int
    read: int
    written: int

    @property
    def facts(self) -> ModelFacts:
        price = Price(
            input=self.fresh / 100, output=self.made / 100, cached=self.read / 100, cache_write=self.written / 100
        )
        return ModelFacts(price=price)


class Bill(NamedTuple):
    requests: int
    tokens: int
    units: int

    @property
    def cost(self) -> float:
        return self.units * UNIT


class BillingProvider:
    """`choices`: what models answer, by name. `tariffs`: what they cost. A model that stalls says a few words and
    then nothing, until its client goes away.
    """

    def __init__(self, choices: Mapping[str, Choice], tariffs: Mapping[str, Tariff], stalls: frozenset[str]) -> None:
        self._choices, self._tariffs, self._stalls = choices, tariffs, stalls
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._units: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self.under_way = 0
        self.faults: Counter[str] = Counter()
        self.url = ""

    def name(self, model: str) -> str:
        return f"compatible-anthropic:{model}@{self.url}"

    def facts(self) -> dict[str, ModelFacts]:
        return {self.name(model): tariff.facts for model, tariff in self._tariffs.items()}

    def charge(self, model: str, fresh: int, read: int, written: int, made: int) -> None:
        tariff = self._tariffs[model]
        units = fresh * tariff.fresh + made * tariff.made + read * tariff.read + written * tariff.written
        self.add(model, fresh + read + written + made, units)

    def add(self, name: str, tokens: int, units: int) -> None:
        with self._lock:
            self._requests[name] += 1
            self._tokens[name] += tokens
            self._units[name] += units

    @property
    def bills(self) -> dict[str, Bill]:
        with self._lock:
            return {
                name: Bill(count, self._tokens[name], self._units[name]) for name, count in self._requests.items()
            }

    # --- one request

    def serve(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        model = body["model"]
        with self._lock:
            self._asked[model] += 1
            n = self._asked[model]
            self.under_way += 1
        try:
            fault = _FAULTS[n % len(_FAULTS)]
            self.faults[fault] += 1
            if fault == "refused":
                _refuse(handler)
            else:
                self._stream(handler, body, n, fault)
        finally:
            with self._lock:
                self.under_way -= 1

    def _stream(self, handler: BaseHTTPRequestHandler, body: Any, n: int, fault: str) -> None:
        model, speaker = body["model"], Anthropic()
        fresh, read, written = 10 + n % 13, n % 5, n % 3
        made = 20 + n % 29  # what a whole answer is billed with
        usage = {"input_tokens": fresh, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        said = 0

        def send(*steps: Any) -> None:
            for step in steps:
                handler.wfile.write(f"event: {step.name}\ndata: {json.dumps(step.value)}\n\n".encode())
            handler.wfile.flush()

        start: Any = speaker.begin()[0]
        start.value["message"]["usage"] = {**usage, "output_tokens": 1}
        with suppress(OSError):
            _begin(handler)
            said = 1  # as it says itself
            send(start)
            if fault or model in self._stalls:
                said = len(CUT_OFF)
                send(*speaker.text(*CUT_OFF)[:-1])
            if fault == "broke":
                send(speaker.error("overloaded_error", "too much"))
            elif fault == "counted":  # the figures come, and the end does not
                said = made
                send(Data({"type": "message_delta", "delta": {}, "usage": {"output_tokens": made}}, "message_delta"))
                send(speaker.error("overloaded_error", "too much"))
            elif not fault and model in self._stalls:
                _until_gone(handler)
            elif not fault:
                answer = self._choices[model](results_in(body))
                if answer.text:
                    send(*speaker.text(*answer.text))
                if answer.calls:
                    send(*speaker.calls(*answer.calls, at=len(answer.text[:1])))
                ends: tuple[Any, ...] = speaker.end("tool_calls" if answer.calls else "stop")
                ends[0].value["usage"] = {"output_tokens": made}
                said = made
                send(*ends)
        self.charge(model, fresh, read, written, said)


# What befalls the nth request of a model: most are answered. Those that are refused cost nothing, the others do.
_FAULTS = ("", "", "broke", "", "", "cut", "", "refused", "", "", "counted")


def _begin(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("connection", "close")
    handler.end_headers()
    handler.close_connection = True


def _refuse(handler: BaseHTTPRequestHandler) -> None:
    body = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "later"}}).encode()
    handler.send_response(529)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _until_gone(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.settimeout(60.0)
    with suppress(OSError):
        while handler.connection.recv(4_096):
            pass


@contextmanager
def billing(
    choices: Mapping[str, Choice], tariffs: Mapping[str, Tariff], stalls: frozenset[str] = frozenset()
) -> Iterator[BillingProvider]:
    provider = BillingProvider(choices, tariffs, stalls)

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path == "/paid":  # what a tool buys
                provider.add("pay", body["tokens"], body["units"])
                self.send_response(204)
                self.end_headers()
            else:
                provider.serve(self, body)

    with serving(Handler) as provider.url:
        yield provider


def buy(url: str, tokens: int, units: int) -> None:
    """As a tool's body does, from its own process."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"tokens": tokens, "units": units}).encode()
    with socket.create_connection((host, int(port)), 30.0) as connection:
        head = f"POST /paid HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert b"204" in connection.recv(4_096)
