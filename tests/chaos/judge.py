"""What must hold after a storm, judged from outside: by the store, the evidence on disk, and how processes ended.

`judge` returns everything that is wrong, in sentences, and the tally.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core import history
from holdfast.core.codec import decode_entry
from holdfast.core.journal import AnyEntry, MessageAdded, PreviewReset
from holdfast.core.records import Message, Role, Snapshot, State, Synthetic, ToolResult, fence_of
from holdfast.store.contract import Store
from holdfast.store.records import Item
from tests.chaos.storm import Fleet, Storm
from tests.chaos.weather import SAFE, scripts
from tests.support import invariants
from tests.worker.evidence import Line

# A stop may last as long as its grace, and then as long as it takes to end what was cut off (5 s for runners that do
# not end, KILL_S of worker.py) and to write it down under the store's deadline (8 s), which a process that was frozen
# in the middle of a write may use up.
STOP_MARGIN_S = 5.0 + 8.0

_DID = re.compile(r"^(\w+) did (\S+) in (\w+)$")
Numbered = list[tuple[int, AnyEntry]]


class Finding:
    """One chat, read to its end."""

    def __init__(self, snapshot: Snapshot, messages: Sequence[Message], entries: Numbered) -> None:
        self.snapshot = snapshot
        self.messages = messages
        self.entries = entries

    @property
    def added(self) -> Iterable[tuple[MessageAdded, Message]]:
        for _, entry in self.entries:
            if isinstance(entry, MessageAdded):
                yield entry, entry.message

    @property
    def results(self) -> list[ToolResult]:
        return [part for message in self.messages for part in message.parts if isinstance(part, ToolResult)]


async def read_findings(store: Store, chat_ids: Sequence[str]) -> list[Finding]:
    return [await _read(store, chat_id) for chat_id in chat_ids]


async def _read(store: Store, chat_id: str) -> Finding:
    items: list[Item] = []
    after: str | None = None
    while (page := await store.read_journal(chat_id, after)).items:
        items += page.items
        after = page.cursor
    entries = [(item.seq, decode_entry(item.body)) for item in items if item.seq is not None]
    rows = [decode_entry(row.body) for row in await store.read_history(chat_id)]
    messages = [row.message for row in rows if isinstance(row, MessageAdded)]
    return Finding(await store.read_chat(chat_id), messages, entries)


async def judge(store: Store, fleet: Fleet, findings: Sequence[Finding], evidence: Sequence[Line]) -> list[str]:
    live = {lease.worker for lease in await store.list_workers() if lease.ended is None}
    found = [f"{violation}" for violation in await store.find_violations()]
    found += [f"{count} repairs were needed: {reason}" for reason, count in (await store.read_repairs()).items()]
    found += [f"request {line.n} was not valid: {line.wrong}" for line in evidence if line.wrong]
    wanted = [len(script) for script in scripts(fleet.weather)]
    entered: dict[str, list[str]] = defaultdict(list)  # by call, the lives that entered its body, in order
    for line in evidence:
        if line.what == "entered":
            entered[line.call_id].append(line.life)
    for finding in findings:
        chat = finding.snapshot.chat
        steps = wanted[int(chat.agent.rpartition("-")[2])]
        wrong = [
            *invariants.everything(finding.snapshot, finding.messages, finding.entries, live),
            *_ended(finding, steps),
            *_in_order_of_fences(finding),
            *_results(finding, entered),
        ]
        found += [f"chat {chat.id}: {what}" for what in wrong]
    return found + _no_step_asked_again(findings, evidence) + _bodies(evidence) + _processes(fleet)


def _ended(finding: Finding, steps: int) -> list[str]:
    chat = finding.snapshot.chat
    if chat.state is not State.IDLE:
        return [f"it is {chat.state}/{chat.phase}, held by {chat.worker}, {chat.error}"]
    said = [message for message in finding.messages if message.role is Role.ASSISTANT]
    found = [] if len(said) == steps else [f"it has {len(said)} steps, its script has {steps}"]
    return found + history.problems(finding.messages)


def _in_order_of_fences(finding: Finding) -> list[str]:
    """Nobody's response comes after somebody else took the chat over: that would be a stale write."""
    found, over = [], 0
    for number, entry in finding.entries:
        if isinstance(entry, PreviewReset):
            over = max(over, fence_of(entry.attempt))
        elif isinstance(entry, MessageAdded) and entry.attempt is not None:
            fence = fence_of(entry.attempt)
            if fence <= over:
                found.append(f"entry {number} was written under fence {fence}, after {over} was over")
            over = max(over, fence - 1)
    return found


def _results(finding: Finding, entered: Mapping[str, list[str]]) -> list[str]:
    """A real result is that of the last body that was begun; one that was overtaken has no say any more."""
    found = []
    for result in finding.results:
        did = _DID.match(result.content)
        lives = entered.get(result.call_id, [])
        if did is not None and (not lives or did[3] != lives[-1]):
            found.append(f"call {result.call_id} was entered by {lives}, and its result is {result.content!r}")
        if did is None and (result.synthetic is not Synthetic.UNKNOWN or result.name in SAFE):
            found.append(f"call {result.call_id} of {result.name} was answered {result.content!r}")
    return found


def _no_step_asked_again(findings: Sequence[Finding], evidence: Sequence[Line]) -> list[str]:
    """Once a response is committed, the model is never asked the same again."""
    asked = [line for line in evidence if line.what == "asked"]
    last = {tuple(line.ids): line.n for line in asked}
    by_number = {line.n: tuple(line.ids) for line in asked}
    found, seen = [], Counter[str]()
    for finding in findings:
        for entry, message in finding.added:
            if message.role is not Role.ASSISTANT or entry.attempt is None:
                continue
            n = message.text[1 : message.text.index(">")]
            seen[n] += 1
            if last[by_number[n]] != n:
                found.append(
                    f"response {n} was committed, and the model asked the same again as {last[by_number[n]]}"
                )
    return found + [f"response {n} was committed {count} times" for n, count in seen.items() if count > 1]


def _bodies(evidence: Sequence[Line]) -> list[str]:
    entered = [line for line in evidence if line.what == "entered"]
    times = Counter(line.call_id for line in entered)
    found = [
        f"{line.tool} {line.call_id} was entered {times[line.call_id]} times"
        for line in entered
        if times[line.call_id] > 1 and line.tool not in SAFE
    ]
    found += [f"{line.call_id} got {line.key}" for line in entered if line.key != f"{line.chat_id}:{line.call_id}"]
    return sorted(set(found))


def _processes(fleet: Fleet) -> list[str]:
    limit_s = fleet.weather.grace_s + STOP_MARGIN_S
    late = [f"{stop.life} took {stop.took_s:.1f} s to stop" for stop in fleet.stops if stop.took_s > limit_s]
    # -15: the signal came before Python had got as far as to listen for it.
    bad = [f"{stop.life} stopped with {stop.code}" for stop in fleet.stops if stop.code not in (0, -15)]
    return fleet.ends + late + bad


def tally(fleet: Fleet, storm: Storm, findings: Sequence[Finding], evidence: Sequence[Line], seed: int) -> str:
    """For people: what happened, in one line."""
    entered = Counter(line.call_id for line in evidence if line.what == "entered")
    results = [result for finding in findings for result in finding.results]
    asked = sum(line.what == "asked" for line in evidence)
    steps = sum(message.role is Role.ASSISTANT for finding in findings for message in finding.messages)
    figures = {
        "chats": len(findings),
        "steps": steps,
        "calls": len(results),
        **{name: storm.blows[name] for name in ("kills", "stops", "freezes", "server restarts")},
        "ended by their guard": fleet.ended_frozen,
        "processes": fleet.lives,
        "handovers": sum(finding.snapshot.chat.fence - 1 for finding in findings),
        "attempts lost": asked - steps,
        "reruns": sum(count - 1 for count in entered.values()),
        "unknown outcomes": sum(result.synthetic is Synthetic.UNKNOWN for result in results),
    }
    said = ", ".join(f"{value} {name}" for name, value in figures.items() if value)
    longest = max((stop.took_s for stop in fleet.stops), default=0.0)
    return f"{said}; longest stop {longest:.2f} s of {fleet.weather.grace_s:g} s grace; seed {seed}"
