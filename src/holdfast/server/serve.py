"""The server as a process: it listens, drives chats, and goes when told, with a word to every reader."""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import CLOSE_HEADER

from holdfast.app import App
from holdfast.config import Config
from holdfast.errors import ConfigError, StoreError
from holdfast.server.access import load_token
from holdfast.server.addresses import noted
from holdfast.server.http import http_app
from holdfast.server.limits import HEAD_BYTES_MAX, BoundedProtocol, Room, protocol_for
from holdfast.server.listening import listen, passed_listener, url_of, warn_of_strangers
from holdfast.server.process_health import process_diagnosis, process_verdict
from holdfast.server.sessions import link_of, new_link_code
from holdfast.server.streams import Streams
from holdfast.system.supervised import Supervised
from holdfast.worker.member import Member, run_as_member
from holdfast.worker.process import Say, run_until_told, say_on_stderr
from holdfast.worker.worker import Worker

log = logging.getLogger("holdfast.http")

CLOSE_S = 10.0  # for requests that are being answered when the server goes
FILES_MAX = 65_536  # open files that a server asks for, where the system lets it
FILES_RESERVE = 256  # of them, for database, files and children
ACCEPT_LOG_S = 10.0


async def serve(app: App, *, worker: bool = True, say: Say = say_on_stderr, place: Supervised | None = None) -> None:
    """Until SIGTERM or Ctrl-C, in the main thread: then it drains, and this returns. Raises ConfigError.

    `place`: the one that this process has among several, which listen on one socket.
    """
    config = app.config
    token, _ = load_token(config.home)
    listener = _listener(config, place)
    url = url_of(listener)
    if place is None or place.first:
        warn_of_strangers(config.host, say)
    async with app.open_patiently():
        link = await _first_link(app, url, token) if place is None or place.first else None
        service = Serving(app, http_app(app), listener, app.new_worker() if worker else None)
        if place is None or place.first:
            service.ready = lambda: _welcome(say, url, link)
        with noted(config, url):
            if place is None:
                await run_until_told(service, config.grace_s, say)
            else:
                # The supervisor ends who takes much longer than this; a lame duck may take longer than the grace.
                leave_s = max(config.grace_s, config.lame_duck_s)
                await run_as_member(service.joining(place), place, leave_s, say)


def _listener(config: Config, place: Supervised | None) -> socket.socket:
    if place is not None:
        return place.listener(config.host, config.port, reuse_port=config.reuse_port)
    return passed_listener() or listen(config.host, config.port, reuse_port=config.reuse_port)


async def _first_link(app: App, url: str, token: str) -> str | None:
    """Until a browser has logged in, a person at the terminal is shown how. Elsewhere standard error may be a log."""
    with contextlib.suppress(StoreError):
        if sys.stderr.isatty() and not await app.store.tokens.page(kind="session", limit=1):
            return link_of(url, await new_link_code(app.store, token))
    return None


def _welcome(say: Say, url: str, link: str | None) -> None:
    say(f"listening on {url}")
    if link is not None:
        say(f"open {link}")
        say("the link works once; `holdfast login` makes another")
    else:
        say("`holdfast login` makes a link for a browser")


def connections_max(wanted: int) -> int:
    """As many as there are files for. Raises the limit that this process has set itself, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    files = FILES_MAX if soft == resource.RLIM_INFINITY else soft
    return max(1, min(wanted, files - min(FILES_RESERVE, files // 2)))


def _bound_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Where no file is left for a connection, asyncio tells of each one that waits, again every second: so many lines
    filled disks. One line in ten seconds says it as well.
    """
    before = loop.get_exception_handler()
    told_at = -ACCEPT_LOG_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told_at
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            if time.monotonic() - told_at < ACCEPT_LOG_S:
                return
            told_at = time.monotonic()
            log.error("connections wait: %s", error, extra={"action": "http.accept"})
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are heard in one place, worker/process.py


class Serving:
    """HTTP and, if there is one, a worker: started together, drained together."""

    def __init__(self, app: App, api: FastAPI, listener: socket.socket, worker: Worker | None) -> None:
        self._app = app
        self._listener = listener
        self._worker = worker
        self._streams = cast(Streams, api.state.streams)
        self._room = Room(connections_max(app.config.connections_max))
        self._streams.connections = self._room
        self._server = _Uvicorn(
            uvicorn.Config(
                api,
                http=protocol_for(self._room),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                timeout_graceful_shutdown=int(CLOSE_S),
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None
        self.ready: Callable[[], None] = lambda: None

    def joining(self, place: Supervised) -> Member:
        """This server as one of several processes: each tells of all of them."""
        self._streams.place = place
        return Member(self, place, self._worker, self._app.store.bell, self._tell)

    def _tell(self, detailed: bool) -> dict[str, Any]:
        return process_diagnosis(self._app, self._streams) if detailed else process_verdict(self._app, self._streams)

    async def start(self) -> None:
        if self._worker is not None:
            await self._worker.start()
            self._app.workers.append(self._worker)
        try:
            await self._listen()
        except BaseException:
            await self.stop()
            raise
        self.ready()

    async def _listen(self) -> None:
        _bound_accept_errors(asyncio.get_running_loop())
        self._pulse = asyncio.create_task(self._app.store.pulse.run_forever())  # also where no worker renews a lease
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._serving.done():
                await self._serving  # raises what went wrong
                raise ConfigError("the HTTP server ended while it started")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """HTTP and the worker at the same time, each within its own bound."""
        jobs = [asyncio.ensure_future(self._stop_http())]
        if self._worker is not None:
            jobs.append(asyncio.ensure_future(self._worker.stop()))
        errors = [error for error in await asyncio.gather(*jobs, return_exceptions=True) if error is not None]
        if self._worker is not None:
            self._app.workers.remove(self._worker)
        if errors:
            raise errors[0]

    def _say_close(self) -> None:
        """With every answer from now on."""
        config, state = self._server.config, self._server.server_state
        config.encoded_headers = [*config.encoded_headers, CLOSE_HEADER]
        state.default_headers = [*state.default_headers, CLOSE_HEADER]
        for connection in state.connections:
            cast(BoundedProtocol, connection).drain()

    async def _stop_http(self) -> None:
        """First it only says that it goes, and is a server otherwise: load balancers take it out, clients of kept
        connections come back on others. Then readers: they learn that they should come back while there is still a
        server to tell them.
        """
        self._streams.going = True
        self._say_close()
        if self._server.started:
            await asyncio.sleep(self._app.config.lame_duck_s)
        self._streams.drain()
        self._server.should_exit = True
        if self._pulse is not None:
            self._pulse.cancel()
        if self._serving is not None:
            await asyncio.wait((self._serving,), timeout=CLOSE_S + 5.0)

    def waiting_for(self) -> str:
        return self._worker.waiting_for() if self._worker is not None else f"{self._streams.shares.count} streams"
