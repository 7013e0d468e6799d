"""What becomes of a delivery: the table of waits, what an answer means, the body, and the signature over it.

By Standard Webhooks: 2xx is success and nothing else is, a redirect is a failure, 410 says that the endpoint is not
wanted any more, 429, 502 and 504 that it is asked too much. An event keeps its id and its body over all attempts;
timestamp and signature are of the attempt.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.codec import encode
from holdfast.core.instants import iso
from holdfast.core.notices import Notice
from holdfast.core.records import Frozen
from holdfast.core.retry import RetryPolicy, retry_after_s

# Before the n-th attempt, from the end of the one before: three days in all.
WAITS_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
ATTEMPTS_MAX = len(WAITS_S)
JITTER = 0.1  # of a wait, on top of it: what failed together does not come back together
RETRY_AFTER_S_MAX = 86_400.0
THROTTLE_S = 30.0  # for which an endpoint that is asked too much is left alone, unless it says for how long
THROTTLED = frozenset({429, 502, 504})
GONE = 410
WAIT_S_MAX = RETRY_AFTER_S_MAX * (1 + JITTER)  # nothing waits for longer: what seems to, a clock was set back

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64  # as the specification has it

_POLICY = RetryPolicy(delay_max_s=RETRY_AFTER_S_MAX)


class Answer(Frozen):
    """Of one attempt. `status` None: there was none, and `error` says why."""

    status: int | None = None
    error: str = ""
    retry_after_s: float | None = None

    @property
    def taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def words(self) -> str:
        return self.error or f"it answered {self.status}"


class Taken(Frozen):
    """It is delivered."""


class Again(Frozen):
    """After `wait_ms`. With `throttle_ms` nothing else is sent to its endpoint for so long, either."""

    wait_ms: int
    throttle_ms: int = 0


class GivenUp(Frozen):
    """`gone`: the receiver says that the endpoint is no more. Else all attempts are used up."""

    gone: bool


Verdict = Taken | Again | GivenUp


def judge(answer: Answer, attempts: int, chance: float) -> Verdict:
    """After so many attempts, this one included. `chance` is from 0 to 1."""
    if answer.taken:
        return Taken()
    if answer.status == GONE:
        return GivenUp(gone=True)
    if attempts >= ATTEMPTS_MAX:
        return GivenUp(gone=False)
    asked_s = min(answer.retry_after_s or 0.0, RETRY_AFTER_S_MAX)
    wait_s = max(WAITS_S[attempts], asked_s) * (1 + JITTER * chance)
    throttle_s = (asked_s or THROTTLE_S) if answer.status in THROTTLED else asked_s
    return Again(wait_ms=int(wait_s * 1000), throttle_ms=int(throttle_s * 1000))


def asked_to_wait_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """What `Retry-After` says, in seconds or as a date."""
    return retry_after_s(headers, now_s, _POLICY)


def body_of(notice: Notice, links: Mapping[str, str] | None = None) -> bytes:
    """The same bytes for every attempt. `links`: where each open call can be answered, by its id."""
    data: dict[str, Any] = msgspec.json.decode(notice.data)
    if links:
        data["calls"] = [_with_link(call, links) for call in data.get("calls", ())]
    return encode({"type": notice.kind, "timestamp": iso(notice.at), "data": data})


def _with_link(call: dict[str, Any], links: Mapping[str, str]) -> dict[str, Any]:
    link = links.get(call["call_id"])
    return call if link is None else call | {"link": link}


def key_of(secret: str) -> bytes | None:
    """What a secret signs with; None where it is none that the specification allows."""
    if not secret.startswith(SECRET_PREFIX):
        return None
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX else None


def secret_of(key: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(key).decode()


def headers_of(notice_id: str, at_s: int, body: bytes, secrets: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Signed with each secret: while one takes over from another, both count."""
    signed = f"{notice_id}.{at_s}.".encode() + body
    signatures = [f"v1,{_mac(secret, signed)}" for secret in secrets]
    return (
        ("webhook-id", notice_id),
        ("webhook-timestamp", str(at_s)),
        ("webhook-signature", " ".join(signatures)),
    )


def _mac(secret: str, signed: bytes) -> str:
    key = key_of(secret)
    assert key is not None, "a secret is checked when it is stored"
    return base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
