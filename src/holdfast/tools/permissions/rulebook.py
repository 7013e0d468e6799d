"""The rules that count for one agent, and what they say of a call.

Each act is judged by itself: the floor first, then all rules that match (deny beats ask beats allow), and the mode
where none does. A call is as careful as its most careful act. What is looked up for that (where a path leads, whose
program it would be, what git would believe) is of this moment: it blocks, so a runner asks in a thread.
"""

import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import assert_never

from msgspec.structs import replace

from holdfast.config import PermissionMode, Permissions
from holdfast.errors import ConfigError
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Run, Whereabouts, Write
from holdfast.tools.permissions.decision import Decision, most_careful
from holdfast.tools.permissions.host_patterns import WEB_PORTS, Host, HostPattern, address_text, host_of
from holdfast.tools.permissions.modes import Kind, Ruling, ruling_of
from holdfast.tools.permissions.offers import RULES_OFFERED_MAX, offered_for
from holdfast.tools.permissions.path_patterns import MeantPath, PathPattern
from holdfast.tools.permissions.paths import NOWHERE, PathLook, look_at
from holdfast.tools.permissions.rules import CallPattern, Rule, rule_of
from holdfast.tools.permissions.run_patterns import RunPattern
from holdfast.tools.shell.hosts import possible_hosts
from holdfast.tools.web import addresses

RULES_MAX = 1_000
BOOKS_KEPT = 256
HERE = Whereabouts()
WORDS_MAX = 1_000  # of a command that may name files
_PARTS = re.compile(r"[=:,@]")  # --file=NAME, REVISION:NAME, -d @NAME


class Rulebook:
    """What counts for one agent. A tool's body has that of its chat: `context.rulebook.judge([Write(path="x")])`."""

    def __init__(
        self, rules: Sequence[str] = (), mode: PermissionMode | None = None, agent: str | None = None
    ) -> None:
        """Raises ConfigError for a rule that cannot be read."""
        self._rules = tuple(rule for text in rules if (rule := rule_of(text)).is_for(agent))
        self.mode = mode

    @property
    def is_empty(self) -> bool:
        """No permissions are set: then a tool does what it was given for, and only a shell asks."""
        return self.mode is None and not self._rules

    def vouching(self, address: str) -> "Rulebook":
        """This one, and that the program itself named `host:port`: it may be an internal one. A deny stays one."""
        wider = Rulebook(mode=self.mode)
        wider._rules = (*self._rules, rule_of(f"allow reach({address})"))
        return wider

    # --- the decision -----------------------------------------------------------------------------------

    def judge(self, acts: Sequence[Act], where: Whereabouts = HERE, tool: str | None = None) -> Decision:
        """`tool`: the name that the model calls; a deny or an ask of `call` may be about it, whatever it does."""
        each = [(act, found) for act in acts if (found := self._judge_act(act, where)) is not None]
        judged = [found for _, found in each]
        if tool is not None and (rule := self._careful_rule(CallTool(tool=tool))) is not None:
            judged.insert(0, _by_rule(rule, f"call({tool})"))
        decision = most_careful(judged)
        if decision.ruling == "ask" and decision.by_mode:
            asked = [act for act, found in each if found.ruling == "ask"]
            decision = replace(decision, offer=self._offer(asked, where))
        return decision.alone() if self.mode == "unattended" else decision

    def _offer(self, asked: Sequence[Act], where: Whereabouts) -> tuple[str, ...]:
        """A rule for each of these acts, which the mode asks about; nothing unless with them all of it is allowed."""
        rules = [offered_for(act, where) for act in asked]
        offered = {rule.text: rule for rule in rules if rule is not None}
        if None in rules or len(offered) > RULES_OFFERED_MAX:
            return ()
        wider = Rulebook(mode=self.mode)
        wider._rules = (*self._rules, *offered.values())
        found = [wider._judge_act(act, where) for act in asked]
        return tuple(offered) if all(one is not None and one.ruling == "allow" for one in found) else ()

    def _judge_act(self, act: Act, where: Whereabouts) -> Decision | None:
        match act:
            case Run():
                return self._judge_run(act, where)
            case Read() | Write():
                return None if act.path == NOWHERE else self._judge_path(act, where)
            case Reach():
                return self._judge_reach(act, where)
            case CallTool():
                return self._judge_call(act)
            case _:
                assert_never(act)

    def _judge_run(self, act: Run, where: Whereabouts) -> Decision:
        if (rule := self._careful_rule(act)) is not None:
            return _by_rule(rule, str(act))
        if act.unknown is not None:
            named = self._forbidden_word(act, where) or self._forbidden_host(act)
            if named is not None:
                return named
        objection = None
        for rule in self._of("run", "allow"):
            if isinstance(rule.pattern, RunPattern) and rule.pattern.begins(act):
                why = rule.pattern.objection(act, where)
                if why is None:
                    return _by_rule(rule, str(act))
                objection = objection or why
        if not act.argv:
            objection = act.unknown or "it cannot be told what it runs"
        if where.sandboxed and (rule := self._breakable(act)) is not None:
            return self._by_mode("run", str(act), f"it might do what the rule `{rule.text}` is about")
        return self._by_mode("sandboxed" if where.sandboxed else "run", str(act), objection)

    def _forbidden_word(self, act: Run, where: Whereabouts) -> Decision | None:
        """A program of which nothing is known may read what it is told of."""
        rules = self._forbidding("read")
        words = (act.words[1:] if act.argv else act.words) if rules else ()
        texts = dict.fromkeys(text for word in words for text in (word, *_PARTS.split(word)[1:]) if text)
        for text in islice(texts, WORDS_MAX):
            look = look_at(Read(path=text), where, _path_patterns(rules))
            for rule in rules:
                if (found := _meant_by(rule, look)) is not None:
                    return _by_rule(rule, str(act), found)
        return None

    def _forbidden_host(self, act: Run) -> Decision | None:
        """Nor is it known whom it reaches, of those that it is told of."""
        rules = self._forbidding("reach")
        hosts = [host for text in possible_hosts(act.words) if (host := host_of(text)) is not None] if rules else ()
        for rule in rules:
            for host in hosts:
                if isinstance(rule.pattern, HostPattern) and rule.pattern.may_mean(host):
                    return _by_rule(rule, str(act), host.name)
        return None

    def _breakable(self, act: Run) -> Rule | None:
        """The rule that a program in the sandbox could get around: of one that is known, its files are judged; one
        that is not may start what is among its words; of a line that cannot be read, not even that can be told.
        """
        if act.unknown is None:
            return None
        for rule in (*self._forbidding("read"), *self._forbidding("write"), *self._forbidding("run")):
            pattern = rule.pattern
            if not act.argv or not isinstance(pattern, RunPattern) or pattern.may_be_started(act):
                return rule
        return None

    def _judge_path(self, act: Read | Write, where: Whereabouts) -> Decision:
        verb = "read" if isinstance(act, Read) else "write"
        forbidding = self._forbidding(verb)
        look = look_at(act, where, _path_patterns(forbidding))
        if look.forbidden is not None:
            return Decision(ruling="deny", acts=(str(act),), by="floor", why=look.forbidden)
        for rule in forbidding:
            if (found := _meant_by(rule, look)) is not None:
                return _by_rule(rule, str(act), found)
        if where.confined and not look.inside:
            why = f"`{act.path[:80]}` leads out of the folder that this tool is confined to"
            return Decision(ruling="deny", acts=(str(act),), by="root", why=why)
        if look.unclear is None and look.real:
            for rule in self._of(verb, "allow"):
                pattern = rule.pattern
                if isinstance(pattern, PathPattern) and all(pattern.covers(path, look.root) for path in look.real):
                    return _by_rule(rule, str(act))
        inside = look.inside and look.unclear is None
        outside = None if look.inside else f"`{act.path[:80]}` is no plain file or folder under the root"
        kinds: tuple[Kind, Kind] = ("read_inside", "read") if verb == "read" else ("write_inside", "write")
        return self._by_mode(kinds[not inside], str(act), look.unclear or outside)

    def _judge_reach(self, act: Reach, where: Whereabouts) -> Decision | None:
        if (rule := self._careful_rule(act)) is not None:
            return _by_rule(rule, str(act))
        host = host_of(act.address)
        if where.confined and host is not None and self._is_out_of_bounds(host):
            return None  # the tool refuses that by itself, and goes on with the rest: no person is asked in vain
        if host is not None and (allows := self._covering(host)) is not None:
            return _by_rule(allows, str(act))
        return self._by_mode("reach", str(act), None if host is not None else "it cannot be told who that is")

    def _judge_call(self, act: CallTool) -> Decision:
        if (rule := self._careful_rule(act)) is not None:
            return _by_rule(rule, str(act))
        for rule in self._of("call", "allow"):
            if isinstance(rule.pattern, CallPattern) and rule.pattern.covers(act):
                return _by_rule(rule, str(act))
        return self._by_mode("call", str(act), None)

    def _careful_rule(self, act: Run | Reach | CallTool) -> Rule | None:
        """The deny, or else the ask, that may be meant."""
        for rule in self._forbidding(_verb(act)):
            match rule.pattern, act:
                case RunPattern() as pattern, Run():
                    meant = pattern.may_mean(act)
                case HostPattern() as pattern, Reach():
                    host = host_of(act.address)
                    meant = host is None or pattern.may_mean(host)
                case CallPattern() as pattern, CallTool():
                    meant = pattern.may_mean(act)
                case _:
                    meant = False
            if meant:
                return rule
        return None

    def _forbidding(self, verb: str) -> list[Rule]:
        """Each deny, then each ask."""
        return [*self._of(verb, "deny"), *self._of(verb, "ask")]

    def _of(self, verb: str, ruling: Ruling) -> list[Rule]:
        return [rule for rule in self._rules if rule.act == verb and rule.ruling == ruling]

    def _by_mode(self, kind: Kind, act: str, objection: str | None) -> Decision:
        ruling = ruling_of(self.mode, kind)
        by = f"mode {self.mode}" if self.mode is not None else "no permissions set"
        why = objection or "no rule allows it"
        if ruling == "deny":
            why = f"{why}, and the mode `{self.mode}` is for reading in the root"
        return Decision(ruling=ruling, acts=(act,), by=by, why=why, by_mode=True)

    @property
    def is_strict(self) -> bool:
        """It denies something: then what cannot be judged is denied, too."""
        return self.mode == "read" or any(rule.ruling == "deny" for rule in self._rules)

    # --- for tools that list and search folders -----------------------------------------------------------

    def unnamed_below(self, folder: str, root: str) -> Callable[[str], bool] | None:
        """Of the real paths below a folder, those that are not even named: what a deny on reading is about, and what
        an ask is about, unless it is about the folder itself, for then a person was asked. None: there are none.
        """
        itself = MeantPath.of(folder, root)
        asks = [pattern for pattern in _path_patterns(self._of("read", "ask")) if not pattern.may_mean(itself)]
        hidden = [*_path_patterns(self._of("read", "deny")), *asks]

        def unnamed(path: str) -> bool:
            meant = MeantPath.of(path, root)
            return any(pattern.may_mean(meant) for pattern in hidden)

        return unnamed if hidden else None

    # --- for `fetch`, which looks names up itself ---------------------------------------------------------

    def against(self, address: str, port: int) -> str | None:
        """In words, the deny, or else the ask, that is written for an address or its network: it holds for every name
        that leads there.
        """
        known = host_of(address_text(address, port))
        if known is None:
            return None
        for rule in self._forbidding("reach"):
            pattern = rule.pattern
            if isinstance(pattern, HostPattern) and pattern.network is not None and pattern.may_mean(known):
                return f"the rule `{rule.text}` says {rule.ruling}"
        return None

    def covers(self, host: str, port: int) -> bool:
        """An allow is written for this host, or for whoever has such a name."""
        known = host_of(address_text(host, port))
        return known is not None and self._covering(known) is not None

    def _covering(self, host: Host) -> Rule | None:
        for rule in self._of("reach", "allow"):
            if isinstance(rule.pattern, HostPattern) and rule.pattern.covers(host):
                return rule
        return None

    def names(self, host: str, port: int) -> bool:
        """An allow is written for this very host: then it may be an internal one."""
        known = host_of(address_text(host, port))
        return known is not None and any(
            isinstance(rule.pattern, HostPattern) and rule.pattern.names_one and rule.pattern.covers(known)
            for rule in self._of("reach", "allow")
        )

    def _is_out_of_bounds(self, host: Host) -> bool:
        """What a confined tool does not reach: an internal host, or a port that is not the web's, which no allow is
        written for."""
        port = host.port or 443
        if self.names(host.name, port):
            return False
        inside = addresses.internal(host.address) if host.address is not None else addresses.name_problem(host.name)
        return inside is not None or (port not in WEB_PORTS and not self._may_cover(host, port))

    def _may_cover(self, host: Host, port: int) -> bool:
        """An allow is written for it, or for addresses that its name may lead to."""
        return self._covering(host) is not None or any(
            isinstance(rule.pattern, HostPattern)
            and rule.pattern.network is not None
            and rule.pattern.covers_port(port)
            for rule in self._of("reach", "allow")
        )


NO_RULES = Rulebook()


def rulebook_of(settings: Permissions | None, own: Permissions | None, agent: str | None) -> Rulebook:
    """What counts for an agent: the rules of the settings and its own; its own mode, else that of the settings, else
    `ask` where there are any permissions at all. Raises ConfigError.
    """
    return _made(settings, own, agent)


@lru_cache(maxsize=BOOKS_KEPT)
def _made(settings: Permissions | None, own: Permissions | None, agent: str | None) -> Rulebook:
    given = [permissions for permissions in (settings, own) if permissions is not None]
    if not given:
        return NO_RULES
    texts = [text for permissions in given for text in permissions.rules]
    if len(texts) > RULES_MAX:
        raise ConfigError(f"there are {len(texts):,} rules, and at most {RULES_MAX:,} are read with each call")
    modes = [permissions.mode for permissions in given if permissions.mode is not None]
    return Rulebook(texts, modes[-1] if modes else "ask", agent)


def _path_patterns(rules: Sequence[Rule]) -> list[PathPattern]:
    return [rule.pattern for rule in rules if isinstance(rule.pattern, PathPattern)]


def _by_rule(rule: Rule, act: str, found: str | None = None) -> Decision:
    about = f", which is about `{found[:120]}`" if found is not None else ""
    why = f"the rule `{rule.text}` says {rule.ruling}{about}"
    return Decision(ruling=rule.ruling, acts=(act,), by=f"rule {rule.text}", why=why)


def _meant_by(rule: Rule, look: PathLook) -> str | None:
    """The path that it is about, as seen from the root."""
    assert isinstance(rule.pattern, PathPattern)
    for meant in look.meant:
        if rule.pattern.may_mean(meant):
            return meant.path if look.root is None else os.path.relpath(meant.path, look.root)
    return None


def _verb(act: Run | Reach | CallTool) -> str:
    return "run" if isinstance(act, Run) else "reach" if isinstance(act, Reach) else "call"
