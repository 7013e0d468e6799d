"""The models: one contract, the wires behind it, and the one path by which any of them is called.

| to … | go to |
|---|---|
| know what a model is | `base` |
| call one, with retries and fallbacks | `calls`, with `providers` for what all chats share |
| get one from its name | `resolve` |
| add a wire | a pure module like `anthropic`; `http` and `transport` do the rest |
| play one in a test | `scripted` |

What a failure is, and what follows from it, is decided in `core/retry`.
"""

from holdfast.models.base import (
    Alive,
    CallArguments,
    CallEnded,
    CallStarted,
    FinishReason,
    Model,
    Opened,
    OutputSpec,
    Progress,
    ReasoningDelta,
    Request,
    ResponseFinished,
    Settings,
    StreamPart,
    TextDelta,
    ToolSpec,
    Usage,
)

# For the author of a model: what it is asked, and the parts of its answer.
__all__ = [
    "Alive",
    "CallArguments",
    "CallEnded",
    "CallStarted",
    "FinishReason",
    "ResponseFinished",
    "Model",
    "Opened",
    "OutputSpec",
    "Progress",
    "ReasoningDelta",
    "Request",
    "Settings",
    "StreamPart",
    "TextDelta",
    "ToolSpec",
    "Usage",
]
