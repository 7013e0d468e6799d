"""Asking the model for a step's response: the request, its attempts as clients see them, the commit of what it said.

A response that a stop cut off, or overtook on its way into the store, is kept until the stop is committed.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, assert_never

from msgspec.structs import replace

from holdfast.agent import tool_specs
from holdfast.core import commands as cmd
from holdfast.core.codec import decode_delta
from holdfast.core.journal import Delta
from holdfast.core.records import (
    Cause,
    ChatRecord,
    Failure,
    Frozen,
    Message,
    Role,
    Sampling,
    Synthetic,
    Text,
    ToolCall,
    attempt_id,
)
from holdfast.core.retry import Kind
from holdfast.core.skill_texts import SKILL_TOOL
from holdfast.core.spending import NO_BILL, Bill, SpendingKind, Spent
from holdfast.errors import ModelCallFailed, OutputInvalid, StoreError
from holdfast.hooks import HookFailed
from holdfast.ids import new_id
from holdfast.models.assembler import parts_of_deltas
from holdfast.models.base import Model, OutputSpec, Request, Settings, Usage
from holdfast.models.calls import Completed, FailedAttempt, Observer, Stopped, failure_of, used_at_least
from holdfast.output import REPAIRS_MAX, correction
from holdfast.spans import NO_SPAN
from holdfast.store.cursor import Cursor
from holdfast.store.records import Item
from holdfast.tools.base import Tool
from holdfast.worker.deltas import DeltaStream
from holdfast.worker.draws import Drawn, bill_of
from holdfast.worker.held_chat import ContextTooLong, HeldChat, TurnCannotGoOn
from holdfast.worker.history_cache import Moved
from holdfast.worker.joined_lists import Joined
from holdfast.worker.progress import ProgressNotes


class ModelStep:
    def __init__(self, held: HeldChat) -> None:
        self._held = held
        self._attempts = 0  # made under this held
        self._partial: Stopped | None = None
        self._partial_length = 0
        self._owed: _Owed | None = None  # what the last attempt took, until a commit tells of it

    async def ask(self) -> Message | None:
        """The response, committed. None: a shutdown or a lost lease ended it, and nothing was committed.

        Raises TurnCannotGoOn if no model answered (ContextTooLong if a shorter request might do), Moved if a stop
        came first.
        """
        held = self._held
        request = await self._request()
        if not held.shared.trusted():
            # Frozen or cut off, perhaps until a successor had its answer: a committed step is not asked for again.
            held.interrupt(Cause.LEASE_LOST)
            return None
        models = [await held.model(model) for model in (held.agent.model, *held.agent.fallbacks)]
        self._partial, self._partial_length = None, held.snapshot.chat.length
        observer = _Watcher(held, self._next_attempt, request)
        await self.enter_rest()
        try:
            outcome = await held.shared.caller.call(
                models, request, observer=observer, stop=held.stop, policy=held.agent.retry
            )
            observer.ended(outcome)
            self._owed = _Owed(drawn=observer.drawn, spent=self._spent(outcome))
            observer.drawn = None
        except ModelCallFailed as error:
            too_long = error.code == Kind.CONTEXT_TOO_LONG
            raise (ContextTooLong if too_long else TurnCannotGoOn)(failure_of(error)) from error
        finally:
            await observer.close()
        match outcome:
            case Stopped():
                self._partial = outcome
                if outcome.cause not in (Cause.SHUTDOWN, Cause.LEASE_LOST):
                    raise Moved("stopped")
                return None
            case Completed():
                limits = {model.name: model.context_limit for model in models}
                limit = limits.get(outcome.message.model or "") or held.agent.compaction.context_limit
                return await self._take_response(outcome, observer, limit)
            case _:
                assert_never(outcome)

    def _next_attempt(self) -> int:
        self._attempts += 1
        return attempt_id(self._held.snapshot.chat.fence, self._attempts)

    # --- the request ------------------------------------------------------------------------------------

    async def _request(self) -> Request:
        held = self._held
        agent, messages = held.agent, await held.history.messages(held.snapshot)
        if held.history.names_files:
            messages = await held.shared.store.whole_messages(held.snapshot.chat.id, messages)
        held.look_for_tools()
        in_force = await held.history.terms(held.snapshot)
        if text := await held.instructions():
            messages = Joined((Message(id="instructions", role=Role.SYSTEM, parts=(Text(text=text),)),), messages)
        asked = in_force.terms.sampling if in_force is not None else None
        settings = _sampled(agent.settings, asked)
        if agent.output is not None and (settings.output is None or (asked is not None and asked.output is not None)):
            settings = replace(settings, output=agent.output.spec)  # what its answers are checked by
        if in_force is not None and in_force.heeded and settings.tool_choice not in (None, "auto", "none"):
            settings = replace(settings, tool_choice=None)  # it has called: asked to in each step, it never ends
        offered = await held.offered_tools()
        if settings.tool_choice == SKILL_TOOL and (SKILL_TOOL not in offered or await held.skills.called_are_gone()):
            settings = replace(settings, tool_choice=None)  # the skill that a person called is gone since
        request = Request(
            messages=messages,
            tools=tool_specs(offered),
            settings=settings,
            deadlines=agent.deadlines,
        )
        for answer in await held.run_hooks("before_model", request, _as_changed):
            if isinstance(answer, Request):
                request = answer
            elif isinstance(answer, HookFailed):
                text = f"the model was not asked: {answer.error}"
                raise TurnCannotGoOn(Failure(code="hook_failed", message=text))
        return request

    # --- the response -----------------------------------------------------------------------------------

    async def _take_response(self, outcome: Completed, observer: "_Watcher", context_limit: int | None) -> Message:
        held = self._held
        await held.run_hooks("after_model", outcome)
        message = replace(
            outcome.message,
            parts=outcome.message.parts or (Text(text=""),),
            agent_fingerprint=held.agent.fingerprint_with(
                await held.offered_tools(), outcome.message.model or "", await held.skills.told()
            ),
            context_limit=context_limit,
            covered=held.history.start,
        )
        tools = await held.runnable_tools()
        length = held.snapshot.chat.length
        narrowed = bool(message.calls) and bool(await held.skills.narrowing(length))
        owed = self._owed
        assert owed is not None
        responded = cmd.Respond(
            by=held.by,
            message=message,
            attempt=observer.attempt,
            previewed=observer.previewed,
            plans=self._plans(message, tools, narrowed=narrowed),
            tokens=owed.spent.tokens,
            cost=owed.spent.cost,
            bill=owed.bill,
        )
        try:
            if message.calls:
                await held.commit(responded)
            else:
                await self._commit_with(responded, await self._what_follows(message))
        except Moved:
            # If it was a stop, it keeps what the model had said, which is all of it.
            whole = message if outcome.message.parts else None
            self._partial = Stopped(cause=held.stop.cause or Cause.USER, message=whole, n=outcome.n)
            raise
        except StoreError:
            self._leave_owed()
            raise
        self._owed = None
        held.history.learn(held.snapshot, {length: message})
        return message

    def _spent(self, outcome: Completed | Stopped) -> Spent:
        held, model = self._held, outcome.model
        cost = held.agent.cost_of(model, outcome.usage, held.shared.models.facts)
        return Spent(model=model, tokens=_tokens(outcome.usage), cost=cost)

    def _leave_owed(self) -> None:
        """The store failed: it is counted with the response if that was committed after all, and else as cut off."""
        if self._owed is not None:
            owed, chat = self._owed, self._held.snapshot.chat
            self._held.shared.draws.leave(chat, SpendingKind.STOPPED, (owed.spent,), owed.drawn)
            self._owed = None

    async def enter_rest(self) -> None:
        """What an attempt took that no commit will tell of: a shutdown cut it off, or the chat is another's now."""
        if self._owed is not None:
            owed, self._owed = self._owed, None
            drawn = (owed.drawn,) if owed.drawn else ()
            await self._held.enter_spending(SpendingKind.STOPPED, (owed.spent,), drawn)

    async def _what_follows(self, message: Message) -> list[cmd.Command]:
        """After a response without calls: the end of the turn, or once more if it does not fit the output type."""
        held = self._held
        if any(queued.mode == "steer" for queued in held.snapshot.queue):
            return []  # it joins the turn with this response, and the model is next again
        end = cmd.FinishTurn(by=held.by)
        if held.agent.output is None:
            return [end]
        try:
            held.agent.output.read(message.answer)
        except OutputInvalid as problem:
            turn = await held.history.turn(held.snapshot)
            repairs = sum(earlier.synthetic is Synthetic.INVALID_OUTPUT for earlier in turn)
            ask = cmd.AskAgain(by=held.by, message=correction(new_id("msg"), problem, held.now))
            if repairs < REPAIRS_MAX:
                return [ask]
            return [ask, cmd.Fail(by=held.by, error=Failure(code=problem.code, message=str(problem)))]
        return [end]

    async def _commit_with(self, responded: cmd.Respond, follows: Sequence[cmd.Command]) -> None:
        """With what follows, in one commit, unless something joined the turn meanwhile."""
        held = self._held
        try:
            await held.commit(responded, *follows)
        except Moved:
            await held.look_again()
            if held.stop:
                raise
            await held.commit(replace(responded, by=held.by))

    def _plans(self, message: Message, tools: dict[str, Tool], *, narrowed: bool) -> tuple[cmd.PlannedCall, ...]:
        free = self._held.agent.limits.parallel_calls - len(self._held.bodies)
        plans: list[cmd.PlannedCall] = []
        for call in message.calls:
            plans.append(self._plan(call, tools, free=free > 0, narrowed=narrowed))
            free -= plans[-1].start
        return tuple(plans)

    def _plan(self, call: ToolCall, tools: dict[str, Tool], *, free: bool, narrowed: bool) -> cmd.PlannedCall:
        tool = tools.get(call.name)
        if tool is None or call.cut:
            return cmd.PlannedCall(id=call.call_id)
        hooked = any(hook.point == "before_tool" for hook in self._held.hooks)
        decision = self._held.decision_at_once(tool) if not narrowed else None
        guarded = hooked or decision is None or tool.needs_approval is not False or tool.delegate is not None
        return cmd.PlannedCall(
            id=call.call_id,
            replay=tool.replay,
            on_unknown=tool.on_unknown,
            start=not guarded and free and self._held.shared.trusted(),
            decision=decision.note if decision is not None else "",
        )

    # --- what a stop cut off ----------------------------------------------------------------------------

    async def commit_stop(self) -> None:
        """The partial response and an answer for every open call, in one commit."""
        held = self._held
        partial, attempt = await self._cut_off()
        finish = cmd.FinishStop(by=held.by, partial=partial, attempt=attempt, length=self._partial_length)
        if (owed := self._owed) is not None:
            tokens, cost = owed.spent.tokens, owed.spent.cost
            finish = replace(finish, tokens=tokens, cost=cost, bill=owed.bill)
        try:
            await held.commit(finish)
        except StoreError:
            self._leave_owed()
            raise
        self._partial = self._owed = None

    async def _cut_off(self) -> tuple[Message | None, int | None]:
        """What was streamed of the response: by this runner, or by one that died since."""
        chat, cause = self._held.snapshot.chat, self._held.snapshot.stop_cause
        if self._partial is not None:
            message = self._partial.message
            if message is not None:
                message = replace(message, stopped=cause)
            # The attempt is named even if nothing came of it: its preview ends with the stop.
            return message, attempt_id(chat.fence, self._attempts) if self._partial.n else None
        self._partial_length = chat.length
        deltas = [item for item in await self._unread(chat) if item.attempt is not None]
        if not deltas:
            return None, None
        last = max(item.attempt or 0 for item in deltas)
        parts = parts_of_deltas(decode_delta(item.body) for item in deltas if item.attempt == last)
        if not parts:
            return None, None
        message = Message(
            id=new_id("msg"),
            role=Role.ASSISTANT,
            parts=parts,
            created_at=self._held.now,
            stopped=cause,
        )
        return message, last

    async def _unread(self, chat: ChatRecord) -> list[Item]:
        """What is behind the chat's last journal entry: the pieces of an open attempt."""
        store, items = self._held.shared.store, list[Item]()
        page = await store.read_journal(chat.id, Cursor(seq=chat.seq))
        while page.items:
            items += page.items
            if not page.more:
                break
            page = await store.read_journal(chat.id, page.cursor)
        return items


def _tokens(usage: Usage | None) -> int:
    return usage.input_tokens + usage.output_tokens if usage is not None else 0


def _sampled(settings: Settings, sampling: Sampling | None) -> Settings:
    """The agent's settings, and over them what the turn's client asked for."""
    if sampling is None:
        return settings
    asked = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    if (wanted := sampling.output) is not None:
        asked["output"] = OutputSpec(
            name=wanted.name, schema=wanted.schema, strict=wanted.strict, any_object=wanted.any_object
        )
    return replace(settings, **{name: value for name, value in asked.items() if value not in (None, ())})


def _as_changed(request: Any, answer: Any) -> Any:
    return answer if isinstance(answer, Request) else request


class _Owed(Frozen):
    """What an attempt took, and by what it was let begin."""

    drawn: Drawn | None
    spent: Spent

    @property
    def bill(self) -> Bill:
        return bill_of((self.drawn,), (self.spent,)) if self.drawn is not None else NO_BILL


class _Watcher(Observer):
    """Tells the chat how a model call goes: deltas to the flusher, failed attempts to the journal."""

    def __init__(self, held: HeldChat, next_attempt: Callable[[], int], request: Request) -> None:
        self._held = held
        self._next_attempt = next_attempt
        self._request = request
        self._span = NO_SPAN
        self.drawn: Drawn | None = None  # for the attempt that is under way
        self._stream: DeltaStream | None = None
        self.previewed = False  # pieces of the last attempt may be in the store
        self._progress: ProgressNotes | None = None
        self._model = ""
        self.attempt = 0  # 0: none has begun since the last one ended
        self._asked: tuple[str, float] | None = None  # the model, and when; None: it has begun to answer

    async def attempt_wanted(self, n: int, model: Model) -> None:
        self.drawn = await self._held.draw(model, self._request)

    async def attempt_started(self, n: int, model: Model) -> None:
        await self._close_stream()
        self.attempt, self._model = self._next_attempt(), model.name
        self._asked = model.name, time.monotonic()
        self._span = self._held.spans.attempt(self.attempt, n, model, self._request)
        self._stream = self._held.shared.deltas.open(self._held.snapshot.chat, self.attempt)

    def delta(self, delta: Delta) -> None:
        if self._asked is not None:
            (model, asked_at), self._asked = self._asked, None
            held = self._held
            waited_s = time.monotonic() - asked_at
            held.shared.outcomes.first_token_s.add(waited_s, held.agent.name, model)
            self._span.set("holdfast.first_token_ms", round(waited_s * 1000))
        if self._stream is not None:
            self._held.shared.deltas.add(self._stream, delta)

    def progress(self, text: str) -> None:
        if self._progress is None:
            self._progress = ProgressNotes(self._held)
        self._progress.say(f"{text}\n")

    async def attempt_failed(self, failed: FailedAttempt) -> None:
        held = self._held
        span, self._span = self._span, NO_SPAN
        await self._close_stream()
        drawn, self.drawn = self.drawn, None
        lost = cmd.AttemptLost(
            by=held.by,
            attempt=self.attempt or self._next_attempt(),  # one that was not even let in has not begun
            model=failed.model,
            error=failed.error,
            code=failed.code,
            provider=failed.provider,
            status=failed.status,
            request_id=failed.request_id,
            retry_in_ms=failed.retry_in_ms,
            next_model=failed.next_model,
            duration_ms=failed.duration_ms,
            tokens=_tokens(failed.usage),
            cost=held.agent.cost_of(failed.model, failed.usage, held.shared.models.facts),
            bill=bill_of((drawn,)) if drawn is not None else NO_BILL,
        )
        held.spans.attempt_failed(span, failed, lost.cost)
        if failed.trace:
            held.keep_trace("model", failed.model, failed.error, failed.trace)
        self.attempt = 0
        try:
            await held.commit(lost)
        except Moved:
            # Stopped, or lost: the call's own stop ends it; the record of this attempt goes with it.
            spent = Spent(model=lost.model, tokens=lost.tokens, cost=lost.cost)
            await held.enter_spending(SpendingKind.LOST, (spent,), (drawn,) if drawn is not None else ())
            await held.look_again()
        except StoreError:
            spent = Spent(model=lost.model, tokens=lost.tokens, cost=lost.cost)
            held.shared.draws.leave(held.snapshot.chat, SpendingKind.LOST, (spent,), drawn)
            raise

    def ended(self, outcome: Completed | Stopped) -> None:
        held = self._held
        cost = held.agent.cost_of(outcome.model, outcome.usage, held.shared.models.facts)
        span, self._span = self._span, NO_SPAN
        if isinstance(outcome, Completed):
            held.spans.completed(span, outcome, cost)
        else:
            held.spans.stopped(span, outcome, cost)

    async def close(self) -> None:
        await self._close_stream()
        if self.drawn is not None:
            drawn, self.drawn = self.drawn, None
            parts = (self._cut_off(),) if self.attempt else ()  # cancelled from outside, or never begun
            await self._held.enter_spending(SpendingKind.LOST, parts, (drawn,))

    def _cut_off(self) -> Spent:
        held, usage = self._held, used_at_least(self._request)
        cost = held.agent.cost_of(self._model, usage, held.shared.models.facts)
        return Spent(model=self._model, tokens=_tokens(usage), cost=cost)

    async def _close_stream(self) -> None:
        self._span.end()  # only where the call was cancelled from outside is there one left
        self._span = NO_SPAN
        if self._progress is not None:
            progress, self._progress = self._progress, None
            if rest := await progress.rest():
                with suppress(Moved):  # the next commit meets the same
                    await self._held.commit(*rest)
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await self._held.shared.deltas.close(stream)
            self.previewed = stream.sent
