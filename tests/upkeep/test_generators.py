"""Generators of clients take docs/openapi.json as it is, without a warning, and make typed clients of it."""

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.server import budgets, memory, schedules, tokens, views, webhooks
from tests.support.client_tools import (
    NODE,
    OPENAPI_PYTHON,
    OPENAPI_TYPESCRIPT,
    TYPESCRIPT,
    needs_generators,
    needs_packages,
    run,
)
from tests.upkeep.test_openapi import FILE, described

# What a program does with it, as the compiler has to see it.
USED = """
import type { components } from "./api";
type Event = components["schemas"]["ChatEvent"];
type Given = components["schemas"]["NewChatGiven"];
export const least: Given = { agent: "support" };
export function told(event: Event): string | number {
    switch (event.kind) {
        case "delta": return event.text;
        case "turn.ended": return event.turn;
        case "message": {
            const part = event.message.parts[0]!;
            return part.kind === "tool_call" ? part.arguments ?? "" : part.kind === "text" ? part.text : event.seq;
        }
        default: return event.at;
    }
}
"""


@needs_packages
def test_openapi_typescript_makes_types_that_a_program_can_narrow(tmp_path: Path) -> None:
    said = run(NODE, OPENAPI_TYPESCRIPT, FILE, "-o", tmp_path / "api.d.ts")
    assert "warn" not in said.lower(), said
    (tmp_path / "used.ts").write_text(USED, encoding="utf-8")
    run(NODE, TYPESCRIPT, "--noEmit", "--strict", "--noUncheckedIndexedAccess", "used.ts", cwd=tmp_path)


@needs_generators
def test_openapi_python_client_makes_a_client_without_a_warning(tmp_path: Path) -> None:
    made = tmp_path / "made"
    run(OPENAPI_PYTHON, "generate", "--fail-on-warning", "--path", FILE, "--output-path", made, cwd=tmp_path)
    sent = next(made.rglob("new_chat_given.py")).read_text(encoding="utf-8")
    assert re.search(r"^    agent: str$", sent, re.MULTILINE)
    assert "    owner: str | Unset = UNSET" in sent
    history = next(made.rglob("models/history_message.py")).read_text(encoding="utf-8")
    assert "parts: list[Expansion | File | Reasoning | Text | ToolCall | ToolResult]" in history
    assert next(made.rglob("models/turn_ended.py")).exists()


def requests() -> dict[str, Any]:
    schemas = described()["components"]["schemas"]
    return {name: schema for name, schema in schemas.items() if name.endswith(("Given", "Patch"))}


@pytest.mark.parametrize("name", sorted(requests()))
def test_no_field_of_a_request_is_required_that_has_a_default(name: str) -> None:
    """And none says `default`: openapi-typescript takes such a field for one that has to be there."""
    home = next(module for module in (views, tokens, schedules, webhooks, budgets, memory) if hasattr(module, name))
    schema, model = requests()[name], getattr(home, name)
    needed = {name for name, field in model.model_fields.items() if field.is_required()}
    assert set(schema.get("required", ())) == needed
    assert not [name for name, field in schema["properties"].items() if "default" in field]


def test_every_event_is_told_apart_by_its_kind() -> None:
    schemas = described()["components"]["schemas"]
    union = schemas["ChatEvent"]
    mapping = union["discriminator"]["mapping"]
    assert [one["$ref"] for one in union["oneOf"]] == list(mapping.values())
    for kind, ref in mapping.items():
        event = schemas[ref.rpartition("/")[2]]
        assert event["properties"]["kind"]["const"] == kind
        assert {"kind", "at"} <= set(event["required"])
