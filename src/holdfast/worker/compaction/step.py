"""Compaction, acted out: a summary is asked for, committed, and stands from then on for the beginning of the history.

Three ways lead here: the limit is near, a client asked, or the provider refused a request as too long. When no
summary can be made in time, or none can be stored, and the request would not fit, the oldest messages are left out:

    the summary             a record: covers up to n, summary. Every later runner begins with it
    else, left out          a record as well, whose text says so: durable, the same for every runner, and visible
    that not stored either  left out of this runner's requests only; the next one finds its own way, by the same rules

The messages stay in the store in any case, the journal tells what happened, and nothing here fails a turn.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import commands as cmd
from holdfast.core.budgets import Estimate
from holdfast.core.compaction import (
    BYTES_PER_TOKEN,
    TokenCount,
    Window,
    budget,
    counted,
    estimated,
    find_cut,
    result_tokens,
    skills_room,
    summary_room,
    summary_text,
    text_with_skills,
    trim_text,
)
from holdfast.core.records import Cause, CompactionWhy, Frozen, Message
from holdfast.core.skill_texts import active_skills, without_carried
from holdfast.core.spending import NO_BILL, SpendingKind, Spent
from holdfast.errors import HoldfastError, InvalidInput, StoreError
from holdfast.log_context import logger
from holdfast.models.base import Model, Request
from holdfast.worker.compaction.summaries import Summariser, Summary
from holdfast.worker.draws import Drawn, bill_of
from holdfast.worker.held_chat import HeldChat, TurnCannotGoOn
from holdfast.worker.history_cache import Moved

log = logger("holdfast.runner")

RESULTS_WORTH = 0.25  # of a refused request, that shorter results must save for it to be tried again
COMMIT_PATIENCE_S = 5.0  # how long a store may refuse a summary before the turn goes on without


class Plan(Frozen):
    """What a compaction is to cover, and how much may stand for it. `needed`: without it the request does not fit."""

    why: CompactionWhy
    upto: int
    tokens: int
    needed: bool
    room: int | None = None  # for what stays and what stands for the rest


class Compactor:
    def __init__(self, held: HeldChat) -> None:
        self._held = held
        self._tried_at: tuple[int, int] | None = None  # epoch and length: the same history is compacted once
        self._told = True  # a commit tells of what the last summary took
        self._refused_at: tuple[int, int, int] | None = None  # epoch, turn and step that the provider refused

    # --- the three ways ---------------------------------------------------------------------------------

    async def make_room(self) -> bool:
        """Before a request: if it comes too near to the limit. True: something changed, decide again."""
        held, policy = self._held, self._held.agent.compaction
        limit = await self._limit()
        place = held.snapshot.chat.epoch, held.snapshot.chat.length
        if limit is None or not policy.automatic or self._tried_at == place:
            return False
        window = await self._window()
        count, room_for_all = counted(window), self._budget(limit)
        if count.tokens <= room_for_all:
            return False
        self._tried_at = place
        room = room_for_all - window.fixed
        plan = self._plan("near_limit", window, count, room, worth=room_for_all // 8) if room > 0 else None
        if plan is None:
            return False  # little to be won: the provider shall say whether it is too long
        await self._carry_out(plan, window)
        return True

    async def on_demand(self) -> None:
        """A client asked. What cannot be summarised is left out only if the request would not fit."""
        held = self._held
        window = await self._window()
        count, limit = counted(window), await self._limit()
        room = max(1, self._budget(limit) - window.fixed) if limit is not None else None
        needed = limit is not None and count.tokens > self._budget(limit)
        plan = self._plan("asked", window, count, room, needed=needed)
        if plan is None:
            await self._commit(cmd.FinishCompaction(by=held.by))
            return
        await self._carry_out(plan, window)

    async def after_refusal(self) -> bool:
        """The provider says that it is too long, whatever we counted: to half of that, once for each step. If that
        does not do, results that no model has seen are shortened further, as long as there is something to win.
        """
        chat = self._held.snapshot.chat
        place = chat.epoch, chat.turn, chat.step
        again, self._refused_at = self._refused_at == place, place
        refused = await self._window()
        count, limit, size = counted(refused), await self._limit(), sum(refused.sizes)
        room = count.tokens - refused.fixed
        if limit is not None and (allowed := self._budget(limit) - refused.fixed) > 0:
            room = min(room, allowed)
        room = max(1, room // 2)
        self._held.history.fit_results(result_tokens(room, self._held.agent.compaction))
        window = await self._window()
        plan = self._plan("too_long", window, count, room) if not again else None
        if plan is None:
            return sum(window.sizes) < size * (1 - RESULTS_WORTH)
        await self._carry_out(plan, window)
        return True

    # --- the plan ---------------------------------------------------------------------------------------

    async def _limit(self) -> int | None:
        agent = self._held.agent
        return (await self._held.model(agent.model)).context_limit or agent.compaction.context_limit

    def _budget(self, limit: int) -> int:
        agent = self._held.agent
        return budget(limit, agent.compaction, agent.settings.max_tokens)

    async def _window(self) -> Window:
        held = self._held
        if (limit := await self._limit()) is not None and held.agent.compaction.automatic:
            held.history.fit_results(result_tokens(self._budget(limit), held.agent.compaction))
        fixed = estimated(await held.instructions())
        for tool in (await held.offered_tools()).values():
            fixed += estimated(tool.name) + estimated(tool.description) + len(tool.schema) // BYTES_PER_TOKEN
        return await held.history.window(held.snapshot, fixed)

    def _plan(
        self,
        why: CompactionWhy,
        window: Window,
        count: TokenCount,
        room: int | None,
        *,
        worth: int = 1,
        needed: bool = True,
    ) -> Plan | None:
        policy = self._held.agent.compaction
        left = room
        if room is not None:  # the skills that will be carried take their part of it
            skills = active_skills(self._held.history.summary, window.messages).values()
            left = room - min(skills_room(room) or 0, sum(estimated(skill.text) for skill in skills))
        upto = find_cut(window, left, policy, scale=count.scale, worth=worth)
        if upto is None:
            return None
        return Plan(why=why, upto=upto, tokens=summary_room(room, policy), needed=needed, room=room)

    # --- carrying it out --------------------------------------------------------------------------------

    async def _carry_out(self, plan: Plan, window: Window) -> None:
        """Raises Moved when a stop came first. A shutdown or a lost lease ends it and commits nothing."""
        held = self._held
        covered = window.messages[: plan.upto - window.start]
        drawn, spent = list[Drawn](), list[Spent]()
        summary = Summary()
        self._told = False
        try:
            if held.check_trust():
                summary = await self._summarised(plan, covered, drawn, spent)
            await self._carry_on(plan, covered, summary, drawn)
        finally:
            if not self._told:  # no commit tells of it
                await held.enter_spending(SpendingKind.SUMMARY, spent, drawn)

    async def _summarised(
        self, plan: Plan, covered: Sequence[Message], drawn: list[Drawn], spent: list[Spent]
    ) -> Summary:
        """`drawn` is what the last attempt uses: one that is over waits for no other, least of all for the next."""
        held = self._held

        async def draw(model: Model, request: Request) -> None:
            if drawn:
                over, drawn[:] = drawn[:], [replace(drawn[-1], id=None)]
                await held.enter_spending(SpendingKind.SUMMARY, (), over)
            took = Estimate(tokens=sum(part.tokens for part in spent), cost=sum(part.cost for part in spent))
            drawn[:] = [await held.draw(model, request, took)]

        with held.spans.compaction(plan.why) as span:
            summariser = replace(await self._summariser(), draw=draw)
            summary = await summariser.summarise(
                without_carried(held.history.summary), covered, plan.tokens, held.stop, spent
            )
            span.set("holdfast.messages", len(covered))
            span.set("holdfast.tokens", summary.tokens)
            if summary.error:
                span.failed("no_summary")
        return summary

    async def _carry_on(
        self, plan: Plan, covered: Sequence[Message], summary: Summary, drawn: Sequence[Drawn]
    ) -> None:
        held = self._held
        if held.stop:
            if held.stop.cause not in (Cause.SHUTDOWN, Cause.LEASE_LOST):
                raise Moved("stopped")
            return
        working_on = await self._working_on(plan.upto)
        skills = list(active_skills(held.history.summary, covered).values())
        error = summary.error
        if not error:
            text = summary_text(summary.text, plan.tokens, working_on)
            text = text_with_skills(text, skills, plan.room)
            error = await self._record(plan, text, _finish(held, plan, summary, drawn))
            if not error:
                held.shared.compactions.made += 1
                return
        self._report(plan, error)
        text = trim_text(held.history.summary, covered, plan.tokens, working_on)
        text = text_with_skills(text, skills, plan.room)
        if plan.needed and not await self._record(plan, text, _finish(held, plan, summary, drawn, error=error)):
            held.shared.compactions.trimmed += 1
            return
        await self._commit(_finish(held, plan, summary, drawn, error=error))
        if plan.needed:
            held.history.begin_at(plan.upto, text)
            held.shared.compactions.trimmed += 1

    async def _record(self, plan: Plan, text: str, finish: cmd.FinishCompaction) -> str:
        """Empty when it is committed; else why it cannot be."""
        held = self._held
        try:
            await self._commit(replace(finish, upto=plan.upto, summary=text), patience_s=COMMIT_PATIENCE_S)
        except (StoreError, InvalidInput, TurnCannotGoOn) as problem:
            if isinstance(problem, StoreError) and not held.shared.trusted():
                raise
            code = problem.code if isinstance(problem, HoldfastError) else problem.failure.code
            return f"it could not be stored: {code}: {problem}"
        held.history.begin_at(plan.upto, text)
        return ""

    async def _commit(self, command: cmd.FinishCompaction, patience_s: float | None = None) -> None:
        """A chat that was woken for this rests with the same commit: a reader hears no more after it."""
        held = self._held
        in_turn = held.snapshot.chat.turn_started_at is not None
        rest = () if in_turn else (cmd.FinishTurn(by=held.by),)
        await held.commit(command, *rest, patience_s=patience_s)
        self._told = True

    async def _working_on(self, upto: int) -> str | None:
        """The message that began the current turn, where the cut goes through that turn."""
        held = self._held
        chat = held.snapshot.chat
        if chat.turn_started_at is None or upto <= chat.turn_from:
            return None
        opener = await held.history.turn_opener(held.snapshot)
        return opener.text if opener is not None else None

    async def _summariser(self) -> Summariser:
        held, agent = self._held, self._held.agent
        summariser = agent.compaction.model
        named = (agent.model, *agent.fallbacks) if summariser is None else (summariser,)
        models = [await held.model(model) for model in named]
        return Summariser(
            caller=held.shared.caller,
            models=models,
            limit=models[0].context_limit or (agent.compaction.context_limit if summariser is None else None),
            deadline_s=agent.compaction.deadline_s,
            deadlines=agent.deadlines,
            retry=agent.retry,
            cost_of=lambda model, usage: agent.cost_of(model, usage, held.shared.models.facts),
        )

    def _report(self, plan: Plan, error: str) -> None:
        figures = self._held.shared.compactions
        figures.failed += 1
        figures.last_error = self._held.shared.secrets.taken_out(error)
        log.warning(
            "no summary",
            extra={"action": "compaction_failed", "chat": self._held.chat_id, "why": plan.why},
        )


def _finish(
    held: HeldChat, plan: Plan, summary: Summary, drawn: Sequence[Drawn], *, error: str = ""
) -> cmd.FinishCompaction:
    return cmd.FinishCompaction(
        by=held.by,
        error=error,
        why=plan.why,
        tokens=summary.tokens,
        cost=summary.cost,
        bill=bill_of(drawn, summary.parts) if drawn else NO_BILL,
    )
