"""The keyboard of a conversation: a key is the same key whatever is being printed, and between two lines as well.

By itself prompt_toolkit gives the terminal back to the kernel's line editing while something is printed above the
prompt, and from the end of a line until the next prompt. A Ctrl-D in such a moment is lost, and an Alt-Enter sends
the first half of a message that was to have two lines.
"""

import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

from prompt_toolkit.input.vt100 import Vt100Input

_IFLAG, _LFLAG, _CC = 0, 3, 6  # where termios keeps them


class Keyboard(Vt100Input):
    """Standard input, a terminal."""

    def __init__(self) -> None:
        super().__init__(sys.stdin)
        self._found = termios.tcgetattr(self.fileno())

    @contextmanager
    def cooked_mode(self) -> Iterator[None]:
        """Not cooked: keys wait as they are for the next prompt. Only Ctrl-C is a signal: the event loop may hang."""
        before = termios.tcgetattr(self.fileno())
        attributes = termios.tcgetattr(self.fileno())
        attributes[_IFLAG] &= ~(termios.IXON | termios.IXOFF | termios.ICRNL | termios.INLCR | termios.IGNCR)
        attributes[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
        attributes[_LFLAG] |= termios.ISIG
        attributes[_CC][termios.VMIN] = 1
        attributes[_CC][termios.VSUSP] = bytes([os.fpathconf(self.fileno(), "PC_VDISABLE") & 0xFF])
        with self._set(attributes, before):
            yield

    @contextmanager
    def _set(self, attributes: list[object], before: list[object]) -> Iterator[None]:
        termios.tcsetattr(self.fileno(), termios.TCSANOW, attributes)  # type: ignore[arg-type]
        try:
            yield
        finally:
            termios.tcsetattr(self.fileno(), termios.TCSANOW, before)  # type: ignore[arg-type]

    def suspend(self) -> None:
        """Ctrl-Z: our parent gets the terminal as it was."""
        with self._set(self._found, termios.tcgetattr(self.fileno())):
            signal.raise_signal(signal.SIGTSTP)

    def restore(self) -> None:
        termios.tcsetattr(self.fileno(), termios.TCSANOW, self._found)
