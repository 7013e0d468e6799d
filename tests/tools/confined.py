"""Tools with a sandbox, and a program that uses one.

python -m tests.tools.confined ROOT           where there can be none: what is asked, denied and run
python -m tests.tools.confined ROOT MARK      runs a command that cleared its environment, until it is killed
"""

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Agent, App, Sandbox, Tool, ToolContext, ToolFailed, shell_tool, tool
from holdfast.core.records import State
from holdfast.models.scripted import Call, ScriptedModel
from holdfast.system import sandbox
from holdfast.system.landlock import landlock_abi
from holdfast.tools.context import enter
from holdfast.worker.guard import Guard
from tests.support.turns import rested, said
from tests.support.waiting import until


@tool(isolation="process", sandbox=Sandbox())
def look(path: str, note: str = "") -> dict[str, object]:
    """What is there."""
    reached = wrote = False
    with suppress(OSError), socket.create_connection(("192.0.2.1", 9), timeout=5.0):
        reached = True
    with suppress(OSError):
        Path("file").write_text("x")
        wrote = True
    with suppress(OSError):
        Path(path).write_text("overwritten")
        wrote = False
    pids = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return {"note": note, "cwd": str(Path.cwd()), "network": reached, "wrote": wrote, "pids": pids}


async def run_until_killed(root: str, mark: str) -> None:
    guard = Guard()
    guard.start()
    await until(lambda: guard.alive)  # as that of a worker is, long before its first tool
    enter(ToolContext(children=guard))
    shell = shell_tool(root=root, sandbox=Sandbox())
    work = asyncio.ensure_future(shell(command=f"setsid env -i sleep {mark}"))
    await until(lambda: guard.group_count)
    print("the guard knows", flush=True)  # noqa: T201
    await work


async def without(root: str) -> None:
    problem = sandbox.problem()
    assert problem is not None
    assert problem.startswith("namespaces cannot be made: ")
    shell = shell_tool(root=root, sandbox=Sandbox())
    for unasked in (shell(command="touch bare"), _run(look)):
        with pytest.raises(ToolFailed, match="no person agreed"):
            await unasked
    command = "touch bare; ls /sys; ls /var; ls ~; python3 -c 'import socket; socket.socket()'; mktemp"
    call = [Call(name="shell", arguments={"command": command})]
    agent = Agent("dev", ScriptedModel(call, "Denied.", call, "Done."), tools=[shell])
    async with App(agents=[agent], home=f"{root}/home") as app, app.worker():
        denied = await app.create("dev", "go", metadata={"unattended": True})
        assert await rested(denied) is State.IDLE
        (told,) = [text for role, text in said(await denied.messages()) if role == "tool"]
        assert "no person is there to be asked" in told
        chat = await app.create("dev", "go")
        assert await rested(chat) is State.WAITING
        (asked,) = (await chat.snapshot()).open_calls
        assert asked.question is not None
        assert f"has to run in a sandbox, which this system does not give ({problem})" in asked.question
        part = landlock_abi() > 0
        assert ("a part of it" if part else "It would run without.") in asked.question
        assert not (Path(root) / "bare").exists()
        await chat.approve(asked.id, by="ada")
        while await chat.state() is not State.IDLE:
            await rested(chat)
        texts = [text for role, text in said(await chat.messages()) if role == "tool"]
    assert (Path(root) / "bare").exists()
    if part:
        assert texts[0].count("Permission denied") == 3, texts[0]
        assert "Address family not supported" in texts[0]
    assert '"wrote":true' in await _run(look, approved=True)
    print("all was as it should be")  # noqa: T201


async def _run(isolated: Tool, *, approved: bool = False) -> str:
    assert isolated.elsewhere is not None
    return str(await isolated.elsewhere({"path": "/sys/new", "note": ""}, ToolContext(approved=approved)))


if __name__ == "__main__":
    asyncio.run(run_until_killed(*sys.argv[1:]) if len(sys.argv) > 2 else without(sys.argv[1]))
