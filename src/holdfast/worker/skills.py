"""The skills of a held chat: what its model is told of them and can call, and what those that are active leave of its
tools. Folders are looked at once in each turn; what was activated is in the history, and asked of nothing else.
"""

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.records import Frozen, Snapshot
from holdfast.core.skill_texts import SKILL_SOURCE, SKILL_TOOL, ActiveSkill, activations, active_skills, is_bound
from holdfast.skills.allowed_tools import Narrowing, has_lists
from holdfast.skills.shelf import Catalogue
from holdfast.skills.tools import skill_tools
from holdfast.tools.base import Tool
from holdfast.tools.permissions.acts import Read

if TYPE_CHECKING:
    from holdfast.worker.held_chat import HeldChat

SPAWNER = "spawn_agent"


class _Found(Frozen):
    """What a turn began with."""

    place: tuple[int, int]  # turn and epoch
    catalogue: Catalogue
    project: str  # of AGENTS.md


class HeldSkills:
    def __init__(self, held: "HeldChat") -> None:
        self._held = held
        self._found: _Found | None = None
        self._scanned: tuple[int, int, int] | None = None  # turn, epoch, and the position up to which it was looked
        self._activated: list[tuple[int, ActiveSkill]] = []  # in that turn, by position
        self._called: frozenset[str] = frozenset()  # by people, in that turn
        self._left: tuple[str, ...] | None = None  # of the agent's tools, by chat and turn; None: all

    async def tools(self) -> dict[str, Tool]:
        held = self._held
        if held.agent.shelf is None:
            return {}
        found, called = await self._look(), await self.called()
        asked = await held.history.terms(held.snapshot)
        limits = (held.snapshot.chat.active_tools, asked.terms.active_tools if asked is not None else None)
        given = [frozenset(names) for names in limits if names is not None]
        self._left = tuple(sorted(frozenset.intersection(*given))) if given else None
        shown = active_skills(held.history.summary, held.history.in_view())
        return skill_tools(
            found.catalogue, self._active, self._agent_for, called, shown, self._forbidden, self._tools_for
        )

    async def told(self) -> str:
        """AGENTS.md, and the catalogue where the model can call something of it."""
        held = self._held
        if held.agent.shelf is None and held.agent.agents_md is None:
            return ""
        found = await self._look()
        offered = held.agent.shelf is not None and SKILL_TOOL in await held.tools()
        pieces = (found.project, found.catalogue.told(await self.called()) if offered else "")
        return "\n\n".join(piece for piece in pieces if piece)

    async def narrowing(self, before: int) -> Narrowing:
        """By the skills that were activated in this turn before a history position: for the calls of a response, that
        of the response. So a call beside an activation is not judged by chance.
        """
        await self._scan(self._held.snapshot, before)
        return Narrowing([skill for pos, skill in self._activated if pos < before])

    async def _look(self) -> _Found:
        held = self._held
        place = held.snapshot.chat.turn, held.snapshot.chat.epoch
        if self._found is None or self._found.place != place:
            agent = held.agent
            self._found = _Found(
                place=place,
                catalogue=await agent.shelf.catalogue() if agent.shelf is not None else Catalogue(),
                project=await agent.agents_md.text() if agent.agents_md is not None else "",
            )
        return self._found

    async def called(self) -> frozenset[str]:
        """Skills that people called in this turn: in the message that began it, or in one that steers it."""
        snapshot = self._held.snapshot
        if self._held.agent.shelf is not None:
            await self._scan(snapshot, snapshot.calls[0].pos if snapshot.open_calls else snapshot.chat.length)
        return self._called

    async def called_are_gone(self) -> bool:
        """None of those that people called in this turn is there any more: then the model is to call no other."""
        called = await self.called()
        return bool(called) and called.isdisjoint((await self._look()).catalogue.skills)

    def _active(self) -> dict[str, ActiveSkill]:
        """Those whose text need not be shown again. Lists of tools count in the turn of an activation: one that has
        them is activated anew in each.
        """
        history = self._held.history
        now = {skill.name for _, skill in self._activated if not is_bound(skill.text)}
        found = active_skills(history.summary, history.in_view())
        return {name: skill for name, skill in found.items() if name in now or not has_lists(skill)}

    def _forbidden(self, path: str) -> str | None:
        """The files of a skill are read in every mode, but not over a rule."""
        found = self._held.rulebook.judge([Read(path=path)])
        return None if found.ruling == "allow" or found.by_mode else found.refusal

    def _agent_for(self, name: str | None) -> str:
        """Another agent runs a skill only where this one may spawn it: a skill widens nothing."""
        own, spawner = self._held.snapshot.chat.agent, self._held.agent.offered(self._left).get(SPAWNER)
        if name is None or spawner is None:
            return own
        known = msgspec.json.decode(bytes(spawner.schema)).get("properties", {}).get("agent", {})
        return name if name in known.get("enum", [known.get("const")]) else own

    def _tools_for(self, agent: str) -> tuple[str, ...] | None:
        """Nor has the agent itself more tools in the chat of a skill that forks than it has here."""
        return self._left if agent == self._held.snapshot.chat.agent else None

    async def _scan(self, snapshot: Snapshot, end: int) -> None:
        """Each message of the turn is looked at once."""
        chat = snapshot.chat
        if self._scanned is None or self._scanned[:2] != (chat.turn, chat.epoch):
            self._scanned, self._activated = (chat.turn, chat.epoch, chat.turn_from), []
            self._called = frozenset()
        start = self._scanned[2]
        for message in await self._held.history.between(snapshot, start, end):
            self._activated += [(start, skill) for skill in activations((message,))]
            called = [part for part in message.expansions if part.source == SKILL_SOURCE]
            self._called |= {part.name for part in called if not is_bound(part.text)}
            start += 1
        self._scanned = chat.turn, chat.epoch, start
