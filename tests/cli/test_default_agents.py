"""The agents of somebody who has written none: what they are depends on the keys that are there."""

from holdfast.cli.default_agents import SMALL_ANSWER_TOKENS, agents


def test_the_small_model_of_this_machine_has_no_tools_and_an_end_to_its_answers() -> None:
    """It calls tools at random, and asked for a story it wrote until its context was full, for minutes."""
    assistant, scripted = agents({})
    assert (assistant.name, assistant.model, scripted.name) == ("assistant", "local", "scripted")
    assert not assistant.tools
    assert assistant.settings.max_tokens == SMALL_ANSWER_TOKENS


def test_a_big_model_is_held_to_nothing() -> None:
    assistant, _ = agents({"OPENAI_API_KEY": "sk-kelp"})
    assert str(assistant.model).startswith("openai:")
    assert list(assistant.tools) == ["current_time"]
    assert assistant.settings.max_tokens is None
