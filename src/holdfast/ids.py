"""Identifiers. Ours, never a provider's: a prefix that says what it names, then time, then chance.

Time comes first so that neighbours in time are neighbours on disk; 80 random bits make two machines agree never.
"""

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    digits = []
    for _ in range(26):
        digits.append(_ALPHABET[number & 31])
        number >>= 5
    return f"{prefix}_{''.join(reversed(digits))}"
