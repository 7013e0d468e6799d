"""What all chats of a process share about a provider: how many may ask at once, and which model is to be left alone.

Owned by the app, one for all its chats; nothing here is global. All of it belongs to one event loop.
"""

import asyncio
from collections.abc import Mapping

from holdfast.errors import AdmissionTimeout
from holdfast.system.clock import Timing

CONCURRENCY_MAX = 64
SPREAD_S = 1.0  # when a cool-down ends, those who waited start within this time, not all at once
LEARNT_MAX = 1_000
PROVIDERS_MAX = 1_000  # more than that many addresses: those that are not in use are forgotten


class Provider:
    """One provider's slots and its cool-down."""

    def __init__(self, name: str, concurrency_max: int, timing: Timing) -> None:
        self.name = name
        self.concurrency_max = concurrency_max
        self._slots = asyncio.Semaphore(concurrency_max)
        self._timing = timing
        self._cool_until_s: dict[str, float] = {}  # by model: providers count each of them by itself
        self.in_flight = 0
        self.waiting = 0

    @property
    def in_use(self) -> bool:
        return bool(self.in_flight or self.waiting or self.cooling_s)

    @property
    def cooling_s(self) -> float:
        """How long it still wants to be left alone, by the model that has longest to wait."""
        return max(map(self.cooling_of, self._cool_until_s), default=0.0)

    def cooling_of(self, model: str) -> float:
        return max(0.0, self._cool_until_s.get(model, 0.0) - self._timing.now_s())

    def cool(self, model: str, for_s: float) -> None:
        """It said "too many": no chat asks that model for so long. A shorter time never ends a longer one."""
        now_s = self._timing.now_s()
        until_s = max(self._cool_until_s.get(model, 0.0), now_s + for_s)
        self._cool_until_s = {name: at for name, at in self._cool_until_s.items() if at > now_s} | {model: until_s}

    async def admit(self, model: str, within_s: float) -> None:
        """Get the right to ask once; `release` it afterwards. Raises `AdmissionTimeout`. First come, first served."""
        until_s = self._timing.now_s() + within_s
        self.waiting += 1
        try:
            await self._admit(model, until_s, within_s)
        finally:
            self.waiting -= 1
        self.in_flight += 1

    def release(self) -> None:
        self.in_flight -= 1
        self._slots.release()

    async def _admit(self, model: str, until_s: float, within_s: float) -> None:
        while True:
            while (wait_s := self.cooling_of(model)) > 0:
                left_s = until_s - self._timing.now_s()
                if left_s <= 0:
                    raise AdmissionTimeout(
                        f"{model} asked for a pause, again and again, for {within_s:g} s (total_s)", within_s
                    )
                wait_s += self._timing.jitter() * min(SPREAD_S, wait_s)
                await self._timing.sleep(min(wait_s, left_s))
            await self._take_slot(until_s, within_s)
            if self.cooling_of(model) <= 0:
                return
            self._slots.release()  # it began while we waited for the slot

    async def _take_slot(self, until_s: float, within_s: float) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # at once
            return
        try:
            async with asyncio.timeout(until_s - self._timing.now_s()):
                await self._slots.acquire()
        except TimeoutError as error:
            raise AdmissionTimeout(
                f"no free slot for {self.name} within {within_s:g} s (total_s): {self.in_flight} calls are in "
                f"flight, the limit is {self.concurrency_max}",
                within_s,
            ) from error


class Providers:
    """`limits`: how many calls at once, by provider; for the others it is `concurrency_max`."""

    def __init__(
        self,
        *,
        concurrency_max: int = CONCURRENCY_MAX,
        limits: Mapping[str, int] | None = None,
        timing: Timing = Timing(),  # noqa: B008  it is frozen
    ) -> None:
        self.timing = timing
        self._concurrency_max = concurrency_max
        self._limits = dict(limits or {})
        self._providers: dict[str, Provider] = {}
        self._unsupported: dict[str, frozenset[str]] = {}

    def get(self, name: str) -> Provider:
        provider = self._providers.get(name)
        if provider is None:
            if len(self._providers) >= PROVIDERS_MAX:
                self._providers = {name: other for name, other in self._providers.items() if other.in_use}
            limit = self._limits.get(name, self._concurrency_max)
            provider = self._providers[name] = Provider(name, limit, self.timing)
        return provider

    def unsupported(self, model: str) -> frozenset[str]:
        """The parameters that this model was seen to refuse: asked once, remembered for the life of the process."""
        return self._unsupported.get(model, frozenset())

    def learn_unsupported(self, model: str, parameter: str) -> None:
        if model in self._unsupported or len(self._unsupported) < LEARNT_MAX:
            self._unsupported[model] = self.unsupported(model) | {parameter}

    def figures(self) -> dict[str, dict[str, float]]:
        """For /health: each figure beside its limit."""
        return {
            name: {
                "in_flight": provider.in_flight,
                "waiting": provider.waiting,
                "concurrency_max": provider.concurrency_max,
                "cooling_s": round(provider.cooling_s, 3),
            }
            for name, provider in self._providers.items()
        }
