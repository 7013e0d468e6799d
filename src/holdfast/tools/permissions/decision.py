"""A decision on a call: what was decided, what made it, and why, in words for a person and for the model."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.records import Frozen, KeptRule
from holdfast.tools.permissions.modes import CAREFUL, Ruling

ACTS_SHOWN = 5


class Decision(Frozen):
    ruling: Ruling
    acts: tuple[str, ...] = ()  # those that it is about
    by: str = ""  # the rule as it is written, `mode ask`, `floor`, …
    why: str = ""
    by_mode: bool = False  # no rule was about it
    offer: tuple[str, ...] = ()  # where only the mode asks: the rules that "always" would keep, and that allow it

    @property
    def shown(self) -> str:
        """The acts, on one line."""
        more = len(self.acts) - ACTS_SHOWN
        return ", ".join(self.acts[:ACTS_SHOWN]) + (f" and {more} more" if more > 0 else "")

    @property
    def question(self) -> str:
        """For the person who is asked."""
        return f"Allow {self.shown}? It is not done unasked: {self.why}."

    @property
    def refusal(self) -> str:
        """For the model."""
        return f"Denied: {self.shown}: {self.why}. Go on without it, or do it in a way that is allowed."

    @property
    def note(self) -> str:
        """For the journal; empty if nothing was judged."""
        return f"{self.ruling} by {self.by}" if self.by else ""

    def alone(self) -> "Decision":
        """The same where no person is there to be asked."""
        if self.ruling != "ask":
            return self
        why = f"no person is there to be asked, and {self.why}"
        return replace(self, ruling="deny", why=why)

    def kept(self, rules: Sequence[KeptRule]) -> "Decision":
        """The same where these rules were kept: allowed, if they are all that it offers."""
        found = {rule.rule: rule for rule in rules}
        if not self.offer or not found.keys() >= set(self.offer):
            return self
        by = ", ".join(f"{rule} (by {found[rule].made_by or 'a person'})" for rule in self.offer)
        return Decision(ruling="allow", acts=self.acts, by=f"always {by}")


ALLOWED = Decision(ruling="allow")


def most_careful(decisions: list[Decision]) -> Decision:
    """The first of the most careful ones, with the acts of all that are as careful."""
    if not decisions:
        return ALLOWED
    worst = max(decisions, key=lambda decision: CAREFUL.index(decision.ruling))
    acts = dict.fromkeys(act for one in decisions if one.ruling == worst.ruling for act in one.acts)
    return Decision(
        ruling=worst.ruling,
        acts=tuple(acts),
        by=worst.by,
        why=worst.why,
        by_mode=all(one.by_mode for one in decisions if one.ruling == worst.ruling),
    )
