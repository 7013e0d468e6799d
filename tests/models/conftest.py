"""Models on a server of the test's own, with deadlines short enough to wait for."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.core.deadlines import ModelDeadlines
from holdfast.core.records import Message, Role, Text
from holdfast.models.base import Model, Request
from holdfast.models.resolve import Models
from tests.support.chat_server import ChatServer, Reply

KEY = "sk-very-secret-0123456789"

# Long enough for a busy machine; a test of a deadline shortens that one. `ENOUGH_S`: what it shortens it to.
CALM = ModelDeadlines(connect_s=20.0, first_byte_s=20.0, silence_s=20.0, call_s=40.0, after_finish_s=0.3)
ENOUGH_S = 0.3

Serve = Callable[..., Awaitable[ChatServer]]


@pytest.fixture
async def models() -> AsyncIterator[Models]:
    made = Models({"OPENAI_API_KEY": KEY, "COMPATIBLE_API_KEY": KEY})
    yield made
    await made.aclose()


@pytest.fixture
async def serve(models: Models) -> AsyncIterator[Serve]:
    """`server = await serve(reply, …)`; the model on it is `model_on(server)`."""
    servers: list[ChatServer] = []

    async def start(*replies: Reply) -> ChatServer:
        server = ChatServer(*replies)
        servers.append(await server.__aenter__())
        return server

    yield start
    await models.aclose()
    for server in servers:
        await server.__aexit__(None, None, None)


@pytest.fixture
def model_on(models: Models) -> Callable[[ChatServer], Model]:
    return lambda server: models.get(f"compatible:m@{server.url}")


def asking(text: str = "hi", *, deadlines: ModelDeadlines = CALM) -> Request:
    return Request(messages=[Message(id="u", role=Role.USER, parts=(Text(text=text),))], deadlines=deadlines)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that nobody signed, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so there is no certificate to serve with")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


@pytest.fixture
def trusting(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


@pytest.fixture
def serving(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    return context


async def until(condition: Callable[[], bool]) -> None:
    """For what has no event to wait for, such as a count of files."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
