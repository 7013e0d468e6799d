"""Previews on their way into the store: without a gap or up to a point, and never at the cost of a turn."""

from typing import NamedTuple

from holdfast import faults
from holdfast.agent import Agent
from holdfast.app import App
from holdfast.core import commands as cmd
from holdfast.core.codec import decode_delta
from holdfast.core.journal import Delta
from holdfast.core.records import State, attempt_id
from holdfast.models.scripted import ScriptedModel
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.worker.deltas import DeltaFlusher, DeltaStream
from tests.support.behind import sql
from tests.support.chats import Hand, history, new_chat
from tests.support.fixtures import FailingStore
from tests.support.waiting import eventually, until


class Streaming(NamedTuple):
    hand: Hand
    deltas: DeltaFlusher
    stream: DeltaStream

    def say(self, text: str) -> None:
        self.deltas.add(self.stream, Delta(part="text", text=text))


async def streaming(store: Store, deltas: DeltaFlusher | None = None, chat_id: str = "c1") -> Streaming:
    await store.create_chat(new_chat("hello", id=chat_id))
    hand = Hand(store)
    chat = (await hand.take(chat_id)).chat
    deltas = deltas or DeltaFlusher(store)
    return Streaming(hand, deltas, deltas.open(chat, attempt_id(chat.fence, 1)))


async def stored(store: Store, stream: DeltaStream) -> list[tuple[int, str]]:
    return [(row.k, decode_delta(row.body).text) for row in await store.read_deltas(stream.chat_id, stream.attempt)]


def fail() -> None:
    raise RuntimeError("nobody foresaw this")


async def test_a_flush_that_fails_in_a_way_nobody_foresaw_is_not_the_last(store: Store) -> None:
    it = await streaming(store)
    it.deltas.start()
    faults.arm("deltas.before", fail)
    it.say("first ")
    await until(lambda: it.deltas.failed_flushes)
    it.say("second")
    await eventually(lambda: store.read_deltas("c1", it.stream.attempt))
    await until(lambda: it.deltas.flushes and not it.deltas.buffered_bytes)
    assert "".join(text for _, text in await stored(store, it.stream)) == "first second"
    await it.deltas.close(it.stream)
    await it.deltas.stop()


async def test_a_flush_that_failed_is_sent_again_under_its_numbers_before_anything_newer(
    failing_store: FailingStore,
) -> None:
    """And as it was: it may be stored, though we were not told, and a row that is stored never changes."""
    failing, app = (
        App(failing_store.url, options=StoreOptions(deadline_s=failing_store.deadline_s)),
        App(failing_store.steady_url),
    )
    async with app, failing:
        it = await streaming(app.store, DeltaFlusher(failing.store))
        it.say("one ")
        await it.deltas.run_once()
        it.say("two ")
        with failing_store.outage():
            assert not await it.deltas.run_once()
        it.say("three")
        await eventually(it.deltas.run_once)  # a connection that was cut may cost one more
        assert await stored(app.store, it.stream) == [(0, "one "), (1, "two "), (2, "three")]
        assert it.deltas.buffered_bytes == 0


async def test_a_stop_and_a_crash_after_a_failed_flush_commit_no_answer_with_words_missing(
    failing_store: FailingStore,
) -> None:
    failing = App(failing_store.url, options=StoreOptions(deadline_s=failing_store.deadline_s))
    app = App(failing_store.steady_url, agents=[Agent("agent", ScriptedModel())])
    async with app, failing:
        it = await streaming(app.store, DeltaFlusher(failing.store))
        it.say("Do ")
        await it.deltas.run_once()
        it.say("not ")
        with failing_store.outage():
            await it.deltas.run_once()
        it.say("press the button.")
        await eventually(it.deltas.run_once)  # a connection that was cut may cost one more
        await app.store.submit("c1", cmd.Stop())
        it.hand.line.retire(it.hand.name)
        await app.store.expire_workers()
        async with app.worker(poll_s=0.1):
            await until_idle(app)
        assert (await history(app.store, "c1"))[-1].text == "Do not press the button."


async def until_idle(app: App) -> None:
    async def idle() -> bool:
        return (await app.store.read_chat("c1")).chat.state is State.IDLE

    await eventually(idle)


async def test_what_a_successor_commits_after_a_stop_and_a_crash_ends_at_the_first_gap(
    store: Store, store_url: str
) -> None:
    """A database that was restored, or written by older code, may have one."""
    it = await streaming(store)
    for text in ("Do ", "not ", "press the button."):
        it.say(text)
        await it.deltas.run_once()
    sql(store_url, "DELETE FROM deltas WHERE k = 1")
    await store.submit("c1", cmd.Stop())
    it.hand.line.retire(it.hand.name)
    await store.expire_workers()
    app = App(store_url, agents=[Agent("agent", ScriptedModel())])
    async with app, app.worker(poll_s=0.1):
        await until_idle(app)
        assert (await history(app.store, "c1"))[-1].text == "Do "


async def test_a_preview_that_outgrows_its_room_ends_there_and_takes_nobody_elses(store: Store) -> None:
    deltas = DeltaFlusher(store, buffered_bytes_max=800)  # an eighth of it for each
    it, other = await streaming(store, deltas), await streaming(store, deltas, "c2")
    it.say("a" * 99)
    it.say("ä")  # two bytes
    it.say("b")
    other.say("c" * 50)
    await deltas.run_once()
    it.say("d")
    await deltas.run_once()
    assert await stored(store, it.stream) == [(0, "a" * 99)], "what came after the gap is not told"
    assert await stored(store, other.stream) == [(0, "c" * 50)]
    assert (deltas.streams_cut, deltas.buffered_bytes) == (1, 0)


async def test_a_piece_that_no_store_takes_ends_its_own_preview_and_no_other(store: Store) -> None:
    deltas = DeltaFlusher(store)
    it, other = await streaming(store, deltas), await streaming(store, deltas, "c2")
    it.say("half a \ud83d character")
    other.say("well")
    await deltas.run_once()
    it.say("more")
    await deltas.run_once()
    assert await stored(store, it.stream) == []
    assert await stored(store, other.stream) == [(0, "well")]
    assert (deltas.streams_cut, deltas.buffered_bytes) == (1, 0)


async def test_a_stream_that_breaks_every_flush_is_found_and_ended(store: Store) -> None:
    deltas = DeltaFlusher(store)
    it, other = await streaming(store, deltas), await streaming(store, deltas, "c2")
    it.stream.attempt = 1 << 63  # a number that no database holds
    it.say("broken")
    other.say("well")
    for _ in range(3):
        await deltas.run_once()
    other.say(" and good")
    assert await deltas.run_once()
    assert await stored(store, other.stream) == [(0, "well"), (1, " and good")]
    assert deltas.streams_cut == 1
