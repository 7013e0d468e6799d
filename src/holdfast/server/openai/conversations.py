"""What clients say, in either protocol, as our messages: a conversation to begin from, or to go on with."""

import base64
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.history import make_valid
from holdfast.core.records import File, Frozen, Message, Part, Role, Text, ToolCall, ToolResult, result_message
from holdfast.errors import InvalidInput
from holdfast.ids import new_id
from holdfast.server.openai.ids import APPROVAL


class Conversation(Frozen):
    """`opener` begins the turn, and `since` is what was already said in it; `results` are the last things of all."""

    instructions: str | None
    past: tuple[Message, ...]
    opener: Message
    since: tuple[Message, ...]

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """Those that the client has just brought."""
        return results_at_end(self.since)


def results_at_end(messages: Sequence[Message]) -> tuple[ToolResult, ...]:
    found: list[ToolResult] = []
    for message in reversed(messages):
        if message.role is not Role.TOOL:
            break
        found += [part for part in message.parts if isinstance(part, ToolResult)]
    return tuple(reversed(found))


def conversation(messages: Sequence[Message], where: str) -> Conversation:
    """Raises InvalidInput for what a provider would not take, in words that its clients know."""
    said = [message for message in messages if message.role is not Role.SYSTEM]
    instructions = "\n\n".join(message.text for message in messages if message.role is Role.SYSTEM)
    openers = [at for at, message in enumerate(said) if message.role is Role.USER]
    if not openers:
        raise InvalidInput(where, "needs a message of the user")
    last = openers[-1]
    since = checked(said[last + 1 :], where)
    if since and since[-1].role is not Role.TOOL:
        raise InvalidInput(
            where, "ends with a message of the user, or with the results of the tools that were called"
        )
    return Conversation(
        instructions=instructions or None, past=checked(said[:last], where), opener=said[last], since=since
    )


def checked(messages: Sequence[Message], where: str) -> tuple[Message, ...]:
    """With each result right behind its call, in the order of the calls, and with the call's name."""
    names = {call.call_id: call.name for message in messages for call in message.calls}
    ordered = make_valid([_named(message, names) for message in messages])
    for message in ordered:
        for part in message.parts:
            if isinstance(part, ToolResult) and part.synthetic is not None:
                raise InvalidInput(where, f"No tool output found for function call {part.call_id}.")
            if isinstance(part, ToolCall) and part.cut:
                raise InvalidInput(where, f"the arguments of function call {part.call_id} are not a JSON object")
    kept = {part.call_id for message in ordered for part in message.parts if isinstance(part, ToolResult)}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult) and part.call_id not in kept:
                raise InvalidInput(where, f"No tool call found for function call output {part.call_id}.")
    return tuple(ordered)


def _named(message: Message, names: dict[str, str]) -> Message:
    parts = tuple(
        replace(part, name=names.get(part.call_id, "")) if isinstance(part, ToolResult) else part
        for part in message.parts
    )
    return replace(message, parts=parts)


# --- chat completions ---------------------------------------------------------------------------------


def of_messages(messages: Sequence[dict[str, Any]]) -> list[Message]:
    return [_of_message(f"messages[{at}]", message) for at, message in enumerate(messages)]


def _of_message(where: str, given: dict[str, Any]) -> Message:
    role = given.get("role")
    if role in ("system", "developer"):
        return _message(Role.SYSTEM, _texts(where, given.get("content")))
    if role == "user":
        return _message(Role.USER, parts_of(f"{where}.content", given.get("content")))
    if role == "assistant":
        for name in ("function_call", "audio"):
            if given.get(name) is not None:
                raise InvalidInput(
                    f"{where}.{name}", "is not something that this server knows; use `tool_calls`, or text"
                )
        calls = _calls(f"{where}.tool_calls", given.get("tool_calls") or [])
        return _message(Role.ASSISTANT, (*_texts(where, given.get("content")), *calls))
    if role == "tool":
        return result_of(where, given.get("tool_call_id"), given.get("content"))
    raise InvalidInput(f"{where}.role", "can be system, developer, user, assistant or tool")


def _calls(where: str, given: Any) -> list[ToolCall]:
    if not isinstance(given, list):
        raise _no_calls(where)
    return [_call(where, call) for call in given]


def _no_calls(where: str) -> InvalidInput:
    return InvalidInput(where, "is a list of function calls, each with an id, a name and arguments")


def _call(where: str, given: Any) -> ToolCall:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or not all(
        isinstance(text, str) for text in (given.get("id"), function.get("name"), function.get("arguments", ""))
    ):
        raise _no_calls(where)
    return ToolCall(call_id=given["id"], name=function["name"], arguments=function.get("arguments") or "{}")


# --- responses ----------------------------------------------------------------------------------------


def of_items(given: str | Sequence[dict[str, Any]]) -> list[Message]:
    if isinstance(given, str):
        return [_message(Role.USER, (Text(text=given),))]
    messages: list[Message] = []
    for at, item in enumerate(given):
        found = _of_item(f"input[{at}]", item)
        before = messages[-1] if messages else None
        if found is None:
            continue
        if before is not None and before.role is Role.ASSISTANT and found.calls:
            messages[-1] = replace(before, parts=(*before.parts, *found.parts))  # calls of one answer stand together
        else:
            messages.append(found)
    return messages


def _of_item(where: str, item: dict[str, Any]) -> Message | None:
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if role in ("system", "developer"):
            return _message(Role.SYSTEM, _texts(where, item.get("content")))
        if role == "assistant":
            return _message(Role.ASSISTANT, _texts(where, item.get("content")))
        if role == "user":
            return _message(Role.USER, parts_of(f"{where}.content", item.get("content")))
        raise InvalidInput(f"{where}.role", "can be system, developer, user or assistant")
    if kind == "function_call":
        fields = (item.get("call_id"), item.get("name"), item.get("arguments", ""))
        if not all(isinstance(text, str) for text in fields):
            raise InvalidInput(where, "needs a call_id, a name and arguments")
        call = ToolCall(call_id=item["call_id"], name=item["name"], arguments=item.get("arguments") or "{}")
        return _message(Role.ASSISTANT, (call,))
    if kind == "function_call_output":
        return result_of(where, item.get("call_id"), item.get("output"))
    if kind == "compaction":
        return _message(Role.USER, (Text(text=summary_of(f"{where}.encrypted_content", item)),))
    if kind in ("reasoning", "mcp_approval_request", "mcp_approval_response"):
        return None  # a chat keeps its own, and what people answered is not said to a model
    raise InvalidInput(f"{where}.type", f"{kind!r} is not a kind of item that this server knows")


class Approval(Frozen):
    """A person's answer to a call that was asked about, by way of a client."""

    call_id: str  # as clients know it
    approve: bool
    words: str = ""


def approvals_of(given: str | Sequence[dict[str, Any]]) -> list[Approval]:
    if isinstance(given, str):
        return []
    found = [(at, item) for at, item in enumerate(given) if item.get("type") == "mcp_approval_response"]
    return [_approval(f"input[{at}]", item) for at, item in found]


def _approval(where: str, item: dict[str, Any]) -> Approval:
    asked, approve, reason = item.get("approval_request_id"), item.get("approve"), item.get("reason")
    if not isinstance(asked, str) or not asked.startswith(APPROVAL) or not isinstance(approve, bool):
        raise InvalidInput(where, "needs the `approval_request_id` of an mcp_approval_request, and `approve`")
    return Approval(
        call_id=asked.removeprefix(APPROVAL), approve=approve, words=reason if isinstance(reason, str) else ""
    )


SUMMARY = "summary:"  # before the base64 of a summary, which is what a compaction item holds


def sealed_summary(text: str) -> str:
    return SUMMARY + base64.urlsafe_b64encode(text.encode()).decode()


def summary_of(where: str, item: dict[str, Any]) -> str:
    sealed = item.get("encrypted_content")
    try:
        if not isinstance(sealed, str) or not sealed.startswith(SUMMARY):
            raise ValueError
        return base64.urlsafe_b64decode(sealed.removeprefix(SUMMARY)).decode()
    except ValueError as error:
        raise InvalidInput(where, "is not of a compaction that this server made") from error


# --- both ---------------------------------------------------------------------------------------------


def result_of(where: str, call_id: Any, content: Any) -> Message:
    if not isinstance(call_id, str) or not call_id:
        raise InvalidInput(where, "needs the id of the call that it answers")
    parts = parts_of(f"{where}.content", content) if content is not None else ()
    text = "".join(part.text for part in parts if isinstance(part, Text))
    files = tuple(part for part in parts if isinstance(part, File))
    return result_message(ToolResult(call_id=call_id, name="", content=text, files=files), 0)


def _message(role: Role, parts: Sequence[Part]) -> Message:
    return Message(id=new_id("msg"), role=role, parts=tuple(parts))


def _texts(where: str, content: Any) -> tuple[Text, ...]:
    parts = parts_of(f"{where}.content", content) if content is not None else ()
    if not all(isinstance(part, Text) for part in parts):
        raise InvalidInput(f"{where}.content", "can hold text only")
    return tuple(part for part in parts if isinstance(part, Text) and part.text)


def parts_of(where: str, content: Any) -> tuple[Text | File, ...]:
    if isinstance(content, str):
        return (Text(text=content),)
    if not isinstance(content, list):
        raise InvalidInput(where, "is a text or a list of parts")
    return tuple(_part(f"{where}[{at}]", part) for at, part in enumerate(content))


def _part(where: str, part: Any) -> Text | File:
    if not isinstance(part, dict):
        raise InvalidInput(where, "is a part: an object with a type")
    kind, text = part.get("type"), part.get("text")
    if kind in ("text", "input_text", "output_text") and isinstance(text, str):
        return Text(text=text)
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return Text(text=part["refusal"])
    if kind in ("image_url", "input_image"):
        url = part.get("image_url")
        return _file(where, url.get("url") if isinstance(url, dict) else url, "image/*")
    if kind in ("file", "input_file"):
        file = part.get("file") if kind == "file" else part
        if isinstance(file, dict):
            found = _file(where, file.get("file_data") or file.get("file_url"), "application/octet-stream")
            name = file.get("filename")
            return replace(found, name=name) if isinstance(name, str) else found
    raise InvalidInput(where, "can be a text, an image by its URL, or a file by its data")


def _file(where: str, uri: Any, media_type: str) -> File:
    if not isinstance(uri, str) or not uri.startswith(("https://", "http://", "data:")):
        raise InvalidInput(where, "needs an https URL or a data: URI")
    if uri.startswith("data:"):
        media_type = uri[5:].partition(";")[0].partition(",")[0] or media_type
    return File(media_type=media_type, uri=uri)
