"""From a name to a model; every mistake gets an error that says what to write instead."""

import subprocess
import sys

import pytest

from holdfast.config import ModelFacts
from holdfast.errors import ConfigError
from holdfast.models.http.model import HttpModel
from holdfast.models.known import known_of, table
from holdfast.models.resolve import DEFAULTS, Models, default_model

KEY = "sk-secret"


KEYS = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY}


@pytest.mark.parametrize(
    ("name", "provider", "limit", "url"),
    [
        ("openai:gpt-4o-2024-08-06", "openai", 128_000, "https://api.openai.com/v1/responses"),
        ("openai-responses:gpt-5", "openai", 400_000, "https://api.openai.com/v1/responses"),
        ("openai-chat:gpt-5", "openai", 400_000, "https://api.openai.com/v1/chat/completions"),
        ("anthropic:claude-sonnet-4-5", "anthropic", 200_000, "https://api.anthropic.com/v1/messages"),
        ("anthropic:claude-3-5-sonnet-20241022", "anthropic", 200_000, "https://api.anthropic.com/v1/messages"),
        (
            "google:gemini-2.0-flash-001",
            "google",
            1_048_576,
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.0-flash-001:streamGenerateContent",
        ),
        (
            "google:tunedModels/mine",
            "google",
            None,
            "https://generativelanguage.googleapis.com/v1beta/tunedModels/mine:streamGenerateContent",
        ),
        ("openai:some-new-model", "openai", None, "https://api.openai.com/v1/responses"),
    ],
)
def test_a_model_has_a_name_a_provider_and_perhaps_a_context_limit(
    name: str, provider: str, limit: int | None, url: str
) -> None:
    models = Models(KEYS)
    model = models.get(name)
    assert isinstance(model, HttpModel)
    assert (model.name, model.provider, model.context_limit) == (name, provider, limit)
    assert model._endpoint.shown == url
    assert models.get(name) is model
    assert KEY not in repr(model)
    assert KEY not in model._endpoint.target


def test_what_the_user_says_of_a_model_beats_what_is_known() -> None:
    facts = {"openai:gpt-5": ModelFacts(context_limit=9), "compatible:m@http://h/v1": ModelFacts(context_limit=7)}
    models = Models(KEYS, facts)
    assert models.get("openai:gpt-5").context_limit == 9
    assert models.get("openai-chat:gpt-5").context_limit == 400_000
    assert models.get("compatible:m@http://h/v1").context_limit == 7


def test_every_model_in_the_table_has_a_limit_that_can_be_one() -> None:
    assert table().keys() == {"openai", "anthropic", "google"}
    for provider, models in table().items():
        for name, known in models.items():
            assert known.context is not None, (provider, name)
            assert 4_096 <= known.context <= 10_000_000
            assert known.output is None or 0 < known.output <= known.context
            assert known_of(provider, name) is known


@pytest.mark.parametrize(
    ("name", "variable", "url", "shown"),
    [
        (
            "openai:x",
            "OPENAI_BASE_URL",
            "https://gateway.example/openai/v1/",
            "https://gateway.example/openai/v1/responses",
        ),
        ("openai-chat:x", "OPENAI_BASE_URL", "https://g.example/v1", "https://g.example/v1/chat/completions"),
        ("anthropic:x", "ANTHROPIC_BASE_URL", "https://g.example/claude", "https://g.example/claude/v1/messages"),
        ("anthropic:x", "ANTHROPIC_BASE_URL", "https://g.example/v1/", "https://g.example/v1/messages"),
        (
            "google:x",
            "GOOGLE_GEMINI_BASE_URL",
            "https://g.example",
            "https://g.example/v1beta/models/x:streamGenerateContent",
        ),
        (
            "google:x",
            "GOOGLE_GEMINI_BASE_URL",
            "https://g.example/v1",
            "https://g.example/v1/models/x:streamGenerateContent",
        ),
    ],
)
def test_the_address_of_a_provider_can_be_another(name: str, variable: str, url: str, shown: str) -> None:
    model = Models({**KEYS, variable: url}).get(name)
    assert isinstance(model, HttpModel)
    assert model._endpoint.shown == shown


@pytest.mark.parametrize(
    ("name", "model", "provider"),
    [
        ("compatible:qwen3@http://localhost:8000/v1", "qwen3", "compatible:localhost:8000"),
        ("compatible:org/m:7b@https://host.example/v1", "org/m:7b", "compatible:host.example"),
        ("compatible:m@v2@https://host.example", "m@v2", "compatible:host.example"),
        ("compatible:m@http://[::1]:9/v1", "m", "compatible:[::1]:9"),
        ("compatible-responses:m@http://h:1/v1", "m", "compatible:h:1"),
        ("compatible-anthropic:m@http://h:1", "m", "compatible:h:1"),
        ("compatible-google:m@http://h:1", "m", "compatible:h:1"),
    ],
)
def test_any_compatible_server_can_be_named(name: str, model: str, provider: str) -> None:
    made = Models({}).get(name)
    assert isinstance(made, HttpModel)
    assert made.provider == provider
    assert made._wire._model == model  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude-opus-5", "ANTHROPIC_API_KEY"),
        ("google:gemini-2.5-pro", "GOOGLE_API_KEY or GEMINI_API_KEY"),
    ],
)
@pytest.mark.parametrize("given", [None, "", "  "])
def test_a_missing_key_is_an_error_that_names_the_variable(name: str, variable: str, given: str | None) -> None:
    environ = {} if given is None else dict.fromkeys(variable.split(" or "), given)
    with pytest.raises(ConfigError, match=f"set the environment variable {variable}$"):
        Models(environ).get(name)


def test_either_name_of_googles_key_will_do_and_the_first_one_counts() -> None:
    for environ, key in (({"GEMINI_API_KEY": "b"}, "b"), ({"GEMINI_API_KEY": "b", "GOOGLE_API_KEY": "a"}, "a")):
        model = Models(environ).get("google:gemini-2.5-pro")
        assert isinstance(model, HttpModel)
        assert model._key == key


@pytest.mark.parametrize(
    ("variable", "name"),
    [("OPENAI_API_KEY", "openai:gpt-5"), ("COMPATIBLE_API_KEY", "compatible:m@http://127.0.0.1:9/v1")],
)
@pytest.mark.parametrize("key", ["sk-ab\ncd", "sk-ab\x00", "sk-ab\u00e9"])
def test_a_key_that_cannot_be_one_is_an_error_that_does_not_show_it(variable: str, name: str, key: str) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        Models({variable: key}).get(name)
    assert "sk-ab" not in str(caught.value)


def test_the_line_end_of_a_key_that_was_read_from_a_file_is_no_part_of_it() -> None:
    model = Models({"COMPATIBLE_API_KEY": f"{KEY}\n"}).get("compatible:m@http://127.0.0.1:9/v1")
    assert isinstance(model, HttpModel)
    assert model._key == KEY


def test_an_unknown_provider_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'openai'\?$"):
        Models({}).get("opneai:gpt-5")
    with pytest.raises(
        ConfigError, match=r"Known are: openai, .*anthropic, google, compatible, .*scripted"
    ) as caught:
        Models({}).get("zzz:gpt-5")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("openai", "write openai:MODEL"),
        ("openai:", "write openai:MODEL"),
        ("anthropic:", "write anthropic:MODEL"),
        ("google", "write google:MODEL"),
        ("compatible:m", "write compatible:MODEL@URL"),
        ("compatible-anthropic:m", "write compatible-anthropic:MODEL@URL"),
        ("compatible:@http://host/v1", "write compatible:MODEL@URL"),
        ("compatible:m@ftp://host/v1", "write compatible:MODEL@URL"),
        ("compatible:m@http://u:p@host/v1", "must not hold a user name"),
    ],
)
def test_half_a_name_is_an_error_that_shows_a_whole_one(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Models({"OPENAI_API_KEY": KEY}).get(name)


@pytest.mark.parametrize(
    ("environ", "model"),
    [
        ({}, "local"),
        ({"OPENAI_API_KEY": " "}, "local"),
        ({"COMPATIBLE_API_KEY": KEY}, "local"),
        ({"OPENAI_API_KEY": KEY, "GEMINI_API_KEY": KEY}, "openai:gpt-6.1-terra"),
        (KEYS, "anthropic:claude-sonnet-5-5"),
    ],
)
def test_who_names_no_model_gets_one_that_works_as_things_are(environ: dict[str, str], model: str) -> None:
    assert default_model(environ) == model


@pytest.mark.parametrize("variable", DEFAULTS)
def test_every_default_is_a_known_model_that_its_key_is_enough_for(variable: str) -> None:
    model = Models({variable: KEY}).get(DEFAULTS[variable])
    assert model.name == DEFAULTS[variable]
    assert model.context_limit


@pytest.mark.parametrize("kind", ["compatible-responses", "compatible-anthropic", "compatible-google"])
def test_what_is_kept_of_messages_is_shared_within_a_provider_and_never_between_two(kind: str) -> None:
    """One provider's text holds its signatures, which are nobody else's business."""
    models = Models({})
    one, same, other = (models.get(f"{kind}:{name}") for name in ("a@http://h", "b@http://h", "a@http://g"))
    kept = [model._wire._fragments for model in (one, same, other)]  # type: ignore[attr-defined]
    assert kept[0] is kept[1]
    assert kept[0] is not kept[2]
    assert models.figures()["fragment_bytes_max"] == 2 * kept[0].bytes_max


def test_looking_for_a_model_loads_no_http_client_until_it_needs_one() -> None:
    program = (
        "import sys; from holdfast.models.resolve import Models; Models({}).get('scripted'); "
        "from holdfast.models.calls import Caller; Caller(); "
        "assert not {'httpcore2', 'httpx2', 'h11'} & set(sys.modules), 'loaded'; "
        "Models({}).get('compatible:m@http://localhost/v1'); assert 'httpcore2' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
