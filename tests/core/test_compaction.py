"""When a history is compacted, where it is cut, and what stands for what was cut (promise 4)."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.compaction import (
    LEFT_OUT,
    MESSAGE_TOKENS,
    WORKING_ON,
    CompactionRules,
    Window,
    boundaries,
    budget,
    counted,
    estimated,
    estimated_message,
    find_cut,
    fitted,
    problem_of,
    result_tokens,
    shortened,
    spoken,
    summary_message,
    summary_room,
    summary_text,
    transcript,
    trim_text,
)
from holdfast.core.history import problems
from holdfast.core.records import File, Message, Reasoning, Role, Synthetic, Text, ToolCall, ToolResult

POLICY = CompactionRules(keep_turns=2, keep_share=0.5, summary_tokens=10)


def user(text: str = "Hi.", synthetic: Synthetic | None = None) -> Message:
    return Message(id="u", role=Role.USER, parts=(Text(text=text),), synthetic=synthetic)


def says(text: str = "Well.", **fields: int) -> Message:
    return Message(id="a", role=Role.ASSISTANT, parts=(Text(text=text),), **fields)  # type: ignore[arg-type]


def step(*ids: str) -> list[Message]:
    asks = Message(
        id="a", role=Role.ASSISTANT, parts=tuple(ToolCall(call_id=id, name="t", arguments="{}") for id in ids)
    )
    results = [
        Message(id=f"{id}.result", role=Role.TOOL, parts=(ToolResult(call_id=id, name="t", content="ok"),))
        for id in ids
    ]
    return [asks, *results]


def window(messages: Sequence[Message], size: int = 10, **fields: int) -> Window:
    start = fields.pop("start", 0)
    return Window(start=start, messages=messages, sizes=[size] * len(messages), **fields)


# --- every cut point of every small history ---------------------------------------------------------


def histories(groups_max: int = 5) -> Iterator[list[Message]]:
    """All sequences of a user's message, an answer, a step with one call and a step with two."""
    for length in range(1, groups_max + 1):
        for kinds in product("ua12", repeat=length):
            messages: list[Message] = []
            for at, kind in enumerate(kinds):
                match kind:
                    case "u":
                        messages.append(user())
                    case "a":
                        messages.append(says())
                    case "1":
                        messages += step(f"c{at}")
                    case _:
                        messages += step(f"c{at}", f"d{at}")
            yield messages


def test_a_history_that_is_cut_at_any_boundary_is_valid_behind_a_summary_and_at_any_other_place_it_is_not() -> None:
    cuts = 0
    for messages in histories():
        assert problems(messages) == []
        allowed = boundaries(messages)
        for at in range(len(messages) + 1):
            found = problems([summary_message(at, "In short."), *messages[at:]])
            assert (found == []) == (at in allowed), (at, messages)
            cuts += at in allowed
    assert cuts > 4_000


def test_a_cut_is_a_boundary_that_covers_something_and_leaves_what_nobody_answered_yet() -> None:
    found = 0
    for messages in histories():
        turns = [at for at, message in enumerate(messages) if message.role is Role.USER] or [0]
        for room, turn_from in product((None, 1, 25, 60, 1_000), (None, turns[-1], turns[0])):
            seen = Window(start=7, messages=messages, sizes=[10] * len(messages), turn_from=_shifted(turn_from))
            cut = find_cut(seen, room, POLICY)
            assert cut == find_cut(seen, room, POLICY), "it is deterministic"
            if cut is None:
                continue
            found += 1
            at = cut - 7
            assert 0 < at <= len(messages)
            assert at in boundaries(messages)
            trailing = len(messages)
            while trailing and messages[trailing - 1].role is Role.USER:
                trailing -= 1
            covered_open = at > trailing and at > (turn_from if turn_from is not None else turns[-1])
            assert not covered_open, "an unanswered message of the current turn was covered"
    assert found > 4_000


def unseen_from(messages: Sequence[Message]) -> int:
    """From here on no response follows: the last one's calls were answered, and nobody has read that yet."""
    last = max((at for at, message in enumerate(messages) if message.role is Role.ASSISTANT), default=-1)
    return last if last >= 0 and messages[last].calls else len(messages)


def begins(messages: Sequence[Message]) -> list[int]:
    return [at for at, message in enumerate(messages) if message.role is Role.USER]


def test_no_cut_of_any_small_history_covers_a_result_that_no_model_has_seen() -> None:
    found = 0
    for messages in histories(4):
        for room, turn_from in product((None, 1, 25, 60, 1_000), (None, *begins(messages))):
            for policy in (POLICY, CompactionRules(keep_turns=1, keep_share=0.1, summary_tokens=1)):
                cut = find_cut(window(messages, turn_from=turn_from), room, policy)  # type: ignore[arg-type]
                found += cut is not None
                assert cut is None or cut <= unseen_from(messages), (cut, room, turn_from, messages)
    assert found > 1_000


@st.composite
def long_histories(draw: st.DrawFn) -> tuple[list[Message], list[int]]:
    """Turns of all kinds, the last one open or not, each message of any size."""
    messages: list[Message] = []
    for at, kind in enumerate(draw(st.lists(st.sampled_from("uua12"), min_size=1, max_size=30))):
        ids = (f"c{at}", f"d{at}")
        messages += [user()] if kind == "u" else [says()] if kind == "a" else step(*ids[: int(kind)])
    sizes = st.lists(st.integers(1, 400_000), min_size=len(messages), max_size=len(messages))
    return messages, draw(sizes)


@given(
    history=long_histories(),
    turn=st.none() | st.integers(0, 30),
    room=st.none() | st.integers(1, 200_000),
    keep_turns=st.integers(1, 6),
    keep_share=st.floats(0.01, 1),
    scale=st.floats(1, 8),
)
@settings(max_examples=400)
def test_no_cut_covers_a_result_that_no_model_has_seen(
    history: tuple[list[Message], list[int]],
    turn: int | None,
    room: int | None,
    keep_turns: int,
    keep_share: float,
    scale: float,
) -> None:
    messages, sizes = history
    policy = CompactionRules(keep_turns=keep_turns, keep_share=keep_share)
    opened = begins(messages)
    turn_from = opened[turn % len(opened)] if opened and turn is not None else None
    seen = Window(start=0, messages=messages, sizes=sizes, turn_from=turn_from)
    cut = find_cut(seen, room, policy, scale=scale)
    assert cut is None or (cut in boundaries(messages) and cut <= unseen_from(messages))


def _shifted(turn_from: int | None) -> int | None:
    return None if turn_from is None else turn_from + 7


def test_a_history_whose_calls_are_open_is_not_cut_at_its_end() -> None:
    messages = [user(), *step("a", "b")[:2]]
    assert boundaries(messages) == [0, 1]


# --- where ------------------------------------------------------------------------------------------


def turns(count: int) -> list[Message]:
    return [message for _ in range(count) for message in (user(), says())]


def test_the_newest_turns_stay_whole_up_to_their_number() -> None:
    assert find_cut(window(turns(5)), None, POLICY) == 6
    assert find_cut(window(turns(5)), None, CompactionRules(keep_turns=3)) == 4


def test_the_newest_turns_stay_as_far_as_they_take_no_more_than_their_share() -> None:
    assert find_cut(window(turns(5)), 80, POLICY) == 6  # two turns are 40 of 80
    assert find_cut(window(turns(5)), 79, POLICY) == 8  # which leaves room for one


def test_of_fewer_turns_than_may_stay_the_oldest_is_covered() -> None:
    assert find_cut(window(turns(2)), None, POLICY) == 2
    assert find_cut(window(turns(1)), None, POLICY) is None


def test_the_current_turn_stays_whole_while_it_fits_beside_a_summary() -> None:
    messages = [*turns(2), user(), *step("a"), *step("b")]  # the turn takes 50
    seen = window(messages, turn_from=4)
    assert find_cut(seen, 82, POLICY) == 4  # more than its share, but there is room for a summary of 32
    assert find_cut(seen, 81, POLICY) == 7


def test_a_turn_that_does_not_fit_is_cut_between_its_completed_steps() -> None:
    messages = [user(), *step("a"), *step("b", "c"), *step("d"), user("steer")]
    seen = window(messages, turn_from=0)
    assert find_cut(seen, 80, POLICY) == 6  # keeps the last step and what joined it, 30 of 40
    assert find_cut(seen, 120, POLICY) == 3  # 60 of 60
    assert find_cut(seen, 20, POLICY) == 6  # keeps what no model has seen, whatever it takes


def test_a_history_of_which_the_current_turn_is_missing_is_cut_before_its_last_one() -> None:
    assert find_cut(window(turns(3), turn_from=9), None, POLICY) == 4


def test_a_message_that_is_too_long_by_itself_is_not_covered() -> None:
    assert find_cut(window([user()], size=1_000, turn_from=0), 10, POLICY) is None
    assert find_cut(window([*turns(1), user()], size=1_000, turn_from=2), 10, POLICY) == 2


def test_a_turn_that_was_cut_before_is_cut_again_further_on() -> None:
    messages = [*step("a"), *step("b"), *step("c")]
    seen = Window(start=20, messages=messages, sizes=[10] * 6, turn_from=11)
    assert find_cut(seen, 40, POLICY) == 24


def test_messages_that_joined_or_were_written_by_the_runtime_begin_no_turn() -> None:
    joined = [user(), user(), says(), user("fix it", Synthetic.INVALID_OUTPUT), says()]
    assert find_cut(window([*turns(1), *joined]), None, CompactionRules(keep_turns=1)) == 2


def test_a_cut_that_saves_too_little_is_not_made() -> None:
    assert find_cut(window(turns(2)), None, POLICY, worth=20) == 2
    assert find_cut(window(turns(2)), None, POLICY, worth=21) is None


def test_where_a_provider_counts_more_than_we_do_less_is_kept() -> None:
    assert find_cut(window(turns(5)), 80, POLICY, scale=1.0) == 6
    assert find_cut(window(turns(5)), 80, POLICY, scale=2.0) == 8


def test_the_current_turn_stays_whole_if_it_takes_exactly_its_share() -> None:
    messages = [*turns(1), user(), *step("c1"), *step("c2")]
    whole = CompactionRules(keep_turns=2, keep_share=1.0, summary_tokens=10)
    assert find_cut(window(messages), 50, whole) == 2
    assert find_cut(window(messages), 49, whole) == 5, "between its steps"


def test_where_nothing_can_be_covered_nothing_is_however_little_it_has_to_save() -> None:
    assert find_cut(window([user()]), None, POLICY, worth=0) is None


# --- when -------------------------------------------------------------------------------------------


def test_a_request_is_the_providers_last_figure_and_an_estimate_of_what_is_new() -> None:
    messages = [user(), says(input_tokens=500), user()]
    assert counted(window(messages, fixed=490)).tokens == 500 + 10 + 10
    assert counted(window(messages)).tokens == round(500 + 8.0 * 20), "its figure tells how it counts, within reason"


def test_without_a_figure_all_of_it_is_estimated() -> None:
    assert counted(window([user(), says(), user()], fixed=5, summary=7)).tokens == 42


def test_a_figure_for_a_longer_request_is_not_believed_after_a_compaction() -> None:
    messages = [user(), says(input_tokens=9_000, covered=0), user()]
    assert counted(window(messages, start=4)).tokens == 30
    messages[1] = says(input_tokens=25, covered=4)
    assert counted(window(messages, start=4, fixed=25)).tokens == 45


def test_a_summary_and_what_is_fixed_are_part_of_what_the_provider_counted() -> None:
    messages = [user(), says(input_tokens=1_000), user()]
    found = counted(window(messages, fixed=400, summary=90))
    assert (found.scale, found.tokens) == (2.0, 1_000 + 2 * 20)


def test_instructions_that_came_with_the_open_turn_are_not_in_an_older_figure() -> None:
    told = replace(user(), instructions="x" * 30)
    messages = [user(), says(input_tokens=500, covered=4), told]

    def tokens(turn_from: int | None) -> int:
        found = Window(start=4, messages=messages, sizes=[10] * 3, fixed=490, turn_from=turn_from)
        return counted(found).tokens

    assert tokens(6) == 520 + 10
    assert tokens(7) == 520, "the message that began the turn is missing"
    assert tokens(None) == 520
    messages[1] = replace(messages[1], instructions="x" * 30)
    messages[2] = user()
    assert (tokens(4), tokens(5), tokens(6)) == (520, 520, 520), "the figure holds what came before it"


@pytest.mark.parametrize(
    ("limit", "policy", "max_tokens", "expected"),
    [
        (4_096, CompactionRules(), None, 3_481 - 512),
        (128_000, CompactionRules(), None, 108_800 - 4_096),
        (128_000, CompactionRules(), 16_000, 108_800 - 16_000),
        (128_000, CompactionRules(answer_tokens=1_000), 16_000, 108_800 - 1_000),
        (10_000, CompactionRules(share=0.5), 9_000, 2_500),  # an answer takes half of it at most
    ],
)
def test_a_request_leaves_room_for_its_answer(
    limit: int, policy: CompactionRules, max_tokens: int | None, expected: int
) -> None:
    assert budget(limit, policy, max_tokens) == expected


def test_a_text_is_estimated_by_its_bytes() -> None:
    assert (estimated(""), estimated("abc"), estimated("abcd"), estimated("中文字")) == (0, 1, 2, 3)
    assert estimated("\ud800") == 1


def test_a_text_that_came_inline_counts_by_its_length_and_any_other_file_as_an_image() -> None:
    long = "data:text/plain;base64," + "QUJD" * 30_000
    for media_type, uri, least in (
        ("text/csv", long, 30_000),
        ("image/png", long, 1_500),
        ("text/csv", "https://x", 1_500),
    ):
        file = File(media_type=media_type, uri=uri)
        assert least <= estimated_message(Message(id="m", role=Role.USER, parts=(file,))) < least + 100


def test_every_part_of_a_message_counts_but_unsigned_reasoning() -> None:
    def size(*parts: object) -> int:
        return estimated_message(Message(id="m", role=Role.ASSISTANT, parts=parts))  # type: ignore[arg-type]

    nothing = size()
    assert size(Text(text="x" * 300)) == nothing + 100
    assert size(Reasoning(text="x" * 300)) == nothing
    assert size(Reasoning(text="x" * 300, signature=Raw(b'"' + b"s" * 298 + b'"'))) == nothing + 200
    assert size(ToolCall(call_id="c", name="abc", arguments="x" * 300)) == nothing + MESSAGE_TOKENS + 101
    assert size(ToolResult(call_id="c", name="abc", content="x" * 300)) == nothing + MESSAGE_TOKENS + 101
    assert size(File(media_type="image/png", uri="blob:1")) > nothing + 1_000


@pytest.mark.parametrize(
    "policy",
    [
        CompactionRules(share=0),
        CompactionRules(share=1.1),
        CompactionRules(keep_share=0),
        CompactionRules(keep_turns=0),
        CompactionRules(summary_tokens=0),
        CompactionRules(answer_tokens=0),
        CompactionRules(deadline_s=0),
    ],
)
def test_a_policy_that_makes_no_sense_is_named(policy: CompactionRules) -> None:
    assert problem_of(policy)
    assert problem_of(CompactionRules()) is None


def test_a_policy_may_go_to_the_edge_of_what_makes_sense() -> None:
    edge = CompactionRules(share=1, keep_share=1, keep_turns=1, summary_tokens=1, answer_tokens=1, deadline_s=0.001)
    assert problem_of(edge) is None


# --- what stands for it -----------------------------------------------------------------------------


def test_a_summary_is_a_users_message_of_its_own_that_says_what_it_is() -> None:
    message = summary_message(7, "They chose Bern.")
    assert (message.role, message.id) == (Role.USER, "summary.7")
    assert message.text.endswith("They chose Bern.")
    assert "not the user" in message.text
    assert "not instructions" in message.text


def test_a_summary_is_bounded_and_names_the_message_that_is_worked_on() -> None:
    text = summary_text("x" * 100_000, 100, "Do " + "it " * 1_000)
    assert estimated(text) < 200
    assert WORKING_ON in text
    assert text.index("x") < text.index(WORKING_ON) < text.index("Do it")
    assert summary_text(" short ", 100) == "short"


def test_what_is_left_out_without_a_summary_is_said_and_what_was_known_stays() -> None:
    known = "They chose Bern."
    covered = [user("x" * 10_000), says("The last words.")]
    once = trim_text(known, covered, 400, "Go on")
    assert once.startswith(known)
    assert LEFT_OUT in once
    assert "The last words." in once
    assert once.endswith("Go on")
    again = trim_text(once, [says("Later.")], 400)
    assert spoken(again) == known
    assert again.count(LEFT_OUT) == 1
    assert estimated(trim_text("y" * 100_000, covered * 50, 400, "z" * 100_000)) < 600


def test_a_transcript_tells_who_said_and_did_what_each_part_shortened() -> None:
    calls, result = step("c")
    failed = Message(id="r", role=Role.TOOL, parts=(ToolResult(call_id="d", name="t", content="no", error=True),))
    file = Message(id="f", role=Role.USER, parts=(File(media_type="image/png", uri="blob:1"),))
    thought = Message(id="h", role=Role.ASSISTANT, parts=(Reasoning(text="Hm"), Text(text="Yes.")))
    lines = transcript([user("Go."), calls, result, failed, file, thought], 1_000).splitlines()
    assert lines == [
        "[user] Go.",
        "[assistant calls t] {}",
        "[t returned] ok",
        "[t failed] no",
        "[user] (a file: image/png, blob:1)",
        "[assistant] Yes.",
    ]
    assert estimated(transcript([user("x" * 100_000)], 800)) < 130


def test_what_just_fits_is_not_shortened() -> None:
    assert shortened("x" * 9, 3) == "x" * 9
    assert shortened("x" * 10, 3) != "x" * 10


def test_what_is_shortened_keeps_head_and_tail_and_says_how_much_is_gone() -> None:
    text = "head" + "-" * 3_000 + "tail"
    short = shortened(text, 100)
    assert short.startswith("head")
    assert short.endswith("tail")
    assert "2,709 characters left out" in short
    assert shortened("short", 100) == "short"
    assert estimated(shortened("中" * 5_000, 100)) < 130


def answering(*contents: str) -> list[Message]:
    """A response with calls, and what they returned."""
    asks, *results = step(*(f"c{at}" for at in range(len(contents))))
    return [
        asks,
        *(
            replace(result, parts=(ToolResult(call_id=f"c{at}", name="t", content=content),))
            for at, (result, content) in enumerate(zip(results, contents, strict=True))
        ),
    ]


def contents(messages: Sequence[Message]) -> list[str]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolResult)]


def test_results_that_fit_together_are_shown_as_they_are() -> None:
    messages = [user("x" * 9_000), *answering("a" * 150, "b" * 150)]
    assert fitted(messages, 100) == messages
    assert contents(fitted([*messages, *messages], 100)) == contents([*messages, *messages]), (
        "each response by itself"
    )


def test_of_results_that_do_not_fit_the_longest_lose_their_middles_and_each_can_be_seen() -> None:
    long = "head" + "-" * 60_000 + "tail"
    first, short, second = contents(fitted(answering(long, "s" * 30, long), 210))
    assert short == "s" * 30
    assert first == second == shortened(long, 100), "what the short one leaves is for the others"
    (alone,) = contents(fitted(answering(long), 100))
    assert (alone[:4], alone[-4:], "characters left out" in alone) == ("head", "tail", True)


def test_what_is_shown_of_a_batch_takes_no_more_than_it_may() -> None:
    for count in (1, 2, 7, 40):
        shown = fitted(answering(*("x" * 3_000 * at for at in range(1, count + 1))), 1_000)
        assert sum(map(estimated, contents(shown))) <= 1_000 + 20 * count, "a note in each says what is missing"


def test_results_may_take_the_share_that_the_newest_turns_may() -> None:
    assert result_tokens(100_000, CompactionRules()) == 40_000
    assert result_tokens(1, CompactionRules()) == 32


def test_a_summary_gets_a_quarter_of_the_room_at_most_and_enough_to_say_something() -> None:
    assert summary_room(None, CompactionRules()) == 2_000
    assert summary_room(1_000, CompactionRules()) == 250
    assert summary_room(10, CompactionRules()) == 32
