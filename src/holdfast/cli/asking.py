"""Asking the person at the terminal: approvals and questions, while the chat goes on."""

import asyncio
from collections.abc import Awaitable, Callable

from prompt_toolkit import PromptSession

from holdfast.app import App
from holdfast.cli.words import arguments_of, safe
from holdfast.store.base import OpenCall

LOOK_S = 0.5  # how often it is looked whether somebody else has answered
YES = frozenset({"y", "yes", "ok", "allow"})
NO = frozenset({"n", "no", "deny"})


def describe(asked: OpenCall) -> str:
    if asked.kind == "question":
        return f"? {safe(asked.question or '')}"
    call = f"{safe(asked.name)}({arguments_of(asked.arguments, 300)})"
    return f"{call}\n{safe(asked.question)}" if asked.question else call


async def answer(app: App, asked: OpenCall, words: str) -> None:
    """What a person typed, taken as the answer: for an approval yes, no, or words to the model about why not."""
    chat = app.chat(asked.chat_id)
    if asked.kind != "approval":
        await chat.submit(asked.call_id, words)
    elif words.lower() in YES:
        await chat.approve(asked.call_id, by="terminal")
    else:
        await chat.deny(asked.call_id, "" if words.lower() in NO else words, by="terminal")


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

    async def ask(self, asked: OpenCall) -> bool:
        """False: the person leaves it open (Ctrl-D), or it is for a client."""
        if asked.kind == "client":
            return False
        self._before()
        try:
            words = await self._read_while_open(asked)
        except EOFError:
            return False
        except _Interrupted:
            await self._stop()
            return True
        finally:
            self._after()
        if words is not None:
            await answer(self._app, asked, words)
        return True

    async def _read_while_open(self, asked: OpenCall) -> str | None:
        """None: somebody else has answered meanwhile."""
        reading = asyncio.ensure_future(self._read(asked))
        try:
            while not (await asyncio.wait((reading,), timeout=LOOK_S))[0]:
                if all(call.call_id != asked.call_id for call in await self._app.chat(asked.chat_id).open_calls()):
                    return None
            return reading.result()
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    async def _read(self, asked: OpenCall) -> str:
        if self._session is None:
            self._session = PromptSession(enable_suspend=True)
        print(f"\n{describe(asked)}")
        prompt = "Allow it? [y/n, or say why not] " if asked.kind == "approval" else "> "
        while True:
            try:
                words = (await self._session.prompt_async(prompt, handle_sigint=False)).strip()
            except KeyboardInterrupt:
                raise _Interrupted from None
            if words:
                return words
