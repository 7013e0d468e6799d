"""Chats that live at random: whatever happens, in whatever order, what is always true stays true.

Hypothesis sends likely, illegal and stale commands to a family of chats, lets workers die and time pass. After every
step the invariants are checked; at the end, a sensible worker brings every chat to rest.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core import commands as cmd
from holdfast.core.apply import row_of
from holdfast.core.change import Change, Refused
from holdfast.core.codec import decode_entry
from holdfast.core.limits import LIMITS, Limits
from holdfast.core.records import (
    Call,
    CallState,
    Cause,
    External,
    NewChat,
    Phase,
    Replay,
    Role,
    Snapshot,
    State,
)
from holdfast.core.states import OPEN
from tests.support import invariants
from tests.support.model import ModelStore
from tests.support.story import START, assistant, user
from tests.support.strategies import World, commands, next_attempt, user_messages
from tests.support.turn_lives import problems_of_turns

CHATS_MAX = 6
LIMITS_FOR_RANDOM_LIVES = Limits(queue_messages_max=6, batch_calls_max=2, unclean_claims_max=3)


class RandomLives(RuleBasedStateMachine):
    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.store = ModelStore(self.limits)
        self.now = START
        self.number = 0
        self.workers = ["w1", "w2"]
        self.accepted: dict[str, set[str]] = {}  # user messages taken by each chat
        self.settled: set[str] = set()  # of these, those returned to the caller or taken as an answer

    # --- what happens -------------------------------------------------------------------------------

    @initialize(data=st.data())
    def a_first_chat(self, data: st.DataObject) -> None:
        self._create(data)

    @rule(data=st.data())
    @precondition(lambda self: len(self.store.chats) == 0)
    def somebody_creates_another_chat(self, data: st.DataObject) -> None:
        self._create(data)

    @rule(data=st.data(), steps=st.integers(1, 6))
    @precondition(lambda self: self.store.chats)
    def sensible_things_happen(self, data: st.DataObject, steps: int) -> None:
        chat_id = data.draw(st.sampled_from(sorted(self.store.chats)))
        for _ in range(steps):
            snapshot, world = self.store.get(chat_id), self._world(chat_id, sensible=True)
            self.now = max(self.now, snapshot.chat.wake_at or 0)
            self._happens(chat_id, data.draw(commands(snapshot, world)))
            self.all_invariants_hold()

    @rule(data=st.data())
    @precondition(lambda self: self.store.chats)
    def anything_happens(self, data: st.DataObject) -> None:
        chat_id = data.draw(st.sampled_from(sorted(self.store.chats)))
        self._happens(chat_id, data.draw(commands(self.store.get(chat_id), self._world(chat_id))))

    @rule(data=st.data())
    @precondition(lambda self: self.store.chats)
    def two_things_happen_in_one_transaction(self, data: st.DataObject) -> None:
        chat_id = data.draw(st.sampled_from(sorted(self.store.chats)))
        snapshot, world = self.store.get(chat_id), self._world(chat_id)
        self._happens(chat_id, *data.draw(st.lists(commands(snapshot, world), min_size=2, max_size=2)))

    @rule(ms=st.sampled_from((1, 10, 1_000, 60_000)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        """Its chats are taken from it one by one, and another worker comes."""
        dead = data.draw(st.sampled_from(self.workers))
        for chat_id in [chat.id for chat in self.store.chats.values() if chat.worker == dead]:
            self._happens(chat_id, cmd.LeaseExpired(worker=dead))
        self.workers = [*[worker for worker in self.workers if worker != dead], self._fresh("w")]

    # --- what is always true ------------------------------------------------------------------------

    @invariant()
    def all_invariants_hold(self) -> None:
        for chat_id in self.store.chats:
            snapshot, entries = self.store.get(chat_id), self.store.numbered_journal(chat_id)
            found = invariants.everything(snapshot, self.store.history(chat_id), entries, self.workers)
            assert found == [], f"{chat_id}: {found}"

    @invariant()
    def no_message_that_was_taken_is_lost(self) -> None:
        for chat_id in self.store.chats:
            queued = {message.id for message in self.store.get(chat_id).queue}
            entered = {row.ref for row in self.store.rows[chat_id] if row.role is Role.USER}
            assert not queued & entered
            assert self.accepted[chat_id] - self.settled == queued | entered

    @invariant()
    def an_unsafe_call_starts_at_most_once(self) -> None:
        for call in self.store.calls.values():
            assert call.replay is not Replay.UNSAFE or call.starts <= 1

    @invariant()
    def what_is_asked_below_a_root_is_told_there(self) -> None:
        assert self.store.untold_questions() == []

    @invariant()
    def a_handover_is_never_taken_for_a_stop(self) -> None:
        for chat in self.store.chats.values():
            assert chat.cause not in (Cause.SHUTDOWN, Cause.LEASE_LOST)

    @rule()
    def the_journal_tells_each_turn_as_it_stands(self) -> None:
        for chat_id, chat in self.store.chats.items():
            assert problems_of_turns(chat, [decode_entry(row.body) for row in self.store.rows[chat_id]]) == []

    def teardown(self) -> None:
        """Nobody is stranded: whatever became of them, a sensible worker brings all chats to rest."""
        for _ in range(40):
            brought_on = [self._brings_on(chat_id) for chat_id in sorted(self.store.chats)]
            if not any(brought_on):
                break
        stranded = [chat for chat in self.store.chats.values() if chat.state not in (State.IDLE, State.FAILED)]
        assert stranded == []
        self.all_invariants_hold()
        self.no_message_that_was_taken_is_lost()
        self.the_journal_tells_each_turn_as_it_stands()

    # --- how ----------------------------------------------------------------------------------------

    def _fresh(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def _world(self, chat_id: str, *, sensible: bool = False) -> World:
        positions = self.store.positions(chat_id)
        children = [chat.id for chat in self.store.chats.values() if chat.parent_id == chat_id]
        return World(
            now=self.now,
            workers=tuple(self.workers),
            fresh=self._fresh,
            role_at=lambda pos: positions[pos].role if pos in positions else None,
            children=tuple(sorted(children)),
            may_spawn=len(self.store.chats) < CHATS_MAX,
            sensible=sensible,
        )

    def _create(self, data: st.DataObject) -> None:
        world = World(now=self.now, workers=(), fresh=self._fresh, role_at=lambda pos: None)
        message = data.draw(st.one_of(st.none(), user_messages(world)))
        if message is not None and (message.role is not Role.USER or not message.parts):
            message = None
        change = self.store.create(NewChat(id=self._fresh("chat"), agent="agent", message=message), self.now)
        self.accepted[change.after.chat.id] = {message.id} if message is not None else set()

    def _happens(self, chat_id: str, *happened: cmd.Command) -> None:
        before = {other: self.store.get(other) for other in self.store.chats}
        rows = {other: len(self.store.rows[other]) for other in self.store.chats}
        outcome = self.store.apply(chat_id, *happened, now=self.now)
        if isinstance(outcome, Refused):
            assert outcome.command in {row_of(command) for command in happened}
            assert {other: self.store.get(other) for other in self.store.chats} == before
            assert {other: len(self.store.rows[other]) for other in self.store.chats} == rows
            return
        for change in outcome:
            if change.before is not None:
                found = invariants.step(change.before, change.after)
                assert found == [], f"{change.after.chat.id}: {found}"
        self._account(chat_id, happened, outcome)

    def _account(self, chat_id: str, happened: tuple[cmd.Command, ...], changes: tuple[Change, ...]) -> None:
        """Where every message went that somebody was told had been taken, the loop's own among them."""
        for command in happened:
            if isinstance(command, cmd.Send | cmd.Edit | cmd.AskAgain):
                self.accepted[chat_id].add(command.message.id)
            if isinstance(command, cmd.Reach) and command.message is not None:
                for change in changes:
                    if change.sent == command.message.id:  # a child that is one took it
                        self.accepted[change.after.chat.id].add(command.message.id)
            if isinstance(command, cmd.Give):
                self.accepted[chat_id] |= {message.id for message in command.messages if message.role is Role.USER}
        for change in changes:
            self.settled |= {queued.id for queued in change.dropped}
            if change.spawned is not None:
                message = change.spawned.message
                self.accepted[change.spawned.id] = {message.id} if message is not None else set()
        for command, change in zip(happened, changes, strict=False):
            if isinstance(command, cmd.Send) and _took_as_answer(change, command.message.id):
                self.settled.add(command.message.id)

    # --- a sensible worker, and sensible people -----------------------------------------------------

    def _brings_on(self, chat_id: str) -> bool:
        """Does what is next for this chat until it rests or waits for another one; False: it rests."""
        for _ in range(200):
            snapshot = self.store.get(chat_id)
            if snapshot.chat.state in (State.IDLE, State.FAILED):
                return False
            if snapshot.chat.state is State.WAITING:
                self._somebody_answers(snapshot)
                return True
            self._happens(chat_id, *self._next(snapshot))
            assert self.store.get(chat_id) != snapshot, f"{chat_id} does not get on"
        raise AssertionError(f"{chat_id} never comes to rest")

    def _next(self, snapshot: Snapshot) -> list[cmd.Command]:
        chat = snapshot.chat
        by = cmd.Writer(chat.worker or "", chat.fence, chat.epoch)
        if chat.worker is None:
            assert chat.wake_at is not None
            self.now = max(self.now, chat.wake_at)
            return [cmd.Claim(worker=self.workers[0])]
        if chat.state is State.STOPPING:
            return [cmd.FinishStop(by=by)]
        if chat.phase is Phase.MODEL:
            message = assistant(self._fresh("r"))
            return [cmd.Respond(by=by, message=message, attempt=next_attempt(snapshot))]
        if chat.phase is Phase.CALLS:
            return [self._next_for_call(by, call) for call in snapshot.open_calls if call.state in _RUNNABLE][:1] or [
                cmd.Park(by=by)
            ]
        compaction: list[cmd.Command] = [cmd.FinishCompaction(by=by, error="none")] if chat.compact else []
        return [*compaction, cmd.FinishTurn(by=by)]

    def _next_for_call(self, by: cmd.Writer, call: Call) -> cmd.Command:
        if call.state is CallState.STARTED:
            return cmd.Outcome(by=by, call_id=call.id, content="ok")
        return cmd.StartCalls(by=by, call_ids=(call.id,))

    def _somebody_answers(self, snapshot: Snapshot) -> None:
        chat_id, call = snapshot.chat.id, snapshot.open_calls[0]
        too_late = call.expires_at is not None and call.expires_at <= self.now
        if call.state is CallState.ASKING and not too_late:
            self._happens(chat_id, cmd.Approve(call_id=call.id))
        elif call.external is External.TIMER or too_late:
            assert snapshot.chat.wake_at is not None
            self.now = max(self.now, snapshot.chat.wake_at)
            self._happens(chat_id, cmd.Claim(worker=self.workers[0]))
        elif call.external is External.CHILD:
            assert call.child_id in self.store.chats, "a parent waits for a chat that is gone"
            if self.store.get(call.child_id).chat.state in (State.IDLE, State.FAILED):
                self._happens(call.child_id, cmd.Send(message=user(self._fresh("m"))))
        else:
            self._happens(chat_id, cmd.Submit(call_id=call.id, content="mine"))


_RUNNABLE = OPEN - {CallState.ASKING, CallState.EXTERNAL}


def _took_as_answer(change: Change, message_id: str) -> bool:
    """It became the result of an open question, and so is neither queued nor a message of its own."""
    answered = any(line.role is Role.TOOL for line in change.lines)
    elsewhere = {line.ref for line in change.lines} | {queued.id for queued in change.after.queue}
    return answered and message_id not in elsewhere


class RandomLivesAtTheLimits(RandomLives):
    limits = LIMITS_FOR_RANDOM_LIVES


# More of them, for a night: HOLDFAST_RANDOM_LIVES=5000
_settings: Any = settings(
    max_examples=int(os.environ.get("HOLDFAST_RANDOM_LIVES", "60")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Bounded in examples; how long they take is the machine's affair.
pytestmark = pytest.mark.timeout(900)
TestRandomLives = RandomLives.TestCase
TestRandomLives.settings = _settings
TestRandomLivesAtTheLimits = RandomLivesAtTheLimits.TestCase
TestRandomLivesAtTheLimits.settings = _settings
