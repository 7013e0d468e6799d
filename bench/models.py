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

from bench.figures import Figures
from bench.provider import CHUNKS
from bench.sdks import SDKS, Bridged, Sdk
from holdfast.core.records import Message, Role, Text, ToolCall, ToolResult
from holdfast.models.base import Request
from holdfast.models.calls import Caller, Completed
from holdfast.models.resolve import Models

ROUNDS = 10
CALLS_IN_A_TURN = 4
AIM_MS = 2.0


@contextlib.contextmanager
def _provider() -> Iterator[str]:
    root = Path(__file__).resolve().parents[1]
    program = [sys.executable, "-m", "bench.provider"]
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


async def _one(made: Models, caller: Caller, sdk: type[Sdk], url: str, length: int) -> dict[str, float]:
    model = made.get(f"{sdk.kind}:bench@{url}{sdk.version}")
    history = _history(length)
    request = Request(messages=history)
    theirs = sdk(url, history)

    async def ours() -> int:
        done = await caller.call([model], request)
        assert isinstance(done, Completed)
        return done.message.text.count("word")

    try:
        return await _loop_cpu(ROUNDS, ours=ours, sdk=theirs.call)
    finally:
        await theirs.close()


async def models(figures: Figures) -> None:
    caller, made = Caller(), Models({})
    with _provider() as url:
        for sdk in SDKS:
            medians: dict[int, dict[str, float]] = {}
            for length in (2, 1_000):
                median = medians[length] = await _one(made, caller, sdk, f"{url}/at-once", length)
                name = f"models: {sdk.wire}, loop CPU of a call, {CHUNKS} chunks, {length:,} messages"
                note = f"{sdk.name}: {median['sdk']:.1f} ms"
                figures.add(name, median["ours"], "ms", at_most=AIM_MS if length == 1_000 else None, note=note)
            ratio, sdk_ratio = (medians[1_000][who] / medians[2][who] for who in ("ours", "sdk"))
            note = f"{sdk.name}: {sdk_ratio:.1f} ×"
            figures.add(f"models: {sdk.wire}, 1,000 messages / 2", ratio, "×", note=note)
        for length in (2, 1_000):
            median = await _one(made, caller, Bridged, f"{url}/at-once", length)
            name = f"models: {Bridged.wire}, loop CPU of a call, {CHUNKS} chunks, {length:,} messages"
            figures.add(name, median["sdk"], "ms", note=f"our own wire: {median['ours']:.1f} ms")
        median = await _one(made, caller, SDKS[0], f"{url}/paced", 2)
        note = f"{SDKS[0].name}: {median['sdk']:.1f} ms"
        figures.add(f"models: loop CPU of a call, {CHUNKS} chunks one by one", median["ours"], "ms", note=note)
        await made.aclose()
