"""What a failed model call is, and what follows from it: the whole policy, row by row."""

import datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import (
    RETRY,
    TABLE,
    Again,
    Amend,
    ErrorFields,
    GiveUp,
    Kind,
    Onward,
    RetryPolicy,
    classify,
    decide,
    retry_after_s,
    retry_delay_s,
    unsupported_parameter,
)

NOW_S = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


def test_the_table_has_a_row_for_every_kind_and_says_what_the_docs_say() -> None:
    assert set(TABLE) == set(Kind)
    retried = {kind for kind, row in TABLE.items() if row.retried}
    assert retried == {
        Kind.RATE_LIMIT,
        Kind.OVERLOADED,
        Kind.SERVER_ERROR,
        Kind.TIMEOUT,
        Kind.CONNECTION,
        Kind.LOST_RESULT,
    }
    only_elsewhere = {kind for kind, row in TABLE.items() if row.fallback and not row.retried}
    assert only_elsewhere == {
        Kind.PAYMENT,
        Kind.AUTHENTICATION,
        Kind.REGION,
        Kind.NOT_FOUND,
        Kind.MODEL_BROKE,
    }
    assert {kind for kind, row in TABLE.items() if row.cools} == {Kind.RATE_LIMIT}
    assert {kind for kind, row in TABLE.items() if row.amended} == {Kind.UNSUPPORTED_PARAMETER}


TOO_LARGE = "Request too large for m on tokens per min (TPM): Limit 30000, Requested 342389."


@pytest.mark.parametrize(
    ("status", "fields", "kind"),
    [
        (429, {}, "rate_limit"),
        (429, {"code": "rate_limit_exceeded"}, "rate_limit"),
        (429, {"code": "insufficient_quota"}, "payment"),  # OpenAI: the account is empty
        (429, {"type": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota"}, "rate_limit"),  # Google
        (402, {}, "payment"),
        (403, {"code": "unsupported_country_region_territory", "type": "request_forbidden"}, "region"),  # OpenAI
        (
            400,
            {"type": "FAILED_PRECONDITION", "message": "User location is not supported for the API use."},
            "region",
        ),
        (400, {"message": "Your credit balance is too low to access the API"}, "payment"),  # Anthropic
        (529, {"type": "overloaded_error"}, "overloaded"),  # Anthropic
        (529, {}, "overloaded"),
        (503, {}, "overloaded"),
        (200, {"type": "overloaded_error"}, "overloaded"),
        (500, {}, "server_error"),
        (502, {}, "server_error"),
        (520, {}, "server_error"),
        (599, {"type": "invalid_request_error"}, "server_error"),
        (504, {}, "timeout"),
        (408, {}, "timeout"),
        (401, {}, "authentication"),
        (403, {"type": "permission_error"}, "authentication"),
        (404, {"code": "model_not_found"}, "not_found"),
        (404, {}, "not_found"),
        (400, {"code": "context_length_exceeded"}, "context_too_long"),
        (400, {"message": "This model's maximum context length is 8192 tokens."}, "context_too_long"),
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens"}, "context_too_long"),
        (400, {"type": "exceed_context_size_error"}, "context_too_long"),  # llama.cpp
        (
            400,
            {"message": "This model's maximum prompt length is 131072 but the request contains 136973 tokens."},
            "context_too_long",
        ),  # xAI
        (400, {"message": "Invalid request: Your request exceeded model token limit: 262144"}, "context_too_long"),
        (
            400,
            {"message": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]"},
            "context_too_long",
        ),  # DashScope
        (400, {"code": "1261", "message": "Prompt exceeds max length"}, "context_too_long"),  # Z.ai
        (400, {"code": "invalid_encrypted_content"}, "unsupported_parameter"),
        (429, {"code": "rate_limit_exceeded", "type": "tokens", "message": TOO_LARGE}, "context_too_long"),  # OpenAI
        (413, {"code": "rate_limit_exceeded", "type": "tokens", "message": TOO_LARGE}, "context_too_long"),  # Groq
        (429, {"code": "rate_limit_exceeded", "type": "tokens", "message": "Rate limit reached for m"}, "rate_limit"),
        (400, {"message": "You have reached your specified API usage limits."}, "payment"),  # Anthropic
        (413, {"type": "request_too_large"}, "context_too_long"),
        (400, {"code": "content_filter"}, "refused"),
        (400, {"code": "content_policy_violation"}, "refused"),
        (400, {"code": "unsupported_parameter", "param": "max_tokens"}, "unsupported_parameter"),
        (400, {"code": "unsupported_value", "param": "temperature"}, "unsupported_parameter"),
        (400, {"message": "Unrecognized request argument supplied: parallel_tool_calls"}, "unsupported_parameter"),
        (400, {"message": "property 'seed' is unsupported"}, "unsupported_parameter"),  # Groq
        (400, {"message": "'stop' is not supported with this model."}, "unsupported_parameter"),
        (400, {"message": "messages[0].role is wrong"}, "bad_request"),
        (400, {}, "bad_request"),
        (422, {}, "bad_request"),
        (418, {}, "bad_request"),
        # in the middle of a stream there is no status
        (None, {}, "server_error"),
        (None, {"type": "overloaded_error"}, "overloaded"),
        (None, {"code": "429"}, "rate_limit"),  # OpenRouter puts the upstream's status there
        (None, {"code": "502"}, "server_error"),
        (None, {"message": "Provider is overloaded"}, "overloaded"),
        (None, {"code": "context_length_exceeded"}, "context_too_long"),
    ],
)
def test_an_error_is_classified_by_its_words_and_its_status(
    status: int | None, fields: dict[str, str], kind: str
) -> None:
    assert classify(status, ErrorFields(**fields)) == kind


@given(
    st.one_of(st.none(), st.integers(100, 999)),
    st.builds(ErrorFields, message=st.text(), code=st.text(), type=st.text(), param=st.text()),
)
def test_anything_at_all_is_classified(status: int | None, fields: ErrorFields) -> None:
    assert classify(status, fields) in TABLE


@pytest.mark.parametrize(
    ("message", "parameter"),
    [
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead.",
            "max_tokens",
        ),
        ("Unsupported value: 'temperature' does not support 0.2 with this model.", "temperature"),
        ("Unrecognized request argument supplied: stream_options", "stream_options"),
        ("Unknown parameter: 'seed'.", "seed"),
        ("property 'reasoning_effort' is unsupported", "reasoning_effort"),
        ("`temperature` and `top_p` cannot both be specified for this model. Please use only one.", "top_p"),
        ("`temperature` is deprecated for this model.", "temperature"),
        ("tools.0.custom.eager_input_streaming: Extra inputs are not permitted", "eager_input_streaming"),
        ("top_p: Extra inputs are not permitted", "top_p"),
        ("Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.", "tool_call_id"),
        ("messages.3.content.0: Invalid `signature` in `thinking` block", "signatures"),
        ("You are not allowed to use max_tokens", None),
    ],
)
def test_the_unsupported_parameter_is_read_from_the_message(message: str, parameter: str | None) -> None:
    assert unsupported_parameter(ErrorFields(message=message)) == parameter


def test_a_long_hostile_message_is_read_in_no_time() -> None:
    """A pattern that backtracks holds the GIL for seconds on such a text [trinity#1661]."""
    for text in ("unknown parameter ", "unsupported parameter: '", "parameter a", "a" * 63 + " ", "'"):
        assert unsupported_parameter(ErrorFields(message=text * 300_000)) in (None, "unsupported")


# --- Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 2 "}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "1500.5"}, 1.5005),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "garbage", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "0", "retry-after": "9"}, 9.0),
        ({"retry-after": "60"}, 60.0),
        ({"retry-after": "61"}, 60.0),
        ({"retry-after": "86400"}, 60.0),
        ({"retry-after": "999999999999999"}, 60.0),
        ({"retry-after-ms": "3600000"}, 60.0),
        # dates: the three forms of RFC 9110
        ({"retry-after": "Sun, 06 Nov 1994 08:49:47 GMT"}, 10.0),
        ({"retry-after": "Sunday, 06-Nov-94 08:49:47 GMT"}, 60.0),  # two digits: 2094
        ({"retry-after": "Sun Nov  6 08:49:47 1994"}, 10.0),
        ({"retry-after": "Sun, 06 Nov 1994 09:49:37 GMT"}, 60.0),
        # nothing usable means the default
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "   "}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "0.0"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "5 s"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "1" * 400}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, None),  # now
        ({"retry-after": "Sun, 06 Nov 1994 08:49:27 GMT"}, None),  # past
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, None),
        ({"retry-after": "Sun, 99 Nov 2094 08:49:37 GMT"}, None),
        ({"retry-after": "Sun, 06 Nov 2094 25:49:37 GMT"}, None),
        ({"retry-after": "Sun, 06 Foo 2094 08:49:37 GMT"}, None),
        ({"retry-after": "Sun, 06 Nov 2094 08:49:37 CET"}, None),
        ({"retry-after": "2094-11-06T08:49:37Z"}, None),
    ],
)
def test_retry_after_is_honoured_up_to_a_minute_or_ignored(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW_S) == (None if seconds is None else pytest.approx(seconds))


@given(st.text(), st.text())
def test_whatever_the_headers_say_the_wait_is_positive_and_at_most_a_minute(ms: str, seconds: str) -> None:
    wait_s = retry_after_s({"retry-after-ms": ms, "retry-after": seconds}, NOW_S)
    assert wait_s is None or 0 < wait_s <= 60


@given(st.datetimes(min_value=datetime.datetime(1000, 1, 1)))  # noqa: DTZ001  what it draws is made aware below
def test_dates_are_read_as_the_standard_library_writes_them(at: datetime.datetime) -> None:
    moment = at.replace(microsecond=0, tzinfo=datetime.UTC)
    seconds = moment.timestamp()
    text = format_datetime(moment, usegmt=True)
    assert retry_after_s({"retry-after": text}, seconds - 7) == pytest.approx(7, abs=1e-3)
    assert retry_after_s({"retry-after": text}, seconds + 7) is None


# --- waits


def test_the_wait_doubles_from_a_second_to_a_minute_and_jitter_takes_a_share_of_it() -> None:
    assert [retry_delay_s(n, 1.0) for n in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert retry_delay_s(4, 0.5) == 4
    assert retry_delay_s(4, 0.0) == 0
    assert retry_delay_s(100_000, 1.0) == 60


# --- decisions


def decision(kind: Kind, **changes: object) -> object:
    given: dict[str, object] = {"failures": 1, "attempts_max": 5, "elapsed_s": 0.0, "jitter": 1.0, **changes}
    return decide(kind, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_decided_by_its_row(kind: Kind) -> None:
    first, last = decision(kind), decision(kind, failures=5)
    row = TABLE[kind]
    assert isinstance(first, Again) is row.retried
    assert isinstance(last, Onward) is row.fallback
    assert isinstance(last, GiveUp) is not row.fallback
    amended = decision(kind, amendable="max_tokens")
    assert (amended == Amend(parameter="max_tokens")) is row.amended


def test_a_provider_that_names_a_time_is_taken_at_its_word() -> None:
    assert decision(Kind.RATE_LIMIT, retry_after_s=7.0, jitter=0.1) == Again(delay_s=7.0)
    assert decision(Kind.RATE_LIMIT, failures=3, jitter=0.5) == Again(delay_s=2.0)


def test_the_budget_gates_the_start_of_a_retry() -> None:
    assert decision(Kind.SERVER_ERROR, elapsed_s=898.9) == Again(delay_s=1.0)
    assert decision(Kind.SERVER_ERROR, elapsed_s=899.0) == Onward()
    assert decision(Kind.SERVER_ERROR, elapsed_s=850.0, retry_after_s=60.0) == Onward()
    generous = RetryPolicy(total_s=10_000.0)
    assert decision(Kind.SERVER_ERROR, elapsed_s=5_000.0, policy=generous) == Again(delay_s=1.0)


def test_the_defaults_are_those_of_the_docs() -> None:
    assert (RETRY.attempts_max, RETRY.base_s, RETRY.delay_max_s, RETRY.total_s) == (5, 1.0, 60.0, 900.0)
