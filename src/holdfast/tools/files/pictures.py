"""Images and PDFs as parts that a model sees. What a file is, its first bytes say, never its name."""

import base64
import os

from holdfast.core.records import File
from holdfast.errors import ToolFailed

SHOWN_BYTES_MAX = 3_500_000  # in base64 4.7 MB: of the providers' limits for one image the lowest is 5 MB

_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}


def media_type(head: bytes) -> str | None:
    """Of a file that begins like this; None if it is none that a model is shown."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begins, kind in _BEGINNINGS.items() if head.startswith(begins)), None)


def shown_file(file: int, size: int, kind: str, name: str) -> File:
    """Raises ToolFailed if it is too large to be shown."""
    if size > SHOWN_BYTES_MAX:
        raise ToolFailed(
            f"{name} is {kind} of {size:,} bytes, and up to {SHOWN_BYTES_MAX:,} are shown: make a smaller copy first"
        )
    data = os.pread(file, SHOWN_BYTES_MAX, 0)
    uri = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return File(media_type=kind, uri=uri, name=name.rpartition("/")[2], size_bytes=len(data))
