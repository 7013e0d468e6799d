"""Small texts for people: made safe for a terminal, cut to size, times in words."""

import time

from holdfast.core.codec import decode_json
from holdfast.safe_text import safe


def line(text: str, width: int = 100) -> str:
    """One safe line."""
    flat = " ".join(safe(text[: width * 4]).split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def arguments_of(text: str, width: int = 80) -> str:
    """A call's arguments as a person would write them: city='Bern'."""
    try:
        found = decode_json(text or "{}")
    except ValueError:
        return line(text, width)
    if not isinstance(found, dict):
        return line(text, width)
    return line(", ".join(f"{name}={value!r}" for name, value in found.items()), width)


def seconds(ms: float) -> str:
    s = max(ms, 0) / 1000
    return f"{s:.1f} s" if s < 60 else f"{int(s // 60)} min {int(s % 60)} s"


def ago(at_ms: int) -> str:
    gone_ms = time.time() * 1000 - at_ms
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if gone_ms >= size:
            return f"{gone_ms / size:.0f} {unit} ago"
    return f"{max(gone_ms, 0) / 1000:.0f} s ago"
