"""A link says what it was made for, and nobody makes or changes one without its key."""

import base64

import pytest
from msgspec.structs import replace

from holdfast.core.approval_links import PREFIX, ApprovalLink, is_signed, read_link, token_of

KEY = bytes(range(32))
LINK = ApprovalLink(
    key_id="key_1",
    webhook_id="hook_1",
    chat_id="chät_1",
    life=-5,
    call_id="call_1",
    digest="ab" * 10,
    expires_at=1_700_000_000_000,
)


def test_a_link_is_read_as_it_was_made_and_is_the_same_each_time() -> None:
    token = token_of(LINK, KEY)
    assert read_link(token) == LINK
    assert is_signed(token, KEY)
    assert token == token_of(LINK, KEY)
    assert token.removeprefix(PREFIX).replace("-", "").replace("_", "").isalnum(), "it stands in a URL as it is"


def test_a_link_says_what_is_asked_and_one_to_an_approval_is_written_as_before_there_were_others() -> None:
    asks = replace(LINK, kind="question")
    assert read_link(token_of(asks, KEY)) == asks
    assert token_of(asks, KEY) != token_of(LINK, KEY)
    assert _bytes(token_of(LINK, KEY))[:-32].endswith(b",1700000000000]")
    other = PREFIX + base64.urlsafe_b64encode(_bytes(token_of(asks, KEY)).replace(b"question", b"anything")).decode()
    assert read_link(other.rstrip("=")) is None


def test_another_key_signs_another_link() -> None:
    assert not is_signed(token_of(LINK, KEY), bytes(32))


@pytest.mark.parametrize(
    "changes",
    [
        {"chat_id": "chat_2"},
        {"life": 6},
        {"call_id": "call_2"},
        {"digest": "cd" * 10},
        {"expires_at": 1 << 50},
        {"webhook_id": "hook_2"},
        {"key_id": "key_2"},
    ],
)
def test_nothing_in_it_can_be_changed(changes: dict[str, object]) -> None:
    other = token_of(replace(LINK, **changes), bytes(32))
    said, signature = _bytes(other)[:-32], _bytes(token_of(LINK, KEY))[-32:]
    forged = PREFIX + base64.urlsafe_b64encode(said + signature).decode().rstrip("=")
    assert read_link(forged) == replace(LINK, **changes)
    assert not is_signed(forged, KEY)


def test_every_character_of_it_counts() -> None:
    token = token_of(LINK, KEY)
    for at in range(len(PREFIX), len(token) - 1):  # the last one may hold bits that mean nothing
        other = "A" if token[at] != "A" else "B"
        assert not is_signed(f"{token[:at]}{other}{token[at + 1 :]}", KEY), at


@pytest.mark.parametrize(
    "text", ["", "hfa_", "hfa_AAAA", "x" * 50, "hfa_" + "A" * 60, "hfa_" + "é" * 60, "hfa_" + "A" * 3000]
)
def test_what_is_no_link_is_none(text: str) -> None:
    assert read_link(text) is None
    assert not is_signed(text, KEY)


def _bytes(token: str) -> bytes:
    text = token.removeprefix(PREFIX)
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
