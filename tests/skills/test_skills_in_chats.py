"""Skills in chats: what a model is told of them, activates and may do; what a crash and a deploy leave of it."""

import asyncio
from pathlib import Path
from typing import Any

from holdfast import CompactionPolicy, Permissions
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core.journal import Compacted
from holdfast.core.records import Message, Role, State, ToolResult
from holdfast.core.skill_texts import skill_in
from holdfast.models.base import Request
from holdfast.models.scripted import Call, Fail, ScriptedModel, Together
from holdfast.skills.shelf import Skills
from holdfast.tools.base import tool
from holdfast.tools.sub_agents import agent_tools
from tests.support.skill_folders import write_skill
from tests.support.turns import QUICK, Gate, entries, rested, running, weather


def agent_with(folder: Path, model: ScriptedModel, **more: Any) -> Agent:
    return Agent("a", model, instructions="Be brief.", skills=[Skills(folder)], **more)


def system(request: Request) -> str:
    return "".join(message.text for message in request.messages if message.role is Role.SYSTEM)


def results(messages: list[Message]) -> list[ToolResult]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


def activate(name: str, arguments: str | None = None) -> Call:
    return Call(name="skill", arguments={"name": name, **({"arguments": arguments} if arguments else {})})


async def test_a_model_is_told_of_skills_activates_one_and_reads_its_files(store_url: str, tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "s", "review", "Look for races in $ARGUMENTS. See notes.md.")
    (folder / "notes.md").write_text("Locks first.")
    write_skill(tmp_path / "s", "secret", disable_model_invocation="true")
    read = Call(name="read_skill_file", arguments={"name": "review", "path": "notes.md"})
    model = ScriptedModel([activate("review", "a.py")], [read], "Done.")
    async with running(store_url, agent_with(tmp_path / "s", model)) as (app, _):
        chat = await app.create("a", "Review a.py")
        assert await rested(chat) is State.IDLE
        activated, notes = results(await chat.messages())
    told = system(model.requests[0])
    assert told.startswith("Be brief.")
    assert "- review: Knows how to review." in told
    assert "secret" not in told
    spec = next(spec for spec in model.requests[0].tools if spec.name == "skill")
    assert b'"enum":["review"]' in bytes(spec.schema)  # type: ignore[arg-type]
    found = skill_in(activated.content)
    assert found is not None
    assert "Look for races in a.py. See notes.md." in found.text
    assert "notes.md" in found.text.split("Files in it")[1]
    assert notes.content == "Locks first."


async def test_an_agent_without_skills_has_no_tool_and_is_told_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    model = ScriptedModel(after="echo")
    async with running(f"sqlite:///{tmp_path}/h.db", agent_with(tmp_path / "s", model, tools=[weather])) as (app, _):
        await rested(await app.create("a", "hello"))
        write_skill(tmp_path / "s", "late")
        chat = await app.create("a", "and now")
        await rested(chat)
        await rested(await app.create("a", "none", active_tools=[]))
    first, second, third = model.requests
    assert [spec.name for spec in first.tools] == ["weather"]
    assert system(first) == "Be brief."
    assert [spec.name for spec in second.tools] == ["weather", "skill", "read_skill_file"], (
        "files are looked at again"
    )
    assert (third.tools, system(third)) == ((), "Be brief."), "what cannot be called is not told of"


async def test_a_skill_that_is_active_is_not_shown_twice_unless_it_changed(store_url: str, tmp_path: Path) -> None:
    write_skill(tmp_path / "s", "review", "First text.")
    model = ScriptedModel(
        [activate("review")],
        "One.",
        [activate("review")],
        "Two.",
        [activate("review")],
        "Three.",
        [activate("gone")],
        "x",
    )
    async with running(store_url, agent_with(tmp_path / "s", model)) as (app, _):
        chat = await app.create("a", "go")
        await rested(chat)
        await chat.send("again")
        await rested(chat)
        write_skill(tmp_path / "s", "review", "Second text, longer.")
        await chat.send("once more")
        await rested(chat)
        await chat.send("and one that is not there")
        await rested(chat)
        first, second, third, fourth = results(await chat.messages())
    assert "First text." in first.content
    assert second.content == "The skill review is active already, with this very text: go on with it."
    assert "Second text, longer." in third.content
    assert fourth.error
    assert "There is no skill 'gone' now. There are: review." in fourth.content


async def test_a_person_calls_a_skill_by_its_name(store_url: str, tmp_path: Path) -> None:
    write_skill(
        tmp_path / "s",
        "fix",
        "Fix issue $issue on $1.",
        arguments="[issue, branch]",
        argument_hint="[issue] [branch]",
    )
    write_skill(tmp_path / "s", "inner", user_invocable="false")
    model = ScriptedModel(after="echo")
    async with running(store_url, agent_with(tmp_path / "s", model)) as (app, _):
        listed = await app.slash_commands("a")
        chat = await app.create("a", "/fix 12 'my branch'")
        await rested(chat)
        await chat.send("/inner")
        await rested(chat)
        first, _, second, _ = await chat.messages()
    assert [(command.name, command.argument_hint) for command in listed] == [("fix", "[issue] [branch]")]
    (part,) = first.expansions
    assert "Fix issue 12 on my branch." in part.text
    assert second.expansions == (), "one that is not for people is none of theirs"
    assert first.text == "/fix 12 'my branch'"


# --- what a crash, a deploy and a compaction leave -----------------------------------------------------


async def test_the_text_that_a_model_saw_is_the_one_of_its_activation_whatever_a_deploy_brings(
    store_url: str, tmp_path: Path
) -> None:
    """A worker goes in mid-turn, the file is another one, and a new worker goes on: the text is in the history."""
    write_skill(tmp_path / "s", "review", "Text of the first deploy.")
    gate = Gate()
    model = ScriptedModel([activate("review")], [Call(name="gate")], "Done.")
    agent = agent_with(tmp_path / "s", model, tools=[gate.tool(replay="pure")])
    app = App(store_url, agents=[agent], retry=QUICK)
    async with app:
        chat = await app.create("a", "/review it")
        async with app.worker(grace_s=0.0):
            await asyncio.wait_for(gate.entered.wait(), 30)
        write_skill(tmp_path / "s", "review", "Text of the second deploy, which differs.")
        gate.opened.set()
        async with app.worker():
            assert await rested(chat) is State.IDLE
            await chat.send("/review again")
            await rested(chat)
    before, after = model.requests[-2], model.requests[-1]
    for request in (before, after):
        assert "first deploy" in request.messages[1].expansions[0].text
    assert "second deploy" not in str(before.messages), "the turn goes on with the text that it began with"
    assert "second deploy" in after.messages[-1].expansions[0].text


def filler(size: int) -> str:
    return "word " * (size // 5)


async def test_active_skills_outlive_a_compaction_and_a_successor_shows_the_same(
    store_url: str, tmp_path: Path
) -> None:
    write_skill(tmp_path / "s", "review", "Instruction number one.")
    write_skill(tmp_path / "s", "deploy", "Instruction number two.")
    model = ScriptedModel([activate("deploy")], "Ready.", per="turn")
    policy = CompactionPolicy(model=ScriptedModel(after="echo"), keep_turns=1)
    agent = agent_with(tmp_path / "s", model, compaction=policy)
    app = App(store_url, agents=[agent], retry=QUICK)
    async with app:
        async with app.worker():
            chat = await app.create("a", "/review the code")
            await rested(chat)
            for n in range(3):
                await chat.send(f"{n} {filler(400)}")
                await rested(chat)
            await chat.compact()
            await rested(chat)
            write_skill(tmp_path / "s", "review", "A text that nobody activated.")
            await chat.send("go on")
            await rested(chat)
        async with app.worker():  # another one, which knows only what is stored
            await chat.send("and on")
            await rested(chat)
            await chat.send("skill again")
            await rested(chat)
        copy = await chat.fork()
        async with app.worker():
            await copy.send("in a copy")
            await rested(copy)
        compacted = [entry for entry in await entries(chat) if isinstance(entry, Compacted)]
        messages = await chat.messages()
    assert len(compacted) == 1
    going = [request for request in model.requests if request.messages[1].id.startswith("summary.")]
    assert len(going) >= 3
    shown = {request.messages[1].text for request in going}
    assert len(shown) == 1, "every runner, and a fork, builds the same"
    (text,) = shown
    assert text.count("<skill_content") == 2
    assert "Instruction number one." in text
    assert "Instruction number two." in text
    assert text == f"{text.partition(compacted[0].summary)[0]}{compacted[0].summary}", "the journal has it"
    assert not any("nobody activated" in str(request.messages) for request in going)
    first, *others = results(messages)
    assert "Instruction number two." in first.content
    assert {result.content.partition(",")[0] for result in others} == {"The skill deploy is active already"}


async def test_an_edit_before_a_compaction_drops_what_it_carried(store_url: str, tmp_path: Path) -> None:
    write_skill(tmp_path / "s", "review", "Instruction number one.")
    model = ScriptedModel(after="echo")
    agent = agent_with(
        tmp_path / "s", model, compaction=CompactionPolicy(model=ScriptedModel(after="echo"), keep_turns=1)
    )
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "hello")
        await rested(chat)
        await chat.send("/review")
        await rested(chat)
        await chat.send("more")
        await rested(chat)
        await chat.compact()
        await rested(chat)
        await chat.send("with it")
        await rested(chat)
        second = (await chat.messages())[2]
        await chat.edit(second.id, "without it")
        await rested(chat)
    assert "Instruction number one." in str(model.requests[-2].messages)
    assert "Instruction number one." not in str(model.requests[-1].messages)


# --- in a chat of its own --------------------------------------------------------------------------------


async def forked(
    store_url: str, tmp_path: Path, answer: list[Any], **keys: str
) -> tuple[ToolResult, list[Message], App]:
    write_skill(tmp_path / "s", "research", "Find out about $ARGUMENTS.", context="fork", agent="helper", **keys)
    boss = ScriptedModel([activate("research", "kelp")], "Told.")
    helper = ScriptedModel(*answer)
    agents = [agent_with(tmp_path / "s", boss, tools=agent_tools(["helper"])), Agent("helper", helper)]
    app = App(store_url, agents=agents, retry=QUICK)
    async with app.worker():
        chat = await app.create("a", "go")
        await chat.turn()
        (child,) = await chat.children()
        said = await app.chat(child.chat_id).messages()
        (result,) = results(await chat.messages())
    assert child.agent == "helper"
    return result, said, app


async def test_a_skill_that_forks_runs_in_a_child_chat_and_its_answer_comes_back(
    store_url: str, tmp_path: Path
) -> None:
    result, said, _ = await forked(store_url, tmp_path, ["Kelp grows fast."])
    assert (result.content, result.error) == ("Kelp grows fast.", False)
    assert said[0].text == "/research kelp"
    assert "Find out about kelp." in said[0].expansions[0].text


async def test_a_forked_skill_that_says_nothing_is_a_success(store_url: str, tmp_path: Path) -> None:
    result, _, _ = await forked(store_url, tmp_path, [""])
    assert (result.content, result.error) == ("It ended, and said nothing.", False)


async def test_a_forked_skill_that_fails_is_an_error_that_says_so(store_url: str, tmp_path: Path) -> None:
    result, _, _ = await forked(store_url, tmp_path, [[Fail(status=400, message="no such model")]])
    assert result.error
    assert "The sub-agent failed: " in result.content


async def test_a_forked_skill_that_is_stopped_is_an_error_that_says_so(store_url: str, tmp_path: Path) -> None:
    write_skill(tmp_path / "s", "research", "Find out.", context="fork", agent="helper")
    gate = Gate()
    boss = ScriptedModel([activate("research", "one")], "Stopped.")
    helper = Agent("helper", ScriptedModel([Call(name="gate")]), tools=[gate.tool(replay="pure")])
    app = App(
        store_url, agents=[agent_with(tmp_path / "s", boss, tools=agent_tools(["helper"])), helper], retry=QUICK
    )
    async with app.worker():
        chat = await app.create("a", "go")
        await asyncio.wait_for(gate.entered.wait(), 30)
        (child,) = await chat.children()
        await app.chat(child.chat_id).stop()
        await chat.turn()
        (result,) = results(await chat.messages())
    assert result.error
    assert "was stopped by the user before it had an answer" in result.content


async def test_another_agent_runs_a_skill_only_where_this_one_may_spawn_it(tmp_path: Path) -> None:
    """`agent: admin` in a file of a project is no way to what an admin may do."""
    write_skill(tmp_path / "s", "research", "Find out.", context="fork", agent="admin")
    model = ScriptedModel([activate("research")], "In the child.", "Told.")
    agents = [
        agent_with(tmp_path / "s", model, tools=agent_tools(["helper"])),
        Agent("admin", ScriptedModel(after="echo")),
    ]
    app = App(f"sqlite:///{tmp_path}/h.db", agents=agents, retry=QUICK)
    async with app.worker():
        chat = await app.create("a", "go")
        await chat.turn()
        (child,) = await chat.children()
    assert child.agent == "a"


async def test_a_skill_that_is_gone_since_a_person_called_it_makes_the_model_call_no_other(tmp_path: Path) -> None:
    gone = write_skill(tmp_path / "s", "research", "Find out.", context="fork")
    write_skill(tmp_path / "s", "other")
    model = ScriptedModel(after="echo")
    app = App(f"sqlite:///{tmp_path}/h.db", agents=[agent_with(tmp_path / "s", model)], retry=QUICK)
    async with app:
        chat, there = await app.create("a", "/research kelp"), await app.create("a", "/research more")
        (gone / "SKILL.md").unlink()
        async with app.worker():
            await rested(chat)
            await rested(there)
            assert [request.settings.tool_choice for request in model.requests] == [None, None]
            write_skill(tmp_path / "s", "research", "Find out.", context="fork")
            await there.send("/research again")
            await rested(there)
    assert model.requests[-1].settings.tool_choice == "skill", "the one that was called is back"


async def test_a_person_calls_a_skill_that_forks_and_the_first_response_is_asked_to_begin_it(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", "research", "Find out.", context="fork", disable_model_invocation="true")
    model = ScriptedModel([activate("research", "kelp")], "Child.", "Told.", "Next.")
    async with running(f"sqlite:///{tmp_path}/h.db", agent_with(tmp_path / "s", model)) as (app, _):
        chat = await app.create("a", "/research kelp")
        await chat.turn()
        await chat.send("without a skill")
        await chat.turn()
    assert model.requests[0].settings.tool_choice == "skill"
    assert b'"enum":["research"]' in bytes(model.requests[0].tools[0].schema)  # type: ignore[arg-type]
    last = model.requests[-1]
    assert (last.tools, last.settings.tool_choice) == ((), None), "only in the turn that the person began with it"


# --- what may be done while it is active ---------------------------------------------------------------


@tool(replay="pure")
def refund() -> str:
    """Refund."""
    return "refunded"


async def test_allowed_tools_narrow_the_turn_of_the_activation_and_the_journal_says_what_decided(
    store_url: str, tmp_path: Path
) -> None:
    write_skill(tmp_path / "s", "look", "Look only.", allowed_tools="weather Read")
    rain = Call(name="weather", arguments={"city": "Bern"})
    model = ScriptedModel(
        [Call(name="refund")],
        [activate("look")],
        [Together(calls=(Call(name="refund"), rain))],
        "Done.",
        [Call(name="refund")],
        "Next.",
    )
    async with running(store_url, agent_with(tmp_path / "s", model, tools=[weather, refund])) as (app, _):
        chat = await app.create("a", "go")
        await rested(chat)
        await chat.send("in another turn")
        await rested(chat)
        found = results(await chat.messages())
        told = await entries(chat)
    by_order = [(result.name, result.error) for result in found]
    assert by_order == [("refund", False), ("skill", False), ("refund", True), ("weather", False), ("refund", False)]
    assert "the skill look, active in this turn, allows only weather Read" in found[2].content
    decided = [str(entry) for entry in told if "allowed-tools of the skill look" in str(entry)]
    assert len(decided) == 1


async def test_allowed_tools_widen_nothing(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", "free", "Do all.", allowed_tools="refund Bash")
    model = ScriptedModel([activate("free")], [Call(name="refund")], "Done.")
    agent = agent_with(tmp_path / "s", model, tools=[refund], permissions=Permissions(rules=("deny call(refund)",)))
    async with running(f"sqlite:///{tmp_path}/h.db", agent) as (app, _):
        chat = await app.create("a", "go")
        await rested(chat)
        denied = results(await chat.messages())[1]
    assert denied.error
    assert "deny call(refund)" in denied.content or "rule" in denied.content


async def test_a_narrowing_holds_over_a_handover_and_over_a_compaction_within_its_turn(
    store_url: str, tmp_path: Path
) -> None:
    write_skill(tmp_path / "s", "look", "Look only.", allowed_tools="gate")
    gate = Gate()
    model = ScriptedModel([Call(name="gate")], [Call(name="refund")], "Done.")
    agent = agent_with(tmp_path / "s", model, tools=[gate.tool(replay="pure"), refund])
    app = App(store_url, agents=[agent], retry=QUICK)
    async with app:
        chat = await app.create("a", "/look")
        async with app.worker(grace_s=0.0):
            await asyncio.wait_for(gate.entered.wait(), 30)
        gate.opened.set()
        await chat.compact()
        write_skill(tmp_path / "s", "look", "Look and pay.", allowed_tools="refund")
        async with app.worker(history_limit=2):
            await rested(chat)
        last = results(await chat.messages())[-1]
    assert last.error
    assert "allows only gate" in last.content
