"""One page in a browser of its own: opened, read, clicked, typed into, looked at.

Each step has an end. A page that is still loading after a while is read as far as it came; one that does not answer,
keeps asking, opens windows without end or says too much ends its browser. Windows are closed as soon as they open,
questions (`alert`, `confirm`, `prompt`) answered with no, downloads refused.
"""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from holdfast.core.records import File, Frozen
from holdfast.errors import ToolFailed
from holdfast.tools.browser import scripts
from holdfast.tools.browser.devtools import BrowserLost, DevTools
from holdfast.tools.browser.proxy import REFUSED, BrowserProxy
from holdfast.tools.web.client import Target

LOAD_S = 20.0
QUIET_S = 0.4  # after which a page that has loaded is taken to be done with what it does then
SETTLE_S = 3.0
SCRIPT_S = 10.0
DIALOGS_MAX = 20  # of one call
WINDOWS_MAX = 10
STEP_S = 0.05
NOTES_MAX = 5
NOTES_KEPT = 100
QUALITY = 75  # of a picture
_SCHEMES = ("http://", "https://", "about:", "data:", "blob:")
_ENTER = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "nativeVirtualKeyCode": 13, "text": "\r"}
_PROBLEMS = {
    "gone": "there is no [{0}] on the page as it is now: read it again",
    "closed": "[{0}] cannot be written to",
    "choice": "[{0}] has no such choice: read the page for those that it has",
    "program": "[{0}] leads to another program, which is not started",
    "kind": "[{0}] is nothing to type into: click it",
}


class PageContent(Frozen):
    url: str = ""
    title: str = ""
    text: str = ""
    refs: tuple[str, ...] = ()
    cut: bool = False


class Page:
    def __init__(self, devtools: DevTools, proxy: BrowserProxy) -> None:
        self._devtools = devtools
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._session = ""
        self._target = ""
        self._context = ""
        self._frame = ""
        self._world: int | None = None  # where our scripts run; none after the page was left
        self._loading = False
        self._dialogs = self._windows = 0
        self._notes: dict[str, None] = {}
        self.opened = False  # a page was

    async def make(self) -> None:
        """In a context that keeps nothing on the disk."""
        ask, listen = self._devtools.ask, self._devtools.listen
        listen("Target.targetCreated", self._on_target)
        listen("Page.frameStartedLoading", lambda event: self._on_loading(event, loading=True))
        listen("Page.frameStoppedLoading", lambda event: self._on_loading(event, loading=False))
        listen("Page.frameNavigated", self._on_navigated)
        listen("Page.javascriptDialogOpening", self._on_dialog)
        listen("Inspector.targetCrashed", lambda _: self._devtools.lose("the page crashed"))
        listen("Browser.downloadWillBegin", self._on_download)
        way_out = {"proxyServer": f"http://127.0.0.1:{self._proxy.port}", "proxyBypassList": "<-loopback>"}
        made = await ask("Target.createBrowserContext", {"disposeOnDetach": True, **way_out})
        context = self._context = made["browserContextId"]
        await ask(
            "Browser.setDownloadBehavior", {"behavior": "deny", "browserContextId": context, "eventsEnabled": True}
        )
        self._target = (await ask("Target.createTarget", {"url": "about:blank", "browserContextId": context}))[
            "targetId"
        ]
        attached = await ask("Target.attachToTarget", {"targetId": self._target, "flatten": True})
        self._session = attached["sessionId"]
        await self._ask("Page.enable")
        await self._ask("Inspector.enable")
        await self._ask("Emulation.setFocusEmulationEnabled", {"enabled": True})  # whatever window comes and goes
        tree = await self._ask("Page.getFrameTree")
        self._frame = tree["frameTree"]["frame"]["id"]
        await ask("Target.setDiscoverTargets", {"discover": True, "filter": [{"type": "page"}]})

    # --- what a call does ---------------------------------------------------------------------------------------

    async def begin(self) -> None:
        self._dialogs = self._windows = 0
        self._notes.clear()
        if self.opened:
            await self._told_to_be("active")

    async def rest(self) -> None:
        """It does nothing more until the next call. Raises BrowserLost if it does not hear of that. While one page
        gives way to another there is none to be told, for an instant: its caller says how long it waits.
        """
        while True:
            try:
                return await self._told_to_be("frozen")
            except BrowserLost:
                raise
            except ToolFailed:
                await asyncio.sleep(STEP_S)

    async def open(self, target: Target, url: str) -> None:
        """Raises ToolFailed where it cannot be opened."""
        self.opened = True
        self._loading = True
        try:
            answer = await self._ask("Page.navigate", {"url": url}, within_s=LOAD_S)
        except BrowserLost as error:
            if self._devtools.lost is not None:
                raise
            self._devtools.tell("Page.stopLoading", session=self._session)
            raise ToolFailed(f"{target.shown} did not answer within {LOAD_S:g} s") from error
        if failure := answer.get("errorText"):
            self._loading = False
            if refusal := self._refusal():
                raise ToolFailed(refusal)
            why = "it is a file to download, which is not done here" if answer.get("isDownload") else failure
            raise ToolFailed(f"{target.shown} cannot be opened: {why}")
        await self._settle()

    async def click(self, number: int) -> None:
        point = await self._run(scripts.POINT % number)
        self._check(point, number)
        if point["hit"]:
            where = {"x": point["x"], "y": point["y"], "button": "left", "clickCount": 1}
            for kind in ("mousePressed", "mouseReleased"):
                await self._ask("Input.dispatchMouseEvent", {"type": kind, **where})
        else:
            await self._run(scripts.CLICK % number)
        await self._settle()

    async def type(self, number: int, text: str, *, submit: bool) -> None:
        done = await self._run(scripts.FOCUS % (number, msgspec.json.encode(text).decode()))
        self._check(done, number)
        if not done.get("chosen"):
            if text:
                await self._ask("Input.insertText", {"text": text})
            else:
                await self._key({"key": "Delete", "code": "Delete", "windowsVirtualKeyCode": 46})
        if submit:
            await self._key(_ENTER)
        await self._settle()

    async def read(self) -> PageContent:
        """As it is now."""
        found = msgspec.convert(await self._run(scripts.READ), PageContent)
        if not found.url.startswith(_SCHEMES):
            if refusal := self._refusal():
                raise ToolFailed(refusal)
            shown = "an error of the browser" if found.url.startswith("chrome-error:") else found.url[:200]
            await self._ask("Page.navigate", {"url": "about:blank"})
            raise ToolFailed(f"the page led to {shown}, which is not shown: open another one")
        if found.text.startswith(REFUSED) and (refusal := self._refusal(found.url)) is not None:
            raise ToolFailed(refusal)  # in place of the page; another part of it may be refused as well
        return found

    async def screenshot(self) -> File:
        parameters = {"format": "jpeg", "quality": QUALITY, "captureBeyondViewport": False}
        data: str = (await self._ask("Page.captureScreenshot", parameters))["data"]
        size = len(base64.b64decode(data))
        return File(media_type="image/jpeg", uri=f"data:image/jpeg;base64,{data}", name="page.jpg", size_bytes=size)

    def notes(self) -> list[str]:
        """What is to be said of this call beside the page."""
        told = list(self._notes)[:NOTES_MAX]
        if self._proxy.flooded:
            told.append(f"it was cut off at {self._proxy.bytes:,} bytes")
        refused = [f"{host}: {why}" for host, why in list(self._proxy.refused.items())[:NOTES_MAX]]
        return told + [f"not reached: {each}" for each in refused]

    def _note(self, note: str) -> None:
        if len(self._notes) < NOTES_KEPT:
            self._notes[note] = None

    # --- inside -----------------------------------------------------------------------------------------------

    async def _ask(self, method: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> Any:
        return await self._devtools.ask(method, parameters, session=self._session, **options)

    async def _told_to_be(self, state: Literal["active", "frozen"]) -> None:
        await self._ask("Page.setWebLifecycleState", {"state": state})

    async def _key(self, key: Mapping[str, Any]) -> None:
        for kind in ("keyDown", "keyUp"):
            await self._ask("Input.dispatchKeyEvent", {"type": kind, **key})

    async def _run(self, script: str) -> Any:
        for last in (False, True):  # it may be left for another page this instant
            try:
                return await self._evaluated(script)
            except BrowserLost:
                raise
            except ToolFailed:
                if last:
                    raise
                self._world = None
        raise AssertionError

    async def _evaluated(self, script: str) -> Any:
        if self._world is None:
            made = await self._ask("Page.createIsolatedWorld", {"frameId": self._frame, "worldName": "holdfast"})
            self._world = made["executionContextId"]
        answer = await self._ask(
            "Runtime.evaluate",
            {
                "expression": script,
                "contextId": self._world,
                "returnByValue": True,
                "userGesture": True,
                "timeout": SCRIPT_S * 1000,
            },
        )
        if (problem := answer.get("exceptionDetails")) is not None:
            raise ToolFailed(f"the page cannot be read: {str(problem.get('text'))[:200]}")
        return answer["result"].get("value")

    def _check(self, answer: Any, number: int) -> None:
        if problem := answer.get("problem"):
            raise ToolFailed(_PROBLEMS[problem].format(number))

    async def _settle(self) -> None:
        """Until it has loaded and is quiet, or it was waited for long enough."""
        began = self._loop.time()
        while (now := self._loop.time()) < began + LOAD_S:
            if self._devtools.lost is not None:
                raise BrowserLost(self._devtools.lost)
            if not self._loading:
                quiet_s = now - max(self._proxy.moved_at, began)
                if quiet_s >= QUIET_S or now >= began + SETTLE_S:
                    return
            if self._proxy.flooded:
                break
            await asyncio.sleep(STEP_S)
        if self._loading:
            self._note("it is still loading: this is what there is of it")
            self._devtools.tell("Page.stopLoading", session=self._session)

    def _refusal(self, url: str | None = None) -> str | None:
        """Why the page itself was not reached; None if another host was not."""
        refused = self._proxy.refused
        if url is None:
            return f"not opened: {refused[next(reversed(refused))]}" if refused else None
        try:
            why = refused.get(Target(url).host)
        except ToolFailed:
            return None
        return None if why is None else f"not opened: {why}"

    # --- what the browser tells ---------------------------------------------------------------------------------

    def _on_loading(self, event: Mapping[str, Any], *, loading: bool) -> None:
        if event.get("frameId") == self._frame:
            self._loading = loading

    def _on_navigated(self, event: Mapping[str, Any]) -> None:
        frame = event.get("frame", {})
        if not frame.get("parentId"):
            self._world = None
            self._frame = frame.get("id", self._frame)

    def _on_dialog(self, event: Mapping[str, Any]) -> None:
        self._dialogs += 1
        if self._dialogs > DIALOGS_MAX:
            self._devtools.lose(f"the page asked more than {DIALOGS_MAX} questions")
            return
        said = str(event.get("message", ""))[:200]
        self._note(f"it asked ({event.get('type')}), and was answered with no: {said!r}")
        leaving = event.get("type") == "beforeunload"
        self._devtools.tell("Page.handleJavaScriptDialog", {"accept": leaving}, session=self._session)

    def _on_target(self, event: Mapping[str, Any]) -> None:
        made = event["targetInfo"]
        if made["targetId"] == self._target or made.get("browserContextId") != self._context:
            return  # another one of ours has no opener if the page does not want to be known as that
        self._windows += 1
        if self._windows > WINDOWS_MAX:
            self._devtools.lose(f"the page opened more than {WINDOWS_MAX} windows")
            return
        self._note(f"it opened a window, which was closed: {str(made.get('url', ''))[:200]}")
        self._devtools.tell("Target.closeTarget", {"targetId": made["targetId"]})

    def _on_download(self, event: Mapping[str, Any]) -> None:
        self._loading = False
        self._note(f"a download was refused: {str(event.get('url', ''))[:200]}")
