"""A worker's part in renewing a login, as a program: `mcp_renewer.py HOME URL`, then a line from us lets it begin."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from holdfast.mcp_servers import McpServer
from holdfast.redaction import Secrets
from holdfast.tools.mcp.connection import LoginPlace
from holdfast.tools.mcp.logins import ServerLogin


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


async def main() -> None:
    home, url = sys.argv[1:]
    login = ServerLogin(McpServer("t", url=url), LoginPlace(home, Secrets()), at_once)
    used = await login.bearer()
    print("ready", flush=True)  # noqa: T201  it is a program
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    try:
        print(await login.renewed(used), flush=True)  # noqa: T201
    except Exception as error:  # noqa: BLE001  whatever it is, the test wants to see it
        print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
