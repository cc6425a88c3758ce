"""Run the program of `kafka.sasl.token_command` under the event loop without blocking, and decode its output.

The program gets no input. Its standard error is dropped, because that may contain a secret.

The output is a token, or a JSON object as the token endpoint of an OAuth server returns it (RFC 6749, section 5): with
`access_token` and `expires_in`, or with `error` and `error_description`. So `curl` at such an endpoint is a token
command too, and a command can state why it failed.
"""

from __future__ import annotations

import binascii
import os
import signal
import subprocess
import time
from base64 import urlsafe_b64decode
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.ipc.loop import Loop, Timer

__all__ = ["BearerToken", "TokenCommand", "TokenResponse", "decode_token", "printable_text"]

_TIMEOUT_S: Final = 30.0
"""Time limit of the program, which may ask a server over the network."""
_POLL_S: Final = 0.02
"""Interval of the check for the program's exit."""
_MAX_BYTES: Final = 64 * 1024
"""Bound of the output, far above the size of a token, in case the program is the wrong one."""
_MAX_TEXT: Final = 600
"""Limit for the characters of a server's text in the log."""


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


# --- the output -------------------------------------------------------------------------------------------------------
class BearerToken(NamedTuple):
    """A token, and its lifetime from now on; 0 if neither the response nor the token states one."""

    text: str
    lifetime_s: float


class TokenResponse(msgspec.Struct):
    access_token: str = ""
    expires_in: float | None = None
    error: str = ""
    error_description: str = ""


class _Claims(msgspec.Struct):
    exp: float


def decode_token(output: str, exit_error: str, now_s: float) -> BearerToken:
    """Return the token in a command's output; `exit_error` is empty if the command succeeded.

    Raise ConfigError if there is no token. The error text follows the command's name, and contains no part of a token.
    """
    response = _decode_response(output) if output.startswith("{") else TokenResponse(access_token=output)
    if response.error:
        description = printable_text(response.error_description) or "the issuer gives no reason"
        raise ConfigError(f"reports {printable_text(response.error)}: {description.rstrip('.')}.")
    if exit_error:
        raise ConfigError(exit_error)
    if not response.access_token:
        raise ConfigError("wrote no token. Run it as the daemon's user to see why.")
    if response.expires_in is None:
        return BearerToken(response.access_token, _lifetime_of_jwt(response.access_token, now_s))
    return BearerToken(response.access_token, max(0.0, response.expires_in))


def _decode_response(output: str) -> TokenResponse:
    """Return the response, or an empty one if the output is not a valid JSON response."""
    try:
        return msgspec.json.decode(output, type=TokenResponse, strict=False)
    except msgspec.MsgspecError:
        return TokenResponse()


def printable_text(text: str) -> str:
    """Return a server's text as one line of limited length, for an error text."""
    return " ".join("".join(char if char.isprintable() else " " for char in text[:_MAX_TEXT]).split())


def _lifetime_of_jwt(token: str, now_s: float) -> float:
    parts = token.split(".")
    if len(parts) != 3:
        return 0.0
    try:
        # A JWT omits the padding; the decoder ignores surplus padding.
        claims = msgspec.json.decode(urlsafe_b64decode(parts[1] + "=="), type=_Claims)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return 0.0
    return max(0.0, claims.exp - now_s)
