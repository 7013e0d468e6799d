"""The lines of the log."""

import json
import logging
import subprocess
import sys
from pathlib import Path

from holdfast.cli.logs import JsonLogLines, Lines


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("holdfast.kelp", logging.WARNING, "kelp.py", 1, "it %s", ("swims",), None)
    vars(made).update(extra)
    return made


def test_a_line_of_text_has_its_action_and_its_fields() -> None:
    line = Lines().format(record(action="kelp.adrift", chat="chat_1", count=2))
    assert line.partition(" ")[2] == "warning kelp.adrift: it swims chat='chat_1' count=2"


def test_a_line_of_json_has_the_same_as_fields() -> None:
    line = json.loads(JsonLogLines().format(record(action="kelp.adrift", chat="chat_1", why=ValueError("storm"))))
    del line["at"]
    assert line == {
        "level": "warning",
        "action": "kelp.adrift",
        "message": "it swims",
        "logger": "holdfast.kelp",
        "chat": "chat_1",
        "why": "storm",
    }


PROGRAM = """
import logging
from holdfast.cli.logs import set_up_logging
set_up_logging("info", "json")
log = logging.getLogger("holdfast.kelp")
log.info("a key %s", "kelp-0123456789", extra={"action": "told", "beside": "kelp-0123456789"})
log.debug("too quiet")
logging.getLogger("elsewhere").info("not ours")
try:
    raise ValueError("kelp-0123456789")
except ValueError:
    log.exception("it broke", extra={"action": "broke"})
"""


def test_a_key_of_the_environment_is_in_no_line_and_each_level_is_kept_to() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={"KELP_API_KEY": "kelp-0123456789", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["action"] for line in lines] == ["told", "broke"]
    assert "ValueError" in lines[1]["trace"]
    assert "0123456789" not in done.stderr


def test_what_an_app_knows_to_be_secret_is_in_no_line_either(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('[mcp.bank]\ncommand = "x"\nenv = {BANK_KEY = "kelp-0123456789"}\n')
    program = PROGRAM.replace("log =", "from holdfast.cli.app_choice import open_app; open_app(); log =")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "HOLDFAST_TRUSTED": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "[BANK_KEY]" in done.stderr
    assert "0123456789" not in done.stderr
