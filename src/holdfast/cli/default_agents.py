"""The agents of a user who has written none yet: `assistant`, a real model, and `scripted`, which needs nothing."""

import datetime
from collections.abc import Mapping

from holdfast.agent import Agent
from holdfast.models.base import Settings
from holdfast.models.resolve import default_model
from holdfast.models.scripted import Call, Say, ScriptedModel
from holdfast.tools.base import tool

INSTRUCTIONS = "You are a helpful assistant. Be brief. Answer in Markdown."
PACE_S = 0.03
SMALL_ANSWER_TOKENS = 512  # a small model finds no end by itself: asked for a story it went on for minutes


@tool(replay="pure")
async def current_time() -> str:
    """The date and the time now, with the offset from UTC."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


@tool(replay="pure")
async def count_words(text: str) -> str:
    """How many words a text has."""
    words = len(text.split())
    return f"{words} word{'' if words == 1 else 's'}"


def agents(environ: Mapping[str, str]) -> list[Agent]:
    model = default_model(environ)
    small = model == "local"
    tools = [] if small else [current_time]  # so small a model calls tools at random
    settings = Settings(max_tokens=SMALL_ANSWER_TOKENS if small else None)
    return [
        Agent("assistant", model, instructions=INSTRUCTIONS, tools=tools, settings=settings),
        Agent("scripted", scripted(), instructions=INSTRUCTIONS, tools=[current_time, count_words]),
    ]


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
