"""A session with an MCP server, by the SDK, over streams of ours. Imported when first used: the SDK costs a second.

Nothing here waits for more than it must, and nothing retries: `tools/mcp/connection.py` owns the deadlines and the
connections. Streams are of `stdio_transport.py` or `http_transport.py`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import mcp_types
import msgspec
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.shared.exceptions import MCPError
from msgspec import Raw
from msgspec.structs import replace
from pydantic import ValidationError

from holdfast import __version__
from holdfast.core.codec import is_too_deep, storable
from holdfast.errors import ToolFailed
from holdfast.mcp_servers import McpServer
from holdfast.system.processes import Children
from holdfast.tools.base import output_text
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp.answers import ErrorAnswer, LinksWanted, ServerAnswer, UnreadableAnswer, answer_of
from holdfast.tools.mcp.elicitation import Asker
from holdfast.tools.mcp.error_codes import told
from holdfast.tools.mcp.http_transport import over_http
from holdfast.tools.mcp.logins import ServerLogin
from holdfast.tools.mcp.prompts import (
    DESCRIPTION_MAX,
    PROMPT_BYTES_MAX,
    PROMPTS_MAX,
    ListedPrompt,
    PromptArgument,
    usable,
)
from holdfast.tools.mcp.sdk_logs import say_seldom
from holdfast.tools.mcp.session_state import SessionState
from holdfast.tools.mcp.stdio_transport import program
from holdfast.tools.mcp.tools import RESOURCE_TOOLS, TOOLS_MAX, Listed
from holdfast.tools.schemas import ANY_OBJECT, object_schema

PAGES_MAX = 100
PROGRESS_CHARS_MAX = 2_000
RESOURCES_MAX = 1_000  # of a page that are listed
ABOUT_CHARS_MAX = 500
KEY_META = "holdfast/key"  # in a call's _meta: the same in every try of this call

_INFO = mcp_types.Implementation(name="holdfast", version=__version__)
say_seldom()


_asker: ContextVar[Asker | None] = ContextVar("holdfast_mcp_asker", default=None)  # of the call that a task makes


_LISTS_CHANGED = (
    mcp_types.ToolListChangedNotification,
    mcp_types.PromptListChangedNotification,
    mcp_types.ResourceListChangedNotification,
)


class McpWire(SessionState):
    """A session. `stirred` is called when its list of tools has changed, too."""

    def __init__(self, server: McpServer, stirred: Callable[[], None]) -> None:
        super().__init__(stirred)
        self._server = server
        self._session: ClientSession | None = None
        self._askers: list[Asker] = []  # of the calls under way
        self._astray_until = 0.0  # a call that was given up may go on at the server, and ask
        self.stale = False  # its list of tools has changed

    # --- the session ------------------------------------------------------------------------------------

    async def shake_hands(self, session: ClientSession) -> None:
        self._session = session
        try:
            await session.initialize()
        except MCPError as error:
            if error.code not in (mcp_types.METHOD_NOT_FOUND, mcp_types.UNSUPPORTED_PROTOCOL_VERSION):
                raise told(error) from error
            try:
                await session.discover()  # the protocol without a handshake, if that is all it speaks
            except MCPError:
                raise told(error) from error

    async def heard(self, message: IncomingMessage) -> None:
        """What the SDK does not answer by itself."""
        if isinstance(message, _LISTS_CHANGED):
            self.stale = True
            self._stirred()
        elif isinstance(message, Exception):
            self.garbage += 1
            self.last_garbage = str(message)[:200]

    async def list(self) -> list[Listed]:
        """All its tools, page by page; one that cannot be described is left out."""
        found: list[Listed] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            params = mcp_types.PaginatedRequestParams(cursor=cursor)
            page = await self._ask(mcp_types.ListToolsRequest(params=params), mcp_types.ListToolsResult)
            found += map(_listed, page.tools)
            cursor = page.next_cursor
            if cursor is None or len(found) > TOOLS_MAX:
                break
        return [*found, *RESOURCE_TOOLS] if await self._has_resources() else found

    async def list_prompts(self) -> tuple[ListedPrompt, ...]:
        """Those that can be called; none, where the server has none or cannot say."""
        has = self._capabilities
        if not self._server.prompts or has is None or has.prompts is None:
            return ()
        found: list[ListedPrompt] = []
        cursor: str | None = None
        try:
            for _ in range(PAGES_MAX):
                params = mcp_types.PaginatedRequestParams(cursor=cursor)
                page = await self._ask(mcp_types.ListPromptsRequest(params=params), mcp_types.ListPromptsResult)
                found += map(_listed_prompt, page.prompts)
                cursor = page.next_cursor
                if cursor is None or len(found) > PROMPTS_MAX:
                    break
        except ErrorAnswer:
            return ()
        return usable(found)

    async def prompt(self, name: str, arguments: dict[str, str]) -> ServerAnswer:
        """What it stands for. Raises NotSent, Lost or ErrorAnswer."""
        params = mcp_types.GetPromptRequestParams(name=name, arguments=arguments)
        result = await self._ask(mcp_types.GetPromptRequest(params=params), mcp_types.GetPromptResult)
        blocks: list[dict[str, Any]] = []
        named = any(message.role != "user" for message in result.messages)
        for message in result.messages:
            if named:
                blocks.append({"type": "text", "text": f"[{message.role}]"})
            blocks.append(message.content.model_dump(by_alias=True, mode="json"))
        return answer_of(blocks, None, PROMPT_BYTES_MAX)

    @property
    def _capabilities(self) -> mcp_types.ServerCapabilities | None:
        return self._session.server_capabilities if self._session is not None else None

    async def _has_resources(self) -> bool:
        """It is asked: many servers say that they can have resources, and have none."""
        has = self._capabilities
        if not self._server.resources or has is None or has.resources is None:
            return False
        request = mcp_types.ListResourcesRequest(params=mcp_types.PaginatedRequestParams())
        try:
            page = await self._ask(request, mcp_types.ListResourcesResult)
        except ErrorAnswer:
            return False
        return bool(page.resources) or bool(await self._templates())

    async def ping(self) -> None:
        await self._ask(mcp_types.PingRequest(), mcp_types.EmptyResult)

    async def carry_out(self, listed: Listed, arguments: dict[str, Any], context: ToolContext) -> ServerAnswer:
        """Raises NotSent, Lost or ErrorAnswer. Cancelled, it tells the server so."""
        match listed.verb:
            case "tools/call":
                return await self._call_asking(listed.name, arguments, context)
            case "resources/list":
                return await self._resources(arguments.get("cursor"))
            case "resources/read":
                return await self._read(arguments.get("uri"))

    async def _call_asking(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ServerAnswer:
        """With an ear for what the server asks the person meanwhile."""
        asker = Asker(self._server, context, self._askers)
        self._askers.append(asker)
        _asker.set(asker)
        try:
            answer = await self._call(name, arguments, context.key, context.progress)
        except LinksWanted as wanted:
            raise ErrorAnswer("\n".join((str(wanted), *await self._shown_links(asker, wanted)))) from wanted
        except ErrorAnswer as error:
            raise type(error)("\n".join((str(error), *asker.notes))) from error
        except asyncio.CancelledError:
            self._astray_until = time.monotonic() + self._server.call_s
            raise
        finally:
            self._askers.remove(asker)
        return replace(answer, text="\n".join((answer.text, *asker.notes))) if asker.notes else answer

    async def _shown_links(self, asker: Asker, wanted: LinksWanted) -> Sequence[str]:
        """What the model is told of links that the person has to open before the call can be made."""
        if not self._server.elicitation:
            return ["[It wants the person to open a link. Its declaration does not let it: elicitation = true]"]
        said = []
        for words, url in wanted.links:
            try:
                reply = await asker.reply(words, None, url)
            except ToolFailed:  # the chat has moved on
                break
            if reply.action != "cancel":
                done = (
                    "says that this is done, and the server wants it still"
                    if reply.action == "accept"
                    else "declined"
                )
                said.append(f"[The person {done}.]")
        return [*said, *asker.notes]

    async def asked(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        """By which call: over HTTP its own stream tells, else it is the only one. Of none, or of several, no person
        can be asked; nor of one that was given up: another chat has another person.
        """
        asker = _asker.get()
        if asker is None and len(self._askers) == 1 and time.monotonic() >= self._astray_until:
            asker = self._askers[0]
        if asker is None or asker not in self._askers:
            return mcp_types.ElicitResult(action="cancel")
        schema = params.requested_schema if isinstance(params, mcp_types.ElicitRequestFormParams) else None
        url = params.url if isinstance(params, mcp_types.ElicitRequestURLParams) else None
        try:
            reply = await asker.reply(params.message, schema, url)
        except ToolFailed:  # what it asked could not be kept: the chat has moved on
            return mcp_types.ElicitResult(action="cancel")
        return mcp_types.ElicitResult.model_validate({"action": reply.action, "content": reply.content})

    async def _resources(self, cursor: Any) -> ServerAnswer:
        """A page of them; with the first, the templates."""
        params = mcp_types.PaginatedRequestParams(cursor=cursor if isinstance(cursor, str) else None)
        page = await self._ask(mcp_types.ListResourcesRequest(params=params), mcp_types.ListResourcesResult)
        lines = [_resource_line(one.uri, one) for one in page.resources[:RESOURCES_MAX]]
        if cursor is None:
            templates = await self._templates()
            lines += [_resource_line(f"template {one.uri_template}", one) for one in templates[:RESOURCES_MAX]]
        if page.next_cursor is not None:
            lines.append(f"[there are more: list_resources with cursor {page.next_cursor!r}]")
        text = output_text("\n".join(lines) or "[there are none]", self._server.output_bytes_max)
        return ServerAnswer(text=text)

    async def _templates(self) -> Sequence[mcp_types.ResourceTemplate]:
        request = mcp_types.ListResourceTemplatesRequest(params=mcp_types.PaginatedRequestParams())
        try:
            found = await self._ask(request, mcp_types.ListResourceTemplatesResult)
        except ErrorAnswer:  # many servers have none, and say so with an error
            return ()
        return tuple(found.resource_templates)

    async def _read(self, uri: Any) -> ServerAnswer:
        if not isinstance(uri, str):
            raise ErrorAnswer("a resource is read by its uri, which is a text")
        params = mcp_types.ReadResourceRequestParams(uri=uri)
        result = await self._ask(mcp_types.ReadResourceRequest(params=params), mcp_types.ReadResourceResult)
        contents = [content.model_dump(by_alias=True, mode="json") for content in result.contents]
        blocks = [{"type": "resource", "resource": content} for content in contents]
        return answer_of(blocks, None, self._server.output_bytes_max)

    async def _call(self, name: str, arguments: dict[str, Any], key: str, say: Callable[[str], None]) -> ServerAnswer:

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            done = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            say((message or done)[:PROGRESS_CHARS_MAX])

        meta: Any = {KEY_META: key}
        params = mcp_types.CallToolRequestParams(name=name, arguments=arguments, _meta=meta)
        # Not session.call_tool: that would judge the answer by the server's own schema, on the event loop, with
        # whatever regular expressions it holds.
        result = await self._ask(mcp_types.CallToolRequest(params=params), mcp_types.CallToolResult, progress)
        blocks = [block.model_dump(by_alias=True, mode="json") for block in result.content]
        bytes_max = self._server.output_bytes_max
        return answer_of(blocks, result.structured_content, bytes_max, error=bool(result.is_error))

    async def _ask(self, request: Any, kind: Any, progress: Any = None) -> Any:
        assert self._session is not None
        try:
            return await self._session.send_request(request, kind, progress_callback=progress)
        except MCPError as error:
            raise told(error) from error
        except ValidationError as error:
            raise UnreadableAnswer(f"its answer does not fit the protocol: {error.error_count()} errors") from error


def _resource_line(uri: str, one: mcp_types.Resource | mcp_types.ResourceTemplate) -> str:
    about = " ".join(filter(None, (one.title or one.name, one.description)))[:ABOUT_CHARS_MAX]
    kind = f" ({one.mime_type[:ABOUT_CHARS_MAX]})" if one.mime_type else ""
    return f"{uri}{kind}: {' '.join(about.split())}"


def _listed(tool: mcp_types.Tool) -> Listed:
    hints = tool.annotations
    return Listed(
        name=tool.name,
        description=tool.description or tool.title or "",
        schema=_schema_of(tool),
        read_only=bool(hints is not None and hints.read_only_hint),
        idempotent=bool(hints is not None and hints.idempotent_hint),
    )


def _listed_prompt(prompt: mcp_types.Prompt) -> ListedPrompt:
    return ListedPrompt(
        name=prompt.name,
        description=storable(prompt.description or prompt.title or "")[:DESCRIPTION_MAX],
        arguments=tuple(
            PromptArgument(name=storable(one.name), required=bool(one.required)) for one in prompt.arguments or ()
        ),
    )


def _schema_of(tool: mcp_types.Tool) -> Raw:
    """Of one that is nested too deep only that it is an object: the server judges the arguments anyway."""
    try:
        encoded = msgspec.json.encode(object_schema(tool.input_schema), order="sorted")
    except RecursionError:
        return ANY_OBJECT
    return ANY_OBJECT if is_too_deep(encoded) else Raw(encoded)


@asynccontextmanager
async def connect(
    wire: McpWire, server: McpServer, children: Children | None, login: ServerLogin | None
) -> AsyncIterator[McpWire]:
    """A session, until the block ends. Enter and leave it in the same task; bounded by the caller."""
    opened = program(wire, server, children) if server.command else over_http(wire, server, login)
    async with opened as (read, write):
        asked = wire.asked if server.elicitation else None
        session = ClientSession(
            read, write, message_handler=wire.heard, client_info=_INFO, elicitation_callback=asked
        )
        async with session:
            await wire.shake_hands(session)
            yield wire
