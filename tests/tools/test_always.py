""" "Always" as a chat meets it: offered, kept, counted by any worker, revoked, ended; and what it never reaches."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import Agent, AgentLimits
from holdfast.app import App
from holdfast.chat import Chat
from holdfast.config import Permissions
from holdfast.core.journal import CallChanged
from holdfast.core.records import CallState, KeptRule, State
from holdfast.errors import RefusedError
from holdfast.hooks import Arguments, Ask, Hook
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from holdfast.tools.base import tool
from holdfast.tools.files.tools import file_tools
from holdfast.tools.permissions.acts import Act, CallTool
from holdfast.turn import OpenCall
from tests.support.kept import PAY
from tests.support.rows import execute
from tests.support.turns import Gate, entries, rested
from tests.support.waiting import until
from tests.tools.test_permissions_in_chats import decisions, told


@tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


CALL = Call(name="pay", arguments={"cents": 5})
ALLOWED = f"allow by always {PAY} (by ann)"


def payer(
    name: str = "a", *, mode: Any = "ask", rules: tuple[str, ...] = (), tools: Any = (pay,), **more: Any
) -> Agent:
    model = ScriptedModel([CALL], "Done.", per="turn")
    return Agent(name, model, tools=list(tools), permissions=Permissions(mode=mode, rules=list(rules)), **more)


@asynccontextmanager
async def at_work(url: str, *agents: Agent, clock: FakeClock | None = None) -> AsyncIterator[App]:
    options = StoreOptions(clock=clock) if clock is not None else StoreOptions()
    app = App(url, agents=list(agents) or [payer()], options=options)
    async with app, app.worker(poll_s=0.1):
        yield app


async def asked(app: App, *, agent: str = "a", owner: str = "ada", **chat: Any) -> OpenCall | Chat:
    """What a new chat comes to: the call that it asks about, or the chat at rest."""
    made = await app.create(agent, "pay", owner=owner, **chat)
    if await rested(made) is State.WAITING:
        (call,) = await made.open_calls()
        return call
    return made


async def a_call(app: App, **chat: Any) -> OpenCall:
    call = await asked(app, **chat)
    assert isinstance(call, OpenCall), "a person is asked"
    return call


async def a_rest(app: App, **chat: Any) -> Chat:
    made = await asked(app, **chat)
    assert isinstance(made, Chat), "nobody is asked"
    return made


async def done(chat: Chat) -> None:
    while await chat.state() is not State.IDLE:
        await rested(chat)


async def kept(app: App, always: Any = "owner", **chat: Any) -> KeptRule:
    call = await a_call(app, **chat)
    await call.approve(by="ann", always=always)
    await done(call.chat)
    return (await app.kept_rules())[0]


async def test_what_was_kept_is_not_asked_again_and_the_journal_says_by_what(store_url: str) -> None:
    async with at_work(store_url) as app:
        call = await a_call(app)
        assert call.offer == (PAY,)
        await call.approve(by="ann", always="chat")
        await done(call.chat)
        changed = [entry for entry in await entries(call.chat) if isinstance(entry, CallChanged)]
        assert [entry.detail for entry in changed if entry.state is CallState.APPROVED] == [
            f"always for this chat: {PAY}"
        ]
        await call.chat.send("once more")
        await done(call.chat)
        assert await told(call.chat) == ["paid 5", "paid 5"]
        assert (await decisions(call.chat))[-1] == ALLOWED
        assert await a_call(app) != call, "another chat asks"


async def test_it_counts_after_a_restart_and_on_another_worker_until_it_is_revoked(store_url: str) -> None:
    async with at_work(store_url) as app:
        rule = await kept(app)
    async with at_work(store_url) as second:
        assert await decisions(await a_rest(second)) == [ALLOWED]
        assert [found.id for found in await second.kept_rules(owner="ada")] == [rule.id]
        other = App(store_url)
        async with other:  # a process that drives nothing
            await other.revoke_kept_rule(rule.id)
        call = await a_call(second)
        assert call.offer == (PAY,), "and it is offered anew"


async def test_it_ends_when_its_time_is_up(store_url: str, clock: FakeClock) -> None:
    async with at_work(store_url, clock=clock) as app:
        call = await a_call(app)
        await call.approve(by="ann", always="owner", for_s=60)
        await done(call.chat)
        await a_rest(app)
        (rule,) = await app.kept_rules()
        assert rule.expires_at is not None
        clock.advance(rule.expires_at - app.store.now_ms())
        await a_call(app)
        assert await app.kept_rules() == []


async def test_it_is_of_the_owner_and_of_no_other(store_url: str) -> None:
    everyone = [(owner, agent) for owner in ("ada", "bob") for agent in "ab"]
    async with at_work(store_url, payer("a"), payer("b")) as app:
        for always, unasked in (("chat", set()), ("agent", {"ada a"}), ("owner", {"ada a", "ada b"})):
            rule = await kept(app, always)
            found = {f"{owner} {agent}": await asked(app, owner=owner, agent=agent) for owner, agent in everyone}
            assert {whose for whose, what in found.items() if isinstance(what, Chat)} == unasked, always
            await app.revoke_kept_rule(rule.id)


def others() -> list[Agent]:
    """In whose chats another than the mode asks, too."""
    return [
        payer("needs_approval", tools=(tool(needs_approval=True)(pay.function),)),
        payer("decides", tools=(tool(needs_approval=lambda arguments, context: "Sure?")(pay.function),)),
        payer("hook", hooks=(Hook("before_tool", lambda call, context: Ask(question="Sure?")),)),
    ]


async def test_it_answers_the_mode_and_no_one_else(store_url: str) -> None:
    answers = {
        "deny": "Denied: call(pay): the rule `deny call(pay)` says deny",
        "read": "Denied: call(pay): no rule allows it, and the mode `read`",
        "unattended": "paid 5",
        "edit": "paid 5",
    }
    questions = {
        "ask": "Allow call(pay)? It is not done unasked: the rule `ask call(pay)` says ask",
        "needs_approval": "Run pay?",
        "decides": "Sure?",
        "hook": "Sure?",
    }
    agents = [payer(rule, rules=(f"{rule} call(pay)",)) for rule in ("deny", "ask")]
    agents += [payer(mode, mode=mode) for mode in ("read", "unattended", "edit")]
    async with at_work(store_url, payer(), *agents, *others()) as app:
        await kept(app)
        for agent, words in answers.items():
            assert (await told(await a_rest(app, agent=agent)))[0].startswith(words), agent
        for agent, words in questions.items():
            call = await a_call(app, agent=agent)
            assert (call.why or "").startswith(words), agent
            assert "no rule allows it" not in (call.why or ""), "the mode does not ask any more"
            with pytest.raises(RefusedError, match="without `always`"):
                await call.approve(always="owner")


async def test_where_another_asks_beside_the_mode_nothing_is_offered(store_url: str) -> None:
    async with at_work(store_url, *others()) as app:
        for agent in app.agents:
            call = await a_call(app, agent=agent)
            assert "no rule allows it" in (call.why or ""), "the mode asks, too"
            assert call.offer == (), agent


async def test_where_no_person_is_there_what_was_kept_is_done(store_url: str) -> None:
    async with at_work(store_url) as app:
        await kept(app)
        assert await told(await a_rest(app, metadata={"unattended": True})) == ["paid 5"]


async def test_a_hook_that_changes_what_runs_changes_what_is_offered(store_url: str, tmp_path: Path) -> None:
    hook = Hook("before_tool", lambda call, context: Arguments(text='{"path":"b","content":"x"}'))
    model = ScriptedModel([Call(name="write_file", arguments={"path": "a", "content": "x"})], "Done.")
    writer = Agent("a", model, tools=file_tools(tmp_path), permissions=Permissions(mode="ask"), hooks=(hook,))
    async with at_work(store_url, writer) as app:
        assert (await a_call(app)).offer == (f"allow write({tmp_path}/b)",)


async def test_a_secret_is_in_no_offer(store_url: str, tmp_path: Path) -> None:
    model = ScriptedModel([Call(name="write_file", arguments={"path": "hunter2-and-more", "content": "x"})], "Done.")
    writer = Agent("a", model, tools=file_tools(tmp_path), permissions=Permissions(mode="ask"))
    app = App(store_url, agents=[writer])
    app.secrets.add("PASSWORD", "hunter2-and-more")
    async with app, app.worker(poll_s=0.1):
        assert (await a_call(app)).offer == ()


# --- while a call waits ---------------------------------------------------------------------------------------


async def test_a_rule_that_was_written_while_a_call_waits_is_judged_and_the_kept_one_is_nothing_to_it(
    store_url: str,
) -> None:
    async with at_work(store_url) as app:
        chat_id = (await a_call(app)).chat.id
    strict = App(store_url, agents=[payer(rules=("deny call(pay)",))])
    async with strict:
        (call,) = await strict.chat(chat_id).open_calls()
        await call.approve(by="ann", always="owner")
        async with strict.worker(poll_s=0.1):
            await done(call.chat)
        assert (await told(call.chat))[0].startswith("Denied: call(pay): the rule `deny call(pay)` says deny")
        assert (await decisions(call.chat))[-1] == "deny by rule deny call(pay)"
        assert [rule.rule for rule in await strict.kept_rules()] == [PAY]


async def test_a_call_that_waits_stays_with_its_person_when_another_keeps_its_rule(store_url: str) -> None:
    async with at_work(store_url) as app:
        waits = await a_call(app)
        await kept(app)
        assert [call.id for call in await waits.chat.open_calls()] == [waits.id]
        await waits.deny("not this one")
        await done(waits.chat)
        assert 'They said: "not this one"' in (await told(waits.chat))[0]


async def test_a_rule_revoked_while_a_call_waits_for_its_place_is_asked_for_again(store_url: str) -> None:
    async with at_work(store_url) as app:
        rule = await kept(app)
    gate = Gate()
    judged: list[int] = []

    def acts(arguments: dict[str, Any]) -> list[Act]:
        judged.append(arguments["cents"])
        return [CallTool(tool="pay")]

    paying = tool(acts=acts)(pay.function)
    calls = [Call(name="gate", arguments={}), *(Call(name="pay", arguments={"cents": n}) for n in (1, 2))]
    busy = Agent(
        "a",
        ScriptedModel(calls, "Done."),
        tools=[gate.tool(), paying],
        permissions=Permissions(rules=["allow call(gate)"]),
        limits=AgentLimits(parallel_calls=1),
    )
    async with at_work(store_url, busy) as app:
        chat = await app.create("a", "go", owner="ada")
        await gate.entered.wait()
        await until(lambda: judged == [1, 2])  # one after the other: the first was allowed by then
        await app.revoke_kept_rule(rule.id)
        gate.opened.set()
        assert await rested(chat) is State.WAITING
        assert [(call.tool, call.offer) for call in await chat.open_calls()] == [("pay", (PAY,))] * 2


async def test_a_store_that_cannot_tell_has_a_person_asked(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with at_work(store_url) as app:
        await kept(app)
        execute(store_url, "ALTER TABLE kept_rules RENAME TO away")
        assert (await a_call(app)).offer == (PAY,)
        assert "kept_rules.unknown" in [getattr(line, "action", "") for line in caplog.records]
