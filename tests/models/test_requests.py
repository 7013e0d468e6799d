"""What the wires of Anthropic, OpenAI Responses and Gemini send, judged by the types of the providers' own SDKs."""

import base64
import json
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from holdfast.core.history import make_valid
from holdfast.core.records import (
    Cause,
    Expansion,
    File,
    Message,
    Reasoning,
    Role,
    Synthetic,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.errors import ProviderError
from holdfast.models.base import OutputSpec, Request, Settings, ToolSpec
from holdfast.models.wires import anthropic, gemini, openai_chat, openai_responses
from holdfast.models.wires.failures import provider_error, read_fields
from holdfast.models.wires.fragments import Fragments
from tests.models.judge import as_the_sdk_reads_it
from tests.models.judges import as_anthropic_reads_it, as_google_reads_it, as_openai_reads_it

PROVIDER = "me"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


class Sends:
    """A wire, and who judges it."""

    def __init__(self, name: str, module: Any, judge: Callable[[Any], Any]) -> None:
        self.name = name
        self.module = module
        self.judge = judge

    def __call__(self, *messages: Message, model: str = "m", known: Fragments | None = None, **request: Any) -> Any:
        body = json.loads(self.raw(*messages, model=model, known=known, **request))
        assert self.judge(body) == body  # their types drop what they do not know, or refuse it
        return body

    def raw(self, *messages: Message, model: str = "m", known: Fragments | None = None, **request: Any) -> bytes:
        made = Request(messages=messages, **request)
        sent: bytes = self.module.encode_request(model, made, known=known or self.module.new_fragments(PROVIDER))
        return sent


ANTHROPIC = Sends("anthropic", anthropic, as_anthropic_reads_it)
RESPONSES = Sends("responses", openai_responses, as_openai_reads_it)
GEMINI = Sends("gemini", gemini, as_google_reads_it)
WIRES = pytest.mark.parametrize("sends", [ANTHROPIC, RESPONSES, GEMINI], ids=lambda wire: wire.name)


def said(role: Role, *parts: Any, **more: Any) -> Message:
    return Message(id="x", role=role, parts=tuple(Text(text=p) if isinstance(p, str) else p for p in parts), **more)


def system(*parts: Any) -> Message:
    return said(Role.SYSTEM, *parts)


def user(*parts: Any) -> Message:
    return said(Role.USER, *parts)


def assistant(*parts: Any, **more: Any) -> Message:
    return said(Role.ASSISTANT, *parts, **more)


def call(n: int, arguments: str = '{"city":"Bern"}', **more: Any) -> ToolCall:
    return ToolCall(call_id=f"call_{n}", name="weather", arguments=arguments, **more)


def result(n: int, content: str = "rain", **more: Any) -> Message:
    return said(Role.TOOL, ToolResult(call_id=f"call_{n}", name="weather", content=content, **more))


def signed(signature: dict[str, Any], text: str = "", provider: str = PROVIDER) -> Reasoning:
    return Reasoning(text=text, provider=provider, signature=Raw(msgspec.json.encode(signature)))


STORY = (
    system("Be brief."),
    user("Weather in Bern and Basel?"),
    assistant("I look.", call(1), call(2, '{"city":"Basel"}')),
    result(1, "rain"),
    result(2, "no such city", error=True),
    assistant("Rain, ", "and who knows."),
    user("Tänk you 水"),
)


# --- one story, three languages


def test_anthropic_hears_results_as_the_users_words_all_in_one_message() -> None:
    body = ANTHROPIC(*STORY)
    for message in body["messages"]:
        for block in message["content"]:
            block.pop("cache_control", None)
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Bern and Basel?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bern"}},
                {"type": "tool_use", "id": "call_2", "name": "weather", "input": {"city": "Basel"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"},
                {"type": "tool_result", "tool_use_id": "call_2", "is_error": True, "content": "no such city"},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Rain, "}, {"type": "text", "text": "and who knows."}],
        },
        {"role": "user", "content": [{"type": "text", "text": "Tänk you 水"}]},
    ]
    assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, anthropic.MAX_TOKENS)


def test_responses_gets_items_and_stores_nothing() -> None:
    body = RESPONSES(*STORY)
    assert body == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather in Bern and Basel?"},
            {"role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Bern"}'},
            {"type": "function_call", "call_id": "call_2", "name": "weather", "arguments": '{"city":"Basel"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {"type": "function_call_output", "call_id": "call_2", "output": "no such city"},
            {"role": "assistant", "content": "Rain, "},
            {"role": "assistant", "content": "and who knows."},
            {"role": "user", "content": "Tänk you 水"},
        ],
    }


def test_gemini_hears_results_as_the_users_words_all_in_one_content() -> None:
    unsigned = base64.b64encode(b"skip_thought_signature_validator").decode()
    calls = [
        {"functionCall": {"id": "call_1", "name": "weather", "args": {"city": "Bern"}}, "thoughtSignature": unsigned},
        {"functionCall": {"id": "call_2", "name": "weather", "args": {"city": "Basel"}}},
    ]
    assert GEMINI(*STORY) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Weather in Bern and Basel?"}]},
            {"role": "model", "parts": [{"text": "I look."}, *calls]},
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "call_1", "name": "weather", "response": {"output": "rain"}}},
                    {"functionResponse": {"id": "call_2", "name": "weather", "response": {"error": "no such city"}}},
                ],
            },
            {"role": "model", "parts": [{"text": "Rain, "}, {"text": "and who knows."}]},
            {"role": "user", "parts": [{"text": "Tänk you 水"}]},
        ],
    }


@WIRES
def test_nothing_internal_is_sent(sends: Sends) -> None:
    history = [
        user("go"),
        assistant(call(1, cut=True), stopped=Cause.USER, model="secret-model", input_tokens=9),
        result(1, "cancelled", error=True, synthetic=Synthetic.CANCELLED),
        user("on"),
    ]
    raw = sends.raw(*history)
    for word in (b'"cut"', b"synthetic", b"stopped", b"secret-model", b"input_tokens", b"created_at", b'"x"'):
        assert word not in raw


@WIRES
def test_a_call_that_was_cut_off_is_sent_with_empty_arguments(sends: Sends) -> None:
    history = make_valid([user("go"), assistant(call(1, '{"city":"Be', cut=True)), user("on")])
    assert b"Be" not in sends.raw(*history).replace(b"Because", b"")
    sends(*history)


# --- settings and tools


def test_settings_and_tools_are_sent_as_each_provider_names_them() -> None:
    request: dict[str, Any] = {
        "tools": (
            ToolSpec(name="weather", description="Weather.", schema=SCHEMA),
            ToolSpec(name="now", schema=Raw(b'{"type":"object"}')),
        ),
        "settings": Settings(
            temperature=0.2,
            top_p=0.9,
            max_tokens=100,
            tool_choice="weather",
            parallel_calls=False,
            output=OutputSpec(name="answer", schema=SCHEMA, strict=True),
        ),
    }
    body = ANTHROPIC(user("hi"), **request)
    assert body["tools"] == [
        {"name": "weather", "description": "Weather.", "input_schema": SCHEMA},
        {"name": "now", "description": "", "input_schema": {"type": "object"}},
    ]
    assert body["tool_choice"] == {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.2, 0.9, 100)

    body = RESPONSES(user("hi"), **request)
    function = {"type": "function", "strict": False}
    assert body["tools"] == [
        {**function, "name": "weather", "description": "Weather.", "parameters": SCHEMA},
        {**function, "name": "now", "description": "", "parameters": {"type": "object"}},
    ]
    assert body["tool_choice"] == {"type": "function", "name": "weather"}
    assert body["text"] == {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}}
    assert (body["parallel_tool_calls"], body["max_output_tokens"], body["top_p"]) == (False, 100, 0.9)

    body = GEMINI(user("hi"), **request)
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "weather", "description": "Weather.", "parametersJsonSchema": SCHEMA},
                {"name": "now", "description": "", "parametersJsonSchema": {"type": "object"}},
            ]
        }
    ]
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}}
    assert body["generationConfig"] == {
        "temperature": 0.2,
        "topP": 0.9,
        "maxOutputTokens": 100,
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
    }


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ("auto", ("auto", "auto", "AUTO")),
        ("none", ("none", "none", "NONE")),
        ("required", ("any", "required", "ANY")),
    ],
)
def test_tool_choices_have_one_name_each(choice: str, named: tuple[str, str, str]) -> None:
    request: dict[str, Any] = {"tools": (ToolSpec(name="t"),), "settings": Settings(tool_choice=choice)}
    assert ANTHROPIC(user("hi"), **request)["tool_choice"] == {"type": named[0]}
    assert RESPONSES(user("hi"), **request)["tool_choice"] == named[1]
    assert GEMINI(user("hi"), **request)["toolConfig"] == {"functionCallingConfig": {"mode": named[2]}}


@WIRES
def test_without_tools_nothing_about_tools_is_sent(sends: Sends) -> None:
    body = sends(user("hi"), settings=Settings(tool_choice="auto", parallel_calls=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls", "toolConfig"} & body.keys()


SHOWN = {"type": "adaptive", "display": "summarized"}  # or they are silent for as long as they think


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-opus-5", "high", {"thinking": SHOWN, "output_config": {"effort": "high"}}),
        ("claude-opus-5", "minimal", {"thinking": SHOWN, "output_config": {"effort": "low"}}),
        ("glm-5", "low", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}),
        ("claude-opus-5", "none", {"thinking": {"type": "disabled"}}),
        (
            "claude-sonnet-4-5-20250929",
            "medium",
            {"thinking": {"type": "enabled", "budget_tokens": 10_000}, "max_tokens": 26_000},
        ),
    ],
)
def test_anthropic_is_told_how_hard_or_how_long_to_think(model: str, effort: str, expected: dict[str, Any]) -> None:
    body = ANTHROPIC(user("hi"), model=model, settings=Settings(reasoning_effort=effort))
    assert {name: body[name] for name in expected} == expected


def test_claude_is_told_the_temperature_where_it_is_known_not_to_think() -> None:
    thinks = Settings(temperature=0.2, reasoning_effort="high")
    body = ANTHROPIC(user("hi"), model="claude-sonnet-4-5", settings=thinks, unsupported=frozenset({"thinking"}))
    assert ("thinking" in body, body.get("temperature")) == (False, 0.2)


def test_newer_claude_models_are_not_told_a_temperature_which_they_refuse() -> None:
    for model, told in (("claude-opus-5", False), ("claude-sonnet-4-5", True), ("qwen3", True)):
        assert ("temperature" in ANTHROPIC(user("hi"), model=model, settings=Settings(temperature=0.2))) is told
        assert ("top_p" in ANTHROPIC(user("hi"), model=model, settings=Settings(top_p=0.9))) is told


def test_claude_is_told_a_temperature_or_top_p_and_never_both_which_it_refuses() -> None:
    given = Settings(temperature=0.2, top_p=0.9)
    for model, told in (("claude-sonnet-4-5", {"temperature"}), ("qwen3", {"temperature", "top_p"})):
        assert {"temperature", "top_p"} & ANTHROPIC(user("hi"), model=model, settings=given).keys() == told


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-sonnet-4-6", "qwen3"])
def test_what_does_not_go_with_thinking_is_left_out_of_a_request_to_anthropic(model: str) -> None:
    """Clients of the OpenAI-compatible API send a temperature with everything."""
    thinks = Settings(reasoning_effort="high", temperature=0.2, tool_choice="auto")
    asked: dict[str, Any] = {"model": model, "tools": (ToolSpec(name="t"),)}
    body = ANTHROPIC(user("hi"), settings=thinks, **asked)
    assert "thinking" in body
    assert "temperature" not in body
    assert "top_p" not in ANTHROPIC(user("hi"), settings=Settings(reasoning_effort="high", top_p=0.9), **asked)
    assert ANTHROPIC(user("hi"), settings=Settings(reasoning_effort="high", top_p=0.97), **asked)["top_p"] == 0.97
    for choice in ("required", "t"):
        forced = Settings(reasoning_effort="high", temperature=0.2, tool_choice=choice)
        body = ANTHROPIC(user("hi"), settings=forced, **asked)
        assert "thinking" not in body
        assert body["temperature"] == 0.2
    body = ANTHROPIC(user("hi"), settings=Settings(reasoning_effort="none", temperature=0.2), **asked)
    assert body["temperature"] == 0.2


def test_anthropic_never_thinks_longer_than_it_may_answer() -> None:
    body = ANTHROPIC(
        user("hi"), model="claude-sonnet-4-5", settings=Settings(reasoning_effort="high", max_tokens=4_096)
    )
    assert (body["max_tokens"], body["thinking"]["budget_tokens"]) == (4_096, 2_048)
    body = ANTHROPIC(
        user("hi"), model="claude-sonnet-4-5", settings=Settings(reasoning_effort="high", max_tokens=100)
    )
    assert "thinking" not in body
    made = Request(messages=[user("hi")], settings=Settings(reasoning_effort="xhigh"))
    known = anthropic.new_fragments(PROVIDER)
    sent = json.loads(anthropic.encode_request("claude-opus-4-1", made, known=known, output_limit=32_000))
    assert (sent["max_tokens"], sent["thinking"]["budget_tokens"]) == (32_000, 16_000)


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gemini-2.5-pro", "low", {"includeThoughts": True, "thinkingBudget": 2_048}),
        ("models/gemini-2.5-flash", "none", {"includeThoughts": False, "thinkingBudget": 0}),
        ("gemini-3-pro-preview", "high", {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        ("gemini-3-pro-preview", "xhigh", {"includeThoughts": True, "thinkingLevel": "HIGH"}),
    ],
)
def test_gemini_is_told_how_hard_or_how_long_to_think(model: str, effort: str, expected: dict[str, Any]) -> None:
    body = GEMINI(user("hi"), model=model, settings=Settings(reasoning_effort=effort))
    assert body["generationConfig"]["thinkingConfig"] == expected


def test_a_model_of_openai_that_is_to_think_is_to_show_it_unless_it_may_not() -> None:
    thinks = Settings(reasoning_effort="high")
    assert RESPONSES(user("hi"), settings=thinks)["reasoning"] == {"effort": "high", "summary": "auto"}
    assert RESPONSES(user("hi"), settings=Settings(reasoning_effort="none"))["reasoning"] == {"effort": "none"}
    assert "reasoning" not in RESPONSES(user("hi"))
    body = {
        "message": "Your organization must be verified to generate reasoning summaries.",
        "type": "invalid_request_error",
        "param": "reasoning.summary",
        "code": "unsupported_value",
    }
    fields = read_fields(json.dumps({"error": body}).encode())
    error = provider_error("m", 400, fields, amendable=openai_responses.AMENDABLE)
    assert error.parameter == "reasoning.summary"
    refused = frozenset({error.parameter})
    assert RESPONSES(user("hi"), settings=thinks, unsupported=refused)["reasoning"] == {"effort": "high"}


def test_responses_says_that_it_has_no_stop_sequences() -> None:
    with pytest.raises(ProviderError, match="openai-chat:MODEL") as caught:
        RESPONSES(user("hi"), settings=Settings(stop=("END",)))
    assert caught.value.code == "bad_request"
    assert ANTHROPIC(user("hi"), settings=Settings(stop=("END",)))["stop_sequences"] == ["END"]
    assert GEMINI(user("hi"), settings=Settings(stop=("END",)))["generationConfig"]["stopSequences"] == ["END"]


@WIRES
def test_a_parameter_that_was_refused_is_left_out(sends: Sends) -> None:
    given = Settings(temperature=0.5, reasoning_effort="low", output=OutputSpec(name="a", schema=SCHEMA))
    body = sends(user("hi"), settings=given, unsupported=sends.module.AMENDABLE)
    assert "0.5" not in json.dumps(body)
    assert not {"thinking", "reasoning", "include"} & body.keys()
    assert "low" not in json.dumps(body)
    assert "city" in json.dumps(body), "what the answer has to be is no matter of taste"


@WIRES
def test_what_a_caller_adds_goes_into_the_request_as_it_is_but_never_instead_of_the_history(sends: Sends) -> None:
    extra = {"messages": [], "input": [], "contents": [], "metadata": {"user_id": "u-1"}}
    raw = sends.raw(user("hello there"), settings=Settings(extra=extra))
    assert b"u-1" in raw
    assert b"hello there" in raw


# --- reasoning

OF_ANTHROPIC = {"type": "thinking", "signature": "sig-a"}
OF_RESPONSES = {"type": "reasoning", "id": "rs_1", "encrypted_content": "sig-r"}
OF_GEMINI = {"thoughtSignature": "c2lnLWc="}


def test_signed_reasoning_goes_back_in_its_place() -> None:
    body = ANTHROPIC(
        user("go"),
        assistant(signed(OF_ANTHROPIC, "hm"), signed({"type": "redacted_thinking", "data": "xyz"}), "So", call(1)),
        result(1),
    )
    assert body["messages"][1]["content"][:3] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig-a"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "So"},
    ]
    body = RESPONSES(user("go"), assistant(signed(OF_RESPONSES, "hm"), call(1)), result(1))
    assert body["input"][1] == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "sig-r",
    }
    body = GEMINI(user("go"), assistant(signed(OF_GEMINI, "hm"), call(1), call(2)), result(1), result(2))
    assert [part.get("thoughtSignature") for part in body["contents"][1]["parts"]] == ["c2lnLWc=", None]
    assert "hm" not in json.dumps(body)


def test_a_signature_of_gemini_goes_back_on_the_part_it_came_with() -> None:
    parts = GEMINI(user("go"), assistant("a", signed(OF_GEMINI), "b"), user("on"))["contents"][1]["parts"]
    assert parts == [{"text": "a"}, {"text": "b", "thoughtSignature": "c2lnLWc="}]
    parts = GEMINI(user("go"), assistant("a", signed(OF_GEMINI)), user("on"))["contents"][1]["parts"]
    assert parts == [{"text": "a"}, {"text": "", "thoughtSignature": "c2lnLWc="}]
    thought = signed({**OF_GEMINI, "thought": True}, "hm")
    parts = GEMINI(user("go"), assistant(thought, "a"), user("on"))["contents"][1]["parts"]
    assert parts == [{"text": "hm", "thought": True, "thoughtSignature": "c2lnLWc="}, {"text": "a"}]


@WIRES
@pytest.mark.parametrize("signature", [OF_ANTHROPIC, OF_RESPONSES, OF_GEMINI, {"x": 1}, "text", None])
def test_reasoning_is_sent_to_nobody_but_the_provider_that_signed_it(sends: Sends, signature: Any) -> None:
    raw = sends.raw(user("go"), assistant(signed(signature, "hm", provider="another"), "So"), user("on"))
    assert b"hm" not in raw
    assert b"sig-" not in raw
    assert b"c2lnLWc=" not in raw
    sends(user("go"), assistant(signed(signature, "hm", provider="another"), "So"), user("on"))


@pytest.mark.parametrize("sends", [ANTHROPIC, RESPONSES], ids=lambda wire: wire.name)
@pytest.mark.parametrize("signature", [OF_ANTHROPIC, OF_RESPONSES, OF_GEMINI])
def test_a_server_with_two_wires_gets_back_on_each_what_it_signed_there(sends: Sends, signature: Any) -> None:
    mine = (sends is ANTHROPIC and signature is OF_ANTHROPIC) or (sends is RESPONSES and signature is OF_RESPONSES)
    body = sends(user("go"), assistant(signed(signature, "hm"), "So"), user("on"))
    assert ("hm" in json.dumps(body)) is mine


@pytest.mark.parametrize(
    ("sends", "signature"), [(ANTHROPIC, OF_ANTHROPIC), (RESPONSES, OF_RESPONSES)], ids=["anthropic", "responses"]
)
def test_reasoning_that_a_stop_cut_off_from_what_it_led_to_is_not_sent(sends: Sends, signature: Any) -> None:
    """Both providers refuse reasoning that nothing follows."""
    body = sends(user("go"), assistant("So", signed(signature, "hm")), user("on"))
    assert "hm" not in json.dumps(body)
    body = sends(user("go"), assistant(signed(signature, "hm")), user("on"))
    assert "assistant" not in json.dumps(body)


# --- files

IMAGE = File(media_type="image/png", uri="data:image/png;base64,AAAA")
IMAGE_URL = File(media_type="image/png", uri="https://example.org/x.png")
PDF = File(media_type="application/pdf", uri="data:application/pdf;base64,AAAA", name="a.pdf")
PDF_URL = File(media_type="application/pdf", uri="https://example.org/a.pdf")
NOTES = File(media_type="text/markdown", uri="data:text/markdown,%23%20Hi", name="notes.md")


def test_images_and_files_are_sent_as_each_provider_takes_them() -> None:
    content = ANTHROPIC(user("Look:", IMAGE, IMAGE_URL, PDF, PDF_URL, NOTES))["messages"][0]["content"]
    content[-1].pop("cache_control")
    assert content[1:] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
            "title": "a.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "# Hi"},
            "title": "notes.md",
        },
    ]
    content = RESPONSES(user("Look:", IMAGE, IMAGE_URL, PDF, PDF_URL, NOTES))["input"][0]["content"]
    assert content[1:] == [
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        {"type": "input_image", "image_url": "https://example.org/x.png", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_file", "file_url": "https://example.org/a.pdf"},
        {"type": "input_text", "text": "[file notes.md]\n# Hi"},
    ]
    parts = GEMINI(user("Look:", IMAGE, IMAGE_URL, NOTES))["contents"][0]["parts"]
    assert parts[1:] == [
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/x.png"}},
        {"inlineData": {"mimeType": "text/markdown", "data": base64.b64encode(b"# Hi").decode()}},
    ]


def test_what_a_slash_command_stands_for_is_said_after_what_was_typed() -> None:
    asked = user("/review it", Expansion(name="review", source="skill", text="Look for races."))
    content = ANTHROPIC(asked)["messages"][0]["content"]
    assert [block["text"] for block in content] == ["/review it", "Look for races."]
    content = RESPONSES(asked)["input"][0]["content"]
    assert [block["text"] for block in content] == ["/review it", "Look for races."]
    parts = GEMINI(asked)["contents"][0]["parts"]
    assert parts == [{"text": "/review it"}, {"text": "Look for races."}]


@pytest.mark.parametrize(
    ("sends", "file", "words"),
    [
        (ANTHROPIC, File(media_type="audio/wav", uri="data:audio/wav;base64,AAAA"), "audio/wav"),
        (ANTHROPIC, File(media_type="text/plain", uri="https://example.org/a.txt"), "text as data: URIs"),
        (ANTHROPIC, File(media_type="text/plain", uri="data:text/plain;base64,/w=="), "said to be text"),
        (RESPONSES, File(media_type="application/pdf", uri="s3://bucket/a.pdf"), "data: URI or as a URL"),
        (GEMINI, File(media_type="image/png", uri="data:image/png;base64"), "no comma"),
    ],
)
def test_a_file_that_a_wire_cannot_carry_is_an_error_that_says_so(sends: Sends, file: File, words: str) -> None:
    with pytest.raises(ProviderError, match=words) as caught:
        sends(user(file))
    assert caught.value.code == "bad_request"


# --- what a provider refuses


def test_an_image_in_a_result_is_shown_as_each_provider_takes_it() -> None:
    """Chat Completions has only text in results: there the images follow behind the last result of the batch."""
    file = File(media_type="image/png", uri="data:image/png;base64,AAAA")
    said = [user("Look."), assistant(call(1), call(2)), result(1, "a chart", files=(file,)), result(2)]
    block = ANTHROPIC(*said)["messages"][-1]["content"][0]["content"]
    assert [part["type"] for part in block] == ["text", "image"]
    output = RESPONSES(*said)["input"][-2]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image"]
    parts = GEMINI(*said)["contents"][-1]["parts"]
    assert [next(iter(part)) for part in parts] == ["functionResponse", "inlineData", "functionResponse"]
    body = json.loads(openai_chat.encode_request("m", Request(messages=[*said, assistant("Fine.")])))
    assert as_the_sdk_reads_it(body) == body
    assert [message["role"] for message in body["messages"]] == [
        "user", "assistant", "tool", "tool", "user", "assistant",
    ]  # fmt: skip
    assert [part["type"] for part in body["messages"][4]["content"]] == ["text", "image_url"]


def test_any_json_object_is_asked_for_as_each_provider_names_it() -> None:
    asked = Settings(output=OutputSpec(name="json_object", schema={"type": "object"}, any_object=True))
    assert "nothing else" in ANTHROPIC(user("go"), settings=asked)["system"][0]["text"]
    assert RESPONSES(user("go"), settings=asked)["text"] == {"format": {"type": "json_object"}}
    assert GEMINI(user("go"), settings=asked)["generationConfig"] == {"responseMimeType": "application/json"}
    chat = json.loads(openai_chat.encode_request("m", Request(messages=[user("go")], settings=asked)))
    assert chat["response_format"] == {"type": "json_object"}


def test_anthropic_gets_no_block_of_white_space() -> None:
    body = ANTHROPIC(system(" "), user("hi", "\n"), assistant("\n\n", call(1)), result(1), assistant(" "), user(" "))
    assert "system" not in body
    assert [[block["type"] for block in message["content"]] for message in body["messages"]] == [
        ["text"],
        ["tool_use"],
        ["tool_result", "text"],
    ]
    assert body["messages"][2]["content"][1]["text"] == "(no text)"


def test_the_sides_take_turns_whatever_the_history_is() -> None:
    history = (user("a"), user("b"), assistant("c"), assistant("d"), user("e"))
    for body, key in ((ANTHROPIC(*history), "messages"), (GEMINI(*history), "contents")):
        assert [message["role"] in ("assistant", "model") for message in body[key]] == [False, True, False]


WORDS = st.text(alphabet=st.characters(codec="utf-8"), max_size=6)
IDS = st.sampled_from(["call_1", "call_2", "call_3"])
SIGNATURES = st.sampled_from([OF_ANTHROPIC, OF_RESPONSES, OF_GEMINI, None])
PARTS = st.one_of(
    st.builds(Text, text=WORDS),
    st.builds(signed, SIGNATURES, WORDS, st.sampled_from([PROVIDER, "another"])),
    st.builds(
        ToolCall, call_id=IDS, name=st.just("t"), arguments=st.sampled_from(["", "{}", '{"a":1}', '{"a"', "[]"])
    ),
    st.builds(ToolResult, call_id=IDS, name=st.just("t"), content=WORDS),
    st.sampled_from([IMAGE, IMAGE_URL, PDF]),
)
HISTORIES = st.lists(
    st.builds(Message, id=st.just("m"), role=st.sampled_from(Role), parts=st.lists(PARTS, max_size=3).map(tuple))
)


@WIRES
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a timing decides nothing
@given(history=HISTORIES)
def test_any_valid_history_is_a_request_the_sdk_understands(sends: Sends, history: list[Message]) -> None:
    valid = make_valid(history)
    raw = sends.raw(*valid)
    sends(*valid)
    expected = [call.call_id for message in valid for call in message.calls]
    body = json.loads(raw)
    assert list(calls_in(body)) == expected
    assert list(results_in(body)) == expected


def calls_in(body: Any) -> list[str]:
    blocks = [block for message in body.get("messages", ()) for block in message["content"]]
    parts = [part for content in body.get("contents", ()) for part in content["parts"]]
    return [
        *(block["id"] for block in blocks if block["type"] == "tool_use"),
        *(item["call_id"] for item in body.get("input", ()) if item.get("type") == "function_call"),
        *(part["functionCall"]["id"] for part in parts if "functionCall" in part),
    ]


def results_in(body: Any) -> list[str]:
    blocks = [block for message in body.get("messages", ()) for block in message["content"]]
    parts = [part for content in body.get("contents", ()) for part in content["parts"]]
    return [
        *(block["tool_use_id"] for block in blocks if block["type"] == "tool_result"),
        *(item["call_id"] for item in body.get("input", ()) if item.get("type") == "function_call_output"),
        *(part["functionResponse"]["id"] for part in parts if "functionResponse" in part),
    ]


# --- prompt caching


def marks(body: Any) -> list[bool]:
    """Of every system block, then of every message: is its end marked? And is nothing else?"""
    messages = [message["content"] for message in body["messages"]]
    blocks = [*([block] for block in body.get("system", ())), *messages]
    assert sum("cache_control" in block for content in blocks for block in content) == sum(
        "cache_control" in content[-1] for content in blocks
    )
    return ["cache_control" in content[-1] for content in blocks]


def test_the_last_system_block_and_the_last_two_messages_are_marked_and_nothing_else() -> None:
    history = (system("a"), system("b"), user("c"), assistant("d"), user("e"))
    body = ANTHROPIC(*history)
    assert marks(body) == [False, True, False, True, True]
    assert body["system"][1]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ((user("c"),), [True]),
        ((user("c"), assistant("d")), [True, True]),
        ((system("a"), user("c")), [True, True]),
        ((system("a", "b"), user("c", IMAGE), assistant("d", call(1), call(2)), result(1), result(2)),
         [False, True, False, True, True]),
        ((user("c"), assistant(signed(OF_ANTHROPIC, "hm"), "d"), user("e"), assistant("f"), user("g")),
         [False, False, False, True, True]),
    ],
)  # fmt: skip
def test_the_marks_stand_at_the_end_of_messages_of_any_kind(
    history: tuple[Message, ...], expected: list[bool]
) -> None:
    tools = (ToolSpec(name="weather"),)
    assert marks(ANTHROPIC(*history, tools=tools)) == expected


def test_wires_without_explicit_caching_get_no_marks() -> None:
    for sends in (RESPONSES, GEMINI):
        assert b"cache" not in sends.raw(*STORY)


MARK = b',"cache_control":{"type":"ephemeral"}'


@WIRES
@pytest.mark.parametrize("shared", [True, False])
def test_what_was_sent_before_is_sent_again_byte_for_byte(sends: Sends, shared: bool) -> None:
    """A cache finds only what begins the same: a step adds to the request and changes nothing before."""
    history = [
        system("a"),
        *STORY,
        assistant(signed(OF_ANTHROPIC, "hm"), call(3)),
        result(3),
        assistant("x"),
        user("y"),
    ]
    tools = (ToolSpec(name="weather", schema=SCHEMA),)
    known = sends.module.new_fragments(PROVIDER) if shared else None
    before = b""
    for length in range(3, len(history) + 1):
        if isinstance(history[length - 1].parts[0], ToolCall):
            continue
        request = sends.raw(*history[:length], tools=tools, known=known).replace(MARK, b"")
        assert request.startswith(before.rstrip(b"]}")), length
        before = request


@WIRES
def test_a_message_is_encoded_once(sends: Sends) -> None:
    encoded: list[Message] = []

    def encode(message: Message) -> bytes:
        encoded.append(message)
        made: bytes = sends.module.encode_message(message, PROVIDER)
        return made

    known = Fragments(encode)
    first = sends.raw(*STORY, known=known)
    assert sends.raw(*STORY, known=known) == first
    assert len(encoded) == len(
        [message for message in STORY if message.role is not Role.SYSTEM or sends is RESPONSES]
    )


def python_calls(work: Callable[[], object]) -> int:
    """Of functions of holdfast: what collects garbage meanwhile, and what listens to that, is not counted."""
    calls = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_globals.get("__name__", "").startswith("holdfast.")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "wire", [anthropic, openai_responses, gemini, openai_chat], ids=lambda wire: wire.__name__.rpartition(".")[2]
)
def test_a_history_that_was_sent_before_is_not_looked_through_again(wire: Any) -> None:
    """A function of Python per message doubled what a call with 1,000 messages costs the event loop."""
    short = [
        user("a"),
        *(said for n in range(4) for said in (assistant(call(n)), result(n), assistant("b"), user("c"))),
    ]
    long = short * 50
    known = openai_chat.OpenAIChatFragments() if wire is openai_chat else wire.new_fragments(PROVIDER)
    requests = {"short": Request(messages=short), "long": Request(messages=long)}
    calls = {}
    for name, request in requests.items():
        wire.encode_request("m", request, known=known)
        calls[name] = python_calls(partial(wire.encode_request, "m", request, known=known))
    assert calls["long"] == calls["short"]
