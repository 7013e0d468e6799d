"""The real coding programs, from their registry: pinned, installed once under `build`, set up for a local provider.

Each gets a home folder of its own with what it needs to ask the provider at an address, and nothing that it could
tell to anybody else.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.tools.base import Tool
from holdfast.tools.coding_agents.tool import coding_agent
from tests.clients.install import BUILD, NotInstalled, filled, node_packages
from tests.support.speakers import Call

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "tests" / "long" / "coding-programs" / "package-lock.json"
NAMES = ("claude", "codex", "gemini")
INSTALL_S = 120.0

# How each is asked to write a file, in the words of its own tools.
WRITES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "claude": ("Write", {"file_path": "ROOT/made.txt", "content": "made\n"}),
    "codex": ("exec_command", {"cmd": "echo made > made.txt"}),
    "gemini": ("write_file", {"file_path": "ROOT/made.txt", "content": "made\n"}),
}


def coding_programs() -> Path:
    """The folder of their commands. Raises NotInstalled."""
    return filled(BUILD / "coding-programs", LOCK, _install) / "node_modules" / ".bin"


def _install(lock: Path, folder: Path) -> None:
    node_packages(lock, folder)
    # What its package would run after the installation: it puts the binary of this platform in its place.
    node = folder / "node_modules" / ".bin" / "node"
    script = folder / "node_modules" / "@anthropic-ai" / "claude-code" / "install.cjs"
    done = subprocess.run([node, script], capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode != 0:
        raise NotInstalled(f"claude: {done.stderr.strip()[-300:]}")


def versions() -> dict[str, str]:
    packages = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex", "gemini": "@google/gemini-cli"}
    lock = json.loads(LOCK.read_text())["packages"]
    return {name: lock[f"node_modules/{package}"]["version"] for name, package in packages.items()}


def write_call(name: str, root: Path) -> Call:
    """A call by which the program writes made.txt."""
    tool, arguments = WRITES[name]
    return Call(tool, (json.dumps(arguments).replace("ROOT", str(root)),))


def real_agent(name: str, folder: Path, url: str, **options: Any) -> Tool:
    """Of the program, in FOLDER/work, with the provider at `url`."""
    home, root = folder / "home", folder / "work"
    (home / ".gemini").mkdir(parents=True, exist_ok=True)
    root.mkdir(exist_ok=True)
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
    }
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    environment = {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(coding_programs()), os.environ["PATH"]]),
        "ANTHROPIC_API_KEY": "key",
        "ANTHROPIC_BASE_URL": url,
        "CODEX_API_KEY": "key",
        "CODEX_HOME": str(home / ".codex"),
        "GEMINI_API_KEY": "key",
        "GOOGLE_GEMINI_BASE_URL": url,
    }
    (home / ".codex").mkdir(exist_ok=True)
    more = {"codex": _codex_options(url)}.get(name, [])
    return coding_agent(name, root=root, environment=environment, options=more, **options)


def _codex_options(url: str) -> list[str]:
    provider = {
        "model": '"gpt-5"',
        "model_provider": '"local"',
        "model_providers.local.name": '"local"',
        "model_providers.local.base_url": f'"{url}/v1"',
        "model_providers.local.wire_api": '"responses"',
        "model_providers.local.env_key": '"CODEX_API_KEY"',
        "model_providers.local.request_max_retries": "0",
        "model_providers.local.stream_max_retries": "0",
    }
    return [word for name, value in provider.items() for word in ("-c", f"{name}={value}")]
