"""What a command line does, as acts: `run(argv)`, `read(path)`, `write(path)`, `reach(address)`.

    acts_of("git status && sort < names > sorted")
    [Run(git status), Read(.), Run(sort), Read(names), Write(sorted)]

Pure: nothing is looked up, so the acts of a line are the same everywhere; where a path leads, and which acts need
no consent, is for the rulebook (`tools/permissions/rulebook.py`).

A line is read with a real grammar (tree-sitter's, for bash), and only what is on a short list is understood: simple
commands of plain words, joined by `;`, `&&`, `||`, `|` and line ends, with redirections. Everything else is `run(?)`,
an act that nothing allows: any other construct, any error of the parser, any disagreement between the grammar and a
second reading by `shlex`, which shares no code with it. A grammar can be wrong about a corner of the language; the
plain words left over after that have no corners.

A command whose program or options the table does not know (`tools/shell/harmless.py`) is a `run` that says so. So is
one that names a file by a pattern that could stand for an option. What else decides over a command (the folder it is
in by then, the names that a pattern stands for, what the line feeds to it) is told with it: `unsaid`, `fed`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from holdfast.tools.permissions.acts import Act, Reach, Read, Run, Write
from holdfast.tools.shell.harmless import Unknown, files_of
from holdfast.tools.shell.hosts import named_hosts

COMMAND_CHARS_MAX = 8_192  # a person can judge no more at a glance

_JOINTS = frozenset({";", "&&", "||", "|"})
_WRITING = frozenset({">", ">>", ">|", ">&", "&>", "&>>", "<>"})
_PUNCTUATION = ";&|<>()\n"
# Unquoted, these mean themselves in every shell; `*` and `?` stand for names of files, never for a program.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,^*?-][A-Za-z0-9_./:=@%+,^*?~-]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MOVES = frozenset({"cd", "chdir", "pushd", "popd", ".", "source", "eval"})
_PASSING = frozenset({"builtin", "command"})  # what they are given, the shell itself does
# What the shell itself does, and what follows may be something else by then.
# fmt: off
_CHANGES = _MOVES | {
    "alias", "coproc", "declare", "enable", "exec", "export", "getopts", "hash", "let", "mapfile", "printf", "read",
    "readarray", "readonly", "set", "shopt", "trap", "typeset", "ulimit", "umask", "unalias", "unset",
}
# fmt: on
_SOCKET = re.compile(r"/dev/(?:tcp|udp)/([^/]+)/([^/]+)")

_language = tree_sitter.Language(tree_sitter_bash.language())


def acts_of(command: str) -> list[Act]:
    """In the order of the line. One that cannot be read is `run(?)`, with the reason, and nothing else."""
    try:
        return list(_acts(_read(command)))
    except Unreadable as why:
        return [Run(argv=(), unknown=str(why), line=command[:COMMAND_CHARS_MAX])]


class Unreadable(Exception):
    """Why it cannot be told what a line does."""


def _read(command: str) -> "_Line":
    if len(command) > COMMAND_CHARS_MAX:
        raise Unreadable(f"it has {len(command):,} characters")
    if _CONTROL.search(command):
        raise Unreadable("it holds control characters")
    try:
        source = command.encode()
    except UnicodeEncodeError:
        raise Unreadable("it is not text") from None
    tree = tree_sitter.Parser(_language).parse(source)
    if tree.root_node.has_error:
        raise Unreadable("it cannot be parsed")
    line = _Line(source)
    line.read(tree.root_node)
    if [word for word in line.words if word.strip(_PUNCTUATION) or not word] != _words_by_shlex(command):
        raise Unreadable("two ways to read it disagree")
    if not line.commands:
        raise Unreadable("there is no command in it")
    return line


def _acts(line: "_Line") -> Iterator[Act]:
    moved = changed = False
    for argv, fed in line.commands:
        words = tuple(text for text, _ in argv)
        unsaid = "the line has changed the shell that it runs in" if changed else None
        if not all(literal for _, literal in argv):
            unsaid = "a word of it stands for names of files"
        does = _by_the_shell(words)
        try:
            files = files_of([(text, literal) for text, literal in argv])
        except Unknown as why:
            yield Run(argv=words, unknown=str(why), fed=fed, unsaid=unsaid)
            yield from (Reach(address=host) for host in named_hosts(words))
            moved, changed = moved or does in _MOVES, changed or does in _CHANGES
            continue
        yield Run(argv=words, fed=fed, unsaid=unsaid)
        # rg passes over names that begin with a dot, unless a glob of its own names some.
        hidden = words[0] != "rg" or any(word.startswith("-") and "g" in word for word in words)
        for path, literal, extent in files:
            elsewhere = moved and not path.startswith("/")
            yield Read(path=path, pattern=not literal, moved=elsewhere, extent=extent, hidden=hidden)
        moved, changed = moved or does in _MOVES, changed or does in _MOVES
    for operator, (path, literal) in line.files:
        elsewhere = moved and not path.startswith("/")
        if found := _SOCKET.fullmatch(path):
            yield Reach(address=f"{found[1]}:{found[2]}")
        elif operator == "<":
            yield Read(path=path, pattern=not literal, moved=elsewhere)
        else:
            yield Write(path=path, pattern=not literal, moved=elsewhere)


def _by_the_shell(words: Sequence[str]) -> str:
    """The program, or what `command` and `builtin` have the shell do."""
    return next((word for word in words if word not in _PASSING and not word.startswith("-")), words[0])


# --- reading a line --------------------------------------------------------------------------------------

_Word = tuple[str, bool]  # its text, and whether the shell leaves it as it is


class _Line:
    """What the grammar found: commands, files that are redirected to or from, and all words in their order."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self.commands: list[tuple[list[_Word], bool]] = []  # and whether the line feeds it
        self.files: list[tuple[str, _Word]] = []
        self.words: list[str] = []

    def read(self, root: Node) -> None:
        stack = [(root, False)]
        while stack:
            node, fed = stack.pop()
            if node.type in ("program", "list", "pipeline", "redirected_statement"):
                self._check_gaps(node, b" \t\n")
                fed = fed or _takes_input(node)
                piped = node.type == "pipeline"
                stack += [(child, fed or (piped and at > 0)) for at, child in enumerate(node.children)][::-1]
            elif node.type == "command":
                self._read_command(node, fed or _takes_input(node))
            elif node.type == "file_redirect":
                self._read_redirect(node)
            elif node.is_named or node.type not in _JOINTS:
                raise Unreadable(f"it holds {_name(node)}")

    def _read_command(self, node: Node, fed: bool) -> None:
        self._check_gaps(node, b" \t")
        argv: list[_Word] = []
        for child in node.children:
            if child.type == "file_redirect":
                self._read_redirect(child)
            else:
                argv.append(self._word(child))
        if not argv:
            raise Unreadable("there is no command in it")
        if not argv[0][1]:
            raise Unreadable(f"it cannot be told which program `{argv[0][0][:80]}` stands for")
        self.commands.append((argv, fed))

    def _read_redirect(self, node: Node) -> None:
        self._check_gaps(node, b" \t")
        children = list(node.children)
        if children[0].type == "file_descriptor":
            self.words.append(_text(children.pop(0)))
        if len(children) != 2:
            raise Unreadable("it holds a redirection that can be read in two ways")
        operator, target = children
        word = self._word(target)
        if operator.type == ">&" and word[0] in ("1", "2"):
            return
        if operator.type != "<" and operator.type not in _WRITING:
            raise Unreadable(f"it holds the redirection `{operator.type}`")
        self.files.append((operator.type, word))

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
                raise Unreadable("it holds something between its words")
            at = end


def _takes_input(node: Node) -> bool:
    redirects = [child for child in node.children if child.type == "file_redirect"]
    return any(part.type in ("<", "<>") for redirect in redirects for part in redirect.children)


def _piece(node: Node) -> _Word:
    text = _text(node)
    match node.type:
        case "word" | "number":
            if not _PLAIN.fullmatch(text):
                raise Unreadable(f"the word `{text[:80]}` is not plain")
            # Behind `=` and `:` some shells put the home in place of `~`.
            return text, not set(text) & set("*?") and "=~" not in text and ":~" not in text
        case "raw_string":
            return text[1:-1], True
        case "string":
            if any(child.type not in ('"', "string_content") for child in node.children) or set(text) & set("$`\\"):
                raise Unreadable("it holds a string that the shell changes")
            return text[1:-1], True
    raise Unreadable(f"it holds {_name(node)}")


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
        raise Unreadable("two ways to read it disagree") from None
