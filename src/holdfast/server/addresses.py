"""Where the servers of a home listen: a file for each, from its start to its end. What a killed server left is found
by asking there, and means nothing.
"""

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from holdfast.config import Config
from holdfast.system.disk import create_path

FOLDER = "addresses"
READ_MAX = 200  # files of a folder; each server has one
CONNECT_S = 1.0


class Address(Struct, frozen=True):
    """`database`: a digest of where its data is, by which two servers of one home are told apart."""

    url: str
    database: str


def database_digest(config: Config) -> str:
    url = config.database_url
    scheme, separator, path = url.partition(":///")
    place = f"{scheme}{separator}{Path(path).resolve()}" if scheme == "sqlite" else url
    return hashlib.sha256(place.encode()).hexdigest()[:32]


@contextlib.contextmanager
def noted(config: Config, url: str) -> Iterator[None]:
    """While the server listens. A convenience: it goes on where the note cannot be written."""
    path = Path(config.home) / FOLDER / f"{os.getpid()}-{urlsplit(url).port}"
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)  # of a process that had our number
        create_path(path, msgspec.json.encode(Address(url, database_digest(config))))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def listening(home: str) -> list[Address]:
    """Of the servers that answer a connection now, the one that was started last first."""
    found: list[tuple[float, Address]] = []
    with contextlib.suppress(OSError):
        for path in sorted((Path(home) / FOLDER).iterdir())[:READ_MAX]:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                address = msgspec.json.decode(path.read_bytes(), type=Address)
                if is_listening(address.url):
                    found.append((path.stat().st_mtime, address))
    return [address for _, address in sorted(found, key=lambda pair: pair[0], reverse=True)]


def is_listening(url: str) -> bool:
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=CONNECT_S):
            return True
    except (OSError, ValueError):
        return False
