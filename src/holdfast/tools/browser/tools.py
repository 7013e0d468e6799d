"""The tools `browse_open`, `browse_read`, `browse_click`, `browse_type`, `browse_screenshot`: pages as people see.

Opening and reading change nothing, and are done again after a crash; a click and what is typed may change something
where they arrive, so they are not. What opens is judged as `reach(HOST)`, like a call of `fetch`; what a page itself
reaches for is judged by the proxy (`proxy.py`); a click is `call(browse_click)`, what is typed `call(browse_type)`.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec.structs import replace
from pydantic import Field

from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.base import Tool, ToolOutput, tool
from holdfast.tools.browser.browsers import Browser, BrowserLimits, Browsers
from holdfast.tools.browser.page import LOAD_S
from holdfast.tools.browser.scripts import TEXT_CHARS_MAX
from holdfast.tools.context import tool_context
from holdfast.tools.permissions.acts import Act, Whereabouts
from holdfast.tools.web import addresses
from holdfast.tools.web.client import Bounds, Resolver, Target
from holdfast.tools.web.fetch import reaches

BROWSERS_MAX = 4
BYTES_MAX = 50 << 20
MEMORY_BYTES_MAX = 2 << 30
IDLE_S = 600.0
KEPT_S = 15.0
WAIT_S = 120.0
TEXT_CHARS = 20_000
TYPED_CHARS_MAX = 20_000
ACT_S = 90.0  # for one call, beside the wait for a place: start, load, settle and read

Number = Annotated[int, Field(ge=1, description="The number in [] before it, as the page was last read.")]


def browse_tools(
    *,
    program: str | None = None,
    browsers_max: int = BROWSERS_MAX,
    bytes_max: int = BYTES_MAX,
    memory_bytes_max: int = MEMORY_BYTES_MAX,
    idle_s: float = IDLE_S,
    kept_s: float = KEPT_S,
    wait_s: float = WAIT_S,
    text_chars: int = TEXT_CHARS,
    resolve: Resolver | None = None,
) -> list[Tool]:
    """Pages in a Chromium: `browse_open`, `browse_read`, `browse_click`, `browse_type`, `browse_screenshot`.

    `program`: the browser; None: HOLDFAST_BROWSER, or the Chromium or Chrome that is found by name when the first
    page is opened. Each chat has a browser of its own, `browsers_max` of them at once; a page that was not used for
    `kept_s` gives its place to another chat that waits, at most `wait_s`. `bytes_max` is for one call, and
    `memory_bytes_max` for all processes of a browser. Hosts are judged as for `fetch_tool`, those that a page itself
    reaches for, too. See docs/how-to/web.md.
    """
    if min(browsers_max, bytes_max, memory_bytes_max, idle_s, wait_s, text_chars) <= 0 or kept_s < 0:
        raise ConfigError("the limits of browse_tools are above 0")
    limits = BrowserLimits(browsers_max, bytes_max, memory_bytes_max, idle_s, kept_s, wait_s)
    pages = _Pages(Browsers(limits, resolve), program, text_chars)
    deadline_s = wait_s + ACT_S
    where = Whereabouts(root=None, confined=True)
    bounds: dict[str, Any] = {"deadline_s": deadline_s, "untrusted": True}
    opens = replace(tool(replay="pure", acts=_acts, **bounds)(pages.browse_open), whereabouts=where)
    return [
        opens,
        tool(replay="pure", acts=lambda _: (), **bounds)(pages.browse_read),
        tool(replay="unsafe", **bounds)(pages.browse_click),
        tool(replay="unsafe", **bounds)(pages.browse_type),
        tool(replay="pure", acts=lambda _: (), **bounds)(pages.browse_screenshot),
    ]


def _acts(arguments: dict[str, Any]) -> Sequence[Act]:
    return reaches([arguments["url"]])


class _Pages:
    def __init__(self, browsers: Browsers, program: str | None, text_chars: int) -> None:
        self._browsers = browsers
        self._program = program
        self._text_chars = text_chars

    async def browse_open(self, url: Annotated[str, Field(description="http or https")]) -> str:
        """Open a web page in a browser and read it. What can be clicked or filled in has a number in [] before it."""
        context = tool_context()
        target = Target(url)
        if target.userinfo:
            raise ToolFailed("a URL with a name and a password in it is not opened")
        _check(target, Bounds(context.rulebook))
        async with self._browsers.here().used(self._program, context, target) as browser:
            await browser.page.open(target, url)
            return await self._told(browser)

    async def browse_read(
        self, start: Annotated[int, Field(ge=0, le=TEXT_CHARS_MAX, description="From which character on.")] = 0
    ) -> str:
        """Read the page that is open, as it is now."""
        async with self._browsers.here().used(self._program, tool_context(), None) as browser:
            return await self._told(browser, start)

    async def browse_click(self, number: Number) -> str:
        """Click a link, a button or a box of the page that is open, and read what there is then."""
        async with self._browsers.here().used(self._program, tool_context(), None) as browser:
            await browser.page.click(number)
            return await self._told(browser)

    async def browse_type(
        self,
        number: Number,
        text: Annotated[str, Field(max_length=TYPED_CHARS_MAX, description="In place of what is in it.")],
        submit: Annotated[bool, Field(description="Press Enter after it.")] = False,
    ) -> str:
        """Fill in a field of the page that is open, or make a choice by its words, and read what there is then."""
        async with self._browsers.here().used(self._program, tool_context(), None) as browser:
            await browser.page.type(number, text, submit=submit)
            return await self._told(browser)

    async def browse_screenshot(self) -> ToolOutput:
        """See the page that is open, as a picture of what its window shows."""
        async with self._browsers.here().used(self._program, tool_context(), None) as browser:
            found = await browser.page.read()
            picture = await browser.page.screenshot()
            return ToolOutput(text=f"## {found.title or 'a page'}\n{found.url}", files=(picture,))

    async def _told(self, browser: Browser, start: int = 0) -> str:
        found = await browser.page.read()
        text = found.text[start : start + self._text_chars]
        notes = browser.page.notes()
        if (left := len(found.text) - start - len(text)) > 0:
            notes.append(f"{left:,} characters follow: read on with start={start + len(text)}")
        elif found.cut:
            notes.append("the page has more than can be read")
        shown = [ref for ref in found.refs if f"{ref.partition(']')[0]}] " in f"{text} "]
        parts = [f"## {found.title or 'no title'}\n{found.url}", text or "[no text]"]
        if shown:
            parts.append("\n".join(shown))
        if notes:
            parts.append("\n".join(f"[{note}]" for note in notes))
        return "\n\n".join(parts)


def _check(target: Target, bounds: Bounds) -> None:
    """What is certain to be refused starts no browser."""
    bounds.check(target, target)
    literal = addresses.literal(target.host)
    problem = (
        bounds.name_problem(target.host, target.port)
        if literal is None
        else bounds.problem(target.host, target.port, [literal])
    )
    if problem is not None:
        raise ToolFailed(f"not opened: {target.host}: {problem}")


assert ACT_S > 2 * LOAD_S  # a page that hangs is told of by the tool itself
