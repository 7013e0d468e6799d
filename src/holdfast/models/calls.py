"""The one path by which any model is called, for a chat's step or for anything else: attempts, waits, fallbacks.

What a failure means is decided in core/retry; here it is done. Every failed attempt is told to the observer before
anything else happens; the final error holds all of them. A stop ends any wait at once, and what a stream raises
because of it is no failure.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import assert_never

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.codec import encode, storable
from holdfast.core.compaction import BYTES_PER_TOKEN, MESSAGE_TOKENS, estimated, estimated_message
from holdfast.core.journal import Delta
from holdfast.core.records import Cause, Failure, Frozen, Message, Part, Role
from holdfast.core.retry import (
    RETRY,
    SIGNATURES,
    TABLE,
    Again,
    Amend,
    Decision,
    GiveUp,
    Kind,
    Onward,
    RetryPolicy,
    decide,
)
from holdfast.errors import (
    AdmissionTimeout,
    ConfigError,
    FirstByteTimeout,
    LostResult,
    ModelCallFailed,
    ProviderError,
)
from holdfast.ids import new_id
from holdfast.log_context import logger
from holdfast.models.assembler import Assembler
from holdfast.models.base import Alive, Model, Progress, Request, ResponseFinished, Usage
from holdfast.models.deadline_watch import Watch
from holdfast.models.providers import Providers
from holdfast.models.stream_guard import GuardedStream, GuardRound
from holdfast.stops import StopSignal
from holdfast.system.clock import Clock, SystemClock
from holdfast.tracebacks import traceback_text

GUARD_S = 1.0  # a model keeps its deadlines itself, close to the socket; one that does not is ended this much later

_log = logger(__name__)


class FailedAttempt(Frozen):
    """One try that came to nothing, and what follows: a wait (`retry_in_ms`), another model, or the end (neither)."""

    n: int  # 1, 2, … over all models of the call
    model: str
    provider: str
    code: str
    error: str
    status: int | None = None
    request_id: str | None = None
    retry_in_ms: int | None = None
    next_model: str | None = None
    streamed: bool = False  # clients may have seen something of it
    duration_ms: int = 0
    usage: Usage | None = None
    trace: str = ""  # of a model that broke: where
    advice: str = ""  # what to change, where that is known


class Completed(Frozen):
    """The response, perhaps without a word in it: a model may have nothing to say.

    `usage` is marked as estimated where the provider counted nothing: a budget has to end such a turn, too.
    """

    message: Message
    finished: ResponseFinished
    n: int  # the attempt it came from
    usage: Usage | None = None
    request_id: str | None = None
    failed: tuple[FailedAttempt, ...] = ()

    @property
    def model(self) -> str:
        return self.message.model or ""


class Stopped(Frozen):
    """The stop came first. `message` is what attempt `n` had streamed, marked with the cause; None: nothing.

    `usage` is what the attempt took as far as its provider had said, and else as we estimate it; None: none was sent.
    """

    cause: Cause
    message: Message | None = None
    n: int = 0  # the last attempt that began; 0: none did
    model: str = ""  # of the attempt that the stop cut off
    usage: Usage | None = None
    failed: tuple[FailedAttempt, ...] = ()


class Observer:
    """What is told how a call goes. These methods do nothing.

    The coroutines are awaited before the call goes on. A stop interrupts the first of them, and not the others.
    """

    async def attempt_wanted(self, n: int, model: Model) -> None:
        """Attempt `n` is next. What it raises ends the call, and is raised by it."""

    async def attempt_started(self, n: int, model: Model) -> None:
        """Attempt `n` has its slot and begins."""

    def delta(self, delta: Delta) -> None:
        """A piece of the response. Must not block: keep it, flush it elsewhere."""

    def progress(self, text: str) -> None:
        """Why nothing of the response is there yet. Must not block either."""

    async def attempt_failed(self, failed: FailedAttempt) -> None:
        """Attempt `failed.n` is over, and what it streamed is void. The wait, if any, begins when this returns."""


class Caller:
    """Calls models. One for all chats of an app: the providers' limits and cool-downs are in it."""

    def __init__(
        self,
        providers: Providers | None = None,
        *,
        policy: RetryPolicy = RETRY,
        clock: Clock | None = None,
        new_id: Callable[[str], str] = new_id,
    ) -> None:
        self.providers = Providers() if providers is None else providers
        self.policy = policy
        self.clock = SystemClock() if clock is None else clock
        self.guard_round = GuardRound()
        self.new_id = new_id

    async def call(
        self,
        models: Sequence[Model],
        request: Request,
        *,
        observer: Observer | None = None,
        stop: StopSignal[Cause] | None = None,
        policy: RetryPolicy | None = None,
    ) -> Completed | Stopped:
        """Ask the first model, then its fallbacks in order, until one answers.

        Raises `ModelCallFailed` with everything that went wrong. A cancellation that is not this `stop`'s passes.
        """
        if not models:
            raise ConfigError("a model call needs at least one model")
        return await _Call(
            self,
            models,
            request,
            observer or Observer(),
            StopSignal() if stop is None else stop,
            policy or self.policy,
        ).run()


class _Call:
    """One call, and its attempts so far."""

    def __init__(
        self,
        caller: Caller,
        models: Sequence[Model],
        request: Request,
        observer: Observer,
        stop: StopSignal[Cause],
        policy: RetryPolicy,
    ) -> None:
        self._caller = caller
        self._timing = caller.providers.timing
        self._models = models
        self._request = request
        self._observer = observer
        self._stop = stop
        self._policy = policy
        self._began_s = self._timing.now_s()
        self._n = 0
        self._failed: list[FailedAttempt] = []
        self._errors: list[ProviderError] = []
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()

    @property
    def _elapsed_s(self) -> float:
        return self._timing.now_s() - self._began_s

    async def run(self) -> Completed | Stopped:
        for position, model in enumerate(self._models):
            outcome = await self._ask(model, position)
            if outcome is not None:
                return outcome
        raise self._failure() from self._cause()

    async def _ask(self, model: Model, position: int) -> Completed | Stopped | None:
        """Attempts on one model. None: they failed, and the next model may do better."""
        known = self._caller.providers.unsupported(model.name)
        request = self._request
        if not known <= request.unsupported:
            request = replace(request, unsupported=request.unsupported | known)
        failures = 0
        while not self._stop:
            self._n += 1
            began_s = self._timing.now_s()
            assembler = Assembler(lambda: self._caller.new_id("call"), provider=model.provider)
            if request.attempt != failures + 1:
                request = replace(request, attempt=failures + 1)
            outcome = await self._attempt(model, request, assembler)
            if not isinstance(outcome, ProviderError):
                return outcome
            failures += 1
            decision = self._decide(outcome, request, failures, position)
            if TABLE[_kind(outcome)].cools:
                wait_s = decision.delay_s if isinstance(decision, Again) else outcome.retry_after_s
                self._caller.providers.get(model.provider).cool(quota_of(model), wait_s or self._policy.base_s)
            await self._record(model, request, outcome, decision, assembler, position, began_s)
            match decision:
                case Again(delay_s=delay_s):
                    with self._stop.scope():
                        await self._timing.sleep(delay_s)
                case Amend(parameter=parameter):
                    if parameter != SIGNATURES:  # that is a matter of this history
                        self._caller.providers.learn_unsupported(model.name, parameter)
                    request = replace(request, unsupported=request.unsupported | {parameter})
                case Onward():
                    return None
                case GiveUp():
                    raise self._failure() from self._cause()
                case _:
                    assert_never(decision)
        return self._stopped(None)

    def _decide(self, error: ProviderError, request: Request, failures: int, position: int) -> Decision:
        new = error.parameter is not None and error.parameter not in request.unsupported
        policy = self._policy
        return decide(
            _kind(error),
            failures=failures,
            attempts_max=policy.fallback_attempts_max if position else policy.attempts_max,
            elapsed_s=self._elapsed_s,
            jitter=self._timing.jitter(),
            retry_after_s=error.retry_after_s,
            amendable=error.parameter if new else None,
            policy=policy,
        )

    # --- one attempt

    async def _attempt(
        self, model: Model, request: Request, assembler: Assembler
    ) -> Completed | Stopped | ProviderError:
        provider = self._caller.providers.get(model.provider)
        admitted = False
        try:
            with self._stop.scope():
                await self._observer.attempt_wanted(self._n, model)
                # A fallback that begins when the time is spent still gets a moment to be let in.
                await provider.admit(
                    quota_of(model), max(self._policy.total_s - self._elapsed_s, self._policy.delay_max_s)
                )
                admitted = True
        except AdmissionTimeout as error:
            return error
        if not admitted:
            self._n -= 1  # it never began
            return self._stopped(None)
        try:
            await self._observer.attempt_started(self._n, model)
            return await self._stream(model, request, assembler)
        finally:
            provider.release()

    async def _stream(
        self, model: Model, request: Request, assembler: Assembler
    ) -> Completed | Stopped | ProviderError:
        try:
            with self._stop.scope():
                await self._pump(model, request, assembler)
        except ProviderError as error:
            if not self._stop:
                if self._task.cancelling() > self._cancelling:
                    raise asyncio.CancelledError from error  # our task was cancelled: the stream says it in its words
                return error
        except Exception as error:  # noqa: BLE001  a model from elsewhere that breaks its contract costs an attempt
            if not self._stop:
                broke = ProviderError(f"{model.name} broke: {type(error).__name__}: {error}", code=Kind.MODEL_BROKE)
                broke.__cause__ = error
                return broke
        if self._stop:
            return self._stopped(assembler, model, request)
        if assembler.finished is None:
            return LostResult(
                f"{model.name} ended its stream without finishing the response", request_id=assembler.request_id
            )
        message = self._message(assembler.parts(), assembler, model)
        usage = assembler.usage
        if usage is None:
            usage = estimated_usage(request, message.parts)
            message = replace(message, estimated_tokens=usage.input_tokens + usage.output_tokens)
        return Completed(
            message=message,
            finished=assembler.finished,
            n=self._n,
            usage=usage,
            request_id=assembler.request_id,
            failed=tuple(self._failed),
        )

    async def _pump(self, model: Model, request: Request, assembler: Assembler) -> None:
        watch = Watch(request.deadlines, model.name, asyncio.get_running_loop().time, GUARD_S)
        watch.sent(in_s=request.deadlines.connect_s)  # connecting is the model's own affair
        async with aclosing(model.stream(request)) as parts:
            with GuardedStream(self._caller.guard_round, watch, self._task, assembler) as guarded:
                async for part in parts:
                    delta = assembler.add(part)
                    if delta is not None:
                        self._observer.delta(delta)
                    elif isinstance(part, Progress):
                        self._observer.progress(part.text)
                    if assembler.finished is not None:
                        return
                    if guarded.last is None or not isinstance(part, Alive):
                        guarded.last = part

    # --- what is told of it

    def _message(
        self, parts: tuple[Part, ...], assembler: Assembler, model: Model, stopped: Cause | None = None
    ) -> Message:
        usage = assembler.usage
        reason = assembler.finished.reason if assembler.finished is not None and stopped is None else "stop"
        return Message(
            id=self._caller.new_id("msg"),
            role=Role.ASSISTANT,
            parts=parts,
            created_at=self._caller.clock.wall_ms(),
            model=model.name,
            input_tokens=None if usage is None else usage.input_tokens,
            output_tokens=None if usage is None else usage.output_tokens,
            cached_tokens=0 if usage is None else usage.cached_tokens,
            reasoning_tokens=0 if usage is None else usage.reasoning_tokens,
            stopped=stopped,
            finish=None if reason in ("stop", "tool_calls") else reason,
        )

    def _stopped(
        self, assembler: Assembler | None, model: Model | None = None, request: Request | None = None
    ) -> Stopped:
        cause = self._stop.cause
        assert cause is not None
        parts = () if assembler is None else assembler.partial()
        message = None
        if assembler is not None and model is not None and parts:
            message = self._message(parts, assembler, model, cause)
        return Stopped(
            cause=cause,
            message=message,
            n=self._n,
            model="" if model is None else model.name,
            usage=None if assembler is None or request is None else used_so_far(request, assembler),
            failed=tuple(self._failed),
        )

    async def _record(
        self,
        model: Model,
        request: Request,
        error: ProviderError,
        decision: Decision,
        assembler: Assembler,
        position: int,
        began_s: float,
    ) -> None:
        again = isinstance(decision, Again | Amend)
        broke = error.__cause__ if error.code == Kind.MODEL_BROKE else None
        following = self._models[position + 1].name if position + 1 < len(self._models) else None
        failed = FailedAttempt(
            n=self._n,
            model=model.name,
            provider=model.provider,
            code=error.code,
            error=storable(str(error)),
            status=error.status,
            request_id=error.request_id or assembler.request_id,
            retry_in_ms=round(1000 * decision.delay_s) if isinstance(decision, Again) else 0 if again else None,
            next_model=model.name if again else following if isinstance(decision, Onward) else None,
            streamed=not assembler.empty,
            duration_ms=round(1000 * (self._timing.now_s() - began_s)),
            usage=used_so_far(request, assembler) if _billed(error, assembler) else None,
            trace="" if broke is None else traceback_text(broke),
            advice=error.advice,
        )
        self._failed.append(failed)
        self._errors.append(error)
        self._tell(failed, broke)
        await self._observer.attempt_failed(failed)

    def _tell(self, failed: FailedAttempt, broke: BaseException | None) -> None:
        # Codes only: an error's text may quote what the model was saying. Of a model that broke, where it did.
        names = ("model", "code", "status", "request_id", "retry_in_ms", "next_model")
        known = {name: value for name in names if (value := getattr(failed, name)) is not None}
        if failed.next_model == failed.model:
            words, action, level = "is asked again", "model.retried", logging.INFO
        elif failed.next_model is not None:
            words, action, level = f"{failed.next_model} is asked instead", "model.fallback", logging.WARNING
        else:
            words, action, level = "no other is asked", "model.gave_up", logging.WARNING
        if failed.advice and failed.next_model != failed.model:
            known["advice"] = failed.advice
        extra = {"action": action, "attempt": failed.n, **known}
        text = "attempt %d on %s failed: %s; %s"
        _log.log(level, text, failed.n, failed.model, failed.code, words, extra=extra, exc_info=broke)

    def _failure(self) -> ModelCallFailed:
        last, count = self._errors[-1], len(self._errors)
        models = len({failed.model for failed in self._failed})
        how_often = "" if count == 1 else f" after {count} attempts" + (f" on {models} models" if models > 1 else "")
        return ModelCallFailed(
            f"the model call failed{how_often}: {last}", errors=tuple(self._errors), attempts=tuple(self._failed)
        )

    def _cause(self) -> Exception:
        if len(self._errors) == 1:
            return self._errors[0]
        return ExceptionGroup(f"all {len(self._errors)} attempts of a model call", self._errors)


def _billed(error: ProviderError, assembler: Assembler) -> bool:
    """Whether a provider bills an attempt that failed: it had taken the request, or was silent about it."""
    return (
        assembler.opened or not assembler.empty or assembler.usage is not None or isinstance(error, FirstByteTimeout)
    )


def used_so_far(request: Request, assembler: Assembler) -> Usage:
    """Of an attempt that did not come to its end. A provider bills what it has made so far, and often says so only in
    the end: what came counts, if that is more than what the provider has said of it.
    """
    known, parts = assembler.usage, assembler.partial()
    guess = estimated_usage(request, parts)
    made = guess.output_tokens - MESSAGE_TOKENS if parts else 0
    if known is None:
        return replace(guess, output_tokens=made)
    return known if made <= known.output_tokens else replace(known, output_tokens=made, estimated=True)


def used_at_least(request: Request, came: str = "") -> Usage:
    """Of an attempt that was cancelled, of which no more is known: its request was sent, and what came was made."""
    given = estimated_usage(request, ()).input_tokens
    return Usage(input_tokens=given, output_tokens=estimated(came), estimated=True)


def estimated_usage(request: Request, parts: tuple[Part, ...]) -> Usage:
    given = sum(map(estimated_message, request.messages))
    for tool in request.tools:
        schema = tool.schema if isinstance(tool.schema, Raw) else encode(tool.schema)
        given += estimated(tool.name) + estimated(tool.description) + len(bytes(schema)) // BYTES_PER_TOKEN
    made = estimated_message(Message(id="", role=Role.ASSISTANT, parts=parts))
    return Usage(input_tokens=given, output_tokens=made, estimated=True)


def _kind(error: ProviderError) -> Kind:
    try:
        return Kind(error.code)
    except ValueError:  # a model from elsewhere, with a word of its own
        return Kind.SERVER_ERROR


def _facts(attempt: FailedAttempt) -> str:
    status = "no status" if attempt.status is None else f"status {attempt.status}"
    if attempt.retry_in_ms is None:
        return f"{attempt.provider}, {status}"
    return f"{attempt.provider}, {status}, again after {attempt.retry_in_ms / 1000:g} s"


def failure_of(error: ModelCallFailed) -> Failure:
    """The record of it: the whole chain of causes, first cause last."""
    chain: list[str] = []
    for attempt, cause in reversed(list(zip(error.attempts, error.errors, strict=True))):
        assert isinstance(attempt, FailedAttempt)
        chain.append(f"attempt {attempt.n}, {attempt.model}: {attempt.code} ({_facts(attempt)}): {attempt.error}")
        below: BaseException | None = cause.__cause__
        while below is not None:
            chain.append(storable(f"attempt {attempt.n}, because of {type(below).__name__}: {below}"))
            below = below.__cause__
    return Failure(code=error.code, message=storable(str(error)), chain=tuple(chain), advice=storable(error.advice))


def quota_of(model: Model) -> str:
    """What a provider's pause is for: the model, and its key where that is not the one of all."""
    return str(getattr(model, "quota", model.name))
