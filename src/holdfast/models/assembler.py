"""Parts become a message: whole, or what there is of it after a stop.

Call ids are ours: they come from the function the assembler is given. Argument text is kept as it came. What has
been streamed so far can be told in two ways that agree: by the parts, and by the journal's deltas that came of them.
"""

from collections.abc import Callable, Iterable

import msgspec
from msgspec import Raw

from holdfast.core.codec import is_json_object
from holdfast.core.journal import Delta
from holdfast.core.limits import LIMITS
from holdfast.core.records import NOTHING, Part, Reasoning, Text, ToolCall
from holdfast.errors import LostResult
from holdfast.models.base import (
    Alive,
    CallArguments,
    CallEnded,
    CallStarted,
    Opened,
    Progress,
    ReasoningDelta,
    ResponseFinished,
    StreamPart,
    TextDelta,
    Usage,
)


class _Words:
    """Text or reasoning that is still growing."""

    __slots__ = ("phase", "pieces", "signature", "thought")

    def __init__(self, *, thought: bool) -> None:
        self.pieces: list[str] = []
        self.thought = thought
        self.signature: Raw = NOTHING
        self.phase: str | None = None

    def part(self, provider: str | None) -> Part | None:
        text = "".join(self.pieces)
        if not self.thought:
            return Text(text=text, phase=self.phase) if text else None
        if self.signature != NOTHING:
            return Reasoning(text=text, provider=provider, signature=self.signature)
        return Reasoning(text=text) if text else None


class _Call:
    __slots__ = ("call_id", "ended", "name", "pieces")

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.ended = False

    def part(self, *, cut: bool) -> ToolCall:
        return ToolCall(call_id=self.call_id, name=self.name, arguments="".join(self.pieces), cut=cut)


class Assembler:
    """Takes the parts of one attempt, in order."""

    def __init__(
        self,
        new_call_id: Callable[[], str],
        *,
        provider: str | None = None,
        bytes_max: int = LIMITS.message_bytes_max,
        calls_max: int = LIMITS.batch_calls_max,
    ) -> None:
        self._new_call_id = new_call_id
        self._provider = provider
        self._bytes_max = bytes_max
        self._calls_max = calls_max
        self._room = bytes_max
        self._blocks: list[_Words | _Call] = []
        self._calls: dict[int, _Call] = {}
        self.usage: Usage | None = None
        self.finished: ResponseFinished | None = None
        self.request_id: str | None = None
        self.opened = False  # the provider has taken the request

    def add(self, part: StreamPart) -> Delta | None:
        """Take one part. Returns what a client is shown of it, with our call id; None if that is nothing."""
        match part:
            case TextDelta():
                if part.begins:
                    self._blocks.append(_Words(thought=False))
                delta = self._add_words(part.text, thought=False)
                block = self._blocks[-1] if part.phase is not None and self._blocks else None
                if isinstance(block, _Words) and not block.thought:
                    block.phase = part.phase
                return delta
            case CallArguments():
                return self._add_arguments(part)
            case ReasoningDelta():
                delta = self._add_words(part.text, thought=True, signed=part.signature != NOTHING)
                if part.signature != NOTHING:
                    block = self._blocks[-1]
                    assert isinstance(block, _Words)
                    block.signature = part.signature
                return delta
            case CallStarted():
                return self._start_call(part)
            case CallEnded():
                self._calls[part.index].ended = True
            case Usage():
                if part.input_tokens or part.output_tokens:  # some servers write zeros where they count nothing
                    self.usage = part
            case ResponseFinished():
                self.finished = part
            case Opened():
                self.request_id, self.opened = part.request_id, True
            case Progress() | Alive():
                pass
        return None

    def _add_words(self, text: str, *, thought: bool, signed: bool = False) -> Delta | None:
        if not text and not signed:
            return None
        text = self._take(text)
        block = self._blocks[-1] if self._blocks else None
        # A signature closes its piece of reasoning, a phase its piece of text: what follows is another one.
        if (
            not isinstance(block, _Words)
            or block.thought is not thought
            or block.signature != NOTHING
            or block.phase is not None
        ):
            block = _Words(thought=thought)
            self._blocks.append(block)
        block.pieces.append(text)
        return Delta(part="reasoning" if thought else "text", text=text) if text else None

    def _start_call(self, part: CallStarted) -> Delta:
        if len(self._calls) >= self._calls_max:
            raise LostResult(
                f"the response asks for more than {self._calls_max} calls at once, which is the limit of a batch"
            )
        call = self._calls[part.index] = _Call(self._new_call_id(), self._take(part.name))
        self._blocks.append(call)
        return Delta(part="arguments", text="", call_id=call.call_id, name=call.name)

    def _add_arguments(self, part: CallArguments) -> Delta | None:
        if not part.text:
            return None
        text = self._take(part.text)
        call = self._calls[part.index]
        call.pieces.append(text)
        return Delta(part="arguments", text=text, call_id=call.call_id, name=call.name)

    def _take(self, text: str) -> str:
        """The text as any store can keep it, if there is room."""
        if "\x00" in text:
            text = text.replace("\x00", "\ufffd")
        try:
            self._room -= len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:  # half of a surrogate pair is no character
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            self._room -= len(text.encode())
        if self._room < 0:
            raise LostResult(f"the response has more than {self._bytes_max:,} bytes, which is the limit of a message")
        return text

    @property
    def empty(self) -> bool:
        return not self._blocks

    def parts(self) -> tuple[Part, ...]:
        """The complete response. One that ended as refused asks for nothing: what it had begun to call is void."""
        if self.finished is not None and self.finished.reason == "refused":
            return tuple(part for part in self.partial() if not isinstance(part, ToolCall))
        whole = self.finished is not None
        out_of_room = whole and self.finished is not None and self.finished.reason == "length"
        return tuple(self._parts(lambda call: out_of_room and not is_json_object("".join(call.pieces)), whole=True))

    def partial(self) -> tuple[Part, ...]:
        """What there is of it. Argument text stays as far as it came; a call that had not ended is marked as cut."""
        return tuple(self._parts(lambda call: not call.ended, whole=False))

    def _parts(self, cut: Callable[[_Call], bool], *, whole: bool) -> Iterable[Part]:
        for block in self._blocks:
            if isinstance(block, _Call):
                call = block.part(cut=cut(block))
                # Some providers send no text at all for a call without arguments.
                yield msgspec.structs.replace(call, arguments="{}") if whole and not call.arguments.strip() else call
            elif (part := block.part(self._provider)) is not None:
                yield part


def parts_of_deltas(deltas: Iterable[Delta]) -> tuple[Part, ...]:
    """What a crashed worker had streamed of a response, from the journal: the same as its `partial()`.

    A journal does not say which call had ended, nor how reasoning was signed: they count as cut, and as unsigned.
    """
    blocks: list[_Words | _Call] = []
    calls: dict[str, _Call] = {}
    for delta in deltas:
        if delta.part == "arguments" and delta.call_id is not None:
            call = calls.get(delta.call_id)
            if call is None:
                call = calls[delta.call_id] = _Call(delta.call_id, delta.name or "")
                blocks.append(call)
            call.pieces.append(delta.text)
        elif delta.part in ("text", "reasoning"):
            thought = delta.part == "reasoning"
            block = blocks[-1] if blocks else None
            if not isinstance(block, _Words) or block.thought is not thought:
                block = _Words(thought=thought)
                blocks.append(block)
            block.pieces.append(delta.text)
    found = [block.part(cut=True) if isinstance(block, _Call) else block.part(None) for block in blocks]
    return tuple(part for part in found if part is not None)
