"""The agents of a user who has written none yet: `assistant`, a real model, and `scripted`, which needs nothing.

With a key, the assistant works in the folder that it was started in: it reads and searches there unasked, and a
person is asked before it changes a file, runs a command or opens a page, unless the rules of the settings say
otherwise. It searches the web where a search engine is configured, and browses where there is a Chromium. It has the
skills of the user and, where the folder is trusted, its skills and AGENTS.md.
"""

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.agent import Agent, Memory
from holdfast.cli.folder_trust import project_folders
from holdfast.config import Permissions
from holdfast.errors import ToolFailed
from holdfast.models.base import Settings
from holdfast.models.resolve import default_model
from holdfast.models.scripted import Call, Say, ScriptedModel
from holdfast.skills.shelf import Skills
from holdfast.tools.base import Tool, tool

INSTRUCTIONS = "You are a helpful assistant. Be brief. Answer in Markdown."
AT_WORK = (
    " You work in a folder of the user's: read and search its files before you answer what is about them. A person"
    " may be asked before a file is changed or a command is run, so say what you are about to do. Keep a plan where"
    " there are several steps, and look at what you did before you call it done."
)
ROOT = "."
PACE_S = 0.03
SMALL_ANSWER_TOKENS = 512  # a small model finds no end by itself: asked for a story it went on for minutes


@tool(replay="pure", acts=lambda _: [])
async def current_time() -> str:
    """The date and the time now, with the offset from UTC."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


@tool(replay="pure", acts=lambda _: [])
async def count_words(text: str) -> str:
    """How many words a text has."""
    words = len(text.split())
    return f"{words} word{'' if words == 1 else 's'}"


def agents(
    environ: Mapping[str, str], browser: str = "", project: Callable[[], Path | None] = lambda: None
) -> list[Agent]:
    """`browser`: the Chromium that the settings name. `project`: asks for the folder whose skills and AGENTS.md are
    to be told; None where a person does not trust it.
    """
    model = default_model(environ)
    if model == "local":  # so small a model calls tools at random
        assistant = Agent(
            "assistant", model, instructions=INSTRUCTIONS, settings=Settings(max_tokens=SMALL_ANSWER_TOKENS)
        )
    else:
        folder = project()
        own = [] if folder is None else [Skills.of_project(place) for place in project_folders(folder)]
        assistant = Agent(
            "assistant",
            model,
            instructions=INSTRUCTIONS + AT_WORK,
            tools=hands(environ, browser),
            permissions=Permissions(),
            skills=[*own, Skills.of_user(environ)],
            agents_md=folder,
            memory=Memory(episodes=False),  # no call of the model that nobody asked for
        )
    return [
        assistant,
        Agent("scripted", scripted(), instructions=INSTRUCTIONS, tools=[current_time, count_words]),
    ]


def hands(environ: Mapping[str, str], browser: str) -> list[Tool]:
    from holdfast.tools.files.tools import file_tools  # noqa: PLC0415  parsers and all: only who has a key pays
    from holdfast.tools.plan import plan_tool  # noqa: PLC0415
    from holdfast.tools.shell.tool import shell_tool  # noqa: PLC0415

    return [current_time, *file_tools(ROOT), shell_tool(root=ROOT), plan_tool(), *web(environ, browser)]


def web(environ: Mapping[str, str], browser: str) -> list[Tool]:
    """What of the web can be used here. Each host asks a person first."""
    from holdfast.tools.browser.chromium import find_program  # noqa: PLC0415
    from holdfast.tools.browser.tools import browse_tools  # noqa: PLC0415
    from holdfast.tools.web.search import search_engine, web_search_tool  # noqa: PLC0415

    searches = [web_search_tool()] if search_engine(environ) is not None else []
    try:
        find_program(browser or None)
    except ToolFailed:
        return searches
    return [*searches, *browse_tools(program=browser or None)]


def scripted() -> ScriptedModel:
    """Uses its tools once in every turn, then says what it was told."""
    return ScriptedModel(
        [
            Say(text="I am a script: I use my tools, then I repeat what you say."),
            Call(name="current_time"),
            Call(name="count_words", arguments={"text": "kelp on its rock"}),
        ],
        after="echo",
        per="turn",
        pace_s=PACE_S,
    )
