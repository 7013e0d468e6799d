"""The server as a process: it listens, drives chats, and goes when told, with a word to every reader."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import uvicorn
from fastapi import FastAPI

from holdfast.app import App
from holdfast.errors import ConfigError
from holdfast.server.access import load_token
from holdfast.server.http import http_app
from holdfast.server.limits import HEAD_BYTES_MAX, BoundedProtocol
from holdfast.server.streams import Streams
from holdfast.system.disk import have_private_file, write_path
from holdfast.worker.process import Say, run_until_told, say_on_stderr
from holdfast.worker.worker import Worker

log = logging.getLogger("holdfast.http")

CLOSE_S = 5.0  # for requests that are being answered when the server goes
CONNECTIONS_MAX = 20_000
ADDRESS = "address"  # in the home: where the server listens that was started last


async def serve(app: App, *, worker: bool = True, say: Say = say_on_stderr) -> None:
    """Until SIGTERM or Ctrl-C, in the main thread: then it drains, and this returns. Raises ConfigError."""
    config = app.config
    token, made = load_token(config.home)
    listener = listen(config.host, config.port)
    url = url_of(listener)
    with contextlib.suppress(OSError):  # a convenience, for `holdfast login`
        have_private_file(str(Path(config.home) / ADDRESS))
        write_path(Path(config.home) / ADDRESS, f"{url}\n".encode())
    warn_of_strangers(config.host, say)
    async with app.open_patiently():
        service = Serving(app, http_app(app, token=token), listener, app.new_worker() if worker else None)
        service.ready = lambda: _welcome(say, url, token if made else None)
        await run_until_told(service, config.grace_s, say)


def _welcome(say: Say, url: str, token: str | None) -> None:
    say(f"listening on {url}")
    if token is not None:
        say(f"open {url}/login?token={token}")
        say("this link is shown once; `holdfast login` shows it again")


def listen(host: str, port: int) -> socket.socket:
    """Raises ConfigError with what to do about it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named. Without it a small answer on a kept connection waits
    # for the client's delayed acknowledgement: 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}. {_advice(error)}") from error
    return listener


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "Stop who does, or choose another port (--port, HOLDFAST_PORT; 0 is any free one)"
    if error.errno == errno.EACCES:
        return "Choose a port above 1023 (--port, HOLDFAST_PORT; 0 is any free one)"
    return "Name an address of this machine (--host, HOLDFAST_HOST; 127.0.0.1 is for this machine alone)"


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def warn_of_strangers(host: str, say: Say) -> None:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host != "localhost":
        say(
            f"warning: {host} is reachable from other machines, and this server speaks plain HTTP: put a proxy with "
            "TLS in front, and name its host in HOLDFAST_ALLOWED_HOSTS"
        )


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
        self._server = _Uvicorn(
            uvicorn.Config(
                api,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=int(CLOSE_S),
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None
        self.ready: Callable[[], None] = lambda: None

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
        self._pulse = asyncio.create_task(self._app.store.pulse.run_forever())  # also where no worker renews a lease
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._serving.done():
                await self._serving  # raises what went wrong
                raise ConfigError("the HTTP server ended while it started")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Readers first: they learn that they should come back while there is still a server to tell them."""
        self._streams.drain()
        self._server.should_exit = True
        jobs = [asyncio.ensure_future(self._stop_http())]
        if self._worker is not None:
            jobs.append(asyncio.ensure_future(self._worker.stop()))
        errors = [error for error in await asyncio.gather(*jobs, return_exceptions=True) if error is not None]
        if self._worker is not None:
            self._app.workers.remove(self._worker)
        if errors:
            raise errors[0]

    async def _stop_http(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
        if self._serving is not None:
            await asyncio.wait((self._serving,), timeout=CLOSE_S + 5.0)

    def waiting_for(self) -> str:
        return self._worker.waiting_for() if self._worker is not None else f"{self._streams.count} streams"
