"""What people and models are told of a call: an excerpt of its arguments, what it spent, that its outcome is unknown,
that it was cancelled. The words stay in histories and in prompt caches, so they are the same whenever they are said.
"""

from holdfast.core.instants import iso
from holdfast.core.records import Call, CallState, Synthetic

SPENT = "spent"  # the topic of a note that tells what a call spent


def spent_text(tokens: int, cost: float) -> str:
    told = [f"{tokens:,} tokens"] if tokens else []
    return ", ".join([*told, f"{cost:.4f}"] if cost else told)


def excerpt(text: str, chars_max: int) -> str:
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… ({len(text):,} characters in all)"


def told_arguments(call: Call) -> str:
    """As they are told to people: those that count, without secrets. Where no hook changed them it is an excerpt, and
    the response that the call is of has the whole.
    """
    return call.excerpt if call.told is None else call.told


def unknown_text(call: Call, why: str = "") -> str:
    """All that is known of it, in words that never change: they stay in the history, and in prompt caches.

    The arguments are those that the model gave: what a hook made of them may hold a key that is not the model's.
    """
    at = f" at {iso(call.started_at)}" if call.started_at is not None else ""
    changed = " (a hook changed them)" if call.arguments is not None else ""
    how = f". {why.rstrip().rstrip('.')}" if why else ", and its worker was lost before it reported"
    return (
        f"Outcome unknown: {call.name} was started{at} with the arguments {call.excerpt or '{}'}{changed}{how}. "
        "It may or may not have taken effect. Verify before you try again."
    )


def cancelled_result(call: Call, why: str) -> tuple[Synthetic, str]:
    """What the model is told of a call that ends without an outcome. "Never ran" is said only where it is true."""
    if call.state is CallState.STARTED:
        return Synthetic.CANCELLED, f"Cancelled while it ran: {why}. It may have taken effect in part."
    if call.starts:
        doubted = call.question if call.state is CallState.EXTERNAL else None
        return Synthetic.UNKNOWN, f"{doubted or unknown_text(call)} Nothing more was done about it: {why}."
    if call.state is CallState.EXTERNAL:
        return Synthetic.CANCELLED, f"Not answered: {why}."
    return Synthetic.CANCELLED, f"Never ran: {why}."
