"""What a program shows that prints text as it is added and takes back what it is told to, as the docs say."""

from collections.abc import Iterable

from holdfast.core.journal import TurnStarted
from holdfast.events import Happened, ReasoningAdded, Restarted, TextAdded, Update


class Screen:
    """Of one turn: the next one begins on an empty screen."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.taken_back = 0

    def take(self, update: Update) -> None:
        match update:
            case Happened(entry=TurnStarted()):
                self.text = self.reasoning = ""
            case TextAdded(text=piece):
                assert piece
                self.text += piece
            case ReasoningAdded(text=piece):
                assert piece
                self.reasoning += piece
            case Restarted(dropped=dropped, reasoning_dropped=reasoning_dropped):
                assert dropped or reasoning_dropped
                assert dropped <= len(self.text), "more is taken back than was shown"
                assert reasoning_dropped <= len(self.reasoning)
                self.taken_back += dropped + reasoning_dropped
                self.text = self.text[: len(self.text) - dropped]
                self.reasoning = self.reasoning[: len(self.reasoning) - reasoning_dropped]


def shown(updates: Iterable[Update]) -> str:
    screen = Screen()
    for update in updates:
        screen.take(update)
    return screen.text
