"""`holdfast demo`: a chat whose worker is killed with -9 in mid-tool, and what became of it.

Real parts: worker processes, a real SIGKILL, the journal and a ledger that the tools write. The verdict is computed
from these two (`demo_verdict.py`).
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.cli.commands.demo_verdict import Evidence, judge, timeline
from holdfast.cli.commands.demo_worker import AGENT, BATCH, ORDER, SEEN_S, DemoFailed, Ledger, agent, until
from holdfast.cli.terminal.journal_reader import Reader
from holdfast.cli.terminal.live_screen import REDRAW_S, LiveTerminal
from holdfast.cli.terminal.screen import PlainScreen
from holdfast.cli.terminal.turn_follower import Exit, TurnFollower, ticking
from holdfast.store.records import Item


async def demo() -> int:
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        url, path = f"sqlite:///{folder}/holdfast.db", f"{folder}/ledger"
        ledger = Ledger(path)
        async with App(url, agents=[agent(ledger)]) as app:
            evidence = await _kill_in_mid_tool(app, ledger, (url, path), console)
            return 0 if _show(evidence, console) else 1


async def _kill_in_mid_tool(app: App, ledger: Ledger, arguments: tuple[str, str], console: Console) -> Evidence:
    _say(console, "A chat with tools: one pure, one idempotent, one unsafe. Its worker is a process of its own.")
    with ExitStack() as leaving:
        first = leaving.enter_context(_worker(arguments))
        _say(console, f"worker 1 is process {first.pid}")
        chat = await app.create(AGENT, ORDER)
        following = leaving.enter_context(_following(app, chat, console))
        await until(lambda: ledger.begun(first.pid) >= set(BATCH), lambda: first.poll() is None)
        await asyncio.sleep(SEEN_S)
        before = await _all_items(app, chat)
        killed_at = int(time.time() * 1000)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        _rule(console, f"kill -9 {first.pid}: it died in the middle of all three tools, exit code {first.returncode}")
        second = leaving.enter_context(_worker(arguments))
        _say(console, f"worker 2 is process {second.pid}; it finds the chat in the journal and goes on")
        await until(following.done, lambda: second.poll() is None)
        if (end := following.result()) is not Exit.DONE:
            raise DemoFailed(f"the chat did not come to its end: {end.name.lower()}")
    return Evidence(
        chat=await chat.snapshot(),
        messages=await chat.messages(),
        before=before,
        items=await _all_items(app, chat),
        ledger=ledger.read(),
        first_pid=first.pid,
        first_code=first.returncode,
        second_pid=second.pid,
        killed_at=killed_at,
        stranded=len(await app.store.find_violations()),
    )


def _show(evidence: Evidence, console: Console) -> bool:
    _rule(console, "the timeline, from the journal")
    for row in timeline(evidence):
        console.print(
            Text.assemble((f"{row.at_s:+7.1f} s  ", "dim"), row.text, (f"  {row.fate}", "bold " + row.colour))
        )
    _rule(console, "the verdict, from the journal and the ledger of side effects")
    checks = judge(evidence)
    for check in checks:
        mark = Text("✓", style="green") if check.holds else Text("✗", style="bold red")
        console.print(Text.assemble(mark, " ", check.text))
    lost = [check for check in checks if not check.holds]
    verdict = "Nothing lost, nothing done twice." if not lost else f"{len(lost)} promises did not hold."
    console.print(Text(f"\n{verdict}", style="bold red" if lost else "bold green"))
    return not lost


@contextmanager
def _worker(arguments: tuple[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process, gone at the end whatever happens. Ctrl-C is ours alone: it has a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.commands.demo_worker", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _following(app: App, chat: Chat, console: Console, after: str | None = None) -> Iterator["asyncio.Future[Exit]"]:
    """Shows the chat while the block lasts; yields its end."""
    with ExitStack() as leaving:
        if console.is_terminal:
            live = leaving.enter_context(LiveTerminal(console))
            live.screen.busy = True
            drawing = asyncio.ensure_future(ticking(live.redraw, REDRAW_S))
            leaving.callback(drawing.cancel)
            turn = TurnFollower(app, chat, Reader(live.screen))
        else:
            turn = TurnFollower(app, chat, Reader(PlainScreen(err=sys.stdout)))
        following = asyncio.ensure_future(turn.follow())
        leaving.callback(following.cancel)
        yield following


async def _all_items(app: App, chat: Chat) -> list[Item]:
    """The journal as it stands."""
    items: list[Item] = []
    cursor = None
    while True:
        page = await app.store.read_journal(chat.id, cursor)
        items += [item for item in page.items if item.seq is not None]
        cursor = page.cursor
        if not page.more:
            return items


def _say(console: Console, text: str) -> None:
    console.print(Text(text, style="bold"))


def _rule(console: Console, text: str) -> None:
    console.print()
    console.print(Rule(text, align="left", style="dim"))
