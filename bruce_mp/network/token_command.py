"""Run the program of `kafka.sasl.token_command`, in a thread of the event loop, and decode its output.

The program gets no input. Its standard error is dropped, because that may contain a secret.

The output is a token, or a JSON object as the token endpoint of an OAuth server returns it (RFC 6749, section 5): with
`access_token` and `expires_in`, or with `error` and `error_description`. So `curl` at such an endpoint is a token
command too, and a command can state why it failed.
"""

from __future__ import annotations

import binascii
import os
import select
import signal
import subprocess
import time
from base64 import urlsafe_b64decode
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bruce_mp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BearerToken", "TokenResponse", "decode_token", "printable_text", "run_token_command"]

_TIMEOUT_S: Final = 30.0
"""Time limit of the program, which may ask a server over the network."""
_REAP_S: Final = 0.1
"""Time for the end of a killed program; `subprocess` reaps a later one at its next start of a program."""
_MAX_BYTES: Final = 64 * 1024
"""Bound of the output, far above the size of a token, in case the program is the wrong one."""
_MAX_TEXT: Final = 600
"""Limit for the characters of a server's text in the log."""


def run_token_command(command: Sequence[str]) -> tuple[str, str]:
    """Run the program, for at most _TIMEOUT_S; return its output, and an error text.

    The error text follows the program's name in a sentence, and is empty if the program succeeded. A failed program may
    have written output too.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own program
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that a timeout can kill the program's children too
        )
    except OSError as error:
        return "", f"cannot be started: {error.strerror}."
    deadline = time.monotonic() + _TIMEOUT_S
    assert process.stdout is not None
    with process.stdout as pipe:
        output, has_ended = _read_output(pipe.fileno(), deadline)
    if len(output) > _MAX_BYTES:
        return _kill(process, f"wrote more than {_MAX_BYTES >> 10} KiB, and was killed. Give one that prints a token.")
    if has_ended:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_left_s(deadline))
            error_text = f"ended with code {code}. Run it as the daemon's user to see why." if code else ""
            return output.decode("utf-8", "replace").strip(), error_text
    return _kill(process, f"did not end within {_TIMEOUT_S:g} s, and was killed.")


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _read_output(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """Return the output until it ends (True), is too long, or does not end in time."""
    output, poller = b"", select.poll()
    poller.register(pipe, select.POLLIN)
    while len(output) <= _MAX_BYTES and poller.poll(1000 * _left_s(deadline)):
        data = os.read(pipe, _MAX_BYTES)
        if not data:
            return output, True
        output += data
    return output, False


def _kill(process: subprocess.Popen[bytes], error: str) -> tuple[str, str]:
    """Kill the program with its children, and return the error."""
    os.killpg(process.pid, signal.SIGKILL)  # the group exists: nothing has reaped its leader yet
    with suppress(subprocess.TimeoutExpired):  # even a killed program may hang in a system call
        process.wait(_REAP_S)
    return "", error


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
