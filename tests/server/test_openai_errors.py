"""Every refusal under `/v1` raises the right exception of the official `openai` client."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints
from urllib.error import HTTPError

import openai
import pytest
from openai import OpenAI
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from holdfast.server.openai.requests import Asked, CompletionAsked, ResponseAsked
from tests.server.openai_client import LiveServer, chats, live_server
from tests.support.programs import ROOT

HELLO: Any = [{"role": "user", "content": "hello"}]
SCHEMA = {"name": "answer", "schema": {"type": "object"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home: Path = tmp_path_factory.mktemp("home")
    with live_server(f"sqlite:///{home}/holdfast.db", home, "1") as server:
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
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format",
        ),
        ({"model": "typed", "response_format": {"type": "json_schema", "json_schema": SCHEMA}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
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
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client: OpenAI, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "echo", "messages": HELLO, **options})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"metadata": {"x" * 65: "a"}}, "metadata." + "x" * 65 + ".[key]"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"shape": "round"}}, "text.shape"),
        ({"model": "typed", "text": {"format": {"type": "json_schema", **SCHEMA}}}, "text.format"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1_x"}, "conversation"),
        ({"input": [{"type": "compaction", "encrypted_content": "?"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "mcp_approval_response", "approve": True}]}, "input[0]"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ],
)
def test_what_a_response_cannot_honour_is_refused_by_name(
    client: OpenAI, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "echo", "input": "hi", **options})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


@pytest.mark.parametrize(
    "options",
    [
        {"store": False}, {"user": "u"}, {"safety_identifier": "s"}, {"service_tier": "auto"},
        {"prompt_cache_key": "k"}, {"prompt_cache_retention": "24h"}, {"verbosity": "low"},
        {"prediction": {"type": "content", "content": "x"}},
        {"n": 1}, {"logprobs": False}, {"logit_bias": {}}, {"modalities": ["text"]}, {"frequency_penalty": 0.0},
        {"presence_penalty": 0}, {"response_format": {"type": "text"}}, {"tool_choice": "auto"}, {"tools": []},
        {"parallel_tool_calls": True}, {"reasoning_effort": "low"}, {"max_tokens": 50}, {"stream_options": None},
        {"stop": None}, {"messages": [{"role": "user", "content": "hello", "name": "ann"}]},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_change_the_answer_is_taken(client: OpenAI, options: dict[str, Any]) -> None:
    found = client.chat.completions.create(**{"model": "echo", "messages": HELLO, **options})
    assert found.choices[0].message.content == "You said: hello"


@pytest.mark.parametrize(
    "options",
    [
        {"store": False}, {"user": "u"}, {"include": ["reasoning.encrypted_content"]}, {"truncation": "auto"},
        {"text": {}}, {"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"tool_choice": "auto"},
        {"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning": {}}, {"top_logprobs": 0},
        {"service_tier": "default"}, {"stream_options": {"include_obfuscation": False}}, {"prompt_cache_key": "k"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_change_a_response_is_taken(client: OpenAI, options: dict[str, Any]) -> None:
    assert client.responses.create(**{"model": "echo", "input": "hi", **options}).output_text == "You said: hi"


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (CompletionAsked, CompletionCreateParamsNonStreaming),
        (ResponseAsked, ResponseCreateParamsNonStreaming),
    ],
)
def test_the_page_says_of_every_parameter_of_the_sdk_what_becomes_of_it(asked: type[Asked], sent: type) -> None:
    page = (ROOT / "docs" / "how-to" / "openai-sdk.md").read_text().partition("## What is different")[2]
    known = set(asked.model_fields)
    more = {"client_metadata", "presence_penalty", "frequency_penalty"} if asked is ResponseAsked else set()
    assert set(get_type_hints(sent)) | more == known, (
        "a parameter that the SDK sends, and nobody thought about, or the reverse"
    )
    assert {name for name in known if f"`{name}`" not in page} == set()


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
        {"model": "echo", "input": [{"type": "item_reference", "id": "msg_4_chat_none"}]},
        {"model": "echo", "input": [{"type": "item_reference", "id": "fc_a-chat_none"}]},
    ],
)
def test_what_is_not_there_is_not_found(client: OpenAI, options: dict[str, Any]) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(**options)
    assert "no chat" not in str(caught.value), "clients know of responses and items, not of chats"


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
@pytest.mark.parametrize(
    ("model", "words", "code"),
    [("limited", "slow down", "rate_limit_exceeded"), ("broken", "on fire", "server_error")],
)
def test_a_turn_that_failed_for_good_has_no_status_that_clients_try_again(
    server: LiveServer, model: str, words: str, code: str, stream: bool
) -> None:
    """Not every client heeds `x-should-retry`, and all of them try again after 408, 409, 429 and 5xx."""
    with server.client().with_options(max_retries=2) as client:
        before = len(chats(client))
        if stream:
            with pytest.raises(openai.APIError, match=words):
                list(client.chat.completions.create(model=model, messages=HELLO, stream=True))
        else:
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                client.chat.completions.create(model=model, messages=HELLO)
            assert caught.value.code == code
            assert caught.value.response.headers["x-should-retry"] == "false"
        assert len(chats(client)) == before + 1


def test_a_failed_response_says_why_in_the_protocols_shape(client: OpenAI) -> None:
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
