"""A provider's error, whatever its dialect, as one `ProviderError`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.retry import (
    RESULT_FILES,
    ErrorFields,
    Kind,
    classify,
    refuses_files,
    retry_after_s,
    unsupported_parameter,
)
from holdfast.errors import ProviderError

MESSAGE_CHARS_MAX = 2_000


def read_fields(body: bytes) -> ErrorFields:
    """What an error body says. Understands OpenAI, Anthropic, Google, FastAPI and plain text; never raises."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ErrorFields(message=_plain(body))
    return fields_of(decoded)


def fields_of(decoded: Any) -> ErrorFields:
    if isinstance(decoded, list) and decoded:  # Google wraps it in a list
        decoded = decoded[0]
    if not isinstance(decoded, dict):
        return ErrorFields(message=_text(decoded))
    error = decoded.get("error", decoded)
    if not isinstance(error, dict):
        return ErrorFields(message=_text(error), code=_text(decoded.get("code")), type=_text(decoded.get("type")))
    message = error.get("message") or error.get("detail") or decoded.get("message") or decoded.get("detail") or ""
    return ErrorFields(
        message=_text(message),
        code=_text(error.get("code")),
        type=_text(error.get("type") or error.get("status")),
        param=_text(error.get("param")),
        retry_after=_retry_after(error.get("details")),
    )


def _retry_after(details: Any) -> str:
    """Google's RetryInfo: `"retryDelay": "34s"`."""
    delays = (
        [each.get("retryDelay") for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    )
    return next((delay.removesuffix("s") for delay in delays if isinstance(delay, str)), "")


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:MESSAGE_CHARS_MAX]


def _plain(body: bytes) -> str:
    text = body[: 4 * MESSAGE_CHARS_MAX].decode("utf-8", "replace").strip()
    if text[:1] == "<":  # a gateway's web page says nothing that its status does not
        return ""
    return text[:MESSAGE_CHARS_MAX]


def provider_error(
    who: str,
    status: int | None,
    fields: ErrorFields,
    *,
    headers: Mapping[str, str] | None = None,
    now_s: float = 0.0,
    request_id: str | None = None,
    amendable: frozenset[str] = frozenset(),
) -> ProviderError:
    """`amendable`: the parameters that the wire can send in another form, or leave out."""
    if RESULT_FILES in amendable and refuses_files(fields):
        kind, named = Kind.UNSUPPORTED_PARAMETER, (RESULT_FILES, "")
    else:
        kind = classify(status, fields)
        named = (
            (unsupported_parameter(fields) or "", fields.param) if kind is Kind.UNSUPPORTED_PARAMETER else ("", "")
        )
    how = f"{who} answered {status}" if status is not None else f"{who} broke off with an error"
    names = " ".join(name for name in (fields.code, fields.type) if name and name != str(status))
    message = f"{how} ({kind}{f', {names}' if names else ''}): {fields.message or 'without a word'}"
    return ProviderError(
        message,
        code=kind,
        status=status,
        retry_after_s=retry_after_s(headers or {}, now_s)
        or retry_after_s({"retry-after": fields.retry_after}, now_s),
        request_id=request_id,
        parameter=next((name for name in named if name in amendable), None),
    )
