"""One life of a few chats that uses every verb of a store: the work that crash tests interrupt.

A `Run` plays `STEPS` one after the other. All ids, keys, commit ids and times follow from the step's name, so every
run on the same kind of store leaves the same rows behind: what a store must hold after a crash is what it held at the
same step in a run that nobody disturbed. Several runs with different prefixes can share a store; they share no row.
"""

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.journal import Delta
from holdfast.core.records import (
    External,
    Failure,
    File,
    LeaseEnd,
    Message,
    NewChat,
    Part,
    Role,
    Snapshot,
    Text,
    ToolCall,
    attempt_id,
)
from holdfast.errors import NotFound, RefusedError
from holdfast.store.contract import LeaseLine, Store
from holdfast.store.host_lock import HostLock
from holdfast.store.records import Answer, DeltaBatch, Key, WorkerInfo
from holdfast.system.clock import FakeClock
from tests.support.rows import execute

DAY_MS = 86_400_000

# What a step is to the store. Of each kind it is known which crash points it passes.
Kind = Literal[
    "open",
    "create",
    "client",
    "commit",
    "claim",
    "deltas",
    "fork",
    "delete",
    "lease",
    "expire",
    "sweep",
    "upkeep",
    "refused",
    "sabotage",
]


@dataclass(frozen=True)
class Step:
    name: str
    kind: Kind
    alone: bool  # it reaches the rows of other runs, or undoes what others rely on
    do: Callable[["Run"], Awaitable[object]]

    @property
    def is_one_transaction(self) -> bool:
        return self.kind not in ("expire", "sweep")


class Run:
    """What a client and a worker know in one life of the scenario."""

    def __init__(
        self, store: Store, clock: FakeClock, url: str, *, prefix: str = "", locks: Path | None = None
    ) -> None:
        """`locks`: a folder in which each worker holds a lock, so that others see when this process is dead."""
        self.store = store
        self.clock = clock
        self.url = url
        self.prefix = prefix
        self.held: dict[str, Snapshot] = {}
        self.repeating = False  # this step may have happened already
        self.step = STEPS[0]
        self._lines: dict[str, LeaseLine] = {}
        self._locks = locks
        self._held_locks: list[HostLock] = []

    async def play(self, step: Step, *, repeating: bool = False) -> object:
        self.step, self.repeating = step, repeating
        return await step.do(self)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        for lock in self._held_locks:
            lock.release()
        self._held_locks.clear()

    # --- names ------------------------------------------------------------------------------------------------

    def id(self, name: str) -> str:
        return self.prefix + name

    @property
    def key(self) -> Key:
        return Key(principal="scenario", key=self.id(self.step.name))

    def user(self, id: str, text: str) -> Message:
        return Message(id=self.id(id), role=Role.USER, parts=(Text(text=text),))

    def showing(self, id: str, text: str) -> Message:
        """With a picture, which is kept beside the messages."""
        said = self.user(id, text)
        picture = base64.b64encode(said.id.encode() * 1_000).decode()
        file = File(media_type="image/png", uri=f"data:image/png;base64,{picture}")
        return replace(said, parts=(*said.parts, file))

    def assistant(self, *parts: Part | str) -> Message:
        typed = tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
        return Message(id=self.id(f"{self.step.name}.response"), role=Role.ASSISTANT, parts=typed)

    def call(self, id: str) -> ToolCall:
        return ToolCall(call_id=self.id(id), name="tool", arguments="{}")

    def new_chat(self, chat: str, text: str | None) -> NewChat:
        message = self.user(f"{chat}.1", text) if text is not None else None
        return NewChat(id=self.id(chat), agent=self.id("agent"), message=message)

    # --- a client ---------------------------------------------------------------------------------------------

    async def create(self, chat: str, text: str | None) -> Answer:
        return await self.store.create_chat(self.new_chat(chat, text), self.key)

    async def submit(self, chat: str, command: cmd.Command) -> Answer:
        return await self.store.submit(self.id(chat), command, self.key)

    # --- a worker ---------------------------------------------------------------------------------------------

    async def lease(self, worker: str, ask: Callable[[LeaseLine], object]) -> None:
        """Leases are kept from threads: with the database away a call takes seconds, and nobody waits for it."""

        def asked() -> None:
            if worker not in self._lines:
                self._lines[worker] = self.store.lease_line()
            ask(self._lines[worker])

        await asyncio.to_thread(asked)

    async def register(self, worker: str) -> None:
        if self.repeating and self.id(worker) in {lease.worker for lease in await self.store.list_workers()}:
            return
        lock_path = None
        if self._locks is not None:
            self._held_locks.append(HostLock(str(self._locks / self.id(worker))))
            lock_path = self._held_locks[-1].path
        info = WorkerInfo(worker=self.id(worker), host="", pid=os.getpid(), lock_path=lock_path)
        await self.lease(worker, lambda line: line.register(info))

    async def claim(self, worker: str, *chats: str) -> None:
        """Claim exactly these. A claim whose answer was lost is known by its owner."""
        found = await self.store.claim_chats(self.id(worker), {self.id("agent"): 10}, 10)
        claimed = {snapshot.chat.id: snapshot for snapshot in found}
        for chat in chats:
            if self.repeating and self.id(chat) not in claimed:
                claimed[self.id(chat)] = await self.store.read_chat(self.id(chat))
        assert claimed.keys() == set(map(self.id, chats)), f"claimed {sorted(claimed)}"
        for snapshot in claimed.values():
            assert snapshot.chat.worker == self.id(worker)
            self.held[snapshot.chat.id] = snapshot

    def by(self, chat: str) -> cmd.Writer:
        held = self.held[self.id(chat)].chat
        assert held.worker is not None
        return cmd.Writer(held.worker, held.fence, held.epoch)

    def attempt(self, chat: str, *, of: str | None = None) -> int:
        """Numbered by the step it is made in: later steps number higher."""
        return attempt_id(self.held[self.id(chat)].chat.fence, 1 + STEP_NAMES.index(of or self.step.name))

    def response(self, chat: str, *parts: Part | str, start: tuple[str, ...] = ()) -> cmd.Respond:
        message = self.assistant(*parts)
        plans = tuple(
            cmd.PlannedCall(id=part.call_id, start=part.call_id in map(self.id, start)) for part in message.calls
        )
        return cmd.Respond(by=self.by(chat), message=message, attempt=self.attempt(chat), plans=plans)

    async def commit(self, chat: str, *commands: cmd.Command) -> Snapshot:
        id = self.id(chat)
        self.held[id] = await self.store.commit(self.held[id], commands, f"commit {self.id(self.step.name)}")
        return self.held[id]


STEPS: list[Step] = []
STEP_NAMES: list[str] = []

Do = Callable[[Run], Awaitable[object]]


def step(kind: Kind, *, alone: bool = False) -> Callable[[Do], Do]:
    def add(do: Do) -> Do:
        name: str = do.__name__
        STEPS.append(Step(name, kind, alone, do))
        STEP_NAMES.append(name)
        return do

    return add


def step_named(name: str) -> Step:
    return STEPS[STEP_NAMES.index(name)]


# --- the steps ------------------------------------------------------------------------------------------------


@step("open")
async def open_the_store(run: Run) -> None:
    await run.store.open()


@step("lease")
async def register_a_worker(run: Run) -> None:
    await run.register("w1")


@step("create")
async def create_a_chat(run: Run) -> Answer:
    return await run.create("talk", "hello")


@step("create")
async def create_an_idle_chat(run: Run) -> Answer:
    return await run.create("quiet", None)


@step("create")
async def create_another_chat(run: Run) -> Answer:
    return await run.create("side", "and you?")


@step("refused")
async def create_a_chat_that_exists(run: Run) -> None:
    await _refused(run.create("talk", "hello again"))


@step("claim")
async def claim_two_chats(run: Run) -> None:
    await run.claim("w1", "talk", "side")


@step("client")
async def queue_a_message(run: Run) -> Answer:
    return await run.submit("talk", cmd.Send(message=run.showing("talk.2", "one more thing")))


@step("deltas")
async def stream_to_two_chats(run: Run) -> tuple[str, ...]:
    batches = []
    for chat in ("talk", "side"):
        texts = [msgspec.json.encode(Delta(part="text", text=f"{chat} says {n}. ")) for n in range(3)]
        batches.append(
            DeltaBatch(
                chat=run.held[run.id(chat)].chat,
                attempt=run.attempt(chat),
                first_k=0,
                bodies=tuple(texts),
            )
        )
    return await run.store.add_deltas(batches)


@step("commit")
async def respond_with_calls(run: Run) -> Snapshot:
    return await run.commit("talk", run.response("talk", "let me see", run.call("k1"), run.call("k2"), start=("k1",)))


@step("commit")
async def start_a_call(run: Run) -> Snapshot:
    return await run.commit("talk", cmd.StartCalls(by=run.by("talk"), call_ids=(run.id("k2"),)))


@step("commit")
async def finish_a_call(run: Run) -> Snapshot:
    return await run.commit("talk", cmd.Outcome(by=run.by("talk"), call_id=run.id("k1"), content="first"))


@step("refused")
async def commit_half_of_what_is_allowed(run: Run) -> None:
    by = run.by("talk")
    await _refused(
        run.commit(
            "talk",
            cmd.Outcome(by=by, call_id=run.id("k2"), content="refused"),
            cmd.Outcome(by=by, call_id="no such call", content="refused"),
        )
    )


@step("commit")
async def finish_the_last_call(run: Run) -> Snapshot:
    return await run.commit("talk", cmd.Outcome(by=run.by("talk"), call_id=run.id("k2"), content="second"))


@step("commit")
async def ask_for_approval_and_park(run: Run) -> Snapshot:
    by = run.by("talk")
    return await run.commit(
        "talk",
        run.response("talk", run.call("k3")),
        cmd.AskApproval(by=by, call_id=run.id("k3"), question="May I?"),
        cmd.Park(by=by),
    )


@step("client")
async def approve(run: Run) -> Answer:
    return await run.submit("talk", cmd.Approve(call_id=run.id("k3"), by="somebody"))


@step("claim")
async def claim_after_the_approval(run: Run) -> None:
    await run.claim("w1", "talk")


@step("commit")
async def run_the_approved_call(run: Run) -> Snapshot:
    by = run.by("talk")
    started = cmd.StartCalls(by=by, call_ids=(run.id("k3"),))
    return await run.commit("talk", started, cmd.Outcome(by=by, call_id=run.id("k3"), content="done"))


@step("commit")
async def finish_the_turn(run: Run) -> Snapshot:
    return await run.commit("talk", run.response("talk", "there"), cmd.FinishTurn(by=run.by("talk")))


@step("commit")
async def delegate_to_the_client_and_park(run: Run) -> Snapshot:
    by = run.by("talk")
    return await run.commit(
        "talk",
        run.response("talk", "over to you", run.call("k4")),
        cmd.Delegate(by=by, call_id=run.id("k4"), external=External.CLIENT),
        cmd.Park(by=by),
    )


@step("client")
async def submit_a_result(run: Run) -> Answer:
    return await run.submit("talk", cmd.Submit(call_id=run.id("k4"), content="here you are"))


@step("claim")
async def claim_after_the_result(run: Run) -> None:
    await run.claim("w1", "talk")


@step("client")
async def ask_for_compaction(run: Run) -> Answer:
    return await run.submit("talk", cmd.Compact())


@step("commit")
async def record_a_compaction(run: Run) -> Snapshot:
    return await run.commit("talk", cmd.FinishCompaction(by=run.by("talk"), upto=4, summary="they said hello"))


@step("commit")
async def spawn_a_child_and_park(run: Run) -> Snapshot:
    by = run.by("talk")
    return await run.commit(
        "talk",
        run.response("talk", run.call("k5")),
        cmd.Delegate(
            by=by, call_id=run.id("k5"), external=External.CHILD, spawn=run.new_chat("child", "do this"), child_turn=1
        ),
        cmd.Park(by=by),
    )


@step("claim")
async def claim_the_child(run: Run) -> None:
    await run.claim("w1", "child")


@step("commit")
async def end_the_child(run: Run) -> Snapshot:
    return await run.commit("child", run.response("child", "it is done"), cmd.FinishTurn(by=run.by("child")))


@step("claim")
async def claim_the_parent(run: Run) -> None:
    await run.claim("w1", "talk")


@step("fork")
async def fork_a_running_chat(run: Run) -> Answer:
    return await run.store.fork_chat(run.id("talk"), run.id("copy"), upto=EDITED_POS, key=run.key)


EDITED_POS = 7  # of "one more thing"


@step("client")
async def edit_a_message(run: Run) -> Answer:
    message = run.user("talk.2b", "one other thing")
    return await run.submit("talk", cmd.Edit(pos=EDITED_POS, role=Role.USER, epoch=0, message=message))


@step("commit")
async def finish_the_superseded_work(run: Run) -> Snapshot:
    held = run.held[run.id("talk")].chat
    partial = run.assistant("an answer to what nobody asks any more")
    return await run.commit(
        "talk",
        cmd.FinishStop(by=run.by("talk"), partial=partial, attempt=run.attempt("talk"), length=held.length),
    )


@step("client")
async def stop_a_chat(run: Run) -> Answer:
    return await run.submit("side", cmd.Stop())


@step("commit")
async def finish_a_stop_with_its_partial_text(run: Run) -> Snapshot:
    held = run.held[run.id("side")].chat
    return await run.commit(
        "side",
        cmd.FinishStop(
            by=run.by("side"),
            partial=run.assistant("side says 0. side says"),
            attempt=run.attempt("side", of="stream_to_two_chats"),
            length=held.length,
        ),
    )


@step("client")
async def archive_a_chat(run: Run) -> Answer:
    return await run.submit("side", cmd.Archive())


@step("commit")
async def fail_a_turn(run: Run) -> Snapshot:
    return await run.commit("talk", cmd.Fail(by=run.by("talk"), error=Failure(code="boom", message="it broke")))


@step("client")
async def retry_a_turn(run: Run) -> Answer:
    return await run.submit("talk", cmd.Retry())


@step("lease")
async def register_a_second_worker(run: Run) -> None:
    await run.register("w2")


@step("claim")
async def claim_with_the_second_worker(run: Run) -> None:
    await run.claim("w2", "talk")


@step("commit")
async def release_a_chat(run: Run) -> Snapshot:
    return await run.commit("talk", cmd.Release(by=run.by("talk")))


@step("lease")
async def renew_a_lease(run: Run) -> None:
    await run.lease("w1", lambda line: line.renew(run.id("w1"), msgspec.Raw(b'{"chats":1}')))


@step("claim", alone=True)
async def claim_what_was_released(run: Run) -> None:
    await run.claim("w2", "talk")


@step("lease", alone=True)
async def retire_a_worker_that_holds_a_chat(run: Run) -> None:
    await run.lease("w2", lambda line: line.retire(run.id("w2")))


@step("expire", alone=True)
async def expire_workers(run: Run) -> None:
    # It gave its lease up, so that another end changes nothing: a kill behind it leaves what was there before.
    assert not await run.store.recovery.end_lease(run.id("w2"), LeaseEnd.SILENT)
    # Under a repetition the other process is dead, and with it all workers that it had.
    lost = await run.store.expire_workers()
    assert run.repeating or lost == {run.id("w2"): 1}


@step("sabotage", alone=True)
async def lose_two_wake_ups(run: Run) -> None:
    """What no store does; a sweep has to find it."""
    execute(run.url, f"UPDATE chats SET wake_at = NULL WHERE id = '{run.id('talk')}'")
    execute(run.url, f"UPDATE chats SET wake_at = 1 WHERE id = '{run.id('quiet')}'")


@step("sweep", alone=True)
async def sweep(run: Run) -> None:
    repaired = await run.store.sweep()
    assert run.repeating or repaired == {"running_without_owner_or_wake_at": 1, "resting_with_wake_at": 1}


@step("claim")
async def claim_for_the_last_time(run: Run) -> None:
    await run.claim("w1", "talk")


@step("commit")
async def finish_the_last_turn(run: Run) -> Snapshot:
    return await run.commit("talk", run.response("talk", "goodbye"), cmd.FinishTurn(by=run.by("talk")))


@step("delete")
async def delete_a_chat(run: Run) -> tuple[str, ...]:
    return await _deleted(run, "side")


@step("delete")
async def delete_a_chat_and_its_child(run: Run) -> tuple[str, ...]:
    return await _deleted(run, "talk")


@step("create")
async def create_a_chat_after_all_that(run: Run) -> Answer:
    return await run.create("last", "are you still there?")


@step("upkeep", alone=True)
async def prune_receipts(run: Run) -> None:
    run.clock.step_wall(max(0, FakeClock().wall_ms() + 8 * DAY_MS - run.clock.wall_ms()))
    await run.store.prune_receipts()


async def _deleted(run: Run, chat: str) -> tuple[str, ...]:
    try:
        return await run.store.delete_chat(run.id(chat), children="include")
    except NotFound:
        assert run.repeating
        return ()


async def _refused(verb: Awaitable[Any]) -> None:
    try:
        await verb
    except RefusedError:
        return
    raise AssertionError("this had to be refused")
