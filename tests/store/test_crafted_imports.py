"""Files that were made to do harm: what each tries, and that it is refused and leaves nothing."""

import hashlib
import json
import re
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import transfer
from holdfast.core import commands as cmd
from holdfast.core.journal import AnyEntry
from holdfast.core.records import External, NewChat, State
from holdfast.errors import CallerError, Forbidden, InvalidInput, LimitReached
from holdfast.store.contract import Store
from holdfast.store.export_lines import entry_in
from holdfast.transfer import _CHAT_ID, export_chat, export_owner, import_chat, read_import
from tests.support.chats import Hand, call, new_chat, user

Lines = list[dict[str, Any]]


@pytest.fixture
async def exported(store: Store, tmp_path: Path) -> AsyncIterator[Lines]:
    """A chat that waits for its child and has a queue, the child, which waits for a client; and bob's chat."""
    hand = Hand(store)
    await store.create_chat(new_chat(id="root", owner="acme"))
    await hand.take("root")
    await hand.respond(call("ask"), start=False)
    child = NewChat(id="child", agent="agent", owner="acme", message=user("help"))
    await hand.commit(
        cmd.Delegate(by=hand.by, call_id="ask", external=External.CHILD, spawn=child), cmd.Park(by=hand.by)
    )
    await store.submit("root", cmd.Send(message=user("queued", id="q1")))
    await store.submit("root", cmd.Send(message=user("queued", id="q2")))
    await hand.take("child")
    await hand.park_for_client("k9")
    await store.create_chat(new_chat(None, id="bobs", owner="bob"))
    await export_chat(store, "root", tmp_path / "root.jsonl")
    yield [json.loads(line) for line in (tmp_path / "root.jsonl").read_bytes().splitlines()]
    hand.close()


def written(path: Path, lines: Lines, raw: Callable[[bytes], bytes] = bytes) -> Path:
    """With an end that fits: a digest keeps no one from anything who makes the file."""
    body = b"".join(raw(json.dumps(line).encode()) + b"\n" for line in lines[:-1])
    end = {"kind": "end", "lines": len(lines) - 1, "digest": hashlib.blake2b(body, digest_size=16).hexdigest()}
    path.write_bytes(body + json.dumps(end).encode() + b"\n")
    return path


def of(kind: str, n: int = 0, **changes: Any) -> Callable[[Lines], None]:
    """The n-th line of a kind, changed."""

    def change(lines: Lines) -> None:
        found = [line for line in lines if line["kind"] == kind]
        assert set(changes) <= set(found[n]), f"a line of {kind} has no such field"
        found[n].update(changes)

    return change


def twice(kind: str) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        at = next(n for n, line in enumerate(lines) if line["kind"] == kind)
        lines.insert(at, lines[at])

    return change


def first_line(kind: str, of_heap: str) -> Callable[[Lines], None]:
    """One of this kind goes before those of another."""

    def change(lines: Lines) -> None:
        moved = lines.pop(next(n for n, line in enumerate(lines) if line["kind"] == kind))
        lines.insert(next(n for n, line in enumerate(lines) if line["kind"] == of_heap), moved)

    return change


def entry(body: Any, n: int = 1) -> Callable[[Lines], None]:
    return of("journal", n, body=body if isinstance(body, str) else json.dumps(body))


DEEP = "[" * 5_000 + "]" * 5_000
CRAFTED: dict[str, tuple[Callable[[Lines], None], str]] = {
    # what would run without a person
    "a call that is approved": (of("calls", state="approved", external=None, child_id=None), "no such call"),
    "a call that is started": (of("calls", state="started", external=None, child_id=None), "no such call"),
    "a call that is planned": (of("calls", state="planned", external=None, child_id=None), "no such call"),
    "an open call in a chat at rest": (of("chat", state="idle", phase="rest", wake_at=None), "no such call"),
    "a call of a response to come": (of("calls", batch=1_000_000), "not yet"),
    "a call in the place of a message": (of("calls", pos=0), "kept free for a call"),
    "a queued message behind all others": (of("queue", rank=(1 << 63) - 1), "rank"),
    "a chat that runs": (of("chat", state="running", phase="model", wake_at=1), "rests or waits"),
    "a chat that is held": (of("chat", worker="w1"), "rests or waits"),
    "an owed response in a chat at rest": (of("chat", state="idle", phase="model"), "is like that"),
    # the chats of others
    "a call that waits for another's chat": (of("calls", child_id="bobs"), "not in the file"),
    "a call that waits for its own chat": (of("calls", child_id="root"), "not below its own"),
    "a parent of another": (of("chat", 1, parent_id="bobs"), "parent is not before it"),
    "a parent of the first": (of("chat", parent_id="bobs"), "parent is not before it"),
    "its own parent": (of("chat", 1, parent_id="child"), "parent is not before it"),
    "a root of another": (of("chat", 1, root_id="bobs"), "another family"),
    "a root of the first": (of("chat", root_id="child"), "another family"),
    "a depth below none": (of("chat", 1, depth=0), "another depth"),
    "another chat": (of("chat", 1, id="bobs"), "than the first line says"),
    "one chat twice": (of("holdfast-export", chats=["root", "root"]), "names a chat twice"),
    # numbers
    "a negative number": (of("chat", turn_tokens=-5), "turn_tokens"),
    "a negative cost": (of("chat", turn_cost=-0.5), "turn_cost"),
    "a fence at its end": (of("chat", fence=(1 << 63) - 1), "fence"),
    "a number that no column holds": (of("chat", stamp=1 << 80), "stamp"),
    "a fraction": (of("journal", seq=1.5), "seq"),
    "a text for a number": (of("journal", seq="1"), "seq"),
    "a number for a text": (of("chat", title=7), "title"),
    "an object for a text": (of("journal", body={"kind": "trace"}), "nested|body"),
    "a list of lists": (of("holdfast-export", chats=[["root"]]), "is no line|nested"),
    "a NUL": (of("chat", title="a\0b"), "NUL"),
    "attempts of a fence to come": (of("chat", attempt_ended=1 << 61), "no attempt"),
    "another last stamp": (of("chat", line_stamp=5), "last write"),
    "more history than there is": (of("chat", length=1_000), "messages"),
    "less history than there is": (of("chat", length=1), "pos"),
    "more journal than there is": (of("chat", seq=1_000), "journal lines"),
    "no journal": (of("chat", seq=0, batch=None, answer_seq=None), "shorter"),
    "another expiry": (of("chat", wake_at=1), "next expiry"),
    # lines that do not fit
    "a line of the journal twice": (twice("journal"), "out of order, or there twice"),
    "a call twice": (twice("calls"), "out of order, or there twice"),
    "a queued message twice": (twice("queue"), "out of order, or there twice"),
    "a gap in the journal": (of("journal", seq=2), "is next|out of order"),
    "the queue before the journal": (first_line("queue", "journal"), "comes too late"),
    "an unknown field": (lambda lines: lines[1].update(more=1), "more"),
    "a missing field": (lambda lines: lines[1].pop("owner") and None, "owner"),
    "an unknown kind": (lambda lines: lines.insert(2, {"kind": "tokens", "id": "t"}), "a kind that no export has"),
    "an unknown state": (of("chat", state="asleep"), "state"),
    "an unknown role": (of("journal", role="root"), "role"),
    "a place for what is no message": (of("journal", 0, pos=0, role="user"), "only a message"),
    "a role that its message has not": (of("journal", 2, role="assistant"), "role|pos"),
    "a name that its message has not": (of("journal", 2, ref="other"), "under its own id and role"),
    "a queued message of a model": (
        of("queue", body=json.dumps({"id": "q1", "role": "assistant", "parts": [{"kind": "text", "text": "x"}]})),
        "user's message",
    ),
    "a queued message under another id": (of("queue", id="q0"), "under its own id"),
    "a queued message that is none": (of("queue", body="{}"), "holds no message"),
    # what readers would choke on
    "an entry that is none": (entry({"kind": "message"}), "no entry"),
    "a message that is none": (entry({"kind": "message", "message": {"id": 7}}), "no entry"),
    "an entry of a kind that is none": (entry({"kind": "rm -rf"}), "no entry"),
    "an entry that is nested": (entry(f'{{"kind":"note","topic":"x","more":{DEEP}}}'), "nested"),
    "metadata that is nested": (of("chat", metadata=f'{{"a":{DEEP}}}'), "nested"),
    "metadata that is no object": (of("chat", metadata="[]"), "not a JSON object"),
    "metadata without an end": (of("chat", metadata="x" * 100_000), "metadata"),
    "an agent without a name": (of("chat", agent=""), "agent"),
    "an owner without an end": (of("chat", owner="o" * 10_000), "owner"),
    "a failure that is none": (of("chat", error="[]"), "is no chat"),
    "client tools that are none": (of("chat", client_tools='[{"name":"rm -rf /"}]'), "names a tool"),
}


async def refused(store: Store, file: Path) -> str:
    try:
        await import_chat(store, file, new_ids=True)
    except (InvalidInput, LimitReached) as error:
        return str(error)
    return "it came in"


async def test_a_crafted_file_is_refused_and_leaves_nothing(store: Store, exported: Lines, tmp_path: Path) -> None:
    before = {line.id for line in await store.list_chats()}
    for what, (change, words) in CRAFTED.items():
        lines = json.loads(json.dumps(exported))
        change(lines)
        file = written(tmp_path / "crafted.jsonl", lines)
        refusal = await refused(store, file)
        assert re.search(words, refusal), (what, refusal)
    assert {line.id for line in await store.list_chats()} == before
    assert await store.large_chats.read_remnants() == []
    done = await import_chat(store, written(tmp_path / "good.jsonl", exported), new_ids=True, owner="eve")
    assert done.chats == 2, "and what was not changed comes in"


async def test_an_id_as_long_as_a_line_is_renamed_in_the_memory_of_the_line() -> None:
    """Of a text of megabytes the pattern kept a state for each character, 170 times the file."""
    body = '{"chat_id":"' + "x" * 2_000_000 + '"}'
    tracemalloc.start()
    try:
        assert _CHAT_ID.search(body) is not None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


async def test_large_lines_are_looked_at_off_the_event_loop(
    store: Store, exported: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with many brackets held it for seconds."""
    exported[2]["body"] = '{"kind":"note","topic":"x","more":[' + ",".join(["[]"] * 50_000) + "]}"
    off_loop: dict[bool, set[bool]] = {True: set(), False: set()}

    def looked_at(body: str, number: int) -> AnyEntry:
        off_loop[len(body) > transfer.BYTES_AT_ONCE].add(threading.current_thread() is not threading.main_thread())
        return entry_in(body, number)

    monkeypatch.setattr(transfer, "entry_in", looked_at)
    await refused(store, written(tmp_path / "large.jsonl", exported))
    assert off_loop == {True: {True}, False: {False}}


async def test_bytes_that_are_no_line_are_refused(store: Store, exported: Lines, tmp_path: Path) -> None:
    spoilt: dict[str, Callable[[bytes], bytes]] = {
        "NaN": lambda line: line.replace(b'"turn_cost": 0.0', b'"turn_cost": NaN'),
        "no end of a number": lambda line: line.replace(b'"turn_cost": 0.0', b'"turn_cost": 1e999'),
        "half a character": lambda line: line.replace(b'"title": null', b'"title": "\\ud800"'),
        "no UTF-8": lambda line: line.replace(b'"title": null', b'"title": "\xff"'),
        "depth": lambda line: line.replace(b'"title": null', f'"title": {DEEP}'.encode()),
    }
    for spoil in spoilt.values():
        file = written(tmp_path / "crafted.jsonl", exported, spoil)
        with pytest.raises(InvalidInput, match="line 2"):
            await import_chat(store, file, new_ids=True)


async def test_a_chat_under_the_id_of_another_does_not_touch_it(
    store: Store, exported: Lines, tmp_path: Path
) -> None:
    del exported[next(n for n, line in enumerate(exported) if line["kind"] == "chat" and line["id"] == "child") : -1]
    of("holdfast-export", chats=["bobs"])(exported)
    of("chat", id="bobs", owner="bob")(exported)
    of("calls", child_id=None, external="question")(exported)
    before = (await store.read_chat("bobs")).chat
    with pytest.raises(CallerError, match="there is a chat 'bobs' already"):
        await import_chat(store, written(tmp_path / "crafted.jsonl", exported))
    assert (await store.read_chat("bobs")).chat == before
    done = await import_chat(store, written(tmp_path / "crafted.jsonl", exported), new_ids=True, owner="eve")
    assert done.chat_id != "bobs"


async def test_a_call_that_waits_for_an_approval_comes_in_only_where_approvals_do(
    store: Store, exported: Lines, tmp_path: Path
) -> None:
    """The file says what is to run, and under whose eyes: no rule has judged it here."""
    at = next(n for n, line in enumerate(exported) if line["kind"] == "chat" and line["id"] == "child")
    del exported[at:-1]
    of("holdfast-export", chats=["root"])(exported)
    of("calls", child_id=None, external=None, state="asking", arguments='{"command":"rm -rf /"}', told="{}")(exported)
    path = written(tmp_path / "crafted.jsonl", exported)
    with path.open("rb") as file, pytest.raises(Forbidden, match="waits for an approval"):
        await read_import(store, file, new_ids=True, approvals=False)
    assert await store.large_chats.read_remnants() == []
    with path.open("rb") as file:
        done = await read_import(store, file, new_ids=True)
    assert (await store.read_chat(done.chat_id)).chat.state is State.WAITING


async def test_names_of_a_family_are_replaced_in_one_pass(store: Store, exported: Lines, tmp_path: Path) -> None:
    """A name for each of 9,000 chats, and a line of two megabytes: each by each would take hours."""
    text = '{"chat_id":"x"},' * 130_000
    entry({"kind": "note", "topic": "large", "text": text}, 0)(exported)
    exported[0]["chats"] += [f"chat{n}" for n in range(9_000)]
    with pytest.raises(InvalidInput, match="2 of 9002 chats"):
        await import_chat(store, written(tmp_path / "crafted.jsonl", exported), new_ids=True)
    assert await store.large_chats.read_remnants() == []


async def test_no_id_leads_out_of_the_folder_of_an_export(store: Store, tmp_path: Path) -> None:
    ids = ["../../outside", "/etc/holdfast", "..", "a" * 500, "ann@example.com"]
    for chat_id in ids:
        await store.create_chat(new_chat(None, id=chat_id, owner="acme"))
    assert await export_owner(store, "acme", tmp_path / "folder" / "acme") == len(ids)
    folder = tmp_path / "folder" / "acme"
    assert sorted(tmp_path.rglob("*.jsonl")) == sorted(folder.iterdir())
    assert len(list(folder.iterdir())) == len(ids)


async def test_a_chat_that_comes_in_draws_on_those_above_it_in_the_file_and_on_no_others(
    store: Store, exported: Lines, tmp_path: Path
) -> None:
    purses = [{"chat_id": "bobs", "tokens": 5}, {"chat_id": "root", "tokens": 7}]
    of("chat", 1, purses=json.dumps(purses))(exported)
    done = await import_chat(store, written(tmp_path / "crafted.jsonl", exported), new_ids=True, owner="eve")
    chats = [(await store.read_chat(line.id)).chat for line in await store.list_chats(limit=100)]
    (child,) = [chat for chat in chats if chat.parent_id == done.chat_id]
    assert [(purse.chat_id, purse.tokens) for purse in child.purses] == [(done.chat_id, 7)]


async def test_a_chat_of_code_that_did_not_look_where_results_came_from_may_have_read_anything(
    store: Store, exported: Lines, tmp_path: Path
) -> None:
    for line in exported:
        if line["kind"] == "chat":
            assert line.pop("tainted_from") is None
    done = await import_chat(store, written(tmp_path / "old.jsonl", exported), new_ids=True, owner="eve")
    assert (await store.read_chat(done.chat_id)).chat.tainted_from == 0


@pytest.mark.parametrize("figures", [{"chat_tokens": -1}, {"turn_tokens": (1 << 63) - 1}, {"chat_cost": -0.5}])
async def test_a_chat_that_says_that_it_spent_less_than_nothing_or_no_end_of_it_is_refused(
    store: Store, exported: Lines, tmp_path: Path, figures: dict[str, Any]
) -> None:
    of("chat", **figures)(exported)
    with pytest.raises(InvalidInput, match=next(iter(figures))):
        await import_chat(store, written(tmp_path / "crafted.jsonl", exported), new_ids=True, owner="eve")
