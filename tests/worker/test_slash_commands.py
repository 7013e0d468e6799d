"""What `/name arguments` stands for: found once, where a message is accepted, and stored with it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import ask_user, slash_commands
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.history import make_valid, problems
from holdfast.core.records import Expansion, File, Message, Role, Sampling, Text
from holdfast.errors import KeyReused, SlashCommandFailed
from holdfast.ids import new_id
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.slash_commands import Expanded, SlashCommand, SlashCommands, called_in, expansion
from tests.support.turns import QUICK, rested


class Book:
    """A source whose texts a test can change, as a deploy does."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts
        self.away = False
        self.asked: list[tuple[str, str, str]] = []
        self.tool_choice: str | None = None

    async def slash_commands(self, agent: Agent[Any]) -> Sequence[SlashCommand]:
        return [SlashCommand(name=name, description=f"Does {name}.", source="skill") for name in self.texts]

    async def expand(self, agent: Agent[Any], name: str, arguments: str) -> Expanded | None:
        self.asked.append((agent.name, name, arguments))
        if name not in self.texts:
            return None
        if self.away:
            raise SlashCommandFailed(name, "its server is away")
        return Expanded(parts=(expansion(name, "skill", self.texts[name]),), tool_choice=self.tool_choice)


def app_with(url: str, model: ScriptedModel, book: Book) -> App:
    app = App(url, agents=[Agent("a", model)], retry=QUICK)
    app.slash.sources.append(book)
    return app


def typed(text: str) -> Message:
    return Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=text),))


async def test_what_a_slash_command_stands_for_is_stored_beside_what_was_typed_and_the_model_reads_both(
    store_url: str,
) -> None:
    model, book = ScriptedModel(after="echo"), Book(review="Look for races.")
    app = app_with(store_url, model, book)
    async with app.worker():
        chat = await app.create("a", "/review  the diff ")
        await rested(chat)
        book.texts["review"] = "Look for leaks."
        await chat.send("/review again")
        await rested(chat)
        first, _, second, _ = await chat.messages()
        await chat.edit(second.id, "/review once more")
        await rested(chat)
        edited = (await chat.messages())[2]
    assert book.asked == [("a", "review", "the diff"), ("a", "review", "again"), ("a", "review", "once more")]
    assert first.parts == (Text(text="/review  the diff "), expansion("review", "skill", "Look for races."))
    assert second.parts == (Text(text="/review again"), expansion("review", "skill", "Look for leaks."))
    assert edited.parts == (Text(text="/review once more"), expansion("review", "skill", "Look for leaks."))
    assert model.requests[-1].messages[0].parts == first.parts, "a changed text changes nothing of what was said"


@pytest.mark.parametrize("text", ["/unknown thing", " /review", "/", "/ review", "review", "//review", "/etc/passwd"])
async def test_a_text_that_names_no_slash_command_is_an_ordinary_message(text: str, tmp_path: Any) -> None:
    app = app_with(f"sqlite:///{tmp_path}/h.db", ScriptedModel(after="echo"), Book(review="Look for races."))
    async with app:
        chat = await app.create("a", text)
        assert (await chat.messages())[0].parts == (Text(text=text),)


async def test_a_request_that_is_made_again_after_its_text_changed_is_the_same_request(store_url: str) -> None:
    """Its key is for what the client said, not for what that stood for."""
    book = Book(review="Look for races.")
    app = app_with(store_url, ScriptedModel(after="echo"), book)
    async with app:
        chat = await app.create("a", "/review", key="create")
        sent = await chat.send("/review two", key="send")
        book.texts["review"] = "Look for leaks."
        assert (await app.create("a", "/review", key="create")).id == chat.id
        assert (await chat.send("/review two", key="send")).answer == sent.answer
        book.away = True
        assert (await app.create("a", "/review", key="create")).id == chat.id
        assert (await chat.send("/review two", key="send")).answer == sent.answer
        with pytest.raises(KeyReused):
            await chat.send("/review three", key="send")
        with pytest.raises(SlashCommandFailed, match="/review: its server is away"):
            await chat.send("/review four", key="another")
        snapshot = await chat.snapshot()
    assert len(snapshot.queue) == 1
    assert b"Look for races." in bytes(snapshot.queue[0].body)


async def test_a_command_that_is_to_be_carried_out_by_a_tool_asks_the_first_response_for_it(tmp_path: Any) -> None:
    book = Book(review="Run it.")
    book.tool_choice = "skill"
    app = app_with(f"sqlite:///{tmp_path}/h.db", ScriptedModel(), book)
    async with app:
        chat = await app.create("a", "/review")
        own = await app.create("a", Message(
            id="own", role=Role.USER, parts=(Text(text="/review"),), sampling=Sampling(tool_choice="none"))
        )  # fmt: skip
        chosen = [(await each.messages())[0].sampling for each in (chat, own)]
    assert [each and each.tool_choice for each in chosen] == ["skill", "none"], "what the client asks for stands"


async def test_a_source_that_fails_or_hangs_costs_its_deadline_and_not_the_others(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Book):
        async def slash_commands(self, agent: Agent[Any]) -> Sequence[SlashCommand]:
            raise RuntimeError("broken")

        async def expand(self, agent: Agent[Any], name: str, arguments: str) -> Expanded | None:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(slash_commands, "EXPAND_S", 0.05)
    agent = Agent("a", "scripted")
    found = SlashCommands(Broken(), Book(review="x"), Book(review="y", other="z"))
    assert [command.name for command in await found.listed(agent)] == ["other", "review"]
    with pytest.raises(SlashCommandFailed, match="took longer than"):
        await found.expanded(agent, typed("/review"))
    first = SlashCommands(Book(review="x"), Book(review="y"))
    assert (await first.expanded(agent, typed("/review"))).expansions[0].text == "x"


def test_a_message_is_expanded_once() -> None:
    whole = Message(id="m", role=Role.USER, parts=(Text(text="/a b"), expansion("a", "skill", "text")))
    assert called_in(whole) is None
    assert called_in(typed("/a b\nc d")) == ("a", "b\nc d")
    image = File(media_type="image/png", uri="data:,")
    assert called_in(Message(id="m", role=Role.USER, parts=(image, Text(text="/a")))) is None
    assert called_in(Message(id="m", role=Role.ASSISTANT, parts=(Text(text="/a"),))) is None


async def test_an_answer_by_a_slash_command_is_followed_by_what_it_stands_for(store_url: str) -> None:
    book = Book(review="Look for races.")
    app = App(
        store_url,
        agents=[
            Agent(
                "a",
                ScriptedModel([Call(name="ask_user", arguments={"question": "What?"})], after="echo"),
                tools=[ask_user()],
            )
        ],
    )
    app.slash.sources.append(book)
    async with app.worker():
        chat = await app.create("a", "go")
        await chat.turn()
        await chat.send("/review it")
        await rested(chat)
        _, _, answer, joined, _ = await chat.messages()
    assert answer.parts[0].content == "/review it"  # type: ignore[union-attr]
    assert joined.parts == (Text(text="/review it"), expansion("review", "skill", "Look for races."))


def test_an_expansion_stands_in_a_users_message_only() -> None:
    part = Expansion(name="a", source="skill", text="x")
    wrong = [typed("hi"), Message(id="m", role=Role.ASSISTANT, parts=(Text(text="yes"), part))]
    assert problems(wrong)
    assert problems(make_valid(wrong)) == []
    assert problems([Message(id="m", role=Role.USER, parts=(Text(text="/a"), part))]) == []
