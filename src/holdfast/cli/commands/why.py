"""`holdfast chats why`: how a chat stands, within one screen."""

import msgspec

from holdfast.cli.app_choice import look_at_app, opened
from holdfast.cli.commands.run import find_chat, write_line
from holdfast.cli.options import Where
from holdfast.cli.words import ago, line, seconds
from holdfast.core.instants import iso
from holdfast.standing import Standing

WORDS_MAX = 600


async def why(where: Where, chat_id: str, *, json: bool, verbose: bool = False) -> None:
    async with opened(look_at_app(where)) as app:
        chat = await find_chat(app, chat_id)
        found = await chat.why()
        now = app.store.options.clock.wall_ms()
    if json:
        write_line(msgspec.json.encode(found))
        return
    for row in told(found, now, verbose=verbose):
        print(row)


def told(found: Standing, now: int, *, verbose: bool = False) -> list[str]:
    """Of a chat, then of the sub-agent that it waits for."""
    where = f"turn {found.turn}, step {found.step}, fence {found.fence}"
    rows = [f"{found.chat_id}  {line(found.agent)}  {found.state}  {where}"]
    rows.append(_row(found.doing, line(found.words, WORDS_MAX)))
    if found.since is not None:
        rows.append(_row("since", f"{iso(found.since)}, {ago(found.since)}"))
    if found.deadline_at is not None:
        left = found.deadline_at - now
        when = f"in {seconds(left)}" if left > 0 else f"{seconds(-left)} ago"
        rows.append(_row("deadline", f"{iso(found.deadline_at)}, {when}: {found.deadline}"))
    if found.error is not None and found.error.advice:
        rows.append(_row("advice", line(found.error.advice, WORDS_MAX)))
    rows.append(_row("next", line(found.next, WORDS_MAX)))
    if found.worker is not None:
        heard = "never heard of" if found.worker_heard_at is None else f"heard of {ago(found.worker_heard_at)}"
        rows.append(_row("worker", f"{found.worker}, {heard}"))
    if found.queued:
        rows.append(_row("queued", f"{found.queued} messages wait for their turn"))
    for trouble in found.troubles:
        rows.append(_row("trouble", f"{ago(trouble.at)}, {line(trouble.what, 80)}: {line(trouble.error, 300)}"))
    if verbose and found.error is not None:
        rows += [_row("cause", line(cause, WORDS_MAX)) for cause in found.error.chain]
    if found.child is not None:
        rows += ["", *(f"  {row}" for row in told(found.child, now, verbose=verbose))]
    return rows


def _row(head: str, text: str) -> str:
    return f"  {head:<17} {text}"
