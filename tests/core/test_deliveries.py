"""What becomes of a delivery: the table of waits, what each answer means, and the signature over the body."""

import base64
import json

import pytest
import standardwebhooks
from msgspec import Raw

from holdfast.core.deliveries import (
    ATTEMPTS_MAX,
    RETRY_AFTER_S_MAX,
    THROTTLE_S,
    WAIT_S_MAX,
    WAITS_S,
    Again,
    Answer,
    GivenUp,
    Taken,
    asked_to_wait_s,
    body_of,
    headers_of,
    judge,
    key_of,
    secret_of,
)
from holdfast.core.notices import Notice

SECRET = secret_of(bytes(range(32)))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_success(status: int) -> None:
    assert judge(Answer(status=status), 10, 0.5) == Taken()


@pytest.mark.parametrize("status", [None, 100, 199, 300, 301, 304, 400, 401, 404, 409, 500, 503])
def test_all_else_is_tried_again_after_the_wait_of_the_table(status: int | None) -> None:
    for attempts in range(1, ATTEMPTS_MAX):
        wanted = Again(wait_ms=WAITS_S[attempts] * 1000, throttle_ms=0)
        assert judge(Answer(status=status, error="so"), attempts, 0.0) == wanted


def test_the_table_is_the_one_of_standard_webhooks() -> None:
    hours = (2, 5, 10, 14, 20, 24)
    assert (0, 5, 5 * 60, 30 * 60, *(hour * 3600 for hour in hours)) == WAITS_S


def test_the_last_attempt_is_the_last() -> None:
    assert isinstance(judge(Answer(status=500), ATTEMPTS_MAX - 1, 0.0), Again)
    assert judge(Answer(status=500), ATTEMPTS_MAX, 0.0) == GivenUp(gone=False)
    assert judge(Answer(error="no answer"), ATTEMPTS_MAX + 1, 0.0) == GivenUp(gone=False)


def test_410_ends_it_whichever_attempt_it_was() -> None:
    assert judge(Answer(status=410), 1, 0.0) == GivenUp(gone=True)
    assert judge(Answer(status=410), ATTEMPTS_MAX, 0.0) == GivenUp(gone=True)


def test_chance_only_adds_and_no_wait_is_longer_than_the_longest() -> None:
    waits = [judge(Answer(status=500), 9, chance) for chance in (0.0, 0.5, 1.0)]
    assert [wait.wait_ms for wait in waits if isinstance(wait, Again)] == [86_400_000, 90_720_000, 95_040_000]
    assert int(WAIT_S_MAX * 1000) == 95_040_000


@pytest.mark.parametrize("status", [429, 502, 504])
def test_who_is_asked_too_much_is_left_alone(status: int) -> None:
    assert judge(Answer(status=status), 1, 0.0) == Again(wait_ms=5_000, throttle_ms=int(THROTTLE_S * 1000))
    asked = Answer(status=status, retry_after_s=90.0)
    assert judge(asked, 1, 0.0) == Again(wait_ms=90_000, throttle_ms=90_000)


def test_retry_after_never_shortens_a_wait_and_has_a_limit() -> None:
    assert judge(Answer(status=503, retry_after_s=7.0), 4, 0.0) == Again(wait_ms=7_200_000, throttle_ms=7_000)
    long = judge(Answer(status=503, retry_after_s=1e9), 1, 0.0)
    assert long == Again(wait_ms=int(RETRY_AFTER_S_MAX * 1000), throttle_ms=int(RETRY_AFTER_S_MAX * 1000))


def test_retry_after_is_seconds_or_a_date() -> None:
    assert asked_to_wait_s({"retry-after": "120"}, 0.0) == 120
    assert asked_to_wait_s({"retry-after": "Wed, 14 Nov 2023 22:13:30 GMT"}, 1_700_000_000.0) == 10
    assert asked_to_wait_s({"retry-after": "99999999"}, 0.0) == RETRY_AFTER_S_MAX
    assert asked_to_wait_s({"retry-after": "soon"}, 0.0) is None


def test_the_reference_library_signs_the_same() -> None:
    headers = dict(headers_of("evt_1", 1_700_000_000, b'{"a":1}', [SECRET]))
    assert headers["webhook-signature"].startswith("v1,")
    reference = standardwebhooks.Webhook(SECRET)
    from datetime import UTC, datetime  # noqa: PLC0415  the core has none

    at = datetime.fromtimestamp(1_700_000_000, tz=UTC)
    assert headers["webhook-signature"] == reference.sign("evt_1", at, '{"a":1}')
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("evt_1", "1700000000")


def test_each_secret_signs_in_turn() -> None:
    other = secret_of(b"another key of more than 24 bytes")
    both = dict(headers_of("evt_1", 7, b"x", [SECRET, other]))["webhook-signature"]
    alone = [dict(headers_of("evt_1", 7, b"x", [secret]))["webhook-signature"] for secret in (SECRET, other)]
    assert both == " ".join(alone)
    assert alone[0] != alone[1]


@pytest.mark.parametrize("size", [23, 65])
def test_a_secret_of_another_size_is_none(size: int) -> None:
    assert key_of("whsec_" + base64.b64encode(bytes(size)).decode()) is None


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_not base64!", base64.b64encode(bytes(32)).decode()])
def test_what_is_no_secret_is_none(text: str) -> None:
    assert key_of(text) is None


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_secret_is_its_key(size: int) -> None:
    assert key_of(secret_of(bytes(size))) == bytes(size)


def test_a_body_is_type_timestamp_and_data_and_links_go_to_their_calls_alone() -> None:
    calls = '[{"call_id":"a","kind":"approval"},{"call_id":"b","kind":"client"}]'
    data = Raw(f'{{"chat_id":"c","calls":{calls}}}'.encode())
    notice = Notice(id="evt_1", kind="turn.waiting", owner="", at=1_700_000_000_123, data=data)
    plain = json.loads(body_of(notice))
    assert plain == {
        "type": "turn.waiting",
        "timestamp": "2023-11-14T22:13:20.123Z",
        "data": json.loads(bytes(data)),
    }
    told = json.loads(body_of(notice, {"a": "https://x/approvals/1"}))["data"]["calls"]
    assert told == [{"call_id": "a", "kind": "approval", "link": "https://x/approvals/1"}, plain["data"]["calls"][1]]
