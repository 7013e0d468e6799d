"""`holdfast chats export|import` and `holdfast owners list|export|delete`."""

import time
from pathlib import Path

import msgspec
import typer

from holdfast.cli.app_choice import UsageError, app_of_data, app_with_data, list_from_app, look_at_app, opened
from holdfast.cli.commands.run import find_chat, write_line
from holdfast.cli.given_paths import given_path
from holdfast.cli.options import Where
from holdfast.cli.progress import ProgressLine, megabytes
from holdfast.errors import InvalidInput, RefusedError
from holdfast.safe_text import safe


async def export_chat(where: Where, chat: str, file: str | None, *, force: bool) -> int:
    async with opened(look_at_app(where)) as app:
        chat_id = (await find_chat(app, chat)).id
        path = Path(file or f"{chat_id}.jsonl")
        with given_path(path):
            try:
                size = await app.export_chat(chat_id, path, overwrite=force)
            except FileExistsError as error:
                raise UsageError(f"{safe(str(path))} is there: say --force to replace it") from error
    print(f"{safe(str(path))}: {megabytes(size)}")
    return 0


async def import_chats(where: Where, files: list[str], *, new_ids: bool, owner: str | None) -> int:
    async with opened(app_of_data(where)) as app:
        for file in files:
            try:
                with given_path(Path(file)):
                    done = await app.import_chat(Path(file), new_ids=new_ids, owner=owner)
            except (InvalidInput, RefusedError) as error:
                other = "; --new-ids imports it beside that one" if isinstance(error, RefusedError) else ""
                raise UsageError(f"{safe(file)}: {error}{other}") from error
            below = f", with {done.chats - 1} below it" if done.chats > 1 else ""
            print(f"{safe(file)}: chat {done.chat_id}{below}")
    return 0


async def list_owners(where: Where, *, json: bool) -> int:
    async with opened(list_from_app(where)) as app:
        async for owner, count in app.owners():
            if json:
                write_line(msgspec.json.encode({"owner": owner, "chats": count}))
            else:
                print(f"{count:>8}  {safe(owner) if owner else '(no owner)'}")
    return 0


async def export_owner(where: Where, owner: str, folder: str) -> int:
    async with opened(look_at_app(where)) as app:
        with ProgressLine("exporting") as shown, given_path(Path(folder)):
            count = await app.export_owner(owner, Path(folder), lambda done: shown.say(f"{done} files"))
    print(f"{safe(folder)}: {count} file{'s' if count != 1 else ''}")
    return 0


async def delete_owner(where: Where, owner: str, *, stop: bool, ask: bool) -> int:
    if ask:
        typer.confirm(f"Delete all chats of {safe(owner)!r} for good?", abort=True)
    began = time.monotonic()
    async with opened(app_with_data(where)) as app:
        with ProgressLine("deleting") as shown:
            done = await app.delete_owner(owner, stop=stop, told=lambda count: shown.say(f"{count} chats"))
    stopped = f", {done.stopped} of them stopped first" if done.stopped else ""
    tokens = f", {done.tokens} tokens revoked" if done.tokens else ""
    print(f"{done.chats} chats deleted{stopped}{tokens}, in {time.monotonic() - began:.1f} s")
    return 0
