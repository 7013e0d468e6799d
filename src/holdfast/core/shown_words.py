"""The words of one response, as a reader was shown them and as they turn out: what to take back, what to add."""

import hashlib
from typing import Any, NamedTuple

from holdfast.core.updates import NO_PROSE, Prose

_DIGEST_BYTES = 6


class ShownPrefix(NamedTuple):
    """So many characters of a response that is not committed, and a digest of them."""

    chars: int = 0
    digest: bytes = b""


NOTHING_SHOWN = ShownPrefix()


class Heard(NamedTuple):
    """What a reader has to take back, and what is then to be added. `met`: what another process has shown is known
    now, and stands.
    """

    dropped: int = 0
    rest: str = ""
    met: bool = False


class ShownWords:
    """The text of a turn, or its reasoning: what was committed, what a reader was shown behind it, and how far the
    present attempt has come in saying the same. What is to be added is added by the caller, by `add`: between taking
    back and adding a reader may leave.
    """

    def __init__(self) -> None:
        self.all: Prose = NO_PROSE  # of the turn
        self._shown: Prose = NO_PROSE  # the end of it that is not committed
        self._hash = _new_hash()  # of that
        self._unseen: ShownPrefix | None = None  # what was shown by another process, whatever it is
        self._heard: list[str] = []  # while there is such: what the attempt said so far
        self._heard_chars = 0
        self._old = ""  # while the attempt repeats what is shown: that
        self._said = 0  # characters of it that the attempt has said

    @property
    def shown(self) -> ShownPrefix:
        if self._unseen is not None:
            return self._unseen
        return ShownPrefix(self._shown.chars, _digest(self._hash)) if self._shown.chars else NOTHING_SHOWN

    @property
    def committed_chars(self) -> int:
        return self.all.chars - self._shown.chars

    def resume(self, shown: ShownPrefix) -> None:
        """Another process has shown this of the response that comes."""
        self._unseen = shown if shown.chars else None

    def begin_attempt(self) -> None:
        """What is shown stays until this attempt says something else."""
        self._forget_heard()
        self._old = str(self._shown)

    def hear(self, piece: str) -> Heard:
        """The attempt goes on with this piece."""
        if self._unseen is not None:
            self._heard.append(piece)
            self._heard_chars += len(piece)
            enough = self._heard_chars >= self._unseen.chars
            return self._meet("".join(self._heard)) if enough else Heard()
        same = _common(piece, self._old[self._said : self._said + len(piece)]) if self._old else 0
        self._said += same
        if same == len(piece):
            return Heard()
        dropped = len(self._old) - self._said
        self._drop(dropped)
        self._old, self._said = "", 0
        return Heard(dropped, piece[same:])

    def hear_all(self, text: str) -> Heard:
        """This is what the response came to. `end` follows."""
        if self._unseen is not None:
            return self._meet(text)
        shown = str(self._shown)
        same = _common(text, shown)
        self._drop(len(shown) - same)
        return Heard(len(shown) - same, text[same:])

    def add(self, piece: str) -> None:
        if piece:
            self.all = self.all.plus(piece)
            self._shown = self._shown.plus(piece)
            self._hash.update(_bytes(piece))

    def end(self) -> None:
        """What is shown is committed; what comes next is another response's."""
        self._shown, self._hash, self._unseen = NO_PROSE, _new_hash(), None
        self._forget_heard()

    def _meet(self, text: str) -> Heard:
        """What is said now is, or is not, what another process has shown, and more."""
        assert self._unseen is not None
        unseen, self._unseen = self._unseen, None
        self._forget_heard()
        if len(text) >= unseen.chars and _digest(_new_hash(text[: unseen.chars])) == unseen.digest:
            self.add(text[: unseen.chars])
            return Heard(0, text[unseen.chars :], met=True)
        return Heard(unseen.chars, text)

    def _forget_heard(self) -> None:
        self._heard.clear()
        self._heard_chars = 0
        self._old, self._said = "", 0

    def _drop(self, chars: int) -> None:
        if chars:
            self.all = self.all.cut(self.all.chars - chars)
            self._shown = self._shown.cut(self._shown.chars - chars)
            self._hash = _new_hash(str(self._shown))


def _common(one: str, other: str) -> int:
    """How many characters they begin with alike. By halves: a loop over characters is slow where texts are long."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _new_hash(text: str = "") -> Any:
    return hashlib.blake2b(_bytes(text), digest_size=_DIGEST_BYTES)


def _digest(found: Any) -> bytes:
    digest: bytes = found.digest()
    return digest
