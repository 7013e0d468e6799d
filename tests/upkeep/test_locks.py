"""The lock files belong to pyproject.toml as it stands: `make lock` was run."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)", re.MULTILINE)


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / lock).read_text(encoding="utf-8")
    return {canonicalize_name(pin["name"]): pin["version"] for pin in PIN.finditer(text)}


def unmet(wanted: list[str], locked: dict[str, str]) -> list[str]:
    """The requirements that the lock does not hold, or holds at a version they exclude."""
    return [
        line
        for line, requirement in ((line, Requirement(line)) for line in wanted)
        if not requirement.specifier.contains(locked.get(canonicalize_name(requirement.name), "0"), prereleases=True)
    ]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_runtime_lock_holds_every_dependency(project: dict[str, Any]) -> None:
    assert unmet(project["project"]["dependencies"], pins("requirements.lock")) == []


def test_the_development_lock_holds_every_dependency_of_both_kinds(project: dict[str, Any]) -> None:
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    assert unmet(wanted, pins("requirements-dev.lock")) == []


def test_the_lock_of_the_generators_holds_them(project: dict[str, Any]) -> None:
    assert unmet(project["dependency-groups"]["generators"], pins("requirements-generators.lock")) == []


def test_the_lock_of_the_npm_packages_holds_them_and_names_no_place() -> None:
    folder = ROOT / "tests" / "javascript"
    wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))["devDependencies"]
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    assert lock["packages"][""]["devDependencies"] == wanted
    assert [name for name, found in lock["packages"].items() if name and "integrity" not in found] == []
    assert [name for name, found in lock["packages"].items() if "resolved" in found] == []


def test_tests_run_on_the_versions_that_the_runtime_lock_names() -> None:
    assert pins("requirements.lock").items() <= pins("requirements-dev.lock").items()


def test_a_missing_or_excluded_dependency_is_found() -> None:
    locked = {"kelp": "1.4"}
    assert unmet(["kelp>=1.2"], locked) == []
    assert unmet(["kelp>=2", "rock>=1"], locked) == ["kelp>=2", "rock>=1"]
