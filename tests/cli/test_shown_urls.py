"""No surface shows the password of a database's address, however odd the address is."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.redaction import Secrets
from holdfast.store import open_store
from holdfast.urls import shown_url
from tests.cli.conftest import Done

Quick = Callable[..., Done]
SECRET = "hunter2kelp"

# Where a password stands, or may get to by a slip: {} is its place.
PLACES = [
    "postgresql://me:{}@db/chats",
    "postgresql://me:{}@db:5432,other:5433/chats",
    "postgresql://me:{}@[::1]:5432/chats",
    "postgresql://:{}@db/chats",
    "postgresql://me:{}/chats",
    "postgresql://me:{}",
    "postgresql://me:{}@/chats?host=/run/postgresql",
    "postgresql://db/chats?user=me&password={}",
    "postgresql://db/chats?user=me&PASSWORD={}",
    "postgresql://db/chats?sslpassword={}",
    "postgresql://db/chats?sslmode=require;password={}",
    "postgresql://db/chats?passfile=/srv/{}",
    "postgresql://db/chats?options=-c%20x%3D{}",
    "postgresql://db/chats?listen_dsn=postgresql%3A%2F%2Fme%3A{}%40db%2Fchats",
    "postgresql://db/chats#{}",
    "postgresql:/me:{}@db/chats",
    "postgresql:me:{}@db/chats",
    "postgresql//me:{}@db/chats",
    "postgres ://me:{}@db/chats",
    " postgresql://me:{}@db/chats",
    "me:{}@db/chats",
    "host=db user=me password={} dbname=chats",
    "host=db user=me password = '{}'",
    "password={}",
    "service=kelp password={}",
    "mysql://me:{}@db/chats",
    "mysql://db/chats?password={}",
    "sqlite:///me:{}@file.db",
    "sqlite:///file.db?key={}",
    "sqlite://me:{}@host/file.db",
    "{}://db/chats",
]
ODD = st.sampled_from(
    ["", "@", "/", ":", "?", "#", "%", "%40", " ", "&", "=", "'", "\\", "[", "@@", "?a=", "&b=", "é", "\n"]
)


def said_of(url: str) -> str:
    try:
        store = open_store(url)
    except ConfigError as error:
        return str(error)
    return "" if url.startswith("sqlite:") else str(store)  # what a file is called is no secret


@given(st.sampled_from(PLACES), ODD, ODD, st.booleans())
@example("postgresql://me:{}@db/chats", "?a=", "", False)
def test_a_password_is_shown_in_no_place_and_with_no_neighbour(
    place: str, before: str, after: str, coded: bool
) -> None:
    """Half of it is as bad: what stands around it may end the password, or begin another part, for some reader."""
    password = f"{before}{SECRET}{after}"
    url = place.replace("{}", quote(password, safe="") if coded else password)
    assert SECRET not in shown_url(url)
    assert SECRET not in said_of(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////var/lib/holdfast/holdfast.db", "sqlite:////var/lib/holdfast/holdfast.db"),
        ("sqlite:///.holdfast/holdfast.db", "sqlite:///.holdfast/holdfast.db"),
        ("postgresql://me@db/chats", "postgresql://me@db/chats"),
        ("postgresql://me:secret@db:5432/chats?pooler=transaction&hints=off",
         "postgresql://me:***@db:5432/chats?pooler=transaction&hints=off"),
        ("postgresql://me:secret@a:1,b:2/chats?sslmode=require", "postgresql://me:***@a:1,b:2/chats?sslmode=require"),
        ("postgresql://me:se%40cret@db/chats", "postgresql://…"),
        ("postgresql://db/chats?password=secret", "postgresql://…"),
        ("host=db password=secret", "…"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_plain_address_is_shown_and_of_an_odd_one_only_the_scheme(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize("url", [place.replace("{}", SECRET) for place in PLACES[:-1] if "sqlite" not in place])
def test_config_show_and_doctor_do_not_tell_it(url: str, quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE", url)
    monkeypatch.setenv("HOLDFAST_STORE_DEADLINE_S", "0.2")
    for command in (("config", "show"), ("config", "show", "--json"), ("doctor",), ("chats", "list")):
        done = quick(*command)
        assert SECRET not in done.out + done.err, command


def test_config_show_says_where_a_wrong_password_came_from(quick: Quick, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(f'database = "host=db password={SECRET}"\n')
    shown = quick("config", "show").out
    assert re.search(r"database\t…\tholdfast.toml", shown)


@pytest.mark.parametrize(
    "url", ["postgresql://db/chats?user=me&password=hunter2%2Fkelp", "host=db password='hunter2/kelp' user=me"]
)
def test_a_password_that_stands_among_the_options_is_taken_out_of_logs_as_well(url: str) -> None:
    secrets = Secrets()
    secrets.add_url("database password", url)
    assert secrets.taken_out("it said hunter2/kelp") == "it said [database password]"
