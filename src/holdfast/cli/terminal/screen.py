"""What a reader of a chat is shown, whatever shows it: the contract of a screen, and the plain one for pipes."""

import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from holdfast.cli.words import line, seconds
from holdfast.core.records import Frozen
from holdfast.safe_text import safe

RESULT_CHARS = 100


class ToolEnd(Frozen):
    """How a call ended: `mark` is one of the words below."""

    name: str
    arguments: str
    mark: str  # "done", "failed", "denied", "unknown", "cancelled", or another word of the runtime's
    result: str
    took_ms: int | None  # None: its body never ran


MARKS = {"done": "✓", "failed": "✗", "denied": "✗", "unknown": "?", "cancelled": "–"}


class Screen(Protocol):
    """`at` is the journal's time in ms, so a chat that is read later shows the same durations."""

    def text(self, piece: str) -> None:
        """More of the answer that is being streamed."""

    def take_back(self, chars: int) -> None:
        """The last characters of the answer do not stand: the model was asked again, and says something else."""

    def answered(self) -> None:
        """The answer is whole, and durable."""

    def thinking(self) -> None: ...

    def calling(self, name: str) -> None:
        """The model is writing the arguments of a call."""

    def user(self, text: str) -> None: ...

    def tool_started(self, call_id: str, name: str, arguments: str, at: int) -> None: ...

    def tool_says(self, call_id: str, text: str) -> None: ...

    def tool_ended(self, call_id: str, end: ToolEnd) -> None: ...

    def plan(self, call_id: str, lines: Sequence[str]) -> None:
        """What the model is about to do, a line for each step, and how far it is. It ends the call."""

    def status(self, text: str) -> None:
        """What it is busy with; replaced by whatever comes next."""

    def note(self, text: str) -> None: ...

    def error(self, text: str) -> None: ...


def end_line(end: ToolEnd) -> str:
    took = f"  {seconds(end.took_ms)}" if end.took_ms is not None else ""
    word = "" if end.mark == "done" else f"  {end.mark}"
    return f"{MARKS.get(end.mark, '–')} {end.name}({end.arguments}){word}{took}"


class PlainScreen:
    """The text on one stream as it comes; everything else on another one, by lines.

    Both are made safe in a pipe as well: what reads it (grep, less -R, a file that is shown later) passes on to a
    terminal what it gets. `--json` has every character.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._streamed = ""
        self._status = ""

    def text(self, piece: str) -> None:
        self._streamed += piece
        self._write(piece)

    def take_back(self, chars: int) -> None:
        """What is in a pipe stays there: what stands of the answer is written again."""
        kept = self._streamed[: len(self._streamed) - chars]
        self._write("\n")
        self.note("the answer starts over")
        self._streamed = ""
        if kept:
            self.text(kept)

    def answered(self) -> None:
        if self._streamed and not self._streamed.endswith("\n"):
            self._write("\n")
        self._streamed = ""

    def _write(self, text: str) -> None:
        self._out.write(safe(text))
        self._out.flush()

    def thinking(self) -> None:
        pass

    def calling(self, name: str) -> None:
        pass

    def user(self, text: str) -> None:
        self.note(f"> {line(text, 200)}")

    def tool_started(self, call_id: str, name: str, arguments: str, at: int) -> None:
        self.note(f"· {name}({arguments})")

    def tool_says(self, call_id: str, text: str) -> None:
        for said in safe(text).splitlines():
            self.note(f"  {said}")

    def tool_ended(self, call_id: str, end: ToolEnd) -> None:
        self.note(f"{end_line(end)}  {line(end.result, RESULT_CHARS)}".rstrip())

    def plan(self, call_id: str, lines: Sequence[str]) -> None:
        for each in lines:
            self.note(f"  {each}")

    def status(self, text: str) -> None:
        if text and text != self._status:
            self.note(text)
        self._status = text

    def note(self, text: str) -> None:
        print(safe(text), file=self._err, flush=True)

    def error(self, text: str) -> None:
        print(f"holdfast: {safe(text)}", file=self._err, flush=True)


class AnswerScreen(PlainScreen):
    """For a program that reads the answer from a pipe: standard output gets it once, at the end, and nothing else.

    What a model says on its way, before its tools or in another turn, goes to standard error like all the rest; so
    does what turns out not to stand, which a pipe could not take back.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        super().__init__(out, err)
        self._said = ""  # the last that was said whole: the answer, unless something follows

    def text(self, piece: str) -> None:
        self._tell_said()
        self._streamed += piece

    def take_back(self, chars: int) -> None:
        self._streamed = self._streamed[: len(self._streamed) - chars]

    def answered(self) -> None:
        self._said, self._streamed = self._streamed, ""

    def tool_started(self, call_id: str, name: str, arguments: str, at: int) -> None:
        self._tell_said()
        super().tool_started(call_id, name, arguments, at)

    def user(self, text: str) -> None:
        self._tell_said()
        super().user(text)

    def finish(self, answer: str | None) -> None:
        """None: there is none."""
        if answer is None:
            self._tell_said()
        elif answer:
            self._write(answer if answer.endswith("\n") else f"{answer}\n")

    def _tell_said(self) -> None:
        said, self._said = self._said, ""
        if said:
            self.note(said.rstrip())
