"""The same random lives on the core's model, on SQLite and on PostgreSQL, compared after every step.

The model says what must be stored; a store that writes a difference wrongly, loses a row, takes a refused change or
applies one twice is no longer equal to it.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.change import Refused
from holdfast.core.limits import Limits
from holdfast.core.records import NewChat, Role, Snapshot
from holdfast.errors import CallerError, StaleWriter
from holdfast.store import open_store
from holdfast.store.contract import Store
from holdfast.store.records import StoreOptions
from holdfast.system.clock import FakeClock
from tests.support.model import ModelStore
from tests.support.postgres import PostgresServer
from tests.support.scale import scaled
from tests.support.scratch import scratch_folder
from tests.support.strategies import World, commands, user_messages

T = TypeVar("T")
START_MS = 1_700_000_000_000
LIMITS = Limits(queue_messages_max=6, unclean_claims_max=3)
CHATS_MAX = 5
CLIENT_COMMANDS = (
    *(cmd.Send, cmd.Edit, cmd.Stop, cmd.Promote, cmd.Withdraw, cmd.Approve, cmd.Deny, cmd.Submit),
    *(cmd.Compact, cmd.Retry, cmd.Archive, cmd.Rename),
)
_examples = itertools.count(1)


class SideBySide(RuleBasedStateMachine):
    """`stores` and `runner` are set by the test: the machine is made anew for every example, they are not."""

    stores: dict[str, Store]
    clock: FakeClock
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.model = ModelStore(LIMITS)
        self.example = next(_examples)  # the stores are shared, so ids tell the examples apart
        self.number = 0
        self.now = START_MS
        self.workers = ["w1", "w2"]
        self.before: dict[tuple[str, str], Snapshot] = {}  # what a runner may still hold of each store's chats
        self.last_commit: tuple[str, tuple[cmd.Command, ...], str] | None = None

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.runner.run(wait())

    # --- what happens ---------------------------------------------------------------------------------

    @initialize(data=st.data())
    def a_first_chat(self, data: st.DataObject) -> None:
        self._create(data)

    @rule(data=st.data())
    @precondition(lambda self: len(self.model.chats) == 0)
    def another_chat(self, data: st.DataObject) -> None:
        self._create(data)

    @rule(data=st.data(), sensible=st.booleans(), steps=st.integers(1, 5))
    @precondition(lambda self: self.model.chats)
    def things_happen(self, data: st.DataObject, sensible: bool, steps: int) -> None:
        chat_id = data.draw(st.sampled_from(sorted(self.model.chats)))
        for _ in range(steps):
            if chat_id not in self.model.chats:
                return
            snapshot = self.model.get(chat_id)
            if sensible:
                self._advance(max(0, (snapshot.chat.wake_at or 0) - self.now))
            command = data.draw(commands(snapshot, self._world(chat_id, sensible=sensible)))
            self._happens(chat_id, (command,), outdated=data.draw(st.booleans()))
            self.all_stores_equal_the_model()

    @rule(data=st.data(), outdated=st.booleans())
    @precondition(lambda self: self.model.chats)
    def a_runner_commits_two_things_at_once(self, data: st.DataObject, outdated: bool) -> None:
        chat_id = data.draw(st.sampled_from(sorted(self.model.chats)))
        world = self._world(chat_id, sensible=True)
        drawn = data.draw(st.lists(commands(self.model.get(chat_id), world), min_size=2, max_size=2))
        if all(isinstance(command, cmd.RunnerCommand) for command in drawn):
            self._happens(chat_id, tuple(drawn), outdated=outdated)

    @rule()
    @precondition(lambda self: self.last_commit is not None and self.last_commit[0] in self.model.chats)
    def the_last_commit_is_sent_again(self) -> None:
        assert self.last_commit is not None
        chat_id, happened, commit_id = self.last_commit
        for name, store in self.stores.items():
            current = self.run(store.read_chat(chat_id))
            if current.chat.commit_id == commit_id:
                assert self.run(store.commit(self.before[name, chat_id], happened, commit_id)) == current

    @rule(ms=st.sampled_from((1, 10, 1_000, 60_000)))
    def time_passes(self, ms: int) -> None:
        self._advance(ms)

    @rule(data=st.data())
    @precondition(lambda self: self.model.chats and len(self.model.chats) < CHATS_MAX)
    def somebody_forks_a_chat(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.model.chats)))
        length = self.model.get(source).chat.length
        if length == 0:
            return
        upto = data.draw(st.integers(0, length - 1))
        positions = self.model.positions(source)
        end = min((pos for pos, m in positions.items() if pos > upto and m.role is not Role.TOOL), default=length)
        new_id = self._fresh("chat")
        assert not isinstance(self.model.fork(source, new_id, end, self.now), Refused)
        for store in self.stores.values():
            self.run(store.fork_chat(source, new_id, upto=upto))

    # --- what is always true --------------------------------------------------------------------------

    @invariant()
    def all_stores_equal_the_model(self) -> None:
        for name, store in self.stores.items():
            for chat_id in self.model.chats:
                self.run(self._compare(name, store, chat_id))

    async def _compare(self, name: str, store: Store, chat_id: str) -> None:
        snapshot = await store.read_chat(chat_id)
        assert _plain(snapshot) == self.model.get(chat_id), name
        page = await store.read_journal(chat_id, limit=10_000)
        assert [(i.seq, i.body) for i in page.items] == [(r.seq, r.body) for r in self.model.rows[chat_id]], name
        rows = await store.read_history(chat_id)
        expected = sorted((r.pos, r.seq, r.body) for r in self.model.rows[chat_id] if r.pos is not None)
        assert [(row.pos, row.seq, row.body) for row in rows] == expected, name
        assert await store.read_compaction(chat_id) == self.model.compaction(chat_id), name

    # --- how ------------------------------------------------------------------------------------------

    def _fresh(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}-{self.example:06d}-{self.number:04d}"

    def _advance(self, ms: int) -> None:
        self.now += ms
        self.clock.advance(self.now - self.clock.wall_ms())

    def _world(self, chat_id: str, *, sensible: bool) -> World:
        positions = self.model.positions(chat_id)
        children = sorted(chat.id for chat in self.model.chats.values() if chat.parent_id == chat_id)
        return World(
            now=self.now,
            workers=tuple(self.workers),
            fresh=self._fresh,
            role_at=lambda pos: positions[pos].role if pos in positions else None,
            children=tuple(children),
            may_spawn=len(self.model.chats) < CHATS_MAX,
            sensible=sensible,
        )

    def _create(self, data: st.DataObject) -> None:
        self.clock.advance(self.now - self.clock.wall_ms())
        world = World(now=self.now, workers=(), fresh=self._fresh, role_at=lambda pos: None, sensible=True)
        message = data.draw(st.one_of(st.none(), user_messages(world)))
        new = NewChat(id=self._fresh("chat"), agent="agent", message=message)
        self.model.create(new, self.now)
        for store in self.stores.values():
            self.run(store.create_chat(new))

    def _happens(self, chat_id: str, happened: tuple[cmd.Command, ...], *, outdated: bool) -> None:
        command = happened[0]
        if isinstance(command, cmd.Fork | cmd.Delete):
            return  # verbs of their own in a store
        commit_id = self._fresh("commit")
        expected = self.model.apply(chat_id, *happened, now=self.now)
        for name, store in self.stores.items():
            current = self.run(store.read_chat(chat_id))
            known = self.before.get((name, chat_id), current)
            same_claim = known.chat.claim_stamp == current.chat.claim_stamp
            held = known if outdated and same_claim else current
            refused = self.run(_send(store, chat_id, held, happened, commit_id))
            assert refused == isinstance(expected, Refused), f"{name}: {command} {expected}"
            if not isinstance(expected, Refused):
                self.before[name, chat_id] = current
        if not isinstance(expected, Refused) and isinstance(command, cmd.RunnerCommand):
            self.last_commit = (chat_id, happened, commit_id)


async def _send(
    store: Store, chat_id: str, held: Snapshot, happened: tuple[cmd.Command, ...], commit_id: str
) -> bool:
    """True if it was refused."""
    command = happened[0]
    try:
        if isinstance(command, cmd.RunnerCommand):
            await store.commit(held, happened, commit_id)
        elif isinstance(command, cmd.CountSpending):  # the model has one life, which is 0
            await store.submit(chat_id, replace(command, life=held.chat.life + command.life))
        elif isinstance(command, CLIENT_COMMANDS):
            await store.submit(chat_id, command)
        else:
            await store.recovery.apply_upkeep(chat_id, command)
    except (CallerError, StaleWriter):
        return True
    return False


def _plain(snapshot: Snapshot) -> Snapshot:
    """The model knows nothing of commit ids and stamps."""
    return replace(
        snapshot, chat=replace(snapshot.chat, commit_id=None, life=0, stamp=0, claim_stamp=0, line_stamp=0)
    )


@pytest.mark.timeout(300)
def test_core_sqlite_and_postgresql_live_the_same_lives(postgres_server: PostgresServer) -> None:
    clock = FakeClock(wall_ms=START_MS)
    options = StoreOptions(clock=clock, limits=LIMITS)
    url = postgres_server.create_database()
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder, asyncio.Runner() as runner:
        stores: dict[str, Any] = {
            "sqlite": open_store(f"sqlite:///{folder}/side.db", options),
            "postgres": open_store(url, options),
        }
        for store in stores.values():
            runner.run(store.open())
        try:
            machine = type("Machine", (SideBySide,), {"stores": stores, "clock": clock, "runner": runner})
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=scaled(12, 24),
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            for store in stores.values():
                runner.run(store.close())
