"""What one streamed model call costs the event loop: ours beside the provider's own SDK, in turns, in the same run.

Counted is the CPU time of the loop's thread; the server is another process. Chunks that come together are the aim;
chunks that come one by one wake the loop for each, which costs more than reading them, whoever does it.
"""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from bench.chat_completions import CHUNKS
from bench.figures import Figures
from holdfast.core.records import Message, Role, Text, ToolCall, ToolResult
from holdfast.models.base import Request
from holdfast.models.calls import Caller, Completed
from holdfast.models.resolve import Models

ROUNDS = 10
CALLS_IN_A_TURN = 4


@contextlib.contextmanager
def _provider() -> Iterator[str]:
    root = Path(__file__).resolve().parents[1]
    program = [sys.executable, "-m", "bench.chat_completions"]
    with subprocess.Popen(program, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _history(length: int) -> list[Message]:
    """As an agent makes it: question, call, result, answer."""
    words = "some words about the weather, as long as an answer is " * 4
    messages: list[Message] = []
    while len(messages) < length:
        call = ToolCall(call_id=f"call_{len(messages)}", name="weather", arguments='{"city":"Bern","days":3}')
        result = ToolResult(call_id=call.call_id, name="weather", content=words)
        for role, part in (
            (Role.USER, Text(text=words)),
            (Role.ASSISTANT, call),
            (Role.TOOL, result),
            (Role.ASSISTANT, Text(text=words)),
        ):
            messages.append(Message(id=f"m{len(messages)}", role=role, parts=(part,)))
    return messages[:length]


def _as_the_sdk_wants_it(messages: list[Message]) -> list[Any]:
    said: list[Any] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                said.append({"role": "tool", "tool_call_id": part.call_id, "content": part.content})
            elif isinstance(part, ToolCall):
                function = {"name": part.name, "arguments": part.arguments}
                calls = [{"id": part.call_id, "type": "function", "function": function}]
                said.append({"role": "assistant", "tool_calls": calls})
            elif isinstance(part, Text):
                said.append({"role": str(message.role), "content": part.text})
    return said


async def _loop_cpu(rounds: int, **variants: Callable[[], Awaitable[int]]) -> dict[str, float]:
    """Median milliseconds of the loop's thread, in turns of a few calls: the first one of a turn only warms up."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            for n in range(CALLS_IN_A_TURN):
                began = time.thread_time()
                pieces = await call()
                spent = time.thread_time() - began
                assert pieces == CHUNKS
                if n:
                    times[name].append(spent)
    return {name: statistics.median(spent) * 1e3 for name, spent in times.items()}


async def models(figures: Figures) -> None:
    with _provider() as url:
        caller, made = Caller(), Models({})
        medians: dict[int, dict[str, float]] = {}
        for length, path in ((2, "at-once"), (1_000, "at-once"), (2, "paced")):
            model = made.get(f"compatible:bench@{url}/{path}/v1")
            sdk = AsyncOpenAI(base_url=f"{url}/{path}/v1", api_key="none", max_retries=0)
            history = _history(length)
            theirs = _as_the_sdk_wants_it(history)

            async def ours_calls(model: Any = model, request: Request = Request(messages=history)) -> int:  # noqa: B008
                done = await caller.call([model], request)
                assert isinstance(done, Completed)
                return done.message.text.count("word")

            async def sdk_calls(sdk: AsyncOpenAI = sdk, messages: list[Any] = theirs) -> int:
                stream = await sdk.chat.completions.create(
                    model="bench", messages=messages, stream=True, stream_options={"include_usage": True}
                )
                text = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
                return "".join(text).count("word")

            median = await _loop_cpu(ROUNDS, ours=ours_calls, sdk=sdk_calls)
            note = f"OpenAI SDK: {median['sdk']:.1f} ms"
            if path == "paced":
                name = f"models: loop CPU of a call, {CHUNKS} chunks one by one"
                figures.add(name, median["ours"], "ms", note=note)
            else:
                medians[length] = median
                name = f"models: loop CPU of a call, {CHUNKS} chunks, {length:,} messages"
                figures.add(name, median["ours"], "ms", at_most=2.0 if length == 1_000 else None, note=note)
            await sdk.close()
        ratio = medians[1_000]["ours"] / medians[2]["ours"]
        sdk_ratio = medians[1_000]["sdk"] / medians[2]["sdk"]
        figures.add("models: 1,000 messages / 2", ratio, "×", note=f"OpenAI SDK: {sdk_ratio:.1f} ×")
        await made.aclose()
