"""The agents of a user who has written none yet: `assistant`, a real model, and `scripted`, which needs nothing.

With a key, the assistant works in the folder that it was started in: it reads and searches there unasked, and a
person is asked before it changes a file or runs a command, unless the rules of the settings say otherwise.
"""

import datetime
from collections.abc import Mapping

from holdfast.agent import Agent
from holdfast.config import Permissions
from holdfast.models.base import Settings
from holdfast.models.resolve import default_model
from holdfast.models.scripted import Call, Say, ScriptedModel
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


def agents(environ: Mapping[str, str]) -> list[Agent]:
    model = default_model(environ)
    if model == "local":  # so small a model calls tools at random
        assistant = Agent(
            "assistant", model, instructions=INSTRUCTIONS, settings=Settings(max_tokens=SMALL_ANSWER_TOKENS)
        )
    else:
        assistant = Agent(
            "assistant", model, instructions=INSTRUCTIONS + AT_WORK, tools=hands(), permissions=Permissions()
        )
    return [
        assistant,
        Agent("scripted", scripted(), instructions=INSTRUCTIONS, tools=[current_time, count_words]),
    ]


def hands() -> list[Tool]:
    from holdfast.tools.files.tools import file_tools  # noqa: PLC0415  parsers and all: only who has a key pays
    from holdfast.tools.plan import plan_tool  # noqa: PLC0415
    from holdfast.tools.shell.tool import shell_tool  # noqa: PLC0415

    return [current_time, *file_tools(ROOT), shell_tool(root=ROOT), plan_tool()]


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
