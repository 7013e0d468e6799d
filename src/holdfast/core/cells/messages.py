"""Cells: what a user says. A message is sent, edited, moved to the front of the queue, or taken back; and
what was said elsewhere is given, before the first turn.
"""

from msgspec import Raw

from holdfast.core import commands as cmd
from holdfast.core import journal
from holdfast.core.cells.answers import finish_external, time_over_at
from holdfast.core.change import Refusal
from holdfast.core.codec import encode
from holdfast.core.draft import Draft
from holdfast.core.history import problems
from holdfast.core.records import CallState, Cause, Expansion, External, File, Message, Phase, Role, State, Text


def begin(draft: Draft, command: cmd.Send) -> None:
    check_user(command.message)
    draft.start_turn(command.message.id, Raw(encode(command.message)))


def enqueue(draft: Draft, command: cmd.Send) -> None:
    check_user(command.message)
    draft.enqueue(command, command.mode)


def enqueue_first(draft: Draft, command: cmd.Send) -> None:
    check_user(command.message)
    draft.enqueue(command, command.mode, first=True)


def enqueue_and_promote(draft: Draft, command: cmd.Send) -> None:
    check_user(command.message)
    if draft.queue:
        draft.enqueue(command, command.mode)
        draft.start_next_turn()
    else:
        begin(draft, command)


def answer_or_enqueue(draft: Draft, command: cmd.Send) -> None:
    """An open question takes the message as its answer, unless its time is over, or no person says it."""
    check_user(command.message)
    for call in draft.calls if command.answers else ():
        open_question = call.state is CallState.EXTERNAL and call.external is External.QUESTION
        if open_question and time_over_at(draft, call) is None:
            if command.message.expansions:  # which stand in a user's message: it joins before the next response
                draft.enqueue(command, "steer")
            finish_external(draft, call, _as_answer(command.message), error=False, by="")
            draft.settle()
            return
    draft.enqueue(command, command.mode)


def answer_all_and_begin(draft: Draft, command: cmd.Send) -> None:
    check_user(command.message)
    draft.answer_all("the user sent a new message")
    draft.end_turn(State.RUNNING, Cause.SUPERSEDED)
    draft.start_turn(command.message.id, Raw(encode(command.message)))


def interrupt(draft: Draft, command: cmd.Send) -> None:
    check_user(command.message)
    draft.enqueue(command, command.mode, first=True)
    draft.set(epoch=draft.chat.epoch + 1)
    draft.stopping(Cause.SUPERSEDED)


def _as_answer(message: Message) -> str:
    """A message as the answer to a question: its text, and where its files are."""
    files = [f"[{part.media_type}: {part.uri}]" for part in message.parts if isinstance(part, File)]
    return "\n".join([text for text in (message.text, *files) if text])


def give(draft: Draft, command: cmd.Give) -> None:
    """Nothing has happened in the chat yet: there is no turn, no call and no answer that this could disturb."""
    chat = draft.chat
    if chat.turn:
        raise Refusal("begun", "the chat has begun: what is new is said in its next message")
    if command.length not in (None, chat.length):
        raise Refusal("moved_on", f"the chat has {chat.length} positions, not {command.length}")
    _check_given(draft, command.messages)
    draft.unarchive()
    if command.agent not in (None, chat.agent):
        draft.set(agent=command.agent)
        draft.tell(journal.AgentNamed(agent=draft.chat.agent))
    for message in command.messages:
        draft.add_given(message)


def _check_given(draft: Draft, messages: tuple[Message, ...]) -> None:
    """What is there is a history that a provider accepts; so is it with another such behind it."""
    length = draft.chat.length + len(messages)
    if length > draft.limits.given_messages_max:
        limit = draft.limits.given_messages_max
        raise Refusal("limit", f"{length:,} given messages; the limit is {limit:,}: give fewer, or a summary")
    if any(message.role is Role.SYSTEM or message.synthetic is not None for message in messages):
        raise Refusal("wrong_message", "user, assistant and tool messages are given; instructions are the agent's")
    if found := problems(messages):
        raise Refusal("wrong_message", f"not a history that a provider accepts: {'; '.join(found[:5])}")


def edit_at_rest(draft: Draft, command: cmd.Edit) -> None:
    _check_edit(draft, command)
    draft.drop(draft.queue, "edited")
    draft.cut(command.pos)
    draft.set(batch=None)
    draft.calls = ()
    draft.start_turn(command.message.id, Raw(encode(command.message)))


def edit_waiting(draft: Draft, command: cmd.Edit) -> None:
    _check_edit(draft, command)
    draft.drop(draft.queue, "edited")
    draft.cut(command.pos)
    draft.answer_all("the conversation was edited")
    draft.end_turn(State.RUNNING, Cause.SUPERSEDED)
    draft.start_turn(command.message.id, Raw(encode(command.message)))


def edit_at_work(draft: Draft, command: cmd.Edit) -> None:
    """History is cut now; the edited message waits, first and alone, until the old work is dead."""
    _check_edit(draft, command)
    draft.drop(draft.queue, "edited")
    draft.cut(command.pos)
    draft.set(phase=Phase.REST)  # whatever was streamed answers messages that are gone
    draft.enqueue(command, "interrupt", first=True)
    if draft.chat.state is State.RUNNING:
        draft.stopping(Cause.SUPERSEDED)


def _check_edit(draft: Draft, command: cmd.Edit) -> None:
    check_user(command.message)
    if command.epoch != draft.chat.epoch:
        raise Refusal("stale_position", "history was cut since the message was looked up; look again")
    if command.role is not Role.USER:
        raise Refusal("not_a_user_message", f"only user messages can be edited, this one is of role {command.role}")


def promote(draft: Draft, command: cmd.Promote) -> None:
    draft.to_front(command.message_id)


def promote_and_supersede(draft: Draft, command: cmd.Promote) -> None:
    draft.to_front(command.message_id)
    draft.set(epoch=draft.chat.epoch + 1)
    draft.stopping(Cause.SUPERSEDED)


def promote_waiting(draft: Draft, command: cmd.Promote) -> None:
    draft.to_front(command.message_id)
    draft.answer_all("the user moved on to another message")
    draft.end_turn(State.RUNNING, Cause.SUPERSEDED)
    draft.start_next_turn()


def promote_failed(draft: Draft, command: cmd.Promote) -> None:
    draft.to_front(command.message_id)
    draft.start_next_turn()


def withdraw(draft: Draft, command: cmd.Withdraw) -> None:
    draft.drop((draft.queued(command.message_id),), "withdrawn")


def check_user(message: Message) -> None:
    check_spoken(message)
    if message.synthetic is not None:
        raise Refusal("wrong_message", "only the runtime marks a message as synthetic")


def check_spoken(message: Message) -> None:
    """A user message that says something."""
    if message.role is not Role.USER:
        raise Refusal("wrong_message", f"only user messages are sent, this one is of role {message.role}")
    if not all(isinstance(part, Text | File | Expansion) for part in message.parts):
        raise Refusal("wrong_message", "a user message holds text and files, nothing else")
    if not any(isinstance(part, File) or part.text for part in message.parts if isinstance(part, Text | File)):
        raise Refusal("wrong_message", "the message says nothing; send some text or a file")
