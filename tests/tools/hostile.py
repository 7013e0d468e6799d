"""Hostile inputs for the file tools and for fetch, and what each gets. Read it as a table.

`got` is what the answer must contain. For files, the secret outside of the root is never in an answer and never
changes; for fetch, the page inside is never asked for.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET = "the secret outside"
OUT = "leads out of the folder"
NO_FILE = "not a file"


@dataclass(frozen=True)
class FileCase:
    what: str
    tool: str
    arguments: dict[str, Any]
    got: str
    prepare: Callable[[Path, Path], object] = field(default=lambda root, outside: None)
    endless: bool = False  # it would never end by itself, so its time is short


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "read_file", {"path": path}


def write(path: str) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "content": "overwritten"}


def edit(path: str) -> tuple[str, dict[str, Any]]:
    return "edit_file", {"path": path, "old": "secret", "new": "public"}


def link(name: str, target: str) -> Callable[[Path, Path], None]:
    """A symlink in the root; {outside} and {root} in its target are the folders."""

    def make(root: Path, outside: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target.format(outside=outside, root=root))

    return make


def chain(root: Path, outside: Path) -> None:
    for number in range(30):
        (root / f"link{number}").symlink_to(f"link{number + 1}")


def bind_socket(root: Path, outside: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        here = Path.cwd()
        os.chdir(root)  # a socket's path is short
        try:
            opened.bind("socket")
        finally:
            os.chdir(here)


def device(root: Path, outside: Path) -> None:
    os.mknod(root / "device", 0o666 | 0o020000, os.makedev(1, 5))  # /dev/zero: endless


def doubling(root: Path, outside: Path) -> None:
    for number in range(18):
        (root / f"d{number}").symlink_to(f"d{number + 1}/d{number + 1}")
    (root / "d18").mkdir()
    for number in range(1, 19):
        (root / "d18" / f"d{number}").symlink_to(f"../d{number}")


FILES = [
    FileCase("parent folder", *read("../outside/secret"), OUT),
    FileCase("parent folder in the middle", *read("a/../../outside/secret"), OUT),
    FileCase("parent folder that stays inside", *read("a/../file"), OUT),
    FileCase("absolute path", *read("/etc/passwd"), OUT),
    FileCase("absolute path, doubled slash", *read("//etc/passwd"), OUT),
    FileCase("absolute path of a neighbour with the same beginning", *read("{root}-other/secret"), OUT),
    FileCase("absolute path into the root is fine", *read("{root}/file"), "content of a file"),
    FileCase("NUL in a path", *read("file\x00.txt"), "no NUL"),
    FileCase("a path of 10,000 characters", *read("a" * 10_000), "4,096 characters"),
    FileCase("a name of 300 characters", *read("a" * 300), "too long"),
    FileCase("1,000 folders", *read("a/" * 1000), "64 folders"),
    FileCase("backslashes are a name like any other", *read("..\\..\\outside\\secret"), "does not exist"),
    FileCase("percent signs are, too", *read("%2e%2e/outside/secret"), "does not exist"),
    FileCase("a tilde is, too", *read("~/secret"), "does not exist"),
    FileCase("the root itself", *read("."), NO_FILE),
    FileCase("an empty path", *read(""), NO_FILE),
    FileCase("write over the root", *write("."), "is a folder"),
    FileCase("write to no name", *write(""), ". is a folder"),
    FileCase("symlink to a file outside", *read("link"), OUT, link("link", "{outside}/secret")),
    FileCase("relative symlink to a file outside", *read("link"), OUT, link("link", "../outside/secret")),
    FileCase("symlink to a folder outside", *read("link/secret"), OUT, link("link", "{outside}")),
    FileCase("symlink to the root's parent", *read("up/outside/secret"), OUT, link("up", "..")),
    FileCase("symlink that leaves and comes back", *read("link"), OUT, link("link", "../root/file")),
    FileCase("symlink that stays inside is fine", *read("in/link"), "content of a file", link("in/link", "../file")),
    FileCase("symlink to itself", *read("link"), "symlinks", link("link", "link")),
    FileCase("a chain of 30 symlinks", *read("link0"), "symlinks", chain),
    FileCase("symlinks that double each other", *read("d0/x"), "symlinks", doubling),
    FileCase("write through a symlink to a file outside", *write("link"), OUT, link("link", "{outside}/secret")),
    FileCase("write through a symlink to nothing outside", *write("link"), OUT, link("link", "{outside}/new")),
    FileCase("write into a folder outside", *write("link/new"), OUT, link("link", "{outside}")),
    FileCase("make folders outside", *write("link/a/b/new"), OUT, link("link", "{outside}")),
    FileCase("edit a file outside", *edit("link"), OUT, link("link", "{outside}/secret")),
    FileCase("write below a file", *write("file/new"), "not a folder"),
    FileCase("read a FIFO", *read("fifo"), "a FIFO", lambda root, _: os.mkfifo(root / "fifo")),
    FileCase("write to a FIFO", *write("fifo"), "is a FIFO, not a file", lambda root, _: os.mkfifo(root / "fifo")),
    FileCase("edit a FIFO", *edit("fifo"), "a FIFO", lambda root, _: os.mkfifo(root / "fifo")),
    FileCase("read a socket", *read("socket"), "a socket", bind_socket),
    FileCase("read an endless device", *read("device"), "a device", device),
    FileCase("read a device through a symlink", *read("zero"), OUT, link("zero", "/dev/zero")),
    FileCase("list the parent", "list_files", {"path": ".."}, OUT),
    FileCase("a glob that climbs", "list_files", {"pattern": "../**"}, "no '..'"),
    FileCase("a glob of 40 stars", "list_files", {"pattern": "*a" * 40}, "at most four *"),
    FileCase("list a folder outside by a symlink", "list_files", {"path": "link"}, OUT, link("link", "{outside}")),
    FileCase("a listing names a symlink, and stops there", "list_files", {}, "link@", link("link", "{outside}")),
    FileCase(
        "a search does not follow symlinks",
        "search_files",
        {"text": "secret outside"},
        "1 files searched",
        link("link", "{outside}"),
    ),
    FileCase(
        "a search does not open a FIFO",
        "search_files",
        {"text": "secret"},
        "1 files searched",
        lambda root, _: os.mkfifo(root / "fifo"),
    ),
    FileCase(
        "a regular expression that never ends",
        "search_files",
        {"text": "(a+)+$", "regex": True},
        "took too long",
        lambda root, _: (root / "slow").write_text("a" * 60 + "b\n"),
        endless=True,
    ),
    FileCase("a regular expression that is none", "search_files", {"text": "(", "regex": True}, "not a regular"),
    FileCase(
        "a repetition beyond all limits", "search_files", {"text": "a{99999999999}", "regex": True}, "not a regular"
    ),
    FileCase("a name with a line break", "list_files", {}, r"a\nb", lambda root, _: (root / "a\nb").touch()),
    FileCase(
        "a name that is no text",
        "list_files",
        {},
        r"\xff",
        lambda root, _: Path(os.fsdecode(bytes(root) + b"/\xff")).touch(),
    ),
]


@dataclass(frozen=True)
class FetchCase:
    what: str
    url: str  # {port} is the server's
    got: str


INTERNAL = "internal address"
NAME = "name of the internal network"
FORM = "usual form"

FETCHES = [
    FetchCase("loopback", "http://127.0.0.1/", "loopback"),
    FetchCase("all of 127/8", "http://127.255.255.254/", "loopback"),
    FetchCase("short form", "http://127.1/", FORM),
    FetchCase("decimal", "http://2130706433/", FORM),
    FetchCase("octal", "http://0177.0.0.1/", "Invalid IPv4"),
    FetchCase("octal in one", "http://017700000001/", FORM),
    FetchCase("hexadecimal", "http://0x7f000001/", FORM),
    FetchCase("hexadecimal in parts", "http://0x7f.0.0.0x1/", FORM),
    FetchCase("full-width digits", "http://１２７.０.０.１/", "not a URL"),  # noqa: RUF001
    FetchCase("circled digits", "http://①②⑦.⓪.⓪.①/", "not a URL"),
    FetchCase("percent-encoded", "http://%31%32%37.0.0.1/", "not"),
    FetchCase("trailing dot", "http://127.0.0.1./", "loopback"),
    FetchCase("unspecified", "http://0.0.0.0/", "unspecified"),
    FetchCase("private 10/8", "http://10.0.0.1/", "private"),
    FetchCase("private 172.16/12", "http://172.31.255.255/", "private"),
    FetchCase("private 192.168/16", "http://192.168.0.1/", "private"),
    FetchCase("carrier's", "http://100.64.0.1/", "carrier"),
    FetchCase("link-local", "http://169.254.1.1/", "link-local"),
    FetchCase("metadata", "http://169.254.169.254/latest/meta-data/", "metadata"),
    FetchCase("metadata that looks public", "http://168.63.129.16/", "metadata"),
    FetchCase("multicast", "http://224.0.0.1/", "multicast"),
    FetchCase("broadcast", "http://255.255.255.255/", "reserved"),
    FetchCase("benchmarks", "http://198.18.0.1/", "benchmarks"),
    FetchCase("IPv6 loopback", "http://[::1]/", "loopback"),
    FetchCase("IPv6 unspecified", "http://[::]/", "unspecified"),
    FetchCase("IPv6 mapped", "http://[::ffff:127.0.0.1]/", "loopback"),
    FetchCase("IPv6 mapped, in hex", "http://[::ffff:7f00:1]/", "loopback"),
    FetchCase("IPv6 compatible", "http://[::127.0.0.1]/", INTERNAL),
    FetchCase("NAT64 of loopback", "http://[64:ff9b::7f00:1]/", "loopback"),
    FetchCase("local NAT64", "http://[64:ff9b:1::7f00:1]/", INTERNAL),
    FetchCase("6to4 of loopback", "http://[2002:7f00:1::]/", "6to4"),
    FetchCase("Teredo", "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/", INTERNAL),
    FetchCase("unique local", "http://[fd00::1]/", "private"),
    FetchCase("metadata over IPv6", "http://[fd00:ec2::254]/", "metadata"),
    FetchCase("IPv6 link-local", "http://[fe80::1]/", "link-local"),
    FetchCase("IPv6 with a zone", "http://[fe80::1%25eth0]/", "Failed"),
    FetchCase("localhost", "http://localhost/", NAME),
    FetchCase("localhost with a dot", "http://LOCALHOST./", NAME),
    FetchCase("below localhost", "http://a.localhost/", NAME),
    FetchCase("metadata by name", "http://metadata.google.internal/", NAME),
    FetchCase("a name without a dot", "http://intranet/", NAME),
    FetchCase("a name that resolves to loopback", "http://loop.test/", "loopback"),
    FetchCase("a name with one bad address among good ones", "http://mixed.test/", "private"),
    FetchCase("a name that resolves to a mapped address", "http://mapped.test/", "loopback"),
    FetchCase("a name that resolves to nonsense", "http://nonsense.test/", "no address"),
    FetchCase("a name without addresses", "http://nowhere.test/", "no address"),
    FetchCase("user name that looks like the host", "http://example.com@127.0.0.1/", "loopback"),
    FetchCase("host hidden behind a backslash", "http://example.com\\@127.0.0.1/", "backslash"),
    FetchCase("host hidden behind a fragment", "http://127.0.0.1#@example.com/", "loopback"),
    FetchCase("a line break in the URL", "http://site.test/\r\nX-Evil: 1", "control character"),
    FetchCase("a file", "file:///etc/passwd", "http or https"),
    FetchCase("gopher", "gopher://127.0.0.1:70/_", "http or https"),
    FetchCase("data", "data:text/html,hello", "http or https"),
    FetchCase("no scheme", "example.com", "http or https"),
    FetchCase("a port that is no web server's", "http://public.test:6379/", "port 6379"),
    FetchCase("port 0", "http://public.test:0/", "Failed"),
    FetchCase("a port that is none", "http://public.test:99999/", "Failed"),
    FetchCase("redirect to loopback", "http://site.test:{port}/to-loopback", "loopback"),
    FetchCase("redirect to metadata", "http://site.test:{port}/to-metadata", "metadata"),
    FetchCase("redirect to a file", "http://site.test:{port}/to-file", "http or https"),
    FetchCase("redirect to a name that is inside", "http://site.test:{port}/to-inside", "loopback"),
    FetchCase("redirect without end", "http://site.test:{port}/to-itself", "more than 5 times"),
    FetchCase("DNS that changes before the second hop", "http://rebind.test:{port}/again", "private"),
    FetchCase("a body without end", "http://site.test:{port}/endless", "cut at 100,000 bytes"),
    FetchCase("a gzip bomb", "http://site.test:{port}/bomb", "cut at 100,000 bytes"),
    FetchCase("gzip in gzip", "http://site.test:{port}/twice", "not asked for"),
    FetchCase("gzip that is cut off", "http://site.test:{port}/half", "ends too early"),
    FetchCase("gzip that is none", "http://site.test:{port}/no-gzip", "cannot be unpacked"),
    FetchCase("fewer bytes than it said", "http://site.test:{port}/short", "Failed"),
    FetchCase("more bytes than it said", "http://site.test:{port}/long", "12345"),
    FetchCase("two lengths", "http://site.test:{port}/two-lengths", "Failed"),
    FetchCase("a head without end", "http://site.test:{port}/endless-head", "Failed"),
    FetchCase("no HTTP at all", "http://site.test:{port}/ssh", "Failed"),
    FetchCase("a charset that unpacks", "http://site.test:{port}/charset", "hello"),
    FetchCase("a character of 10,000 digits", "http://site.test:{port}/number", "after it"),
    FetchCase("100,000 open tags", "http://site.test:{port}/tags", "200 OK"),
    FetchCase("100,000 open comments", "http://site.test:{port}/comments", "200 OK"),
]


def table(rows: list[tuple[str, str, str, str]]) -> str:
    """verdict, what, wanted, got."""
    return "\n".join(
        f"{verdict:<5} {what:<52} {wanted:<26} {' '.join(got.split())[:120]}" for verdict, what, wanted, got in rows
    )
