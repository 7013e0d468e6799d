"""Long results: the model is shown their ends and reads the rest by range; what is kept is whole."""

import json

import pytest

from holdfast.agent import Agent, AgentLimits
from holdfast.core.records import Message, Role, State, ToolResult, result_message
from holdfast.errors import ConfigError, ToolFailed
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.tools.base import Tool, tool
from holdfast.tools.results import as_shown, read_result_tool
from tests.support.turns import rested, running

SHOWN_CHARS = AgentLimits().result_chars or 0
LONG = "".join(f"{number:09}\n" for number in range(20_000))


@tool(replay="pure")
async def long() -> str:
    """A long result."""
    return LONG


def results(messages: "list[Message] | tuple[Message, ...]") -> list[ToolResult]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


async def test_a_model_is_shown_the_ends_of_a_long_result_and_reads_any_part_of_it(store_url: str) -> None:
    """On another worker, too: that one knows what is kept from the store alone."""
    made = ScriptedModel([Call(name="long")], "Read.")
    tools: list[Tool] = [long]
    async with running(store_url, Agent("reader", made, tools=tools)) as (app, _):
        chat_id = (await app.create("reader", "Read.")).id
        assert await rested(app.chat(chat_id)) is State.IDLE
        [kept] = results(await app.chat(chat_id).messages())
    assert kept.content == LONG
    assert [[spec.name for spec in request.tools] for request in made.requests] == [["long"], ["read_result", "long"]]
    [shown] = results(list(made.requests[-1].messages))
    assert len(shown.content) < SHOWN_CHARS + 300
    assert shown.content.startswith(f'[200,000 characters, the middle is left out: read_result(call="{kept.call_id}"')
    assert shown.content.endswith(LONG[-1_000:])
    ranges = [{"start": 100_000, "length": 20}, {"start": 199_990}, {"start": 200_000}]
    again = ScriptedModel(
        "(before)",
        "(before)",
        [Call(name="read_result", arguments={"call": kept.call_id, **each}) for each in ranges],
        "Done.",
    )
    async with running(store_url, Agent("reader", again, tools=tools)) as (app, _):
        await app.chat(chat_id).send("And the middle?")
        assert await rested(app.chat(chat_id)) is State.IDLE
        read = [result.content for result in results(await app.chat(chat_id).messages())[1:]]
    assert read[0] == "000010000\n000010001\n\n[characters 100,000 to 100,020 of 200,000; go on with start=100020]"
    assert read[1] == "000019999\n\n[characters 199,990 to 200,000 of 200,000]"
    assert "there is none at 200,000" in read[2]


async def test_who_wants_all_of_it_is_shown_all_of_it(store_url: str) -> None:
    model = ScriptedModel([Call(name="long")], "Read.")
    agent = Agent("reader", model, tools=[long], limits=AgentLimits(result_chars=None))
    async with running(store_url, agent) as (app, _):
        assert await rested(await app.create("reader", "Read.")) is State.IDLE
    assert [result.content for result in results(list(model.requests[-1].messages))] == [LONG]
    assert [spec.name for spec in model.requests[-1].tools] == ["long"]


@pytest.mark.parametrize(
    "arguments", [{"start": -1}, {"length": 0}, {"length": 30_001}, {"call": "of another chat"}, {"call": ""}]
)
async def test_what_is_not_there_is_said(arguments: dict[str, object]) -> None:
    made = read_result_tool()
    with pytest.raises(ToolFailed):
        await made(**made.validate(json.dumps({"call": "c", **arguments})))


def test_a_result_is_cut_once_and_always_alike() -> None:
    message = result_message(ToolResult(call_id="c", name="t", content=LONG), 0)
    assert as_shown(message, SHOWN_CHARS) == as_shown(message, SHOWN_CHARS)
    short = result_message(ToolResult(call_id="c", name="t", content="x" * SHOWN_CHARS), 0)
    assert as_shown(short, SHOWN_CHARS) is short
    said = Message(id="m", role=Role.USER, parts=message.parts)
    assert as_shown(said, SHOWN_CHARS) is said


def test_of_a_long_result_no_more_is_shown_than_was_said_however_little() -> None:
    shown = as_shown(result_message(ToolResult(call_id="call-1", name="long", content=LONG), 0), 1)
    assert len(results([shown])[0].content) < 300
    for chars in (0, -1):
        with pytest.raises(ConfigError, match="result_chars must be at least 1"):
            Agent("reader", "scripted", limits=AgentLimits(result_chars=chars))


async def test_a_part_is_no_longer_than_what_is_shown_of_a_result(store_url: str) -> None:
    """Or its own middle would be left out, behind a note that says to go on after it."""
    limits, parts = AgentLimits(result_chars=1_000), [{"start": 500}, {"start": 500, "length": 100}]
    model = ScriptedModel([Call(name="long")], "Read.")
    async with running(store_url, Agent("reader", model, tools=[long], limits=limits)) as (app, _):
        chat = await app.create("reader", "Read.")
        assert await rested(chat) is State.IDLE
        [kept] = results(await chat.messages())
    calls = [Call(name="read_result", arguments={"call": kept.call_id, **each}) for each in parts]
    again = ScriptedModel("(before)", "(before)", calls, "Done.")
    async with running(store_url, Agent("reader", again, tools=[long], limits=limits)) as (app, _):
        await app.chat(chat.id).send("And the middle?")
        assert await rested(app.chat(chat.id)) is State.IDLE
    assert [result.content for result in results(list(again.requests[-1].messages))[1:]] == [
        f"{LONG[500:1_400]}\n[characters 500 to 1,400 of 200,000; go on with start=1400]",
        f"{LONG[500:600]}\n[characters 500 to 600 of 200,000; go on with start=600]",
    ]
