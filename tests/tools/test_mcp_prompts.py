"""Prompts of an MCP server as slash commands: expanded where a message is accepted, or the sender is told."""

from pathlib import Path

import pytest

from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.records import Expansion, State
from holdfast.errors import SlashCommandFailed, ToolFailed
from holdfast.models.scripted import ScriptedModel
from holdfast.tools.mcp.prompts import ListedPrompt, PromptArgument, arguments_of, usable
from tests.support.turns import rested, running
from tests.tools.test_mcp import program
from tests.tools.test_mcp_through_a_worker import broken

REVIEW = ListedPrompt(
    name="review", arguments=(PromptArgument(name="what", required=True), PromptArgument(name="how"))
)
ONE = ListedPrompt(name="say", arguments=(PromptArgument(name="words", required=True),))


@pytest.mark.parametrize(
    ("prompt", "text", "given"),
    [
        (REVIEW, "the_diff", {"what": "the_diff"}),
        (REVIEW, "'the diff' fast", {"what": "the diff", "how": "fast"}),
        (REVIEW, "how=fast x=1", {"how": "fast", "what": "x=1"}),
        (ONE, "it's all one text", {"words": "it's all one text"}),
        (ONE, "words='a b'", {"words": "a b"}),
    ],
)
def test_arguments_are_named_or_in_their_order(prompt: ListedPrompt, text: str, given: dict[str, str]) -> None:
    assert arguments_of(prompt, text) == given


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "what is missing. It takes: what \\[how\\]"),
        ("a b c", "'c' is one argument too many"),
        ("'open", "cannot be read: No closing quotation"),
    ],
)
def test_arguments_that_do_not_fit_say_how_it_is_called(text: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        arguments_of(REVIEW, text)


def test_prompts_that_cannot_be_called_by_a_name_are_left_out() -> None:
    names = ("good", "two words", "", "x" * 200, "good", *(f"n{n}" for n in range(300)))
    found = usable([ListedPrompt(name=name) for name in names])
    assert (found[0].name, len(found), len({prompt.name for prompt in found})) == ("good", 256, 256)
    for arguments in (["x\x1b[2J"], ["a\nb"], [""], ["x" * 200], [f"n{n}" for n in range(33)]):
        bad = ListedPrompt(name="bad", arguments=tuple(PromptArgument(name=name) for name in arguments))
        assert usable([bad]) == ()


async def test_a_prompt_is_called_like_a_command_and_stored_with_the_message(store_url: str) -> None:
    model = ScriptedModel("Done.", after="echo")
    async with running(store_url, Agent("a", model, tools=[program("stdio")])) as (app, _):
        (listed,) = await app.slash_commands("a")
        chat = await app.create("a", "/t:review the_diff how=fast")
        assert await rested(chat) is State.IDLE
        first = (await chat.messages())[0]
        with pytest.raises(SlashCommandFailed, match="/t:review: what is missing"):
            await chat.send("/t:review")
        with pytest.raises(SlashCommandFailed, match="it has no such prompt"):
            await chat.send("/t:nothing")
        assert len(await chat.messages()) == 2, "nothing is half-written"
        await chat.send("/u:review is an ordinary text")
        assert await rested(chat) is State.IDLE
    assert (listed.name, listed.argument_hint, listed.source) == ("t:review", "what [how]", "prompt")
    (told,) = (part for part in first.parts if isinstance(part, Expansion))
    assert (told.name, told.text) == ("t:review", "Review the_diff, and do it fast.")
    assert "Review the_diff, and do it fast." in str(model.requests[0].messages)


async def test_a_server_that_is_away_or_a_process_without_a_worker_is_told_to_the_sender(
    tmp_path: Path, store_url: str
) -> None:
    model = ScriptedModel("Done.")
    async with running(store_url, Agent("a", model, tools=[broken()])) as (app, _):
        with pytest.raises(SlashCommandFailed, match=r"not available: .*no licence"):
            await app.create("a", "/t:review x")
        assert await app.slash_commands("a") == []
    app = App(f"sqlite:///{tmp_path}/holdfast.db", agents=[Agent("a", model, tools=[broken()])])
    async with app:
        with pytest.raises(SlashCommandFailed, match="no worker runs in this process"):
            await app.create("a", "/t:review x")
        assert await app.slash_commands("a") == []
