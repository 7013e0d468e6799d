"""The screen of a terminal: finished parts are printed for good, what is still going on is drawn below them.

An answer's text is cut into Markdown blocks. A block that is whole is printed once and never drawn again, so the cost
of a redraw does not grow with the answer; only the last, unfinished block and the running tools are redrawn, a
bounded number of times a second and never higher than the window.
"""

import asyncio
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from holdfast.cli.terminal.screen import MARKS, RESULT_CHARS, ToolEnd, end_line
from holdfast.cli.words import line, seconds
from holdfast.safe_text import safe

REDRAW_S = 0.1
KEPT_LINES = 3  # of the window's height that the redrawn part leaves free
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
COLOURS = {"done": "green", "failed": "red", "denied": "red", "unknown": "yellow", "cancelled": "yellow"}
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)


class Running:
    def __init__(self, name: str, arguments: str, at: int) -> None:
        self.name = name
        self.arguments = arguments
        self.at = at
        self.said = ""


class TerminalScreen:
    """`emit` prints something for good; `drawing` is what is going on."""

    def __init__(self, emit: Callable[[RenderableType], None]) -> None:
        self._emit = emit
        self._streamed = ""
        self._printed = 0  # characters of the streamed answer that are printed for good
        self._tools: dict[str, Running] = {}
        self._status = ""
        self._status_at = _now_ms()
        self._last = ""  # what was printed last: a "block" is set off from other things
        self.busy = False

    # --- the answer -----------------------------------------------------------------------------------

    def text(self, piece: str) -> None:
        self.busy, self._status = True, ""
        self._streamed += piece
        end = whole_blocks(self._streamed, self._printed)
        if end > self._printed:
            self._block(self._streamed[self._printed : end])
            self._printed = end

    def take_back(self, chars: int) -> None:
        self._streamed = self._streamed[: len(self._streamed) - chars]
        if len(self._streamed) < self._printed:
            self.note("the answer starts over")
            self._printed = 0  # what stands of it is printed again

    def answered(self) -> None:
        self._block(self._streamed[self._printed :])
        self._streamed, self._printed = "", 0
        self.status("")

    def _block(self, text: str) -> None:
        text = safe(text)
        if text.strip():
            self._put(_markdown(text), "block")

    def _put(self, what: RenderableType, kind: str) -> None:
        if self._last and (kind == "block" or self._last != kind):
            self._emit(Text(""))
        self._emit(what)
        self._last = kind

    # --- everything else ------------------------------------------------------------------------------

    def thinking(self) -> None:
        if self._status != "thinking":
            self.status("thinking")

    def calling(self, name: str) -> None:
        if self._status != f"calling {name}":
            self.status(f"calling {name}")

    def user(self, text: str) -> None:
        self._put(Text(f"> {safe(text)}", style="bold cyan"), "user")

    def tool_started(self, call_id: str, name: str, arguments: str, at: int) -> None:
        self.busy = True
        self._tools[call_id] = Running(name, arguments, at)

    def tool_says(self, call_id: str, text: str) -> None:
        if (tool := self._tools.get(call_id)) is not None and text.strip():
            tool.said = line(text.strip().splitlines()[-1], 80)

    def tool_ended(self, call_id: str, end: ToolEnd) -> None:
        self._tools.pop(call_id, None)
        shown = Text(end_line(end), style="default")
        shown.stylize(COLOURS.get(end.mark, "yellow"), 0, len(MARKS.get(end.mark, "–")))
        if result := line(end.result, RESULT_CHARS):
            shown.append(f"\n  {result}", style="dim")
        self._put(shown, "line")
        self.status("")

    def plan(self, call_id: str, lines: Sequence[str]) -> None:
        self._tools.pop(call_id, None)
        shown = Text("\n".join(lines), style="default")
        shown.highlight_regex(r"(?m)^✓.*", "dim")
        shown.highlight_regex(r"(?m)^▶.*", "bold cyan")
        self._put(shown, "block")
        self.status("")

    def status(self, text: str) -> None:
        self._status, self._status_at = text, _now_ms()

    def note(self, text: str) -> None:
        self._put(Text(safe(text), style="dim"), "line")

    def error(self, text: str) -> None:
        self._put(Text(safe(text), style="bold red"), "line")

    # --- what is going on -----------------------------------------------------------------------------

    def drawing(self, console: Console) -> RenderableType:
        """At most as high as the window."""
        rows: list[RenderableType] = []
        now = _now_ms()
        spin = SPINNER[int(now / 100) % len(SPINNER)]
        for tool in list(self._tools.values())[-10:]:
            row = Text(f"{spin} {tool.name}({tool.arguments})  {seconds(now - tool.at)}", no_wrap=True)
            if tool.said:
                row.append(f"  {tool.said}", style="dim")
            row.stylize("cyan", 0, 1)
            rows.append(row)
        stopping = self._status.startswith("stopping")
        if stopping or (not rows and self.busy and not self._streamed[self._printed :].strip()):
            waited = now - self._status_at
            shown = f"  {seconds(waited)}" if waited >= 1000 else ""
            rows.append(Text(f"{spin} {self._status or 'waiting for the model'}{shown}", style="dim", no_wrap=True))
        return Group(*self._unfinished(console, len(rows)), *rows)

    def _unfinished(self, console: Console, taken: int) -> list[RenderableType]:
        text = safe(self._streamed[self._printed :])
        if not text.strip():
            return []
        room = max(console.height - KEPT_LINES - taken, 1)
        # More characters than fit cannot be seen, and would only cost time.
        begun = text[-room * console.width :]
        if begun != text and (fence := _FENCE.match(text)):
            begun = f"{fence.group(1)}\n{begun}"
        lines = console.render_lines(_markdown(begun), pad=False)
        gap = [Text("")] if self._last else []
        return [*gap, *map(_unpadded, lines[-room:])]


def _unpadded(row: Iterable[Segment]) -> Text:
    """Behind a line that fills the window, the ^C that a terminal shows would begin another, which is not counted."""
    shown = Text.assemble(*((segment.text, segment.style or "") for segment in row))
    shown.rstrip()
    return shown


def _markdown(text: str) -> Markdown:
    """A link is shown with its address: a model's words could stand before any."""
    return Markdown(text, hyperlinks=False)


def whole_blocks(text: str, start: int) -> int:
    """Up to where the text consists of whole Markdown blocks: an empty line ends one, outside of a code fence."""
    end = start
    fence = ""
    at = start
    for row in text[start:].splitlines(keepends=True):
        at += len(row)
        found = _FENCE.match(row)
        if found is not None and not fence:
            fence = found.group(1)
        elif found is not None and found.group(1).startswith(fence) and row.strip() == found.group(1):
            fence = ""
        elif not fence and not row.strip() and row.endswith("\n") and _begins_anew(text, at):
            end = at
    return end


def _begins_anew(text: str, at: int) -> bool:
    """What follows is known, and is not the rest of a list item."""
    return at < len(text) and not text[at].isspace()


def _now_ms() -> float:
    return time.time() * 1000


class LiveTerminal:
    """A terminal screen that draws itself, below what it has printed. For the main thread, in an event loop."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.screen = TerminalScreen(self._print)
        self._live: Live | None = None
        self._hears_suspension = False

    def _print(self, what: RenderableType) -> None:
        if self._live is not None:
            # What is drawn there may be what is printed now: shown twice, it would push out what stands above.
            self._live.update(Group(), refresh=True)
        self.console.print(what)

    def __enter__(self) -> "LiveTerminal":
        self._hears_suspension = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        self._hear_suspension()
        self.resume()
        return self

    def __exit__(self, *_: object) -> None:
        if self._hears_suspension:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        self.pause()

    def _hear_suspension(self) -> None:
        if self._hears_suspension:  # our parent may have chosen to ignore it
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspend)

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets its cursor back, and what it writes meanwhile is not drawn over."""
        drawing = self._live is not None
        self.pause()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)
        signal.raise_signal(signal.SIGTSTP)  # to this thread: with kill, it would run on until another one takes it
        self._hear_suspension()
        if drawing:
            self.resume()

    def resume(self) -> None:
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False,
                              redirect_stderr=False)  # fmt: skip
            self._live.start()

    def pause(self) -> None:
        """The drawing is gone and the cursor is back: other code may write."""
        live, self._live = self._live, None
        if live is not None:
            live.update("")
            live.stop()

    def redraw(self) -> None:
        if self._live is not None:
            self._live.update(self.screen.drawing(self.console), refresh=True)
