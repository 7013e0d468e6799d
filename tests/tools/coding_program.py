"""A stand-in for the coding programs: says what they say, as they were recorded, and remembers its sessions.

    coding_program.py FOLDER claude|codex|gemini ARGUMENTS…

FOLDER/cases.json is what becomes of each run, in order; the last one is that of all further ones. FOLDER/runs.jsonl
gets a line for each run, FOLDER/sessions a file for each session. It is started with -I -S, and quick to start.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

HERE, KIND, *ARGUMENTS = sys.argv[1:]
VERSIONS = {"claude": "2.1.197 (Claude Code)", "codex": "codex-cli 0.169.0", "gemini": "0.61.0"}


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def fail(code: int, words: str) -> NoReturn:
    sys.stderr.write(words + "\n")
    sys.exit(code)


def next_case() -> str:
    with open(f"{HERE}/cases.json", encoding="utf-8") as file:
        cases = json.load(file)
    try:
        with open(f"{HERE}/runs.jsonl", encoding="utf-8") as file:
            runs = len(file.readlines())
    except FileNotFoundError:
        runs = 0
    case: str = cases[min(runs, len(cases) - 1)]
    return case


def option(name: str) -> str | None:
    return ARGUMENTS[ARGUMENTS.index(name) + 1] if name in ARGUMENTS else None


def asked() -> tuple[str, str, bool]:
    """Task, session, and whether it is to be resumed."""
    if KIND == "codex":
        rest = ARGUMENTS[ARGUMENTS.index("--") + 1 :]
        return (rest[1], rest[0], True) if "resume" in ARGUMENTS else (rest[0], f"thread-{time.time_ns()}", False)
    if KIND == "gemini":
        task = next(word for word in ARGUMENTS if word.startswith("--prompt=")).partition("=")[2]
    else:
        task = ARGUMENTS[ARGUMENTS.index("--") + 1]
    resumed = option("--resume")
    return task, resumed or option("--session-id") or "", resumed is not None


def check_session(session: str, resumes: bool) -> int:
    path = f"{HERE}/sessions/{session}"
    there = os.path.exists(path)
    if resumes and not there:
        if KIND == "claude":
            words = f"No conversation found with session ID: {session}"
            say(type="result", subtype="error_during_execution", is_error=True, session_id=session, errors=[words])
            fail(1, words)
        if KIND == "codex":
            fail(1, f"Error: thread/resume failed: no rollout found for thread id {session} (code -32600)")
        fail(42, f'Error resuming session: Invalid session identifier "{session}".')
    if not resumes and there:
        if KIND == "claude":
            fail(1, f"Error: Session ID {session} is already in use.")
        fail(42, f'Error starting session: Session ID "{session}" already exists.')
    os.makedirs(f"{HERE}/sessions", exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write("run\n")
    with open(path, encoding="utf-8") as file:
        return len(file.readlines())


def begin(session: str) -> None:
    if KIND == "claude":
        say(type="system", subtype="init", session_id=session, model="m")
    elif KIND == "codex":
        say(type="thread.started", thread_id=session)
        say(type="turn.started")
    else:
        say(type="init", session_id=session, model="m")


def work(text: str = "I look.", command: str = "ls") -> None:
    if KIND == "claude":
        blocks = [{"type": "text", "text": text}, {"type": "tool_use", "name": "Bash", "input": {"command": command}}]
        say(type="assistant", message={"content": blocks})
    elif KIND == "codex":
        say(type="item.completed", item={"type": "agent_message", "text": text})
        say(type="item.started", item={"type": "command_execution", "command": command})
    else:
        say(type="message", role="assistant", content=text, delta=True)
        say(type="tool_use", tool_name="run_shell_command", parameters={"command": command})


def answer(text: str, runs: int, *, error: bool = False, denied: Sequence[Any] = ()) -> int:
    """With figures: 10 tokens in each run; of claude and codex, those of the session."""
    if KIND == "claude":
        usage = {"input_tokens": 7, "output_tokens": 3}
        per_model = {"m": {"inputTokens": 7 * runs, "outputTokens": 3 * runs}}
        figures = {"usage": usage, "modelUsage": per_model, "total_cost_usd": 0.25 * runs}
        flags = {"subtype": "success", "is_error": error, "permission_denials": list(denied)}
        say(type="result", result=text, session_id="s", **flags, **figures)
    elif KIND == "codex":
        if text and not error:
            say(type="item.completed", item={"type": "agent_message", "text": text})
        if error:
            say(type="turn.failed", error={"message": text})
        else:
            say(type="turn.completed", usage={"input_tokens": 7 * runs, "output_tokens": 3 * runs})
    else:
        if text and not error:
            say(type="message", role="assistant", content=text, delta=True)
        status: dict[str, Any] = {"status": "error", "error": {"message": text}} if error else {"status": "success"}
        say(type="result", **status, stats={"input_tokens": 7, "output_tokens": 3})
    return 1 if error else 0


def touch(name: str) -> None:
    with open(f"{HERE}/{name}", "w", encoding="utf-8"):
        pass


def run() -> int:
    task, session, resumes = asked()
    own = task.partition("[[")[2].partition("]]")[0]  # what is to become of its first run
    case = next_case() if resumes or not own else own
    with open(f"{HERE}/runs.jsonl", "a", encoding="utf-8") as file:
        line = {"task": task, "session": session, "resumes": resumes, "arguments": ARGUMENTS, "cwd": os.getcwd()}
        names = {name for name in os.environ if name not in ("PATH", "HOME")}
        file.write(json.dumps({**line, "names": sorted(names), "pid": os.getpid(), "case": case}) + "\n")
    if sys.stdin.read():
        fail(9, "there was something to read")
    if case == "no login":
        fail(
            41,
            {"claude": "Invalid API key · Please run /login", "codex": "401 Unauthorized"}.get(
                KIND, "Invalid auth method"
            ),
        )
    runs = check_session(session, resumes)
    begin(session)
    work()
    if case == "empty":
        return answer("", runs)
    if case == "error":
        return answer("the provider says no", runs, error=True)
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "lost":
        return 0
    if case in ("hangs", "deaf"):
        if case == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        touch("coding.begun")
        while True:
            time.sleep(60)
    if case == "denied":
        denial = {"tool_name": "Bash", "tool_input": {"command": "npm test"}}
        return answer("I may not run it.", runs, denied=[denial])
    if case == "flood":
        for _ in range(int(os.environ.get("FLOOD_MEBIBYTES", "64"))):
            sys.stdout.write("x" * (1 << 20))
        sys.stdout.write("\n")
    code = answer(f"Done: {task}", runs)
    if case == "stays":
        time.sleep(600)
    return code


if __name__ == "__main__":
    if ARGUMENTS[-1:] == ["--version"]:
        sys.stdout.write(next_case() if next_case().startswith("version") else VERSIONS[KIND])
    else:
        sys.exit(run())
