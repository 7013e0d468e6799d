"""An issuer of JWTs whose bearers are let in, as it is declared: in code, in `holdfast.toml`, in the environment.

    [jwt]
    issuer = "https://login.example.com/"
    audience = "holdfast"

Plain data; nothing here connects. `server/issuer_keys.py` does, `server/jwt_tokens.py` verifies.
"""

import ipaddress
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from msgspec import Struct, structs

from holdfast.errors import ConfigError
from holdfast.principals import OWN_SCOPES, SCOPES

# Signed with a key that the issuer alone has. With HS256 and its like, who can verify a token can make one.
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]  # fmt: skip
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


class JwtIssuer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose JWTs are tokens of this server, and what their claims say.

    `issuer` and `audience` are what `iss` and `aud` must say. `jwks_url`: where its keys are; empty: where its OpenID
    configuration says. `algorithms`: those that a token may be signed with.

    `owner_claim` names whose chats a token sees, and a token without it is none; `name_claim` who asks, in audit
    lines; without it that is the owner. `scope_claim` holds scopes, as a text with spaces or as a list: those count
    that begin with `scope_prefix` and are holdfast's behind it. `default_scopes` are for tokens without that claim.
    """

    issuer: str
    audience: str
    jwks_url: str = ""
    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    owner_claim: str = "sub"
    name_claim: str = "sub"
    scope_claim: str = "scope"
    scope_prefix: str = ""
    default_scopes: tuple[str, ...] = tuple(sorted(OWN_SCOPES))

    def __post_init__(self) -> None:
        for field in ("algorithms", "default_scopes"):
            if isinstance(value := getattr(self, field), list | set | frozenset):
                structs.force_setattr(self, field, tuple(value))
        if problem := self._problem():
            raise ConfigError(f"jwt: {problem}")

    def _problem(self) -> str | None:
        for field in self.__struct_fields__:
            wanted: Any = tuple if field in ("algorithms", "default_scopes") else str
            if not isinstance(getattr(self, field), wanted):
                return f"{field} is a {'list of texts' if wanted is tuple else 'text'}"
        for field in ("issuer", "audience", "owner_claim", "name_claim", "scope_claim"):
            if not getattr(self, field).strip():
                return f"{field} is empty"
        if problem := url_problem(self.jwks_url or self.issuer):
            if self.jwks_url:
                return f"jwks_url {problem}"
            return f"issuer {problem}; if it is no address, say with jwks_url where its keys are"
        if not self.algorithms:
            return f"algorithms names none; known are {', '.join(ALGORITHMS)}"
        for algorithm in self.algorithms:
            if algorithm not in ALGORITHMS:
                return f"algorithms has {algorithm!r}, which is none of {', '.join(ALGORITHMS)}"
        for scope in self.default_scopes:
            if scope not in SCOPES:
                return f"default_scopes has {scope!r}, which is none of {', '.join(sorted(SCOPES))}"
        return None

    @property
    def configuration_url(self) -> str:
        """Where its OpenID configuration is (OpenID Connect Discovery 1.0, section 4)."""
        return self.issuer.rstrip("/") + "/.well-known/openid-configuration"


def url_problem(url: str) -> str | None:
    """Why no keys are fetched from there. Who can change them on their way can be anyone here."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or " " in url:
        return "must look like https://host/path"
    if parts.username is not None or parts.password is not None:
        return "must not hold a user name or password"
    if parts.scheme == "http" and not _is_loopback(host):
        return "must begin with https://: only on this machine http is enough"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
