"""A chat's history as items, in pages that are bounded in number and bytes, whatever the messages hold."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.core.codec import decode_entry
from holdfast.core.journal import MessageAdded
from holdfast.core.kept_files import files_in
from holdfast.core.records import Message
from holdfast.errors import InvalidInput
from holdfast.server.openai.ids import ResponsePlace
from holdfast.server.openai.responses import input_items
from holdfast.store.chat_store import ChatStore
from holdfast.store.records import PAGE_BYTES, HistoryRow

PAGE_ROWS = 200

Item = dict[str, Any]


def entry_of(row: HistoryRow) -> MessageAdded:
    entry = decode_entry(row.body)
    assert isinstance(entry, MessageAdded)
    return entry


async def message_of(store: ChatStore, chat_id: str, row: HistoryRow) -> Message:
    """With the bytes of its files, as its client sent them."""
    (message,) = await store.whole_messages(chat_id, (entry_of(row).message,))
    return message


async def messages_of(store: ChatStore, chat_id: str, end: int | None = None) -> list[Message]:
    """Before `end`, with the bytes of all their files, to make another chat of. Raises LimitReached."""
    named = [entry_of(row).message async for row in rows_on(store, chat_id, 0, end)]
    return list(await store.whole_messages(chat_id, named, every=True))


async def rows_on(
    store: ChatStore, chat_id: str, start: int = 0, end: int | None = None
) -> AsyncIterator[HistoryRow]:
    """Before `end`, in order."""
    while end is None or start < end:
        limit = PAGE_ROWS if end is None else min(PAGE_ROWS, end - start)
        rows = await store.read_history(chat_id, start=start, limit=limit, bytes_max=PAGE_BYTES)
        for row in rows:
            if end is not None and row.pos >= end:
                return
            yield row
        if not rows:
            return
        start = rows[-1].pos + 1


async def rows_back(store: ChatStore, chat_id: str, end: int) -> AsyncIterator[HistoryRow]:
    """Before `end`, the last one first. What is read at once shrinks where messages are large."""
    count = 1
    while end > 0:
        start = max(0, end - count)
        rows = await store.read_history(chat_id, start=start, limit=end - start, bytes_max=PAGE_BYTES)
        rows = [row for row in rows if row.pos < end]
        if count > 1 and rows and rows[-1].pos + 1 < end and sum(len(row.body) for row in rows) >= PAGE_BYTES:
            count = max(1, count // 4)
            continue
        for row in reversed(rows):
            yield row
        end = start
        count = min(PAGE_ROWS, count * 2)


async def item_page(
    store: ChatStore, place: ResponsePlace, end: int, *, limit: int, order: str, after: str | None
) -> dict[str, Any]:
    """Of the history before `end`. Raises InvalidInput for a place that is not there."""
    backward = order == "desc"
    page: list[Item] = []
    size, found = 0, after is None
    async for row in rows_back(store, place.chat_id, end) if backward else rows_on(store, place.chat_id, 0, end):
        message = await message_of(store, place.chat_id, row)
        items = list(input_items(place, message))
        for item in reversed(items) if backward else items:
            if not found:
                found = item["id"] == after
            elif len(page) == limit or size >= PAGE_BYTES:
                return listed(page, has_more=True)
            else:
                page.append(item)
        size += len(row.body) + sum(len(file.uri) for file in files_in(message.parts)) if page else 0
    if not found:
        raise InvalidInput("after", "names no item that is here")
    return listed(page, has_more=False)


def listed(page: Sequence[Item], *, has_more: bool) -> dict[str, Any]:
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": has_more}
