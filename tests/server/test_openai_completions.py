"""`/v1/models` and `/v1/chat/completions`, driven by the official `openai` client against a live server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.server.openai_client import LiveServer, chats, fresh_database, live_server, weather


class Answer(BaseModel):
    celsius: int


HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home: Path = tmp_path_factory.mktemp("home")
    with fresh_database(request.param, home, request) as url, live_server(url, home) as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[OpenAI]:
    with server.client() as client:
        yield client


def test_agents_are_models(client: OpenAI) -> None:
    assert {"echo", "caller"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("echo").owned_by == "holdfast"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-5")
    assert (caught.value.code, caught.value.type) == ("model_not_found", "invalid_request_error")


def test_a_completion_is_a_turn_of_a_durable_chat(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="echo", messages=[{"role": "user", "content": "hello"}], metadata={"ticket": "7"}
    )
    found = raw.parse()
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("You said: hello", "stop")
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens > 0
    chat = chats(client)[0]
    assert chat["id"] == raw.headers["x-holdfast-chat"]
    assert found.id.endswith(chat["id"])
    assert (chat["state"], chat["metadata"]) == ("idle", {"ticket": "7"})


def test_the_model_gets_the_whole_conversation_and_what_was_asked_of_it(client: OpenAI) -> None:
    found = client.chat.completions.create(
        model="candid",
        messages=[
            {"role": "system", "content": "Speak Latin."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "developer", "content": "And shortly."},
            {"role": "user", "content": [{"type": "text", "text": "three"}]},
        ],
        temperature=0.25,
        top_p=0.5,
        max_completion_tokens=99,
        stop=["END"],
        seed=7,
        parallel_tool_calls=False,
    )
    asked = json.loads(found.choices[0].message.content or "")
    assert asked["messages"] == [
        ["system", "Be candid.\n\nSpeak Latin.\n\nAnd shortly."],
        ["user", "one"],
        ["assistant", "two"],
        ["user", "three"],
    ]
    assert asked["settings"] == {
        "temperature": 0.25, "top_p": 0.5, "max_tokens": 99, "stop": ["END"], "seed": 7, "parallel_calls": False,
    }  # fmt: skip
    assert asked["tools"] == ["lookup"]


def test_without_tools_means_without_the_agents_own(client: OpenAI) -> None:
    found = client.chat.completions.create(
        model="candid", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, tool_choice="none"
    )
    assert json.loads(found.choices[0].message.content or "")["tools"] == []


def test_a_streamed_completion_comes_in_pieces_and_counts_its_tokens(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="story",
        messages=[{"role": "user", "content": "tell"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    text = "".join(pieces)
    assert text.startswith("word0 word1 ")
    assert text.endswith(" word119")
    assert len([piece for piece in pieces if piece]) > 5
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 120
    assert len({chunk.id for chunk in chunks}) == 1


def test_what_is_said_around_an_agents_own_tools_is_one_message(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "go"}]
    whole = client.chat.completions.create(model="worker", messages=messages)
    assert (whole.choices[0].message.content, whole.choices[0].message.tool_calls) == ("First. \n\nSecond.", None)
    chunks = list(client.chat.completions.create(model="worker", messages=messages, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "First. \n\nSecond."


def answers(calls: Any) -> list[Any]:
    return [
        {"role": "tool", "tool_call_id": call.id, "content": weather(**json.loads(call.function.arguments))}
        for call in calls
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_tools_run_by_the_client_in_a_loop(client: OpenAI, stream: bool) -> None:
    before = chats(client)
    messages: list[Any] = [{"role": "user", "content": "Rain?"}]
    calls = 0
    while True:
        if stream:
            with client.chat.completions.stream(model="caller", messages=messages, tools=TOOLS) as told:
                choice: Any = told.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(model="caller", messages=messages, tools=TOOLS).choices[0]
        if choice.finish_reason != "tool_calls":
            break
        messages.append(choice.message.to_dict())
        calls += len(choice.message.tool_calls)
        messages += answers(choice.message.tool_calls)
    assert (calls, choice.finish_reason, choice.message.content) == (2, "stop", "It rains in both.")
    (chat,) = chats(client)[: -len(before) or None]  # the one that called the tools went on
    assert chat["state"] == "idle"


def begin_calls(client: OpenAI) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "Rain?"}]
    choice = client.chat.completions.create(model="caller", messages=messages, tools=TOOLS).choices[0]
    return [*messages, choice.message.to_dict(), *answers(choice.message.tool_calls)]


def test_results_that_come_twice_count_once(client: OpenAI) -> None:
    before = chats(client)
    messages = begin_calls(client)
    first = client.chat.completions.create(model="caller", messages=messages, tools=TOOLS)
    again = client.chat.completions.create(model="caller", messages=messages, tools=TOOLS)
    assert (first.id, first.choices) == (again.id, again.choices)
    assert len(chats(client)) == len(before) + 1


def test_other_results_for_calls_that_were_answered_make_another_chat(client: OpenAI) -> None:
    before = chats(client)
    messages = begin_calls(client)
    first = client.chat.completions.create(model="caller", messages=messages, tools=TOOLS)
    messages[-1]["content"] = "snow"
    other = client.chat.completions.create(model="caller", messages=messages, tools=TOOLS)
    assert other.choices[0].message.content == "It rains in both."
    assert other.id != first.id
    assert len(chats(client)) == len(before) + 2


def test_results_of_calls_that_were_never_ours_make_a_chat_that_goes_on_from_them(client: OpenAI) -> None:
    call: Any = {
        "id": "call_abc",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
    }
    found = client.chat.completions.create(
        model="caller",
        messages=[
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_abc", "content": "rain"},
        ],
        tools=TOOLS,
    )
    assert found.choices[0].message.content == "It rains in both."  # its second answer


def test_a_result_that_is_missing_is_asked_for_by_name(client: OpenAI) -> None:
    messages = begin_calls(client)
    with pytest.raises(
        openai.BadRequestError, match=f"No tool output found for function call {messages[-1]['tool_call_id']}"
    ):
        client.chat.completions.create(model="caller", messages=messages[:-1], tools=TOOLS)


def test_the_same_request_with_the_same_key_is_one_chat(client: OpenAI) -> None:
    before = chats(client)
    key = {"Idempotency-Key": "order-7"}
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
    first = client.chat.completions.create(model="echo", messages=messages, extra_headers=key)
    again = client.chat.completions.create(model="echo", messages=messages, extra_headers=key)
    assert first == again
    assert len(chats(client)) == len(before) + 1
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "other"}], extra_headers=key
        )
    assert caught.value.code == "key_reused"


def test_a_disconnect_stops_nothing(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="story", messages=[{"role": "user", "content": "tell"}], stream=True
    )
    chunk = next(iter(stream))
    stream.close()
    chat_id = chunk.id.split("-", 2)[2]
    events = client.get(f"../api/chats/{chat_id}/events", cast_to=str)  # ends when the chat rests
    assert '"state":"idle"' in events
    (message,) = client.get(f"../api/chats/{chat_id}/messages?start=1", cast_to=dict[str, Any])["messages"]
    assert message["parts"][0]["text"].endswith(" word119")
    assert "stopped" not in message


def test_an_answer_that_is_begun_anew_with_other_words_ends_the_stream_with_an_error(
    client: OpenAI, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": str(gate)}]
    told: list[str] = []

    def hear(chunk: Any) -> None:
        told.append(chunk.choices[0].delta.content or "")
        if "".join(told) == "once upon ":
            gate.touch()

    stream = client.chat.completions.create(model="fickle", messages=messages, stream=True)
    with pytest.raises(openai.APIError, match="begun anew"):
        list(map(hear, stream))
    assert "".join(told) == "once upon "
    assert (
        client.chat.completions.create(model="fickle", messages=messages).choices[0].message.content == "twice told"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_limit_on_tokens_cut_off_says_so(client: OpenAI, stream: bool) -> None:
    asked: Any = {"model": "wordy", "messages": [{"role": "user", "content": "go on"}], "max_completion_tokens": 2}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == [
            "length"
        ]
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("length", "And then")
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked, response_format=Answer)


def test_the_schema_that_an_answer_has_to_fit_reaches_the_model_and_stays_with_the_turn(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
    wanted: Any = {"name": "verdict", "schema": schema, "strict": True}
    completion = client.chat.completions.create(
        model="candid", messages=HELLO, response_format={"type": "json_schema", "json_schema": wanted}
    )
    format: Any = {"type": "json_schema", "description": "Yours.", **wanted}
    response = client.responses.create(model="candid", input="hi", text={"format": format})
    asked = [json.loads(text) for text in (completion.choices[0].message.content or "", response.output_text)]
    assert asked[0]["output"] == {**wanted, "any_object": False}
    assert asked[1]["output"] == {**wanted, "any_object": False, "schema": {"description": "Yours.", **schema}}
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"
    newest = chats(client)[0]["id"]
    messages = client.get(f"../api/chats/{newest}/messages", cast_to=dict[str, Any])["messages"]
    assert messages[0]["sampling"]["output"]["name"] == "verdict"


def test_the_clients_own_parsers_get_what_they_asked_for(client: OpenAI) -> None:
    completion = client.chat.completions.parse(model="jsonic", messages=HELLO, response_format=Answer)
    assert completion.choices[0].message.parsed == Answer(celsius=7)
    response = client.responses.parse(model="jsonic", input="hi", text_format=Answer)
    assert response.output_parsed == Answer(celsius=7)
    assert client.responses.create(model="typed", input="hi", text={"format": {"type": "text"}}).status == "completed"
