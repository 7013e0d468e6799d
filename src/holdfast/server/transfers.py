"""The routes of exports, imports and owners. Files are read and written as they come, in bounded memory.

An export is whole if its last line is its `end`. One that ends before says `cut`, if it still can, and its answer is
left without an end, so that a client that looks at no line has an error, too.
"""

import asyncio
import hashlib
import io
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

import msgspec
from fastapi import Path, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from holdfast.chat import Chat
from holdfast.core.records import State
from holdfast.errors import CallerError, NotFound, RefusedError, StoreError
from holdfast.server import problems, views
from holdfast.server.chats import PROBLEMS, ChatId, as_json
from holdfast.server.frames import BATCH_BYTES
from holdfast.server.guarded import Routes
from holdfast.server.owned_app import AppOf, KeyGiven, OwnedApp
from holdfast.server.streams import ENDED_WORDS, Stream
from holdfast.store.export_lines import cut_line
from holdfast.store.records import ChatFilter
from holdfast.store.transfers import Export
from holdfast.system import disk
from holdfast.transfer import file_name_of

FILE_TYPE = "application/octet-stream"  # what generators of clients know; the name says whether it is lines or tar
LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {FILE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "description": "JSON lines. Whole if the last one is of the kind `end`",
    }
}
ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {FILE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "description": "A file for each chat, and at the end `owner.json`: without it the archive was cut off",
    }
}
FILE = {
    "requestBody": {
        "required": True,
        "content": {FILE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}
DELETE_S = 40.0  # proxies give up on a silent request soon after

routes = Routes(prefix="/api", tags=["transfers"], responses=PROBLEMS)

Owner = Annotated[str, Path(min_length=1, max_length=512)]


class FileStream(Stream):
    """A file that is made while it is sent."""

    greeting = sign = b""
    farewell = dismissal = b""
    unfinished = True

    def __init__(self, app: OwnedApp, name: str) -> None:
        shown = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
        super().__init__(app, [(b"content-disposition", shown.encode())])
        self.media = [(b"content-type", FILE_TYPE.encode()), (b"cache-control", b"no-store")]


class LineStream(FileStream):
    farewell = cut_line("the server goes, or asks anew who you are: ask for it again")
    dismissal = cut_line(ENDED_WORDS)

    def __init__(self, app: OwnedApp, export: Export) -> None:
        super().__init__(app, file_name_of(export.family[0].id))
        self._export = export

    async def chunks(self) -> AsyncIterator[bytes]:
        """Few large writes instead of many small ones."""
        batch, size = [], 0
        try:
            async for line in self._export.lines():
                batch.append(line)
                size += len(line)
                if size >= BATCH_BYTES:
                    yield b"".join(batch)
                    batch, size = [], 0
        except (CallerError, StoreError) as error:
            yield cut_line(str(error))
            return
        self.unfinished = False
        yield b"".join(batch)


class ArchiveStream(FileStream):
    """All chats of an owner, each as a file of its own. A chat is written to the disk first: an archive says how
    large a file is before it holds it, and a file can be written again where its chat changes meanwhile.
    """

    def __init__(self, app: OwnedApp, owner: str) -> None:
        super().__init__(app, f"{owner}.tar")
        self._owner = owner

    async def begin(self) -> "ArchiveStream":
        """Raises RefusedError while chats run: better than to break off in the midst."""
        for state in (State.RUNNING, State.STOPPING):
            for line in await self._app.store.list_chats(ChatFilter(owner=self._owner, state=state), limit=1):
                words = f"chat {line.id!r} is {line.state}: stop it, or wait until it rests"
                raise RefusedError(words, reason="state", state=line.state, command="export")
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        count = 0
        async for chat_id in self._app.families(self._owner):
            with disk.nameless_file(self._streams.uploads.home) as file:
                try:
                    size = await self._app.write_export(chat_id, file)
                except NotFound:
                    continue  # deleted meanwhile
                for piece in _member(file_name_of(chat_id), file, size):
                    yield piece
            count += 1
        told = msgspec.json.encode({"owner": self._owner, "files": count})
        for piece in _member("owner.json", io.BytesIO(told), len(told)):
            yield piece
        self.unfinished = False
        yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, file: BinaryIO, size: int) -> Iterator[bytes]:
    head = tarfile.TarInfo(name)
    head.size, head.mode, head.mtime = size, 0o600, int(time.time())
    yield head.tobuf(tarfile.PAX_FORMAT)
    file.seek(0)
    while piece := file.read(BATCH_BYTES):
        yield piece
    yield bytes(-size % tarfile.BLOCKSIZE)


@routes.get("/chats/{chat_id}/export", scope="read", response_class=Response, responses=LINES)
async def export_chat(app: AppOf, chat_id: ChatId) -> Response:
    """The chat with all that it spawned, as a file. Refused while one of them runs."""
    return LineStream(app, await app.store.export_chat(chat_id))


@routes.post("/chats/import", scope="chat", status_code=201, response_model=views.ChatShown, openapi_extra=FILE)
async def import_chat(
    app: AppOf,
    request: Request,
    key: KeyGiven,
    owner: Annotated[str | None, Query(max_length=200, description="null: your token's, or the file's")] = None,
    keep_ids: Annotated[
        bool, Query(description="under the ids of the file, if they are free; for tokens without an owner")
    ] = False,
) -> Response:
    """What an export wrote, whole or not at all, beside what there is. Calls that wait for an approval are for
    operators to import.
    """
    coming = asyncio.ensure_future(_imported(app, request, key, owner, keep_ids=keep_ids))
    try:
        await app.streams.wait_for((coming,), app.grant)
        if not coming.done():
            return problems.of_going()
        chat = await coming
        place = {"Location": f"{request.scope.get('root_path', '')}/api/chats/{chat.id}"}
        return as_json(views.chat_of(await chat.snapshot()), 201, place)
    except ClientDisconnect:
        return Response(status_code=400)  # which no client sees
    finally:
        coming.cancel()
        await asyncio.wait((coming,))


async def _imported(app: OwnedApp, request: Request, key: str | None, owner: str | None, *, keep_ids: bool) -> Chat:
    async with app.streams.uploads.taken(request, app.client) as upload:
        asked = hashlib.blake2b(repr((upload.digest, owner, keep_ids)).encode(), digest_size=16).hexdigest()
        known = app.key(key, asked) if key is not None else None
        return await app.import_chat(upload.file, keep_ids=keep_ids, owner=owner, key=known)


@routes.get("/owners", scope="operate", all_owners=True, response_model=views.OwnerPage)
async def list_owners(
    app: AppOf,
    after: Annotated[str | None, Query(max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """In the order of their names, each with the number of its chats. `""` are the chats that nobody owns."""
    found = await app.owners(after=after, limit=limit)
    shown = [{"owner": owner, "chats": count} for owner, count in found]
    return as_json({"owners": shown, "next": found[-1][0] if len(found) == limit else None})


@routes.get("/owners/{owner}/export", scope="operate", all_owners=True, response_class=Response, responses=ARCHIVE)
async def export_owner(app: AppOf, owner: Owner) -> Response:
    """An archive with a file for each chat. Refused while one of them runs."""
    return await ArchiveStream(app, owner).begin()


@routes.delete("/owners/{owner}", scope="operate", all_owners=True, response_model=views.OwnerDeletedShown)
async def delete_owner(
    app: AppOf, owner: Owner, stop: Annotated[bool, Query(description="stop the chats that run or wait")] = False
) -> Response:
    """All of its chats, and its tokens. What takes long is not `done`: ask again, and it goes on."""
    done = await app.delete_owner(owner, stop=stop, within_s=DELETE_S)
    return as_json(done)
