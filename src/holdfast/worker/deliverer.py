"""A worker's part in telling endpoints: it sends what is due, some of it at once, and writes down what came of it.

Any worker does it, whatever its agents. What is under way is bounded, in all and for each endpoint, and an endpoint
that does not answer has one attempt at a time: it takes no room from the others. What a killed worker had under way
is due again a minute later, under the same id.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from holdfast.config import Config
from holdfast.core.approval_links import LINK_KINDS, ApprovalLink, token_of
from holdfast.core.deliveries import Again, Answer, GivenUp, Taken, Verdict, body_of, headers_of, judge
from holdfast.errors import NotFound
from holdfast.log_context import logger
from holdfast.store.contract import Store
from holdfast.store.deliveries import COUNTED_MAX, PENDING_MAX, Backlog, Delivery
from holdfast.store.notify.bell import DELIVERIES, WEBHOOKS, BellListener
from holdfast.store.webhooks import Webhook
from holdfast.system.clock import dice
from holdfast.worker.webhook_targets import WebhookTargets

log = logger("holdfast.webhooks")

SENDS_MAX = 64  # at once, of a worker
SENDS_PER_HOOK_MAX = 4
HOOKS_TOGETHER = 50  # that are looked at in one statement
LOOK_S = 5.0  # how often it looks, whatever it was told
NONE_LOOK_S = 15.0  # the same where there is no endpoint: another process may make one
SUM_S = 5.0  # how often it counts what waits
SHED_S = 60.0  # how often it looks for endpoints that too much waits for
AILING_MAX = 10_000
CLOSE_S = 3.0
FOR_GOOD_MS = 1 << 62


class Deliverer:
    def __init__(
        self,
        store: Store,
        config: Config,
        on_trouble: Callable[[str, Exception], None],
        chance: Callable[[], float] = dice.random,
    ) -> None:
        self._store = store
        self._targets = WebhookTargets(config.webhook_reach)
        self._public_url = config.public_url.rstrip("/")
        self._link_ms = int(config.approval_link_s * 1000)
        self._on_trouble = on_trouble
        self._chance = chance
        self._sends: dict[asyncio.Task[None], str] = {}  # with the endpoint of each
        self._ailing: dict[str, None] = {}  # endpoints whose last attempt from here failed
        self._after = ""  # the endpoint that was looked at last
        self._done = asyncio.Event()
        self._summed_s = self._shed_s = float("-inf")  # when it last did, by the loop's clock
        self.backlog = Backlog(0, 0, 0, None)  # when it was last counted
        self.oldest_pending_s = 0.0  # how old it was then
        self.attempts = 0
        self.delivered = 0
        self.failed_attempts = 0
        self.given_up = 0
        self.shed = 0

    async def run_forever(self) -> None:
        bell = self._store.bell
        with bell.listen(DELIVERIES) as deliveries, bell.listen(WEBHOOKS) as webhooks:
            while True:
                wait_s = LOOK_S
                self._done.clear()
                try:
                    wait_s = await self._look()
                except Exception as error:  # noqa: BLE001  a worker that tells nobody still drives its chats
                    self._on_trouble("deliveries_failed", error)
                # Where there is no endpoint, the end of a turn is nothing to look for.
                heard = (deliveries, webhooks) if self.backlog.active else (webhooks,)
                await self._wait(heard, wait_s * dice.uniform(0.8, 1.0))

    async def _wait(self, heard: Sequence[BellListener], wait_s: float) -> None:
        """For the next instant that something is due, a ring, or room."""
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(listener.wait(wait_s)) for listener in heard]
        waits.append(loop.create_task(self._done.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()
            await asyncio.wait(waits)

    async def _look(self) -> float:
        """Begin what is due, as far as there is room. How long until the next look, in seconds."""
        now_s = asyncio.get_running_loop().time()
        counted = not self.backlog.active or now_s - self._summed_s >= SUM_S
        if counted:
            await self.sum_up()
            self._summed_s = now_s
        if not self.backlog.active:
            return NONE_LOOK_S
        if not (self.backlog.pending if counted else await self._store.deliveries.any_pending()):
            return LOOK_S
        if self.backlog.pending >= COUNTED_MAX and now_s - self._shed_s >= SHED_S:
            await self.shed_some(PENDING_MAX)
            self._shed_s = now_s
        if await self._begin():
            return 0.0
        soonest = await self._store.deliveries.soonest()
        if soonest is None:
            return LOOK_S
        return min(LOOK_S, max(0.05, (soonest - self._store.now_ms()) / 1000))

    async def sum_up(self) -> None:
        """Count what waits, for who looks at the figures."""
        self.backlog = await self._store.deliveries.backlog()
        oldest_at = self.backlog.oldest_at
        self.oldest_pending_s = 0.0 if oldest_at is None else max(0.0, (self._store.now_ms() - oldest_at) / 1000)

    async def shed_some(self, pending_max: int) -> None:
        """What is more than so many of one endpoint is failed, the oldest first, so that what waits is bounded."""
        for webhook_id, count in (await self._store.deliveries.shed(pending_max)).items():
            self.shed += count
            about = {"webhook": webhook_id, "count": count}
            log.error("too much waits for an endpoint", extra={"action": "webhook.shed", **about})

    async def run_once(self) -> int:
        """All that is due now, to its end. How many attempts that were."""
        before = self.attempts
        while await self._begin() or self._sends:
            if self._sends:
                await asyncio.wait(list(self._sends), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
        return self.attempts - before

    async def close(self) -> None:
        """What is under way may end within CLOSE_S; the rest is due again when its reservation ends."""
        if self._sends:
            await asyncio.wait(list(self._sends), timeout=CLOSE_S)
        sends = list(self._sends)
        for send in sends:
            send.cancel()
        if sends:
            await asyncio.wait(sends, timeout=CLOSE_S)

    # --- which ------------------------------------------------------------------------------------------------------

    async def _begin(self) -> int:
        """How many attempts were begun. It goes on behind the endpoint where the last one ended, once around."""
        first, begun, around = self._after, 0, False
        while len(self._sends) < SENDS_MAX and not begun:
            hooks = await self._store.deliveries.due_hooks(self._after, HOOKS_TOGETHER)
            begun = await self._begin_for(hooks)
            if len(hooks) < HOOKS_TOGETHER and not begun:
                self._after = ""
                if around or not first:
                    break
                around = True
            elif around and self._after >= first:
                break
        return begun

    async def _begin_for(self, hooks: Sequence[Webhook]) -> int:
        begun = 0
        for hook in hooks:
            left = SENDS_MAX - len(self._sends)
            if left <= 0:
                break  # this one is the first when there is room again
            if (room := min(left, self._room_for(hook.id))) > 0:
                for delivery in await self._store.deliveries.due(hook.id, room):
                    begun += await self._begin_one(hook, delivery)
            self._after = hook.id
        return begun

    def _room_for(self, webhook_id: str) -> int:
        most = 1 if webhook_id in self._ailing else SENDS_PER_HOOK_MAX
        return most - self.sends_by_hook()[webhook_id]

    def sends_by_hook(self) -> Counter[str]:
        return Counter(self._sends.values())

    async def _begin_one(self, hook: Webhook, delivery: Delivery) -> int:
        """Who is cancelled here leaves what is reserved to its task: `close` waits for that."""
        loop = asyncio.get_running_loop()
        reserved: asyncio.Future[bool] = loop.create_future()
        task = loop.create_task(self._carry(hook, delivery, reserved))
        self._sends[task] = hook.id
        task.add_done_callback(self._sent)
        return int(await reserved)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        self._sends.pop(task, None)
        self._done.set()
        if not task.cancelled() and (error := task.exception()) is not None and isinstance(error, Exception):
            self._on_trouble("delivery_failed", error)

    # --- one of them ------------------------------------------------------------------------------------------------

    async def _carry(self, hook: Webhook, delivery: Delivery, reserved: "asyncio.Future[bool]") -> None:
        until_ms = None
        try:
            until_ms = await self._store.deliveries.reserve(delivery)
        finally:
            if not reserved.done():
                reserved.set_result(until_ms is not None)
        if until_ms is not None:
            await self._send(hook, delivery, until_ms)

    async def _send(self, hook: Webhook, delivery: Delivery, reserved_until: int) -> None:
        try:
            secrets = await self._store.webhooks.signing(hook.id)
        except NotFound:
            return  # it was removed meanwhile
        body = body_of(delivery.notice, await self._links(hook, delivery))
        now_ms = self._store.now_ms()
        headers = headers_of(delivery.notice_id, now_ms // 1000, body, secrets)
        self.attempts += 1
        answer = await self._targets.post(hook.url, headers, body, now_ms)
        verdict = judge(answer, delivery.attempts + 1, self._chance())
        self._tell(hook, delivery, answer, verdict)
        await self._settle(hook, delivery, reserved_until, answer, verdict)

    async def _links(self, hook: Webhook, delivery: Delivery) -> Mapping[str, str]:
        """Where each call can be answered that a person is asked about, by its id; the same at every attempt."""
        if not (hook.links and self._public_url and delivery.kind == "turn.waiting"):
            return {}
        key = await self._store.link_keys.newest()
        links = {}
        for call in msgspec.json.decode(delivery.data).get("calls", ()):
            if call["kind"] not in LINK_KINDS:
                continue  # a client's
            link = ApprovalLink(
                key_id=key.id,
                webhook_id=hook.id,
                chat_id=delivery.chat_id,
                life=delivery.life,
                call_id=call["call_id"],
                digest=call["digest"],
                expires_at=min(delivery.at + self._link_ms, call.get("expires_at") or FOR_GOOD_MS),
                kind=call["kind"],
            )
            links[link.call_id] = f"{self._public_url}/approvals/{token_of(link, key.key)}"
        return links

    async def _settle(
        self, hook: Webhook, delivery: Delivery, reserved_until: int, answer: Answer, verdict: Verdict
    ) -> None:
        deliveries = self._store.deliveries
        match verdict:
            case Taken():
                await deliveries.settle_taken(delivery, answer)
            case Again(wait_ms=wait_ms, throttle_ms=throttle_ms):
                if throttle_ms:
                    await self._store.webhooks.throttle(hook, self._store.now_ms() + throttle_ms)
                next_at = self._store.now_ms() + wait_ms
                await deliveries.settle_again(delivery, answer, reserved_until, next_at)
            case GivenUp(gone=gone):
                await deliveries.settle_given_up(delivery, answer, reserved_until)
                await self._disable(hook, delivery, answer, gone=gone)

    async def _disable(self, hook: Webhook, delivery: Delivery, answer: Answer, *, gone: bool) -> None:
        if gone:
            why, since_ms = "the receiver answered 410: it is not wanted there any more", FOR_GOOD_MS
        else:
            why, since_ms = (
                f"nothing got there in {delivery.attempts + 1} attempts; last: {answer.words}",
                delivery.at,
            )
        if await self._store.webhooks.give_up(hook, why[:500], since_ms):
            about = {"webhook": hook.id, "owner": hook.owner, "why": why}
            log.error("an endpoint was disabled", extra={"action": "webhook.disabled", **about})

    def _tell(self, hook: Webhook, delivery: Delivery, answer: Answer, verdict: Verdict) -> None:
        if isinstance(verdict, Taken):
            self.delivered += 1
            self._ailing.pop(hook.id, None)
            return
        self.failed_attempts += 1
        self.given_up += isinstance(verdict, GivenUp)
        self._ailing[hook.id] = None
        if len(self._ailing) > AILING_MAX:
            del self._ailing[next(iter(self._ailing))]
        about = {"webhook": hook.id, "event": delivery.notice_id, "attempt": delivery.attempts + 1}
        extra = {"action": "webhook.attempt_failed", **about, "status": answer.status, "error": answer.words}
        log.warning("a delivery failed", extra=extra)

    # --- figures, from any thread -----------------------------------------------------------------------------------

    def figures(self) -> dict[str, int | float]:
        with suppress(RuntimeError):  # it changed while it was counted
            return {
                "endpoints": self.backlog.active,
                "endpoints_disabled": self.backlog.disabled,
                "pending": self.backlog.pending,
                "pending_counted_max": COUNTED_MAX,
                "pending_of_one_max": PENDING_MAX,
                "oldest_pending_s": round(self.oldest_pending_s, 1),
                "sending": len(self._sends),
                "sending_max": SENDS_MAX,
                "sending_to_one": max(self.sends_by_hook().values(), default=0),
                "sending_to_one_max": SENDS_PER_HOOK_MAX,
                "endpoints_failing": len(self._ailing),
                "endpoints_failing_max": AILING_MAX,
                "attempts": self.attempts,
                "delivered": self.delivered,
                "failed_attempts": self.failed_attempts,
                "given_up": self.given_up,
                "shed": self.shed,
            }
        return {}
