"""What became of turns, steps and calls, for operators: log lines with a stable action, and figures for `/metrics`.

Both are taken from what a runner has committed, so that they tell of nothing that did not happen, and decide nothing.
The labels are names of the program's own: what a client or a model can make up counts as `other`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from holdfast.core import commands as cmd
from holdfast.core.records import UNFINISHED, CallState, Message, Snapshot, State
from holdfast.log_context import logger
from holdfast.telemetry import Distribution, Tally

log = logger("holdfast.turns")

ERROR_CHARS_MAX = 500  # of an error's words in a log line

BodyEnd = Literal["ok", "error", "raised", "timed_out", "unknown", "ended"]
_LEVELS: dict[BodyEnd, str] = {
    "error": "a tool failed",
    "raised": "a tool raised",
    "timed_out": "a tool did not end in time",
    "unknown": "what a tool did is not known",
}


class Outcomes:
    """Of all runners of a worker."""

    def __init__(self) -> None:
        self.turns = Tally("agent", "outcome", "cause")
        self.turn_s = Distribution((0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800), "agent")
        self.steps = Tally("agent", "model", "finish")
        self.tokens = Tally("agent", "model", "kind")
        self.cost = Tally("agent", "model")
        self.first_token_s = Distribution((0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60), "agent", "model")
        self.attempts_failed = Tally("agent", "model", "code", "next")
        self.calls = Tally("agent", "tool", "outcome")
        self.call_s = Distribution((0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300), "agent", "tool")
        self.claim_delay_s = Distribution((0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300))
        self.handovers = Tally("why")

    def told(self) -> dict[str, Any]:
        return {name: family.told() for name, family in vars(self).items()}

    # --- claims -----------------------------------------------------------------------------------------

    def claimed(self, snapshot: Snapshot, now: int) -> None:
        chat = snapshot.chat
        if chat.step == 0 and chat.turn_ms == 0 and chat.turn_started_at is not None and not chat.unclean:
            self.claim_delay_s.add(max(0, now - chat.turn_started_at) / 1000)
        if not chat.unclean:
            return
        self.handovers.add("worker_lost")
        extra: dict[str, object] = {"action": "chat.taken_over", "workers_lost": chat.unclean}
        log.warning("a chat whose worker was lost is taken over", extra=extra)
        for call in snapshot.calls:
            if call.state is CallState.UNKNOWN:
                extra = {"action": "call.unknown", "call": call.id, "tool": call.name}
                extra["error"] = "its worker was lost while it ran"
                log.warning(_LEVELS["unknown"], extra=extra)

    # --- bodies -----------------------------------------------------------------------------------------

    def body_ended(
        self, agent: str, tool: str, end: BodyEnd, seconds: float, words: str, raised: BaseException | None
    ) -> None:
        """A tool's body: it returned, raised, was late, or was ended."""
        self.calls.add(agent, tool, end)
        self.call_s.add(seconds, agent, tool)
        if end == "ok":
            return
        if end == "ended":
            log.info("a tool's body was ended", extra={"action": "call.ended", "cause": words})
            return
        extra = {"action": f"call.{end}", "error": words[:ERROR_CHARS_MAX], "after_s": round(seconds, 3)}
        log.warning(_LEVELS[end], extra=extra, exc_info=raised)

    # --- what was committed -----------------------------------------------------------------------------

    def committed(
        self, before: Snapshot, after: Snapshot, commands: Sequence[cmd.Command], label: Callable[[str], str]
    ) -> None:
        """`label` is how a tool's name is told in figures."""
        agent = before.chat.agent
        for command in commands:
            match command:
                case cmd.Respond(message=message):
                    model = message.model or ""
                    self.steps.add(agent, model, message.finish or "")
                    self.tokens.add(agent, model, "input", by=message.input_tokens or 0)
                    self.tokens.add(agent, model, "output", by=message.output_tokens or 0)
                    self.cost.add(agent, model, by=command.cost)
                    self._responded(message)
                    for answered in before.calls:  # of the step that is over: a person's answer came by no worker
                        if answered.state is CallState.DENIED and answered.answered_by is not None:
                            self.calls.add(agent, label(answered.name), "denied")
                case cmd.AttemptLost():
                    self._attempt_lost(agent, command)
                case cmd.Refuse():
                    self._refused(before, command, label)
                case cmd.AskApproval() | cmd.Delegate():
                    call = before.call(command.call_id)
                    name = "" if call is None else call.name
                    waits_for = "person" if isinstance(command, cmd.AskApproval) else str(command.external)
                    self.calls.add(agent, label(name), f"waits_for_{waits_for}")
                    extra = {"action": "call.waits", "call": command.call_id, "tool": name, "for": waits_for}
                    log.info("a call waits to be answered", extra=extra)
                case cmd.Release():
                    self.handovers.add("released")
                    log.info("a chat is handed over", extra={"action": "chat.released"})
                case cmd.Fail(error=error):
                    stopping = before.chat.state is State.STOPPING
                    outcome = "stopped" if stopping else "failed"
                    self._turn_ended(before, after, outcome, error.code, error.message)
                case cmd.FinishTurn(cause=cause):
                    outcome = "done" if cause is None else "cut_short"
                    self._turn_ended(before, after, outcome, str(cause or ""), command.detail)
                case cmd.FinishStop():
                    self._turn_ended(before, after, "stopped", str(before.chat.cause or ""), command.detail)

    @staticmethod
    def _responded(message: Message) -> None:
        if message.finish is not None:
            extra = {"action": "model.unfinished", "model": message.model, "finish": message.finish}
            extra["error"] = UNFINISHED.get(message.finish, message.finish)
            log.warning("an answer is not whole", extra=extra)

    def _attempt_lost(self, agent: str, command: cmd.AttemptLost) -> None:
        model, onward = command.model, command.next_model
        follows = "none" if onward is None else "retry" if onward == model else "fallback"
        self.attempts_failed.add(agent, model, command.code, follows)
        if command.cost:
            self.cost.add(agent, model, by=command.cost)

    def _refused(self, before: Snapshot, command: cmd.Refuse, label: Callable[[str], str]) -> None:
        call = before.call(command.call_id)
        name = "" if call is None else call.name
        end = "denied" if command.denied else "refused"
        self.calls.add(before.chat.agent, label(name), end)
        extra = {"call": command.call_id, "tool": name, "error": command.content[:ERROR_CHARS_MAX]}
        if command.denied:
            log.warning("a call was denied", extra={"action": "call.denied", **extra})
        else:
            log.info("a call was not run", extra={"action": "call.refused", **extra})

    def _turn_ended(self, before: Snapshot, after: Snapshot, outcome: str, cause: str, words: str | None) -> None:
        chat = before.chat
        if chat.turn_started_at is None:
            return  # a compaction at rest
        seconds = max(0, after.chat.updated_at - chat.turn_started_at) / 1000
        self.turns.add(chat.agent, outcome, cause)
        self.turn_s.add(seconds, chat.agent)
        extra: dict[str, object] = {
            "action": f"turn.{outcome}",
            "turn": chat.turn,
            "steps": max(chat.step, after.chat.step) if after.chat.turn == chat.turn else chat.step,
            "seconds": round(seconds, 3),
        }
        if cause:
            extra["cause"] = cause
        if words:
            extra["error"] = words[:ERROR_CHARS_MAX]
        if outcome == "failed":
            log.warning("a turn failed", extra=extra)
        else:
            log.info("a turn is %s", outcome.replace("_", " "), extra=extra)
