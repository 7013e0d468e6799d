"""What a failed model call is, and what follows from it. Pure: times and chance come in as arguments.

`TABLE` is the whole policy. `classify` finds the row, `decide` says what happens next.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from holdfast.core.backoff import doubled_s
from holdfast.core.records import Frozen


class Kind(StrEnum):
    """Why an attempt failed. The value is the `code` of its error."""

    RATE_LIMIT = "rate_limit"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    LOST_RESULT = "lost_result"
    PAYMENT = "payment"
    AUTHENTICATION = "authentication"
    REGION = "region"  # it does not serve where the request comes from
    NOT_FOUND = "not_found"
    MODEL_BROKE = "model_broke"  # a model that a user brought raised what no model may
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_TOO_LONG = "context_too_long"
    REFUSED = "refused"
    BAD_REQUEST = "bad_request"


class Treatment(Frozen):
    retried: bool  # the same model again, after a wait
    fallback: bool  # then, or at once, the next model
    cools: bool = False  # every call of this model waits
    amended: bool = False  # once more without delay, the parameter in its accepted form


_AGAIN = Treatment(retried=True, fallback=True)
_ELSEWHERE = Treatment(retried=False, fallback=True)
_NEVER = Treatment(retried=False, fallback=False)

TABLE: Mapping[Kind, Treatment] = MappingProxyType(
    {
        Kind.RATE_LIMIT: Treatment(retried=True, fallback=True, cools=True),
        Kind.OVERLOADED: _AGAIN,
        Kind.SERVER_ERROR: _AGAIN,
        Kind.TIMEOUT: _AGAIN,
        Kind.CONNECTION: _AGAIN,
        Kind.LOST_RESULT: _AGAIN,
        # The account, the key, the place or the name is wrong here and may be right elsewhere; no use asking again.
        Kind.PAYMENT: _ELSEWHERE,
        Kind.AUTHENTICATION: _ELSEWHERE,
        Kind.REGION: _ELSEWHERE,
        Kind.NOT_FOUND: _ELSEWHERE,
        Kind.MODEL_BROKE: _ELSEWHERE,
        Kind.UNSUPPORTED_PARAMETER: Treatment(retried=False, fallback=False, amended=True),
        # The request itself is at fault: the runner may compact, the caller must change it.
        Kind.CONTEXT_TOO_LONG: _NEVER,
        Kind.REFUSED: _NEVER,
        Kind.BAD_REQUEST: _NEVER,
    }
)


# --- what is it ------------------------------------------------------------------------------------


class ErrorFields(Frozen):
    """What a provider's error object says, whatever its dialect. `code` and `type` are identifiers."""

    message: str = ""
    code: str = ""
    type: str = ""
    param: str = ""
    retry_after: str = ""  # seconds; some say it in the body


_BY_STATUS = MappingProxyType(
    {
        401: Kind.AUTHENTICATION,
        402: Kind.PAYMENT,
        403: Kind.AUTHENTICATION,
        404: Kind.NOT_FOUND,
        408: Kind.TIMEOUT,
        409: Kind.SERVER_ERROR,  # a lock or a conflict on their side: nothing of ours is there to conflict
        413: Kind.CONTEXT_TOO_LONG,
        425: Kind.SERVER_ERROR,
        429: Kind.RATE_LIMIT,
        498: Kind.OVERLOADED,  # Groq: its flex tier is full
        503: Kind.OVERLOADED,
        504: Kind.TIMEOUT,
        524: Kind.TIMEOUT,  # Cloudflare's own 504
        529: Kind.OVERLOADED,  # Anthropic
    }
)

# Identifiers beat the status: OpenAI answers 429 for an empty account and 400 for a history that is too long.
_BY_IDENTIFIER = MappingProxyType(
    {
        "insufficient_quota": Kind.PAYMENT,
        "billing_hard_limit_reached": Kind.PAYMENT,
        "billing_not_active": Kind.PAYMENT,
        "billing_error": Kind.PAYMENT,
        "payment_required": Kind.PAYMENT,
        "context_length_exceeded": Kind.CONTEXT_TOO_LONG,
        "string_above_max_length": Kind.CONTEXT_TOO_LONG,
        "request_too_large": Kind.CONTEXT_TOO_LONG,
        "exceed_context_size_error": Kind.CONTEXT_TOO_LONG,
        "unsupported_parameter": Kind.UNSUPPORTED_PARAMETER,
        "unsupported_value": Kind.UNSUPPORTED_PARAMETER,
        "unknown_parameter": Kind.UNSUPPORTED_PARAMETER,
        "invalid_encrypted_content": Kind.UNSUPPORTED_PARAMETER,  # see SIGNATURES
        "content_filter": Kind.REFUSED,
        "content_policy_violation": Kind.REFUSED,
        "responsibleaipolicyviolation": Kind.REFUSED,
        "invalid_prompt": Kind.REFUSED,  # OpenAI Responses: flagged, whatever its name says
        "image_content_policy_violation": Kind.REFUSED,
        "bio_policy": Kind.REFUSED,
        "misalignment_policy_violation": Kind.REFUSED,
        "model_not_found": Kind.NOT_FOUND,
        "not_found_error": Kind.NOT_FOUND,
        "invalid_api_key": Kind.AUTHENTICATION,
        "authentication_error": Kind.AUTHENTICATION,
        "permission_error": Kind.AUTHENTICATION,
        "unsupported_country_region_territory": Kind.REGION,  # OpenAI
        "rate_limit_exceeded": Kind.RATE_LIMIT,
        "rate_limit_error": Kind.RATE_LIMIT,
        "resource_exhausted": Kind.RATE_LIMIT,
        "overloaded_error": Kind.OVERLOADED,
        "server_is_overloaded": Kind.OVERLOADED,
        "engine_overloaded": Kind.OVERLOADED,
        "unavailable": Kind.OVERLOADED,
        "server_error": Kind.SERVER_ERROR,
        "api_error": Kind.SERVER_ERROR,
        "internal_error": Kind.SERVER_ERROR,
        "internal_server_error": Kind.SERVER_ERROR,
        "timeout": Kind.TIMEOUT,
        "timeout_error": Kind.TIMEOUT,
        "deadline_exceeded": Kind.TIMEOUT,
    }
)

# Only where neither identifier nor status decides: a bare 400, 422, or an error in the middle of a stream.
_BY_WORDS = (
    (
        Kind.CONTEXT_TOO_LONG,
        (
            "context length",
            "context window",
            "context size",
            "exceed context limit",  # Anthropic: input and max_tokens together
            "exceeds the maximum number of tokens",  # Gemini
            "prompt is too long",
            "input is too long",
            "too many tokens",
            "reduce the length of the messages",
            "maximum prompt length",  # xAI
            "exceeded model token limit",  # Moonshot
            "range of input length",  # DashScope
            "prompt exceeds max length",  # Z.ai
        ),
    ),
    (Kind.AUTHENTICATION, ("api key not valid",)),  # Gemini says 400
    (Kind.REGION, ("user location is not supported",)),  # Gemini says 400
    (Kind.PAYMENT, ("credit balance is too low", "insufficient credits", "insufficient balance", "api usage limits")),
    (Kind.REFUSED, ("content management policy", "content policy")),
    (Kind.OVERLOADED, ("overloaded",)),
)

# Reasoning that a provider gave and no longer takes back: another model made it, or another account. Named like a
# parameter, because leaving it out is the remedy; unlike one, it says something of a history and not of the model.
SIGNATURES = "signatures"
_NOT_TAKEN_BACK = (
    "`signature` in `thinking` block",  # Anthropic, with the next two
    "expected `thinking` or `redacted_thinking`",
    "in the latest assistant message cannot be modified",
    "corrupted thought signature",  # Gemini, with the next two
    "invalid thought signature",
    "thought signature is not valid",
    "reasoning input items can only be provided to",  # OpenAI, with the next
    "encrypted content for item",
)

# The other way round: DeepSeek and Moonshot want a place for reasoning in everything that a model said.
REASONING_MISSING = "missing reasoning_content"
_WANTED = ("must be passed back", "missing")
# And Mistral wants the ids of calls in a form of its own.
SHORT_IDS = "tool_call_id"
_SHORT = "must be a-z, a-z, 0-9, with a length of 9"
# A model that reads text alone refuses a history in which a tool showed an image or a PDF.
RESULT_FILES = "files"
_NO_FILES = (
    "image input is not supported",  # llama.cpp, with status 500
    "support image input",  # OpenRouter, with status 404: no endpoints found that support it
    "does not support image",
    "not support image",
    "image_url is only supported by",  # OpenAI
    "unknown variant `image_url`",  # DeepSeek
    "not a multimodal model",  # vLLM
    "unknown variant `file`",
    "file content part",
    "does not support file",
    "does not support pdf",
)
# OpenAI and Groq say it with the code of a rate limit: more than is allowed in a minute. No wait helps.
_TOO_LARGE = "request too large for"

_TEXT_MAX = 4_000  # what is searched of a message: patterns stay linear, and errors are short
_NAME = r"[\"'`]?(?P<name>[A-Za-z_][A-Za-z0-9_.]{0,63})[\"'`]?"
_UNSUPPORTED = (
    re.compile(rf"unsupported (?:parameter|value|argument)[s]?: {_NAME}", re.I),
    re.compile(rf"un(?:known|recognized|expected) (?:parameter|request argument|field)[^:]{{0,40}}: {_NAME}", re.I),
    re.compile(rf"(?:parameter|property|argument) {_NAME} is (?:unsupported|not supported|not allowed)", re.I),
    re.compile(rf"{_NAME} is (?:not supported|deprecated) (?:with|by|for|on) this model", re.I),
    re.compile(rf"{_NAME} cannot both be specified", re.I),
    re.compile(r"(?:[\w.]{0,64}\.)?(?P<name>[A-Za-z_]\w{0,63}): extra inputs are not permitted", re.I),  # pydantic
)  # fmt: skip


def classify(status: int | None, fields: ErrorFields = ErrorFields()) -> Kind:  # noqa: B008  it is frozen
    """The row for an error a provider sent; `status` None: in the middle of a stream."""
    text = fields.message[:_TEXT_MAX].lower()
    if _TOO_LARGE in text:
        return Kind.CONTEXT_TOO_LONG
    for identifier in (fields.code, fields.type):
        if (kind := _BY_IDENTIFIER.get(identifier.lower())) is not None:
            return kind
    if status is None and fields.code.isdecimal():
        status = int(fields.code[:3])  # gateways put the upstream's status there
    if status is None or status in (400, 422):
        for kind, phrases in _BY_WORDS:
            if any(phrase in text for phrase in phrases):
                return kind
        if unsupported_parameter(fields) is not None:
            return Kind.UNSUPPORTED_PARAMETER
    if status is None:
        return Kind.SERVER_ERROR
    if (kind := _BY_STATUS.get(status)) is not None:
        return kind
    return Kind.SERVER_ERROR if status >= 500 else Kind.BAD_REQUEST


def unsupported_parameter(fields: ErrorFields) -> str | None:
    """The parameter that an error names as unsupported."""
    text = fields.message[:_TEXT_MAX]
    told = text.lower()
    if fields.code.lower() == "invalid_encrypted_content" or any(phrase in told for phrase in _NOT_TAKEN_BACK):
        return SIGNATURES
    if "reasoning_content" in told and any(phrase in told for phrase in _WANTED):
        return REASONING_MISSING
    if _SHORT in told:
        return SHORT_IDS
    for pattern in _UNSUPPORTED:
        if found := pattern.search(text):
            return found["name"]
    if _BY_IDENTIFIER.get(fields.code.lower()) is Kind.UNSUPPORTED_PARAMETER and fields.param:
        return fields.param
    return None


def refuses_files(fields: ErrorFields) -> bool:
    """Whether an error says that the model does not take images, or other files."""
    text = fields.message[:_TEXT_MAX].lower()
    return any(phrase in text for phrase in _NO_FILES)


# --- how long to wait ------------------------------------------------------------------------------


class RetryPolicy(Frozen):
    """The budget gates the start of a retry. A fallback's first attempt is not a retry."""

    attempts_max: int = 5  # on the first model
    fallback_attempts_max: int = 1  # on each fallback
    base_s: float = 1.0
    delay_max_s: float = 60.0  # also what a longer Retry-After counts as
    total_s: float = 900.0


RETRY = RetryPolicy()


def retry_delay_s(failures: int, jitter: float, policy: RetryPolicy = RETRY) -> float:
    """After the n-th failure: of the doubled pause a random share (`jitter`, 0 to 1)."""
    return doubled_s(policy.base_s, policy.delay_max_s, failures - 1) * jitter


def retry_after_s(headers: Mapping[str, str], now_s: float, policy: RetryPolicy = RETRY) -> float | None:
    """What `retry-after-ms` or `retry-after` asks for, capped. None if neither says anything usable.

    `headers` has lower-case names; `now_s` is the wall clock. Blank, garbage, zero and the past say nothing.
    """
    ms = _positive(headers.get("retry-after-ms", ""))
    if ms is not None:
        return min(ms / 1000, policy.delay_max_s)
    text = headers.get("retry-after", "").strip()
    seconds = _positive(text)
    if seconds is None and (date := _http_date(text)) is not None and date > now_s:
        seconds = date - now_s
    return None if seconds is None else min(seconds, policy.delay_max_s)


_NUMBER = re.compile(r"\d{1,15}(?:\.\d{0,15})?", re.ASCII)


def _positive(text: str) -> float | None:
    found = _NUMBER.fullmatch(text.strip())
    value = float(found[0]) if found else 0.0
    return value if value > 0 else None


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_HTTP_DATES = (  # RFC 9110, 5.6.7: the one to send, and the two that must still be understood
    re.compile(rf"[A-Za-z]{{3}}, (?P<day>\d\d) (?P<month>[A-Za-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} GMT", re.ASCII),
    re.compile(rf"[A-Za-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[A-Za-z]{{3}})-(?P<year>\d\d) {_CLOCK} GMT", re.ASCII),
    re.compile(rf"[A-Za-z]{{3}} (?P<month>[A-Za-z]{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})", re.ASCII),
)


def _http_date(text: str) -> float | None:
    """Seconds since 1970. The standard library's parsers accept far more than a date."""
    for pattern in _HTTP_DATES:
        found = pattern.fullmatch(text)
        if found is None or found["month"].lower() not in _MONTHS:
            continue
        year, day = int(found["year"]), int(found["day"])
        hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"])
        if not 1 <= day <= 31 or hour > 23 or minute > 59 or second > 60:
            return None
        month = _MONTHS.index(found["month"].lower()) + 1
        days = _days_from_1970(year + 2000 if year < 100 else year, month, day)
        return days * 86_400.0 + hour * 3600 + minute * 60 + second
    return None


def _days_from_1970(year: int, month: int, day: int) -> int:
    """Howard Hinnant's days_from_civil: a year that starts in March has its leap day last."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


# --- what now --------------------------------------------------------------------------------------


class Again(Frozen):
    """The same model, after `delay_s`."""

    delay_s: float


class Amend(Frozen):
    """The same model, now, with the parameter in its accepted form."""

    parameter: str


class Onward(Frozen):
    """The next model, now. If there is none, the call has failed."""


class GiveUp(Frozen):
    """The call has failed; another model would not do better."""


Decision = Again | Amend | Onward | GiveUp


def decide(
    kind: Kind,
    *,
    failures: int,
    attempts_max: int,
    elapsed_s: float,
    jitter: float,
    retry_after_s: float | None = None,
    amendable: str | None = None,
    policy: RetryPolicy = RETRY,
) -> Decision:
    """What follows the `failures`-th failed attempt on one model, `elapsed_s` after the call began.

    `amendable` is a parameter that this model was not yet asked without.
    """
    treatment = TABLE[kind]
    if treatment.amended and amendable is not None:
        return Amend(parameter=amendable)
    if treatment.retried and failures < attempts_max:
        delay_s = retry_delay_s(failures, jitter, policy) if retry_after_s is None else retry_after_s
        if elapsed_s + delay_s < policy.total_s:
            return Again(delay_s=min(delay_s, policy.delay_max_s))
    return Onward() if treatment.fallback else GiveUp()
