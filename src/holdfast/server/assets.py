"""Files of ours that browsers load: read once, given with a tag of their content. A browser asks each time whether it
still has the right one, so that modules of two versions are never mixed after a deploy.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

MEDIA_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}


class _Asset(NamedTuple):
    data: bytes
    tag: str
    media_type: str


class Assets:
    """Those of one folder, by name; it has no folders in it."""

    def __init__(self, folder: Path, *suffixes: str) -> None:
        self._found = {
            file.name: _read(file) for file in sorted(folder.iterdir()) if file.suffix in (suffixes or MEDIA_TYPES)
        }
        self.names = frozenset(self._found)

    def answer(self, name: str, request: Request, headers: dict[str, str] | None = None) -> Response:
        """404 for one that there is not, 304 for one that the browser has."""
        asset = self._found.get(name)
        if asset is None:
            return Response(status_code=404)
        told = {"Cache-Control": "no-cache", "ETag": asset.tag, **(headers or {})}
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=told)
        return Response(asset.data, headers=told, media_type=asset.media_type)


def _read(file: Path) -> _Asset:
    data = file.read_bytes()
    return _Asset(data, f'"{hashlib.sha256(data).hexdigest()[:32]}"', MEDIA_TYPES[file.suffix])
