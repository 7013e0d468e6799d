"""Hosts that a command names: by a URL, or as an operand of a program that is known to reach them.

    curl example.com    ssh ada@example.com uptime    git clone example.com:ada/notes    nc example.com 25

`named_hosts` is what stands where such a program takes a host; `possible_hosts` is what may be one wherever it
stands, and is for rules that deny or ask. What a command reaches without naming it (a remote of git, a mirror in
settings, an address that a script puts together) is in neither.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Client(NamedTuple):
    """A program that reaches hosts. `values`: its options whose value is no host."""

    port: int | None = None  # where none is named; None: it cannot be told
    values: str = ""
    first: bool = False  # the first operand alone is a host
    remote: bool = False  # a host is what stands before a colon: `HOST:PATH`
    ports: bool = False  # the operand after the host is a port


_CURL = (
    "-A -C -D -E -F -H -K -Q -T -U -X -Y -b -c -d -e -m -o -r -t -u -w -y -z --cacert --capath --cert --config "
    "--connect-timeout --continue-at --cookie --cookie-jar --data --data-ascii --data-binary --data-raw "
    "--data-urlencode --dump-header --form --form-string --header --json --key --limit-rate --max-filesize "
    "--max-redirs --max-time --output --output-dir --range --referer --request --retry --retry-delay "
    "--retry-max-time --trace --trace-ascii --upload-file --url-query --user --user-agent --write-out"
)
_WGET = (
    "-A -B -D -O -P -Q -R -T -U -a -i -l -o -t -w --header --input-file --method --output-document --output-file "
    "--body-data --body-file --post-data --post-file --timeout --tries --user-agent --user --password "
    "--directory-prefix"
)
_SSH = "-B -D -E -F -I -L -O -Q -R -S -W -b -c -e -i -l -m -o -p -w"
_ANY = Client(values="-c -i -w -W -s -t -p -q -m -M -I -6 -4 -o -O -T")
_CLIENTS: dict[str, Client] = {
    "curl": Client(80, _CURL),
    "wget": Client(80, _WGET),
    "ssh": Client(22, _SSH, first=True),
    "mosh": Client(22, _SSH, first=True),
    "sftp": Client(22, "-B -D -F -P -R -S -b -c -i -l -o -s -X", first=True),
    "scp": Client(22, "-D -F -P -S -X -c -i -l -o", remote=True),
    "rsync": Client(22, "", remote=True),
    "git": Client(22, "", remote=True),
    "nc": Client(None, "-I -O -P -T -V -X -c -e -g -i -m -o -p -q -s -w", first=True, ports=True),
    "telnet": Client(23, "-b -e -l -n -S -X", first=True, ports=True),
    "ftp": Client(21, "-N -o -P -q -r -s -T -u", first=True, ports=True),
    **dict.fromkeys(
        ("http", "https", "xh", "aria2c", "axel", "lynx", "w3m", "links", "elinks"), Client(80, "-o -O -d")
    ),
    **dict.fromkeys(("ping", "ping6", "dig", "nslookup", "host", "traceroute", "tracepath", "mtr", "whois"), _ANY),
}
_CLIENTS |= {"netcat": _CLIENTS["nc"], "ncat": _CLIENTS["nc"], "slogin": _CLIENTS["ssh"]}

# Those that take hosts in ways of their own.
_OTHERS = frozenset({"lftp", "mysql", "nmap", "openssl", "psql", "redis-cli", "socat", "tftp"})
# The commands of git that take another repository; to the others `REVISION:PATH` is nothing to reach.
_GIT = frozenset({"archive", "clone", "fetch", "fetch-pack", "ls-remote", "pull", "push", "remote", "submodule"})
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(?:[^/@]*@)?([^/?#]+)")
_URL_WITHIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20})://(?:[^\s/@]*@)?([^\s/?#\"'`()<>,;\\|]+)")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9-]*=|-[A-Za-z]")
_HOST = re.compile(r"(?:[^\s/@:?#=\[\]]+|\[[0-9A-Fa-f:.%]+\])(?::[0-9]{0,5})?")
_REMOTE = re.compile(r"(?:[^\s/@:]*@)?([^\s/@:=\[\]]+|\[[0-9A-Fa-f:.%]+\])::?(?!//)")
_JOINTS = re.compile(r"[\s;&|()<>\"'`$={},\\]+")
_METHOD = re.compile(r"[A-Z]{3,10}")
_PORTS = {"http": 80, "https": 443, "ftp": 21, "ssh": 22, "git": 9418}


def named_hosts(words: Sequence[str]) -> list[str]:
    """The hosts, each perhaps with a port, that stand where this command takes one."""
    found = [_of_url(url) for word in words[1:] if (url := _URL.match(_value(word)) or _URL.match(word))]
    return list(dict.fromkeys([*found, *_operands(words)]))


def possible_hosts(words: Sequence[str]) -> list[str]:
    """What may be a host: every URL, whatever is around it, and every word behind a program that reaches hosts."""
    found = [_of_url(url) for word in words for url in _URL_WITHIN.finditer(word)]
    pieces = [piece for word in words for piece in _JOINTS.split(word) if piece]
    clients = (at for at, piece in enumerate(pieces) if _is_client(piece, pieces))
    for piece in pieces[next(clients, len(pieces)) + 1 :]:
        whole = piece.partition("/")[0].rpartition("@")[2]
        texts = [whole, _value(whole), *whole.split(":")]
        found += [text for text in texts if text and _HOST.fullmatch(text)]
    return list(dict.fromkeys(found))


def _is_client(piece: str, pieces: Sequence[str]) -> bool:
    name = piece.rpartition("/")[2].lower()
    return (name in _CLIENTS or name in _OTHERS) and (name != "git" or not _GIT.isdisjoint(pieces))


def _operands(words: Sequence[str]) -> Iterator[str]:
    name = words[0].rpartition("/")[2].lower()
    client = _CLIENTS.get(name)
    rest = list(words[1:])
    if client is None or (name == "git" and _GIT.isdisjoint(rest)):
        return
    operands = [word for word in _without_values(rest, client) if "://" not in word]
    if name == "git":
        operands = operands[1:] if {"remote", "submodule"} & set(operands[:1]) else operands[1:2]
    if client.remote:
        yield from (f"{found[1]}:{client.port}" for word in operands if (found := _REMOTE.match(word)))
        return
    for at, word in enumerate(operands[:1] if client.first else operands):
        bare = word.partition("/")[0].rpartition("@")[2]
        if not _HOST.fullmatch(bare) or _METHOD.fullmatch(bare) or (client.ports and bare.isdigit()):
            continue
        port = operands[at + 1] if client.ports and operands[at + 1 :] and operands[at + 1].isdigit() else client.port
        told = any(word.startswith(("-p", "-P", "--port")) for word in rest)  # another than the usual one
        yield bare if ":" in bare or port is None or (told and client.port == port) else f"{bare}:{port}"


def _without_values(words: Sequence[str], client: Client) -> Iterator[str]:
    """No options, and no values of those that take no host. When in doubt a word counts as a host."""
    values = client.values.split()
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in values or (not word.startswith("--") and f"-{word[-1]}" in values and len(word) > 1)
        else:
            yield word


def _value(word: str) -> str:
    """Of `--url=VALUE` and `-xVALUE`."""
    option = _OPTION.match(word)
    return word[option.end() :] if option is not None else word


def _of_url(url: "re.Match[str]") -> str:
    port = _PORTS.get(url[1].lower())
    return url[2] if port is None or re.search(r":[0-9]*$", url[2]) else f"{url[2]}:{port}"
