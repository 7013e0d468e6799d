"""Models of pydantic-ai, through the bridge: its own test models, and its OpenAI model on a server of ours."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.core.records import Message, Reasoning, Role, Text, ToolCall, ToolResult
from holdfast.errors import ConfigError, ConnectionFailed, ProviderError
from holdfast.models.base import OutputSpec, Request, Settings, StreamPart, ToolSpec, Usage
from holdfast.models.calls import Caller, Completed
from holdfast.models.pydantic_ai_bridge import PydanticAI
from holdfast.models.resolve import Models
from tests.models.conftest import Serve, asking
from tests.support.chat_server import ChatServer, Cut, Reply, Stall, Step, chunk, refusing, saying
from tests.support.speakers import Call, Chat

pytestmark = pytest.mark.timeout(60)


On = Callable[[ChatServer], PydanticAI]


@pytest.fixture
async def on() -> AsyncIterator[On]:
    made: list[PydanticAI] = []

    def make(server: ChatServer) -> PydanticAI:
        provider = OpenAIProvider(base_url=server.url, api_key="sk-test")
        made.append(PydanticAI(OpenAIChatModel("m", provider=provider)))
        return made[-1]

    yield make
    for model in made:
        await model.aclose()


async def asked(model: PydanticAI, request: Request | None = None) -> Completed:
    done = await Caller().call([model], request or asking())
    assert isinstance(done, Completed)
    return done


async def parts_of(model: PydanticAI) -> list[StreamPart]:
    async with aclosing(model.stream(asking())) as parts:
        return [part async for part in parts]


async def error_of(model: PydanticAI) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await parts_of(model)
    return caught.value


async def test_a_model_of_pydantic_ai_streams_text_and_counts() -> None:
    done = await asked(PydanticAI(TestModel(custom_output_text="Hello there")))
    assert done.message.text == "Hello there"
    assert done.message.model == "pydantic-ai:test:test"
    assert done.finished.reason == "stop"
    assert done.usage is not None
    assert done.usage.output_tokens > 0


async def test_a_history_is_told_in_its_words_and_a_call_with_reasoning_comes_back() -> None:
    heard: list[ModelMessage] = []
    tools: list[Any] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        heard.extend(messages)
        tools.extend(info.function_tools)
        yield {0: DeltaThinkingPart(content="hm")}
        yield {0: DeltaThinkingPart(signature="sig")}
        yield {1: DeltaToolCall(name="weather", json_args='{"city"', tool_call_id="x")}
        yield {1: DeltaToolCall(json_args=':"Bern"}')}

    model = PydanticAI(FunctionModel(stream_function=answer))
    called = (Text(text="I look."), ToolCall(call_id="call_1", name="weather", arguments="{}"))
    history = (
        Message(id="s", role=Role.SYSTEM, parts=(Text(text="Be brief."),)),
        Message(id="u", role=Role.USER, parts=(Text(text="Weather?"),)),
        Message(id="a", role=Role.ASSISTANT, parts=called),
        Message(id="r", role=Role.TOOL, parts=(ToolResult(call_id="call_1", name="weather", content="rain"),)),
    )
    done = await asked(model, Request(messages=history, tools=(ToolSpec(name="weather", description="W."),)))
    requests = [part for message in heard if isinstance(message, ModelRequest) for part in message.parts]
    assert [type(part) for part in requests] == [SystemPromptPart, UserPromptPart, ToolReturnPart]
    responses = [part for message in heard if isinstance(message, ModelResponse) for part in message.parts]
    assert [type(part) for part in responses] == [TextPart, ToolCallPart]
    assert [tool.name for tool in tools] == ["weather"]
    reasoning, call = done.message.parts
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.text, reasoning.signed, reasoning.provider) == ("hm", True, "pydantic-ai:function")
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("weather", '{"city":"Bern"}')
    assert done.finished.reason == "tool_calls"

    heard.clear()
    user = Message(id="u", role=Role.USER, parts=(Text(text="on"),))
    await asked(model, Request(messages=(done.message, user)))
    assert isinstance(heard[0], ModelResponse)
    thought = heard[0].parts[0]
    assert isinstance(thought, ThinkingPart)
    assert (thought.content, thought.signature) == ("hm", "sig")


async def test_its_openai_model_works_on_a_server_of_ours(serve: Serve, on: On) -> None:
    says = Chat()
    steps: tuple[Step, ...] = (
        *says.begin(),
        *says.calls(Call("a", ('{"x"', ":1}")), Call("b")),
        *says.end("tool_calls"),
    )
    server = await serve(Reply(steps=steps))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    settings = Settings(temperature=0.5, max_tokens=9, output=OutputSpec(name="answer", schema=schema))
    done = await asked(
        on(server), Request(messages=asking().messages, tools=(ToolSpec(name="a"),), settings=settings)
    )
    assert [(call.name, call.arguments) for call in done.message.calls] == [("a", '{"x":1}'), ("b", "{}")]
    assert done.usage == Usage(input_tokens=7, output_tokens=3, cached_tokens=2, reasoning_tokens=1)
    body = server.asked[0].body
    assert (body["temperature"], body["tools"][0]["function"]["name"]) == (0.5, "a")
    assert body["response_format"]["json_schema"]["name"] == "answer"


async def test_its_retries_are_off_and_its_errors_keep_their_kind(serve: Serve, on: On) -> None:
    server = await serve(refusing(429, "slow down", retry_after="7"))
    error = await error_of(on(server))
    assert (error.code, error.status, error.retry_after_s) == ("rate_limit", 429, 7.0)
    assert len(server.asked) == 1
    server = await serve(refusing(400, "This model's maximum context length is 8192 tokens."))
    assert (await error_of(on(server))).code == "context_too_long"
    server = await serve(refusing(500, "boom"))
    assert (await error_of(on(server))).code == "server_error"
    assert len(server.asked) == 1


async def test_a_stream_that_is_cut_or_ends_early_is_never_an_answer(serve: Serve, on: On) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Cut())))
    assert (await error_of(on(server))).code in ("connection", "lost_result", "server_error")
    server = await serve(Reply(steps=(chunk({"content": "Hel"}),)), saying("Hello"))
    done = await asked(on(server))
    assert done.message.text == "Hello"
    assert done.failed[0].code == "lost_result"


async def test_nobody_listens() -> None:
    with socket.socket() as taken:  # so that nobody else can listen there either
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        model = PydanticAI(OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="sk-test")))
        error = await error_of(model)
        await model.aclose()
    assert error.code == ConnectionFailed.code


async def test_closing_the_stream_closes_the_socket(serve: Serve, on: On) -> None:
    server = await serve(Reply(steps=(chunk({"content": "Hel"}), Stall())))
    parts: list[StreamPart] = []
    async with aclosing(on(server).stream(asking())) as stream:
        async for part in stream:
            parts.append(part)
            if len(parts) == 2:
                break
    await server.until_streaming(0)


def test_a_name_of_pydantic_ai_makes_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Models({}).get("pydantic-ai:test")
    assert (model.name, model.provider) == ("pydantic-ai:test", "pydantic-ai:test")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        Models({}).get("pydantic-ai:openai-chat:gpt-5")
    with pytest.raises(ConfigError, match="cannot be made by pydantic-ai"):
        Models({}).get("pydantic-ai:nobody:x")
    with pytest.raises(ConfigError, match="write pydantic-ai:PROVIDER:MODEL"):
        Models({}).get("pydantic-ai")


def test_without_pydantic_ai_the_error_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "from holdfast.errors import ConfigError\n"
        "from holdfast.models import resolve\n"
        "resolve.find_spec = lambda name: None\n"
        "try: resolve.Models({}).get('pydantic-ai:groq:x')\n"
        "except ConfigError as error: print(error)\n"
        "assert 'pydantic_ai' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "pip install 'holdfast[pydantic-ai]'" in done.stdout, done.stderr
