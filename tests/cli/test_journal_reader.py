"""What a person at a terminal, or a pipe, is shown of a journal."""

import io

from msgspec import Raw
from msgspec.structs import replace
from rich.console import Console, RenderableType

from holdfast.cli.terminal.journal_reader import Reader
from holdfast.cli.terminal.live_screen import TerminalScreen
from holdfast.cli.terminal.screen import PlainScreen
from holdfast.core import journal as jn
from holdfast.core.codec import encode
from holdfast.core.records import Cause, Failure, Message, Role, State, Text, ToolCall, ToolResult, result_message
from holdfast.store.records import Item


def entry(seq: int, body: jn.AnyEntry) -> Item:
    return Item(cursor=str(seq), at=1_000 * seq, body=encode(body), seq=seq)


def delta(attempt: int, k: int, text: str) -> Item:
    return Item(cursor=f"{attempt}.{k}", at=0, body=encode(jn.Delta(part="text", text=text)), attempt=attempt, k=k)


def response(seq: int, attempt: int, *parts: Text | ToolCall, started: tuple[str, ...] = ()) -> Item:
    message = Message(id=f"r{seq}", role=Role.ASSISTANT, parts=parts)
    return entry(seq, jn.MessageAdded(raw=Raw(encode(message)), attempt=attempt, started=started))


LOST = (
    entry(1, jn.TurnStarted(turn=1)),
    delta(1, 0, "It "),
    delta(1, 1, "rains in"),
    entry(2, jn.PreviewReset(attempt=1, cause=Cause.CRASH)),
)


def piped(*items: Item, verbose: bool = False) -> tuple[str, list[str]]:
    out, err = io.StringIO(), io.StringIO()
    reader = Reader(PlainScreen(out, err), verbose=verbose)
    for item in items:
        reader.take(item)
    return out.getvalue(), err.getvalue().splitlines()


def test_an_attempt_that_repeats_what_was_shown_is_one_answer() -> None:
    out, err = piped(*LOST, delta(2, 0, "It rains"), response(3, 2, Text(text="It rains in Bern.")))
    assert out == "It rains in Bern.\n"
    assert err == ["asking again"]


def test_in_a_pipe_an_answer_that_starts_over_is_written_again_from_its_beginning() -> None:
    out, err = piped(*LOST, delta(2, 0, "It snows"), response(3, 2, Text(text="It snows.")))
    assert out == "It rains in\nIt snows.\n"
    assert err == ["asking again", "the answer starts over"]


def test_a_worker_that_died_and_the_one_that_goes_on_are_named() -> None:
    lost = jn.ChatHandedOver(worker="w1", cause=Cause.CRASH, heard_at=5)
    _, err = piped(entry(1, jn.TurnStarted(turn=1)), entry(2, lost), entry(3, jn.ChatTakenOver(worker="w2")))
    assert err == [
        "worker w1 died while it held the chat",
        "waiting for a worker",
        "worker w2 goes on with it",
    ]


def test_an_attempt_that_failed_is_told_with_its_model_once() -> None:
    lost = jn.AttemptFailed(attempt=1, model="m", error="m answered 502", retry_in_ms=1000, next_model="m")
    named, other = entry(2, lost), entry(3, replace(lost, error="no connection"))
    _, err = piped(entry(1, jn.TurnStarted(turn=1)), named, other)
    assert [row for row in err if "again in" in row] == [
        "m answered 502; again in 1.0 s",
        "m: no connection; again in 1.0 s",
    ]


def on_a_terminal(*items: Item) -> str:
    out = io.StringIO()
    console = Console(file=out, width=60)

    def emit(what: RenderableType) -> None:
        console.print(what)

    reader = Reader(TerminalScreen(emit))
    for item in items:
        reader.take(item)
    return out.getvalue()


def test_on_a_terminal_only_what_is_printed_for_good_is_said_to_start_over() -> None:
    again = (delta(2, 0, "It snows"), response(3, 2, Text(text="It snows.\n\nIn Bern.")))
    assert "starts over" not in on_a_terminal(*LOST, *again), "it was only drawn, and is drawn anew"
    printed = (LOST[0], delta(1, 0, "It rains.\n\n"), delta(1, 1, "In B"), LOST[-1])
    shown = on_a_terminal(*printed, *again)
    assert shown.index("It rains.") < shown.index("the answer starts over") < shown.index("It snows.")


def test_a_call_is_shown_with_its_time_and_a_failed_turn_with_its_error() -> None:
    call = ToolCall(call_id="c1", name="look", arguments='{"at":"sky"}')
    seen = result_message(ToolResult(call_id="c1", name="look", content="clouds"), 0)
    failure = Failure(code="boom", message="it broke", chain=("why",), advice="mend it")
    items = (
        LOST[0],
        response(2, 1, Text(text="I look."), call, started=("c1",)),
        entry(3, jn.Noted(topic="progress", text="up", call_id="c1")),
        entry(5, jn.MessageAdded(raw=Raw(encode(seen)), call_state="done")),  # type: ignore[arg-type]
        entry(6, jn.TurnEnded(turn=1, state=State.FAILED, detail="boom")),
        entry(7, jn.ChatFailed(error=failure)),
    )
    out, err = piped(*items)
    assert out == "I look.\n"
    assert err[0].startswith("· look(")
    assert any("up" in line for line in err)
    assert any(line.startswith("✓ look(") and "3" in line and "clouds" in line for line in err)
    assert err[-2:] == ["holdfast: failed (boom): it broke", "  mend it"]
    assert piped(*items, verbose=True)[1][-3:] == [*err[-2:], "  why"]
