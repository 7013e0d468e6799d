"""HTML as plain text, roughly as a person would read it.

Our own scanner, because every page is an enemy: the standard library's parser takes quadratic time over some of them.
Here each step goes forward, and a search that finds nothing is the last one of its kind.
"""

import html
import re

_SKIPPED = frozenset(
    {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "textarea", "select"}
)
_RAW = frozenset({"script", "style", "textarea", "title", "iframe", "noscript"})  # nothing in them is a tag
# fmt: off
_BLOCKS = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "br", "dd", "details", "div", "dl", "dt", "fieldset",
        "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html",
        "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "tr",
        "ul"
    }
)
# fmt: on
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_TAG_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
_QUOTE_OR_END = re.compile(r"[\"'>]")
_KEPT = "\x01"  # a space of preformatted text, until all others are tidied up
_SPACE = re.compile(r"[ \t\r\f\v\u00a0]+")
_BLANK = re.compile(r"\n(?: ?\n)+")
_HREF = re.compile(r"""\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
LINK_CHARS_MAX = 500
SHORT_ATTRIBUTES_CHARS = 1_000


class PageText:
    def __init__(self) -> None:
        self.title = ""
        self.text = ""


def readable(source: str) -> PageText:
    scanner = _Scanner(source)
    scanner.run()
    page = PageText()
    page.title = " ".join(_unescaped(scanner.title).split())
    page.text = _tidy("".join(scanner.pieces))
    return page


class _Scanner:
    def __init__(self, source: str) -> None:
        self._source = source
        self._lower = source.lower() if len(source.lower()) == len(source) else source
        self._at = 0
        self._skipping = ""  # the element whose content is left out
        self._depth = 0
        self._pre = 0
        self._links: list[str] = []
        self.title = ""
        self.pieces: list[str] = []

    def run(self) -> None:
        while self._at < len(self._source):
            begin = self._source.find("<", self._at)
            if begin < 0:
                begin = len(self._source)
            self._text(self._source[self._at : begin])
            self._at = begin
            if begin < len(self._source):
                self._markup()

    def _text(self, text: str) -> None:
        if text and not self._skipping:
            text = _unescaped(text)
            self.pieces.append(text.replace(" ", _KEPT) if self._pre else _SPACE.sub(" ", text.replace("\n", " ")))

    def _markup(self) -> None:
        if self._source.startswith("<!--", self._at):
            self._skip_past("-->", self._at + 4)
        elif self._source.startswith(("<!", "<?"), self._at):
            self._skip_past(">", self._at)
        else:
            closing = self._source.startswith("</", self._at)
            name = _TAG_NAME.match(self._source, self._at + 1 + closing)
            if name is None:
                self._text("<")
                self._at += 1
                return
            end = self._tag_end(name.end())
            attributes = self._source[name.end() : end]
            self._at = end + 1
            self._tag(name[0].lower(), closing, attributes)

    def _skip_past(self, mark: str, start: int) -> None:
        found = self._source.find(mark, start)
        self._at = len(self._source) if found < 0 else found + len(mark)

    def _tag_end(self, start: int) -> int:
        """Where the tag's > is; one between quotes is none. An open quote ends with the first >."""
        at = start
        while found := _QUOTE_OR_END.search(self._source, at):
            if found[0] == ">":
                return found.start()
            closing = self._source.find(found[0], found.end())
            if closing < 0:  # then this kind of quote does not come again: no later search is in vain
                end = self._source.find(">", found.end())
                return len(self._source) if end < 0 else end
            at = closing + 1
        return len(self._source)

    def _tag(self, name: str, closing: bool, attributes: str) -> None:
        if self._skipping:
            if name == self._skipping and not attributes.endswith("/"):
                self._depth += -1 if closing else 1
                self._skipping = self._skipping if self._depth else ""
            return
        if not closing and name in _RAW:
            self._raw(name)
        elif not closing and name in _SKIPPED and not attributes.endswith("/"):
            self._skipping, self._depth = name, 1
        elif name == "a":
            self._link(closing, attributes)
        elif name in _BLOCKS:
            self._block(name, closing)
        elif name in ("td", "th") and closing:
            self.pieces.append(" | ")

    def _raw(self, name: str) -> None:
        end = self._lower.find(f"</{name}", self._at)
        end = len(self._source) if end < 0 else end
        if name == "title" and not self.title:
            self.title = self._source[self._at : end]
        self._at = end

    def _block(self, name: str, closing: bool) -> None:
        if name == "pre":
            self._pre = max(0, self._pre + (-1 if closing else 1))
        self.pieces.append("\n\n" if name in _HEADINGS or name in ("p", "table", "pre", "blockquote") else "\n")
        if not closing:
            self.pieces.append("- " if name == "li" else _HEADINGS.get(name, ""))

    def _link(self, closing: bool, attributes: str) -> None:
        if not closing:
            found = _HREF.search(attributes) if len(attributes) <= SHORT_ATTRIBUTES_CHARS else None
            target = _unescaped(next((group for group in found.groups() if group), "")) if found else ""
            self._links.append(target if target.startswith(("http://", "https://", "/")) else "")
            del self._links[:-16]
        elif self._links and (target := self._links.pop()) and len(target) <= LINK_CHARS_MAX:
            self.pieces.append(f" ({target})")


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a character's number of more than 4,300 digits
        return text


def _tidy(text: str) -> str:
    lines = (line.strip() if "|" not in line else line.strip(" |") for line in text.split("\n"))
    return _BLANK.sub("\n\n", "\n".join(lines)).strip().replace(_KEPT, " ")
