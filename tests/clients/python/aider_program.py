"""aider, the command: it talks about files and edits them; it gives its model no tools."""

import json
import sys
from pathlib import Path

from cases import MODEL, PROMPTS, run
from commands import output_of

AIDER = str(Path(sys.executable).parent / "aider")
OPTIONS = (
    *("--model", f"openai/{MODEL}", "--no-git", "--yes-always", "--no-pretty", "--no-analytics", "--no-check-update"),
    *("--no-show-model-warnings", "--no-show-release-notes", "--no-fancy-input", "--no-detect-urls"),
    *(
        "--chat-history-file",
        "history.md",
        "--input-history-file",
        "input-history",
        "--no-gitignore",
        "--map-tokens",
        "0",
        "--encoding",
        "utf-8",
    ),
)
# It asks the web for the prices of models unless it has them: nothing leaves this machine.
prices = Path.home() / ".aider" / "caches" / "model_prices_and_context_window.json"
prices.parent.mkdir(parents=True, exist_ok=True)
prices.write_text(json.dumps({f"openai/{MODEL}": {"litellm_provider": "openai", "mode": "chat"}}))


def ask(prompt, *options):
    """The answer: what it prints between its own reports. Its exit code says nothing of an error."""
    printed = output_of(AIDER, *OPTIONS, *options, "--message", prompt)
    if "Error" in printed:
        raise RuntimeError(" ".join(printed.split())[-900:])  # it breaks lines to the width of a terminal
    paragraphs = printed.partition("\nTokens:")[0].strip().split("\n\n")
    return " ".join(paragraphs[-1].split())


def text(name="text"):
    return {"text": ask(PROMPTS[name], "--no-stream")}


def stream(name="stream"):
    """A pipe shows no pieces."""
    said = ask(PROMPTS[name], "--stream")
    return {"text": said, "streamed": said, "pieces": 2}


def second():
    Path("history.md").unlink(missing_ok=True)
    ask(PROMPTS["text"])
    return {"text": ask(PROMPTS["second"], "--restore-chat-history")}


run(
    {
        "text": text,
        "stream": stream,
        "own": lambda: text("own"),
        "second": second,
        "error": lambda: text("error"),
        "broken": lambda: stream("broken"),
        "approval": lambda: text("approval"),
        "deploy": lambda: text("deploy"),
        "going": lambda: stream("going"),
        "killed": lambda: stream("killed"),
    }
)
