"""Skills as files, for tests."""

from pathlib import Path


def write_skill(shelf: Path, name: str, body: str = "Do it well.", description: str = "", **keys: str) -> Path:
    """A folder with a SKILL.md; `allowed_tools="Read"` is `allowed-tools: Read`."""
    folder = shelf / name
    folder.mkdir(parents=True, exist_ok=True)
    head = {"name": name, "description": description or f"Knows how to {name}.", **keys}
    lines = [f"{key.replace('_', '-') if key != 'when_to_use' else key}: {value}" for key, value in head.items()]
    (folder / "SKILL.md").write_text("\n".join(["---", *lines, "---", "", body, ""]), encoding="utf-8")
    return folder
