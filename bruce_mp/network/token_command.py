"""Run the program of `kafka.sasl.token_command` under the event loop without blocking.

The program gets no input. Its standard error is dropped, because that may contain a secret. The program can state the
reason of a failure in its output, see `token_response`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.ipc.loop import Loop, Timer

__all__ = ["TokenCommand"]

_TIMEOUT_S: Final = 30.0
"""Time limit of the program, which may ask a server over the network."""
_POLL_S: Final = 0.02
"""Interval of the check for the program's exit."""
_MAX_BYTES: Final = 64 * 1024
"""Bound of the output, far above the size of a token, in case the program is the wrong one."""


class TokenCommand:
    """One execution of the program.

    `on_done` gets the output and an error text, which follows the program's name in a sentence and is empty if the
    program succeeded. A failed program may have written output too.
    """

    def __init__(self, loop: Loop, command: Sequence[str], on_done: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._command = list(command)
        self._on_done = on_done
        self._output = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: Timer | None = None
        self._deadline = time.monotonic() + _TIMEOUT_S
        self._is_done = False

    def start(self) -> None:
        """Start the program; the loop calls `on_done`."""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the operator's own program
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that a timeout can kill the program's children too
            )
        except OSError as error:
            text = f"cannot be started: {error.strerror}."
            self._loop.call_later(0, lambda: self._on_done("", text))
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._loop.watch(self._process.stdout, lambda _: self._read())
        self._timer = self._loop.call_at(self._deadline, self._on_timeout)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), _MAX_BYTES)
        except BlockingIOError:
            return
        self._output += data
        if len(self._output) > _MAX_BYTES:
            self._kill(f"wrote more than {_MAX_BYTES >> 10} KiB, and was killed. Give one that prints a token.")
        elif not data:
            self._loop.unwatch(self._process.stdout)
            self._process.stdout.close()
            self._await_exit()

    def _await_exit(self) -> None:
        """Poll until the program has exited; even a killed program may hang in a system call."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            self._loop.call_later(_POLL_S, self._await_exit)
        elif not self._is_done:
            self._finish(f"ended with code {code}. Run it as the daemon's user to see why." if code else "")

    def _on_timeout(self) -> None:
        self._kill(f"did not end within {_TIMEOUT_S:g} s, and was killed.")

    def _kill(self, error: str) -> None:
        """Kill the program with its children, and finish with an error."""
        assert self._process is not None
        assert self._process.stdout is not None
        os.killpg(self._process.pid, signal.SIGKILL)  # the group exists: nothing has reaped its leader yet
        if not self._process.stdout.closed:  # otherwise `_await_exit` polls already
            self._loop.unwatch(self._process.stdout)
            self._process.stdout.close()
            self._loop.call_later(_POLL_S, self._await_exit)
        self._output = b""
        self._finish(error)

    def _finish(self, error: str) -> None:
        self._is_done = True
        if self._timer is not None:
            self._timer.cancel()
        self._on_done(self._output.decode("utf-8", "replace").strip(), error)
