"""A text as terms: what an index holds of it, and what a search looks for. Pure, the same for both stores.

A term is a word, folded: case, compatibility forms and the accents of Latin, Greek and Cyrillic letters make no
difference. Scripts that put no spaces between words give every two neighbouring characters as a term, so a word of
two characters is found, which three at a time would miss. A word of one is found as the beginning of a pair, so an
index holds the last character of a run by itself, too. A query has no operators: quotes, brackets, `*` and `-` are
no letters and are left out, and `NEAR` is a word, so no query can be malformed.

An index holds the terms of each owner apart, because each begins with its owner's key: what a search costs, how often
a word is taken to occur and which words the beginning of one stands for follow from what that owner has alone.
"""

import unicodedata
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import pairwise

TERM_CHARS_MAX = 64
QUERY_CHARS_MAX = 10_000
QUERY_TERMS_MAX = 24
PREFIX_CHARS_MIN = 3  # from so many characters on a word of a query finds longer ones, too: there is no stemming
SCOPE_MARK = "§"  # no term of a text has it
CLEAN = f"{SCOPE_MARK}c"  # what passages have that content from outside does not speak through

# First and last of each range: kana, ideographs, Hangul, Thai, Lao, Burmese, Khmer, the supplementary ideographs.
_UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


def terms_of(text: str) -> list[str]:
    """In the order of the text, each as often as it is there."""
    return list(_terms(_folded(text), _indexed))


def query_terms(query: str) -> list[str]:
    """Each once, at most QUERY_TERMS_MAX."""
    found = dict.fromkeys(_terms(_folded(query[:QUERY_CHARS_MAX]), _asked))
    return list(found)[:QUERY_TERMS_MAX]


def is_prefix(term: str) -> bool:
    """Whether a term of a query finds longer words. A single character of an unspaced script finds its pairs."""
    return len(term) == 1 if _is_unspaced(term[0]) else len(term) >= PREFIX_CHARS_MIN


def owner_key(owner: str) -> str:
    """What every term of an owner begins with in an index. A short digest: rows are still asked whose they are."""
    return f"{_digest(owner, 5)}{SCOPE_MARK}"


def agent_term(agent: str) -> str:
    """What every passage of an agent has."""
    return f"{SCOPE_MARK}a{_digest(agent, 10)}"


def kind_term(kind: str) -> str:
    """What every passage of a kind has."""
    return f"{SCOPE_MARK}k{kind}"


def chat_term(chat_id: str) -> str:
    """What every message of a chat has: a search leaves those of the asking chat out."""
    return f"{SCOPE_MARK}t{_digest(chat_id, 10)}"


def _digest(name: str, size: int) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFC", "".join([c for c in apart if not "\u0300" <= c <= "\u036f"]))


def _is_unspaced(char: str) -> bool:
    code = ord(char)
    return code >= 0x0E00 and any(first <= code <= last for first, last in _UNSPACED)


def _terms(folded: str, of_run: Callable[[list[str]], Iterator[str]]) -> Iterator[str]:
    word: list[str] = []
    run: list[str] = []  # of an unspaced script
    for char in folded:
        if _is_unspaced(char) and unicodedata.category(char)[0] in "LNM":
            if word:
                yield _cut(word)
                word = []
            run.append(char)
            continue
        if run:
            yield from of_run(run)
            run = []
        if char.isalnum() or (ord(char) > 127 and unicodedata.category(char)[0] in "LNM"):
            word.append(char)
        elif word:
            yield _cut(word)
            word = []
    if run:
        yield from of_run(run)
    if word:
        yield _cut(word)


def _cut(word: list[str]) -> str:
    return "".join(word[:TERM_CHARS_MAX])


def _asked(run: list[str]) -> Iterator[str]:
    if len(run) == 1:
        yield run[0]
    for first, second in pairwise(run):
        yield first + second


def _indexed(run: list[str]) -> Iterator[str]:
    yield from _asked(run)
    if len(run) > 1:
        yield run[-1]
