"""Messages as a wire's JSON text, each made once: a chat sends its whole history again with every step.

Made anew, 1,000 messages took a third of a call's time. Bounded: when it is full it is emptied, and fills again with
what is in use.
"""

from collections.abc import Callable, Iterable

from holdfast.core.records import Message

FRAGMENT_BYTES_MAX = 32 << 20
_ENTRY_BYTES = 500  # what an entry takes beside its text, roughly


def joined(fragments: Iterable[bytes], *, before: bytes, after: bytes) -> bytes:
    """Those that are not empty, with commas between. One copy: a long history is some hundred kilobytes, and each of
    them costs as much as fifty chunks.
    """
    texts = [fragment for fragment in fragments if fragment]
    if not texts:
        return before + after
    texts[0] = before + texts[0]
    texts[-1] += after
    return b",".join(texts)


class Fragments:
    """`encode` is the wire's text of one message; empty: nothing of it is sent. Share one between models whose text
    is the same: those of one wire, and of one provider where the wire sends signatures back."""

    def __init__(self, encode: Callable[[Message], bytes], bytes_max: int = FRAGMENT_BYTES_MAX) -> None:
        self._encode = encode
        self._known: dict[int, tuple[Message, bytes]] = {}  # by identity; the message stays, so its id stays its own
        self.bytes_max = bytes_max
        self.bytes = 0

    def each(self, messages: Iterable[Message]) -> list[bytes]:
        """The text of every message, in order, the empty ones too."""
        known = self._known
        fragments = []
        for message in messages:
            entry = known.get(id(message))
            fragments.append(self._add(message) if entry is None else entry[1])
        return fragments

    def encode(self, messages: Iterable[Message], *, before: bytes = b"[", after: bytes = b"]") -> bytes:
        """All of them, with commas between."""
        return joined(self.each(messages), before=before, after=after)

    def _add(self, message: Message) -> bytes:
        fragment = self._encode(message)
        size = 2 * len(fragment) + _ENTRY_BYTES  # the message has the text once more
        if self.bytes + size > self.bytes_max:
            self._known.clear()
            self.bytes = 0
        if size <= self.bytes_max:
            self._known[id(message)] = (message, fragment)
            self.bytes += size
        return fragment
