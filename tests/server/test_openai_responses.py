"""`/v1/responses`, driven by the official `openai` client against a live server."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.server.openai_client import LiveServer, chats, fresh_database, live_server, weather
from tests.server.openai_program import STORY

TOOLS: Any = [
    {
        "type": "function",
        "name": "weather",
        "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
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


def outputs_for(response: Response) -> Any:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": weather(**json.loads(item.arguments))}
        for item in response.output
        if item.type == "function_call"
    ]


def over(client: OpenAI, response_id: str) -> Response:
    """Its stream ends when it does."""
    list(client.responses.retrieve(response_id, stream=True))
    return client.responses.retrieve(response_id)


def test_a_response_is_answered_and_can_be_read_again(client: OpenAI) -> None:
    found = client.responses.create(
        model="candid", input="hello", instructions="Speak Latin.", temperature=0.5, metadata={"ticket": "7"}
    )
    assert (found.status, found.instructions, found.metadata) == ("completed", "Speak Latin.", {"ticket": "7"})
    asked = json.loads(found.output_text)
    assert asked["messages"] == [["system", "Be candid.\n\nSpeak Latin."], ["user", "hello"]]
    assert asked["settings"]["temperature"] == 0.5
    assert client.responses.retrieve(found.id) == found


def test_instructions_are_for_one_response(client: OpenAI) -> None:
    first = client.responses.create(model="candid", input="one", instructions="Speak Latin.")
    second = client.responses.create(model="candid", input="two", previous_response_id=first.id)
    assert json.loads(second.output_text)["messages"][0] == ["system", "Be candid."]
    assert (second.previous_response_id, second.instructions) == (first.id, None)


def test_usage_is_counted(client: OpenAI) -> None:
    found = client.responses.create(model="echo", input="one two three")
    assert found.usage is not None
    assert (found.usage.output_tokens, found.usage.total_tokens) == (5, found.usage.input_tokens + 5)


def test_a_streamed_response_tells_every_event_in_order_and_all_the_text(client: OpenAI) -> None:
    events = list(client.responses.create(model="story", input="tell", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == STORY
    assert len(deltas) > 5


def test_a_response_is_told_again_from_any_place_with_the_same_numbers(client: OpenAI) -> None:
    first = list(client.responses.create(model="worker", input="go", stream=True))
    created = first[0]
    assert created.type == "response.created"
    response_id = created.response.id
    again = list(client.responses.retrieve(response_id, stream=True))
    assert again == first
    for seen, event in enumerate(first, 1):
        rest = client.responses.retrieve(response_id, stream=True, starting_after=event.sequence_number)
        assert list(rest) == first[seen:]


def test_text_that_was_told_in_part_is_told_from_there(client: OpenAI) -> None:
    events = list(client.responses.create(model="story", input="tell", stream=True))
    created = events[0]
    assert created.type == "response.created"
    told = ""
    for seen, event in enumerate(events, 1):
        told += event.delta if event.type == "response.output_text.delta" else ""
        if seen % 7 or not told:
            continue
        rest = list(client.responses.retrieve(created.response.id, stream=True, starting_after=event.sequence_number))
        more = "".join(event.delta for event in rest if event.type == "response.output_text.delta")
        assert told + more == STORY
        assert rest[0].sequence_number > event.sequence_number
        assert rest[-1] == events[-1]


def test_the_clients_own_helper_takes_the_stream(client: OpenAI) -> None:
    with client.responses.stream(model="worker", input="go") as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "message"]
    assert final.output_text == "First. Second."


def test_an_attempt_that_was_lost_is_withdrawn_and_the_final_text_is_right(client: OpenAI, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    events: list[Any] = []
    items: dict[str, str] = {}
    with client.responses.stream(model="fickle", input=str(gate)) as stream:
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                items[event.item_id] = items.get(event.item_id, "") + event.delta
                if items[event.item_id] == "once upon ":
                    gate.touch()
        final = stream.get_final_response()
    assert final.output_text == "twice told"
    assert list(items.values()) == ["once upon ", "twice told"]
    (withdrawn,) = [
        event.item
        for event in events
        if event.type == "response.output_item.done"
        and event.item.type == "message"
        and event.item.status == "incomplete"
    ]
    assert withdrawn.id == next(iter(items))
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    # Who had seen half of what was withdrawn learns of it; who had seen nothing is not told of it at all.
    created = events[0]
    assert created.type == "response.created"
    half = next(event for event in events if event.type == "response.output_text.delta")
    rest = list(client.responses.retrieve(created.response.id, stream=True, starting_after=half.sequence_number))
    assert (rest[0].type, rest[0].sequence_number) == (
        "response.output_item.done",
        next(event.sequence_number for event in events if event.type == "response.output_item.done"),
    )
    whole = list(client.responses.retrieve(created.response.id, stream=True))
    assert [event.delta for event in whole if event.type == "response.output_text.delta"] == ["twice told"]
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    assert added == [0, 1]


def test_a_background_response_goes_on_by_itself(client: OpenAI) -> None:
    found = client.responses.create(model="story", input="tell", background=True)
    assert found.status in ("queued", "in_progress")
    assert found.background is True
    done = over(client, found.id)
    assert (done.status, done.output_text) == ("completed", STORY)


def test_a_cancelled_response_keeps_what_was_said(client: OpenAI) -> None:
    stream = client.responses.create(model="stuck", input="think", background=True, stream=True)
    events = iter(stream)
    created = next(events)
    assert created.type == "response.created"
    next(event for event in events if event.type == "response.output_text.delta")
    found = client.responses.cancel(created.response.id)
    assert (found.status, found.output_text) == ("cancelled", "Thinking… ")
    last = list(events)[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"
    assert client.responses.cancel(created.response.id) == found


def test_a_cancelled_response_of_an_earlier_turn_leaves_the_later_one_alone(client: OpenAI) -> None:
    first = client.responses.create(model="stuck", input="think", background=True)
    client.responses.cancel(first.id)
    second = client.responses.create(model="stuck", input="more", previous_response_id=first.id, background=True)
    assert client.responses.cancel(first.id).status == "cancelled"
    assert client.responses.retrieve(second.id).status in ("queued", "in_progress")
    assert client.responses.cancel(second.id).status == "cancelled"


def test_a_client_may_take_any_time_to_run_its_tools_and_holds_no_worker_meanwhile(client: OpenAI) -> None:
    first = client.responses.create(model="caller", input="Rain?", tools=TOOLS)
    chat = f"../api/chats/{first.id.split('_', 2)[2]}"
    calls = client.get(f"{chat}/calls", cast_to=dict[str, Any])["calls"]
    week_ms, hour_ms = 7 * 24 * 3600 * 1000, 3600 * 1000
    assert [call["kind"] for call in calls] == ["client"] * 2
    shown = client.get(chat, cast_to=dict[str, Any])
    assert (shown["state"], shown["worker"]) == ("waiting", None)
    assert shown["wake_at"] == min(call["expires_at"] for call in calls), "one that stays away for good is given up"
    assert abs(shown["wake_at"] - shown["created_at"] - week_ms) < hour_ms
    client.responses.cancel(first.id)


def test_a_response_that_waits_for_a_tool_is_cancelled_and_can_be_followed(client: OpenAI) -> None:
    first = client.responses.create(model="caller", input="Rain?", tools=TOOLS)
    assert client.responses.cancel(first.id).status == "cancelled"
    assert client.responses.retrieve(first.id).status == "cancelled"
    second = client.responses.create(model="caller", input="Never mind.", previous_response_id=first.id)
    assert (second.status, second.id.split("_", 2)[2]) == ("completed", first.id.split("_", 2)[2])


def test_calls_that_the_client_will_not_run_are_given_up(client: OpenAI) -> None:
    first = client.responses.create(model="caller", input="Rain?", tools=TOOLS)
    client.responses.cancel(first.id)
    chat_id = first.id.split("_", 2)[2]
    assert client.get(f"../api/chats/{chat_id}", cast_to=dict[str, Any])["state"] == "idle"
    with pytest.raises(openai.ConflictError):
        client.responses.create(model="caller", previous_response_id=first.id, input=outputs_for(first))


def test_a_conversation_goes_on_in_its_chat(client: OpenAI) -> None:
    before = chats(client)
    first = client.responses.create(model="candid", input="one")
    second = client.responses.create(model="candid", input="two", previous_response_id=first.id)
    assert json.loads(second.output_text)["messages"][1:] == [
        ["user", "one"], ["assistant", first.output_text], ["user", "two"],
    ]  # fmt: skip
    assert len(chats(client)) == len(before) + 1
    assert client.responses.retrieve(first.id) == first


def test_an_earlier_response_is_followed_by_a_fork(client: OpenAI) -> None:
    before = chats(client)
    first = client.responses.create(model="candid", input="one")
    client.responses.create(model="candid", input="two", previous_response_id=first.id)
    other = client.responses.create(model="candid", input="three", previous_response_id=first.id)
    assert [text for role, text in json.loads(other.output_text)["messages"] if role == "user"] == ["one", "three"]
    third = client.responses.create(model="candid", input="four", previous_response_id=other.id)
    said = [text for role, text in json.loads(third.output_text)["messages"] if role == "user"]
    assert said == ["one", "three", "four"]
    assert len(chats(client)) == len(before) + 2


def test_of_two_that_follow_the_same_response_at_once_neither_hears_of_the_other(client: OpenAI) -> None:
    first = client.responses.create(model="candid", input="one")

    def follow(text: str) -> list[str]:
        found = client.responses.create(model="candid", input=text, previous_response_id=first.id)
        return [text for role, text in json.loads(found.output_text)["messages"] if role == "user"]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(follow, ("two", "three"))) == [["one", "two"], ["one", "three"]]


def test_a_response_that_an_edit_took_out_of_its_chat_is_not_followed_by_less_than_it_said(client: OpenAI) -> None:
    """Whoever goes on from it means its words. They are no longer there, and a model would not be told."""
    first = client.responses.create(model="candid", input="one")
    key = {"Idempotency-Key": "edited away"}
    given: Any = {"model": "candid", "input": "two", "previous_response_id": first.id, "extra_headers": key}
    second = client.responses.create(**given)
    chat = f"../api/chats/{second.id.split('_', 2)[2]}"
    history = client.get(f"{chat}/messages", cast_to=dict[str, Any])["messages"]
    client.post(f"{chat}/messages/{history[2]['id']}/edit", body={"message": "rather this"}, cast_to=dict[str, Any])
    client.get(f"{chat}/events", cast_to=str)  # until it rests
    with pytest.raises(openai.NotFoundError, match="edited"):
        client.responses.create(model="candid", input="three", previous_response_id=second.id)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert client.responses.create(**given).id == second.id, "asked again with its key, it is what it was"
    other = client.responses.create(model="candid", input="three", previous_response_id=first.id)
    assert [text for _, text in json.loads(other.output_text)["messages"]][1:] == ["one", first.output_text, "three"]


def test_a_repeated_follow_up_with_a_key_is_one_turn_also_in_a_fork(client: OpenAI) -> None:
    first = client.responses.create(model="candid", input="one")
    client.responses.create(model="candid", input="two", previous_response_id=first.id)
    before = chats(client)
    key = {"Idempotency-Key": f"key of {first.id}"}
    found = [
        client.responses.create(model="candid", input="three", previous_response_id=first.id, extra_headers=key)
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert len(chats(client)) == len(before) + 1


def test_a_response_in_progress_has_no_follower(client: OpenAI) -> None:
    found = client.responses.create(model="stuck", input="think", background=True)
    with pytest.raises(openai.BadRequestError, match="still in progress") as caught:
        client.responses.create(model="stuck", input="more", previous_response_id=found.id)
    assert caught.value.param == "previous_response_id"
    assert client.responses.cancel(found.id).status == "cancelled"
    after = client.responses.create(model="stuck", input="more", previous_response_id=found.id, background=True)
    client.responses.cancel(after.id)


@pytest.mark.parametrize("stateless", [False, True])
def test_tools_run_by_the_client(client: OpenAI, stateless: bool) -> None:
    before = chats(client)
    first = client.responses.create(model="caller", input="Rain?", tools=TOOLS)
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert first.status == "completed"
    outputs = outputs_for(first)
    assert [output["output"] for output in outputs] == ["rain in Bern", "rain in Basel"]
    given: Any = {"input": outputs, "previous_response_id": first.id}
    if stateless:
        said = [item.to_dict() for item in first.output]
        given = {"input": [{"role": "user", "content": "Rain?"}, *said, *outputs]}
    second = client.responses.create(model="caller", tools=TOOLS, **given)
    assert second.output_text == "It rains in both."
    assert second.id != first.id
    assert len(chats(client)) == len(before) + 1
    assert client.responses.retrieve(first.id) == first
    assert client.responses.create(model="caller", tools=TOOLS, **given) == second  # and only once


def test_results_in_two_tries_count_once(client: OpenAI) -> None:
    """A first try that ended between two results is finished by the second."""
    first = client.responses.create(model="caller", input="Rain?", tools=TOOLS)
    outputs = outputs_for(first)
    call_id, _, chat_id = outputs[0]["call_id"].partition("-")
    client.post(
        f"../api/chats/{chat_id}/calls/{call_id}/result", cast_to=object, body={"content": outputs[0]["output"]}
    )
    second = client.responses.create(model="caller", previous_response_id=first.id, input=outputs)
    assert second.output_text == "It rains in both."


def test_results_that_are_missing_or_differ_are_refused(client: OpenAI) -> None:
    first = client.responses.create(model="caller", input="Rain?", tools=TOOLS)
    outputs = outputs_for(first)
    for given in (outputs[:1], "never mind"):
        with pytest.raises(openai.BadRequestError, match="No tool output found"):
            client.responses.create(model="caller", previous_response_id=first.id, input=given)
    client.responses.create(model="caller", previous_response_id=first.id, input=outputs)
    outputs[0]["output"] = "snow"
    with pytest.raises(openai.ConflictError, match="answered before"):
        client.responses.create(model="caller", previous_response_id=first.id, input=outputs)


def test_a_message_beside_the_answer_to_a_question_is_not_taken_for_the_answer(client: OpenAI) -> None:
    first = client.responses.create(model="curious", input="go", tools=TOOLS)
    asked, called = [item for item in first.output if item.type == "function_call"]
    given: Any = [
        {"type": "function_call_output", "call_id": asked.call_id, "output": "In Bern."},
        {"type": "function_call_output", "call_id": called.call_id, "output": "rain in Bern"},
        {"role": "user", "content": "And hurry."},
    ]
    second = client.responses.create(model="curious", previous_response_id=first.id, input=given)
    assert second.status == "completed"
    said = client.responses.input_items.list(second.id, order="asc", limit=100)
    assert [item.output for item in said.data if item.type == "function_call_output"] == ["In Bern.", "rain in Bern"]
    assert said.data[-1].to_dict()["content"] == [{"type": "input_text", "text": "And hurry."}]


def test_a_message_beside_results_joins_the_turn(client: OpenAI) -> None:
    first = client.responses.create(model="caller", input="Rain?", tools=TOOLS)
    given = [*outputs_for(first), {"role": "user", "content": "And hurry."}]
    second = client.responses.create(model="caller", previous_response_id=first.id, input=given)
    assert second.status == "completed"
    said = client.responses.input_items.list(second.id, order="asc", limit=100)
    assert [item.type for item in said.data] == [
        "message", "message", "function_call", "function_call",
        "function_call_output", "function_call_output", "message",
    ]  # fmt: skip


def test_input_items_are_listed_in_pages(client: OpenAI) -> None:
    found = client.responses.create(
        model="echo",
        input=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
        ],
    )
    items: list[Any] = list(client.responses.input_items.list(found.id, limit=1))
    texts = [item.content[0].text for item in items]
    assert texts == ["three", "two", "one"]


def test_large_items_are_listed_in_pages_of_about_a_megabyte(client: OpenAI) -> None:
    """All of them came at once, a hundred messages of megabytes each, for every client that asked."""
    letters = "abcdefgh"
    said: Any = [
        {"role": "user" if at % 2 else "assistant", "content": letter * 600_000} for at, letter in enumerate(letters)
    ]
    found = client.responses.create(model="judge", input=said)
    raw = client.responses.input_items.with_raw_response
    assert len(raw.list(found.id, limit=100).content) < 2_000_000
    forth: list[Any] = list(client.responses.input_items.list(found.id, order="asc", limit=100))
    assert "".join(item.content[0].text[0] for item in forth) == letters
    back: list[Any] = list(client.responses.input_items.list(found.id, order="desc", limit=100))
    assert "".join(item.content[0].text[0] for item in back) == letters[::-1]
    made = client.conversations.create(items=said)
    kept: list[Any] = list(client.conversations.items.list(made.id, order="desc", limit=100))
    assert "".join(item.content[0].text[0] for item in kept) == letters[::-1]
    with pytest.raises(openai.BadRequestError, match="names no item"):
        client.responses.input_items.list(found.id, after="msg_elsewhere")


def test_a_deleted_response_is_gone_with_its_chat(client: OpenAI) -> None:
    first = client.responses.create(model="echo", input="one")
    second = client.responses.create(model="echo", input="two", previous_response_id=first.id)
    for response in (first, second):
        with pytest.raises(openai.ConflictError):
            client.responses.delete(response.id)
    alone = client.responses.create(model="echo", input="one")
    client.responses.delete(alone.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(alone.id)


def test_a_response_waits_for_whoever_waits_not_longer_than_it_takes(client: OpenAI) -> None:
    """Begun in the background, read by a stream that was there first."""
    found = client.responses.create(model="story", input="tell", background=True)
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: list(client.responses.retrieve(found.id, stream=True)), range(4)))
    for events in told:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == STORY
        assert events[-1] == told[0][-1]


def test_a_response_that_the_limit_on_tokens_cut_off_is_incomplete(client: OpenAI) -> None:
    found = client.responses.create(model="wordy", input="go on", max_output_tokens=16)
    assert (found.status, found.output_text) == ("incomplete", "And then")
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    (item,) = found.output
    assert item.type == "message"
    assert item.status == "incomplete"
    assert client.responses.retrieve(found.id) == found
    last = list(client.responses.create(model="wordy", input="go on", stream=True))[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "incomplete"
    after = client.responses.create(model="echo", input="hello", stream=True)
    assert list(after)[-1].type == "response.completed"


# --- what a request asks of a turn that goes on -------------------------------------------------------


def handed_over(client: OpenAI, **asked: Any) -> dict[str, Any]:
    """What the model was asked after the results of the first response."""
    first = client.responses.create(
        model="handover", input="Refund!", tools=TOOLS, instructions="Triage.", temperature=0.1
    )
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "to refunds"}  # type: ignore[union-attr]
    said = [{"role": "user", "content": "Refund!"}, first.output[0].to_dict(), result]
    given: Any = {"input": said} if asked.pop("stateless") else {"input": [result], "previous_response_id": first.id}
    second = client.responses.create(**{"model": "handover", **given, **asked})
    assert client.responses.retrieve(second.id) == second
    assert client.responses.create(**{"model": "handover", **given, **asked}) == second
    return {**json.loads(second.output_text), "shown": second}


@pytest.mark.parametrize("stateless", [False, True])
def test_a_request_that_brings_results_keeps_what_it_asks_for(client: OpenAI, stateless: bool) -> None:
    """A hand-off: from here on another agent of the client speaks, with its own words, tools and settings."""
    tools = [{**TOOLS[0], "name": "pay_back"}]
    told = handed_over(
        client, stateless=stateless, instructions="Refund people.", tools=tools, temperature=0.9,
        tool_choice="auto", text={"format": {"type": "json_object"}}, metadata={"agent": "refunds"},
    )  # fmt: skip
    assert told["messages"][0] == ["system", "Refund people."]
    assert (told["tools"], told["settings"]["temperature"]) == (["pay_back"], 0.9)
    assert told["output"]["any_object"] is True
    shown: Response = told["shown"]
    assert (shown.instructions, shown.temperature, shown.metadata) == ("Refund people.", 0.9, {"agent": "refunds"})
    assert [tool.name for tool in shown.tools if tool.type == "function"] == ["pay_back"]


def test_what_a_request_with_results_does_not_ask_for_is_not_asked_for_any_more(client: OpenAI) -> None:
    told = handed_over(client, stateless=False)
    assert [role for role, _ in told["messages"]] == ["user", "assistant", "tool"]
    assert (told["tools"], told["settings"]["temperature"]) == ([], None)


def test_another_model_takes_over_with_what_was_said(client: OpenAI) -> None:
    told = handed_over(client, stateless=False, model="candid", instructions="Refund people.")
    assert told["messages"][0] == ["system", "Be candid.\n\nRefund people."]
    assert told["messages"][1:] == [["user", "Refund!"], ["assistant", ""], ["tool", ""]]


@pytest.mark.parametrize(
    ("choice", "heard"),
    [
        ("required", "required"),
        ({"type": "function", "name": "weather"}, "weather"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            "required",
        ),
    ],
)
def test_a_call_that_is_asked_for_is_asked_of_the_model(client: OpenAI, choice: Any, heard: str) -> None:
    tools = [*TOOLS, {**TOOLS[0], "name": "other"}]
    found = client.responses.create(model="candid", input="go", tools=tools, tool_choice=choice)
    told = json.loads(found.output_text)
    assert told["tool_choice"] == heard
    allowed = isinstance(choice, dict) and choice["type"] == "allowed_tools"
    assert told["tools"] == (["weather"] if allowed else ["lookup", "other", "weather"])
    again = handed_over(client, stateless=False, tools=tools, tool_choice=choice)
    assert again["tool_choice"] == heard, "of the first response after the results as well"


def test_an_image_in_a_result_is_shown_to_the_model(client: OpenAI) -> None:
    first = client.responses.create(model="handover", input="Look!", tools=TOOLS)
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    output: Any = {
        "type": "function_call_output",
        "call_id": first.output[0].call_id,  # type: ignore[union-attr]
        "output": [{"type": "input_text", "text": "a chart"}, picture],
    }
    given: Any = {"model": "handover", "input": [output], "previous_response_id": first.id}
    second = client.responses.create(**given)
    assert json.loads(second.output_text)["files"] == ["data:image/png;base64,AAAA"]
    assert client.responses.create(**given) == second
    said = client.responses.input_items.list(second.id, limit=1).data[0].to_dict()
    assert [part["type"] for part in said["output"]] == ["input_text", "input_image"]  # type: ignore[attr-defined]


def test_items_may_be_named_instead_of_repeated(client: OpenAI) -> None:
    """As the AI SDK does in its second turn."""
    first = client.responses.create(model="candid", input="one")
    given: Any = [
        {"role": "user", "content": "one"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "two"},
    ]
    second = client.responses.create(model="candid", input=given, extra_body={"client_metadata": {"a": "b"}})
    assert json.loads(second.output_text)["messages"][1:] == [
        ["user", "one"], ["assistant", first.output_text], ["user", "two"],
    ]  # fmt: skip
    called = client.responses.create(model="handover", input="Refund!", tools=TOOLS)
    call: Any = called.output[0]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    items: Any = [{"role": "user", "content": "Refund!"}, {"id": call.id}, output]
    after = client.responses.create(model="handover", input=items, tools=TOOLS)
    assert after.id.split("_", 2)[2] == called.id.split("_", 2)[2], "the chat that waits goes on"


# --- approvals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_an_open_approval_is_told_and_can_be_answered(client: OpenAI, approve: bool, stream: bool) -> None:
    if stream:
        last = list(client.responses.create(model="payer", input="Pay.", stream=True))[-1]
        assert last.type == "response.incomplete"
        first = last.response
    else:
        first = client.responses.create(model="payer", input="Pay.")
    assert (first.status, first.incomplete_details and first.incomplete_details.reason) == (
        "incomplete", "approval_required",
    )  # fmt: skip
    asked = first.output[-1]
    assert asked.type == "mcp_approval_request"
    assert (asked.name, json.loads(asked.arguments)) == ("pay", {"amount": 7})
    with pytest.raises(openai.BadRequestError, match="No approval response found"):
        client.responses.create(model="payer", input="Well?", previous_response_id=first.id)
    answer: Any = {
        "type": "mcp_approval_response", "approval_request_id": asked.id, "approve": approve, "reason": "Too much.",
    }  # fmt: skip
    given: Any = {"model": "payer", "previous_response_id": first.id, "input": [answer]}
    second = client.responses.create(**given)
    assert second.output_text == (
        "paid 7" if approve else 'Denied: a person refused this call. They said: "Too much."'
    )
    assert client.responses.create(**given) == second, "sent again, it is the same answer"
    assert client.responses.retrieve(first.id) == first


def test_an_approval_that_a_person_gave_elsewhere_lets_the_client_go_on(client: OpenAI) -> None:
    first = client.responses.create(model="payer", input="Pay.")
    asked: Any = first.output[-1]
    call_id, _, chat_id = asked.id.removeprefix("mcpr_").partition("-")
    client.post(f"../api/chats/{chat_id}/calls/{call_id}/approve", cast_to=object, body={})
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
    found = client.responses.create(model="payer", previous_response_id=first.id, input=[answer])
    assert found.output_text == "paid 7"


def test_a_completion_says_what_a_person_has_to_approve(client: OpenAI) -> None:
    hello: Any = [{"role": "user", "content": "Pay."}]
    key = {"Idempotency-Key": "pay once"}
    with pytest.raises(openai.BadRequestError, match="approval of pay") as caught:
        client.chat.completions.create(model="payer", messages=hello, extra_headers=key)
    assert caught.value.code == "turn_waits"
    with pytest.raises(openai.APIError, match="approval of pay"):
        list(client.chat.completions.create(model="payer", messages=hello, stream=True))
    chat = f"../api/chats/{caught.value.response.headers['x-holdfast-chat']}"
    (call,) = client.get(f"{chat}/calls", cast_to=dict[str, Any])["calls"]
    client.post(f"{chat}/calls/{call['call_id']}/approve", cast_to=object, body={})
    found = client.chat.completions.create(model="payer", messages=hello, extra_headers=key)
    assert found.choices[0].message.content == "paid 7", "asked again with its key, it goes past what was approved"


# --- conversations, counting, summaries ---------------------------------------------------------------


def test_a_conversation_is_kept_by_its_id(client: OpenAI) -> None:
    said: Any = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    made = client.conversations.create(items=said, metadata={"topic": "kelp"})
    client.conversations.items.create(made.id, items=[{"type": "message", "role": "user", "content": "three"}])
    asked: Any = [{"type": "function_call", "call_id": "c1", "name": "rain", "arguments": "{}"}]
    asked += [{"type": "function_call_output", "call_id": "c1", "output": "no"}]
    other = client.conversations.create(items=asked)
    with pytest.raises(openai.BadRequestError, match="c1 is in this conversation already"):
        client.conversations.items.create(other.id, items=asked)
    assert client.conversations.retrieve(made.id).metadata == {"topic": "kelp"}
    first = client.responses.create(model="candid", conversation=made.id, input="four")
    heard = [text for role, text in json.loads(first.output_text)["messages"] if role != "system"]
    assert heard == ["one", "two", "three", "four"]
    assert first.conversation is not None
    assert first.conversation.id == made.id
    second = client.responses.create(model="candid", conversation={"id": made.id}, input="five")
    assert [text for role, text in json.loads(second.output_text)["messages"]][-1] == "five"
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert len(items) == 7, "all of them, page by page"
    with pytest.raises(openai.BadRequestError, match="another one than that of the conversation"):
        client.responses.create(model="echo", conversation=made.id, input="six")
    with pytest.raises(openai.ConflictError, match="has begun"):
        client.conversations.items.create(made.id, items=said)
    client.conversations.delete(made.id)
    for wrong in (made.id, "conv_none", "nonsense"):
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(wrong)


def test_the_tools_of_a_conversation_are_answered_in_it(client: OpenAI) -> None:
    made = client.conversations.create()
    first = client.responses.create(model="caller", conversation=made.id, input="Rain?", tools=TOOLS)
    with pytest.raises(openai.BadRequestError, match="waits for results"):
        client.responses.create(model="caller", conversation=made.id, input="Well?")
    second = client.responses.create(model="caller", conversation=made.id, input=outputs_for(first), tools=TOOLS)
    assert second.output_text == "It rains in both."


def test_tokens_of_an_input_are_counted_without_asking_a_model(client: OpenAI) -> None:
    before = chats(client)
    short = client.responses.input_tokens.count(model="echo", input="hello")
    long = client.responses.input_tokens.count(model="echo", input="hello " * 100, tools=TOOLS)
    assert 0 < short.input_tokens < long.input_tokens
    assert chats(client) == before


def test_a_summary_stands_for_what_was_said(client: OpenAI) -> None:
    before = chats(client)
    said: Any = [
        {"role": role, "content": f"{role} {number} " + "words " * 200}
        for number in range(20)
        for role in ("user", "assistant")
    ]
    assert client.responses.compact(model="plain", input=said).object == "response.compaction"
    made = client.post("/responses/compact", cast_to=dict[str, Any], body={"model": "plain", "input": said})
    assert (made["output"][0]["type"], len(made["output"]) < len(said)) == ("compaction", True)
    items: Any = [*made["output"], {"role": "user", "content": "And now?"}]
    found = client.responses.create(model="candid", input=items)
    heard = [text for _, text in json.loads(found.output_text)["messages"]]
    assert "Hello there." in heard[1]
    assert heard[-1] == "And now?"
    assert len(chats(client)) == len(before) + 1, "what was summarised left nothing behind"
