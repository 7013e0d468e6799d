"""Links that answer one call: what such a link says, and the signature that makes it one.

It names the chat with its life, the call and the digest of its arguments, what a person is asked there, the endpoint
that it was sent to, and when it ends. Whoever has it may answer; nobody makes one without the key, and none says more
than it was made for: a call that was approved may come back as a question, and its first link does not answer that.
"""

import base64
import binascii
import hmac
from typing import Literal, get_args

import msgspec

from holdfast.core.records import Frozen

PREFIX = "hfa_"
KEY_BYTES = 32
TOKEN_CHARS_MAX = 2_000
_MAC_BYTES = 32


LinkKind = Literal["approval", "question"]
LINK_KINDS: tuple[LinkKind, ...] = get_args(LinkKind)


class ApprovalLink(Frozen, array_like=True, forbid_unknown_fields=True):
    key_id: str
    webhook_id: str
    chat_id: str
    life: int
    call_id: str
    digest: str
    expires_at: int
    kind: LinkKind = "approval"


_decode = msgspec.json.Decoder(ApprovalLink).decode


def token_of(link: ApprovalLink, key: bytes) -> str:
    """The same for the same link, however often it is made."""
    fields = msgspec.structs.astuple(link)
    # One to an approval says no kind, as when there was no other: what was sent before says the same again.
    said = msgspec.json.encode(fields[:-1] if link.kind == "approval" else fields)
    return PREFIX + base64.urlsafe_b64encode(said + _mac(said, key)).decode().rstrip("=")


def read_link(token: str) -> ApprovalLink | None:
    """What it says, which is nothing until `is_signed` says so; None: it is no link."""
    parts = _parts(token)
    if parts is None:
        return None
    try:
        return _decode(parts[0])
    except (msgspec.DecodeError, ValueError):
        return None


def is_signed(token: str, key: bytes) -> bool:
    """In the same time whatever is wrong."""
    parts = _parts(token)
    return parts is not None and hmac.compare_digest(parts[1], _mac(parts[0], key))


def _parts(token: str) -> tuple[bytes, bytes] | None:
    """What is said, and the signature over it."""
    if not token.startswith(PREFIX) or len(token) > TOKEN_CHARS_MAX:
        return None
    text = token.removeprefix(PREFIX)
    try:
        whole = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return (whole[:-_MAC_BYTES], whole[-_MAC_BYTES:]) if len(whole) > _MAC_BYTES else None


def _mac(said: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"holdfast approval link\0" + said, "sha256")
