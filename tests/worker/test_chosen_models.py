"""`model=` as a function of the chat: an owner's own key or model, and what becomes of a function that is wrong."""

import asyncio
import re
import threading
from typing import Any, TypeVar

import pytest

from holdfast import Agent, AgentLimits, Chat, CompactionPolicy, KeyedModel, ModelContext, ModelFacts, Price
from holdfast import hooks as hooks_module
from holdfast.core.journal import AttemptFailed, ChatFailed, MessageAdded
from holdfast.core.records import Role, State
from holdfast.errors import ConfigError
from holdfast.models.choice import label_of
from holdfast.models.resolve import CHOSEN_MAX, Models
from holdfast.redaction import CHOSEN_MAX as SECRETS_MAX
from holdfast.redaction import Secrets
from holdfast.testing import ScriptedModel
from tests.support.provider import Answer, Provider, in_order, providing
from tests.support.speakers import Anthropic
from tests.support.turns import WAIT_S, rested, running
from tests.support.turns import entries as all_entries
from tests.support.waiting import until

T = TypeVar("T")


async def entries(chat: Chat, kind: type[T]) -> list[T]:
    return [entry for entry in await all_entries(chat) if isinstance(entry, kind)]


MODELS = {owner: ScriptedModel(f"for {owner}", after="repeat", name=f"scripted:{owner}") for owner in ("ann", "bob")}


async def test_each_owner_gets_its_own_model_and_the_step_records_which(store_url: str) -> None:
    asked: list[ModelContext] = []

    def choose(context: ModelContext) -> ScriptedModel:
        asked.append(context)
        return MODELS[context.owner]

    async with running(store_url, Agent("a", choose)) as (app, _):
        chats = {owner: await app.create("a", "hi", owner=owner, metadata={"plan": "pro"}) for owner in MODELS}
        said = {owner: (await chat.turn(timeout_s=WAIT_S)).text for owner, chat in chats.items()}
        told = [entry for chat in chats.values() for entry in await entries(chat, MessageAdded)]
    assert said == {"ann": "for ann", "bob": "for bob"}
    answers = [entry.message for entry in told if entry.message.role is Role.ASSISTANT]
    assert [message.model for message in answers] == ["scripted:ann", "scripted:bob"]
    assert len({message.agent_fingerprint for message in answers}) == 2
    first = next(context for context in asked if context.owner == "ann")
    assert first == ModelContext(chat_id=chats["ann"].id, agent="a", owner="ann", metadata={"plan": "pro"})


async def test_the_function_is_asked_once_in_each_turn(store_url: str) -> None:
    asked: list[str] = []

    async def choose(context: ModelContext) -> str:
        asked.append(context.chat_id)
        await asyncio.sleep(0)
        return "scripted"

    agent = Agent("a", choose, compaction=CompactionPolicy(context_limit=100_000))
    async with running(store_url, agent) as (app, _):
        chat = await app.create("a", "one")
        await rested(chat)
        assert asked == [chat.id]
        await chat.send("two")
        await rested(chat)
        assert asked == [chat.id] * 2


async def test_a_key_that_a_function_brings_goes_to_the_provider_and_nowhere_else(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    keys = {"ann": "ann-own-key-51d0e2aa77", "bob": "bob-own-key-9c1e44b012"}
    with providing(Anthropic(), in_order(Answer(text=("hello",)))) as provider:

        def choose(context: ModelContext) -> KeyedModel:
            return KeyedModel("anthropic:claude-sonnet-5-5", key=keys[context.owner], url=provider.url)

        async with running(store_url, Agent("a", choose)) as (app, _):
            for owner in keys:
                turn = await (await app.create("a", "hi", owner=owner)).turn(timeout_s=WAIT_S)
                assert turn.text == "hello"
            assert app.secrets.taken_out(f"it is {keys['ann']}") == "it is [key of a chosen model]"
            assert repr(choose(ModelContext("c", "a", "ann", {}))) == "KeyedModel('anthropic:claude-sonnet-5-5')"
    assert sent_keys(provider) == list(keys.values())
    assert not any(key in caplog.text for key in keys.values())


def sent_keys(provider: Provider) -> list[str]:
    return [headers["x-api-key"] for headers in provider.headers]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returned a NoneType: it has to return a model's name"),
        (42, "returned a int"),
        ("nowhere:model", "there is no provider 'nowhere'"),
        (KeyedModel("anthropic:claude-sonnet-5-5", key="  "), "empty key"),
        (KeyedModel("scripted", key="some-key-1234"), "takes no key of its own"),
        (KeyedModel("anthropic:x", key="schlüssel-der-nicht-geht"), "its key does not hold a key"),
        (RuntimeError("the vault is sealed"), "the vault is sealed"),
    ],
)
async def test_a_function_that_gives_no_model_fails_the_turn_and_says_why(
    tmp_path: Any, answer: object, words: str
) -> None:
    def choose(_: ModelContext) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with running(f"sqlite:///{tmp_path}/a.db", Agent("a", choose)) as (app, _):
        chat = await app.create("a", "hi")
        assert await rested(chat) is State.FAILED
        (failed,) = await entries(chat, ChatFailed)
    assert failed.error.code == "model_not_chosen"
    assert words in failed.error.message
    assert "choose" in failed.error.message


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_function_that_hangs_costs_its_deadline_and_no_other_chat(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(hooks_module, "HOOK_DEADLINE_S", 1.0)
    freed = threading.Event()

    def hangs(context: ModelContext) -> str:
        if context.owner == "slow":
            freed.wait(60)
        return "scripted"

    async def hangs_softly(context: ModelContext) -> str:
        if context.owner == "slow":
            await asyncio.sleep(3_600)
        return "scripted"

    agent = Agent("a", hangs if kind == "sync" else hangs_softly)
    try:
        async with running(f"sqlite:///{tmp_path}/a.db", agent) as (app, _):
            slow, quick = await app.create("a", "hi", owner="slow"), await app.create("a", "hi", owner="quick")
            assert await rested(quick) is State.IDLE
            assert await rested(slow) is State.FAILED
            (failed,) = await entries(slow, ChatFailed)
    finally:
        freed.set()
    assert re.search(r"function .*hangs.* gave no answer within 1 s", failed.error.message)


async def test_retries_and_fallbacks_go_on_from_the_chosen_model(tmp_path: Any) -> None:
    broken = ScriptedModel([{"step": "fail", "code": "overloaded"}], after="repeat", name="scripted:broken")

    def choose(context: ModelContext) -> ScriptedModel:
        return broken if context.owner == "ann" else MODELS["bob"]

    agent = Agent("a", choose, fallbacks=[lambda _: MODELS["ann"]])
    async with running(f"sqlite:///{tmp_path}/a.db", agent) as (app, _):
        chat = await app.create("a", "hi", owner="ann")
        turn = await chat.turn(timeout_s=WAIT_S)
        lost = await entries(chat, AttemptFailed)
    assert turn.text == "for ann"
    assert {attempt.model for attempt in lost} == {"scripted:broken"}


async def test_titles_and_summaries_are_made_by_functions_too(tmp_path: Any) -> None:
    titles = ScriptedModel("About Bern", after="repeat")
    agent = Agent("a", lambda _: MODELS["ann"], title_model=lambda _: titles)
    async with running(f"sqlite:///{tmp_path}/a.db", agent) as (app, worker):
        chat = await app.create("a", "What about Bern?")
        await rested(chat)
        await until(lambda: worker.titles.made + worker.titles.failed)
        assert (await app.store.read_chat(chat.id)).chat.title == "About Bern"


async def test_a_limit_on_the_cost_wants_a_price_of_what_is_chosen(tmp_path: Any) -> None:
    price = ModelFacts(price=Price(input=1, output=1))
    agent = Agent("a", lambda context: MODELS[context.owner], limits=AgentLimits(cost=1.0))
    async with running(f"sqlite:///{tmp_path}/a.db", agent, models={"scripted:ann": price}) as (app, _):
        paid, unpaid = await app.create("a", "hi", owner="ann"), await app.create("a", "hi", owner="bob")
        assert await rested(paid) is State.IDLE
        assert await rested(unpaid) is State.FAILED
        (failed,) = await entries(unpaid, ChatFailed)
    assert "'scripted:bob' has none" in failed.error.message


def test_models_that_functions_chose_do_not_pile_up_with_the_owners() -> None:
    models = Models({})
    for n in range(CHOSEN_MAX + 50):
        models.chosen(KeyedModel(f"compatible:m@http://host-{n}/v1", key=f"key-of-owner-{n}-abc"))
    assert models.figures()["chosen_models"] == CHOSEN_MAX
    assert len(models._fragments) <= CHOSEN_MAX
    again = KeyedModel(f"compatible:m@http://host-{CHOSEN_MAX}/v1", key=f"key-of-owner-{CHOSEN_MAX}-abc")
    assert models.chosen(again) is models.chosen(again)


def test_a_key_of_its_own_is_a_quota_of_its_own() -> None:
    models = Models({"OPENAI_API_KEY": "key-of-all-1234"})
    mine, yours = (models.chosen(KeyedModel("openai:gpt-6.1-terra", key=f"key-{n}-abcdef")) for n in (1, 2))
    quotas = {str(getattr(model, "quota", "")) for model in (mine, yours, models.get("openai:gpt-6.1-terra"))}
    assert len(quotas) == 3
    assert not any("abcdef" in quota for quota in quotas)
    with pytest.raises(ConfigError, match="needs a key"):
        Models({}).get("openai:gpt-6.1-terra")


def test_keys_of_owners_that_are_long_gone_are_forgotten() -> None:
    secrets = Secrets({"API_TOKEN": "the-one-of-the-process-1"})
    for n in range(SECRETS_MAX + 10):
        secrets.add_chosen("key", f"key-of-owner-{n:06}")
    assert secrets.taken_out("key-of-owner-000001 key-of-owner-001009") == "key-of-owner-000001 [key]"
    assert secrets.taken_out("the-one-of-the-process-1") == "[API_TOKEN]"


def test_a_function_is_named_where_a_model_would_be() -> None:
    def choose(_: ModelContext) -> str:
        return "scripted"

    assert label_of(choose).startswith("function ")
    assert label_of(choose).endswith("choose")
