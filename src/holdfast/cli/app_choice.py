"""Which app a command works on: the one that MODULE:APP names, or one for a user who has none yet."""

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import typer
from msgspec.structs import replace

from holdfast.agent import Agent
from holdfast.app import App, have_home
from holdfast.cli.default_agents import agents
from holdfast.cli.folder_trust import trusted_project
from holdfast.cli.logs import hide_in_logs
from holdfast.cli.options import Where
from holdfast.cli.trust import check_trust
from holdfast.config import load_config
from holdfast.errors import ConfigError
from holdfast.safe_text import safe
from holdfast.store.contract import Store

TELL_S = 3.0


class UsageError(ConfigError):
    """The command line itself is wrong."""

    code = "usage"


class NoDataYet(UsageError):
    """No process has made any where the command looks."""


def open_app(name: str | None = None, **settings: Any) -> App:
    """The app for this command; settings that are None are not given. Raises ConfigError."""
    app = make_app(name, **settings)
    have_home(app.config)
    return app


def make_app(name: str | None = None, **settings: Any) -> App:
    """The same without its home. Raises ConfigError."""
    check_trust()
    given = {key: value for key, value in settings.items() if value is not None}
    config = load_config(**given)
    name = name or config.app
    if name:
        app = load_app(name)
        app.change(**given)  # what the command line says beats what the program says
    else:
        app = App(agents=agents(os.environ, config.browser, trusted_project), config=config)
    hide_in_logs(app.secrets)
    return app


def app_of_data(where: Where) -> App:
    """For a command that works on what is stored, and runs nothing: no code is loaded that the settings name, neither
    the app nor plugins nor tool servers. Only an app on the command line is: its program may say where the data is.
    Raises ConfigError.
    """
    if where.app:
        return make_app(where.app, home=where.home, database=where.database)
    check_trust()
    config = load_config(home=where.home, database=where.database)
    if config.app and not config.database and not (Path(config.home) / "holdfast.db").exists():
        raise ConfigError(
            f"there is no database in {config.home!r}. {config.app}, which may name another, was not loaded: "
            f"say --app {config.app}, or set `database`"
        )
    app = App(config=replace(config, mcp=(), no_plugins=True))
    hide_in_logs(app.secrets)
    return app


def app_with_data(where: Where) -> App:
    """The same for a command that needs data to be there: it makes none. Raises NoDataYet, too."""
    app = app_of_data(where)
    if not has_data(app.store):
        raise NoDataYet(
            f'there is no data yet ({safe(str(app.store))}): holdfast run "hello" makes some, and --app, --home or '
            "--database name another place"
        )
    return app


def has_data(store: Store) -> bool:
    """Not where it is a file that no process has made yet. What else is wrong with it, it says when it is opened."""
    try:
        if store.file is not None:
            Path(store.file).stat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def look_at_app(where: Where) -> App:
    """For a command that only looks: it needs no home, and a store that can be read will do."""
    app = app_with_data(where)
    app.store.options = replace(app.store.options, only_reads=True)
    return app


def list_from_app(where: Where) -> App:
    """For a command that lists: where there is no data yet, its list is empty, and that is no error."""
    try:
        return look_at_app(where)
    except NoDataYet as error:
        print(f"holdfast: {error}", file=sys.stderr)
        raise typer.Exit(0) from error


@asynccontextmanager
async def opened(app: App) -> AsyncIterator[App]:
    """`async with app:` for a person who sits there and waits: a database that does not answer at once is named."""
    words = f"holdfast: waiting for {safe(str(app.store))}"
    telling = asyncio.get_running_loop().call_later(TELL_S, partial(print, words, file=sys.stderr, flush=True))
    async with AsyncExitStack() as leaving:
        try:
            await leaving.enter_async_context(app)
        finally:
            telling.cancel()
        yield app


def load_app(name: str) -> App:
    """From the current folder first. Raises ConfigError that says what is wrong with it."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute or module_name.endswith(".py"):
        wanted = f"{module_name.removesuffix('.py').replace('/', '.') or 'module'}:{attribute or 'app'}"
        raise UsageError(f"{name!r} is not MODULE:APP; write it like {wanted}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _import(module_name, folder)
    if not hasattr(module, attribute):
        apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
        hint = f"; it has {', '.join(f'{module_name}:{found}' for found in apps)}" if apps else "; it holds no App"
        raise ConfigError(f"module {module_name!r} has no {attribute!r}{hint}")
    app = getattr(module, attribute)
    if not isinstance(app, App):
        raise ConfigError(f"{name} is no App but a {type(app).__name__}: make one with holdfast.App(agents=[…])")
    return app


def _import(module_name: str, folder: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"there is no module {module_name!r} in {folder} or among the installed ones: "
                "go to the folder that holds it, or correct the name"
            ) from error
        raise _failed(module_name, error) from error
    except (Exception, SystemExit) as error:  # a module can raise anything
        raise _failed(module_name, error) from error


def _failed(module_name: str, error: BaseException) -> ConfigError:
    at = _place_of(error)
    last = traceback.format_exception_only(error)[-1].strip()
    return ConfigError(
        f"module {module_name!r} cannot be imported: {last}{at}. `python -c 'import {module_name}'` shows all of it"
    )


def _place_of(error: BaseException) -> str:
    """What cannot be parsed has run nothing yet: its traceback ends in Python's own loader."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def pick_agent(app: App, name: str | None, model: str | None = None) -> str:
    """The agent that a new chat is with; with a model of its own it goes by a name of its own. Raises UsageError."""
    if name is None:
        names = list(app.agents)
        if not names:
            raise UsageError("this app has no agents: give it some, App(agents=[…])")
        if len(names) > 1 and "assistant" not in names:
            raise UsageError(f"this app has several agents: choose one with --agent ({', '.join(names)})")
        name = "assistant" if "assistant" in names else names[0]
    if model is not None:
        name = f"{name.partition('@')[0]}@{model}"
    return know_agent(app, name)


def know_agent(app: App, name: str) -> str:
    """An agent of the app; or `NAME@MODEL`, which is that agent with another model.

    It has a name of its own because other workers on this database drive the chats of the agents they know, with the
    models that these have there. Raises ConfigError if its model cannot be used here.
    """
    if name not in app.agents:
        base, at, model = name.partition("@")
        if not at or base not in app.agents:
            raise UsageError(f"there is no agent {name!r}; this app has: {', '.join(sorted(app.agents)) or 'none'}")
        app.agents[name] = _with_model(app.agents[base], name, model)
    agent = app.agents[name]
    if isinstance(agent.model, str):
        app.models.get(agent.model)  # raises what is wrong with it, before anything is asked of it
    return name


def leave_to_others(app: App) -> None:
    """Agents whose models cannot be used here, for want of a key: a worker that had them would fail their chats."""
    for name, agent in list(app.agents.items()):
        if isinstance(agent.model, str):
            try:
                app.models.get(agent.model)
            except ConfigError:
                del app.agents[name]


def _with_model(agent: Agent, name: str, model: str) -> Agent:
    other = copy(agent)
    other.__dict__.pop("fingerprint", None)  # it was computed for the other model
    other.name, other.model, other.fallbacks = name, model, ()
    return other
