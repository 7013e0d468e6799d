"""The driver of the wake stream, on sources that do as they are told and in time that the test owns."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from holdfast.core.deadlines import WakeDeadlines
from holdfast.core.wake import STARTS, Effect, WakeEvent, WakeState, step
from holdfast.errors import DrainFailed, StoreTimeout, StoreUnavailable
from holdfast.store.notify.wake_stream import LETTING_GO_MAX, Wake, WakeStream, _WakeHappening
from tests.support.handtime import HandTime, quiet
from tests.support.wakes import Outcome, ToldSource, ToldStream

STOPPED, CONNECTING, STREAMING, RECONNECTING, STOPPING = WakeState
DEADLINES = WakeDeadlines()


class Life:
    """A wake stream, with all that surrounds it."""

    def __init__(
        self,
        *plan: Outcome,
        answering: bool = True,
        chance: float = 0.0,
        report: Callable[[WakeState, str | None], None] | None = None,
    ) -> None:
        self.source = ToldSource(*plan, answering=answering)
        self.time = HandTime(chance)
        self.heard: list[Wake] = []
        self.reported: list[WakeState] = []

        def note(state: WakeState, error: str | None) -> None:
            self.reported.append(state)
            if report is not None:
                report(state, error)

        self.wakes = WakeStream(self.source, self.heard.append, DEADLINES, report=note, timing=self.time.timing)

    async def started(self) -> "Life":
        await self.wakes.start()
        await quiet()
        return self

    @property
    def state(self) -> WakeState:
        return self.wakes.state

    @property
    def open_streams(self) -> int:
        return sum(not stream.closed for stream in self.source.streams)


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    yield
    await quiet()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- every pair -----------------------------------------------------------------------------------------------------


async def arrived(state: WakeState) -> Life:
    plans: dict[WakeState, tuple[Outcome, ...]] = {CONNECTING: ("hung",), RECONNECTING: ("failed",)}
    life = Life(*plans.get(state, ()))
    if state is STOPPED:
        return life
    await life.started()
    if state is STOPPING:
        life.source.close_gate = asyncio.Event()
        life.wakes._post(_WakeHappening(WakeEvent.STOP))
    assert life.state is state
    return life


@pytest.mark.parametrize("event", list(WakeEvent))
@pytest.mark.parametrize("state", list(WakeState))
async def test_the_driver_does_in_every_state_what_the_table_says(state: WakeState, event: WakeEvent) -> None:
    life = await arrived(state)
    brought = ToldStream(life.source) if event is WakeEvent.CONNECTED else None
    told = step(state, event)
    heard = len(life.heard)
    held = [stream for stream in life.source.streams if not stream.closed]
    asking = life.wakes._stopped
    life.wakes._post(_WakeHappening(event, life.wakes._stay, stream=brought, wake=Wake(topics=("c1",))))
    assert life.state is (told.state if told is not None else state)
    effects = told.effects if told is not None else ()
    rung = [Wake()] * (Effect.RING_ALL in effects) + [Wake(topics=("c1",))] * (Effect.RING in effects)
    assert life.heard[heard:] == rung
    await quiet()
    if brought is not None:
        assert brought.closed == (told is None), "a stream that nobody asked for is closed"
    if told is not None and told.leaves:
        assert not any(stream.reading for stream in held), "leaving the state ended the reading"
        assert life.source.aborted == (state is CONNECTING), "and the connecting"
    if Effect.FINISH in effects:
        assert asking is not None
        assert asking.done()
    if life.source.close_gate is not None:
        life.source.close_gate.set()
    await life.wakes.stop()
    assert life.state is STOPPED
    assert life.open_streams == 0


@pytest.mark.parametrize("state", [CONNECTING, STREAMING, RECONNECTING])
async def test_leaving_a_state_ends_every_timer_and_task_it_started(state: WakeState) -> None:
    life = await arrived(state)
    assert STARTS[state]
    assert life.time.sleepers
    await life.wakes.stop()
    await quiet()
    assert life.time.sleepers == []
    assert life.wakes.figures().letting_go == 0


# --- its life -------------------------------------------------------------------------------------------------------


async def test_it_rings_everything_when_it_is_connected_and_then_what_it_hears() -> None:
    life = await Life().started()
    assert life.heard == [Wake()]
    life.source.stream.said.put_nowait(Wake(topics=("c1",)))
    life.source.stream.said.put_nowait(Wake(topics=("c1",)))
    await quiet()
    assert life.heard == [Wake(), Wake(topics=("c1",)), Wake(topics=("c1",))]
    assert life.wakes.figures().wakes == 2
    await life.wakes.stop()


@pytest.mark.parametrize("end", [None, StoreUnavailable("cut"), ValueError("a fault in the source")])
async def test_a_stream_that_ends_is_connected_anew_and_everything_is_rung(end: Exception | None) -> None:
    life = await Life().started()
    life.source.stream.said.put_nowait(end)
    await quiet()
    assert life.state is RECONNECTING
    assert life.source.stream.closed == 1
    await life.time.advance(DEADLINES.backoff_first_s)
    assert life.state is STREAMING
    assert life.heard == [Wake(), Wake()]
    figures = life.wakes.figures()
    assert (figures.connects, figures.reconnects) == (2, 1)
    assert figures.last_error == (str(end) if end is not None else None)
    await life.wakes.stop()


async def test_a_source_that_cancels_itself_is_a_stream_that_failed_not_the_end_of_us() -> None:
    life = await Life().started()

    async def gives_up() -> Wake | None:
        raise asyncio.CancelledError

    life.source.stream.read = gives_up  # type: ignore[method-assign]
    life.source.stream.said.put_nowait(Wake())
    await quiet()
    assert life.state is RECONNECTING
    await life.wakes.stop()


async def test_the_pause_grows_until_a_ping_came_back_and_then_is_short_again() -> None:
    seven: list[Outcome] = ["failed"] * 7
    life = await Life(*seven).started()
    for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0):
        assert life.state is RECONNECTING
        assert life.time.sleepers == [pause_s]
        await life.time.advance(pause_s)
    assert life.state is STREAMING
    life.source.stream.said.put_nowait(None)
    await quiet()
    assert life.time.sleepers == [0.1]
    await life.wakes.stop()


async def test_a_stream_that_connects_but_never_answers_does_not_shorten_the_pause() -> None:
    """Else a server that accepts and hangs up at once would be asked ten times a second, for ever."""
    life = await Life(answering=False).started()
    for pause_s in (0.1, 0.2, 0.4):
        life.source.stream.said.put_nowait(None)
        await quiet()
        assert life.time.sleepers == [pause_s]
        await life.time.advance(pause_s)
        assert life.state is STREAMING
    await life.wakes.stop()


async def test_the_pause_has_jitter() -> None:
    life = await Life("failed", chance=0.5).started()
    assert life.time.sleepers == [0.075]
    await life.wakes.stop()


# --- a connect that hangs -------------------------------------------------------------------------------------------


async def test_a_connect_that_hangs_is_aborted_at_its_deadline() -> None:
    """A hung connect that nothing could abort, because reset worked only when connected [electric#4542]."""
    life = await Life("hung").started()
    await life.time.advance(DEADLINES.connect_s - 0.001)
    assert (life.state, life.source.aborted) == (CONNECTING, 0)
    await life.time.advance(0.001)
    assert (life.state, life.source.aborted) == (RECONNECTING, 1)
    assert "not connected within 15 s" in str(life.wakes.figures().last_error)
    await life.time.advance(DEADLINES.backoff_first_s)
    assert life.state is STREAMING
    await life.wakes.stop()


async def test_a_reset_aborts_a_connect_that_hangs() -> None:
    life = await Life("hung").started()
    life.wakes.reset()
    await quiet()
    assert (life.state, life.source.aborted) == (RECONNECTING, 1)
    life.wakes.reset()
    await quiet()
    assert life.state is STREAMING, "a reset does not wait for the pause"
    await life.wakes.stop()


async def test_a_connect_that_comes_back_after_it_was_aborted_is_closed_and_ignored() -> None:
    life = await Life("deaf").started()
    await life.time.advance(DEADLINES.connect_s + DEADLINES.backoff_first_s)
    assert (life.state, life.source.attempts) == (STREAMING, 2)
    (mine,) = life.source.streams
    assert life.wakes.figures().letting_go == 1
    life.source.deaf_until.set()
    await quiet()
    late = life.source.stream
    assert late is not mine
    assert (late.closed, mine.closed) == (1, 0)
    assert (life.state, life.wakes.figures().letting_go) == (STREAMING, 0)
    assert life.heard == [Wake()], "it was never listened to"
    await life.wakes.stop()


async def test_a_connect_that_comes_back_to_another_connecting_is_not_taken_for_its_own() -> None:
    life = await Life("deaf", "hung").started()
    await life.time.advance(DEADLINES.connect_s + DEADLINES.backoff_first_s)
    assert (life.state, life.source.attempts) == (CONNECTING, 2)
    life.source.deaf_until.set()
    await quiet()
    assert life.state is CONNECTING
    assert life.source.stream.closed == 1
    await life.wakes.stop()


async def test_connects_that_never_let_go_do_not_pile_up() -> None:
    all_of_them: list[Outcome] = ["deaf"] * 100
    life = await Life(*all_of_them).started()
    await life.time.advance(1_000)
    assert life.source.attempts == LETTING_GO_MAX + 1
    assert life.wakes.figures().letting_go <= LETTING_GO_MAX + 2
    life.source.deaf_until.set()
    await life.time.advance(DEADLINES.connect_s + DEADLINES.backoff_longest_s)
    assert life.state is STREAMING
    assert life.open_streams == 1
    await life.wakes.stop()


# --- pings ----------------------------------------------------------------------------------------------------------


async def test_two_pings_that_do_not_come_back_reset_the_stream() -> None:
    """A dead stream shown as connected because heartbeats went over another channel [electric#4726]."""
    life = await Life().started()
    assert life.wakes.figures().proven
    life.source.answering = False
    await life.time.advance(DEADLINES.ping_interval_s)
    await life.time.advance(DEADLINES.ping_s)
    assert life.state is STREAMING, "one may be late"
    assert not life.wakes.figures().proven
    dead = life.source.stream
    await life.time.advance(DEADLINES.ping_s)
    assert (life.state, dead.closed) == (RECONNECTING, 1)
    figures = life.wakes.figures()
    assert (figures.pings, figures.pings_failed) == (3, 2)
    assert "no ping came back on the wake stream within 5 s" in str(figures.last_error)
    life.source.answering = True
    await life.time.advance(DEADLINES.backoff_first_s)
    assert (life.state, life.source.attempts) == (STREAMING, 2)
    assert life.wakes.figures().proven
    await life.wakes.stop()


async def test_a_ping_that_is_late_once_costs_nothing() -> None:
    life = await Life().started()
    for _ in range(3):
        life.source.answering = False
        await life.time.advance(DEADLINES.ping_interval_s)
        life.source.answering = True
        await life.time.advance(DEADLINES.ping_s)
    assert (life.state, life.source.attempts) == (STREAMING, 1)
    assert life.wakes.figures().pings_failed == 3
    await life.wakes.stop()


async def test_wakes_do_not_stand_in_for_pings() -> None:
    life = await Life(answering=False).started()
    for _ in range(2):
        life.source.stream.said.put_nowait(Wake(topics=("c1",)))
        await life.time.advance(DEADLINES.ping_s)
    assert life.state is RECONNECTING
    await life.wakes.stop()


async def test_a_ping_that_raises_has_not_come_back() -> None:
    life = await Life(answering=False).started()
    for _ in range(2):
        life.source.stream.pings[-1].set_exception(StoreUnavailable("broken pipe"))
        await quiet()
    assert life.state is RECONNECTING
    assert life.wakes.figures().last_error == "broken pipe"
    await life.wakes.stop()


async def test_one_ping_is_under_way_and_what_is_asked_meanwhile_is_exactly_one_more() -> None:
    life = await Life(answering=False).started()
    stream = life.source.stream
    assert len(stream.pings) == 1
    for _ in range(5):
        life.wakes.check()
        await quiet()
    assert len(stream.pings) == 1
    stream.pings[0].set_result(None)
    await quiet()
    assert len(stream.pings) == 2
    stream.pings[1].set_result(None)
    await quiet()
    assert len(stream.pings) == 2, "nobody asked since"
    life.wakes.check()
    await quiet()
    assert len(stream.pings) == 3, "and when nothing is under way, it is at once"
    await life.wakes.stop()


# --- start and stop -------------------------------------------------------------------------------------------------


async def test_starting_what_runs_changes_nothing() -> None:
    life = await Life().started()
    for _ in range(3):
        await life.wakes.start()
    await quiet()
    assert (life.state, life.source.attempts) == (STREAMING, 1)
    await life.wakes.stop()


async def test_stopping_what_is_stopped_changes_nothing() -> None:
    life = Life()
    await life.wakes.stop()
    assert life.reported == []
    await life.started()
    await life.wakes.stop()
    await life.wakes.stop()
    assert life.reported == [CONNECTING, STREAMING, STOPPING, STOPPED]


async def test_a_stop_while_connecting_aborts_the_connect() -> None:
    life = await Life("hung").started()
    await life.wakes.stop()
    assert (life.state, life.source.aborted) == (STOPPED, 1)


async def test_a_stop_in_the_very_moment_of_connecting_closes_the_stream() -> None:
    """A task that is cancelled before its first step never runs: nothing in it could close anything."""
    life = Life()
    stopping: list[asyncio.Task[None]] = []

    def stop_at_once(wake: Wake) -> None:
        stopping.append(asyncio.ensure_future(life.wakes.stop()))
        life.wakes._post(_WakeHappening(WakeEvent.STOP))

    life.wakes._ring = stop_at_once
    await life.started()
    await stopping[0]
    assert (life.state, life.source.attempts, life.open_streams) == (STOPPED, 1, 0)


@pytest.mark.parametrize("turns", range(15))
async def test_a_stop_at_any_moment_leaves_nothing_behind(turns: int) -> None:
    """Nothing half-begun either: a coroutine that was made and never awaited is a warning, and that an error here."""
    life = Life()
    await life.wakes.start()
    for _ in range(turns):
        await asyncio.sleep(0)
    await life.wakes.stop()
    assert (life.state, life.open_streams, life.wakes.figures().letting_go) == (STOPPED, 0, 0)
    assert life.time.sleepers == []


async def test_a_start_while_stopping_waits_for_the_stop_and_then_starts() -> None:
    life = await Life().started()
    life.source.close_gate = asyncio.Event()
    stopping = asyncio.ensure_future(life.wakes.stop())
    await quiet()
    starting = asyncio.ensure_future(life.wakes.start())
    await quiet()
    assert (life.state, life.source.attempts) == (STOPPING, 1)
    assert not starting.done()
    life.source.close_gate.set()
    await asyncio.gather(stopping, starting)
    await quiet()
    assert (life.state, life.source.attempts) == (STREAMING, 2)
    await life.wakes.stop()


async def test_stops_share_one_shutdown_and_its_error_which_comes_when_it_is_complete() -> None:
    life = await Life().started()
    life.source.close_error = RuntimeError("the far side hung up on our goodbye")
    seen: list[WakeState] = []

    async def stop() -> DrainFailed:
        with pytest.raises(DrainFailed) as caught:
            await life.wakes.stop()
        seen.append(life.state)
        return caught.value

    first, *others = await asyncio.gather(*(stop() for _ in range(5)))
    assert all(error is first for error in others)
    assert first.errors == (life.source.close_error,)
    assert first.__cause__ is life.source.close_error
    assert seen == [STOPPED] * 5
    assert life.source.stream.closed == 1
    await life.wakes.stop()
    life.source.close_error = None
    await life.started()
    await life.wakes.stop()


async def test_who_gives_up_waiting_for_a_stop_does_not_end_it_for_the_others() -> None:
    life = await Life().started()
    life.source.close_gate = asyncio.Event()
    impatient, patient = (asyncio.ensure_future(life.wakes.stop()) for _ in range(2))
    await quiet()
    impatient.cancel()
    await quiet()
    assert impatient.cancelled()
    assert not patient.done()
    life.source.close_gate.set()
    await patient
    assert life.state is STOPPED


async def test_a_stop_is_bounded_whatever_does_not_let_go() -> None:
    life = await Life("deaf").started()
    stopping = asyncio.ensure_future(life.wakes.stop())
    await life.time.advance(DEADLINES.drain_s - 0.001)
    assert life.state is STOPPING
    await life.time.advance(0.001)
    with pytest.raises(DrainFailed, match="1 did not let go within 5 s") as caught:
        await stopping
    assert isinstance(caught.value.errors[0], StoreTimeout)
    assert (life.state, life.wakes.figures().letting_go) == (STOPPED, 1)
    life.source.deaf_until.set()
    await quiet()
    assert life.source.stream.closed == 1, "late, it is closed all the same"
    assert (life.state, life.wakes.figures().letting_go) == (STOPPED, 0)


@pytest.mark.parametrize("error", [RuntimeError("reporter"), asyncio.CancelledError()])
async def test_a_reporter_that_throws_changes_nothing(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    def throw(*_: object) -> None:
        raise error

    life = await Life("failed", report=throw).started()
    await life.time.advance(DEADLINES.backoff_first_s)
    life.source.stream.said.put_nowait(Wake(topics=("c1",)))
    await quiet()
    assert life.heard == [Wake(), Wake(topics=("c1",))]
    await life.wakes.stop()
    assert life.reported == [CONNECTING, RECONNECTING, CONNECTING, STREAMING, STOPPING, STOPPED]
    own = [record for record in caplog.records if record.name == "holdfast.store.notify.wake_stream"]
    assert [record.action for record in own] == ["wake.callback_failed"] * 6  # type: ignore[attr-defined]


async def test_who_is_rung_or_told_may_ask_for_things() -> None:
    """What that causes comes after what caused it, and is told in that order."""
    life = Life()
    life.wakes._ring = lambda _: life.wakes.reset()
    await life.started()
    assert life.reported == [CONNECTING, STREAMING, RECONNECTING]
    assert (life.state, life.open_streams) == (RECONNECTING, 0)
    await life.wakes.stop()


async def test_the_figures_say_how_long_it_has_been_in_its_state() -> None:
    life = await Life("failed", "failed").started()
    await life.time.advance(0.1)
    await life.time.advance(0.05)
    figures = life.wakes.figures()
    assert (figures.state, round(figures.state_s, 6), figures.last_error) == (RECONNECTING, 0.05, "nobody there")
    await life.wakes.stop()
