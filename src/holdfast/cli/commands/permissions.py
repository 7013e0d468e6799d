"""`holdfast permissions`: the rules in force, and what they say of a line. Nothing is run, no database is opened."""

import msgspec

from holdfast.app import App
from holdfast.cli.app_choice import UsageError, make_app
from holdfast.cli.commands.run import write_line
from holdfast.cli.listing import Field, print_listing
from holdfast.cli.words import line
from holdfast.config import Permissions
from holdfast.safe_text import safe
from holdfast.tools.permissions.acts import Whereabouts
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.examples import acts_in
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.permissions.rules import rule_of


def list_rules(name: str | None, agent: str | None, *, json: bool) -> None:
    app = make_app(name)
    own = _of_agent(app, agent)
    book = rulebook_of(app.config.permissions, own, agent)
    given = (("settings", app.config.permissions), (f"agent {agent}", own))
    rules = [
        {"rule": text, "from": whose}
        for whose, permissions in given
        for text in (permissions.rules if permissions is not None else ())
        if agent is None or rule_of(text).is_for(agent)
    ]
    if json:
        write_line(msgspec.json.encode({"mode": book.mode, "rules": rules}))
        return
    print(
        f"mode {book.mode}" if book.mode is not None else "no permissions are set: a shell asks, other tools do not"
    )
    if rules:
        rows = [
            (Field(shown=line(rule["rule"], 200), plain=rule["rule"]), Field(shown=rule["from"])) for rule in rules
        ]
        print_listing(("rule", "from"), rows)


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
