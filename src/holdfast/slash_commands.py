"""Slash commands: what a person calls with `/name arguments` at the beginning of a message.

A message is expanded once, where it is accepted, in the process that has its agent: what the command stands for is
stored beside what the person typed, as parts of the message. So no crash, deploy or changed file alters what the
model saw. A text that names no slash command is an ordinary message, and so is one with a space before its `/`.

This is the seam, and knows neither skills nor tool servers: a source lists its slash commands and expands them. (A
plain "command" is what goes into the core.)
"""

import asyncio
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.core.records import Expansion, File, Frozen, Message, Role, Sampling, Text
from holdfast.errors import SlashCommandFailed
from holdfast.log_context import logger

log = logger("holdfast.slash_commands")

EXPAND_S = 40.0  # a source bounds what it does itself, and better; this is for one that does not
LISTED_MAX = 500
_CALLED = re.compile(r"/(\S{1,200})(?:\s+(.*))?", re.DOTALL)

SlashSourceName = Literal["skill", "prompt"]


class SlashCommand(Frozen):
    """One that an agent has: `/name`, and what comes after it."""

    name: str
    description: str
    argument_hint: str = ""
    source: SlashSourceName


class Expanded(Frozen):
    """What a slash command stands for. `tool_choice`: the tool that the first response is to call."""

    parts: tuple[Expansion | File, ...]
    tool_choice: str | None = None


class SlashSource(Protocol):
    """Where slash commands come from. Both methods bound what they wait for, and do no work on the event loop."""

    async def slash_commands(self, agent: Agent[Any]) -> Sequence[SlashCommand]:
        """Those that it has for this agent now. One whose origin is away is left out."""

    async def expand(self, agent: Agent[Any], name: str, arguments: str) -> Expanded | None:
        """None: it has none of that name. Raises SlashCommandFailed, with what to do about it."""


class SlashCommands:
    """Those of all sources; where two have one name, the earlier source's counts."""

    def __init__(self, *sources: SlashSource) -> None:
        self.sources: list[SlashSource] = list(sources)

    async def listed(self, agent: Agent[Any]) -> list[SlashCommand]:
        """By name. A source that fails, or is late, has none, and the log says so."""
        found: dict[str, SlashCommand] = {}
        for source in self.sources:
            try:
                async with asyncio.timeout(EXPAND_S):
                    offered = await source.slash_commands(agent)
            except Exception as error:  # noqa: BLE001  whatever a source brings, the others are listed
                extra = {"action": "slash_commands.unlisted", "error": f"{type(error).__name__}: {error}"}
                log.warning("the slash commands of a source cannot be listed", extra=extra)
                continue
            for command in offered:
                found.setdefault(command.name, command)
        return [found[name] for name in sorted(found)][:LISTED_MAX]

    async def expanded(self, agent: Agent[Any], message: Message) -> Message:
        """With what its slash command stands for, if it calls one. Raises SlashCommandFailed."""
        called = called_in(message)
        if called is None:
            return message
        name, arguments = called
        for source in self.sources:
            try:
                async with asyncio.timeout(EXPAND_S):
                    expanded = await source.expand(agent, name, arguments)
            except TimeoutError as error:
                raise SlashCommandFailed(name, f"it took longer than {EXPAND_S:g} s; try again later") from error
            if expanded is not None:
                return _joined(message, expanded)
        return message


def called_in(message: Message) -> tuple[str, str] | None:
    """The name and the arguments of what a user message calls; None: nothing, or it is expanded already."""
    first = message.parts[0] if message.parts else None
    if message.role is not Role.USER or not isinstance(first, Text) or not first.text.startswith("/"):
        return None
    if message.expansions or (match := _CALLED.fullmatch(first.text)) is None:
        return None
    return match[1], (match[2] or "").strip()


def expansion(name: str, source: SlashSourceName, text: str) -> Expansion:
    return Expansion(name=name, source=source, text=text, digest=digest_of(text))


def digest_of(text: str) -> str:
    """Names a text that a model was shown."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _joined(message: Message, expanded: Expanded) -> Message:
    sampling = message.sampling
    if expanded.tool_choice is not None and (sampling is None or sampling.tool_choice is None):
        sampling = replace(sampling or Sampling(), tool_choice=expanded.tool_choice)
    first, *others = message.parts
    return replace(message, parts=(first, *expanded.parts, *others), sampling=sampling)
