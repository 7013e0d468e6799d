"""Schemas of arguments that others wrote, as every provider takes them: one object, with no alternatives at its root.

A provider that finds another one refuses the whole request, whichever tool is meant: one such tool of one server, and
an agent answers nothing any more. What is lost is only said less exactly: the tool itself judges the arguments.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core.codec import is_too_deep

ANY_OBJECT = Raw(b'{"type":"object","properties":{}}')

_ALL, _ONE = "allOf", ("anyOf", "oneOf")
_NOT_AT_THE_ROOT = ("not", "enum", "const", "if", "then", "else")
_DEPTH_MAX = 8
_ALTERNATIVES_MAX = 200


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of all alternatives, and required what each of them requires."""
    found = {**_Folding(schema).folded(schema), "type": "object"}
    if not isinstance(found.get("properties"), dict):
        found["properties"] = {}
    if not isinstance(found.get("required", []), list):
        del found["required"]
    return found


@lru_cache(maxsize=1_000)
def accepted(schema: bytes) -> Raw:
    """The same of one that is JSON already; untouched where there is nothing to change."""
    if is_too_deep(schema) or not isinstance(decoded := msgspec.json.decode(schema), dict):
        return ANY_OBJECT
    made = object_schema(decoded)
    return Raw(schema) if made == decoded else Raw(msgspec.json.encode(made))


class _Folding:
    """One schema. Bounded: alternatives may refer to each other, and their author may mean harm."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _ALTERNATIVES_MAX

    def folded(self, schema: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
        schema = self._followed(schema)
        named = {word: schema[word] for word in (_ALL, *_ONE) if isinstance(schema.get(word), list)}
        found = {word: value for word, value in schema.items() if word not in (*_NOT_AT_THE_ROOT, _ALL, *_ONE)}
        if not named or depth >= _DEPTH_MAX:
            return found
        ways = {name: [value] for name, value in _dict(found.get("properties")).items()}
        required = dict.fromkeys(_list(found.get("required")))
        for word, given in named.items():
            branches = [self.folded(branch, depth + 1) for branch in given if self._counts(branch)]
            for branch in branches:
                for name, value in _dict(branch.get("properties")).items():
                    known = ways.setdefault(name, [])
                    known += [value] if value not in known else []
            wanted = [_list(branch.get("required")) for branch in branches]
            required |= dict.fromkeys(
                name for names in wanted for name in names if word == _ALL or all(name in each for each in wanted)
            )
        found["properties"] = {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in ways.items()}
        return {**found, "required": list(required)} if required else found

    def _counts(self, branch: Any) -> bool:
        self._left -= 1
        return self._left >= 0 and isinstance(branch, dict)

    def _followed(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """With what it refers to, within the same document."""
        for _ in range(_DEPTH_MAX):
            target = schema.get("$ref")
            if not isinstance(target, str):
                return schema
            found: Any = self._root if target.startswith("#/") else None
            for step in target.removeprefix("#/").split("/"):
                found = found.get(step) if isinstance(found, dict) else None
            schema = {**_dict(found), **{word: value for word, value in schema.items() if word != "$ref"}}
        return {word: value for word, value in schema.items() if word != "$ref"}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
