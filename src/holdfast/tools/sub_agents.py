"""Sub-agents: a child chat per task. A parent that waits for one holds no worker, no lease and polls nothing.

`spawn_agent` makes the child in the transaction that answers the call; `wait_agent` hands its call to the child. The
child's end and the parent's wake are one transaction, whichever comes first, the end or the wait. What
`message_agent` says and what `cancel_agent` stops is in the transaction that answers the call, too; neither reaches a
chat that is not a child of this one.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.codec import storable
from holdfast.core.records import External, Message, NewChat, Role, Text
from holdfast.errors import ConfigError, ToolFailed
from holdfast.ids import new_id
from holdfast.tools.base import Delegation, ListChildren, Spawned, ToChild, Tool
from holdfast.tools.context import ToolContext
from holdfast.tools.outside import does_nothing, outside

LISTED_MAX = 32


def agent_tools(agents: Sequence[str], *, expires_s: float | None = None) -> list[Tool]:
    """`spawn_agent` for the named agents of the same app, and `wait_agent`, `message_agent`, `list_agents` and
    `cancel_agent` for those that were spawned.
    """
    if not agents:
        raise ConfigError("agent_tools needs the name of at least one agent")
    return [_spawn_tool(tuple(agents)), _wait_tool(expires_s), _message_tool(), _list_tool(), _cancel_tool()]


def _spawn_tool(agents: tuple[str, ...]) -> Tool:
    def spawn_agent(agent: str, task: str) -> None: ...

    spawn_agent.__annotations__["agent"] = Literal[agents]

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Spawned:
        task = _said(arguments["task"], now)
        child = NewChat(id=new_id("chat"), agent=arguments["agent"], owner=context.owner, message=task)
        return Spawned(content=msgspec.json.encode({"agent_id": child.id}).decode(), spawn=child)

    text = (
        f"Give a task to another agent ({', '.join(agents)}), which works on it while you go on. "
        "Returns its agent_id; wait_agent returns its answer."
    )
    return outside(spawn_agent, text, delegate)


def _wait_tool(expires_s: float | None) -> Tool:
    def wait_agent(agent_id: str, turn: int | None = None) -> None: ...

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> Delegation:
        expires_at = None if expires_s is None else now + int(expires_s * 1000)
        return Delegation(
            external=External.CHILD,
            child_id=storable(arguments["agent_id"]),
            child_turn=_turn(arguments.get("turn")),
            expires_at=expires_at,
        )

    text = (
        "Wait for an agent that you spawned, and return its answer. Several can be waited for at once. "
        "With the turn that message_agent told: for the answer to that message."
    )
    return does_nothing(outside(wait_agent, text, delegate))


def _message_tool() -> Tool:
    def message_agent(agent_id: str, message: str, mode: Literal["queue", "steer"] = "queue") -> None: ...

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> ToChild:
        said = _said(arguments["message"], now)
        return ToChild(child_id=storable(arguments["agent_id"]), message=said, mode=arguments.get("mode", "queue"))

    text = (
        "Say something to an agent that you spawned. One that rests begins to work on it at once. One that works "
        "takes it when it is done (queue), or at its next step (steer), to correct its course. Returns the turn that "
        "takes it: wait_agent with that turn returns the answer."
    )
    return outside(message_agent, text, delegate)


def _list_tool() -> Tool:
    def list_agents() -> None: ...

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> ListChildren:
        return ListChildren(limit=LISTED_MAX)

    text = (
        f"The agents that you spawned: the {LISTED_MAX} that work or were spawned last, with what each works on, "
        "what it answered last, and what its turn took."
    )
    return does_nothing(outside(list_agents, text, delegate))


def _cancel_tool() -> Tool:
    def cancel_agent(agent_id: str) -> None: ...

    def delegate(arguments: dict[str, Any], context: ToolContext, now: int) -> ToChild:
        return ToChild(child_id=storable(arguments["agent_id"]))

    text = (
        "Stop an agent that you spawned, and all agents below it. What they have done stays done. Returns what it "
        "was doing and its state now: stopping until what runs in it has ended, then idle. It can be given another "
        "message."
    )
    return does_nothing(outside(cancel_agent, text, delegate))


def _said(text: str, now: int) -> Message:
    return Message(id=new_id("msg"), role=Role.USER, parts=(Text(text=storable(text)),), created_at=now)


def _turn(turn: int | None) -> int | None:
    if turn is not None and not 0 < turn < 1 << 53:
        raise ToolFailed(f"there is no turn {turn}: give the one that message_agent told, or none")
    return turn
