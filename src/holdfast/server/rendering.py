"""What a model says as HTML for pages (`render=html`): markdown, sanitised. Pure; `html_feeds` has it made.

Text is rendered block by block: one that is streamed needs only its last block rendered again. Nothing that a model
writes becomes markup of its own: HTML in it is text, a picture, which would load something, is a link, a link leads
out of the page's own origin, and what comes out is cleaned by a parser that reads as browsers do. The cost is
bounded: a block or a message that is too long for markdown is shown as it is (the slowest 8,000 characters that were
found took half a second), and code is coloured for known languages and up to a size: patterns of lexers can be
made slow on purpose.
"""

import html
from functools import cache
from itertools import pairwise
from typing import Any

MARKDOWN_CHARS_MAX = 8_000  # of one block; a longer one is shown as it is
COLOUR_CHARS_MAX = 4_000
LINE_CHARS_MAX = 500  # in code that is coloured
TEXT_CHARS_MAX = 100_000  # of a message; a longer one is shown as it is

TAGS = frozenset(
    (
        *(
            "p",
            "br",
            "hr",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "strong",
            "em",
            "s",
            "del",
            "code",
            "pre",
            "blockquote",
        ),
        *("ul", "ol", "li", "a", "table", "thead", "tbody", "tr", "th", "td", "span"),
    )
)
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}, "span": {"class"}}
SCHEMES = {"http", "https", "mailto"}
LANGUAGES = frozenset(
    (
        *(
            "python",
            "py",
            "json",
            "bash",
            "sh",
            "shell",
            "javascript",
            "js",
            "typescript",
            "ts",
            "html",
            "css",
            "sql",
        ),
        *("yaml", "toml", "go", "rust", "java", "c", "cpp", "diff"),
    )
)


def rendered(text: str) -> str:
    """Whole: each block that is not too long as markdown."""
    if len(text) > TEXT_CHARS_MAX:
        return _as_it_is(text)
    return "".join(rendered_block(block) for block in blocks_of(text))


def _as_it_is(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def blocks_of(text: str) -> list[str]:
    """The texts of the blocks at the top, which rendered one after the other are the whole."""
    if len(text) <= MARKDOWN_CHARS_MAX:
        return _top_blocks(text)
    found: list[str] = []
    for piece in _pieces(text):
        found += _top_blocks(piece) if len(piece) <= MARKDOWN_CHARS_MAX else [piece]
    return found


def _pieces(text: str) -> list[str]:
    """By blank lines outside of fences, in linear time."""
    found: list[str] = []
    fence = ""
    start = at = 0
    for line in text.splitlines(keepends=True):
        mark = line.lstrip()[:3]
        if fence:
            fence = "" if mark == fence else fence
        elif mark in ("```", "~~~"):
            fence = mark
        at += len(line)
        if not fence and not line.strip():
            found.append(text[start:at])
            start = at
    return [*found, text[start:]] if start < len(text) else found


def _top_blocks(text: str) -> list[str]:
    starts = [
        token.map[0] for token in _parser().parse(text) if token.level == 0 and token.map and token.nesting >= 0
    ]
    lines = text.splitlines(keepends=True)
    edges = [0, *starts[1:], len(lines)]
    return ["".join(lines[one:other]) for one, other in pairwise(edges)] if lines else []


def rendered_block(text: str) -> str:
    """One of `blocks_of`."""
    if len(text) > MARKDOWN_CHARS_MAX:
        return _as_it_is(text)
    found: str = _cleaner()(_parser().render(text))
    return found


@cache
def _parser() -> Any:
    from markdown_it import MarkdownIt  # noqa: PLC0415  who renders nothing does not wait for it

    options = {"html": False, "linkify": False, "highlight": _coloured}
    parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    return parser.disable(["image", "html_block", "html_inline"])


@cache
def _cleaner() -> Any:
    import nh3  # noqa: PLC0415

    return lambda text: nh3.clean(
        text,
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        attribute_filter=_kept,
        url_schemes=SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )


def _kept(_: str, name: str, value: str) -> str | None:
    """A link without a host would lead into the page's own origin, with its cookie."""
    scheme, colon, _rest = value.partition(":")
    return value if name != "href" or (colon and scheme.lower() in SCHEMES) else None


def _coloured(code: str, language: str, _: str) -> str:
    """Spans with the classes of Pygments; an empty text: as it is."""
    if language.lower() not in LANGUAGES or len(code) > COLOUR_CHARS_MAX:
        return ""
    if max(map(len, code.split("\n"))) > LINE_CHARS_MAX:
        return ""
    from pygments import highlight  # noqa: PLC0415
    from pygments.formatters.html import HtmlFormatter  # noqa: PLC0415
    from pygments.lexers import get_lexer_by_name  # noqa: PLC0415

    found: str = highlight(code, get_lexer_by_name(language.lower()), HtmlFormatter(nowrap=True))
    return found
