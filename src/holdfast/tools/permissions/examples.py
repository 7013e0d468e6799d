"""Examples of a configuration: what its rules are to say, checked when it is loaded.

    git status -sb -> allow             a command line
    read(.env) -> deny                  an act
    write(notes) for reviewer -> deny   by an agent that a rule is for

An example is judged by its words alone, as if all files were there and plain, so that it says the same everywhere.
"""

import re
from collections.abc import Sequence

from holdfast.config import Permissions
from holdfast.errors import ConfigError
from holdfast.tools.permissions.acts import Act, CallTool, Reach, Read, Whereabouts, Write
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.modes import CAREFUL
from holdfast.tools.permissions.rulebook import rulebook_of
from holdfast.tools.permissions.rules import rule_of

EXAMPLES_MAX = 1_000
_ACT = re.compile(r"(?s)(run|read|write|reach|call)\((.*)\)")
_AGENT = re.compile(r"(?s)(.*\S)\s+for\s+(\S+)")
_BY_WORDS = Whereabouts(looks=False)


def check_permissions(permissions: Permissions, own: Permissions | None = None, agent: str | None = None) -> None:
    """Raises ConfigError for a rule that cannot be read, and for an example that comes out otherwise."""
    rulebook_of(permissions, own, agent)
    if len(permissions.examples) > EXAMPLES_MAX:
        raise ConfigError(f"there are more than {EXAMPLES_MAX:,} examples")
    for example in permissions.examples:
        text, arrow, wanted = example.rpartition("->")
        wanted = wanted.strip()
        if not arrow or not text.strip() or wanted not in CAREFUL:
            raise ConfigError(f"`{example}` is no example: write it like `git status -sb -> allow`")
        decision = explain(text.strip(), permissions, own, agent)
        if decision.ruling != wanted:
            raise ConfigError(
                f"the example `{example}` does not hold: {decision.ruling} came out, by {decision.by or 'nothing'}: "
                f"{decision.why or 'it does nothing that is judged'}. Change a rule, or the example"
            )


def explain(
    text: str,
    permissions: Permissions | None,
    own: Permissions | None = None,
    agent: str | None = None,
    where: Whereabouts = _BY_WORDS,
) -> Decision:
    """What a line or an act comes to. Raises ConfigError."""
    named = {rule_of(rule).agent for one in (permissions, own) if one is not None for rule in one.rules}
    if (found := _AGENT.fullmatch(text)) is not None and found[2] in named:
        text, agent = found[1], found[2]
    return rulebook_of(permissions, own, agent).judge(acts_in(text), where)


def acts_in(text: str) -> Sequence[Act]:
    """Of a command line, or of an act as it is shown."""
    from holdfast.tools.shell.acts import acts_of  # noqa: PLC0415  a grammar: only who has lines pays

    found = _ACT.fullmatch(text)
    if found is None:
        return acts_of(text)
    inner = found[2].strip()
    match found[1]:
        case "run":
            return [act for act in acts_of(inner) if not isinstance(act, Read)]
        case "read":
            return [Read(path=inner)]
        case "write":
            return [Write(path=inner)]
        case "reach":
            return [Reach(address=inner)]
        case _:
            server, slash, tool = inner.partition("/")
            return [CallTool(server=server, tool=tool) if slash else CallTool(tool=server)]
