"""Creating chats and sending commands as a client: what is acknowledged, what is refused, what a key protects."""

import asyncio

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.codec import decode_message
from holdfast.core.limits import Limits
from holdfast.core.records import File, Message, NewChat, Role, Sampling, State, Text
from holdfast.errors import InvalidInput, KeyReused, LimitReached, NotFound, RefusedError
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.receipts import request_hash
from holdfast.store.records import ChatFilter, Key, StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.chats import Hand, history, new_chat, texts, told, user


async def test_a_created_chat_with_a_message_is_running_and_due(store: Store) -> None:
    answer = await store.create_chat(new_chat("hello", id="c1", owner="ada"))
    assert (answer.chat_id, answer.state) == ("c1", State.RUNNING)
    chat = (await store.read_chat("c1")).chat
    assert (chat.owner, chat.turn, chat.worker, chat.version) == ("ada", 1, None, 1)
    assert chat.wake_at is not None
    assert texts(await history(store, "c1")) == ["hello"]


async def test_a_chat_without_a_message_rests(store: Store) -> None:
    answer = await store.create_chat(new_chat(None, id="c1"))
    assert answer.state is State.IDLE
    assert (await store.read_chat("c1")).chat.wake_at is None


async def test_creating_a_chat_that_exists_is_refused_and_changes_nothing(store: Store) -> None:
    await store.create_chat(new_chat("first", id="c1"))
    with pytest.raises(RefusedError, match="already"):
        await store.create_chat(new_chat("second", id="c1"))
    assert texts(await history(store, "c1")) == ["first"]


async def test_metadata_is_kept_byte_for_byte(store: Store) -> None:
    odd = b'{ "z": 1.50,  "a":"\xc3\xa9 \\u00e9", "n": 123456789012345678901234567890 }'
    await store.create_chat(NewChat(id="c1", agent="a", metadata=Raw(odd)))
    assert bytes((await store.read_chat("c1")).chat.metadata) == odd


async def test_a_chat_that_does_not_exist_is_named(store: Store) -> None:
    with pytest.raises(NotFound, match="'nope'"):
        await store.read_chat("nope")
    with pytest.raises(NotFound, match="'nope'"):
        await store.submit("nope", cmd.Send(message=user()))
    with pytest.raises(NotFound, match="'nope'"):
        await store.read_journal("nope")


async def test_messages_sent_while_busy_are_queued_in_order(store: Store) -> None:
    await store.create_chat(new_chat("one", id="c1"))
    for text in ("two", "three"):
        await store.submit("c1", cmd.Send(message=user(text)))
    snapshot = await store.read_chat("c1")
    assert [decode_message(queued.body).text for queued in snapshot.queue] == ["two", "three"]
    assert texts(await history(store, "c1")) == ["one"]


async def test_stop_with_clear_queue_returns_what_it_removed(store: Store) -> None:
    await store.create_chat(new_chat("one", id="c1"))
    await store.submit("c1", cmd.Send(message=user("two")))
    answer = await store.submit("c1", cmd.Stop(clear_queue=True))
    assert [decode_message(body).text for body in answer.dropped] == ["two"]
    assert (await store.read_chat("c1")).queue == ()


async def test_a_refused_event_changes_nothing(store: Store) -> None:
    await store.create_chat(new_chat("one", id="c1"))
    before = await store.read_chat("c1")
    with pytest.raises(RefusedError, match="retry refused while the chat is running") as caught:
        await store.submit("c1", cmd.Retry())
    assert (caught.value.reason, caught.value.state, caught.value.command) == ("state", "running", "retry")
    assert await store.read_chat("c1") == before


async def test_the_same_key_gets_the_same_answer_and_happens_once(store: Store) -> None:
    key = Key(principal="ada", key="k1")
    new, message = new_chat("hello", id="c1"), user("again", id="m2")
    first = await store.create_chat(new, key)
    assert await store.create_chat(new, key) == first
    key = Key(principal="ada", key="k2")
    sent = await store.submit("c1", cmd.Send(message=message), key)
    await store.submit("c1", cmd.Stop())
    assert await store.submit("c1", cmd.Send(message=message), key) == sent
    assert [queued.id for queued in (await store.read_chat("c1")).queue] == ["m2"]


async def test_a_key_with_another_body_is_refused(store: Store) -> None:
    key = Key(principal="ada", key="k1")
    await store.create_chat(new_chat("hello", id="c1"), key)
    with pytest.raises(KeyReused, match="k1"):
        await store.create_chat(new_chat("other", id="c2"), key)
    with pytest.raises(NotFound):
        await store.read_chat("c2")


async def test_keys_of_different_principals_do_not_meet(store: Store) -> None:
    await store.create_chat(new_chat("hello", id="c1"), Key(principal="ada", key="k"))
    await store.create_chat(new_chat("hello", id="c2"), Key(principal="bob", key="k"))
    assert len(await store.list_chats()) == 2


async def test_a_refused_call_leaves_its_key_unused(store: Store) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    key = Key(principal="ada", key="k1")
    with pytest.raises(RefusedError):
        await store.submit("c1", cmd.Retry(), key)
    await store.submit("c1", cmd.Stop(), key)


async def test_a_thousand_concurrent_repeats_of_one_key_happen_once(store: Store) -> None:
    await store.create_chat(new_chat("hello", id="c1"))
    command, key = cmd.Send(message=user("once", id="m1")), Key(principal="", key="same")
    answers = await asyncio.gather(*(store.submit("c1", command, key) for _ in range(100)))
    assert len({answer.seq for answer in answers}) == 1
    assert [queued.id for queued in (await store.read_chat("c1")).queue] == ["m1"]


async def test_receipts_are_kept_for_seven_days(store: Store, clock: FakeClock) -> None:
    key, new = Key(principal="", key="k"), new_chat("hello", id="c1")
    await store.prune_receipts()
    await store.create_chat(new, key)
    for hours, pruned in ((7 * 24, 0), (1, 1)):
        found = 0
        for _ in range(hours):
            clock.advance(3_600_000)
            found += await store.prune_receipts()
        assert found == pruned


@pytest.mark.parametrize("days", [8, -8])
async def test_a_clock_that_is_set_makes_no_client_do_twice_what_it_did_once(
    store: Store, clock: FakeClock, days: int
) -> None:
    before, after = Key(principal="", key="before", request="r"), Key(principal="", key="after", request="r")
    await store.prune_receipts()
    await store.create_chat(new_chat(None), before)
    clock.step_wall(days * 86_400_000)
    assert await store.prune_receipts() == 0
    await store.create_chat(new_chat(None), after)
    clock.step_wall(-days * 86_400_000)
    assert await store.prune_receipts() == 0
    assert None not in [await store.recall(key) for key in (before, after)]


async def test_receipts_are_forgotten_in_pieces_the_oldest_first(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits behind a week of them."""
    monkeypatch.setattr(f"{type(store).__module__}.PRUNED_MAX", 2)
    keys = [Key(principal="", key=f"k{n}", request="r") for n in range(5)]
    for key in keys:
        await store.create_chat(new_chat(None), key)
        clock.advance(1)
    clock.advance(8 * 86_400_000)
    assert await store.prune_receipts() == 2
    assert [await store.recall(key) is None for key in keys] == [True, True, False, False, False]
    assert [await store.prune_receipts() for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (user("a\x00b"), "NUL character at position 1"),
        (user("a\ud800b"), "not valid Unicode at position 1"),
        (Message(id="m", role=Role.USER, parts=()), "at least one part"),
        (Message(id="", role=Role.USER, parts=(Text(text="x"),)), "needs an id"),
        (user(""), "says nothing"),
        (Message(id="m", role=Role.USER, parts=(File(media_type="image/png", uri="file:\x00"),)), "NUL"),
    ],
)
async def test_a_message_no_store_or_provider_takes_is_refused_before_anything_is_written(
    store: Store, message: Message, said: str
) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    before = await store.read_chat("c1")
    with pytest.raises(InvalidInput, match=said):
        await store.submit("c1", cmd.Send(message=message))
    with pytest.raises(InvalidInput, match=said):
        await store.create_chat(NewChat(id="c2", agent="a", message=message))
    assert await store.read_chat("c1") == before
    assert [line.id for line in await store.list_chats()] == ["c1"]


async def test_a_message_of_50_mb_is_refused_and_says_the_limit(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    with pytest.raises(InvalidInput, match="the limit is 8,388,608"):
        await store.submit("c1", cmd.Send(message=user("x" * 50_000_000)))


async def test_a_message_just_under_the_limit_round_trips(store: Store) -> None:
    text = "é" * (4 << 20)
    await store.create_chat(new_chat(text[:-10], id="c1"))
    assert texts(await history(store, "c1")) == [text[:-10]]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (NewChat(id="", agent="a"), "id: is empty"),
        (NewChat(id="c", agent=""), "agent: is empty"),
        (NewChat(id="c\x00", agent="a"), "id: has a NUL"),
        (NewChat(id="c", agent="a", owner="\udfff"), "owner: is not valid Unicode"),
        (NewChat(id="c", agent="a", metadata=Raw(b"[1]")), "metadata: is not a JSON object"),
        (NewChat(id="c", agent="a", metadata=Raw(b"{")), "metadata: is not JSON"),
        (NewChat(id="c", agent="a", metadata=Raw(b'{"a":"\\u0000"}')), "metadata: holds a NUL"),
    ],
)
async def test_a_new_chat_with_bad_fields_is_refused_by_name(store: Store, new: NewChat, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        await store.create_chat(new)


async def test_metadata_has_a_limit(store: Store) -> None:
    with pytest.raises(LimitReached, match="65,536"):
        await store.create_chat(NewChat(id="c", agent="a", metadata=Raw(b'{"a":"' + b"x" * 70_000 + b'"}')))


async def test_the_queue_has_a_limit_and_what_was_queued_stays(store_url: str, clock: FakeClock) -> None:
    options = StoreOptions(clock=clock, limits=Limits(queue_messages_max=5))
    async with open_store(store_url, options) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        for n in range(5):
            await store.submit("c1", cmd.Send(message=user(str(n))))
        with pytest.raises(RefusedError, match="5 queued messages, which is the limit"):
            await store.submit("c1", cmd.Send(message=user("one too many")))
        assert len((await store.read_chat("c1")).queue) == 5


async def test_the_queue_has_a_limit_in_bytes(store_url: str, clock: FakeClock) -> None:
    options = StoreOptions(clock=clock, limits=Limits(queue_bytes_max=2_000))
    async with open_store(store_url, options) as store:
        await store.create_chat(new_chat("hello", id="c1"))
        await store.submit("c1", cmd.Send(message=user("x" * 1_500)))
        with pytest.raises(RefusedError, match="2,000"):
            await store.submit("c1", cmd.Send(message=user("x" * 1_500)))


async def test_an_edit_cuts_history_and_returns_the_queue(store: Store) -> None:
    hand = Hand(store)
    await store.create_chat(NewChat(id="c1", agent="agent", message=user("one", id="m1")))
    await hand.take("c1")
    await hand.end_turn("first answer")
    await store.submit("c1", cmd.Send(message=user("two", id="m2")))
    await hand.take("c1")
    await hand.end_turn("second answer")
    spot = await store.locate_message("c1", "m2")
    edit = cmd.Edit(pos=spot.pos, role=spot.role, epoch=spot.epoch, message=user("two, rather", id="m3"))
    await store.submit("c1", edit)
    assert texts(await history(store, "c1")) == ["one", "first answer", "two, rather"]
    assert (await store.read_chat("c1")).chat.epoch == 1
    with pytest.raises(NotFound):
        await store.locate_message("c1", "m2")
    with pytest.raises(RefusedError, match="cut since"):
        await store.submit("c1", replace(edit, message=user("x")))
    assert "second answer" in await told(store, "c1")
    hand.close()


async def test_chats_are_listed_newest_first_in_pages_by_owner_and_state(store: Store) -> None:
    for n in range(5):
        await store.create_chat(new_chat("hi" if n % 2 else None, id=f"c{n}", owner="ada" if n < 3 else "bob"))
    assert [line.id for line in await store.list_chats(limit=2)] == ["c4", "c3"]
    assert [line.id for line in await store.list_chats(limit=2, before="c3")] == ["c2", "c1"]
    assert [line.id for line in await store.list_chats(ChatFilter(owner="ada"))] == ["c2", "c1", "c0"]
    assert [line.id for line in await store.list_chats(ChatFilter(state=State.RUNNING))] == ["c3", "c1"]


SEARCHED = {
    "weather": "Weather in BERN, 100% sure?",
    "titled": "hello",
    "file": 'a "quoted" one\nand a_line',
    "empty": None,
}


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("bern", ["weather"]),
        ("100%", ["weather"]),
        ("0_ sure", []),
        ("holiday", ["titled"]),
        ('a "quoted"', ["file"]),
        ("a_line", ["file"]),
        ("parts", []),  # a word of the record, which nobody said
        ("\\", []),
        ("", ["weather", "titled", "file", "empty"]),
    ],
)
async def test_a_listing_finds_words_of_the_title_and_of_the_first_message(
    store: Store, search: str, found: list[str]
) -> None:
    for id, text in SEARCHED.items():
        title = "Holiday in Ticino" if id == "titled" else None
        await store.create_chat(replace(new_chat(text, id=id), title=title))
    assert sorted(line.id for line in await store.list_chats(ChatFilter(search=search))) == sorted(found)


@pytest.mark.parametrize(
    ("title", "message", "called"),
    [
        ("Holiday", user("Where to?"), "Holiday"),
        (None, user("Where to\n\tin May?"), "Where to in May?"),
        (None, user("ein Weg " * 100), "ein Weg " * 9 + "ein Weg…"),
        (None, None, ""),
        (None, user("x" * 70_000), ""),
        (None, Message(id="m1", role=Role.USER, parts=(File(media_type="image/png", uri="data:,"),)), ""),
    ],
)
async def test_a_listing_calls_a_chat_by_its_title_or_the_first_words_in_it(
    store: Store, title: str | None, message: Message | None, called: str
) -> None:
    await store.create_chat(replace(new_chat(None, id="c1"), title=title, message=message))
    (line,) = await store.list_chats()
    assert line.called == called


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"team": "a"}, ["c0", "c1"]),
        ({"team": "a", "vip": "true"}, ["c1"]),
        ({"n": "7"}, ["c2"]),
        ({"team": ""}, []),
        ({"nothing": "null"}, []),
        ({'o"dd.key$': "x"}, ["c3"]),
    ],
)
async def test_a_listing_compares_metadata_as_text(store: Store, metadata: dict[str, str], found: list[str]) -> None:
    known: list[dict[str, object]] = [
        {"team": "a"}, {"team": "a", "vip": True}, {"n": 7, "nothing": None}, {'o"dd.key$': "x"},
    ]  # fmt: skip
    for n, values in enumerate(known):
        await store.create_chat(replace(new_chat(None, id=f"c{n}"), metadata=Raw(msgspec.json.encode(values))))
    lines = await store.list_chats(ChatFilter(metadata=metadata))
    assert sorted(line.id for line in lines) == found


async def test_a_listing_tells_archived_chats_and_agents_apart(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1", agent="a"))
    await store.create_chat(new_chat(None, id="c2", agent="b"))
    await store.submit("c2", cmd.Archive())
    assert [line.id for line in await store.list_chats(ChatFilter(archived=True))] == ["c2"]
    assert [line.id for line in await store.list_chats(ChatFilter(archived=False))] == ["c1"]
    assert [line.id for line in await store.list_chats(ChatFilter(agent="b"))] == ["c2"]


@pytest.mark.parametrize("limit", [0, -1, 10_001])
async def test_a_listing_refuses_a_page_of_nonsense(store: Store, limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await store.list_chats(limit=limit)


async def test_an_archived_chat_comes_back_with_the_next_message(store: Store) -> None:
    await store.create_chat(new_chat(None, id="c1"))
    await store.submit("c1", cmd.Archive())
    assert (await store.list_chats())[0].archived
    await store.submit("c1", cmd.Send(message=user()))
    assert not (await store.read_chat("c1")).chat.archived


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_sampling_that_json_cannot_hold_is_refused_and_not_silently_dropped(
    store: Store, number: float
) -> None:
    message = replace(user("hello"), sampling=Sampling(temperature=number))
    with pytest.raises(InvalidInput, match="sampling"):
        await store.create_chat(replace(new_chat(None, id="c1"), message=message))


HI = Message(id="m", role=Role.USER, parts=(Text(text="hi"),))


@pytest.mark.parametrize(
    ("request_", "known"),
    [
        (NewChat(id="c1", agent="a", message=HI), "5af2cddbcf41746eaefec09c4d66d421"),
        (cmd.Send(message=HI, mode="steer"), "d7f80955dbc797579bfa85b192624d45"),
        (cmd.Edit(pos=1, role=Role.USER, epoch=0, message=HI), "4640538c6c37ee6456e8f6bc51cd9c3c"),
        (cmd.Stop(clear_queue=True), "484f18a304525562b4f2348342babd7c"),
        (cmd.Promote(message_id="m"), "98c4e6bb9466acfe11a7f488d63cf5ea"),
        (cmd.Withdraw(message_id="m"), "b03b66d658ab88057ff907ee1e1874c7"),
        (cmd.Approve(call_id="k", by="ann"), "6ad879aa709f4f5b6c376e10cfd7fd15"),
        (cmd.Deny(call_id="k", by="ann"), "2700965993dd2afbaa443a7a1bd716c1"),
        (cmd.Submit(call_id="k", content="x"), "79264665310df2d13cf2b6643602180b"),
        (cmd.Compact(), "70441cf1a1fee195d1b0aaea222216dd"),
        (cmd.Retry(), "0b5289952a927866ef6e3ad41b8f2dd1"),
        (cmd.Archive(), "2f41b1531bc9b18a110a34e77979634d"),
        (cmd.Rename(title="t"), "c716cc725ff98b49f8de80ba8ff4c09f"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_request_that_is_repeated_after_an_upgrade_is_the_same_one(request_: object, known: str) -> None:
    """Receipts of a week hold these digests. A field that a request gets is left out while a client says nothing of
    it (`_ADDED` in store/receipts.py); else a client that asks again is told that its key was used before.
    """
    assert request_hash("c1", request_) == known
