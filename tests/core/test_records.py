"""What records say of themselves: the digest that an approval is bound to, and the answer in a response."""

from msgspec.structs import replace

from holdfast.core.records import FINAL_ANSWER, Call, Message, Reasoning, Role, Text


def test_the_digest_of_a_call_names_it_with_the_arguments_that_would_run() -> None:
    call = Call(id="c1", batch=1, pos=1, name="pay")
    changed = replace(call, arguments='{"amount":1}')
    others = [
        replace(call, id="c2"),
        replace(call, name="refund"),
        replace(call, arguments=""),
        changed,
        replace(call, arguments='{"amount":100}'),
    ]
    assert len({one.digest for one in (call, *others)}) == 1 + len(others)
    assert changed.digest == replace(changed, pos=7, question="really?", answered_by="ann").digest
    assert len(call.digest) == 20


def test_an_answer_is_what_the_provider_says_is_final_or_all_of_the_text() -> None:
    parts = (Reasoning(text="Hm."), Text(text="I look. "), Text(text=" It rains. ", phase=FINAL_ANSWER))
    message = Message(id="r1", role=Role.ASSISTANT, parts=parts)
    assert (message.text, message.answer) == ("I look.  It rains. ", "It rains.")
    plain = replace(message, parts=parts[:2])
    assert plain.answer == plain.text == "I look. "
