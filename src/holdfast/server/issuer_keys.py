"""The public keys of the issuer of JWTs, fetched from it: what is known, how old it is, and when it is asked again.

A request whose key is known does not wait for the issuer, and one whose key is not waits for one fetch at most. There
is one fetch at a time, and no more than one in RETRY_S, whatever clients send. While the issuer answers, a key that
it has taken away is none here after GONE_S at the latest; while it does not, its last keys hold for KEPT_S.
"""

import asyncio
import logging
import ssl
from functools import cache
from typing import Annotated, Any

import httpcore2
import jwt
import msgspec
from msgspec import Meta, Struct

from holdfast import __version__
from holdfast.core.deadlines import ModelDeadlines
from holdfast.jwt_issuer import Algorithm, JwtIssuer, url_problem
from holdfast.models.http.transport import Endpoint, Transport
from holdfast.system.clock import Clock, SystemClock

log = logging.getLogger("holdfast.http")

FETCH_S = 5.0  # for all that one fetch asks for
FRESH_S = 300.0  # keys that are older are fetched anew, beside the requests that need them
GONE_S = 540.0  # where no request came for so long, the next one waits for the fetch
KEPT_S = 24 * 3600.0  # for which keys hold while the issuer cannot be asked
RETRY_S = 10.0  # from one fetch to the next
DOCUMENT_BYTES_MAX = 256 << 10
KEYS_MAX = 100
RSA_BITS_MIN = 2048
RSA_BITS_MAX = 8192  # verifying costs with the square of it

_DEADLINES = ModelDeadlines(connect_s=FETCH_S, first_byte_s=FETCH_S, silence_s=FETCH_S, call_s=FETCH_S)
_HEADERS = {"accept": "application/json", "accept-encoding": "identity", "user-agent": f"holdfast/{__version__}"}
_BY_KIND: dict[tuple[str, str], tuple[Algorithm, ...]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


class _Configuration(Struct):
    issuer: str
    jwks_uri: str


class _KeySet(Struct):
    keys: Annotated[list[dict[str, Any]], Meta(max_length=KEYS_MAX)]


Keys = dict[tuple[str, str], jwt.PyJWK]  # by id, which is empty where it has none, and algorithm


@cache
def _tls() -> ssl.SSLContext:
    """Reads some hundred certificates: once."""
    return httpcore2.default_ssl_context()


class IssuerKeys:
    def __init__(self, issuer: JwtIssuer, clock: Clock | None = None) -> None:
        self._issuer = issuer
        self._clock = clock or SystemClock()
        self._keys: Keys = {}
        self._read_ms: int | None = None  # both by boot time; None: never
        self._tried_ms: int | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """One that the issuer signs with. A token need not name it where it is the only one of its kind."""
        if self._since(self._tried_ms) > GONE_S or self._known(kid, algorithm) is None:
            if (fetching := self._fetch_again()) is not None:
                await asyncio.shield(fetching)
        elif self._since(self._read_ms) > FRESH_S:
            self._fetch_again()
        return self._known(kid, algorithm)

    def _known(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        if self._since(self._read_ms) > KEPT_S:
            return None
        if kid is not None:
            return self._keys.get((kid, algorithm))
        fitting = [key for (_, of), key in self._keys.items() if of == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    def _since(self, boot_ms: int | None) -> float:
        return (self._clock.boot_ms() - boot_ms) / 1000 if boot_ms is not None else float("inf")

    def _fetch_again(self) -> "asyncio.Task[None] | None":
        """The fetch that runs, or a new one; None: it is too early for that."""
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        if self._since(self._tried_ms) < RETRY_S:
            return None
        self._tried_ms = self._clock.boot_ms()
        self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        """What goes wrong is told, and changes nothing."""
        asked_ms = self._clock.boot_ms()
        try:
            async with asyncio.timeout(FETCH_S):
                keys = await self._read()
        except Exception as error:  # noqa: BLE001  whatever an issuer answers with, those whose key is known go on
            late = isinstance(error, TimeoutError)
            words = f"no answer within {FETCH_S:g} s" if late else str(error) or type(error).__name__
            log.warning("the issuer's keys cannot be read: %s", words, extra={"action": "jwt.keys_failed"})
            return
        if keys.keys() != self._keys.keys():
            log.info(
                "the issuer has %d keys now", len({kid for kid, _ in keys}), extra={"action": "jwt.keys_changed"}
            )
        self._keys, self._read_ms = keys, asked_ms

    async def _read(self) -> Keys:
        transport = Transport(connections_max=1, ssl_context=_tls())
        try:
            url = self._issuer.jwks_url or await self._found_url(transport)
            keys = msgspec.json.decode(await self._document(transport, url), type=_KeySet).keys
        finally:
            await transport.aclose()
        return keys_of(keys, self._issuer.algorithms)

    async def _found_url(self, transport: Transport) -> str:
        body = await self._document(transport, self._issuer.configuration_url)
        found = msgspec.json.decode(body, type=_Configuration)
        if found.issuer != self._issuer.issuer:
            raise ValueError(
                "its OpenID configuration is that of another issuer: compare the setting letter by letter"
            )
        if problem := url_problem(found.jwks_uri):
            raise ValueError(f"the jwks_uri of its OpenID configuration {problem}")
        return found.jwks_uri

    async def _document(self, transport: Transport, url: str) -> bytes:
        endpoint = Endpoint(url)
        async with transport.get(endpoint, _HEADERS, _DEADLINES) as exchange:
            if exchange.status != 200:
                raise ValueError(f"{endpoint.shown} answered with HTTP status {exchange.status}")
            return await exchange.read_whole(DOCUMENT_BYTES_MAX)


def keys_of(found: list[dict[str, Any]], allowed: tuple[Algorithm, ...]) -> Keys:
    """Those that verify signatures of the algorithms that are allowed. One that does not, or is broken, is passed
    over: an issuer may have keys for other things, too. Of several with one id the first counts.
    """
    keys: Keys = {}
    for entry in found:
        kid = entry.get("kid", "")
        if not isinstance(kid, str) or entry.get("use", "sig") != "sig" or "d" in entry:
            continue
        for algorithm in _algorithms_of(entry):
            if algorithm not in allowed or (kid, algorithm) in keys:
                continue
            try:
                key = jwt.PyJWK(entry, algorithm)
            except (jwt.PyJWTError, ValueError, TypeError):
                continue
            if entry["kty"] != "RSA" or RSA_BITS_MIN <= key.key.key_size <= RSA_BITS_MAX:
                keys[kid, algorithm] = key
    return keys


def _algorithms_of(entry: dict[str, Any]) -> tuple[Algorithm, ...]:
    """What its kind can be used with, and no more than its `alg`."""
    kind = (entry.get("kty"), entry.get("crv", ""))
    fitting = _BY_KIND.get(kind, ()) if all(isinstance(part, str) for part in kind) else ()  # type: ignore[arg-type]
    return tuple(algorithm for algorithm in fitting if entry.get("alg", algorithm) == algorithm)
