"""A model behind HTTP: every deadline, every way a connection can end, and no key anywhere."""

import asyncio
import gc
import json
import logging
import os
import socket
import ssl
import threading
import traceback
from collections.abc import Callable
from contextlib import aclosing, suppress

import pytest
from msgspec.structs import replace

from holdfast.core.deadlines import MODEL_DEADLINES
from holdfast.errors import (
    CallTimeout,
    ConfigError,
    ConnectionFailed,
    ConnectTimeout,
    FirstByteTimeout,
    LostResult,
    ProviderError,
    SilenceTimeout,
)
from holdfast.models.base import Alive, Model, Opened, Request, ResponseFinished, StreamPart, TextDelta, Usage
from holdfast.models.calls import Caller, Completed
from holdfast.models.http.model import HttpModel
from holdfast.models.http.transport import Endpoint, Transport
from holdfast.models.resolve import Models
from holdfast.models.wires.openai_chat import OpenAIChat
from tests.models.conftest import CALM, ENOUGH_S, KEY, Serve, asking, until
from tests.models.judge import of_parts, sdk, theirs
from tests.support.chat_server import (
    DONE,
    Beat,
    Bytes,
    ChatServer,
    Cut,
    Data,
    Ping,
    Reply,
    Reset,
    Stall,
    Wait,
    chunk,
    refusing,
    saying,
    usage,
)
from tests.support.looptime import LoopTime

pytestmark = pytest.mark.timeout(60)

ModelOn = Callable[[ChatServer], Model]


async def parts_of(model: Model, request: Request | None = None) -> list[StreamPart]:
    async with aclosing(model.stream(request or asking())) as parts:
        return [part async for part in parts]


async def error_of(model: Model, request: Request | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await parts_of(model, request)
    return caught.value


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


def brief(**seconds: float) -> Request:
    """A request with these deadlines changed."""
    return asking(deadlines=replace(CALM, **seconds))


# --- a good day


async def test_a_response_streams_part_by_part_and_ends_with_finished(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(saying("Hel", "lo"))
    assert await parts_of(model_on(server)) == [
        Opened(),
        TextDelta(text="Hel"),
        TextDelta(text="lo"),
        Usage(input_tokens=7, output_tokens=3, cached_tokens=2, reasoning_tokens=1),
        ResponseFinished(reason="stop", provider_reason="stop", response_id="chatcmpl-1"),
    ]
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["accept-encoding"] == "identity"
    assert asked.body["messages"] == [{"role": "user", "content": "hi"}]


async def test_parts_arrive_while_the_provider_is_still_speaking(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Wait(), chunk({"content": "lo"}, "stop"), DONE)))
    async with aclosing(model_on(server).stream(asking())) as parts:
        assert await anext(parts) == Opened()
        assert await anext(parts) == TextDelta(text="Hel")
        server.go()
        assert await anext(parts) == TextDelta(text="lo")


async def test_the_sdk_makes_the_same_of_the_same_server(serve: Serve, models: Models, model_on: ModelOn) -> None:
    reply = Reply(
        steps=(
            chunk({"content": "I look."}),
            Bytes(b": ping\n\n"),
            chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "t", "arguments": '{"x"'}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
            chunk({}, "tool_calls"),
            usage(),
            DONE,
        )
    )
    server = await serve(reply)
    done = await Caller().call([model_on(server)], asking())
    assert isinstance(done, Completed)
    assert of_parts(done.message.parts, done.finished.provider_reason, done.usage) == await theirs(sdk(server.url))


async def test_request_id_and_rate_limits_are_told(serve: Serve, model_on: ModelOn) -> None:
    reply = saying("Hi")
    server = await serve(
        replace(
            reply,
            headers=(
                *reply.headers,
                ("X-Request-Id", "req_1"),
                ("X-RateLimit-Remaining-Tokens", "7"),
                ("X-Other", "1"),
            ),
        )
    )
    opened, *_ = await parts_of(model_on(server))
    assert opened == Opened(request_id="req_1", rate_limits={"x-ratelimit-remaining-tokens": "7"})


async def test_a_connection_serves_one_call_after_the_other(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(saying("Hi"))
    for _ in range(5):
        await parts_of(model_on(server))
    assert server.connections_made == 1


async def test_what_comes_after_done_is_not_read(serve: Serve, model_on: ModelOn) -> None:
    more = b"data: [DONE]\n\ndata: " + json.dumps(chunk({"content": " more"}).value).encode() + b"\n\n"
    server = await serve(Reply(steps=(chunk({"content": "Hi"}, "stop"), Bytes(more))))
    assert await parts_of(model_on(server)) == [
        Opened(),
        TextDelta(text="Hi"),
        ResponseFinished(reason="stop", provider_reason="stop", response_id="chatcmpl-1"),
    ]


async def test_a_server_that_does_not_stream_is_understood(serve: Serve, model_on: ModelOn) -> None:
    document = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    server = await serve(
        Reply(steps=(Bytes(json.dumps(document).encode()),), headers=(("content-type", "application/json"),))
    )
    assert [part for part in await parts_of(model_on(server)) if isinstance(part, TextDelta)] == [
        TextDelta(text="Hi")
    ]


async def test_a_web_page_instead_of_a_stream_is_a_lost_result(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(Bytes(b"<html>Log in"),), headers=(("content-type", "text/html"),)))
    error = await error_of(model_on(server))
    assert isinstance(error, LostResult)
    assert "text/html" in str(error)


# --- deadlines, each with its own class and its value


async def test_a_connection_that_does_not_come_about_ends_at_its_deadline(models: Models) -> None:
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    address = full.getsockname()
    waiting = [socket.socket() for _ in range(8)]
    for each in waiting:  # fill the queue: the next one gets no answer at all
        each.setblocking(False)
        with suppress(BlockingIOError):
            each.connect(address)
    try:
        error = await error_of(
            models.get(f"compatible:m@http://127.0.0.1:{address[1]}/v1"), brief(connect_s=ENOUGH_S)
        )
    finally:
        for each in (full, *waiting):
            each.close()
    assert isinstance(error, ConnectTimeout)
    assert (error.deadline, error.value_s) == ("connect_s", 0.3)
    assert "0.3 s (connect_s)" in str(error)


async def test_a_peer_that_accepts_and_says_nothing_in_tls_ends_at_the_connect_deadline(
    models: Models, serve: Serve
) -> None:
    server = await serve(Reply(status=0, steps=(Stall(),)))
    silent = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    error = await error_of(models.get(f"compatible:m@https://127.0.0.1:{port}/v1"), brief(connect_s=ENOUGH_S))
    assert isinstance(error, ConnectTimeout)
    silent.close()
    assert server.asked == []


async def test_a_provider_that_never_answers_ends_at_the_first_byte(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(status=0, steps=(Stall(),)))
    error = await error_of(model_on(server), brief(first_byte_s=ENOUGH_S))
    assert isinstance(error, FirstByteTimeout)
    assert "0.3 s (first_byte_s)" in str(error)
    await server.until_connections(0)


async def test_a_head_alone_is_not_the_first_byte_of_a_response(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(chunk({"role": "assistant", "content": ""}), Stall())))
    assert isinstance(await error_of(model_on(server), brief(first_byte_s=ENOUGH_S)), FirstByteTimeout)


async def test_a_provider_that_does_not_take_the_request_ends_at_the_first_byte(models: Models) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # accepts, and reads nothing
        model = models.get(f"compatible:m@http://127.0.0.1:{deaf.getsockname()[1]}/v1")
        request = replace(brief(first_byte_s=ENOUGH_S), messages=asking("x" * 30_000_000).messages)
        assert isinstance(await error_of(model, request), FirstByteTimeout)


async def test_a_stream_that_stalls_ends_at_the_silence_deadline(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Stall())))
    error = await error_of(model_on(server), brief(silence_s=ENOUGH_S))
    assert isinstance(error, SilenceTimeout)
    assert (error.deadline, error.value_s) == ("silence_s", 0.3)
    await server.until_connections(0)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_provider_that_only_sends_pings_ends_at_the_whole_calls_deadline(
    serve: Serve, model_on: ModelOn, begun: bool
) -> None:
    """One kept a call open for hours [amplifier#339]."""
    server = await serve(Reply(steps=(*((chunk({"content": "Hel"}),) if begun else ()), Ping(every_s=0.01))))
    assert isinstance(await error_of(model_on(server), brief(call_s=ENOUGH_S)), CallTimeout)


EMPTY = b"data: " + json.dumps(chunk({}).value).encode() + b"\n\n"
SIGNS = {"comment": b": ping\n\n", "event": b"event: ping\ndata: {}\n\n", "empty chunk": EMPTY, "half a line": b": p"}


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("sign", list(SIGNS))
async def test_a_model_that_thinks_without_a_word_lives_while_its_stream_brings_something(
    serve: Serve, model_on: ModelOn, sign: str, begun: bool
) -> None:
    loop_time = LoopTime()
    thinking = [step for _ in range(4) for step in (Beat(), Bytes(SIGNS[sign]))]
    words = (chunk({"content": "Hel"}),) if begun else ()
    answer = (Beat(), Bytes(b"\n\n"), chunk({"content": "Hi"}, "stop"), DONE)
    server = await serve(Reply(steps=(*words, *thinking, *answer)))
    said = ""
    async with aclosing(model_on(server).stream(brief(call_s=1_000.0))) as parts:
        async for part in parts:
            said += part.text if isinstance(part, TextDelta) else ""
            if isinstance(part, Alive):
                loop_time.advance(CALM.silence_s / 2)
            if isinstance(part, Alive | TextDelta) or not begun:
                server.beat()
    assert said == ("HelHi" if begun else "Hi")


async def test_a_stream_that_brings_nothing_at_all_any_more_ends_at_the_silence_deadline(
    serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), *(Bytes(EMPTY) for _ in range(20)), Stall())))
    assert isinstance(await error_of(model_on(server), brief(silence_s=ENOUGH_S)), SilenceTimeout)


async def test_a_call_that_goes_on_and_on_ends_at_the_whole_calls_deadline(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Stall())))
    error = await error_of(model_on(server), brief(call_s=ENOUGH_S))
    assert isinstance(error, CallTimeout)
    assert "0.3 s (call_s)" in str(error)


async def test_the_consumers_own_time_is_not_the_providers_silence(serve: Serve, model_on: ModelOn) -> None:
    loop_time = LoopTime()
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Wait(), chunk({"content": "lo"}, "stop"), DONE)))
    async with aclosing(model_on(server).stream(brief(call_s=100.0))) as parts:
        await anext(parts)
        await anext(parts)
        # Somebody writes to a slow disk, longer than the provider may be silent.
        loop_time.advance(CALM.silence_s + 1.0)
        server.go()
        assert await anext(parts) == TextDelta(text="lo")


async def test_once_the_response_is_complete_nothing_can_fail_it(serve: Serve, model_on: ModelOn) -> None:
    ends: dict[str, tuple[object, ...]] = {
        "stall": (Stall(),),
        "cut": (Cut(),),
        "reset": (Reset(),),
        "garbage": (Data("{"), Stall()),
        "error": (Data({"error": {"message": "too late"}}), Stall()),
    }
    for how, end in ends.items():
        server = await serve(Reply(steps=(chunk({"content": "Hi"}, "stop"), *end)))  # type: ignore[arg-type]
        last = (await parts_of(model_on(server)))[-1]
        assert last == ResponseFinished(reason="stop", provider_reason="stop", response_id="chatcmpl-1"), how


def test_the_defaults_are_those_of_the_docs() -> None:
    limits = MODEL_DEADLINES
    assert (limits.connect_s, limits.first_byte_s, limits.silence_s, limits.call_s) == (15, 300, 120, 1800)


# --- the ways a connection can end


async def test_nobody_listens(models: Models) -> None:
    with socket.socket() as taken:  # so that nobody else can listen there either
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        error = await error_of(models.get(f"compatible:m@http://127.0.0.1:{port}/v1"))
    assert isinstance(error, ConnectionFailed)
    assert "refused" in str(error).lower()


async def test_a_name_without_an_address_is_a_failed_connection(models: Models) -> None:
    error = await error_of(models.get("compatible:m@http://no-such-host.invalid/v1"), asking())
    assert isinstance(error, ConnectionFailed)
    assert "no-such-host.invalid" in str(error)


@pytest.mark.parametrize(
    "steps", [(Cut(),), (chunk({"content": "Hel"}), Cut()), (chunk({"content": "Hel"}), Reset())]
)
async def test_a_connection_cut_in_the_middle_is_a_failed_connection(
    serve: Serve, model_on: ModelOn, steps: tuple[object, ...]
) -> None:
    server = await serve(Reply(steps=steps))  # type: ignore[arg-type]
    assert isinstance(await error_of(model_on(server)), ConnectionFailed)


async def test_a_server_that_hangs_up_without_an_answer_is_a_failed_connection(
    serve: Serve, model_on: ModelOn
) -> None:
    server = await serve(Reply(status=0, steps=(Cut(),)))
    assert isinstance(await error_of(model_on(server)), ConnectionFailed)


async def test_a_stream_that_ends_early_but_cleanly_lacks_finished(serve: Serve, model_on: ModelOn) -> None:
    for reply in (
        Reply(steps=(chunk({"content": "Hel"}),)),
        Reply(steps=(chunk({"content": "Hel"}), DONE)),
        Reply(steps=(chunk({"content": "Hel"}),), chunked=False),
    ):
        server = await serve(reply)
        parts = await parts_of(model_on(server))
        assert parts == [Opened(), TextDelta(text="Hel")]


async def test_closing_the_stream_closes_the_socket_at_once(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Stall())))
    parts = model_on(server).stream(asking())
    await anext(parts)
    await anext(parts)
    await server.reached_wait()
    assert server.connections == 1
    await parts.aclose()
    await server.until_connections(0)


@pytest.mark.parametrize("steps", [(Stall(),), (chunk({"content": "Hel"}), Stall()), (Ping(),)])
@pytest.mark.parametrize("status", [0, 200])
async def test_cancelling_closes_the_socket_at_once(
    serve: Serve, model_on: ModelOn, steps: tuple[object, ...], status: int
) -> None:
    server = await serve(Reply(steps=steps, status=status))  # type: ignore[arg-type]
    task = asyncio.create_task(parts_of(model_on(server), asking()))
    await server.reached_wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.until_connections(0)


async def test_cancelling_while_connecting_leaves_no_socket(models: Models) -> None:
    silent = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    before = open_files()
    model = models.get(f"compatible:m@https://127.0.0.1:{port}/v1")
    task = asyncio.create_task(parts_of(model, asking()))
    await until(lambda: models.figures().get("connections", 0) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    silent.close()
    await until(lambda: open_files() < before)


async def test_closing_the_models_ends_what_still_streams(serve: Serve, models: Models, model_on: ModelOn) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Stall())))
    model = model_on(server)
    task = asyncio.create_task(error_of(model, asking()))
    await server.reached_wait()
    await models.aclose()
    assert isinstance(await task, ConnectionFailed)
    await server.until_connections(0)


# --- errors


async def test_an_error_is_told_with_status_code_wait_and_request_id(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(
        refusing(
            429,
            {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}},
            retry_after="7",
            x_request_id="req_9",
        )
    )
    error = await error_of(model_on(server))
    assert (error.code, error.status, error.retry_after_s, error.request_id) == ("rate_limit", 429, 7.0, "req_9")
    assert "slow down" in str(error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"words"}}', "words"),
        (b'{"error":"words"}', "words"),
        (b'{"message":"words"}', "words"),
        (b'{"detail":[{"msg":"words"}]}', "words"),
        (b'[{"error":{"code":500,"message":"words","status":"INTERNAL"}}]', "words"),
        (b'{"type":"error","error":{"type":"api_error","message":"words"}}', "words"),
        (b"words", "words"),
        (b"<html><body>502 Bad Gateway</body></html>", "without a word"),
        (b"", "without a word"),
        (b"\xff\xfe{", ""),
        (b"x" * 1_000_000, "xxx"),
    ],
)
async def test_any_error_body_is_understood_and_capped(
    serve: Serve, model_on: ModelOn, body: bytes, words: str
) -> None:
    error = await error_of(model_on(await serve(refusing(500, body))))
    assert error.code == "server_error"
    assert words in str(error)
    assert len(str(error)) < 3_000


async def test_an_error_whose_body_never_ends_is_told_all_the_same(
    serve: Serve, model_on: ModelOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.models.http.transport.ERROR_BODY_S", 0.2)
    server = await serve(replace(refusing(429, b'{"error":{"message":"half'), steps=(Bytes(b'{"error":'), Stall())))
    error = await error_of(model_on(server))
    assert (error.code, error.status) == ("rate_limit", 429)


async def test_a_redirect_is_not_followed(serve: Serve, model_on: ModelOn) -> None:
    elsewhere = await serve(saying("gotcha"))
    server = await serve(refusing(307, location=f"{elsewhere.url}?key=x"))
    error = await error_of(model_on(server))
    assert error.code == "bad_request"
    assert "redirects are not followed" in str(error)
    assert "key=x" not in str(error)
    assert elsewhere.asked == []


async def test_a_status_error_leaves_the_connection_usable(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(refusing(500), saying("Hi"))
    await error_of(model_on(server))
    await parts_of(model_on(server))
    assert server.connections_made == 1


async def test_a_key_is_in_no_error_no_repr_and_no_log(
    serve: Serve, models: Models, model_on: ModelOn, caplog: pytest.LogCaptureFixture
) -> None:
    """Some servers quote the key they were given."""
    caplog.set_level(logging.DEBUG)
    bodies = [
        refusing(401, f"wrong key {KEY}", x_request_id="r"),
        refusing(500, f"words {KEY}".encode()),
        Reply(steps=(Data({"error": {"message": f"bad {KEY}"}}),)),
        Reply(steps=(Data(f"not json {KEY}"),)),
        Reply(steps=(Bytes(f"page {KEY}".encode()),), headers=(("content-type", "text/plain"),)),
        Reply(status=0, steps=(Cut(),)),
        Reply(steps=(Stall(),)),
    ]
    server = await serve(*bodies)
    model = model_on(server)
    told = [repr(model)]
    for _ in bodies:
        error = await error_of(model, brief(first_byte_s=ENOUGH_S))
        told += traceback.format_exception(error)
        told.append(repr(error) + str(vars(error)))
    await until(lambda: len(server.asked) == len(bodies))  # the last one may be late to read what we have given up
    assert all(asked.headers["authorization"] == f"Bearer {KEY}" for asked in server.asked)
    assert "[key]" in "".join(told)
    assert KEY not in "".join(told)
    assert KEY not in caplog.text
    assert KEY not in repr(models)


async def test_a_key_in_what_the_model_says_does_not_reach_the_journal(serve: Serve, model_on: ModelOn) -> None:
    server = await serve(saying(f"it is {KEY}"))
    assert TextDelta(text="it is [key]") in await parts_of(model_on(server))


@pytest.mark.parametrize("key", ["none", "EMPTY", "k", "delta", "ollama"])
async def test_a_key_that_is_an_ordinary_word_changes_nothing_of_what_the_model_says(serve: Serve, key: str) -> None:
    """Servers that need no key are given one all the same, because clients insist on it."""
    server = await serve(saying(f"it is {key}"))
    models = Models({"COMPATIBLE_API_KEY": key})
    try:
        assert TextDelta(text=f"it is {key}") in await parts_of(models.get(f"compatible:m@{server.url}"))
    finally:
        await models.aclose()


# --- TLS, proxies, names


async def test_a_response_streams_over_tls(serving: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async with ChatServer(saying("Hel", "lo"), tls=serving) as server:
        transport = Transport(ssl_context=trusting)
        model = HttpModel("m", OpenAIChat("m"), server.url, lambda: transport, provider="p", key=KEY)
        for _ in range(2):
            assert TextDelta(text="lo") in await parts_of(model, asking("x" * 300_000, deadlines=MODEL_DEADLINES))
        assert server.connections_made == 1
        await transport.aclose()
        await server.until_connections(0)


async def test_cancelling_closes_a_tls_socket_at_once(serving: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    async with ChatServer(Reply(steps=(chunk({"content": "Hel"}), Stall())), tls=serving) as server:
        transport = Transport(ssl_context=trusting)
        model = HttpModel("m", OpenAIChat("m"), server.url, lambda: transport, provider="p")
        task = asyncio.create_task(parts_of(model, asking()))
        await server.reached_wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until_connections(0)
        await transport.aclose()


async def test_a_certificate_nobody_trusts_is_a_failed_connection(serving: ssl.SSLContext, models: Models) -> None:
    async with ChatServer(tls=serving) as server:
        error = await error_of(models.get(f"compatible:m@{server.url}"), asking())
        assert isinstance(error, ConnectionFailed)
        assert "certificate" in str(error)
        assert server.asked == []


async def test_the_environments_proxy_is_used_but_never_for_loopback(serve: Serve) -> None:
    proxy = await serve(saying("by proxy"))
    transport = Transport(proxies={"http": f"http://127.0.0.1:{proxy.port}", "no": "inside.example"})
    outside = HttpModel("m", OpenAIChat("m"), "http://outside.example/v1", lambda: transport, provider="p")
    assert TextDelta(text="by proxy") in await parts_of(outside)
    assert proxy.asked[0].path == "http://outside.example/v1/chat/completions"
    server = await serve(saying("directly"))
    assert TextDelta(text="directly") in await parts_of(
        HttpModel("m", OpenAIChat("m"), server.url, lambda: transport, provider="p")
    )
    assert transport._proxy_for(Endpoint("http://inside.example/v1")) is None
    await transport.aclose()


async def test_a_name_is_looked_up_in_a_thread_of_ours(serve: Serve, models: Models) -> None:
    server = await serve(saying("Hi"))
    before = set(threading.enumerate())
    assert TextDelta(text="Hi") in await parts_of(models.get(f"compatible:m@http://localhost:{server.port}/v1"))
    assert models.figures()["lookup_threads"] == 1
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["holdfast-dns-1"]
    await models.aclose()
    await until(lambda: not set(threading.enumerate()) - before)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/v1", "host/v1", "http://", "http://user:pass@host/v1", "http://host:x/v1"),
        *("http://hö.example/v1", "https://host/v1?v=1&api_key=pass", "https://host/v1?access_token=pass"),
    ],
)
def test_a_url_no_model_can_have_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint(url)
    assert "pass" not in str(caught.value).replace("password", "")


def test_a_url_keeps_its_query_and_does_not_show_it() -> None:
    model = HttpModel("m", OpenAIChat("m"), "https://host/v1/?api-version=7", Transport, provider="p")
    endpoint = model._endpoint
    assert (endpoint.target, endpoint.shown) == (
        "/v1/chat/completions?api-version=7",
        "https://host/v1/chat/completions",
    )


# --- nothing grows


def open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208  the folder changes while it is read


async def test_a_hundred_calls_of_all_sorts_leave_threads_tasks_and_sockets_where_they_were(
    serve: Serve, model_on: ModelOn
) -> None:
    replies = [
        saying("Hi"),
        refusing(429),
        Reply(steps=(chunk({"content": "Hel"}), Cut())),
        Reply(steps=(chunk({"content": "Hel"}),)),
        Reply(steps=(Data("{"), Stall())),
        Reply(status=0, steps=(Cut(),)),
    ]
    server = await serve(*(replies[n % len(replies)] for n in range(130)))
    model = model_on(server)

    async def some(count: int) -> tuple[set[threading.Thread], int, int]:
        for n in range(count):
            stream = model.stream(asking())
            with suppress(ProviderError):
                async for _ in stream:
                    if n % 5 == 0:
                        break
            await stream.aclose()
        await server.until_streaming(0)
        await until(lambda: server.connections <= 1)
        gc.collect()
        return set(threading.enumerate()), len(asyncio.all_tasks()) - server.connections, open_files()

    threads, tasks, files = await some(30)
    threads_after, tasks_after, files_after = await some(100)
    assert len(server.asked) == 130
    # What an earlier test left behind may end meanwhile: less is no harm.
    assert threads_after <= threads
    assert tasks_after == tasks
    assert files_after <= files + 2  # the one idle connection, its two ends


async def test_connections_are_limited_and_the_limit_is_shown(serve: Serve) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Wait(), chunk({"content": "lo"}, "stop"), DONE)))
    transport = Transport(connections_max=2)
    model = HttpModel("m", OpenAIChat("m"), server.url, lambda: transport, provider="p")
    calls = [asyncio.create_task(parts_of(model, asking())) for _ in range(6)]
    await server.until_streaming(2)
    assert transport.figures()["connections"] == transport.figures()["connections_max"] == 2
    server.go()
    await asyncio.gather(*calls)
    assert server.streaming_most == 2
    await transport.aclose()


async def test_a_flood_is_read_no_faster_than_it_is_wanted(serve: Serve, model_on: ModelOn) -> None:
    """Somebody who stops reading must not fill memory: the socket waits."""
    words = "x" * 1_000
    flood = tuple(chunk({"content": words}) for _ in range(8_000))
    server = await serve(Reply(steps=(*flood, chunk({}, "stop"), DONE)))
    stream = model_on(server).stream(asking())
    await anext(stream)
    await anext(stream)
    connection = None
    for candidate in gc.get_objects():
        if type(candidate).__name__ == "Connection" and getattr(candidate, "_unread", None) is not None:
            connection = candidate
    assert connection is not None
    await asyncio.sleep(0.1)
    assert len(connection._unread) < 2 * 256 * 1024
    total = sum(len(part.text) for part in [part async for part in stream] if isinstance(part, TextDelta))
    assert total == 1_000 * 7_999
