"""What waits for people and clients, listed over all chats: whole, in pages, by owner and kind, and without a look at
those that rest.
"""

import pytest

from holdfast.core import commands as cmd
from holdfast.core.records import External
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store
from holdfast.store.open_calls import LISTED_CHARS_MAX, OpenCallFilter
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from tests.store.test_growth import copies, copy_rows
from tests.support.behind import sql
from tests.support.chats import Hand, call, new_chat
from tests.support.kept import PAY, asking


async def ask_client(store: Store, chat_id: str, owner: str = "ada") -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id=chat_id, owner=owner))
    await hand.take(chat_id)
    await hand.park_for_client("there")
    hand.close()


async def test_what_waits_in_all_chats_is_listed_with_whose_it_is(store: Store) -> None:
    first, pay = await asking(store, PAY, chat_id="a", owner="ada")
    await asking(store, chat_id="b", owner="bob")
    await ask_client(store, "c")
    await store.create_chat(new_chat(None, id="d"))
    await store.submit("a", cmd.Rename(title="Kelp"))
    found = await store.list_open_calls()
    assert [(one.chat_id, one.owner, one.kind) for one in found] == [
        ("c", "ada", "client"),
        ("b", "bob", "approval"),
        ("a", "ada", "approval"),
    ]
    last = found[-1]
    (same,) = await store.open_calls(first)
    assert (last.call_id, last.question, last.offer) == (pay, "Pay?", (PAY,))
    assert (last.title, last.opening) == ("Kelp", "hello")
    assert (last.digest, last.arguments, last.whole) == (same.digest, same.arguments, same.whole)
    assert last.asked_at is not None
    assert last.asked_at <= store.now_ms()
    await store.submit(first, cmd.Deny(call_id=pay))
    assert [one.chat_id for one in await store.list_open_calls()] == ["c", "b"], "who has answered waits no more"


async def test_it_is_narrowed_by_owner_kind_and_family(store: Store) -> None:
    await asking(store, chat_id="a", owner="ada")
    await asking(store, chat_id="b", owner="bob")
    await ask_client(store, "c", owner="bob")

    async def of(**filter: str) -> list[str]:
        return [one.chat_id for one in await store.list_open_calls(OpenCallFilter(**filter))]  # type: ignore[arg-type]

    assert await of(owner="bob") == ["c", "b"]
    assert await of(kind="approval") == ["b", "a"]
    assert await of(kind="approval", owner="bob") == ["b"]
    assert await of(kind="question") == []
    assert await of(below="a") == ["a"]
    assert await of(below="nobody's") == []


async def test_a_call_is_listed_while_others_of_its_response_still_run(store: Store) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="a"))
    await hand.take("a")
    await hand.respond(call("k1", "pay"), call("k2", "look"), start=False)
    asked = cmd.AskApproval(by=hand.by, call_id="k1", question="Pay?")
    await hand.commit(asked, cmd.StartCalls(by=hand.by, call_ids=("k2",)))
    (one,) = await store.list_open_calls()
    assert (one.call_id, one.kind) == ("k1", "approval")
    hand.close()


async def test_pages_neither_miss_nor_repeat_a_call(store: Store, store_url: str) -> None:
    await copies(store, store_url, 25)
    seen: list[str] = []
    before = None
    while page := await store.list_open_calls(before=before, limit=7):
        seen += [one.chat_id for one in page]
        before = page[-1].place
        assert len(seen) <= 26
        if len(seen) == 7:
            await asking(store, chat_id="zzz")  # comes before the place of this reader
    assert seen == ["model", *(f"copy-{n:05}" for n in range(25, 0, -1))]
    for wrong in ("", "chat_1", "x.chat", "-1.chat", "9" * 30 + ".chat", "1."):
        with pytest.raises(InvalidInput, match="is not the `next` of a page"):
            await store.list_open_calls(before=wrong)


async def test_long_arguments_are_an_excerpt_in_the_listing(store: Store) -> None:
    hand = Hand(store)
    await store.create_chat(new_chat(id="a"))
    await hand.take("a")
    await hand.respond(call("k1", "pay"), start=False)
    told = '{"note": "' + "k" * 10_000 + '"}'
    await hand.commit(
        cmd.Delegate(by=hand.by, call_id="k1", external=External.CLIENT, arguments=told, told=told),
        cmd.Park(by=hand.by),
    )
    (one,) = await store.list_open_calls()
    assert (one.whole, one.arguments[:LISTED_CHARS_MAX]) == (False, told[:LISTED_CHARS_MAX])
    assert len(one.arguments) < LISTED_CHARS_MAX + 100
    whole = await store.read_open_call("a", "k1")
    assert (whole.arguments, whole.digest) == (told, one.digest)
    hand.close()


@pytest.mark.parametrize("filter", [{}, {"owner": "ada", "kind": "approval"}], ids=["all", "an owner's"])
async def test_chats_that_rest_are_not_looked_at(store: Store, store_url: str, filter: dict[str, str]) -> None:
    await asking(store, chat_id="asks")
    await store.create_chat(new_chat(None, id="rests"))
    copy_rows(store_url, "rests", 2_000)
    sql(store_url, "ANALYZE")
    values = {**filter, "chat": "m", "pos": 1, "limit": 50}
    if isinstance(store, SqliteStore):
        statement = "EXPLAIN QUERY PLAN " + store._sql.list_open_calls(frozenset(values))
    else:
        assert isinstance(store, PostgresStore)
        statement = "EXPLAIN " + store._sql.list_open_calls(frozenset(values))
    told = "\n".join(str(row[-1]) for row in await store._transactor.named_rows(statement, **values))
    for index in ("chats_waiting", "chats_held", "chats_unwatched"):
        assert index in told, told
    assert "Seq Scan on chats" not in told, told
    assert "SCAN chats\n" not in told, told
    assert [one.chat_id for one in await store.list_open_calls()] == ["asks"]
