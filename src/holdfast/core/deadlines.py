"""How long things may take. Each deadline has its own error class, which names the field and its value."""

from holdfast.core.records import Frozen


class ModelDeadlines(Frozen):
    """One attempt at a model call. Only what the response is made of counts as progress: pings do not."""

    connect_s: float = 15.0  # address, connection and TLS together; waiting for a free connection included
    first_byte_s: float = 300.0  # from the sent request to the first piece of the response
    silence_s: float = 120.0  # from one piece to the next
    call_s: float = 1800.0  # all of it
    # Once the response is complete, its token count may still follow. It is worth a moment, not the response.
    after_finish_s: float = 5.0


MODEL_DEADLINES = ModelDeadlines()
