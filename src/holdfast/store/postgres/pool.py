"""A bounded set of connections, made when needed, for the work that asks next.

No kind has all of them. Searches read whole tables, and a client's write waits for the holder of its chat; each kind
of work has a share of its own, together less than the whole, so that a read of one chat, which never waits for
anything, finds a connection whatever the others are doing.

psycopg_pool would do, but for one thing: while the server is away its users learn only that they waited in vain, not
that the password is wrong or the disk of the server full, and after a restart they wait for the pool's own pace.
"""

import asyncio
from collections.abc import Mapping

from holdfast.errors import StoreClosed, StoreTimeout, StoreUnavailable
from holdfast.store.postgres.connection import Connector, ServerConnection, Share

CONNECTIONS_MAX = 14
# Of each kind at once: "work" is what a worker does for all of its chats, "writes" what clients ask for.
SHARES: Mapping[Share, int] = {"reads": CONNECTIONS_MAX, "writes": 6, "work": 3, "lists": 2, "searches": 2}
IDLE_S_MAX = 300.0


class ConnectionPool:
    def __init__(self, connector: Connector, size: int = CONNECTIONS_MAX) -> None:
        self._connector = connector
        self._slots = asyncio.Semaphore(size)
        self._shares = {share: asyncio.Semaphore(min(most, size)) for share, most in SHARES.items()}
        self._idle: list[ServerConnection] = []
        self._busy: set[ServerConnection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.size = size
        self.waiting = 0

    @property
    def open_count(self) -> int:
        return len(self._idle) + len(self._busy)

    @property
    def busy_count(self) -> int:
        return len(self._busy)

    async def take(self, deadline: float, share: Share = "reads") -> ServerConnection:
        """Until `give`, it is the caller's alone. Raises StoreTimeout, or why no connection can be made."""
        if self._closed:
            raise StoreClosed("the store is not open")
        await self._take_slot(deadline, share)
        try:
            connection = await self._idle_or_new(deadline)
        except BaseException:
            self._give_slot(share)
            raise
        connection.deadline = deadline
        connection.share = share
        self._busy.add(connection)
        return connection

    async def _idle_or_new(self, deadline: float) -> ServerConnection:
        """A server that takes no more of us has let some in: one of those may be free before it takes another."""
        while True:
            connection = self._newest_idle()
            if connection is not None:
                return connection
            try:
                return await self._connector.connect(deadline, unless=lambda: bool(self._idle))
            except StoreUnavailable:
                if not self._idle:
                    raise

    async def _take_slot(self, deadline: float, share: Share) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._shares[share].acquire()
                try:
                    await self._slots.acquire()
                except BaseException:
                    self._shares[share].release()
                    raise
        except TimeoutError as error:
            raise StoreTimeout(
                f"{self._connector.address}: all {min(self.size, SHARES[share])} connections for {share} were busy "
                "until the deadline; is the server slow, or does this process ask for too much at once?"
            ) from error
        finally:
            self.waiting -= 1

    def _give_slot(self, share: Share) -> None:
        self._slots.release()
        self._shares[share].release()

    def _newest_idle(self) -> ServerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free:
                return connection
            self._discard(connection)
        return None

    def give(self, connection: ServerConnection) -> None:
        """Back to the others, if it is still good. Never waits."""
        self._busy.discard(connection)
        self._give_slot(connection.share)
        if self._closed or not connection.is_free:
            self._discard(connection)
            return
        now = asyncio.get_running_loop().time()
        connection.idle_since = now
        self._idle.append(connection)
        # The oldest is the one that has not been needed for longest.
        if now - self._idle[0].idle_since > IDLE_S_MAX:
            self._discard(self._idle.pop(0))

    def drop_idle(self) -> None:
        """After a connection was lost: the others were most likely lost with it."""
        idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)

    def _discard(self, connection: ServerConnection) -> None:
        task = asyncio.get_running_loop().create_task(connection.discard())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """What is still held is closed when it is given back, at its deadline at the latest."""
        self._closed = True
        self.drop_idle()
        if self._closing:
            await asyncio.wait(self._closing, timeout=1)
