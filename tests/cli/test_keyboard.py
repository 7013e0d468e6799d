"""The keys of a conversation, on a real pseudo-terminal."""

import os
import select
import sys
import termios
from collections.abc import Iterator

import pytest

from holdfast.cli.terminal.keyboard import Keyboard
from tests.cli.conftest import ALT_ENTER, CTRL_D, CTRL_Z, WAIT_S

KEYS = f"two{ALT_ENTER}lines{CTRL_D}{CTRL_Z}\r".encode()


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a terminal at which a person types; the other one is standard input."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs) as stdin, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


def press(person: int, keyboard: Keyboard) -> None:
    """And the kernel has made of the keys what it does in this mode."""
    os.write(person, KEYS)
    assert select.select([keyboard.fileno()], [], [], WAIT_S)[0]


def pressed(keyboard: Keyboard) -> bytes:
    keys = b""
    while len(keys) < len(KEYS) and select.select([keyboard.fileno()], [], [], WAIT_S)[0]:
        keys += os.read(keyboard.fileno(), len(KEYS))
    return keys


def test_keys_that_are_pressed_between_two_prompts_are_the_same_keys_at_the_next(person: int) -> None:
    keyboard = Keyboard()
    with keyboard.cooked_mode():
        press(person, keyboard)
        with keyboard.raw_mode():
            assert pressed(keyboard) == KEYS


def test_keys_that_are_pressed_while_something_is_printed_are_the_same_keys_afterwards(person: int) -> None:
    keyboard = Keyboard()
    with keyboard.raw_mode():
        with keyboard.cooked_mode():
            press(person, keyboard)
        assert pressed(keyboard) == KEYS


def test_ctrl_c_is_a_signal_while_nobody_reads_keys(person: int) -> None:
    keyboard = Keyboard()
    with keyboard.raw_mode(), keyboard.cooked_mode():
        assert termios.tcgetattr(keyboard.fileno())[3] & termios.ISIG


def test_the_terminal_is_given_back_as_it_was_found(person: int) -> None:
    keyboard = Keyboard()
    found = termios.tcgetattr(keyboard.fileno())
    with keyboard.cooked_mode(), keyboard.raw_mode():
        keyboard.restore()
        assert termios.tcgetattr(keyboard.fileno()) == found
    assert termios.tcgetattr(keyboard.fileno()) == found
