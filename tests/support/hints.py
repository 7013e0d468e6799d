"""Saying something that others are to hear of by a hint."""

from holdfast.core import commands as cmd
from holdfast.store.contract import Store
from tests.support.chats import user
from tests.support.waiting import until


async def say(store: Store, chat_id: str) -> None:
    """A message, and another one if the hint of it could not be sent: it has half a second, the rest is polling's."""
    while True:
        sent, failed = _hints(store)
        await store.submit(chat_id, cmd.Send(message=user()))
        if sent is None:
            return  # this store sends none: others look
        await until(lambda before=(sent, failed): _hints(store) != before)  # type: ignore[misc]
        if _hints(store)[0] != sent:
            return


def _hints(store: Store) -> tuple[object, object]:
    figures = store.stats()
    return figures.get("hints_sent"), figures.get("hints_failed")
