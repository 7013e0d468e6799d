"""docs/reference/http.md: every route of docs/openapi.json, with its parameters, bodies and answers."""

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"
_HEAD = """# HTTP

Every route of [openapi.json](../openapi.json). [The HTTP API](../how-to/http.md) shows how they are used, and tells
of keys, errors and event streams; [the openai SDK](../how-to/openai-sdk.md) of the routes under `/v1`, which are
OpenAI's and are not described here. Errors are problem details: `Problem` at the end.
"""
_METHODS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    described = json.loads(_FILE.read_text(encoding="utf-8"))
    parts = [_HEAD]
    for path, methods in described["paths"].items():
        for method in _METHODS:
            if method in methods:
                parts.append(_route(method, path, methods[method]))
    parts.append("## Bodies and answers\n")
    schemas = described["components"]["schemas"]
    for name in sorted(schemas):
        parts.append(_schema(name, schemas[name]))
    return "\n".join(parts)


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    words = " ".join(str(operation.get("description", operation["summary"])).split())
    lines = [f"## `{method.upper()} {path}`\n", f"{words.removesuffix('.')}.\n"]
    if scopes := _scopes(operation):
        needs = ", ".join(f"`{scope}`" for scope in scopes)
        lines.append(f"- needs: {needs}{', for all owners' if operation.get('x-all-owners') else ''}")
    if operation.get("security") == []:
        lines.append("- needs no token")
    elif not _scopes(operation):
        lines.append("- needs any valid token")
    for parameter in operation.get("parameters", ()):
        said = f": {parameter['description']}" if parameter.get("description") else ""
        lines.append(f"- `{parameter['name']}` ({parameter['in']}): {_kind(parameter['schema'])}{said}")
    if body := operation.get("requestBody"):
        lines.append(f"- body: {_content(body)}{'' if body.get('required') else ', may be left out'}")
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            lines.append(f"- answers {status}: {_content(answer) or answer['description']}")
    return "\n".join(lines) + "\n"


def _scopes(operation: dict[str, Any]) -> list[str]:
    """What a token must have for it."""
    return [scope for need in operation.get("security") or () for scopes in need.values() for scope in scopes]


def _content(thing: dict[str, Any]) -> str:
    kinds = [f"{_kind(found.get('schema', {}))}" for found in thing.get("content", {}).values()]
    media = [name for name in thing.get("content", {}) if name != "application/json"]
    return " or ".join(kinds) + (f" as `{'`, `'.join(media)}`" if media else "")


def _kind(schema: dict[str, Any]) -> str:
    """A schema in few words; one that has a name by its name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_kind(one) for one in schema[several]))
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    match schema.get("type"):
        case "array":
            return f"list of {_kind(schema.get('items', {}))}"
        case "object":
            return "object"
        case str(kind):
            return kind
    return "anything"


def _schema(name: str, schema: dict[str, Any]) -> str:
    lines = [f"### {name}\n"]
    if schema.get("description"):
        lines.append(f"{' '.join(schema['description'].split()).removesuffix('.')}.\n")
    if "properties" not in schema:
        return "\n".join([*lines, f"{_kind(schema)}\n"])
    required = schema.get("required", ())
    for field, found in schema["properties"].items():
        said = f": {found['description']}" if found.get("description") else ""
        lines.append(f"- `{field}`{'' if field in required else ' (optional)'}: {_kind(found)}{said}")
    return "\n".join(lines) + "\n"
