"""JSON that is nested deeper than its readers go: refused where it comes in, and harmless where it lies already."""

from typing import Any

import apsw
import msgspec
import psycopg
import pytest
from msgspec import Raw

from holdfast.core.codec import JSON_DEPTH_MAX, encode, is_json_object, is_too_deep
from holdfast.core.records import ClientTool, Message, NewChat, OutputFormat, Role, Sampling, Text
from holdfast.errors import InvalidInput
from holdfast.store.contract import Store
from holdfast.store.records import ChatFilter
from tests.support.chats import new_chat


def nested(depth: int) -> bytes:
    """A JSON object of so many levels, its own included."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def told(**given: Any) -> Message:
    return Message(id="m1", role=Role.USER, parts=(Text(text="hello"),), **given)


DEEP = Raw(nested(JSON_DEPTH_MAX + 1))
FINE = Raw(nested(JSON_DEPTH_MAX))


def chats_with(value: Raw) -> dict[str, NewChat]:
    new = new_chat(None, id="c1")
    return {
        "metadata": msgspec.structs.replace(new, metadata=value),
        "message metadata": msgspec.structs.replace(new, message=told(metadata=value)),
        "schema": msgspec.structs.replace(new, client_tools=(ClientTool(name="t", schema=value),)),
    }


@pytest.mark.parametrize("where", sorted(chats_with(FINE)))
async def test_json_that_is_nested_too_deep_is_refused_by_name(store: Store, where: str) -> None:
    with pytest.raises(InvalidInput, match=f"is nested more than {JSON_DEPTH_MAX} deep"):
        await store.create_chat(chats_with(DEEP)[where])
    assert (await store.create_chat(chats_with(FINE)[where])).chat_id == "c1"


@pytest.mark.parametrize(
    ("data", "deep"),
    [
        (nested(JSON_DEPTH_MAX), False),
        (nested(JSON_DEPTH_MAX + 1), True),
        (encode({"text": "[" * 1000}), False),
        (encode({"text": '\\"[' * 1000}), False),
        (encode([[]] * 1000), False),
        (b'"' + b"[" * 1000, False),
        (b'"' + b'\\"[' * 1_000_000 + b"\\", False),
        (b"[" * 1_000_000, True),
    ],
)
def test_depth_is_counted_outside_of_text(data: bytes, deep: bool) -> None:
    assert is_too_deep(data) is deep


def test_arguments_that_are_nested_too_deep_are_none() -> None:
    assert is_json_object(nested(JSON_DEPTH_MAX).decode())
    assert not is_json_object(nested(JSON_DEPTH_MAX + 1).decode())
    assert not is_json_object(nested(100_000).decode())


def put_deep(store_url: str, chat_id: str) -> None:
    """As code that did not look let it in: in the chat's metadata, and in those of its first message."""
    if store_url.startswith("sqlite:"):
        depth, mark = 1200, "?"
        connection: Any = apsw.Connection(store_url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(10_000)
    else:
        depth, mark = 20_000, "%s"
        connection = psycopg.connect(store_url, autocommit=True)
    deep = nested(depth).decode()
    body = '{"kind":"message.added","message":{"parts":[{"kind":"text","text":"needle"}],"metadata":' + deep + "}}"
    connection.execute(f"UPDATE chats SET metadata = {mark} WHERE id = {mark}", (deep, chat_id))
    connection.execute(f"UPDATE journal SET body = {mark} WHERE chat_id = {mark} AND pos = 0", (body, chat_id))
    connection.close()


async def test_a_chat_that_holds_such_json_takes_the_listing_from_nobody(store: Store, store_url: str) -> None:
    for id in ("c1", "c2"):
        await store.create_chat(
            msgspec.structs.replace(new_chat("a needle", id=id), metadata=Raw(b'{"customer":"7"}'))
        )
    put_deep(store_url, "c1")
    assert [line.id for line in await store.list_chats()] == ["c2", "c1"]
    assert "c2" in [line.id for line in await store.list_chats(ChatFilter(search="needle"))]
    assert [line.id for line in await store.list_chats(ChatFilter(metadata={"customer": "7"}))] == ["c2"]


async def test_the_schema_of_an_answer_is_bounded_too(store: Store) -> None:
    sampling = Sampling(output=OutputFormat(name="answer", schema=DEEP))
    with pytest.raises(InvalidInput, match="sampling output schema"):
        await store.create_chat(msgspec.structs.replace(new_chat(None), message=told(sampling=sampling)))
