"""A service as one of several processes: it joins its siblings before it starts, and says when it is ready."""

from collections.abc import Callable

from holdfast.store.notify.bell import WORK, Bell
from holdfast.system.supervised import Supervised, Tell
from holdfast.worker.process import Say, Service, run_until_told, say_on_stderr
from holdfast.worker.worker import Worker


class Member:
    """`tell` says how this process is, to whichever of them is asked."""

    def __init__(self, service: Service, place: Supervised, worker: Worker | None, bell: Bell, tell: Tell) -> None:
        self._service = service
        self._place = place
        self._bell = bell
        self._tell = tell
        if worker is not None:
            worker.siblings = place.siblings

    async def start(self) -> None:
        await self._place.serve(self._tell, lambda: self._bell.ring((WORK,)))
        await self._service.start()
        self._place.ready()

    async def stop(self) -> None:
        try:
            await self._service.stop()
        finally:
            self._place.close()

    def waiting_for(self) -> str:
        return self._service.waiting_for()


async def run_as_member(member: Member, place: Supervised, grace_s: float, say: Say = say_on_stderr) -> None:
    place.grace_s = grace_s
    await run_until_told(member, grace_s, said_by(place, say), supervised=True)


def said_by(place: Supervised, say: Say) -> Callable[[str], None]:
    return lambda text: say(f"process {place.number}: {text}")
