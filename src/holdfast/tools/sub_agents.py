"""Sub-agents: a child chat per task. A parent that waits for one holds no worker, no lease and polls nothing.

`spawn_agent` makes the child in the transaction that answers the call; `wait_agent` hands its call to the child. The
child's end and the parent's wake are one transaction, whichever comes first, the end or the wait.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.codec import storable
from holdfast.core.records import External, Message, NewChat, Role, Text
from holdfast.errors import ConfigError
from holdfast.ids import new_id
from holdfast.tools.base import Delegation, Spawned, Tool
from holdfast.tools.context import ToolContext
from holdfast.tools.outside import does_nothing, outside


def agent_tools(agents: Sequence[str], *, expires_s: float | None = None) -> list[Tool]:
    """`spawn_agent` and `wait_agent` for the named agents of the same app."""
    if not agents:
        raise ConfigError("agent_tools needs the name of at least one agent")
    return [_spawn_tool(tuple(agents)), _wait_tool(expires_s)]


def _spawn_tool(agents: tuple[str, ...]) -> Tool:
    def spawn_agent(agent: str, task: str) -> None: ...

    spawn_agent.__annotations__["agent"] = Literal[agents]

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Spawned:
        task = Message(
            id=new_id("msg"), role=Role.USER, parts=(Text(text=storable(arguments["task"])),), created_at=now
        )
        child = NewChat(id=new_id("chat"), agent=arguments["agent"], owner=context.owner, message=task)
        return Spawned(content=msgspec.json.encode({"agent_id": child.id}).decode(), spawn=child)

    text = (
        f"Give a task to another agent ({', '.join(agents)}), which works on it while you go on. "
        "Returns its agent_id; wait_agent returns its answer."
    )
    return outside(spawn_agent, text, delegate)


def _wait_tool(expires_s: float | None) -> Tool:
    def wait_agent(agent_id: str) -> None: ...

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Delegation:
        expires_at = None if expires_s is None else now + int(expires_s * 1000)
        return Delegation(external=External.CHILD, child_id=storable(arguments["agent_id"]), expires_at=expires_at)

    text = "Wait for an agent that you spawned, and return its answer. Several can be waited for at once."
    return does_nothing(outside(wait_agent, text, delegate))
