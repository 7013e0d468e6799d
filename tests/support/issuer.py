"""An issuer of JWTs: a real HTTP server on loopback with its OpenID configuration and its keys, and tokens of it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

AUDIENCE = "holdfast"
CONFIGURATION = "/.well-known/openid-configuration"
KEYS = "/keys"


CURVES: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@cache
def private_key(kid: str, kind: str, bits: int) -> Any:
    """The same for the same names: an RSA key takes a while."""
    if kind == "RSA":
        return rsa.generate_private_key(65537, bits)
    return ec.generate_private_key(CURVES[kind]) if kind in CURVES else ed25519.Ed25519PrivateKey.generate()


class Signer:
    """A key pair of an issuer."""

    def __init__(self, kid: str, algorithm: str = "ES256", bits: int = 2048) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.private = private_key(kid, "RSA" if algorithm[:2] in ("RS", "PS") else algorithm, bits)

    @property
    def public(self) -> Any:
        return self.private.public_key()

    @property
    def jwk(self) -> dict[str, Any]:
        return self._jwk(self.public)

    @property
    def private_jwk(self) -> dict[str, Any]:
        """What no issuer should tell."""
        return self._jwk(self.private)

    def _jwk(self, key: Any) -> dict[str, Any]:
        written: Any = get_default_algorithms()[self.algorithm]
        return {**written.to_jwk(key, as_dict=True), "kid": self.kid, "use": "sig"}


class Issuer:
    """`answer` is sent in place of the keys, where it is set; with `hangs` nothing is. `jwks_uri` is what its OpenID
    configuration says.
    """

    def __init__(self) -> None:
        self.url = ""
        self.signers = [Signer("one")]
        self.fetched: list[str] = []  # paths
        self.answer: bytes | None = None
        self.status = 200
        self.jwks_uri: str | None = None
        self.hangs = False
        self.was_asked = asyncio.Event()
        self.released = asyncio.Event()

    def token(self, signer: Signer | None = None, *, without: str = "", header: Any = None, **claims: Any) -> str:
        signer = signer or self.signers[0]
        now = int(time.time())
        said = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600, **claims}
        said.pop(without, None)
        head = {"kid": signer.kid, **(header or {})}
        return jwt.encode(said, signer.private, signer.algorithm, {k: v for k, v in head.items() if v is not None})

    def document(self, path: str) -> bytes:
        if path == CONFIGURATION:
            return json.dumps({"issuer": self.url, "jwks_uri": self.jwks_uri or self.url + KEYS}).encode()
        if self.answer is not None:
            return self.answer
        return json.dumps({"keys": [signer.jwk for signer in self.signers]}).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            self.fetched.append(path)
            self.was_asked.set()
            if self.hangs:
                await self.released.wait()
            body = self.document(path)
            head = b"HTTP/1.1 %d told\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (self.status, len(body))
            writer.write(head + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Issuer"]:
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        server = await asyncio.start_server(self.serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.released.set()
            server.close()
            await server.wait_closed()
