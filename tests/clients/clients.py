"""The clients that are driven, and what is known to be otherwise with some of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Client:
    """`install` is a file of `locks`: packages for Python, or a folder for npm. `program` is in `python` or `node`.
    `shows_text`: its program says when it has seen the first of a stream.
    """

    name: str
    install: str
    program: str
    node: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    shows_text: bool = True

    def reason_for(self, case: str) -> str | None:
        """Why it cannot be green; one that is green all the same is a failure, too."""
        return OWN_WAYS.get(self.name, {}).get(case) or WAITING.get(self.name, {}).get(case)


# What a client itself does otherwise, whatever a server does.
OWN_WAYS: Mapping[str, Mapping[str, str]] = {
    "pydantic-ai, responses": {"approval": "passes over the item that says what is open, and asks again"},
    "opencode": {
        "error": "asks again five times, by itself, when its stream ends with an error",
        **dict.fromkeys(("going", "killed"), "begins a turn anew, by itself, when its stream breaks off"),
    },
    "aider": dict.fromkeys(("going", "killed"), "begins a turn anew, by itself, when its stream breaks off"),
}

# What `/v1` does not do yet. Whoever mends it takes the line away: a cell that is green in spite of it is a failure.
WAITING: Mapping[str, Mapping[str, str]] = {
    "instructor, TOOLS": {"stream": "the arguments of a call come in one piece"},
}

CLIENTS: Sequence[Client] = [
    *(
        Client(f"openai-python {major}, {protocol}", f"openai-{major}", f"openai_{protocol}.py")
        for major in (3, 2, 1)
        for protocol in ("responses", "chat")
    ),
    *(
        Client(f"openai-npm {major}, {protocol}", f"openai-npm-{major}", f"openai_{protocol}.mjs", node=True)
        for major in (7, 6, 5)
        for protocol in ("responses", "chat")
    ),
    *(
        Client(f"AI SDK, {name}", "ai-sdk", "ai_sdk.mjs", node=True, environment={"PROTOCOL": name})
        for name in ("responses", "chat", "compatible")
    ),
    *(
        Client(f"{name}, {protocol}", install, f"{program}_program.py", environment={"PROTOCOL": protocol})
        for name, install, program in [
            ("LangChain", "langchain", "langchain"),
            ("pydantic-ai", "pydantic-ai", "pydantic_ai"),
            ("Agents SDK", "agents", "agents"),
        ]
        for protocol in ("responses", "chat")
    ),
    *(
        Client(
            f"litellm, {protocol}",
            "litellm",
            "litellm_program.py",
            environment={"PROTOCOL": protocol},
            shows_text=protocol == "chat",  # of responses it shows an event when the next one is there
        )
        for protocol in ("responses", "chat")
    ),
    *(
        Client(f"instructor, {mode}", "instructor", "instructor_program.py", environment={"MODE": mode})
        for mode in ("TOOLS", "JSON")
    ),
    Client("smolagents", "smolagents", "smolagents_program.py"),
    Client("llm", "llm", "llm_program.py", shows_text=False),
    Client("Codex", "codex", "codex_program.py", node=True, shows_text=False),
    Client("opencode", "opencode", "opencode_program.py", node=True, shows_text=False),
    Client("aider", "aider", "aider_program.py", shows_text=False),
]
