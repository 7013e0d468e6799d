"""What "always" would keep of an act: the one rule that allows it, and nothing else.

A rule is offered in full, as it will be read: where it cannot be written so that it means this act alone, none is. A
path is written as where it leads, so that the rule means this very file under any root; one in a container leads
nowhere that could be written.
"""

import shlex
from typing import assert_never

from holdfast.errors import ConfigError
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Run, Whereabouts, Write
from holdfast.tools.permissions.paths import look_at
from holdfast.tools.permissions.rules import Rule, rule_of

RULES_OFFERED_MAX = 10  # for one call: more than that a person does not read
_MOVES = frozenset({"cd", "chdir", "popd", "pushd"})  # rules for what follows would not say in which folder


def offered_for(act: Act, where: Whereabouts) -> Rule | None:
    """None: no rule means it, or one would mean more."""
    inner = _pattern(act, where)
    if inner is None or not inner.isprintable() or "*" in inner or ("?" in inner and not isinstance(act, Run)):
        return None
    try:
        rule = rule_of(f"allow {_verb(act)}({inner})")
    except ConfigError:
        return None
    return rule if rule.agent is None else None


def _pattern(act: Act, where: Whereabouts) -> str | None:
    match act:
        case Run():
            more = act.unsaid is not None or (act.fed and act.unknown is not None)  # than its words say
            return shlex.join(act.argv) if act.argv and not more and act.argv[0] not in _MOVES else None
        case Read() | Write():
            return _path(act, where)
        case Reach():
            return act.address.lower()
        case CallTool():
            return f"{act.server}/{act.tool}" if act.server else act.tool
        case _:
            assert_never(act)


def _path(act: Read | Write, where: Whereabouts) -> str | None:
    if where.root is None or act.pattern or act.moved or (isinstance(act, Read) and act.extent != "itself"):
        return None
    real = look_at(act, where).real
    if len(real) != 1 or real[0].startswith("/proc/"):  # of a process: another has the number later
        return None
    return real[0]


def _verb(act: Act) -> str:
    return {Run: "run", Read: "read", Write: "write", Reach: "reach", CallTool: "call"}[type(act)]
