"""Prompts of MCP servers as slash commands: `/server:prompt arguments`, asked for where the message is accepted.

By a worker of this process, over the connection that its chats share. Where there is none, or the server is away, the
sender is told, and nothing is written.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.agent import Agent
from holdfast.errors import SlashCommandFailed, ToolFailed
from holdfast.slash_commands import Expanded, SlashCommand, expansion
from holdfast.tools.mcp.connection import Link
from holdfast.tools.mcp.prompts import arguments_of
from holdfast.worker.tool_servers import ToolServers

PROMPT_S = 30.0  # for one, with a connection that is made first


class ServerPrompts:
    """`servers`: of the workers that run in this process now."""

    def __init__(self, servers: Callable[[], Sequence[ToolServers]]) -> None:
        self._servers = servers

    async def slash_commands(self, agent: Agent[Any]) -> Sequence[SlashCommand]:
        """What the servers offer that were reached; those that were never tried are tried, all at once."""
        links = [link for server in agent.servers if (link := self._link(agent, server.name)) is not None]
        waiting = [asyncio.ensure_future(link.settled()) for link in links]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=PROMPT_S)
            for task in late:
                task.cancel()
        return [
            SlashCommand(
                name=f"{link.server.name}:{prompt.name}",
                description=prompt.description,
                argument_hint=prompt.hint,
                source="prompt",
            )
            for link in links
            for prompt in link.prompts
        ]

    async def expand(self, agent: Agent[Any], name: str, arguments: str) -> Expanded | None:
        server, colon, prompt_name = name.partition(":")
        if not colon or not any(one.name == server and one.prompts for one in agent.servers):
            return None
        link = self._link(agent, server)
        if link is None:
            raise SlashCommandFailed(
                name, "no worker runs in this process, and a server is asked by one: try it where one does"
            )
        try:
            async with asyncio.timeout(PROMPT_S):
                return await self._asked(link, name, prompt_name, arguments)
        except TimeoutError:
            raise SlashCommandFailed(
                name, f"{server} gave no answer within {PROMPT_S:g} s; try again later"
            ) from None
        except ToolFailed as error:
            raise SlashCommandFailed(name, str(error)) from error

    async def _asked(self, link: Link, name: str, prompt_name: str, arguments: str) -> Expanded:
        await link.settled()
        found = next((prompt for prompt in link.prompts if prompt.name == prompt_name), None)
        if found is None:
            why = "it has no such prompt" if link.state == "ready" else f"it is {link.absence()}"
            raise SlashCommandFailed(name, f"of MCP server {link.server.name!r}: {why}")
        answer = await link.prompt(found.name, arguments_of(found, arguments))
        return Expanded(parts=(expansion(name, "prompt", answer.text), *answer.files))

    def _link(self, agent: Agent[Any], server: str) -> Link | None:
        for servers in self._servers():
            if (link := servers.link(agent, server)) is not None:
                return link
        return None
