"""Schemas that others wrote, as every provider takes them."""

import time
from typing import Any

import msgspec
import pytest
from mcp.types import Tool as McpTool
from msgspec import Raw

from holdfast.tools.mcp.session import _listed
from holdfast.tools.outside import client_tool
from holdfast.tools.schemas import accepted, object_schema

TEXT = {"type": "string"}
FORBIDDEN = {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref"}

# What servers list, and what a provider is sent instead.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"type": "object", "properties": {}}),
    "an object": (
        {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
    ),
    "one of two is required": (
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}},
    ),
    "alternatives with properties of their own": (
        {
            "type": "object",
            "required": ["page"],
            "properties": {"page": TEXT},
            "oneOf": [
                {"properties": {"kind": {"const": "x"}, "x": TEXT}, "required": ["kind", "x"]},
                {"properties": {"kind": {"const": "y"}, "y": TEXT}, "required": ["kind", "y"]},
            ],
        },
        {
            "type": "object",
            "required": ["page", "kind"],
            "properties": {"page": TEXT, "kind": {"anyOf": [{"const": "x"}, {"const": "y"}]}, "x": TEXT, "y": TEXT},
        },
    ),
    "all of several": (
        {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}, "required": ["b"]}]},
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]},
    ),
    "references": (
        {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"b": {"$ref": "#/$defs/B"}}}, "B": TEXT}},
        {
            "type": "object",
            "properties": {"b": {"$ref": "#/$defs/B"}},
            "$defs": {"A": {"properties": {"b": {"$ref": "#/$defs/B"}}}, "B": TEXT},
        },
    ),
    "alternatives by reference": (
        {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/no"}], "$defs": {"A": {"properties": {"a": TEXT}}}},
        {"type": "object", "properties": {"a": TEXT}, "$defs": {"A": {"properties": {"a": TEXT}}}},
    ),
    "conditions": ({"not": {"required": ["a"]}, "enum": [{}], "if": {}}, {"type": "object", "properties": {}}),
    "nonsense": ({"anyOf": "x", "properties": None, "required": 7}, {"type": "object", "properties": {}}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_schema_has_no_alternatives_at_its_root(name: str) -> None:
    given, expected = CASES[name]
    assert object_schema(given) == expected
    assert not FORBIDDEN & object_schema(given).keys()


@pytest.mark.parametrize("name", CASES)
def test_one_that_is_fine_stays_as_it_is_byte_for_byte(name: str) -> None:
    fine = msgspec.json.encode(CASES[name][1])
    assert bytes(accepted(fine)) == fine


@pytest.mark.parametrize("word", ["anyOf", "allOf"])
def test_alternatives_that_refer_to_each_other_without_end_cost_no_time(word: str) -> None:
    branches = [{"$ref": "#/$defs/A"}] * 200
    bomb = {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": TEXT}, word: branches, "$ref": "#/$defs/A"}}}
    began_s = time.thread_time()  # of this thread alone: a busy machine has no part in it
    assert object_schema(bomb)["properties"] == {"a": TEXT}
    assert time.thread_time() - began_s < 20, "one that follows them all never ends"


def test_what_a_client_declares_is_mended_as_well() -> None:
    tool = client_tool("t", schema=CASES["one of two is required"][0])
    assert msgspec.json.decode(tool.schema) == CASES["one of two is required"][1]
    assert accepted(b"[1]") == Raw(b'{"type":"object","properties":{}}')


def test_what_a_server_lists_is_mended_as_well() -> None:
    given, expected = CASES["alternatives with properties of their own"]
    assert msgspec.json.decode(_listed(McpTool(name="t", input_schema=given)).schema) == expected
