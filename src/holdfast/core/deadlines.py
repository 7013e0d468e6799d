"""How long things may take. Each deadline has its own error class, which names the field and its value."""

from holdfast.core.records import Frozen


class ModelDeadlines(Frozen):
    """One attempt at a model call.

    A model may think for long without a word. Whatever its stream brings meanwhile (a ping, a comment, an event
    without text) is a sign of life, and begins the wait anew; `call_s` bounds all of it.
    """

    connect_s: float = 15.0  # address, connection and TLS together; waiting for a free connection included
    first_byte_s: float = 300.0  # from the sent request, or a sign of life, to the first piece of the response
    silence_s: float = 120.0  # from one piece, or a sign of life, to the next
    call_s: float = 1800.0  # all of it
    # Once the response is complete, its token count may still follow. It is worth a moment, not the response.
    after_finish_s: float = 5.0


MODEL_DEADLINES = ModelDeadlines()


class WakeDeadlines(Frozen):
    """The wake stream. A stream is believed as long as its pings come back on it."""

    connect_s: float = 15.0
    ping_interval_s: float = 10.0
    ping_s: float = 5.0
    pings_failed_max: int = 2  # in a row; then it is reset
    backoff_first_s: float = 0.1  # doubles with every failure until a ping came back
    backoff_longest_s: float = 5.0
    drain_s: float = 5.0  # stopping waits so long for what it aborted


WAKE_DEADLINES = WakeDeadlines()
