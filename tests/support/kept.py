"""Calls that offer rules, and rules that were kept, by a worker that does nothing on its own."""

from typing import Any

from holdfast.core import commands as cmd
from holdfast.core.records import KeptRule
from holdfast.store.contract import Store
from tests.support.chats import Hand, call, new_chat, unique

PAY = "allow call(pay)"


async def asking(
    store: Store,
    *rules: str,
    owner: str = "ada",
    agent: str = "agent",
    chat_id: str | None = None,
    hand: Hand | None = None,
) -> tuple[str, str]:
    """A chat that waits for a person, and its call, which offers these rules."""
    chat_id, call_id = chat_id or unique("chat"), unique("call")
    hand = hand or Hand(store)
    await store.create_chat(new_chat(id=chat_id, owner=owner, agent=agent))
    hand.snapshot = next(found for found in await hand.claim(agent) if found.chat.id == chat_id)
    await hand.respond(call(call_id, "pay"), start=False)
    asked = cmd.AskApproval(by=hand.by, call_id=call_id, question="Pay?", offer=rules)
    await hand.commit(asked, cmd.Park(by=hand.by))
    return chat_id, call_id


async def keep(store: Store, *rules: str, always: Any = "owner", by: str = "ann", **chat: Any) -> list[KeptRule]:
    """These rules, kept by the approval of a call of a new chat. Newest first, as they are listed."""
    chat_id, call_id = await asking(store, *(rules or (PAY,)), **chat)
    await store.submit(chat_id, cmd.Approve(call_id=call_id, by=by, always=always))
    return [rule for rule in await store.kept_rules.page() if rule.call_id == call_id]


async def finish(hand: Hand, chat_id: str, call_id: str) -> None:
    """The approved call runs, and the chat comes to rest."""
    await hand.take(chat_id)
    await hand.commit(cmd.StartCalls(by=hand.by, call_ids=(call_id,)))
    await hand.finish(call_id)
    await hand.end_turn()
