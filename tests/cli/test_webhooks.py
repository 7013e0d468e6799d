"""`holdfast webhooks`: from the making of an endpoint to its removal, with a secret that is shown once."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config import load_config
from holdfast.errors import ConfigError
from holdfast.store.webhooks import new_secret
from holdfast.webhook_settings import DeclaredWebhook
from tests.cli.conftest import Done

URL = "https://example.com/hook"
Quick = Callable[..., Done]


def test_an_endpoint_is_added_listed_changed_and_removed(quick: Quick) -> None:
    hook, secret = quick("webhooks", "add", "ops", URL, "--owner", "ann", "--kind", "turn.failed").out.split()
    assert (hook[:5], secret[:6]) == ("hook_", "whsec_")
    listed = quick("webhooks", "list")
    assert secret not in listed.out
    assert listed.out.split("\t")[:7] == [hook, "ops", "ann", URL, "turn.failed", "", "active"]
    assert quick("webhooks", "change", hook, "--url", f"{URL}/2", "--links").code == 0
    shown = json.loads(quick("webhooks", "list", "--json").out)
    assert (shown["url"], shown["links"], shown["kinds"], "secret" in shown) == (
        f"{URL}/2",
        True,
        ["turn.failed"],
        False,
    )
    rotated = quick("webhooks", "rotate", hook, "--overlap", "7d").out.strip()
    assert rotated.startswith("whsec_")
    assert rotated != secret
    assert quick("webhooks", "disable", hook).out == f"{hook} is disabled\n"
    refused = quick("webhooks", "ping", hook)
    assert (refused.code, "enable it first" in refused.err) == (1, True)
    assert quick("webhooks", "enable", hook).out == f"{hook} is active\n"
    assert "is due" in quick("webhooks", "ping", hook).out
    assert "\tping\t" in quick("webhooks", "deliveries", hook).out
    event = json.loads(quick("webhooks", "deliveries", hook, "--json").out)["notice_id"]
    assert quick("webhooks", "replay", hook, event).out == "1 to be sent again\n"
    assert quick("webhooks", "replay", hook, "--since", "2d").out == "0 to be sent again\n"
    assert "answers anything" in quick("webhooks", "revoke-links").out
    assert quick("webhooks", "remove", hook).out == f"{hook} is removed\n"
    assert quick("webhooks", "deliveries", hook).code != 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("add", "ops", "http://example.com/"), "https://"),
        (("add", "ops", URL, "--kind", "turn.began"), "there are turn.ended"),
        (("rotate", "hook_0", "--overlap", "soon"), "30d or 12h"),
        (("deliveries", "hook_0", "--state", "lost"), "pending, delivered, failed"),
        (("replay", "hook_0", "evt_0", "--since", "2d"), "an event, or --since"),
    ],
)
def test_what_cannot_be_meant_is_said_so(quick: Quick, line: tuple[str, ...], words: str) -> None:
    quick("webhooks", "add", "there-is-a-database", URL)
    done = quick("webhooks", *line)
    assert (done.code, words in done.err) == (2, True), done.err


def test_the_settings_declare_endpoints_and_where_their_secrets_are(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(
        '[webhooks.ops]\nurl = "https://ops.example/"\nsecret_env = "OPS_SECRET"\nkinds = ["turn.failed"]\n'
    )
    (declared,) = load_config(file, {}).webhooks
    assert declared == DeclaredWebhook(
        "ops", url="https://ops.example/", secret_env="OPS_SECRET", kinds=("turn.failed",)
    )
    secret = new_secret()
    assert declared.secret({"OPS_SECRET": secret}) == secret
    with pytest.raises(ConfigError, match="OPS_SECRET is not set"):
        declared.secret({})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[webhooks.ops]\nurl = "https://x/"\nsecret_enf = "A"', "did you mean secret_env"),
        ('[webhooks.ops]\nurl = "https://x/"', "secret_env"),
        ('[webhooks."a b"]\nurl = "https://x/"\nsecret_env = "A"', "up to 64 letters"),
        ('[webhooks.ops]\nurl = "https://x/"\nsecret_env = "A"\nkinds = "turn.ended"', "kinds"),
        ("webhooks = 3", r"a table for each"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(file, {})
