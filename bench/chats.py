"""Chats to measure with: a lane drives one chat through steps of one response and one tool result."""

from itertools import count

from holdfast.core import commands as cmd
from holdfast.core.records import Message, NewChat, Role, Snapshot, Text, ToolCall, attempt_id
from holdfast.store.contract import LeaseLine, Store
from holdfast.store.records import StoreOptions, WorkerInfo

WORKER = "bench"
PATIENT = StoreOptions(lease_ttl_ms=3_600_000)  # nobody renews while something is being timed
_TEXT = "I will look that up and come back with what I find. " * 2
_RESULT = "It is 14 degrees and raining in Bern, with more rain to come. " * 2
_serial = count(1)


class Lane:
    """Each `commit` is one commit of a runner, in turn a response with a call and the call's outcome."""

    def __init__(self, store: Store, worker: str, snapshot: Snapshot) -> None:
        self.store = store
        self.snapshot = snapshot
        self.by = cmd.Writer(worker, snapshot.chat.fence, snapshot.chat.epoch)
        self._step = 0
        self._open = False

    def next_event(self) -> cmd.Command:
        self._open = not self._open
        if not self._open:
            return cmd.Outcome(by=self.by, call_id=f"call_{self._step}", content=_RESULT)
        self._step += 1
        call = ToolCall(call_id=f"call_{self._step}", name="weather", arguments='{"city":"Bern"}')
        return cmd.Respond(
            by=self.by,
            message=Message(id=f"msg_{self._step}", role=Role.ASSISTANT, parts=(Text(text=_TEXT), call)),
            attempt=attempt_id(self.by.fence, self._step),
            plans=(cmd.PlannedCall(id=call.call_id, start=True),),
        )

    async def commit(self) -> None:
        self.snapshot = await self.store.commit(self.snapshot, (self.next_event(),), f"commit_{next(_serial)}")


def question(n: int) -> NewChat:
    message = Message(id=f"user_{n}", role=Role.USER, parts=(Text(text="What is the weather in Bern?"),))
    return NewChat(id=f"chat_{n:08d}", agent="agent", message=message)


def register(store: Store, worker: str) -> LeaseLine:
    line = store.lease_line()
    line.register(WorkerInfo(worker=worker, host="", pid=0))
    return line


async def lanes(store: Store, worker: str, how_many: int) -> list[Lane]:
    for _ in range(how_many):
        await store.create_chat(question(next(_serial)))
    found: list[Snapshot] = []
    while len(found) < how_many:
        found += await store.claim_chats(worker, {"agent": how_many}, how_many)
    return [Lane(store, worker, snapshot) for snapshot in found]
