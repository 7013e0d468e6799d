"""The commands on schedules, with their arguments and their help. What they do is in `commands/schedules.py`."""

from typing import Annotated as A

import typer

from holdfast.cli.dispatch import carry_out
from holdfast.cli.options import AppName, Database, Home, Json, Where

schedules = typer.Typer(help="When agents start by themselves.", no_args_is_help=True, rich_markup_mode=None)
Named = A[str, typer.Argument(help="Its id or its name, as `list` shows them.", metavar="SCHEDULE")]
Owner = A[str | None, typer.Option("--owner", help="Whose it is.", metavar="OWNER")]
Limit = A[int, typer.Option("--limit", "-n", help="At most so many.", min=1, max=1000)]
CronOption = A[str | None, typer.Option("--cron", help="Five fields, such as '0 9 * * 1-5'.", metavar="CRON")]
EveryOption = A[float | None, typer.Option("--every", help="Or every so many seconds.", metavar="S")]
AtOption = A[str | None, typer.Option("--at", help="Or once, at 2026-03-29T09:00.", metavar="INSTANT")]
ZONE_HELP = "The time zone, such as Europe/Berlin."
ZoneOption = A[str, typer.Option("--zone", help=ZONE_HELP, metavar="ZONE")]
OverlapOption = A[
    str | None,
    typer.Option(
        "--overlap",
        help="While one is open: skip, queue_one, queue_all, cancel, allow.",
        metavar="POLICY",
    ),
]


@schedules.command("list")
def list_schedules(
    owner: Owner = None,
    limit: Limit = 100,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """List schedules, newest first, with their next instant and what became of them.

    Example: holdfast schedules list
    """
    from holdfast.cli.commands import schedules

    carry_out(schedules.list_schedules(Where(app, home, database), owner, limit, json=json), quiet=True)


@schedules.command()
def show(
    schedule: Named,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Show one schedule.

    Example: holdfast schedules show report
    """
    from holdfast.cli.commands import schedules

    carry_out(schedules.show(Where(app, home, database), schedule, json=json), quiet=True)


@schedules.command()
def add(
    name: A[str, typer.Argument(help="How it is called.", metavar="NAME")],
    message: A[str, typer.Argument(help="What the agent is told; {at}, {date}, {time}.", metavar="MESSAGE")],
    agent: A[str, typer.Option("--agent", help="The agent that it starts.", metavar="NAME")],
    cron: CronOption = None,
    every: EveryOption = None,
    at: AtOption = None,
    zone: ZoneOption = "UTC",
    same_chat: A[bool, typer.Option("--same-chat", help="One chat that goes on, not a new one each time.")] = False,
    overlap: OverlapOption = None,
    catch_up: A[float, typer.Option("--catch-up", help="Skip what is found later than this.", metavar="S")] = 3600.0,
    jitter: A[float, typer.Option("--jitter", help="Put each off by up to this.", metavar="S")] = 0.0,
    pause_after: A[int | None, typer.Option("--pause-after", help="Pause after so many failures in a row.")] = None,
    owner: Owner = None,
    yes: A[bool, typer.Option("--yes", "-y", help="Save it without asking.")] = False,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Make a schedule. Its next instants are shown first.

    Example: holdfast schedules add report "Report for {date}" --agent assistant --cron "0 9 * * 1-5"
    """
    from holdfast.cli.commands import schedules

    wish = schedules.Wish(
        name=name,
        message=message,
        agent=agent,
        when=schedules.When(cron, every, at, zone),
        same_chat=same_chat,
        overlap=overlap,
        catch_up_s=catch_up,
        jitter_s=jitter,
        pause_after=pause_after,
        owner=owner or "",
    )
    carry_out(schedules.add(Where(app, home, database), wish, yes=yes, json=json), quiet=True)


@schedules.command("next")
def next_instants(
    schedule: A[str | None, typer.Argument(help="One that is saved.", metavar="[SCHEDULE]")] = None,
    cron: CronOption = None,
    every: EveryOption = None,
    at: AtOption = None,
    zone: A[str | None, typer.Option("--zone", help=f"{ZONE_HELP} UTC without it.", metavar="ZONE")] = None,
    count: A[int, typer.Option("--count", "-n", help="So many.", min=1, max=1000)] = 10,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Show the next instants of a schedule, or of one that is not saved.

    Example: holdfast schedules next --cron "30 2 * * *" --zone Europe/Berlin
    """
    from holdfast.cli.commands import schedules

    when = schedules.When(cron, every, at, zone)
    carry_out(schedules.next_instants(Where(app, home, database), schedule, when, count, json=json), quiet=True)


@schedules.command()
def history(
    schedule: Named,
    limit: Limit = 50,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Show what became of each instant, newest first.

    Example: holdfast schedules history report
    """
    from holdfast.cli.commands import schedules

    carry_out(schedules.history(Where(app, home, database), schedule, limit, json=json), quiet=True)


@schedules.command()
def pause(
    schedule: Named,
    note: A[str, typer.Option("--note", help="Why, for others.", metavar="TEXT")] = "",
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Pause a schedule. What it has begun goes on.

    Example: holdfast schedules pause report --note "until Monday"
    """
    from holdfast.cli.commands import schedules

    carry_out(schedules.pause(Where(app, home, database), schedule, note, json=json), quiet=True)


@schedules.command()
def resume(
    schedule: Named,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Resume a schedule, from now on.

    Example: holdfast schedules resume report
    """
    from holdfast.cli.commands import schedules

    carry_out(schedules.resume(Where(app, home, database), schedule, json=json), quiet=True)


@schedules.command()
def trigger(
    schedule: Named,
    overlap: OverlapOption = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Fire a schedule now, also a paused one.

    Example: holdfast schedules trigger report
    """
    from holdfast.cli.commands import schedules

    carry_out(schedules.trigger(Where(app, home, database), schedule, overlap, json=json), quiet=True)


@schedules.command()
def backfill(
    schedule: Named,
    since: A[str, typer.Option("--since", help="From this instant on, 2026-03-29T09:00.", metavar="INSTANT")],
    until: A[str, typer.Option("--until", help="Up to this one.", metavar="INSTANT")],
    overlap: OverlapOption = None,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Fire the instants of a time that is past and that were not fired.

    Example: holdfast schedules backfill report --since 2026-03-01 --until 2026-03-08
    """
    from holdfast.cli.commands import schedules

    where = Where(app, home, database)
    carry_out(schedules.backfill(where, schedule, since, until, overlap, json=json), quiet=True)


@schedules.command()
def remove(
    schedule: Named,
    json: Json = False,
    app: AppName = None,
    home: Home = None,
    database: Database = None,
) -> None:
    """Remove a schedule: it never fires again. Its chats stay.

    Example: holdfast schedules remove report
    """
    from holdfast.cli.commands import schedules

    carry_out(schedules.remove(Where(app, home, database), schedule, json=json), quiet=True)
