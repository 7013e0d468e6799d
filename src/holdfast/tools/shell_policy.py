"""Which command lines a shell runs without asking: simple commands that begin with words that somebody allowed.

A line is read with a real grammar (tree-sitter's, for bash), and runs unasked only if every part of it is on a short
list: simple commands of plain words, joined by `;`, `&&`, `||`, `|` and line ends, with redirections to plain files
under the root. Everything else asks: any other construct, any error of the parser, any disagreement between the
grammar and a second reading by `shlex`, which shares no code with it. A grammar can be wrong about a corner of the
language; the plain words left over after that have no corners.

An allowed prefix allows every argument after it. Allow `("git", "status")`, not `("git",)`, which runs programs by
`git -c …`; and no interpreter. The policy keeps a model from running what nobody meant it to run; it is no sandbox
for the programs it lets through.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from holdfast.errors import ConfigError, ToolFailed
from holdfast.tools.context import ToolContext

COMMAND_CHARS_MAX = 8_192  # nobody can judge more at a glance
UNATTENDED = "unattended"  # in a chat's metadata: nobody is there to answer

_JOINTS = frozenset({";", "&&", "||", "|"})
_REDIRECTIONS = frozenset({">", ">>", "<"})
_PUNCTUATION = ";&|<>()\n"
# Unquoted, these mean themselves in every shell; `*` and `?` stand for names of files, never for a program.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^*?-][A-Za-z0-9_./:=@%+,^*?~-]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MOVES = frozenset({"cd", "pushd", "popd"})
# fmt: off
# To allow one of these alone is to allow every program there is.
_RUNNERS = frozenset({
    ".", "ash", "bash", "builtin", "busybox", "chroot", "command", "dash", "doas", "env", "eval", "exec",
    "fish", "flock", "ksh", "nice", "nohup", "nsenter", "parallel", "script", "setsid", "sh", "source", "ssh",
    "stdbuf", "su", "sudo", "time", "timeout", "trap", "unshare", "watch", "xargs", "zsh",
})
# fmt: on

_language = tree_sitter.Language(tree_sitter_bash.language())


class _Ask(Exception):
    """Why a line is not run unasked."""


class ShellPolicy:
    """`ShellPolicy(allow=[("git", "status"), ("ls",)])`: what begins with one of these runs, everything else asks.

    In a chat whose metadata say `"unattended": true` nobody would answer, so there it is denied, and the model is
    told why; `unattended="ask"` lets such a chat wait for an answer all the same.
    """

    def __init__(self, *, allow: Sequence[Sequence[str]] = (), unattended: Literal["deny", "ask"] = "deny") -> None:
        if unattended not in ("deny", "ask"):
            raise ConfigError(f"unattended is {unattended!r}; it can be 'deny' or 'ask'")
        self.allow = tuple(_checked(prefix) for prefix in allow)
        self.unattended = unattended

    def bind(self, root: Path | None) -> Callable[[dict[str, Any], ToolContext], str | None]:
        """The decision of a tool whose `command` runs in `root`: for its `needs_approval`."""

        def decide(arguments: dict[str, Any], context: ToolContext) -> str | None:
            command = arguments["command"]
            reason = self.objection(command, root)
            if reason is None:
                return None
            if self.unattended == "deny" and context.metadata.get(UNATTENDED):
                raise ToolFailed(f"Denied: nobody is there to be asked, and {reason}.")
            return f"Run this command? It is not run unasked: {reason}.\n{command}"

        return decide

    def objection(self, command: str, root: Path | None = None) -> str | None:
        """Why this line is not run unasked; None if it is. Without a root, no redirection to a file is."""
        try:
            self._check(command, root)
        except _Ask as why:
            return str(why)
        return None

    def _check(self, command: str, root: Path | None) -> None:
        if len(command) > COMMAND_CHARS_MAX:
            raise _Ask(f"it has {len(command):,} characters")
        if _CONTROL.search(command):
            raise _Ask("it holds control characters")
        try:
            source = command.encode()
        except UnicodeEncodeError:
            raise _Ask("it is not text") from None
        tree = tree_sitter.Parser(_language).parse(source)
        if tree.root_node.has_error:
            raise _Ask("it cannot be parsed")
        line = _Line(source)
        line.read(tree.root_node)
        if [word for word in line.words if word.strip(_PUNCTUATION) or not word] != _words_by_shlex(command):
            raise _Ask("two ways to read it disagree")
        if not line.commands:
            raise _Ask("there is no command in it")
        for argv in line.commands:
            self._check_argv(argv)
        moves = any(argv[0][0] in _MOVES for argv in line.commands)
        for target in line.files:
            _check_target(target, None if moves else root)

    def _check_argv(self, argv: "list[_Word]") -> None:
        texts = [text if literal else None for text, literal in argv]
        if not any(tuple(texts[: len(prefix)]) == prefix for prefix in self.allow):
            raise _Ask(f"`{' '.join(text for text, _ in argv[:2])[:80]}` is not allowed")


def _checked(prefix: Sequence[str]) -> tuple[str, ...]:
    words = tuple(prefix)
    if isinstance(prefix, str) or not words or not all(words):
        raise ConfigError(f"allow holds {prefix!r}: each entry is a tuple of words, such as ('git', 'status')")
    program, *rest = words
    named = [word for word in rest if not word.startswith("-") and "=" not in word and not word.isdigit()]
    if program.rpartition("/")[2] in _RUNNERS and not named:
        raise ConfigError(
            f"to allow {' '.join(words)!r} is to allow every program: name the one that it may run, too"
        )
    return words


# --- reading a line --------------------------------------------------------------------------------------

_Word = tuple[str, bool]  # its text, and whether the shell leaves it as it is


class _Line:
    """What the grammar found: commands, files that are redirected to or from, and all words in their order."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self.commands: list[list[_Word]] = []
        self.files: list[_Word] = []
        self.words: list[str] = []

    def read(self, root: Node) -> None:
        stack = [root]
        while stack:
            node = stack.pop()
            if node.type in ("program", "list", "pipeline", "redirected_statement"):
                self._check_gaps(node, b" \t\n")
                stack += reversed(node.children)
            elif node.type == "command":
                self._read_command(node)
            elif node.type == "file_redirect":
                self._read_redirect(node)
            elif node.is_named or node.type not in _JOINTS:
                raise _Ask(f"it holds {_name(node)}")

    def _read_command(self, node: Node) -> None:
        self._check_gaps(node, b" \t")
        argv: list[_Word] = []
        for child in node.children:
            if child.type == "file_redirect":
                self._read_redirect(child)
            else:
                argv.append(self._word(child))
        self.commands.append(argv)

    def _read_redirect(self, node: Node) -> None:
        self._check_gaps(node, b" \t")
        children = list(node.children)
        if children[0].type == "file_descriptor":
            self.words.append(_text(children.pop(0)))
        if len(children) != 2:
            raise _Ask("it holds a redirection that can be read in two ways")
        operator, target = children
        word = self._word(target)
        if operator.type == ">&" and word[0] in ("1", "2"):
            return
        if operator.type not in _REDIRECTIONS:
            raise _Ask(f"it holds the redirection `{operator.type}`")
        self.files.append(word)

    def _word(self, node: Node) -> _Word:
        parts = [node] if node.type != "command_name" else node.children
        if len(parts) == 1 and parts[0].type == "concatenation":
            self._check_gaps(parts[0], b"")
            parts = parts[0].children
        pieces = [_piece(part) for part in parts]
        word = "".join(text for text, _ in pieces)
        self.words.append(word)
        return word, all(literal for _, literal in pieces)

    def _check_gaps(self, node: Node, allowed: bytes) -> None:
        """What stands between the children, such as a `\\` at the end of a line, is in no node."""
        at = node.start_byte
        for start, end in (*((child.start_byte, child.end_byte) for child in node.children), (node.end_byte, 0)):
            if self._source[at:start].strip(allowed):
                raise _Ask("it holds something between its words")
            at = end


def _piece(node: Node) -> _Word:
    text = _text(node)
    match node.type:
        case "word" | "number":
            if not _PLAIN.fullmatch(text):
                raise _Ask(f"the word `{text[:80]}` is not plain")
            return text, "*" not in text and "?" not in text
        case "raw_string":
            return text[1:-1], True
        case "string":
            if any(child.type not in ('"', "string_content") for child in node.children) or set(text) & set("$`\\"):
                raise _Ask("it holds a string that the shell changes")
            return text[1:-1], True
    raise _Ask(f"it holds {_name(node)}")


def _name(node: Node) -> str:
    return node.type.replace("_", " ") if node.is_named else f"`{node.type}`"


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _words_by_shlex(command: str) -> list[str]:
    return [word for word in _tokens(command) if word.strip(_PUNCTUATION) or not word]


def _tokens(command: str) -> Iterator[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        yield from lexer
    except ValueError:
        raise _Ask("two ways to read it disagree") from None


def _check_target(target: _Word, root: Path | None) -> None:
    """A plain file under the root, or one that does not exist yet, with every link on the way followed."""
    text, literal = target
    if text == "/dev/null":
        return
    if not literal or root is None:
        raise _Ask(f"it redirects to or from `{text[:80]}`")
    try:
        base = root.resolve(strict=True)
        found = (base / text).resolve()
        inside = found.is_relative_to(base) and (not found.exists() or found.is_file())
    except (OSError, RuntimeError, ValueError):
        inside = False
    if not inside:
        raise _Ask(f"it redirects to or from `{text[:80]}`, which is no plain file under the root")
