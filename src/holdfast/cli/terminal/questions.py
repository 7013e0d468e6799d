"""Asking the person at the terminal: approvals and questions, while the chat goes on."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import get_args

from prompt_toolkit import PromptSession

from holdfast.app import App
from holdfast.cli.terminal.approval import ApprovalView
from holdfast.core.records import Always
from holdfast.core.states import awaits_reply
from holdfast.errors import NotFound
from holdfast.safe_text import safe
from holdfast.store.open_calls import OpenCallRecord

LOOK_S = 0.5  # how often it is looked whether another person has answered
YES = frozenset({"y", "yes", "ok", "allow"})
NO = frozenset({"n", "no", "deny"})
MORE = frozenset({"v", "view", "more"})
# Alone it is answered with what would be kept; with where that counts it is the answer.
ALWAYS: dict[str, Always | None] = {"a": None, "always": None}
ALWAYS |= {f"{word} {scope}": scope for word in ("a", "always") for scope in get_args(Always)}


async def view_of(app: App, asked: OpenCallRecord) -> ApprovalView:
    """For this window, with the whole of the arguments."""
    if not asked.whole:
        with suppress(NotFound):  # it was answered meanwhile
            asked = (await app.chat(asked.chat_id).open_call(asked.call_id)).record
    columns, rows = shutil.get_terminal_size()
    return ApprovalView(asked, columns, rows)


def opening(view: ApprovalView) -> str:
    if view.asked.kind == "question":
        return f"? {safe(view.asked.question or '')}"
    return view.opening()


def prompt_of(view: ApprovalView) -> str:
    if view.asked.kind != "approval":
        return "> "
    if view.hides:
        return "Allow it? [v shows the rest, n, or say why not] "
    return (
        "Allow it? [y/n, a for always, or say why not] " if view.asked.offer else "Allow it? [y/n, or say why not] "
    )


def how_to_say_always(asked: OpenCallRecord) -> str:
    if not asked.offer:
        return "always is not offered for this one: y allows it this time"
    rules = "\n".join(f"  {rule}" for rule in asked.offer)
    scopes = "`always chat`, `always agent` or `always owner`"
    return f"this would be kept, until you revoke it:\n{rules}\nsay {scopes}: where it counts"


async def answer(app: App, view: ApprovalView, words: str) -> str | None:
    """What a person typed, taken as the answer: for an approval yes, always, no, or words to the model about why not.
    Returns what is to be shown instead, where it is no answer: more of the call, or why it cannot be allowed yet.
    """
    asked = view.asked
    chat = app.chat(asked.chat_id)
    said = " ".join(words.lower().split())
    always = ALWAYS.get(said)
    if asked.kind != "approval":
        await chat.submit(asked.call_id, words)
    elif said in MORE:
        return view.more()
    elif said in ALWAYS and (always is None or not asked.offer):
        return how_to_say_always(asked)
    elif said in YES or always is not None:
        if view.hides:
            return view.refusal()
        await chat.approve(asked.call_id, by="terminal", digest=asked.digest, always=always)
    else:
        await chat.deny(asked.call_id, "" if said in NO else words, by="terminal")
    return None


class _Interrupted(Exception):
    """Ctrl-C: a KeyboardInterrupt in a task would end the event loop."""


class Person:
    """Asks with a prompt of its own, for which the screen steps aside."""

    def __init__(
        self,
        app: App,
        before: Callable[[], None],
        after: Callable[[], None],
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._before = before
        self._after = after
        self._stop = stop
        self._session: PromptSession[str] | None = None

    async def ask(self, asked: OpenCallRecord) -> bool:
        """False: the person leaves it open (Ctrl-D), or it is for a client."""
        if asked.kind == "client":
            return False
        view = await view_of(self._app, asked)
        self._before()
        try:
            print(f"\n{opening(view)}")
            while (words := await self._read_while_open(view)) is not None:
                if (instead := await answer(self._app, view, words)) is None:
                    break
                print(instead)
        except EOFError:
            return False
        except _Interrupted:
            await self._stop()
            return True
        finally:
            self._after()
        return True

    async def _read_while_open(self, view: ApprovalView) -> str | None:
        """None: another person has answered meanwhile."""
        chat, call_id = self._app.chat(view.asked.chat_id), view.asked.call_id
        reading = asyncio.ensure_future(self._read(prompt_of(view)))
        try:
            while not (await asyncio.wait((reading,), timeout=LOOK_S))[0]:
                if not any(call.id == call_id and awaits_reply(call) for call in (await chat.snapshot()).calls):
                    return None
            return reading.result()
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    async def _read(self, prompt: str) -> str:
        if self._session is None:
            self._session = PromptSession(enable_suspend=True)
        while True:
            try:
                words = (await self._session.prompt_async(prompt, handle_sigint=False)).strip()
            except KeyboardInterrupt:
                raise _Interrupted from None
            if words:
                return words
