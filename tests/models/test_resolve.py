"""From a name to a model; every mistake gets an error that says what to write instead."""

import subprocess
import sys

import pytest

from holdfast.errors import ConfigError
from holdfast.models.http import HttpModel
from holdfast.models.resolve import Models

KEY = "sk-secret"


def test_a_model_has_a_name_a_provider_and_perhaps_a_context_limit() -> None:
    models = Models({"OPENAI_API_KEY": KEY})
    model = models.get("openai:gpt-4o-2024-08-06")
    assert isinstance(model, HttpModel)
    assert (model.name, model.provider, model.context_limit) == ("openai:gpt-4o-2024-08-06", "openai", 128_000)
    assert model._endpoint.shown == "https://api.openai.com/v1/chat/completions"
    assert models.get("openai:some-new-model").context_limit is None
    assert models.get("openai:gpt-4o-2024-08-06") is model
    assert KEY not in repr(model)


def test_the_address_of_openai_can_be_another() -> None:
    model = Models({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://gateway.example/openai/v1/"}).get("openai:x")
    assert isinstance(model, HttpModel)
    assert model._endpoint.shown == "https://gateway.example/openai/v1/chat/completions"


@pytest.mark.parametrize(
    ("name", "model", "provider"),
    [
        ("compatible:qwen3@http://localhost:8000/v1", "qwen3", "compatible:localhost:8000"),
        ("compatible:org/m:7b@https://host.example/v1", "org/m:7b", "compatible:host.example"),
        ("compatible:m@v2@https://host.example", "m@v2", "compatible:host.example"),
        ("compatible:m@http://[::1]:9/v1", "m", "compatible:[::1]:9"),
    ],
)
def test_any_compatible_server_can_be_named(name: str, model: str, provider: str) -> None:
    made = Models({}).get(name)
    assert isinstance(made, HttpModel)
    assert made.provider == provider
    assert made._wire._model == model  # type: ignore[attr-defined]


@pytest.mark.parametrize("environ", [{}, {"OPENAI_API_KEY": ""}, {"OPENAI_API_KEY": "  "}])
def test_a_missing_key_is_an_error_that_names_the_variable(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="set the environment variable OPENAI_API_KEY"):
        Models(environ).get("openai:gpt-5")


def test_a_key_that_cannot_be_one_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
        Models({"OPENAI_API_KEY": "sk-ab\ncd"}).get("openai:gpt-5")
    assert "sk-ab" not in str(caught.value)


def test_an_unknown_provider_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Known are: openai, compatible, scripted; did you mean 'openai'\?"):
        Models({}).get("opneai:gpt-5")
    with pytest.raises(ConfigError, match=r"Known are: openai, compatible, scripted$"):
        Models({}).get("zzz:gpt-5")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openai", "write openai:MODEL"),
        ("openai:", "write openai:MODEL"),
        ("compatible:m", "write compatible:MODEL@URL"),
        ("compatible:@http://host/v1", "write compatible:MODEL@URL"),
        ("compatible:m@ftp://host/v1", "write compatible:MODEL@URL"),
        ("compatible:m@http://u:p@host/v1", "must not hold a user name"),
    ],
)
def test_half_a_name_is_an_error_that_shows_a_whole_one(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Models({"OPENAI_API_KEY": KEY}).get(name)


def test_looking_for_a_model_loads_no_http_client_until_it_needs_one() -> None:
    program = (
        "import sys; from holdfast.models.resolve import Models; Models({}).get('scripted'); "
        "from holdfast.models.calls import Caller; Caller(); "
        "assert not {'httpcore2', 'httpx2', 'h11'} & set(sys.modules), 'loaded'; "
        "Models({}).get('compatible:m@http://localhost/v1'); assert 'httpcore2' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
