"""Input that no store should have to take: each gets a typed error, and nothing of it is written."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.limits import LIMITS
from holdfast.core.records import NewChat, Role, Sampling, State
from holdfast.errors import CallerError, InvalidInput, LeaseLost, NotFound, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter, DeltaBatch, Key, StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand, call, history, new_chat, told, user
from tests.support.scale import scaled

QUEUE_MAX = scaled(100, LIMITS.queue_messages_max)
# Ids that nobody was ever given. Unknown ones are not found; impossible ones are not found either, or called invalid.
NO_IDS = {
    "unknown": "no-such-chat",
    "empty": "",
    "nul": "c1\x00",
    "surrogate": "\ud800",
    "long": "x" * 100_000,
    "quote": "' OR 1=1; --",
    "newline": "c1\n",
}

VERBS: dict[str, Callable[[Store, str], Awaitable[object]]] = {
    "read_chat": lambda store, id: store.read_chat(id),
    "submit": lambda store, id: store.submit(id, cmd.Send(message=user())),
    "read_journal": lambda store, id: store.read_journal(id),
    "wait_journal": lambda store, id: store.wait_journal(id, None, 0.1),
    "read_history": lambda store, id: store.read_history(id),
    "read_compaction": lambda store, id: store.read_compaction(id),
    "read_compactions": lambda store, id: store.read_compactions(id, start=0, end=10),
    "read_deltas": lambda store, id: store.read_deltas(id, 1),
    "locate_message": lambda store, id: store.locate_message(id, "m1"),
    "locate_message_by": lambda store, id: store.locate_message("c1", id),
    "fork_chat": lambda store, id: store.fork_chat(id, "fork"),
    "delete_chat": lambda store, id: store.delete_chat(id),
    "list_chats_of": lambda store, id: store.list_chats(ChatFilter(owner=id or "nobody")),
    "claim_for": lambda store, id: store.claim_chats(id, {"agent": 1}, 1),
}
# These say what they found, which is nothing.
EMPTY = {"read_history", "read_compaction", "read_compactions", "read_deltas", "list_chats_of"}


@pytest.mark.parametrize("kind", NO_IDS)
async def test_an_id_that_does_not_exist_is_named_and_nothing_changes(store: Store, kind: str) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    before = await store.read_chat("c1")
    for verb, ask in VERBS.items():
        [outcome] = await asyncio.gather(ask(store, NO_IDS[kind]), return_exceptions=True)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, CallerError | LeaseLost), verb
        else:
            assert verb in EMPTY
            assert not outcome, verb
        assert await store.read_chat("c1") == before, verb
        assert [line.id for line in await store.list_chats()] == ["c1"], verb


@pytest.mark.parametrize(
    ("field", "command"),
    [
        ("content", cmd.Submit(call_id="k1", content="a\x00b")),
        ("content", cmd.Submit(call_id="k1", content="a\ud800b")),
        ("content", cmd.Submit(call_id="k1", content="x" * 50_000_000)),
        ("by", cmd.Submit(call_id="k1", content="ok", by="\udfff")),
        ("call_id", cmd.Submit(call_id="k1\x00", content="ok")),
        ("call_id", cmd.Approve(call_id="\ud800")),
        ("by", cmd.Approve(call_id="k1", by="ada\x00")),
        ("words", cmd.Deny(call_id="k1", words="no\x00")),
        ("words", cmd.Deny(call_id="k1", words="\udc80")),
        ("message_id", cmd.Withdraw(message_id="\x00")),
        ("message_id", cmd.Promote(message_id="\ud801")),
    ],
)
async def test_a_clients_event_with_text_no_store_takes_is_refused_by_field(
    store: Store, field: str, command: cmd.Command
) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    await hand.park_for_client("k1")
    before = await store.read_chat("c1")
    with pytest.raises(InvalidInput) as caught:
        await store.submit("c1", command)
    assert caught.value.field == field
    assert await store.read_chat("c1") == before
    await store.submit("c1", cmd.Submit(call_id="k1", content="fine"))
    hand.close()


@pytest.mark.parametrize(
    "key",
    [
        Key(principal="", key="k\x00"),
        Key(principal="\ud800", key="k"),
        Key(principal="ada", key="x" * 10_000),
        Key(principal="ada", key=""),
    ],
)
async def test_a_key_that_cannot_be_kept_is_refused(store: Store, key: Key) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    with pytest.raises(InvalidInput, match=r"key|principal"):
        await store.create_chat(new_chat("hello", id="c2"), key)
    with pytest.raises(InvalidInput, match=r"key|principal"):
        await store.submit("c1", cmd.Stop(), key)
    with pytest.raises(InvalidInput, match=r"key|principal"):
        await store.fork_chat("c1", "c2", key=key)
    assert [line.id for line in await store.list_chats()] == ["c1"]


@pytest.mark.parametrize(
    ("new_id", "owner"), [("", None), ("f\x00", None), ("\ud800", None), ("x" * 600, None), ("f", "ada\x00")]
)
async def test_a_fork_under_an_impossible_name_is_refused(store: Store, new_id: str, owner: str | None) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    with pytest.raises(InvalidInput, match=r"id|owner"):
        await store.fork_chat("c1", new_id, owner=owner)
    assert [line.id for line in await store.list_chats()] == ["c1"]


@pytest.mark.parametrize("raw", [b"{", b"", b'{"a": nope}', b'{"a":"\xff"}', b'{"a":"\\u0000"}', b"[" * 100_000])
async def test_metadata_of_a_message_that_is_no_json_never_reaches_the_journal(store: Store, raw: bytes) -> None:
    """It is written as it came: a broken one would make the whole chat unreadable."""
    await store.create_chat(new_chat("hello", id="c1"))
    broken = replace(user("hello"), metadata=Raw(raw))
    with pytest.raises(InvalidInput, match="metadata"):
        await store.submit("c1", cmd.Send(message=broken))
    with pytest.raises(InvalidInput, match="metadata"):
        await store.create_chat(NewChat(id="c2", agent="agent", message=broken))
    assert "nope" not in await told(store, "c1")
    assert (await store.read_chat("c1")).queue == ()


async def test_metadata_of_a_message_is_kept_byte_for_byte(store: Store) -> None:
    odd = b'{ "z": 1.50,  "a":"\xc3\xa9 \\u00e9", "n": 123456789012345678901234567890 }'
    message = replace(user("hello", id="m1"), metadata=Raw(odd))
    await store.create_chat(NewChat(id="c1", agent="agent", message=message))
    assert bytes((await history(store, "c1"))[0].metadata) == odd


async def test_a_result_no_store_takes_is_refused_and_the_runner_can_write_another(store: Store) -> None:
    """What a tool printed may be anything; the commit that carries it fails alone, with a typed error."""
    await store.create_chat(new_chat("hello", id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    await hand.respond(call("k1"))
    before = await store.read_chat("c1")
    with pytest.raises(InvalidInput, match="Unicode"):
        await hand.finish("k1", "half a \ud83d character")
    assert await store.read_chat("c1") == before
    await hand.finish("k1", "NUL is text to us: \x00")
    assert [message.role for message in await history(store, "c1")] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    hand.close()


async def test_deltas_that_are_not_text_are_refused_and_the_others_can_be_sent_again(store: Store) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    attempt = hand.attempt()
    good = DeltaBatch(chat=hand.held.chat, attempt=attempt, first_k=0, bodies=(b'{"text":"a"}',))
    with pytest.raises(InvalidInput, match="Unicode"):
        await store.add_deltas([good, replace(good, first_k=1, bodies=(b"\xff\xfe",))])
    assert await store.add_deltas([good]) == ()
    assert len(await store.read_deltas("c1", attempt)) == 1
    hand.close()


@pytest.fixture
async def roomy_store(store_url: str, clock: FakeClock) -> AsyncIterator[Store]:
    """With a queue of `QUEUE_MAX`."""
    options = StoreOptions(clock=clock, limits=replace(LIMITS, queue_messages_max=QUEUE_MAX))
    async with open_store(store_url, options) as store:
        yield store


async def test_one_more_queued_message_than_the_limit_is_refused_and_those_before_stay(roomy_store: Store) -> None:
    """A million cannot be queued: the queue of a chat says where it ends, and who is told can act on it."""
    store = roomy_store
    await store.create_chat(new_chat("hello", id="c1"))
    for n in range(QUEUE_MAX):
        await store.submit("c1", cmd.Send(message=user(f"message {n}", id=f"m{n}")))
    for _ in range(3):
        with pytest.raises(RefusedError, match=f"{QUEUE_MAX:,} queued messages, which is the limit") as caught:
            await store.submit("c1", cmd.Send(message=user("one too many")))
        assert caught.value.reason == "limit"
    snapshot = await store.read_chat("c1")
    assert [queued.id for queued in snapshot.queue] == [f"m{n}" for n in range(QUEUE_MAX)]
    hand = Hand(store)
    await hand.take("c1")
    await hand.end_turn()
    assert hand.held.chat.state is State.RUNNING
    await store.submit("c1", cmd.Send(message=user("now there is room", id="m-last")))
    assert len((await store.read_chat("c1")).queue) == QUEUE_MAX
    hand.close()


async def test_a_key_of_a_refused_request_says_nothing_about_the_next(store: Store, clock: FakeClock) -> None:
    key = Key(principal="ada", key="k1")
    with pytest.raises(NotFound):
        await store.submit("c1", cmd.Stop(), key)
    await store.create_chat(new_chat("hello", id="c1"), key)


@pytest.mark.parametrize("sampling", [Sampling(stop=("\x00",)), Sampling(reasoning_effort="\x00")])
async def test_what_a_client_asks_of_the_model_cannot_break_the_search_of_all_chats(
    store: Store, sampling: Sampling
) -> None:
    await store.create_chat(new_chat("findable", id="c1"))
    with pytest.raises(InvalidInput, match="NUL"):
        await store.create_chat(replace(new_chat(None), message=replace(user("hello"), sampling=sampling)))
    assert [line.id for line in await store.list_chats(ChatFilter(search="findable"))] == ["c1"]


async def test_a_message_that_holds_what_no_store_can_read_is_passed_over_by_the_search(store: Store) -> None:
    """However it came there: one such chat must not take the search from all others."""
    await store.create_chat(new_chat("findable", id="c1"))
    hand = Hand(store)
    await hand.take("c1")
    await hand.respond(call("k1"))
    spawn = replace(new_chat(None, id="c2"), message=user("odd \x00 words"))
    await hand.commit(cmd.Outcome(by=hand.by, call_id="k1", content="spawned", spawn=spawn))
    assert [line.id for line in await store.list_chats(ChatFilter(search="findable"))] == ["c1"]
    (odd,) = await store.list_chats(ChatFilter(search="odd"))
    assert odd.id == "c2"
    assert odd.called in ("odd", ""), "as much as the database reads of it"
