"""A tool server of our own, by the SDK, as a real process: tools that are slow, fail, talk and flood on command.

    python -m tests.support.mcp_server stdio
    python -m tests.support.mcp_server http PORT     0: any free one; prints its URL

`--log FILE` writes a line for each call that begins, ends or is cancelled. `--chatty` prints nonsense on standard
output and a megabyte on standard error before it serves.
"""

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError
from mcp_types import CallToolResult, ElicitRequestURLParams, TextContent, ToolAnnotations
from pydantic import BaseModel

server = MCPServer("tests", log_level="CRITICAL")
note: list[Path] = []
READ_ONLY = ToolAnnotations(read_only_hint=True)


def log(line: str) -> None:
    for path in note:
        with path.open("a") as file:
            file.write(f"{line}\n")


@server.tool()
async def echo(text: str) -> str:
    """Say it again."""
    log(f"echo {text}")
    return text


@server.tool()
async def pid() -> str:
    return str(os.getpid())


@server.tool()
async def env(name: str) -> str:
    return os.environ.get(name, "not set")


@server.tool()
async def hang(name: str) -> str:
    """Until somebody ends it."""
    log(f"hang {name}")
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        log(f"cancelled {name}")
        raise
    raise AssertionError


@server.tool(annotations=READ_ONLY)
async def dies_once(path: str) -> str:
    """Ends the process, unless it did so before."""
    log("dies_once")
    if Path(path).exists():
        return "alive"
    Path(path).touch()
    os._exit(3)


@server.tool()
async def dies() -> str:
    log("dies")
    os.write(2, b"my last words")
    os._exit(3)


@server.tool()
async def fails() -> str:
    raise ValueError("it went wrong")


@server.tool()
async def refuses(code: int, words: str) -> str:
    """Answers with an error of this code, after it did what it does."""
    log(f"refuses {code}")
    raise MCPError(code=code, message=words)


@server.tool()
async def steps(context: Context[Any, Any]) -> str:
    for n in (1, 2, 3):
        await context.report_progress(n, 3, f"step {n}")
    return "all done"


@server.tool()
async def huge(size: int) -> str:
    return "a" + "x" * (size - 2) + "z"


class Point(BaseModel):
    x: int
    y: int


@server.tool(structured_output=True)
async def point() -> Point:
    return Point(x=1, y=2)


@server.tool(structured_output=False)
async def only_structured() -> CallToolResult:
    return CallToolResult(content=[], structured_content={"answer": 42})


@server.tool(structured_output=False)
async def picture() -> list[Any]:
    return [TextContent(type="text", text="look:"), Image(data=b"\x89PNG" * 10, format="png")]


PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10


@server.tool(structured_output=False)
async def photo() -> list[Any]:
    return [TextContent(type="text", text="see:"), Image(data=PNG, format="jpeg")]


@server.resource("notes://today")
async def today() -> str:
    """What is on today."""
    return "rain"


@server.resource("notes://{day}/photo", mime_type="image/png")
async def of_day(day: str) -> bytes:
    return PNG


class Seat(BaseModel):
    row: int
    window: bool = False


@server.tool()
async def book(flight: str, context: Context[Any, Any]) -> str:
    """Book a seat; asks which."""
    log(f"book {flight}")
    answer = await context.elicit(f"Which seat on {flight}?", Seat)
    if answer.action != "accept":
        return f"not booked: {answer.action}"
    return f"booked row {answer.data.row}, window {answer.data.window}"


@server.tool()
async def trip(context: Context[Any, Any]) -> str:
    """Asks for two seats, one after the other."""
    rows = []
    for way in ("out", "back"):
        answer = await context.elicit(f"Which seat on the way {way}?", Seat)
        if answer.action != "accept":
            return f"no trip: {answer.action} on the way {way}"
        rows.append(str(answer.data.row))
    log(f"trip {' '.join(rows)}")
    return f"rows {' and '.join(rows)}"


class Name(BaseModel):
    name: str


@server.tool()
async def greet(context: Context[Any, Any]) -> str:
    """Takes any text for an answer."""
    answer = await context.elicit("Who are you?", Name)
    return f"hello {answer.data.name}" if answer.action == "accept" else f"nobody: {answer.action}"


@server.tool()
async def hold(context: Context[Any, Any]) -> str:
    """Asks, does it, and never answers."""
    answer = await context.elicit("Who are you?", Name)
    if answer.action != "accept":
        return f"not held: {answer.action}"
    log(f"held {answer.data.name}")
    await anyio.sleep_forever()
    raise AssertionError


@server.tool()
async def strict(context: Context[Any, Any]) -> str:
    """One that has an error for who gives no answer."""
    answer = await context.elicit("Which seat?", Seat)
    if answer.action != "accept":
        raise MCPError(code=-32000, message="no seat was chosen")
    return f"row {answer.data.row}"


@server.tool()
async def linked(path: str) -> str:
    """One that wants the person to have been at a page of its own."""
    if not Path(path).exists():
        link = ElicitRequestURLParams(
            message="Connect your account", url="https://accounts.example/connect", elicitation_id="1"
        )
        raise UrlElicitationRequiredError([link])
    return "connected"


@server.prompt()
async def review(what: str, how: str = "well") -> str:
    """Look at it."""
    return f"Review {what}, and do it {how}."


@server.tool()
async def grow(context: Context[Any, Any]) -> str:
    """A new tool appears."""

    async def grown() -> str:
        return "I am new"

    server.add_tool(grown, name="grown")
    await context.session.send_tool_list_changed()
    return "grown"


@server.tool(name="odd name/with signs that go on and on and on and on and on and on")
async def odd() -> str:
    return "odd"


async def serve_http(port: int) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)  # noqa: T201  it is a program
    config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("port", nargs="?", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--chatty", action="store_true")
    given = parser.parse_args()
    if given.log is not None:
        note.append(given.log)
    log(f"up {os.getpid()}")
    if given.chatty:
        sys.stdout.write("Starting up!\n{not json}\n\n")
        sys.stderr.write("noise " * 200_000)
        sys.stdout.flush()
    if given.mode == "http":
        asyncio.run(serve_http(given.port))
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
