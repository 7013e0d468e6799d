"""`holdfast demo`: a real kill, judged by a verdict that can also say no."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.cli.commands.demo_verdict import Evidence, judge, timeline
from holdfast.cli.commands.demo_worker import RERUN_S, WAIT_S, Ledger, takes_s
from holdfast.core.codec import encode
from holdfast.core.journal import MessageAdded, TurnEnded
from holdfast.core.records import (
    ChatRecord,
    Message,
    Role,
    Snapshot,
    State,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
    result_message,
)
from holdfast.store.records import Item
from tests.cli.conftest import Desk

BATCH = ("look_up_price", "reserve_stock", "charge_card")


def test_the_demo_kills_a_worker_in_mid_tool_and_nothing_is_lost(desk: Desk) -> None:
    done = desk.run("demo")
    assert done.code == 0, done.out + done.err
    (first,) = set(re.findall(r"kill -9 (\d+)", done.out))
    assert f"worker 1 is process {first}" in done.out
    assert "exit code -9" in done.out
    assert done.out.count("runs again") >= 2
    assert "Outcome unknown: charge_card" in done.out
    assert "✗" not in done.out
    assert done.out.endswith("Nothing lost, nothing done twice.\n")
    assert list(desk.folder.iterdir()) == [], "it leaves nothing behind"


def test_ctrl_c_ends_the_demo_with_nothing_left_behind(desk: Desk) -> None:
    temporary = desk.folder / "tmp"
    temporary.mkdir()
    desk.environ["TMPDIR"] = str(temporary)
    process = desk.start("demo")
    assert process.stdout is not None
    while not (found := re.search(r"worker 1 is process (\d+)", process.stdout.readline())):
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(found.group(1)), 0)
    assert [path for path in temporary.iterdir() if path.name.startswith("holdfast-demo-")] == []


def test_a_tool_lasts_until_the_kill_however_late_that_comes_and_is_soon_done_when_it_runs_again(
    tmp_path: Path,
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    for name in BATCH:
        ledger.write("begins", name, "key")
        assert takes_s(ledger, name) > WAIT_S
    (tmp_path / "ledger").write_text(f"begins {BATCH[0]} key {os.getppid()}\n")
    ledger.write("begins", BATCH[0], "key")
    assert takes_s(ledger, BATCH[0]) == RERUN_S


# --- the verdict ---------------------------------------------------------------------------------------


def good() -> Evidence:
    """As the journal and the ledger are when all went well."""
    calls = tuple(ToolCall(call_id=f"c{n}", name=name, arguments="{}") for n, name in enumerate(BATCH))
    results = [
        ToolResult(call_id="c0", name=BATCH[0], content="12"),
        ToolResult(call_id="c1", name=BATCH[1], content="reserved"),
        ToolResult(call_id="c2", name=BATCH[2], content="?", error=True, synthetic=Synthetic.UNKNOWN),
    ]
    messages = [
        Message(id="m1", role=Role.USER, parts=(Text(text="buy"),)),
        Message(id="m2", role=Role.ASSISTANT, parts=(Text(text="yes"), *calls)),
        *(result_message(result, 0) for result in results),
        Message(id="m3", role=Role.ASSISTANT, parts=(Text(text="done"),)),
    ]
    entries: list[Any] = [MessageAdded(raw=Raw(encode(message))) for message in messages]
    entries.append(TurnEnded(turn=1, state=State.IDLE))
    items = [Item(cursor=str(n), at=n * 1000, body=encode(entry), seq=n + 1) for n, entry in enumerate(entries)]
    ledger = [("begins", "find_customer", "k0", 1), ("done", "find_customer", "k0", 1)]
    ledger += [("begins", name, f"k-{name}", 1) for name in BATCH]
    ledger += [("reserves", BATCH[1], f"k-{BATCH[1]}", 1)]
    ledger += [(what, name, f"k-{name}", 2) for name in BATCH[:2] for what in ("begins", "done")]
    return Evidence(
        chat=Snapshot(chat=ChatRecord(id="c", agent="a", created_at=0, updated_at=0)),
        messages=messages,
        before=items[:2],
        items=items,
        ledger=ledger,
        first_pid=1,
        first_code=-9,
        second_pid=2,
        killed_at=2000,
        stranded=0,
    )


def failed(evidence: Evidence) -> list[int]:
    return [n for n, check in enumerate(judge(evidence)) if not check.holds]


def test_the_verdict_holds_for_what_ought_to_happen() -> None:
    assert failed(good()) == []
    told = [(row.text, row.fate) for row in timeline(good())]
    assert told.index(("kill -9 1", "the worker is gone")) == told.index(("  calls charge_card", "durable")) + 1
    assert ("charge_card = ?", "not run again") in told


def test_the_verdict_says_no_to_each_thing_that_must_not_happen() -> None:
    right = good()
    ledger, items, messages = right.ledger, right.items, right.messages
    known = result_message(ToolResult(call_id="c2", name=BATCH[2], content="charged"), 0)
    assert failed(replace(right, first_code=0)) == [0]
    assert failed(replace(right, second_pid=3)) == [0]
    assert failed(replace(right, items=items[1:])) == [1], "an entry is lost"
    assert failed(replace(right, items=[replace(items[0], body=b"{}"), *items[1:]])) == [1], "an entry is changed"
    assert failed(replace(right, ledger=[*ledger, ("begins", "find_customer", "k0", 2)])) == [2]
    assert failed(replace(right, ledger=[row for row in ledger if row[1] != BATCH[0]])) == [3]
    assert failed(replace(right, ledger=[*ledger, ("reserves", BATCH[1], f"k-{BATCH[1]}", 2)])) == [4]
    other_key = [(w, n, "other" if (w, n, p) == ("begins", BATCH[1], 2) else k, p) for w, n, k, p in ledger]
    assert failed(replace(right, ledger=other_key)) == [4]
    assert failed(replace(right, ledger=[*ledger, ("begins", BATCH[2], f"k-{BATCH[2]}", 2)])) == [5], "charged twice"
    assert failed(replace(right, messages=[*messages[:4], known, messages[5]])) == [5]
    assert failed(replace(right, messages=messages[:4] + messages[5:])) == [5, 6], "a call without a result"
    assert failed(replace(right, stranded=1)) == [7]
