"""The files under deploy fit the program: systemd takes the units; what the image copies, runs and sets is there."""

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.config import Config
from tests.upkeep.reference.command_pages import helps

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
COMMANDS = {name for name, _ in helps()}
STOP_S = 13.0  # that a stop may last beyond its grace: docs/operating.md
CLOSE_S = 10.0


def read(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit, encoding="utf-8")
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_accepts_every_unit(tmp_path: Path) -> None:
    """Where its program is one that exists here, and its user one that every system has."""
    program = tmp_path / "holdfast"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m holdfast \"$@\"\n", encoding="utf-8")
    program.chmod(0o755)
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/srv/agents/.venv/bin/holdfast", str(program))
        text = text.replace("User=agents", "User=root")
        (tmp_path / unit.name.replace("@.", "@1.")).write_text(text, encoding="utf-8")
    made = [str(path) for path in sorted(tmp_path.glob("*.s*"))]
    checked = subprocess.run(
        ["systemd-analyze", "verify", *made], capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in checked.stderr.splitlines() if "holdfast" in line]
    assert ours == []


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_service_runs_a_command_that_there_is_and_lets_it_stop(unit: Path) -> None:
    service = read(unit)["Service"]
    program, command, app = service["ExecStart"].split()
    assert program.endswith("/holdfast")
    assert f"holdfast {command}" in COMMANDS
    assert re.fullmatch(r"\w+:\w+", app)
    defaults = Config()
    assert float(service["TimeoutStopSec"]) > max(defaults.grace_s + STOP_S, defaults.lame_duck_s + CLOSE_S)
    assert not {"PrivateTmp", "RestrictNamespaces"} & set(service)


def test_the_socket_is_the_port_of_the_settings() -> None:
    defaults = Config()
    assert (
        read(ROOT / "deploy/systemd/holdfast.socket")["Socket"]["ListenStream"] == f"{defaults.host}:{defaults.port}"
    )


def test_the_image_copies_what_there_is_and_runs_what_there_is() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *sources, _ = rest.split()
            assert [source for source in sources if not (ROOT / source).exists()] == []
        elif word == "ENV":
            settings = [pair.partition("=")[0].removeprefix("HOLDFAST_").lower() for pair in rest.split()]
            assert set(settings) <= set(Config.__struct_fields__)
        elif word == "EXPOSE":
            assert int(rest) == Config().port
    (entry,) = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("ENTRYPOINT")]
    (command,) = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("CMD")]
    assert " ".join([*entry, *command]) in COMMANDS
    (probe,) = re.findall(r"CMD (\[.*\])$", next(line for line in lines if line.startswith("HEALTHCHECK")))
    compile(json.loads(probe)[2], "the probe", "exec")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_a_unit_that_systemd_would_not_take_is_seen(tmp_path: Path) -> None:
    unit = tmp_path / "holdfast-broken.service"
    unit.write_text("[Service]\nExecStart=holdfast-is-nowhere serve\nKillMode=tenderly\n", encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "holdfast-broken.service" in checked.stderr
