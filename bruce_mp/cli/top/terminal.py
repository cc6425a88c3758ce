"""Keys of a terminal, one at a time and without echo, and changes of the terminal's size."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Keys", "read_keys", "split_keys"]

KEY_NAMES: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "pgup", "\x1b[6~": "pgdn",
    "\x1b[H": "home", "\x1b[F": "end",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace",
}  # fmt: skip
"""The names of the keys that are not printable, by the text that a terminal sends."""
_SEQUENCE: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O[ -~])")
"""A complete escape sequence: a key, or a response of the terminal."""
_INCOMPLETE: Final = re.compile(rb"\x1b(\[[0-?]*[ -/]*|O)?\Z")
"""The end of a text that ends inside an escape sequence, or with the escape key."""
_READ_BYTES: Final = 1024
_MAX_REST_WAIT_S: Final = 0.05
"""Longest wait for the rest of an escape sequence; if no rest comes, the user pressed the escape key."""


class Keys:
    """Keys of the terminal `fd`.

    `signals_fd` is a pipe that gets a byte for each signal, so that a change of the terminal's size (SIGWINCH) ends a
    wait.
    """

    def __init__(self, fd: int, signals_fd: int) -> None:
        self._fd, self._signals_fd = fd, signals_fd

    def wait(self, timeout_s: float) -> list[str] | None:
        """Wait for keys, and return their names; None at the end of the input.

        Return an empty list if the time limit passes or the terminal's size changes before a key arrives.
        """
        ready, _, _ = select.select([self._fd, self._signals_fd], [], [], max(0.0, timeout_s))
        if self._signals_fd in ready:
            os.read(self._signals_fd, _READ_BYTES)
        if self._fd not in ready:
            return []
        data = self._read_whole_keys()
        return split_keys(data.decode("utf-8", "ignore")) if data else None

    def _read_whole_keys(self) -> bytes:
        """Read the text that the terminal has sent. If it ends inside an escape sequence, wait for the rest."""
        data = os.read(self._fd, _READ_BYTES)
        while _INCOMPLETE.search(data) and select.select([self._fd], [], [], _MAX_REST_WAIT_S)[0]:
            rest = os.read(self._fd, _READ_BYTES)
            if not rest:
                break
            data += rest
        return data


def split_keys(text: str) -> list[str]:
    """Split the text that a terminal sent into printable characters and names of keys.

    Drop other escape sequences and control characters.
    """
    keys = []
    while text:
        code = next((code for code in KEY_NAMES if text.startswith(code)), None)
        if code is not None:
            keys.append(KEY_NAMES[code])
            text = text.removeprefix(code)
        elif sequence := _SEQUENCE.match(text):
            text = text[sequence.end() :]
        else:
            if text[0] == "\x1b":
                keys.append("escape")
            elif text[0].isprintable():
                keys.append(text[0])
            text = text[1:]
    return keys


def _exit_on_signal(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)  # the exit status that a shell reports for a signal


@contextmanager
def read_keys(fd: int) -> Iterator[Keys]:
    """Read single keys inside a `with` statement, and restore the terminal at its end, also after SIGTERM."""
    attributes = termios.tcgetattr(fd)
    signals_fd, wakeup_fd = os.pipe()
    os.set_blocking(wakeup_fd, False)
    tty.setcbreak(fd)
    previous_handlers = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _exit_on_signal),
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),  # only a handled signal writes to the pipe
        # ignored, because a suspended program would leave its screen in the terminal
        signal.SIGTSTP: signal.signal(signal.SIGTSTP, signal.SIG_IGN),
    }
    signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
    try:
        yield Keys(fd, signals_fd)
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        termios.tcsetattr(fd, termios.TCSADRAIN, attributes)
        os.close(signals_fd)
        os.close(wakeup_fd)
