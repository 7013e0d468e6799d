"""The children of a held chat: whether there may be one more at work, and what its model is told of them."""

from typing import Any

from holdfast.core.codec import encode
from holdfast.core.states import AT_REST
from holdfast.errors import NotFound, RecordError
from holdfast.store.sub_agents import SubAgent
from holdfast.worker.held_chat import HeldChat
from holdfast.worker.tool_body import Returned


class Children:
    def __init__(self, held: HeldChat) -> None:
        self._held = held

    async def why_not_one_more(self) -> str | None:
        """What the model is told if this chat may not have one more child now."""
        held = self._held
        limits, chat = held.shared.store.options.limits, held.snapshot.chat
        if chat.depth >= limits.depth_max:
            return f"Sub-agents can be nested {limits.depth_max} deep, and this is one at that depth: do it yourself."
        counts = await held.shared.store.count_children(chat)
        if counts.open >= limits.children_open_max:
            return f"{counts.open} of your agents are at work, which is the limit: wait for one of them first."
        if counts.this_turn >= limits.children_per_turn_max:
            return f"You spawned {counts.this_turn} agents in this turn, which is the limit: do the rest yourself."
        if counts.open_in_family >= limits.family_open_max:
            return (
                f"{counts.open_in_family} agents are at work in this conversation, which is the limit: "
                "wait for some of them, or do it yourself."
            )
        return None

    async def why_not_wake(self, child_id: str) -> str | None:
        """What it is told if a child that rests may not begin to work now. One that works takes what it is told."""
        store, chat = self._held.shared.store, self._held.snapshot.chat
        open_ones = (await store.count_children(chat)).open
        if open_ones < store.options.limits.children_open_max:
            return None
        try:
            child = (await store.read_chat(child_id)).chat
        except (NotFound, RecordError):
            return None  # what it is to this chat is told by the transaction
        if child.parent_id != chat.id or child.state not in AT_REST:
            return None
        return f"{open_ones} of your agents are at work, which is the limit: wait for one of them first."

    async def listing(self, limit: int) -> Returned:
        found = await self._held.shared.store.sub_agents(self._held.chat_id, limit=limit)
        text = encode([_told(child) for child in found]).decode()
        return Returned(content=text, untrusted=any(child.tainted for child in found))


def _told(child: SubAgent) -> dict[str, Any]:
    """As the model reads it: what says nothing is left out."""
    told = {
        "agent_id": child.chat_id,
        "agent": child.agent,
        "state": child.state,
        "turn": child.turn,
        "works_on": child.task if child.state not in AT_REST else "",
        "queued": child.queued,
        "last_answer": child.answer,
        "cut_short": child.cause,
        "error": child.error,
        "tokens": child.tokens,
        "cost": child.cost,
    }
    return {name: value for name, value in told.items() if value}
