"""The tool servers of a worker: one connection to each, shared by its chats, opened on first use, closed with it."""

import asyncio
from collections.abc import Iterable

from holdfast.agent import Agent
from holdfast.errors import ConfigError
from holdfast.mcp_servers import McpServer
from holdfast.system.processes import Children
from holdfast.tools.base import Tool
from holdfast.tools.mcp.connection import Link, LoginPlace, RunSync


class ToolServers:
    def __init__(self, agents: Iterable[Agent], run_sync: RunSync, logins: LoginPlace | None = None) -> None:
        self._servers: dict[str, McpServer] = {}
        self._links: dict[str, Link] = {}
        self._children: Children | None = None
        self._run_sync = run_sync
        self._logins = logins
        for agent in agents:
            for server in agent.servers:
                if self._servers.setdefault(server.name, server) != server:
                    raise ConfigError(f"two MCP servers are named {server.name!r}: give one of them another name")

    def guard(self, children: Children) -> None:
        """From now on, what is started is started under this guard."""
        self._children = children

    @property
    def links(self) -> list[Link]:
        """From any thread: those that were used."""
        return list(self._links.values())

    async def tools(self, agent: Agent) -> dict[str, Tool]:
        """What its servers offer now. Waits only for those that were never tried, all at once."""
        links = self._of(agent)
        await asyncio.gather(*(link.settled() for link in links))
        return {name: tool for link in links for name, tool in link.tools.items()}

    def absence(self, agent: Agent, name: str) -> str | None:
        """Why a tool of this name is not there, if it is one of a server's that is away."""
        for link in self._of(agent):
            if name.startswith(link.server.prefix) and link.state != "ready":
                return f"{name} belongs to MCP server {link.server.name!r}, which is {link.absence()}."
        return None

    def link(self, agent: Agent, server: str) -> Link | None:
        """To that server, if this agent has it, and it is one of this worker's."""
        mine = (one for one in agent.servers if one.name == server and self._servers.get(server) == one)
        found = next(mine, None)
        return None if found is None else self._link(found)

    async def close(self) -> None:
        """Bounded, all at once."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    def _of(self, agent: Agent) -> list[Link]:
        return [self._link(server) for server in agent.servers]

    def _link(self, server: McpServer) -> Link:
        if server.name not in self._links:
            self._links[server.name] = Link(self._servers[server.name], self._children, self._run_sync, self._logins)
        return self._links[server.name]
