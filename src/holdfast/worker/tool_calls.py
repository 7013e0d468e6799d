"""Running a response's tool calls: what stands before a call's start, its body, its outcome."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast import log_context
from holdfast.core import commands as cmd
from holdfast.core.budgets import BudgetLeft, purses_below
from holdfast.core.call_words import SPENT, spent_text
from holdfast.core.codec import decode_keepsakes, storable
from holdfast.core.records import (
    Call,
    CallState,
    Cause,
    Frozen,
    KeptRule,
    Message,
    NewChat,
    Replay,
    ToolCall,
    ToolResult,
    result_message,
)
from holdfast.core.skill_texts import SKILL_TOOL, bound
from holdfast.errors import HoldfastError, InvalidInput, LimitReached, NotFound, StoreError, ToolFailed
from holdfast.hooks import Arguments, Ask, HookFailed, Veto
from holdfast.log_context import logger
from holdfast.skills.allowed_tools import Narrowing
from holdfast.spans import NO_SPAN, OpenSpan
from holdfast.tools.base import Answered, ListChildren, Spawned, ToChild, Tool
from holdfast.tools.context import ToolContext
from holdfast.tools.permissions.decision import Decision
from holdfast.tools.permissions.modes import Ruling
from holdfast.tracebacks import name_of, traceback_text
from holdfast.worker.children import Children
from holdfast.worker.held_chat import HeldChat, TurnCannotGoOn
from holdfast.worker.history_cache import Moved
from holdfast.worker.outcomes import BodyEnd
from holdfast.worker.progress import ProgressNotes
from holdfast.worker.tool_body import Body, Returned
from holdfast.worker.tool_models import ask_model

log = logger("holdfast.runner")

SPENDING_PATIENCE_S = 2.0  # for a store that fails while a stop waits


class RunningTool(Frozen):
    """A tool's body that runs now."""

    chat_id: str
    call_id: str
    tool: str
    age_s: float
    deadline_s: float


class _Ready(Frozen):
    """A call that can start; `arguments` only where a hook changed them. `decision` let it: for the journal."""

    arguments: str | None = None
    decision: str = ""


class ToolCalls:
    def __init__(self, held: HeldChat) -> None:
        self._held = held
        self._children = Children(held)
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: dict[str, set[str]] = {}  # by call, while it has no outcome: the keys of what it kept
        self._narrowing = Narrowing(())  # of the batch that is being run
        self._entered: set[str] = set()  # calls whose bodies began, so that they may have done something
        self._ready: dict[str, _Ready] = {}  # calls that may start and wait for a place
        self.broken: BaseException | None = None  # what kept an outcome from being committed
        self.abandoned = 0

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def running_tools(self) -> list[RunningTool]:
        """From any thread."""
        now = time.monotonic()
        return [
            RunningTool(
                chat_id=self._held.chat_id,
                call_id=body.call_id,
                tool=body.tool.name,
                age_s=round(now - body.since, 3),
                deadline_s=body.tool.deadline_s,
            )
            for body in list(self._held.bodies.values())
        ]

    # --- before the start -------------------------------------------------------------------------------

    async def run(self, calls: Sequence[Call]) -> None:
        held = self._held
        message = await held.history.response_of(held.snapshot, calls[0].id)
        if message is None:
            raise Moved(f"the response that asked for call {calls[0].id} is not in history")
        self._narrowing = await held.skills.narrowing(held.snapshot.calls[0].pos)
        if any(call.name == SKILL_TOOL for call in calls):
            await held.history.turn(held.snapshot)  # what is active already
        if any(tool.recalls for call in calls if (tool := held.known_tools.get(call.name)) is not None):
            await held.history.turn(held.snapshot)  # a successor has read nothing of it yet
        parts = {part.call_id: part for part in message.calls}
        free = held.agent.limits.parallel_calls - len(held.bodies)
        for call in calls:
            waited = self._ready.get(call.id)
            if waited is None:
                prepared = await self._prepare(call, parts[call.id])
            elif free > 0:  # what it was judged by may have changed since
                prepared = await self._judge_again(call, parts[call.id], waited)
            else:
                continue
            if isinstance(prepared, _Ready):
                self._ready[call.id] = prepared
            else:
                self._ready.pop(call.id, None)
                await held.commit(*prepared)
        ready = [call.id for call in calls if call.id in self._ready]
        begin = ready[:free]
        if begin:
            going = {call_id: self._ready[call_id] for call_id in begin}
            changed = {call_id: one.arguments for call_id, one in going.items() if one.arguments is not None}
            decisions = {call_id: one.decision for call_id, one in going.items() if one.decision}
            await held.commit(
                cmd.StartCalls(by=held.by, call_ids=tuple(begin), arguments=changed, decisions=decisions)
            )
            for call_id in begin:
                del self._ready[call_id]
            self.begin_started(message)
        elif ready:
            await held.await_change()

    async def _prepare(self, call: Call, part: ToolCall) -> "list[cmd.Command] | _Ready":
        """What happens to a planned call instead of its start: refused, asked about, handed over."""
        held = self._held
        tool = (await held.runnable_tools()).get(call.name)
        if tool is None:
            names = ", ".join(sorted(await held.offered_tools())) or "none"
            kind = "not active" if call.name in held.known_tools else "not a tool of this agent"
            away = held.shared.tool_servers.absence(held.agent, call.name)
            text = away or f"{call.name} is {kind}. Active tools: {names}."
            # Why a server is away, it says itself.
            return [cmd.Refuse(by=held.by, call_id=call.id, content=text, untrusted=bool(away))]
        if part.cut:
            text = "The arguments were cut off before they were complete. Send the call again."
            return [cmd.Refuse(by=held.by, call_id=call.id, content=text)]
        if call.answered_by is not None or call.state is CallState.APPROVED or call.starts:
            # Decided before: same arguments, same key. The rules may be others by now.
            prepared: list[cmd.Command] | _Ready = await self._judge_again(call, part, _Ready())
        else:
            prepared = await self._consult(call, part, tool)
        if isinstance(prepared, _Ready) and tool.delegate is not None:
            changed = call.arguments if prepared.arguments is None else prepared.arguments
            handed = await self._hand_over(call, tool, changed, part.arguments if changed is None else changed)
            return [_with_decision(command, prepared.decision) for command in handed]
        return prepared

    async def _judge_again(self, call: Call, part: ToolCall, ready: _Ready) -> "list[cmd.Command] | _Ready":
        """Before its start, on the arguments that will run. What a person approved is not asked about again."""
        held = self._held
        tool = held.known_tools[call.name]
        arguments = next(text for text in (ready.arguments, call.arguments, part.arguments) if text is not None)
        decision = await self._judge(tool, arguments)
        if decision.ruling == "ask" and call.answered_by is None:
            return self._asking(call, decision.question, decision.note, ready.arguments, offer=decision.offer)
        if decision.ruling == "deny":
            planned = call.state is CallState.PLANNED
            return [self._denial(call, decision.refusal, decision.note, denied=planned)]
        approved = f"approved by {call.answered_by or 'a person'}" if call.answered_by is not None else ""
        return _Ready(arguments=ready.arguments, decision=approved or decision.note)

    async def _hand_over(self, call: Call, tool: Tool, changed: str | None, arguments: str) -> list[cmd.Command]:
        held = self._held
        assert tool.delegate is not None
        try:
            handed = tool.delegate(tool.validate(arguments), self._context(call), held.now)
        except ToolFailed as error:
            return [cmd.Refuse(by=held.by, call_id=call.id, content=str(error))]
        match handed:
            case ToChild():
                return await self._reach(call, handed)
            case ListChildren():
                listed = await self._children.listing(handed.limit)
                return self._answer_at_once(call, listed.content, untrusted=listed.untrusted)
            case Answered():
                return self._answer_at_once(call, handed.content)
        if handed.spawn is not None and (why_not := await self._children.why_not_one_more()) is not None:
            return [cmd.Refuse(by=held.by, call_id=call.id, content=why_not)]
        spawn = held.spans.spawning(call, handed.spawn) if handed.spawn is not None else None
        if spawn is not None:
            purses = purses_below(held.snapshot.chat, held.agent.limits)
            spawn = replace(spawn, purses=purses, message=self._bound(spawn.message))
        if isinstance(handed, Spawned):
            return self._answer_at_once(call, handed.content, spawn)
        return [
            cmd.Delegate(
                by=held.by,
                call_id=call.id,
                external=handed.external,
                arguments=changed,
                question=handed.question,
                child_id=handed.child_id,
                child_turn=handed.child_turn,
                spawn=spawn,
                expires_at=handed.expires_at,
            )
        ]

    def _answer_at_once(
        self, call: Call, content: str, spawn: NewChat | None = None, *, untrusted: bool = False
    ) -> list[cmd.Command]:
        by = self._held.by
        start = cmd.StartCalls(by=by, call_ids=(call.id,))
        outcome = cmd.Outcome(by=by, call_id=call.id, content=content, spawn=spawn, untrusted=untrusted)
        return [start, outcome]

    async def _reach(self, call: Call, to: ToChild) -> list[cmd.Command]:
        """What comes of it is found, and the call answered, in the transaction itself."""
        held = self._held
        if to.message is not None and (why_not := await self._children.why_not_wake(to.child_id)) is not None:
            return [cmd.Refuse(by=held.by, call_id=call.id, content=why_not)]
        start = cmd.StartCalls(by=held.by, call_ids=(call.id,))
        message = self._bound(to.message)
        reach = cmd.Reach(by=held.by, call_id=call.id, child_id=to.child_id, message=message, mode=to.mode)
        return [start, reach]

    def _bound(self, message: Message | None) -> Message | None:
        """What is said to a child. What this turn may not do, it cannot have done by another."""
        return message if message is None or not self._narrowing else bound(message, self._narrowing.skills)

    async def _consult(self, call: Call, part: ToolCall, tool: Tool) -> "list[cmd.Command] | _Ready":
        held = self._held
        question = f"Run {call.name}?" if tool.needs_approval is True else None
        asked_by = "the tool" if tool.needs_approval is True else ""
        expires_at = None
        changed = None
        for verdict in await held.run_hooks("before_tool", part, _with_arguments):
            match verdict:
                case Veto(reason=reason):
                    return [self._denial(call, reason, "deny by a hook")]
                case HookFailed(error=error):
                    return [self._denial(call, f"Denied: a guard could not decide ({error}).", "deny by a hook")]
                case Ask():
                    question, asked_by = storable(verdict.question), "a hook"
                    if verdict.expires_s is not None:
                        expires_at = held.now + int(verdict.expires_s * 1000)
                case Arguments(text=text):
                    changed = text
                case _:
                    continue
        arguments = part.arguments if changed is None else changed
        match await self._ask_tool(call, tool, arguments):
            case ToolFailed() as denied:
                return [self._denial(call, str(denied), "deny by the tool")]
            case str(own):
                question = storable(own) if question is None else f"{question}\n{storable(own)}"
                asked_by = f"{asked_by} and the tool" if asked_by else "the tool"
        decision = await self._judge(tool, arguments)
        if decision.ruling == "deny":
            return [self._denial(call, decision.refusal, decision.note)]
        if decision.ruling == "ask":
            question = f"{question}\n{decision.question}" if question else decision.question
            asked_by = f"{asked_by} and {decision.by}" if asked_by else decision.by
        if question is None:
            return _Ready(arguments=changed, decision=decision.note)
        offer = decision.offer if asked_by == decision.by else ()  # nobody else asks
        return self._asking(call, question, f"ask by {asked_by}", changed, expires_at, offer)

    def _asking(
        self,
        call: Call,
        question: str,
        decision: str,
        arguments: str | None,
        expires_at: int | None = None,
        offer: tuple[str, ...] = (),
    ) -> list[cmd.Command]:
        held = self._held
        if held.unattended:
            text = f"Denied: no person is there to be asked, and this needs one: {question}"
            return [self._denial(call, text, f"{decision}, and no person is there")]
        return [
            cmd.AskApproval(
                by=held.by,
                call_id=call.id,
                question=storable(question),
                arguments=arguments,
                expires_at=expires_at,
                decision=storable(decision),
                offer=offer,
            )
        ]

    def _denial(self, call: Call, words: str, decision: str, *, denied: bool = True) -> cmd.Refuse:
        return cmd.Refuse(
            by=self._held.by,
            call_id=call.id,
            content=storable(words),
            denied=denied,
            decision=storable(decision),
        )

    async def _ask_tool(self, call: Call, tool: Tool, arguments: str) -> str | ToolFailed | None:
        """What a tool that decides for itself says of these very arguments. One that cannot say: ask."""
        decide = tool.needs_approval
        if isinstance(decide, bool):
            return None
        context = self._context(call)

        def ask() -> str | ToolFailed | None:
            try:
                values = tool.validate(arguments)
            except ToolFailed:
                return None  # they do not fit: the call fails before it does anything
            try:
                return decide(values, context)
            except ToolFailed as denied:
                return denied

        held = self._held
        answer: str | ToolFailed | HookFailed | None = await held.shared.hooks.judge(tool.name, ask, held.note_raised)
        return f"Run {tool.name}? ({answer.error})" if isinstance(answer, HookFailed) else answer

    async def _judge(self, tool: Tool, arguments: str) -> Decision:
        """What the rulebook says of these very arguments. What cannot be judged asks."""
        held, narrowing = self._held, self._narrowing
        at_once = held.decision_at_once(tool)
        if at_once is not None and not narrowing:
            return at_once

        def judge() -> Decision:
            try:
                values = tool.validate(arguments)
            except ToolFailed:  # they do not fit: the call fails before it does anything
                return at_once or held.rulebook.judge((), tool.whereabouts, tool.name)
            try:
                acts = tool.acts_of(values)
            except ToolFailed as denied:
                return Decision(ruling="deny", acts=(f"call({tool.name})",), by="tool", why=str(denied))
            if (narrowed := narrowing.judge(tool.name, acts, tool.whereabouts)) is not None:
                return narrowed
            return at_once or held.rulebook.judge(acts, tool.whereabouts, tool.name)

        answer: Decision | HookFailed = await held.shared.hooks.judge(tool.name, judge, held.note_raised)
        if isinstance(answer, HookFailed):
            why = f"it cannot be judged ({answer.error})"
            ruling: Ruling = "deny" if held.rulebook.is_strict else "ask"
            return Decision(ruling=ruling, acts=(f"call({tool.name})",), by="failed judgement", why=why)
        return answer.kept(await self._kept_rules(answer.offer)) if answer.offer else answer

    async def _kept_rules(self, offered: Sequence[str]) -> list[KeptRule]:
        """Those of them that a person said "always" to, as it is now. A store that cannot tell: none."""
        held = self._held
        try:
            return await held.shared.store.kept_rules.covering(held.snapshot.chat, offered)
        except StoreError as error:
            extra = {"action": "kept_rules.unknown", "error": str(error)}
            log.warning("the rules that were kept cannot be read: a person is asked", extra=extra)
            return []

    # --- bodies -----------------------------------------------------------------------------------------

    def begin_started(self, message: Message) -> None:
        """Begin the bodies of calls whose start is committed. If they are not wanted any more, a stop answers them or
        a release plans them again.
        """
        held = self._held
        if not held.check_trust():
            return
        for call in held.snapshot.calls:
            if call.state is CallState.STARTED and call.id not in held.bodies:
                self._begin(call, message)

    def _begin(self, call: Call, message: Message) -> None:
        held = self._held
        part = next(part for part in message.calls if part.call_id == call.id)
        progress = ProgressNotes(held, call.id)
        context = self._context(call, progress.say)
        tool = held.known_tools[call.name]
        body = Body(tool, call.id, context, self._entered, held.check_trust)
        held.add_body(call.id, body)
        arguments = part.arguments if call.arguments is None else call.arguments
        served = call.name not in held.agent.tools and tool.client is None
        with log_context.bound(lambda: {"call": call.id, "tool": call.name}):  # for both tasks
            span = held.spans.tool(call, arguments, served=served)
            if span is NO_SPAN:  # else it begins where the span is the current one
                body.begin(arguments, held.shared.sync.run)
            work = self._see_through(body, call, arguments, progress, span)
            self._tasks.add(asyncio.get_running_loop().create_task(work))

    def _context(self, call: Call, say: Callable[[str], None] | None = None) -> ToolContext:
        held = self._held
        return ToolContext(
            call_id=call.id,
            chat_id=held.chat_id,
            owner=held.snapshot.chat.owner,
            metadata=held.metadata,
            deps=held.deps,
            say=say,
            children=held.shared.children,
            approved=call.answered_by is not None,
            results=held.history.results,
            arguments=held.history.arguments,
            whole_result=held.history.whole_result,
            result_chars=held.agent.limits.result_chars,
            rulebook=held.rulebook,
            kept=lambda: decode_keepsakes(held.snapshot.chat.keepsakes),
            keep=lambda key, text: self._keep(call.id, key, text),
            budget_left=lambda: self._budget_left(call),
            ask_model=lambda context, *asked: ask_model(held, context, *asked),
            memory=None if held.memory is None else held.memory.desk(call.id),
        )

    async def _budget_left(self, call: Call) -> BudgetLeft:
        """An even share for each call of this tool that runs, or is about to: each may spend all that it is told.
        What calls say that they have spent is committed when they end: until then it is taken off here.
        """
        held = self._held
        try:
            left = await held.shared.draws.left(held.snapshot.chat, held.agent)
        except HoldfastError as error:
            raise ToolFailed(f"what is left of the budget could not be looked up: {error}") from error
        running = (CallState.PLANNED, CallState.APPROVED, CallState.STARTED)
        alike = {one.id for one in held.snapshot.calls if one.name == call.name}
        for call_id, body in held.bodies.items():
            if call_id not in alike:
                left = left.less(*body.context.spending)
        share = left.shared(sum(one.id in alike and one.state in running for one in held.snapshot.calls))
        return share.less(*held.bodies[call.id].context.spending) if call.id in held.bodies else share

    async def _keep(self, call_id: str, key: str, text: str) -> None:
        """What other calls that run now have kept does not give way to it: each finds it if it has to run again."""
        held = self._held
        limit = held.shared.store.options.limits.keepsake_chars_max
        if not key or max(len(key), len(text)) > limit:
            raise ToolFailed(f"what is kept has a key, and up to {limit:,} characters; this has {len(text):,}")
        spared = frozenset(one for other, keys in self._kept.items() if other != call_id for one in keys)
        command = cmd.Keep(by=held.by, key=storable(key), text=storable(text), spared=spared)
        mine = self._kept.setdefault(call_id, set())
        known = command.key in mine
        mine.add(command.key)  # already now: others keep something at the same time
        try:
            await held.commit(command)
        except (Moved, TurnCannotGoOn, HoldfastError) as error:  # the turn can: it is this call that cannot
            if not known:
                mine.discard(command.key)
            raise ToolFailed(f"what the tool has to find after a crash could not be kept: {error}") from error

    async def _see_through(
        self, body: Body, call: Call, arguments: str, progress: ProgressNotes, span: OpenSpan
    ) -> None:
        """A call that began, up to its outcome. The runner is told from here, not by a callback of the task: that is
        a turn of the loop less.
        """
        known = False
        try:
            known = await self._run_body(body, call, arguments, progress, span)
        except Exception as error:  # the runner raises it
            log.error("a call's outcome was not committed", extra={"action": "outcome_lost"}, exc_info=error)
            self.broken = self.broken or error
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)
            self._held.note_body_end(known=known)

    async def _run_body(
        self, body: Body, call: Call, arguments: str, progress: ProgressNotes, span: OpenSpan
    ) -> bool:
        """True if its outcome is committed, so that our snapshot knows of it."""
        held = self._held
        if span is NO_SPAN:
            returned = await body.run(arguments, held.shared.sync.run)
            self._tell_end(body, returned)
        else:
            with span.current():
                returned = await body.run(arguments, held.shared.sync.run)
                if returned is None or returned.error:
                    span.failed(str(body.context.cause or "tool_error"))
                if returned is not None:
                    held.spans.returned(span, returned.content)
                self._tell_end(body, returned)
        self.abandoned += body.abandoned
        said = await progress.rest()
        if returned is None:
            await self._keep_spending(call, said, *body.context.spending)
        else:
            kept = await self._with_kept_files(returned)
            outcome = self._outcome(call, kept, body.context.spending)
            try:
                after = await held.commit(*said, outcome)
            except Moved:
                return False  # the successor has answered it
            if not outcome.unknown:
                self._kept.pop(call.id, None)
                result = ToolResult(
                    call_id=call.id,
                    name=call.name,
                    content=kept.content,
                    error=kept.error,
                    files=kept.files,
                    untrusted=kept.untrusted,
                )
                held.history.learn(after, {call.pos: result_message(result, after.chat.updated_at)})
                await held.run_hooks("after_tool", replace(result, files=returned.files))
        held.drop_body(call.id)
        return returned is not None

    async def _with_kept_files(self, returned: Returned) -> Returned:
        """What a result shows is kept before the result is. A chat that is full of files goes on without this one."""
        if not returned.files:
            return returned
        try:
            return replace(returned, files=await self._held.keep_files(returned.files))
        except (LimitReached, InvalidInput) as error:
            note = f"\n[{len(returned.files)} files left out: {error}]"
            return replace(returned, content=returned.content + note, files=())
        except NotFound:
            return returned  # the commit finds out, too, that the chat is deleted

    def _tell_end(self, body: Body, returned: Returned | None) -> None:
        held, raised = self._held, body.raised
        if raised is not None:
            held.keep_trace("tool", body.tool.name, name_of(raised), traceback_text(raised), body.call_id)
        if returned is None:
            end: BodyEnd = "ended"
            words = str(body.context.cause or "")
        else:
            end = _end_of(body, returned)
            words = held.shared.secrets.taken_out_of_log(returned.content) if returned.error else ""
        name, seconds = held.tool_label(body.tool.name), time.monotonic() - body.since
        held.shared.outcomes.body_ended(held.agent.name, name, end, seconds, words, raised)

    async def _keep_spending(self, call: Call, said: Sequence[cmd.Command], tokens: int, cost: float) -> None:
        """Of a call that was ended from outside: it has no outcome, and what it spent was spent. A chat that is
        another worker's by now is not told.
        """
        held = self._held
        if held.lost or not (tokens or cost):
            return
        words = spent_text(tokens, cost)
        note = cmd.Note(
            by=held.by, topic=SPENT, text=words, call_id=call.id, tokens=tokens, cost=cost, tool=call.name
        )
        try:
            await held.commit(*said, note, patience_s=SPENDING_PATIENCE_S)
        except (Moved, HoldfastError) as error:
            extra = {"action": "spending_lost", "tokens": tokens, "cost": cost, "error": str(error)}
            log.warning("what a call spent before it was ended is not counted", extra=extra)

    def _outcome(self, call: Call, returned: Returned, spending: tuple[int, float]) -> cmd.Outcome:
        """Of a pure call whose end is unknown, that is an error like any other: it had no effect."""
        unknown = returned.unknown and call.replay is not Replay.PURE
        return cmd.Outcome(
            by=self._held.by,
            call_id=call.id,
            content=returned.content,
            files=returned.files,
            error=returned.error,
            unknown=unknown,
            again=unknown and returned.ended,
            untrusted=returned.untrusted,
            tokens=spending[0],
            cost=spending[1],
        )

    async def end(self) -> None:
        """Bounded: a body that ignores its cancellation is left behind."""
        for body in self._held.bodies.values():
            body.cancel(self._held.stop.cause or Cause.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def never_begun(self) -> tuple[str, ...]:
        """Calls whose start is committed and whose body was not entered: nothing of them can have happened."""
        return tuple(
            call.id
            for call in self._held.snapshot.calls
            if call.state is CallState.STARTED and call.id not in self._entered
        )


def _end_of(body: Body, returned: Returned) -> BodyEnd:
    if body.context.cause is Cause.DEADLINE:
        return "timed_out"
    if returned.unknown:
        return "unknown"
    return "raised" if body.raised is not None else "error" if returned.error else "ok"


def _with_decision(command: cmd.Command, decision: str) -> cmd.Command:
    match command:
        case cmd.Delegate() if decision:
            return replace(command, decision=decision)
        case cmd.StartCalls() if decision:
            return replace(command, decisions=dict.fromkeys(command.call_ids, decision))
    return command


def _with_arguments(part: Any, answer: Any) -> Any:
    return replace(part, arguments=answer.text) if isinstance(answer, Arguments) else part
