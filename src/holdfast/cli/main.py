"""The commands, with their arguments and their help. What they do is elsewhere, and loaded when it is done."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated as A
from typing import NoReturn

import typer

from holdfast import __version__
from holdfast.cli.budgets_group import budgets
from holdfast.cli.chats_group import chats
from holdfast.cli.dispatch import carry_out
from holdfast.cli.mcp_group import mcp
from holdfast.cli.memory_group import memory
from holdfast.cli.options import AppArgument, AppName, Database, Home, Json, Processes, Verbose, Where, note_json
from holdfast.cli.owners_group import owners
from holdfast.cli.permissions_group import permissions
from holdfast.cli.schedules_group import schedules
from holdfast.cli.skills_group import skills
from holdfast.cli.tokens_group import tokens
from holdfast.cli.webhooks_group import webhooks
from holdfast.errors import HoldfastError

EPILOG = (
    "Settings come from options, HOLDFAST_… in the environment, and holdfast.toml; `holdfast config show` lists them."
)

cli = typer.Typer(
    name="holdfast",
    help="A crash-durable, never-hanging runtime for LLM agents.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config = typer.Typer(help="The settings.", no_args_is_help=True, rich_markup_mode=None)


@config.callback()
def config_options() -> None:
    pass


cli.add_typer(chats, name="chats")
cli.add_typer(owners, name="owners")
cli.add_typer(config, name="config")
cli.add_typer(tokens, name="tokens")
cli.add_typer(permissions, name="permissions")
cli.add_typer(skills, name="skills")
cli.add_typer(schedules, name="schedules")
cli.add_typer(budgets, name="budgets")
cli.add_typer(webhooks, name="webhooks")
cli.add_typer(mcp, name="mcp")
cli.add_typer(memory, name="memory")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {__version__}")
        raise typer.Exit


@cli.callback()
def options(
    version: A[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass


@cli.command()
def serve(
    app: AppArgument = None,
    host: A[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: A[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on (default: 7433; 0: any free one).")
    ] = None,
    home: Home = None,
    database: Database = None,
    no_worker: A[bool, typer.Option("--no-worker", help="Only HTTP; workers are other processes.")] = False,
    processes: Processes = None,
) -> None:
    """Serve the HTTP API and the page, and run chats, in one process or in several on one port.

    With --processes N a supervisor starts N of them: SIGHUP replaces them one after the other, with the code as it is
    then; SIGTERM drains all; one that ends is started again.

    Example: holdfast serve support:app --port 8000 --processes auto
    """
    from holdfast.cli.supervisor import supervise_if_wanted

    supervise_if_wanted(processes)
    from holdfast.cli.commands.serve import serve

    carry_out(serve(app, worker=not no_worker, host=host, port=port, home=home, database=database))


@cli.command()
def worker(
    app: AppArgument = None, home: Home = None, database: Database = None, processes: Processes = None
) -> None:
    """Run chats: one more worker, or several under a supervisor, on this machine or on another.

    Example: holdfast worker support:app --database postgresql://user@host/database --processes 4
    """
    from holdfast.cli.supervisor import supervise_if_wanted

    supervise_if_wanted(processes)
    from holdfast.cli.commands.serve import work

    carry_out(work(app, home=home, database=database))


@cli.command()
def run(
    question: A[str | None, typer.Argument(help="The question; - reads standard input.")] = None,
    agent: A[str | None, typer.Option(help="Whom to ask (default: assistant).")] = None,
    model: A[str | None, typer.Option(help="Another model, such as openai:gpt-6.1-terra, local or scripted.")] = None,
    chat: A[str | None, typer.Option(help="Go on with this chat; `last` is the newest.", metavar="ID")] = None,
    json: A[bool, typer.Option("--json", help="One event per line, for programs.", callback=note_json)] = False,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Ask one question and follow the answer; the exit code says how it ended.

    0 done, 1 failed, 2 wrong usage, 3 stopped, 4 waiting for a person. Ctrl-C stops the turn and keeps what was said;
    twice leaves at once. Needs no server: while it lasts it is a worker itself. With --chat and no question it
    follows what that chat does, and does it where no other worker would.

    Example: git diff | holdfast run - --agent assistant
    """
    from holdfast.cli.commands.run import Question, find_question, run

    text = find_question(question, optional=chat is not None)
    asked = Question(text=text, agent=agent, model=model, chat=chat, json=json, verbose=verbose)
    carry_out(run(app, home, database, asked), quiet=True)


@cli.command()
def chat(
    agent: A[str | None, typer.Option(help="Whom to talk with (default: assistant).")] = None,
    model: A[str | None, typer.Option(help="Another model, such as openai:gpt-6.1-terra, local or scripted.")] = None,
    chat: A[str | None, typer.Option(help="Go on with this chat; `last` is the newest.", metavar="ID")] = None,
    verbose: Verbose = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Talk in the terminal; /help there lists what you can do.

    Ctrl-C stops the turn, twice leaves; Ctrl-D leaves. A turn that you leave goes on when a worker takes it.

    Example: holdfast chat --agent scripted
    """
    from holdfast.cli.commands.chat import talk

    wish = talk(Where(app, home, database), agent=agent, model=model, chat_id=chat, verbose=verbose)
    carry_out(wish, quiet=True)


@cli.command()
def workers(json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """List the workers that hold a lease on the database, in any process.

    Example: holdfast workers --database postgresql://user@host/database
    """
    from holdfast.cli.commands.inspection import list_workers

    carry_out(list_workers(Where(app, home, database), json=json), quiet=True)


@cli.command()
def usage(
    owner: A[str | None, typer.Option("--owner", help="Of this owner; without it, of all.", metavar="NAME")] = None,
    day: A[str | None, typer.Option("--day", help="On this day, such as 2026-11-17.", metavar="DAY")] = None,
    since: A[str | None, typer.Option("--since", help="From this day on.", metavar="DAY")] = None,
    by: A[
        list[str] | None,
        typer.Option("--by", help="owner, agent, model, kind, day; several with commas.", metavar="NAMES"),
    ] = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Show who spent what: responses, lost attempts, summaries, titles, tools.

    Example: holdfast usage --since 2026-11-01 --by owner,model
    """
    from holdfast.cli.commands import budgets

    carry_out(budgets.usage(Where(app, home, database), owner, day, since, by or (), json=json), quiet=True)


@cli.command()
def doctor(
    call_models: A[
        bool, typer.Option("--call-models", help="Ask each model something short, for real: it costs a few tokens.")
    ] = False,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Check the environment, the tool servers, and that no chat is stranded.

    Exit codes: 0 all is well, 1 something is wrong, 130 after Ctrl-C. Each check is bounded in time. Tool servers of
    trusted settings, or of the app, are started and ended again; their tools are listed.

    Example: holdfast doctor --call-models
    """
    from holdfast.cli.commands.doctor import doctor

    carry_out(doctor(Where(app, home, database), json=json, call_models=call_models), quiet=True)


@cli.command()
def backup(
    file: A[str, typer.Argument(help="Where to put the copy.")],
    force: A[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Copy the SQLite database to a file, while it is in use; whole, checked, or not at all.

    For PostgreSQL use its own tools, such as pg_dump.

    Example: holdfast backup monday.db
    """
    from holdfast.cli.commands.backup import backup

    carry_out(backup(Where(app, home, database), file, force=force), quiet=True)


@cli.command()
def restore(
    file: A[str | None, typer.Argument(help="A copy that `holdfast backup` made; none for PostgreSQL.")] = None,
    force: A[bool, typer.Option("--force", help="Replace a database that is there.")] = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Put a backup in the place of the database, and end the leases in it.

    Workers and servers have to be stopped first. For PostgreSQL: restore with its own tools, then run this without a
    file, so that no lease of then counts.

    Example: holdfast restore monday.db --force
    """
    from holdfast.cli.commands.backup import restore

    carry_out(restore(Where(app, home, database), file, force=force), quiet=True)


@cli.command()
def prune(
    older_than: A[
        str | None,
        typer.Option(
            "--older-than", help="Such as 30d or 12h, in place of the retention that is set.", metavar="AGE"
        ),
    ] = None,
    archived_chats: A[
        bool, typer.Option("--archived-chats", help="With --older-than: delete whole archived chats as well.")
    ] = False,
    dry_run: A[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Remove what no client can reach any more: streamed text of old attempts, old calls, old summaries.

    And archived chats, where the setting `retention` or --archived-chats says so. Some rows at a time, beside workers
    and servers. Ctrl-C ends it; what is done is done. `holdfast vacuum` gives the room back to the disk.

    Example: holdfast prune --older-than 30d --dry-run
    """
    from holdfast.cli.commands.prune import prune

    wish = prune(
        Where(app, home, database), older_than=older_than, archived_chats=archived_chats, dry_run=dry_run, json=json
    )
    carry_out(wish, quiet=True)


@cli.command()
def vacuum(json: Json = False, app: AppName = None, home: Home = None, database: Database = None) -> None:
    """Give the room of what was deleted back to the disk.

    SQLite: the file is built anew beside the old one, so workers and servers have to be stopped first, and the disk
    needs room for it. PostgreSQL: VACUUM (ANALYZE) of our tables, beside everybody.

    Example: holdfast vacuum
    """
    from holdfast.cli.commands.prune import vacuum

    carry_out(vacuum(Where(app, home, database), json=json), quiet=True)


@cli.command()
def init(
    folder: A[
        str | None, typer.Argument(help="Where to make it (default: this folder); made if it is not there.")
    ] = None,
) -> None:
    """Make a project that runs at once: an agent, its tools, a test of both, settings.

    Nothing that is there is written over. The settings are trusted, since you have just made them.

    Example: holdfast init kelp && cd kelp && holdfast chat
    """
    from holdfast.cli.commands.init import init

    init(folder)


@cli.command()
def demo() -> None:
    """See it hold fast: a chat, its worker killed with -9 in mid-tool, and the timeline of what became of it.

    In a temporary folder; takes less than a minute. Exit code 0 only if nothing was lost and nothing done twice.

    Example: holdfast demo
    """
    from holdfast.cli.commands.demo import demo

    carry_out(demo(), quiet=True)


@cli.command()
def openapi(app: AppName = None) -> None:
    """Print the OpenAPI description of the HTTP API.

    Example: holdfast openapi > openapi.json
    """
    from holdfast.cli.commands.openapi import print_openapi

    print_openapi(app)


@cli.command()
def trust(
    folder: A[str | None, typer.Argument(help="The folder (default: this one).")] = None,
    forget: A[bool, typer.Option("--forget", help="Trust it no longer.")] = False,
) -> None:
    """Let the holdfast.toml of a folder be used, as it is now: it can run code and say where the data is.

    Without that, commands that would use it ask, or end with exit code 5 where no person can be asked.
    HOLDFAST_TRUSTED names folders, as PATH does, whose settings are trusted whatever they say. The skills and the
    AGENTS.md of the folder are trusted with it; they are left out until then.

    Example: holdfast trust
    """
    from holdfast.cli.trust import trust

    trust(folder, forget=forget)


@cli.command()
def login(
    app: AppName = None,
    home: Home = None,
    database: Database = None,
    url: A[str | None, typer.Option(help="Where the browser finds it, such as https://chats.example.")] = None,
) -> None:
    """Print a new link that logs one browser in, once, within a day.

    Example: holdfast login
    """
    from holdfast.cli.commands.login import print_link

    carry_out(print_link(Where(app, home, database), url))


@config.command()
def show(json: Json = False, home: Home = None, database: Database = None) -> None:
    """Show each setting, its value, and where that comes from; passwords are masked.

    Example: holdfast config show
    """
    from holdfast.cli.commands.inspection import show_config

    show_config(home, database, json=json)


@cli.command()
def version() -> None:
    """Show the version."""
    _version(True)


def have_streams() -> None:
    """Who starts us may have closed a standard stream: the next file we open would take its number, and its output.

    And what a terminal cannot show is no reason to end: in an ASCII locale it is escaped.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  for good
        elif number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    have_streams()
    try:
        try:
            cli(arguments, prog_name="holdfast")
        finally:
            sys.stdout.flush()  # what is wrong with the output shows here; at exit Python would complain of it
    except HoldfastError as error:
        from holdfast.cli.error_report import report

        exit = {"usage": 2, "untrusted": 5}.get(error.code, 1)
        report(error, exit)
        sys.exit(exit)
    except BrokenPipeError:  # who read our output has left, and that is their right
        _give_up_output()
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"holdfast: the output cannot be written: {error.strerror}", file=sys.stderr)
        _give_up_output()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _give_up_output() -> None:
    """What is still in the buffer goes nowhere, and Python does not complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
