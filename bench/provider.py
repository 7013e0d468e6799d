"""A provider for the bench, in a process of its own: `python -m bench.provider` prints its port.

It speaks the four wires, told apart by the path, and answers every request with the same stream of chunks,
ready-made, so that it takes next to no time itself: as fast as it can, or, where the path says `/paced`, with a pause
after each.
"""

import asyncio
import contextlib
import json
from typing import Any

CHUNKS = 50
PAUSE_S = 0.001

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TEXTS = [f" word{n}" for n in range(CHUNKS)]


def _event(value: object, name: str = "") -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    body = f"{f'event: {name}{chr(10)}' if name else ''}data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def _typed(type: str, **fields: Any) -> bytes:
    return _event({"type": type, **fields}, type)


def _chat() -> tuple[bytes, list[bytes], bytes]:
    def chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {"id": "chatcmpl-Bench", "object": "chat.completion.chunk", "created": 1, "model": "bench-2025-01-01"}
        more = {"service_tier": "default", "system_fingerprint": "fp_bench", "usage": None}
        return {**head, **more, "choices": [choice]}

    usage = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 50, "total_tokens": 59}}
    words = [_event(chunk({"content": text})) for text in TEXTS]
    return b"", words, _event(chunk({}, "stop")) + _event(usage) + _event("[DONE]")


def _responses() -> tuple[bytes, list[bytes], bytes]:
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "".join(TEXTS), "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 59,
    }
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "bench", "error": None, "tools": []}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto", "output": [], "status": "in_progress"}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    begin = _typed("response.created", sequence_number=0, response=response)
    begin += _typed("response.output_item.added", sequence_number=1, output_index=0, item={**item, "content": []})
    words = [
        _typed("response.output_text.delta", sequence_number=n + 2, **where, delta=text, logprobs=[])
        for n, text in enumerate(TEXTS)
    ]
    end = _typed("response.output_item.done", sequence_number=90, output_index=0, item=item)
    return begin, words, end + _typed("response.completed", sequence_number=91, response=done)


def _anthropic() -> tuple[bytes, list[bytes], bytes]:
    usage = {"input_tokens": 9, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "bench", "content": [], "usage": usage}
    begin = _typed("message_start", message={**message, "stop_reason": None, "stop_sequence": None})
    begin += _typed("content_block_start", index=0, content_block={"type": "text", "text": ""})
    words = [_typed("content_block_delta", index=0, delta={"type": "text_delta", "text": text}) for text in TEXTS]
    end = _typed("content_block_stop", index=0)
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    end += _typed("message_delta", delta=delta, usage={"output_tokens": 50}) + _typed("message_stop")
    return begin, words, end


def _gemini() -> tuple[bytes, list[bytes], bytes]:
    def chunk(text: str, **more: str) -> bytes:
        candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0, **more}
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 50, "totalTokenCount": 59}
        return _event({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "bench", "responseId": "r"})

    return b"", [chunk(text) for text in TEXTS], chunk("", finishReason="STOP")


WIRES = {
    b"/chat/completions": _chat(),
    b"/responses": _responses(),
    b"/messages": _anthropic(),
    b"/models/": _gemini(),
}


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            path = head.split(b" ")[1]
            begin, words, end = next(stream for part, stream in WIRES.items() if part in path)
            writer.write(HEAD + begin)
            for word in words:
                writer.write(word)
                if b"/paced/" in path:
                    await asyncio.sleep(PAUSE_S)
            writer.write(end + b"0\r\n\r\n")
            await writer.drain()
    writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
