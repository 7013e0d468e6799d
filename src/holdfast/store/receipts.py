"""Receipts: the answer that a client's call got, kept under its key, so that the same call is done once."""

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.core.change import Change
from holdfast.core.codec import encode
from holdfast.core.commands import Rename, Send, Stop
from holdfast.core.records import Cause, NewChat
from holdfast.core.spending import NO_BILL
from holdfast.errors import KeyReused
from holdfast.ids import new_id
from holdfast.store.records import Answer, Key, Placement

RECEIPT_DAYS = 7
RECEIPTS_STEP_MS_MAX = 3_600_000
PRUNED_MAX = 5_000  # receipts in one transaction, which others wait for on SQLite

_answer = msgspec.json.Decoder(Answer)


def answer_of(changes: Sequence[Change]) -> Answer:
    first = changes[0]
    return Answer(
        chat_id=first.after.chat.id,
        seq=first.after.chat.seq,
        state=first.after.chat.state,
        dropped=tuple(queued.body for queued in first.dropped),
        turn=first.after.chat.turn,
        message_id=first.sent,
        placed=_placement(first),
    )


def _placement(change: Change) -> Placement | None:
    if change.sent is None:
        return None
    if any(queued.id == change.sent for queued in change.after.queue):
        return "queued"
    before = 0 if change.before is None else change.before.chat.turn
    return "began" if change.after.chat.turn > before else "joined"


def decode_answer(text: str) -> Answer:
    return _answer.decode(text)


def check_receipt(key: Key, stored_hash: str, hash: str) -> None:
    if stored_hash != hash:
        raise KeyReused(key.key)


def own_key() -> Key:
    """Without a key from the caller the store uses one of its own, to ask again after a lost connection."""
    return Key(principal="", key=new_id("req"))


def request_of(key: Key | None, *values: object) -> str:
    return key.request if key is not None and key.request is not None else request_hash(*values)


# Fields that requests got later, and what they are where a client says nothing of them: a request that is repeated
# after an upgrade is the same one.
_ADDED: dict[type, dict[str, object]] = {
    NewChat: {"purses": (), "tainted": False},
    Rename: {"bill": NO_BILL},
    Send: {"answers": True, "tainted": False},
    Stop: {"cause": Cause.USER},
}


def request_hash(*values: object) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        digest.update(type(value).__name__.encode())
        digest.update(encode(_as_asked(value)))
    return digest.hexdigest()


def _as_asked(value: object) -> object:
    added = _ADDED.get(type(value))
    if added is None or not isinstance(value, msgspec.Struct):
        return value
    fields = msgspec.structs.asdict(value)
    return {name: field for name, field in fields.items() if name not in added or field != added[name]}
