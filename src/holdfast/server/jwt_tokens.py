"""Bearer tokens that are JWTs of the issuer that the setting `jwt` names, and the principals that they stand for.

This module loads PyJWT and cryptography, so `http.py` imports it only where an issuer is configured. Nothing of a
token is told in any log, not even of its header: who sends one chose every letter of it.
"""

import hashlib
import logging
import re
from typing import Any

import jwt

from holdfast.core.codec import check_text
from holdfast.errors import InvalidInput
from holdfast.jwt_issuer import JwtIssuer
from holdfast.principals import NAME_CHARS_MAX, SCOPES, Principal
from holdfast.server.issuer_keys import IssuerKeys
from holdfast.system.clock import Clock, SystemClock

log = logging.getLogger("holdfast.http")

TOKEN_CHARS_MAX = 16 << 10
LEEWAY_S = 10.0  # by which the issuer's clock may be ahead: for `nbf` and `iat`; none counts behind its `exp`
EXP_S_MAX = 253_402_300_799  # the end of the year 9999
VERIFIED_S = 3.0  # how long a token that was verified is not verified again
VERIFIED_MAX = 10_000
_SHAPE = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)


def looks_like_jwt(token: str) -> bool:
    return len(token) <= TOKEN_CHARS_MAX and _SHAPE.fullmatch(token) is not None


class JwtTokens:
    """Verifying costs a tenth of a millisecond and more, so it is done once in some seconds for each token. Only
    those that were verified are remembered: who sends others takes no room from them.
    """

    def __init__(self, issuer: JwtIssuer, clock: Clock | None = None) -> None:
        self._issuer = issuer
        self._clock = clock or SystemClock()
        self._keys = IssuerKeys(issuer, self._clock)
        self._verified: dict[bytes, tuple[int, Principal]] = {}  # by digest, oldest first

    async def find(self, token: str) -> Principal | None:
        """None: no JWT, or none that can be verified. Whether it is in time still, the caller sees (`expires_at`)."""
        if not looks_like_jwt(token):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        verified_ms, principal = self._verified.get(digest, (0, None))
        if principal is not None and self._clock.boot_ms() - verified_ms < VERIFIED_S * 1000:
            return principal
        self._verified.pop(digest, None)
        verified_ms = self._clock.boot_ms()  # before the key is looked up
        try:
            principal = await self._verify(token)
        except (jwt.PyJWTError, InvalidInput) as error:
            log.debug("a JWT is refused: %s", type(error).__name__, extra={"action": "jwt.refused"})
            return None
        while len(self._verified) >= VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = (verified_ms, principal)
        return principal

    async def _verify(self, token: str) -> Principal:
        """Raises PyJWTError, InvalidInput."""
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in self._issuer.algorithms:
            raise jwt.InvalidAlgorithmError
        key = await self._keys.find(header.get("kid"), algorithm)
        if key is None:
            raise jwt.InvalidKeyError
        claims = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            issuer=self._issuer.issuer,
            audience=self._issuer.audience,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud"]},
        )
        return principal_of(claims, self._issuer)


def principal_of(claims: dict[str, Any], issuer: JwtIssuer) -> Principal:
    """Raises InvalidInput: also for one without an owner, who would see the chats of every owner."""
    owner, name = claims.get(issuer.owner_claim), claims.get(issuer.name_claim)
    if not isinstance(owner, str) or not owner:
        raise InvalidInput("owner", "is a text in the claim that names it")
    if not isinstance(name, str) or not name:
        name = owner
    for field, text in (("owner", owner), ("name", name)):
        check_text(field, text, bytes_max=4 * NAME_CHARS_MAX)
    exp = int(claims["exp"])
    if exp > EXP_S_MAX:
        raise InvalidInput("exp", "is a number of seconds since 1970")
    return Principal(name=name, owner=owner, scopes=scopes_of(claims, issuer), expires_at=exp * 1000)


def scopes_of(claims: dict[str, Any], issuer: JwtIssuer) -> frozenset[str]:
    """Those that holdfast knows. A claim that is neither a text nor a list has none."""
    if issuer.scope_claim not in claims:
        return frozenset(issuer.default_scopes)
    said = claims[issuer.scope_claim]
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    prefix = issuer.scope_prefix
    named = {word.removeprefix(prefix) for word in words if isinstance(word, str) and word.startswith(prefix)}
    return frozenset(named & SCOPES)
