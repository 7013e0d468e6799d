"""Several lists as one, without a copy: a long chat's history is shown to the model again with every step."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar, overload

T = TypeVar("T")


class Joined(Sequence[T]):
    """The lists as they are now. They may be appended to later, which is not seen here, but not changed otherwise."""

    __slots__ = ("_length", "_parts")

    def __init__(self, *parts: Sequence[T]) -> None:
        self._parts: tuple[tuple[Sequence[T], int], ...] = tuple(chain.from_iterable(map(_lists, parts)))
        self._length = sum(length for _, length in self._parts)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(islice(part, length) for part, length in self._parts)

    def __reversed__(self) -> Iterator[T]:
        return (part[at] for part, length in reversed(self._parts) for at in range(length - 1, -1, -1))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return self._slice(at)
        at = at + self._length if at < 0 else at
        for part, length in self._parts:
            if 0 <= at < length:
                return part[at]
            at -= length
        raise IndexError(at)

    def _slice(self, at: slice) -> list[T]:
        """Of each list no more than is asked for: that is mostly the end."""
        start, stop, step = at.indices(self._length)
        if step != 1:
            return list(self)[at]
        found: list[T] = []
        for part, length in self._parts:
            found += part[max(0, start) : max(0, min(stop, length))]
            start, stop = start - length, stop - length
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(ours == theirs for ours, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def _lists(part: Sequence[T]) -> Sequence[tuple[Sequence[T], int]]:
    return part._parts if isinstance(part, Joined) else [(part, len(part))]
