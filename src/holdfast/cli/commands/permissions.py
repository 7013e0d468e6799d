"""`holdfast permissions`: the rules in force, written and kept, and what the written ones say of a line. Nothing is
run."""

import sys
from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace

from holdfast.app import App
from holdfast.cli.app_choice import UsageError, app_with_data, has_data, make_app, opened
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, Row, print_listing
from holdfast.cli.options import Where
from holdfast.cli.words import ago, line
from holdfast.config import Permissions
from holdfast.core.instants import iso
from holdfast.core.records import KeptRule
from holdfast.errors import StoreError
from holdfast.safe_text import safe
from holdfast.tools.permissions.acts import Whereabouts
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.examples import acts_in
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.permissions.rules import rule_of

KEPT_SHOWN = 500
KEPT_PAGE = 500


async def list_rules(where: Where, agent: str | None, *, json: bool) -> None:
    app = make_app(where.app, home=where.home, database=where.database)
    own = _of_agent(app, agent)
    book = rulebook_of(app.config.permissions, own, agent)
    given = (("settings", app.config.permissions), (f"agent {agent}", own))
    rules = [
        {"rule": text, "from": whose}
        for whose, permissions in given
        for text in (permissions.rules if permissions is not None else ())
        if agent is None or rule_of(text).is_for(agent)
    ]
    kept = await _kept(app, agent)
    if json:
        write_line(msgspec.json.encode({"mode": book.mode, "rules": rules, "kept": kept}))
        return
    print(
        f"mode {book.mode}" if book.mode is not None else "no permissions are set: a shell asks, other tools do not"
    )
    if rules:
        rows = [
            (Field(shown=line(rule["rule"], 200), plain=rule["rule"]), Field(shown=rule["from"])) for rule in rules
        ]
        print_listing(("rule", "from"), rows)
    if kept:
        print_listing(("kept rule", "rule", "for", "owner", "by", "made", "until"), [_row(rule) for rule in kept])


async def _kept(app: App, agent: str | None) -> list[KeptRule]:
    """Those in force, of every owner; the newest, where there are many. What is written can be told without them."""
    if not has_data(app.store):
        return []
    app.store.options = replace(app.store.options, only_reads=True)
    try:
        async with app.store:
            found = [rule async for rule in _in_force(app, agent)]
    except StoreError as error:
        print(f"holdfast: the kept rules cannot be read: {safe(str(error))}", file=sys.stderr)
        return []
    if len(found) > KEPT_SHOWN:
        print(f"holdfast: only the newest {KEPT_SHOWN} kept rules are shown, there are more", file=sys.stderr)
    return found[:KEPT_SHOWN]


async def _in_force(app: App, agent: str | None) -> AsyncIterator[KeptRule]:
    """Newest first, and one more than is shown."""
    before, count = None, 0
    while page := await app.kept_rules(before=before, limit=KEPT_PAGE):
        for rule in page:
            if agent is None or rule.agent in (None, agent):
                yield rule
                count += 1
                if count > KEPT_SHOWN:
                    return
        before = page[-1].id


def _row(rule: KeptRule) -> Row:
    whose = {"chat": rule.chat_id, "agent": rule.agent, "owner": ""}[rule.scope] or ""
    return (
        Field(shown=rule.id),
        Field(shown=line(rule.rule, 200), plain=rule.rule),
        Field(shown=line(f"{rule.scope} {whose}".rstrip(), 80)),
        Field(shown=line(rule.owner, 40), plain=rule.owner),
        Field(shown=line(rule.made_by, 40), plain=rule.made_by),
        Field(shown=ago(rule.made_at), plain=iso(rule.made_at)),
        Field(shown=iso(rule.expires_at) if rule.expires_at is not None else ""),
    )


async def revoke(where: Where, rule_id: str, *, json: bool) -> None:
    async with opened(app_with_data(where)) as app:
        rule = await app.revoke_kept_rule(rule_id)
    if json:
        write_line(msgspec.json.encode(rule))
    else:
        print(f"{rule.id} is revoked: {line(rule.rule, 200)}")


def explain(name: str | None, text: str, agent: str | None, *, json: bool) -> None:
    app = make_app(name)
    book = rulebook_of(app.config.permissions, _of_agent(app, agent), agent)
    acts = acts_in(text)
    whole = book.judge(acts, Whereabouts())
    each = [(str(act), book.judge([act], Whereabouts())) for act in acts]
    if json:
        told = [{"act": act, "ruling": found.ruling, "by": found.by, "why": found.why} for act, found in each]
        write_line(msgspec.json.encode({"ruling": whole.ruling, "by": whole.by, "acts": told}))
        return
    print(whole.ruling)
    for act, found in each:
        print(f"  {found.ruling:<5}  {safe(act)}  {safe(_reason(found))}".rstrip())


def _reason(decision: Decision) -> str:
    if decision.ruling == "allow" or not decision.by:
        return decision.by
    return decision.why if decision.by.startswith("rule ") else f"{decision.by}: {decision.why}"


def _of_agent(app: App, agent: str | None) -> Permissions | None:
    """Raises UsageError."""
    if agent is None:
        return None
    if agent not in app.agents:
        raise UsageError(f"there is no agent {agent!r}; this app has: {', '.join(sorted(app.agents)) or 'none'}")
    return app.agents[agent].permissions
