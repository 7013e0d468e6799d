"""Every route of the server, found in the server itself and in its description, with requests that name somebody's
chat wherever a request of that route can name one.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastapi.routing import APIRoute

from holdfast.core import journal
from holdfast.core.codec import encode
from holdfast.core.records import CallState, ChatRecord
from holdfast.server.guarded import Need, need_of
from holdfast.server.http import ROUTERS
from holdfast.server.transfers import FILE_TYPE
from holdfast.store.export_lines import CHAT, END, FORMAT, HEAD, line_of
from holdfast.store.rows import CHAT_COLUMNS, chat_row

DESCRIPTION = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))


class Ids(NamedTuple):
    """Of a chat, and of what is in it; or of one that never was, of the same shape."""

    chat: str
    message: str
    call: str
    token: str
    rule: str
    owner: str
    file: str = "0" * 64
    schedule: str = "sched_0"
    webhook: str = "hook_0"
    event: str = "evt_0"
    memory: str = "mem_0"

    def in_path(self) -> dict[str, str]:
        """What each parameter of a path is. One that is not here has to be thought about first."""
        return {
            "chat_id": self.chat,
            "message_id": self.message,
            "call_id": self.call,
            "token_id": self.token,
            "rule_id": self.rule,
            "schedule_id": self.schedule,
            "digest": self.file,
            "webhook_id": self.webhook,
            "event_id": self.event,
            "memory_id": self.memory,
            "link": "hfa_0",
            "response_id": f"resp_1_{self.chat}",
            "conversation_id": f"conv_{self.chat}",
            "owner": self.owner,
        }

    def taken_out(self, text: str) -> str:
        for name, value in self._asdict().items():
            text = text.replace(value, f"<{name}>")
        return text


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    need: Need

    @property
    def names_somebody(self) -> bool:
        return bool(self.query) or "<" in self.path


class Guarded(NamedTuple):
    """A route, as the walk knows it."""

    method: str
    path: str
    need: Need

    @property
    def of_v1(self) -> bool:
        return self.path.startswith("/v1")


def every_route() -> list[Guarded]:
    found = []
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            found += [Guarded(method, route.path_format, need_of(route)) for method in sorted(route.methods or ())]
    return found


def described(route: Guarded) -> dict[str, Any]:
    operation: dict[str, Any] = DESCRIPTION["paths"].get(route.path, {}).get(route.method.lower(), {})
    return operation


def requests_of(route: Guarded, ids: Ids) -> Iterator[Asked]:
    """With these ids in its path, in each text of its query by turns, and in its body."""
    path = filled(route.path, ids)
    bodies = bodies_of_v1(ids)[route.path] if route.of_v1 and route.method == "POST" else [body_of(route, ids)]
    for body in bodies:
        yield Asked(route.method, path, {}, body, route.need)
    for parameter in described(route).get("parameters", []):
        schema = parameter["schema"]
        kinds = [schema.get("type"), *(one.get("type") for one in schema.get("anyOf", []))]
        if parameter["in"] != "query" or parameter["name"] == "state":
            continue
        if "string" in kinds or "array" in kinds:
            for value in (ids.chat, ids.owner, f"owner:{ids.owner}"):
                yield Asked(route.method, path, {parameter["name"]: value}, bodies[0], route.need)


def filled(path: str, ids: Ids) -> str:
    for name, value in ids.in_path().items():
        path = path.replace(f"{{{name}}}", value)
    module = "app.js" if path.startswith("/page/") else "holdfast.js"
    return path.replace("{name:path}", "echo").replace("{name}", module)


def body_of(route: Guarded, ids: Ids) -> Any:
    """A valid one, by the description; None where there is none. A file, as bytes, names what it can."""
    content = described(route).get("requestBody", {}).get("content", {})
    if FILE_TYPE in content:
        return exported(ids)
    return example(content["application/json"]["schema"]) if content else None


def exported(ids: Ids, **changes: Any) -> bytes:
    """A chat that says it is that one, of that owner, forked from itself, and that a call of it waited for it."""
    numbers = {"created_at": 1, "updated_at": 1, "seq": 2, "stamp": 9, "line_stamp": 9, "life": 9}
    names = {"id": ids.chat, "agent": "echo", "owner": ids.owner, "forked_from": ids.chat, "title": "a copy"}
    chat = ChatRecord(**{**numbers, **names, **changes})
    told = journal.CallChanged(call_id=ids.call, name="pay", state=CallState.DONE, child_id=ids.chat)
    entries = (journal.ChatCreated(agent="echo", forked_from=ids.chat), told)
    rows: dict[str, Any] = {"stamp": 9, "at": 1, "role": None, "pos": None, "ref": None}
    lines = [
        line_of({"kind": HEAD, "format": FORMAT, "chats": [ids.chat]}),
        line_of({"kind": CHAT, **dict(zip(CHAT_COLUMNS, chat_row(chat), strict=True))}),
        *(
            line_of({"kind": "journal", "seq": seq, **rows, "body": encode(entry).decode()})
            for seq, entry in enumerate(entries, 1)
        ),
    ]
    return b"".join(ended(lines))


def ended(lines: Sequence[bytes]) -> list[bytes]:
    """With the line that says that they are all."""
    digest = hashlib.blake2b(b"".join(lines), digest_size=16).hexdigest()
    return [*lines, line_of({"kind": END, "lines": len(lines), "digest": digest})]


def example(schema: dict[str, Any]) -> Any:
    """The least that fits."""
    if "$ref" in schema:
        return example(DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema or "oneOf" in schema:
        return example((schema.get("anyOf") or schema["oneOf"])[0])
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("type") == "object":
        return {name: example(schema["properties"][name]) for name in schema.get("required", [])}
    return {"string": "echo", "integer": 1, "number": 1, "boolean": True, "array": [], "null": None}[schema["type"]]


def bodies_of_v1(ids: Ids) -> dict[str, list[dict[str, Any]]]:
    """Each way in which a request of OpenAI's protocols can name what is in a chat. A path that is not here has to be
    thought about first.
    """
    chat = ids.chat
    called = {"type": "function_call_output", "call_id": f"{ids.call}-{chat}", "output": "mine"}
    call = {"type": "function_call", "call_id": f"{ids.call}-{chat}", "name": "look", "arguments": "{}"}
    said = {"role": "user", "content": "hello"}
    references = [
        {"type": "item_reference", "id": f"msg_1_{chat}"},
        {"type": "item_reference", "id": f"fc_{ids.call}-{chat}"},
    ]
    approval = {"type": "mcp_approval_response", "approval_request_id": f"mcpr_{ids.call}-{chat}", "approve": True}
    inputs: list[dict[str, Any]] = [
        {"model": "echo", "input": "hello", "previous_response_id": f"resp_1_{chat}"},
        *({"model": "echo", "input": [said, reference]} for reference in references),
    ]
    tool_calls = [{"id": f"{ids.call}-{chat}", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    completion = [
        said,
        {"role": "assistant", "tool_calls": tool_calls},
        {"role": "tool", "tool_call_id": f"{ids.call}-{chat}", "content": "mine"},
    ]
    return {
        "/v1/chat/completions": [{"model": agent, "messages": completion} for agent in ("asker", "payer")],
        "/v1/responses": [
            *inputs,
            {"model": "payer", "input": "hello", "conversation": f"conv_{chat}"},
            {"model": "payer", "input": [approval], "previous_response_id": f"resp_1_{chat}"},
            {"model": "payer", "input": [approval]},
            {"model": "asker", "input": [called], "previous_response_id": f"resp_1_{chat}"},
            {"model": "asker", "input": [said, call, called]},
        ],
        "/v1/responses/{response_id}/cancel": [{}],
        "/v1/responses/input_tokens": inputs,
        "/v1/responses/compact": [*inputs],
        "/v1/conversations": [{"items": [reference]} for reference in references],
        "/v1/conversations/{conversation_id}/items": [{"items": [{"type": "message", **said}]}],
    }
