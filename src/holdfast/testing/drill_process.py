"""The process that a `CrashDrill` starts: one turn of one agent, in this folder, told as a line of JSON at its end.

It may be killed at any instant; started again with the same key it goes on with the same chat.
"""

import asyncio
import importlib
import json
import sys
from typing import Any

from holdfast.app import App
from holdfast.chat import Chat
from holdfast.core.updates import TurnView


def load(name: str) -> App:
    module, _, attribute = name.partition(":")
    app = getattr(importlib.import_module(module), attribute or "app")
    if not isinstance(app, App):
        raise TypeError(f"{name} is no App but a {type(app).__name__}")
    return app


async def drive(asked: dict[str, Any]) -> dict[str, Any]:
    app = load(asked["app"])
    app.change(database=asked["database"])
    async with app.worker():
        chat = await app.create(asked["agent"], asked["message"], key=asked["key"])
        turn = await chat.turn(1, timeout_s=asked["timeout_s"])
        while asked["approve"] and any(call.kind == "approval" for call in turn.open):
            for call in turn.open:
                if call.kind == "approval":
                    whole = call if call.whole else await call.read()
                    await whole.approve(by="crash drill")
            turn = await chat.turn(1, timeout_s=asked["timeout_s"])
        view = await as_it_stands(chat)
        return {
            "chat_id": chat.id,
            "state": turn.state,
            "text": turn.partial_text,
            "error": turn.error.message if turn.error is not None else None,
            "calls": [
                {"tool": call.name, "arguments": call.arguments, "state": str(call.state), "result": call.result}
                for call in view.calls
            ],
        }


async def as_it_stands(chat: Chat[Any]) -> TurnView:
    found = TurnView()
    async for update in chat.stream(settled=True):
        found = update.turn
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(drive(json.loads(sys.argv[1])))) + "\n")
