"""A provider for the bench, in a process of its own: `python -m bench.chat_completions` prints its port.

It answers every request with the same stream of chunks, ready-made, so that it takes next to no time itself: as fast
as it can, or, where the path says `/paced`, with a pause after each.
"""

import asyncio
import contextlib
import json

CHUNKS = 50
PAUSE_S = 0.001


def _event(value: object) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    body = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def _chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-Bench", "object": "chat.completion.chunk", "created": 1, "model": "bench-2025-01-01"}
    return {**head, "service_tier": "default", "system_fingerprint": "fp_bench", "choices": [choice], "usage": None}


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WORDS = [_event(_chunk({"content": f" word{n}"})) for n in range(CHUNKS)]
USAGE = {**_chunk({}), "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 50, "total_tokens": 59}}
TAIL = _event(_chunk({}, "stop")) + _event(USAGE) + _event("[DONE]") + b"0\r\n\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(HEAD)
            for word in WORDS:
                writer.write(word)
                if b" /paced/" in head:
                    await asyncio.sleep(PAUSE_S)
            writer.write(TAIL)
            await writer.drain()
    writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
