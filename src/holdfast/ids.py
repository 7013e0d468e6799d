"""Identifiers. Ours, never a provider's: a prefix that says what it names, then time, then chance.

Time comes first so that neighbours in time are neighbours on disk; 80 random bits make two machines agree never.
"""

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_DIGITS = bytes(ord(_ALPHABET[byte & 31]) for byte in range(256))
_CHANCE_DIGITS = 16  # of five bits each

# Chance is fetched for many ids at once. Asking the kernel lets go of the interpreter's lock, and in a process with
# busy threads getting it back costs many times what the answer does.
_STOCK = 256
_stock: list[str] = []
_stamps: list[int] = []
os.register_at_fork(after_in_child=_stock.clear)
os.register_at_fork(after_in_child=_stamps.clear)


def new_id(prefix: str) -> str:
    try:
        chance = _stock.pop()
    except IndexError:
        chance = _restock()
    now = time.time_ns() // 1_000_000
    coarse = f"{_PAIRS[now >> 40 & 1023]}{_PAIRS[now >> 30 & 1023]}"
    return f"{prefix}_{coarse}{_PAIRS[now >> 20 & 1023]}{_PAIRS[now >> 10 & 1023]}{_PAIRS[now & 1023]}{chance}"


def new_stamp() -> int:
    """64 random bits, as a number that both databases hold. Never 0, which stands for none."""
    try:
        return _stamps.pop()
    except IndexError:
        chance = memoryview(os.urandom(_STOCK * 8)).cast("q")
        _stamps.extend(filter(None, chance))
        return _stamps.pop()


def _restock() -> str:
    text = os.urandom(_STOCK * _CHANCE_DIGITS).translate(_DIGITS).decode()
    fresh = [text[at : at + _CHANCE_DIGITS] for at in range(0, len(text), _CHANCE_DIGITS)]
    mine = fresh.pop()
    _stock.extend(fresh)
    return mine
