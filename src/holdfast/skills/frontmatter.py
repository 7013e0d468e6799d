"""The frontmatter of a SKILL.md: the part of YAML that people write there, read in linear time and without surprises.

    key: plain text, over several lines if the next ones are indented      key: 'quoted' or "quoted"
    key: | or >, and lines below it                                        key: [a, b], or lines with `- a`
    key:, and indented lines `name: text` below it

There are no anchors, aliases, tags or types: nothing that is written here can grow, or mean code. Where YAML would
refuse a text, such as one with `: ` in it, people mean the text, and get it. A whole parser would be one more
dependency that reads what untrusted people wrote; a test compares this one with such a parser.
"""

import re

Value = str | bool | list[str] | dict[str, str]

KEYS_MAX = 64
ITEMS_MAX = 200

_BLOCK = re.compile(r"([|>])([+-]?)[1-9]?([+-]?)(?:\s+#.*)?")
_ESCAPE = re.compile(r"\\(U[0-9a-fA-F]{8}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|\n", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "", "\n": "", '"': '"', "\\": "\\", "/": "/", " ": " "}
_PAIRS = {"'": "'", '"': '"', "(": ")"}
_ODD = "-[]{},&*!|>%@`"  # no key begins so
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class NoFrontmatter(ValueError):
    """The file does not begin with lines between two `---`, or they cannot be read."""


def split(text: str) -> tuple[str, str]:
    """What is between the two lines of `---`, and what is below them. Raises NoFrontmatter."""
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[0].rstrip() != "---":
        raise NoFrontmatter("it does not begin with a line of ---")
    for at in range(1, len(lines)):
        if lines[at].rstrip() == "---":
            return "\n".join(lines[1:at]), "\n".join(lines[at + 1 :]).strip()
    raise NoFrontmatter("its frontmatter has no end: a line of --- is missing")


def read(text: str) -> dict[str, Value]:
    """By key; of a key that is there twice, the last one. Raises NoFrontmatter."""
    found: dict[str, Value] = {}
    lines = [line.rstrip() for line in text.expandtabs(2).split("\n")]
    at = 0
    while at < len(lines):
        if not lines[at] or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        pair = _pair(lines[at])
        if pair is None:
            raise NoFrontmatter(f"line {at + 2} of its frontmatter is no `key: value`: {lines[at][:80]!r}")
        end = _end_of(lines, at, pair[1])
        found[pair[0]] = _value(pair[1], lines[at + 1 : end])
        if len(found) > KEYS_MAX:
            raise NoFrontmatter(f"its frontmatter has more than {KEYS_MAX} keys")
        at = end
    return found


def _pair(line: str) -> tuple[str, str] | None:
    """`key: value`, `key:` or `"key": value`."""
    quote = line[:1] if line[:1] in ("'", '"') else ""
    end = line.find(quote, 1) + 1 if quote else 0
    at = line.find(": ", end)
    if at < 0:
        at = len(line) - 1 if line.endswith(":") else -1
    key = line[1 : end - 1] if quote else line[: max(at, 0)].strip()
    odd = bool(line[end:at].strip()) if quote else key[:1] in _ODD or " #" in key
    return None if at < end or not key or odd else (key, line[at + 1 :].strip())


def _end_of(lines: list[str], at: int, value: str) -> int:
    """Where the value of the key in line `at` ends: before the next line that is not indented. Items of a list may
    stand right below their key.
    """
    quote = value[0] if value[:1] in ("'", '"') and not _closes(value[1:], value[0]) else ""  # it has no end here
    end = at + 1
    while end < len(lines) and (quote or not lines[end] or lines[end][0] == " " or _is_item(lines[end])):
        if quote and _closes(lines[end], quote):
            return end + 1
        end += 1
    return end


def _is_item(line: str) -> bool:
    return line.lstrip().startswith("- ") or line.strip() == "-"


def _closes(text: str, quote: str) -> bool:
    text = re.sub(r"\\.", "", text) if quote == '"' else text.replace("''", "")
    return quote in text


def _value(first: str, below: list[str]) -> Value:
    first = first.strip()
    if block := _BLOCK.fullmatch(first):
        return _block(block[1], below)
    if first[:1] in ("'", '"'):
        return _quoted("\n".join([first, *(line.strip() for line in below)]))
    rest = [line for line in below if line and not line.lstrip().startswith("#")]
    if first.startswith("["):
        return _flow(" ".join([first, *(line.strip() for line in rest)]))
    if not _uncommented(first) and rest:
        return _nested(rest)
    plain = " ".join(_uncommented(line.strip()) for line in (first, *rest))
    return _BOOLEANS.get(plain.lower(), plain)


def _block(style: str, below: list[str]) -> str:
    end = len(below)
    while end > 0 and not below[end - 1]:
        end -= 1
    below = below[:end]
    indents = [len(line) - len(line.lstrip()) for line in below if line]
    lines = [line[min(indents, default=0) :] for line in below]
    if style == "|":
        return "\n".join(lines)
    folded = ""
    for line in lines:  # a line break is a space, an empty line is a line break
        folded += "\n" if not line else line if not folded or folded.endswith("\n") else f" {line}"
    return folded


def _quoted(text: str) -> str:
    quote, end = text[0], 1
    while (end < len(text) and text[end] != quote) or (quote == "'" and text[end : end + 2] == "''"):
        end += 2 if (text[end] == "\\" and quote == '"') or text[end : end + 2] == "''" else 1
    inner = text[1:end]
    if quote == "'":
        return inner.replace("\n", " ").replace("''", "'")
    return _ESCAPE.sub(lambda found: _unescaped(found[1]) if found[1] else " ", inner)


def _unescaped(code: str) -> str:
    if code[0] in "Uux" and len(code) > 1:
        number = int(code[1:], 16)
        return "\ufffd" if 0xD800 <= number < 0xE000 or not 0 < number < 0x110000 else chr(number)
    return _ESCAPES.get(code, f"\\{code}")


def _uncommented(text: str) -> str:
    at = 0 if text.startswith("#") else text.find(" #")
    return text if at < 0 else text[:at].rstrip()


def _flow(text: str) -> list[str]:
    """`[a, "b, c", d(e, f)]`: commas in quotes and parentheses part nothing."""
    inner = _uncommented(text).removeprefix("[").removesuffix("]")
    items, inside = [""], ""
    for sign in inner:
        if inside:
            inside = "" if sign == inside else inside
        elif sign in _PAIRS:
            inside = _PAIRS[sign]
        elif sign == ",":
            items.append("")
            continue
        items[-1] += sign
    return [_item(item) for item in items if item.strip()][:ITEMS_MAX]


def _nested(rest: list[str]) -> list[str] | dict[str, str] | str:
    """A list, names with texts, or a text that begins below its key."""
    if rest[0].lstrip().startswith("-"):
        items = [line.lstrip()[1:] for line in rest if _is_item(line)]
        return [_item(item) for item in items if item.strip()][:ITEMS_MAX]
    first = _pair(rest[0].strip())
    if first is None or " " in first[0]:
        return " ".join(_uncommented(line.strip()) for line in rest)
    found: dict[str, str] = {}
    for line in rest[:ITEMS_MAX]:
        if pair := _pair(line.strip()):
            found[pair[0]] = _item(pair[1])
    return found


def _item(text: str) -> str:
    text = text.strip()
    return _quoted(text) if text[:1] in ("'", '"') else _uncommented(text)
