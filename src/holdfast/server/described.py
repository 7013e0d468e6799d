"""The OpenAPI description: as FastAPI writes it, with the journal's records as typed schemas for generators.

The records of the core are described from their own fields, so what a stream tells and what its description says
cannot part. A field that has a default may be left out, by clients in requests and by us in records; generators take
`default` for "always there", so the default stands in the field's description instead.
"""

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec.inspect as ms
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import NODEFAULT, Raw, Struct, json

from holdfast.core.journal import AnyEntry, Delta, Entry, MessageAdded, MessageQueued, Traced
from holdfast.core.records import Message
from holdfast.server import views
from holdfast.server.guarded import SCHEME

REF = "#/components/schemas/{}"
EVENT = "ChatEvent"
_MESSAGES = {(MessageAdded, "message"), (MessageQueued, "message")}  # kept as they were written
_ENTRY = {"seq": {"type": "integer", "description": "its number in the chat's journal"}}
_DELTA = {
    "attempt": {"type": "integer", "description": "whose response it is a piece of"},
    "k": {"type": "integer", "description": "its number in the attempt, from 0"},
}
_STREAMED = {
    "title": "StreamEvent",
    "description": "One server-sent event. Those with an id that are no `end` have a ChatEvent as their data.",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "a cursor"},
        "event": {"type": "string", "description": "the kind of the ChatEvent, or what the stream says of itself"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": [{"$ref": REF.format(EVENT)}, {"type": "object"}]},
        },
    },
    "required": ["event", "data"],
}
_AT = {"at": {"type": "integer", "description": "milliseconds since 1970"}}


def described(api: FastAPI) -> dict[str, Any]:
    """Made once."""
    if api.openapi_schema is None:
        found = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
        parts = found["components"]
        parts["schemas"] |= {"Problem": views.Problem.model_json_schema(), **_records()}
        parts["securitySchemes"] = {SCHEME: {"type": "http", "scheme": "bearer"}}
        found["security"] = [{SCHEME: []}]  # each path says which scope
        for schema in parts["schemas"].values():
            for field in schema.get("properties", {}).values():
                _without_default(field)
        api.openapi_schema = _resolved(found)
    return api.openapi_schema


def _without_default(field: dict[str, Any]) -> None:
    default = field.pop("default", None)
    if default not in (None, [], {}, ""):
        words = f"without it: {json.encode(default).decode()}"
        field["description"] = f"{field['description']}; {words}" if "description" in field else words


def _resolved(node: Any) -> Any:
    """With references where a view names a record."""
    if isinstance(node, dict):
        if (name := node.get(views.RECORD)) is not None:
            kept = {key: _resolved(value) for key, value in node.items() if key in ("title", "description")}
            return {"$ref": REF.format(name), **kept}
        return {key: _resolved(value) for key, value in node.items()}
    return [_resolved(item) for item in node] if isinstance(node, list) else node


# --- records ------------------------------------------------------------------------------------------


def _records() -> dict[str, Any]:
    known = _Schemas()
    known.struct(Message)
    message = known.found[Message.__name__]
    pos = {"type": "integer", "description": "its place in the history"}
    html = {"type": "string", "description": "what a model said as sanitised HTML, where `render` asked for it"}
    history = {
        **message,
        "title": "HistoryMessage",
        "properties": {"pos": pos, **message["properties"], "html": html},
        "required": ["pos", *message["required"]],
    }
    events = {_kind(entry): known.struct(entry) for entry in get_args(AnyEntry) if entry is not Traced}
    events["delta"] = known.struct(Delta)
    union = {
        "title": EVENT,
        "description": "The data of an event that has an id: an entry of the journal, or a piece of a response.",
        "oneOf": list(events.values()),
        "discriminator": {
            "propertyName": "kind",
            "mapping": {kind: schema["$ref"] for kind, schema in events.items()},
        },
    }
    return {**known.found, "HistoryMessage": history, EVENT: union, "StreamEvent": _STREAMED}


def _kind(entry: type[Struct]) -> str:
    tag: str = entry.__struct_config__.tag  # type: ignore[assignment]  # no entry is without one
    return tag


class _Schemas:
    """The JSON schemas of records, by the names of their classes."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def struct(self, record: type[Struct]) -> dict[str, Any]:
        if record.__name__ not in self.found:
            self.found[record.__name__] = {}  # so that a record may name itself
            self.found[record.__name__] = self._object(record)
        return {"$ref": REF.format(record.__name__)}

    def _object(self, record: type[Struct]) -> dict[str, Any]:
        info = ms.type_info(record)
        assert isinstance(info, ms.StructType)
        properties: dict[str, Any] = {}
        if info.tag_field is not None:
            properties[info.tag_field] = {"const": info.tag, "type": "string"}
        elif record is Delta:
            properties["kind"] = {"const": "delta", "type": "string"}
        if issubclass(record, Entry):
            properties |= _ENTRY | _AT
        elif record is Delta:
            properties |= _DELTA | _AT
        required = list(properties)
        for field in info.fields:
            properties[field.encode_name] = self._field(record, field)
            if field.required:
                required.append(field.encode_name)
        schema = {"title": record.__name__, "type": "object", "properties": properties, "required": required}
        if (words := record.__doc__) and not words.startswith("Base of"):
            schema["description"] = inspect.cleandoc(words)
        return schema

    def _field(self, record: type[Struct], field: ms.Field) -> dict[str, Any]:
        if (record, field.encode_name) in _MESSAGES:
            return self.struct(Message)
        schema = self._of(field.type)
        if field.default is not NODEFAULT and not isinstance(field.default, Raw | tuple):
            schema = {**schema, "default": field.default}
        return schema

    def _of(self, kind: ms.Type) -> dict[str, Any]:
        for known, make in _MAKERS.items():
            if isinstance(kind, known):
                return make(self, kind)
        raise TypeError(f"{kind} has no schema here yet")

    def _union(self, kind: ms.UnionType) -> dict[str, Any]:
        members = [self._of(member) for member in kind.types]
        structs = [member for member in kind.types if isinstance(member, ms.StructType) and member.tag is not None]
        tagged = {member.tag: self.struct(member.cls)["$ref"] for member in structs}
        if len(tagged) == len(members):
            return {"oneOf": members, "discriminator": {"propertyName": "kind", "mapping": tagged}}
        return {"anyOf": members}

    def _enum(self, kind: type[enum.Enum]) -> dict[str, Any]:
        self.found[kind.__name__] = {
            "type": "string",
            "enum": [member.value for member in kind],
            "title": kind.__name__,
        }
        if words := _own_words(kind):
            self.found[kind.__name__]["description"] = words
        return {"$ref": REF.format(kind.__name__)}


def _own_words(kind: type) -> str | None:
    return inspect.cleandoc(kind.__doc__) if "__doc__" in vars(kind) and kind.__doc__ else None


_MAKERS: Mapping[type[ms.Type], Callable[[_Schemas, Any], dict[str, Any]]] = {
    ms.StrType: lambda _, kind: {"type": "string"},
    ms.BoolType: lambda _, kind: {"type": "boolean"},
    ms.IntType: lambda _, kind: {"type": "integer"},
    ms.FloatType: lambda _, kind: {"type": "number"},
    ms.NoneType: lambda _, kind: {"type": "null"},
    ms.RawType: lambda _, kind: {},
    ms.LiteralType: lambda _, kind: {"type": "string", "enum": list(kind.values)},
    ms.EnumType: lambda known, kind: known._enum(kind.cls),
    ms.StructType: lambda known, kind: known.struct(kind.cls),
    ms.VarTupleType: lambda known, kind: {"type": "array", "items": known._of(kind.item_type)},
    ms.DictType: lambda known, kind: {"type": "object", "additionalProperties": known._of(kind.value_type)},
    ms.UnionType: lambda known, kind: known._union(kind),
}
