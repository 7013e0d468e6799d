"""Every refusal under `/v1` raises the right exception of the official `openai` client."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import openai
import pytest
from openai import OpenAI

from tests.server.openai_client import LiveServer, chats, live_server

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home: Path = tmp_path_factory.mktemp("home")
    with live_server(f"sqlite:///{home}/holdfast.db", home, 0, "1") as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with server.client() as client:
        yield client


def test_a_wrong_token_is_an_authentication_error(server: LiveServer) -> None:
    with server.client("wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_foreign_origin_is_a_permission_error(client: OpenAI) -> None:
    with pytest.raises(openai.PermissionDeniedError):
        client.models.list(extra_headers={"Origin": "https://evil.example"})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"temperature": 9}, "temperature"),
        ({"extra_body": {"top_k": 4}}, "top_k"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces please"}}]}, "client_tools"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": ""}]}, "message"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client: OpenAI, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "echo", "messages": HELLO, **options})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_a_name_that_the_agents_own_tool_has_is_refused(client: OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "lookup"}}]
    with pytest.raises(openai.BadRequestError, match="give the client's another name"):
        client.chat.completions.create(model="candid", messages=HELLO, tools=tools)


@pytest.mark.parametrize(
    "options",
    [
        {"model": "gpt-5", "input": "hi"},
        {"model": "echo", "input": "hi", "previous_response_id": "resp_1_chat_none"},
        {"model": "echo", "input": "hi", "previous_response_id": "nonsense"},
    ],
)
def test_what_is_not_there_is_not_found(client: OpenAI, options: dict[str, Any]) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**options)


def test_a_response_is_only_found_where_one_begins(client: OpenAI) -> None:
    found = client.responses.create(model="echo", input="hi")
    chat_id = found.id.split("_", 2)[2]
    for start in (0, 2, 4, 99):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(f"resp_{start}_{chat_id}")
    assert client.responses.retrieve(found.id).output_text == "You said: hi"


def test_a_path_that_is_not_there_and_a_wrong_method_are_told_in_the_same_words(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.post("/embeddings", cast_to=object, body={})
    with pytest.raises(openai.APIStatusError) as caught:
        client.delete("/chat/completions", cast_to=object)
    assert caught.value.status_code == 405
    assert isinstance(caught.value.body, dict)


@pytest.mark.parametrize("stream", [False, True])
def test_a_providers_limit_is_a_rate_limit_error_and_not_tried_again(server: LiveServer, stream: bool) -> None:
    with server.client().with_options(max_retries=2) as client:
        if stream:
            with pytest.raises(openai.APIError, match="slow down"):
                list(client.chat.completions.create(model="limited", messages=HELLO, stream=True))
            return
        with pytest.raises(openai.RateLimitError, match="slow down") as caught:
            client.chat.completions.create(model="limited", messages=HELLO)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_broken_provider_is_a_server_error(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="on fire"):
        client.chat.completions.create(model="broken", messages=HELLO)
    failed = client.responses.create(model="broken", input="hi")
    assert failed.status == "failed"
    assert failed.error is not None
    assert (failed.error.code, "on fire" in failed.error.message) == ("server_error", True)
    events = list(client.responses.create(model="broken", input="hi", stream=True))
    assert events[-1].type == "response.failed"


def test_too_many_streams_are_a_rate_limit_error(client: OpenAI) -> None:
    with contextlib.closing(client.responses.create(model="stuck", input="hi", stream=True)) as first:
        begun = next(iter(first))
        assert begun.type == "response.created"
        before = chats(client)
        for stream in (True, False):
            with pytest.raises(openai.RateLimitError):
                client.responses.create(model="stuck", input="hi", stream=stream)
        assert chats(client) == before  # nothing was begun that nobody would have read
        client.responses.cancel(begun.response.id)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 1}', b"\xff\xfe"])
def test_a_body_that_is_no_request_is_a_bad_request(server: LiveServer, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    for path in ("chat/completions", "responses"):
        request = urllib.request.Request(f"{server.url}/v1/{path}", body, headers)
        with pytest.raises(HTTPError) as caught:
            urllib.request.urlopen(request)
        with caught.value as answer:
            assert answer.code == 400
            assert set(json.load(answer)["error"]) == {"message", "type", "param", "code"}
