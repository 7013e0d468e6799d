"""The commands on chats, with their arguments and their help. What they do is in `commands/chats.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Verbose, Where

chats = typer.Typer(help="Look at chats and act on them.", no_args_is_help=True, rich_markup_mode=None)

ChatId = A[str, typer.Argument(help="The chat; `last` is the newest.", metavar="CHAT")]
CallId = A[str | None, typer.Option("--call", help="Which call, if several are open.", metavar="ID")]


@chats.command("list")
def list_chats(
    agent: A[str | None, typer.Option(help="Only this agent's.")] = None,
    state: A[str | None, typer.Option(help="Only: idle, running, stopping, waiting, failed.")] = None,
    search: A[str | None, typer.Option(help="Words of the title or the first message.")] = None,
    archived: A[bool, typer.Option("--archived", help="Those in the archive.")] = False,
    limit: A[int, typer.Option(min=1, max=500, help="How many at most.")] = 20,
    json: Json = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List chats, newest first.

    Example: holdfast chats list --state waiting
    """
    from holdfast.cli.commands import chats

    wanted = chats.Wanted(agent=agent, state=state, search=search, archived=archived, limit=limit)
    carry_out(chats.list_chats(Where(app, home, database), wanted, json=json), quiet=True)


@chats.command()
def inbox(
    kind: A[str | None, typer.Option(help="Only: approval, question, client.")] = None,
    owner: A[str | None, typer.Option(help="Only in this owner's chats.")] = None,
    limit: A[int, typer.Option(min=1, max=500, help="How many at most.")] = 50,
    json: Json = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List what people and clients have to answer, in all chats.

    Example: holdfast chats inbox --kind approval
    """
    from holdfast.cli.commands import chats

    carry_out(chats.inbox(Where(app, home, database), kind, owner, limit, json=json), quiet=True)


@chats.command()
def show(
    chat: ChatId,
    call: A[str | None, typer.Option("--call", help="Only this call, and all of it.", metavar="ID")] = None,
    json: Json = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Show a chat: its state, its messages, and what it waits for.

    Example: holdfast chats show last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.show(Where(app, home, database), chat, call, json=json, verbose=verbose), quiet=True)


@chats.command()
def why(
    chat: ChatId,
    json: Json = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Say why a chat stands where it stands: what it does or waits for, since when, until when, and what comes next.

    Example: holdfast chats why last
    """
    from holdfast.cli.commands import why

    carry_out(why.why(Where(app, home, database), chat, json=json, verbose=verbose), quiet=True)


@chats.command()
def tail(
    chat: ChatId,
    json: Json = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Follow a chat from its beginning until it rests; who follows changes nothing.

    Example: holdfast chats tail last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.tail(Where(app, home, database), chat, json=json, verbose=verbose), quiet=True)


@chats.command()
def send(
    chat: ChatId,
    text: A[str, typer.Argument(help="What to say; - reads standard input.")],
    mode: A[str, typer.Option(help="queue: after this turn; steer: into it; interrupt: instead.")] = "queue",
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Send a message, and do not wait for the answer.

    Example: holdfast chats send last "and in French?" --mode steer
    """
    from holdfast.cli.commands import chats

    carry_out(chats.send(Where(app, home, database), chat, text, mode), quiet=True)


@chats.command()
def stop(
    chat: ChatId,
    clear_queue: A[bool, typer.Option("--clear-queue", help="Drop the queued messages, and show them.")] = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Stop the turn; what was said so far is kept.

    Example: holdfast chats stop last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.stop(Where(app, home, database), chat, clear_queue=clear_queue), quiet=True)


@chats.command()
def approve(
    chat: ChatId,
    call: CallId = None,
    digest: A[
        str | None, typer.Option(help="Of the call as you have seen it: `chats show --call` tells.", metavar="DIGEST")
    ] = None,
    always: A[
        str | None,
        typer.Option(help="Also keep the rules it offers, for this chat, agent or owner.", metavar="SCOPE"),
    ] = None,
    for_: A[
        str | None, typer.Option("--for", help="How long they are kept, such as 12h (default: for ever).")
    ] = None,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Allow the call that the chat asks about; one too long for `chats show` only with its digest.

    Example: holdfast chats approve last --always chat
    """
    from holdfast.cli.commands import chats

    asked = chats.Approval(digest=digest, always=always, for_=for_)
    carry_out(chats.approve(Where(app, home, database), chat, call, asked), quiet=True)


@chats.command()
def deny(
    chat: ChatId,
    words: A[str, typer.Argument(help="Why not; the model reads it.")] = "",
    call: CallId = None,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Deny the call that the chat asks about, and say why.

    Example: holdfast chats deny last "use the test account"
    """
    from holdfast.cli.commands import chats

    carry_out(chats.deny(Where(app, home, database), chat, call, words), quiet=True)


@chats.command()
def answer(
    chat: ChatId,
    text: A[str, typer.Argument(help="The answer, or a client tool's result; - reads standard input.")],
    call: CallId = None,
    error: A[bool, typer.Option("--error", help="It is the client tool's error.")] = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Answer a question of the chat, or give the result of a client tool.

    Example: holdfast chats answer last "the blue one"
    """
    from holdfast.cli.commands import chats

    carry_out(chats.answer(Where(app, home, database), chat, call, text, error=error), quiet=True)


@chats.command()
def edit(
    chat: ChatId,
    text: A[str, typer.Argument(help="The new words.")],
    message: A[str | None, typer.Option(help="Which message (default: your last one).", metavar="ID")] = None,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Replace one of your messages and everything after it.

    Example: holdfast chats edit last "what I meant was …"
    """
    from holdfast.cli.commands import chats

    carry_out(chats.edit(Where(app, home, database), chat, message, text), quiet=True)


@chats.command()
def fork(
    chat: ChatId,
    upto: A[int | None, typer.Option(help="History position; all of it without.", min=0)] = None,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Copy a chat's history into a new chat, and print its id.

    Example: holdfast chats fork last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.fork(Where(app, home, database), chat, upto), quiet=True)


@chats.command()
def retry(
    chat: ChatId, verbose: Verbose = False, app: AppName = None, home: Home = None, database: Database = None
) -> None:
    """Try a failed turn again.

    Example: holdfast chats retry last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.retry(Where(app, home, database), chat), quiet=True)


@chats.command("go-on")
def go_on(
    chat: ChatId, verbose: Verbose = False, app: AppName = None, home: Home = None, database: Database = None
) -> None:
    """Go on with a turn that a budget ended, without a new message.

    Example: holdfast chats go-on last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.go_on(Where(app, home, database), chat), quiet=True)


@chats.command()
def compact(
    chat: ChatId, verbose: Verbose = False, app: AppName = None, home: Home = None, database: Database = None
) -> None:
    """Have a summary stand for the older part of a chat; the messages stay.

    Example: holdfast chats compact last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.compact(Where(app, home, database), chat), quiet=True)


@chats.command()
def archive(
    chat: ChatId,
    undo: A[bool, typer.Option("--undo", help="Bring it back.")] = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Put a chat into the archive.

    Example: holdfast chats archive last
    """
    from holdfast.cli.commands import chats

    carry_out(chats.archive(Where(app, home, database), chat, undo=undo), quiet=True)


@chats.command()
def delete(
    chat: ChatId,
    children: A[bool, typer.Option("--children", help="And the chats that it started.")] = False,
    yes: A[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Delete a chat for good.

    Example: holdfast chats delete last --yes
    """
    from holdfast.cli.commands import chats

    carry_out(chats.delete(Where(app, home, database), chat, children=children, ask=not yes), quiet=True)


@chats.command()
def export(
    chat: ChatId,
    file: A[str | None, typer.Argument(help="Where to (default: CHAT.jsonl).", metavar="FILE")] = None,
    force: A[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Write all of a chat as a file, with the chats that it started. It has to rest, or wait.

    Example: holdfast chats export last chat.jsonl
    """
    from holdfast.cli.commands import transfer

    carry_out(transfer.export_chat(Where(app, home, database), chat, file, force=force), quiet=True)


@chats.command("import")
def import_chats(
    files: A[list[str], typer.Argument(help="What `chats export` or `owners export` wrote.", metavar="FILE…")],
    new_ids: A[bool, typer.Option("--new-ids", help="Beside chats of the same ids.")] = False,
    owner: A[str | None, typer.Option(help="Under another owner.")] = None,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Bring exported chats in, each whole or not at all.

    Example: holdfast chats import chat.jsonl
    """
    from holdfast.cli.commands import transfer

    carry_out(transfer.import_chats(Where(app, home, database), files, new_ids=new_ids, owner=owner), quiet=True)
