"""The browsers of this process: one for each chat that has a page open, bounded in number; who comes late waits.

A browser belongs to one chat and to the process that started it. It ends with that process, when it was not used for
a while, when another chat waits for a place and this one has rested long enough, when a call is cut off, and when its
page breaks a bound. Nothing of it is kept: after that the model is told to open the page again.
"""

import asyncio
import contextvars
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from holdfast.errors import ToolFailed
from holdfast.system import processes
from holdfast.system.capture import Kept, PipeReader
from holdfast.tools.browser import chromium
from holdfast.tools.browser.chromium import Pipes, Profile
from holdfast.tools.browser.devtools import BrowserLost, DevTools
from holdfast.tools.browser.page import Page
from holdfast.tools.browser.proxy import BrowserProxy
from holdfast.tools.context import ToolContext
from holdfast.tools.figures import show
from holdfast.tools.web.client import Resolver, Target

START_S = 30.0
REST_S = 3.0
ERROR_BYTES_MAX = 8_192
MEMORY_LOOK_S = 0.5
WAITING_MAX = 100  # calls, for a place or for an earlier call of their chat
UNTOLD_MAX = 1_000  # chats whose page was ended behind a call that went well
NO_PAGE = (
    "No page is open in this chat: open one first. A page does not outlive its worker, a call that was cut off, or a "
    "long rest; then it has to be opened again."
)


def page_ended(why: str) -> ToolFailed:
    return ToolFailed(f"The page was ended: {why}. Open it again, or another one.")


class BrowserLimits(NamedTuple):
    browsers_max: int
    bytes_max: int  # for one call
    memory_bytes_max: int  # of all processes of one browser
    idle_s: float
    kept_s: float  # how long a page that nobody uses keeps its place while others wait
    wait_s: float


class Browser:
    """One that runs, with its page. Made by `started`. Belongs to one event loop."""

    def __init__(self, child: processes.Child, pipes: Pipes, profile: Profile, proxy: BrowserProxy) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._profile = profile
        self.proxy = proxy
        self._said = Kept(ERROR_BYTES_MAX)
        self._errors = PipeReader(pipes.errors, self._said)
        self.devtools = DevTools(pipes.commands, pipes.answers)
        self.page = Page(self.devtools, proxy)
        self.calls = 0  # that use it, or wait for those that do
        self.life: asyncio.Task[None]  # until nothing of it is left
        self.used_at = self._loop.time()
        self._unwanted = asyncio.Event()

    @classmethod
    async def started(
        cls, program: str, limits: BrowserLimits, resolve: Resolver | None, context: ToolContext
    ) -> "Browser":
        """Raises ToolFailed. Nothing is left of one that does not come up."""
        proxy = BrowserProxy(bytes_max=limits.bytes_max, resolve=resolve)
        profile = await chromium.new_profile()
        try:
            await proxy.start()
            child, pipes = await chromium.start(program, profile, context.children)
        except BaseException:
            await proxy.close()
            processes.keep(asyncio.ensure_future(chromium.remove_profile(profile)))
            raise
        browser = cls(child, pipes, profile, proxy)
        # In a context of its own: it outlives the call that began it.
        life = asyncio.get_running_loop().create_task(browser._live(limits.idle_s), context=contextvars.Context())
        browser.life = life
        browser.calls = 1
        try:
            async with asyncio.timeout(START_S):
                await browser.page.make()
        except BaseException as error:
            await browser.end()
            if isinstance(error, ToolFailed | TimeoutError):
                raise ToolFailed(browser._not_started(program)) from error
            raise
        browser.calls = 0
        browser.used_at = browser._loop.time()
        return browser

    def _not_started(self, program: str) -> str:
        said = " ".join(self._said.text.split())[-600:]
        hint = (
            " Let it have user namespaces (kernel.unprivileged_userns_clone), or install its setuid sandbox."
            if "sandbox" in said.lower()
            else ""
        )
        return f"{program} did not start.{hint} It said: {said or 'nothing'}"

    def stand_still(self) -> None:
        """All its processes, also a worker of a page that computes without end."""
        self._child.stand_still()

    def go_on(self) -> None:
        self._child.go_on()

    async def watch_memory(self, most: int) -> None:
        """Until it takes more than that: then it is lost. Between two calls it cannot grow."""
        while self.devtools.lost is None:
            await self.look_at_memory(most)
            await asyncio.sleep(MEMORY_LOOK_S)

    async def look_at_memory(self, most: int) -> None:
        if await self._child.memory_bytes() > most:
            self.devtools.lose(f"it took more than {most >> 20:,} MiB of memory")

    @property
    def idle_s(self) -> float:
        return self._loop.time() - self.used_at

    async def end(self) -> None:
        """All of it: its processes, its connections and its files. Who is cancelled meanwhile changes nothing."""
        self._unwanted.set()
        await asyncio.wait((self.life,))

    async def _live(self, idle_s: float) -> None:
        exits = asyncio.ensure_future(self._child.exited())
        unwanted = asyncio.ensure_future(self._unwanted.wait())
        try:
            while not (exits.done() or unwanted.done()):
                left_s = idle_s if self.calls else max(0.0, idle_s - self.idle_s)
                await asyncio.wait((exits, unwanted), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if not self.calls and self.idle_s >= idle_s:
                    break
        finally:
            exits.cancel()
            unwanted.cancel()
            self.devtools.lose("the browser has ended")
            try:
                await self._child.end()
            finally:  # the event loop may end, and cancel this, just when the guard has ended the browser
                self.devtools.close()
                self._errors.close()
                await self.proxy.close()
                with suppress(RuntimeError):
                    await chromium.remove_profile(self._profile)


class LoopBrowsers:
    """Those of one event loop."""

    def __init__(self, limits: BrowserLimits, resolve: Resolver | None) -> None:
        self._limits = limits
        self._resolve = resolve
        self._by_chat: dict[str, Browser] = {}
        self._chats: weakref.WeakValueDictionary[str, _ChatTurn] = weakref.WeakValueDictionary()
        self._untold: dict[str, str] = {}  # chat: why its page was ended, for its next call
        self._places = 0  # that run, or are about to
        self._line = asyncio.Lock()  # who waits for a place, in order
        self._changed = asyncio.Event()
        self.waiting = 0

    @property
    def running(self) -> int:
        return self._places

    @asynccontextmanager
    async def used(self, program: str | None, context: ToolContext, opens: Target | None) -> AsyncIterator[Browser]:
        """This chat's browser, for one call; calls of one chat take turns. One that is cut off, or whose page broke a
        bound, ends it. Raises ToolFailed.
        """
        if self.waiting >= WAITING_MAX:
            raise ToolFailed(f"{self.waiting} calls wait for a browser, which is the limit: try again later.")
        chat = self._chats.get(context.chat_id)
        if chat is None:
            chat = self._chats[context.chat_id] = _ChatTurn()
        self.waiting += 1
        entered = False
        try:
            async with chat.turn:
                browser = await self._found(program, context, opens)
                self.waiting -= 1
                entered = True
                async with self._call(browser, context, opens):
                    yield browser
        finally:
            if not entered:
                self.waiting -= 1

    @asynccontextmanager
    async def _call(self, browser: Browser, context: ToolContext, opens: Target | None) -> AsyncIterator[None]:
        browser.calls += 1
        browser.proxy.begin(context.rulebook, opens)
        whole = False
        browser.go_on()
        watch = asyncio.ensure_future(browser.watch_memory(self._limits.memory_bytes_max))
        try:
            try:
                await browser.page.begin()
                yield
            except BrowserLost as error:
                raise page_ended(browser.devtools.lost or str(error)) from error
            except ToolFailed:
                whole = await self._rested(browser, context.chat_id)
                raise
            whole = await self._rested(browser, context.chat_id)
        finally:
            watch.cancel()
            browser.proxy.pause()
            browser.calls -= 1
            browser.used_at = asyncio.get_running_loop().time()
            self._changed.set()
            if whole:
                browser.stand_still()
            else:
                await browser.end()

    async def _rested(self, browser: Browser, chat_id: str) -> bool:
        """Whether it stands still now. One that does not would go on for nobody, at the cost of others; this call has
        its answer, so the chat's next one is told.
        """
        try:
            async with asyncio.timeout(REST_S):
                await browser.page.rest()
        except (ToolFailed, TimeoutError):
            await browser.look_at_memory(self._limits.memory_bytes_max)
            browser.devtools.lose("it did not come to rest")
        why = browser.devtools.lost
        if why is not None:
            if len(self._untold) >= UNTOLD_MAX:
                del self._untold[next(iter(self._untold))]
            self._untold[chat_id] = why
        return why is None

    async def _found(self, program: str | None, context: ToolContext, opens: Target | None) -> Browser:
        browser = self._by_chat.get(context.chat_id)
        if browser is not None and browser.devtools.lost is None and not browser.life.done():
            return browser
        if browser is not None:
            await browser.end()
        why = self._untold.pop(context.chat_id, None)
        if opens is None:
            raise ToolFailed(NO_PAGE) if why is None else page_ended(why)
        found = chromium.find_program(program)
        await self._take_place()
        try:
            made = await Browser.started(found, self._limits, self._resolve, context)
        except BaseException:
            self._free_place()
            raise
        self._by_chat[context.chat_id] = made
        made.life.add_done_callback(lambda _: self._forget(context.chat_id, made))
        return made

    def _forget(self, chat_id: str, browser: Browser) -> None:
        if self._by_chat.get(chat_id) is browser:
            del self._by_chat[chat_id]
        self._free_place()

    def _free_place(self) -> None:
        self._places -= 1
        self._changed.set()

    async def _take_place(self) -> None:
        """In the order of their coming. Raises ToolFailed when it took too long."""
        try:
            async with asyncio.timeout(self._limits.wait_s), self._line:
                while self._places >= self._limits.browsers_max:
                    self._changed.clear()
                    resting = [each for each in self._by_chat.values() if not each.calls]
                    longest = max(resting, key=lambda each: each.idle_s, default=None)
                    if longest is not None and longest.idle_s >= self._limits.kept_s:
                        await longest.end()
                        await asyncio.sleep(0)  # for its place to be given back
                        continue
                    left_s = None if longest is None else self._limits.kept_s - longest.idle_s
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left_s):
                            await self._changed.wait()
                self._places += 1
        except TimeoutError:
            raise ToolFailed(
                f"All {self._limits.browsers_max} browsers are in use, and none became free in "
                f"{self._limits.wait_s:g} s: try again later."
            ) from None


class _ChatTurn:
    """Calls of one chat take turns, also while its browser starts."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()


class Browsers:
    """Of one set of tools: what an event loop has of them ends with it."""

    def __init__(self, limits: BrowserLimits, resolve: Resolver | None) -> None:
        self.limits = limits
        self._resolve = resolve
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBrowsers] = (
            weakref.WeakKeyDictionary()
        )
        _all.add(self)

    def here(self) -> LoopBrowsers:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            found = self._by_loop[loop] = LoopBrowsers(self.limits, self._resolve)
        return found

    def figures(self) -> tuple[int, int]:
        """Browsers and calls that wait."""
        here = [one for loop, one in list(self._by_loop.items()) if not loop.is_closed()]
        return sum(one.running for one in here), sum(one.waiting for one in here)


_all: "weakref.WeakSet[Browsers]" = weakref.WeakSet()


def _figures() -> dict[str, int | str | None]:
    told = [(one.limits, *one.figures()) for one in list(_all)]
    return {
        "running": sum(running for _, running, _ in told),
        "running_max": sum(limits.browsers_max for limits, _, _ in told),
        "waiting": sum(waiting for _, _, waiting in told),
        "waiting_max": WAITING_MAX * len(told),
    }


show("browsers", _figures)
