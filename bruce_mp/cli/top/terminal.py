"""Keys of a terminal, one at a time and without echo, and the changes of its size."""

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

ESCAPES: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "pgup", "\x1b[6~": "pgdn",
    "\x1b[H": "home", "\x1b[F": "end",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace",
}  # fmt: skip
"""Bytes of the keys that are no characters."""
_SEQUENCE: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O[ -~])")
"""Sequence of a key or an answer of the terminal."""
_READ: Final = 1024


class Keys:
    """Keys of the terminal `fd`. A change of its size wakes a wait, like a key."""

    def __init__(self, fd: int, wakeup: int) -> None:
        self._fd, self._wakeup = fd, wakeup

    def wait(self, timeout_s: float) -> list[str] | None:
        """Return the keys that were pressed, by name; empty after the time or a new size, None at the end of input."""
        ready, _, _ = select.select([self._fd, self._wakeup], [], [], max(0.0, timeout_s))
        if self._wakeup in ready:
            os.read(self._wakeup, _READ)
        if self._fd not in ready:
            return []
        data = os.read(self._fd, _READ)
        return split_keys(data.decode("utf-8", "ignore")) if data else None


def split_keys(text: str) -> list[str]:
    """Split what a terminal sent into characters and names of keys; drop unknown sequences."""
    keys = []
    while text:
        found = next((code for code in ESCAPES if text.startswith(code)), None)
        if found is not None:
            keys.append(ESCAPES[found])
            text = text.removeprefix(found)
        elif sequence := _SEQUENCE.match(text):
            text = text[sequence.end() :]
        else:
            keys.append("escape") if text[0] == "\x1b" else keys.extend(text[0] if text[0].isprintable() else "")
            text = text[1:]
    return keys


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def read_keys(fd: int) -> Iterator[Keys]:
    """Read single keys inside a `with` statement, and restore the terminal at its end, also after SIGTERM."""
    before = termios.tcgetattr(fd)
    wakeup, signalled = os.pipe()
    os.set_blocking(signalled, False)
    tty.setcbreak(fd)
    handlers = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _end),
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
        signal.SIGTSTP: signal.signal(signal.SIGTSTP, signal.SIG_IGN),  # a stopped program would leave its screen
    }
    signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    try:
        yield Keys(fd, wakeup)
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        os.close(wakeup)
        os.close(signalled)
