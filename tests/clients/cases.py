"""What each client has to do, and how it is judged by what its program prints and by what the server did."""

import base64
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def _pixel() -> bytes:
    """A PNG of one pixel."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\0")),
        (b"IEND", b""),
    ]
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


PIXEL = _pixel()
IMAGE = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
STORY = " ".join(f"word{number}" for number in range(40))
FIRE = "the desk is on fire"
NOTE = '[[call note {"line": "NOTE"}]]'

ANSWER = "answer"
ERROR = "error"


@dataclass(frozen=True)
class Told:
    """`got` is what the program made of it, `error` what its user would read; neither: it never said anything.

    `notes`: how often the agent's own tool ran. `kept`: the answer that is in the chat in the end, where it matters.
    """

    got: Mapping[str, Any] | None = None
    error: str | None = None
    notes: int = 0
    kept: str | None = None


Judge = Callable[[Told], str | None]
"""None: as it should be; else the reason why not."""


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    prompt: str
    judge: Judge
    signal: str | None = None
    """What happens to the server in the middle of it."""


def answers(**wanted: object) -> Judge:
    def judge(told: Told) -> str | None:
        if told.got is None:
            return told.error or "no answer"
        wrong = {name: told.got.get(name) for name, value in wanted.items() if told.got.get(name) != value}
        return f"got {wrong}" if wrong else None

    return judge


def streams(told: Told) -> str | None:
    if reason := answers(text=STORY, streamed=STORY)(told):
        return reason
    return None if told.got is not None and told.got["pieces"] > 1 else "it came in one piece"


def second_turn(told: Told) -> str | None:
    """`also`: a client may have more than one way to go on."""
    if reason := answers(text="heard kelp-one kelp-two")(told):
        return reason
    also = (told.got or {}).get("also", "heard kelp-one kelp-two")
    return None if also == "heard kelp-one kelp-two" else f"also got {also!r}"


def fails_once(told: Told) -> str | None:
    """Its user reads why, and nothing ran twice."""
    if told.error is None:
        return f"no error, but {told.got}" if told.got is not None else "no answer"
    if FIRE not in told.error:
        return f"does not say why: {told.error}"
    return _once(told)


def breaks_off(told: Told) -> str | None:
    if told.error is None:
        return f"no error, but {told.got}" if told.got is not None else "no answer"
    return None if FIRE in told.error else f"does not say why: {told.error}"


def waits_for_a_person(told: Told) -> str | None:
    """The answer, given that a person allows it meanwhile, or words or an item about what is open; never silence."""
    if told.error is not None:
        return None if "pay" in told.error or "approval" in told.error else f"does not say what is open: {told.error}"
    if told.got is not None and told.got.get("waits") == ["pay"]:
        return None
    return answers(text="paid 7")(told)


def survives(told: Told) -> str | None:
    """The whole answer, or an error; a part of the answer, taken for the whole, is neither."""
    if told.got is None and told.error is None:
        return "no answer"
    if told.got is not None and told.got.get("text") != "once upon a time":
        return f"took {told.got.get('text')!r} for the answer"
    if "once upon a time" not in (told.kept or ""):
        return f"the chat has {told.kept!r}"
    return _once(told)


def _once(told: Told) -> str | None:
    return None if told.notes == 1 else f"the turn's own tool ran {told.notes} times"


TOLD = f"{NOTE} [[tell GATE|once upon |a time]]"

CASES: Sequence[Case] = [
    Case("text", "text", "kelp-one [[say heard {heard}]]", answers(text="heard kelp-one")),
    Case("stream", "stream", f"[[say {STORY}]]", streams),
    Case(
        "tool",
        "tool",
        '[[call weather {"city": "Bern"}]] [[say {result}, {rules}]]',
        answers(text="rain in Bern, rule-desk rule-brief", ran=1),
    ),
    Case("own", "own tool", '[[call lookup {"word": "kelp"}]] [[say {result}]]', answers(text="kelp is an alga")),
    Case("structured", "structured", '[[answer {"celsius": 7}]]', answers(value={"celsius": 7})),
    Case("image", "image", "[[say {images}]]", answers(text=f"image/png {len(PIXEL)}")),
    Case("second", "second turn", "kelp-two [[say heard {heard}]]", second_turn),
    Case("error", "error", f"{NOTE} [[fail {FIRE}]]", fails_once),
    Case("broken", "broken stream", f"[[break {STORY}]]", breaks_off),
    Case("approval", "approval", '[[call pay {"amount": 7}]] [[say {result}]]', waits_for_a_person),
    Case("handoff", "hand-off", "[[call HANDOFF {}]] [[say {rules}]]", answers(text="rule-desk rule-baker")),
    Case("deploy", "deploy", TOLD, survives, signal="SIGTERM"),
    Case("going", "deploy, stream", TOLD, survives, signal="SIGTERM"),
    Case("killed", "kill -9, stream", TOLD, survives, signal="SIGKILL"),
]
