"""Items that a client only names: what they are stands in our chats."""

from collections.abc import Sequence
from typing import Any

from holdfast.core.journal import MessageAdded
from holdfast.core.records import ToolCall
from holdfast.errors import InvalidInput, NotFound
from holdfast.server.openai.history_items import entry_of, rows_back
from holdfast.server.openai.ids import APPROVAL, CALL, parse_call_id, parse_item_id
from holdfast.server.openai.placement import cursor_before
from holdfast.server.owned_app import OwnedApp
from holdfast.store.update_reader import event_of

Item = dict[str, Any]


async def resolved(app: OwnedApp, given: str | Sequence[Item]) -> str | list[Item]:
    """The input, with what it names in place of the names. Raises NotFound."""
    if isinstance(given, str):
        return given
    return [await _resolve(app, f"input[{at}]", item) for at, item in enumerate(given)]


async def _resolve(app: OwnedApp, where: str, item: Item) -> Item:
    if item.get("type") != "item_reference" and (item.get("type") is not None or set(item) != {"id"}):
        return item
    item_id = item.get("id")
    if not isinstance(item_id, str):
        raise InvalidInput(where, "names no item")
    if item_id.startswith(CALL):
        return await _call(app, item_id)
    if item_id.startswith(APPROVAL):
        return {"type": "mcp_approval_request"}
    if item_id.startswith("rs_"):
        return {"type": "reasoning"}
    return await _message(app, item_id)


async def _message(app: OwnedApp, item_id: str) -> Item:
    """The first answer after the entry that its id names."""
    seq, chat_id = parse_item_id(item_id)
    cursor: Any = cursor_before(seq + 1)
    try:
        while True:
            page = await app.store.read_journal(chat_id, cursor)
            for item in page.items:
                entry = event_of(item).body  # what newer code wrote is passed over
                if isinstance(entry, MessageAdded) and entry.attempt is not None and entry.message.text:
                    content = [{"type": "output_text", "text": entry.message.text}]
                    return {"type": "message", "role": "assistant", "content": content}
            cursor = page.cursor
            if not page.more:
                raise NotFound("item", item_id)
    except (NotFound, InvalidInput) as error:
        raise NotFound("item", item_id) from error


async def _call(app: OwnedApp, item_id: str) -> Item:
    call_id, chat_id = parse_call_id(item_id.removeprefix(CALL))
    try:
        end = (await app.chat(chat_id or "").snapshot()).chat.length
        async for row in rows_back(app.store, chat_id or "", end):
            for part in entry_of(row).message.parts:
                if isinstance(part, ToolCall) and part.call_id == call_id:
                    outer = item_id.removeprefix(CALL)
                    named = {"type": "function_call", "call_id": outer, "name": part.name}
                    return {**named, "arguments": part.arguments or "{}"}
    except NotFound as error:
        raise NotFound("item", item_id) from error
    raise NotFound("item", item_id)
