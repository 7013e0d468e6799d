"""Several lists as one: whatever is asked of it, it answers as their sum would."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.worker.joined_lists import Joined

PARTS = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=4)
PLACE = st.integers(-12, 12) | st.none()


@given(PARTS, st.slices(20) | st.builds(slice, PLACE, PLACE, st.sampled_from([None, 1, -1, 2])))
def test_lists_that_are_joined_answer_as_their_sum_does(parts: list[list[int]], some: slice) -> None:
    whole = [item for part in parts for item in part]
    joined = Joined(Joined(*parts[:2]), *parts[2:])
    assert joined == whole
    assert (len(joined), list(joined), list(reversed(joined))) == (len(whole), whole, whole[::-1])
    assert [joined[at] for at in range(-len(whole), len(whole))] == whole * 2
    assert joined[some] == whole[some]
    assert joined != [*whole, 1]
    assert repr(joined) == repr(whole)


@given(PARTS)
def test_what_is_added_to_a_list_later_is_not_seen(parts: list[list[int]]) -> None:
    whole = [item for part in parts for item in part]
    joined = Joined(*parts)
    for part in parts:
        part.append(7)
    assert joined == whole
    assert joined[-3:] == whole[-3:]
