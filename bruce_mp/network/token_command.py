"""Run the program of `kafka.sasl.token_command`, and decode its output.

The program may block, so the caller runs it in a thread. The program gets no input. Its standard error is dropped,
because error messages may contain a secret.

The output is a token, or a JSON object like the response of an OAuth server's token endpoint (RFC 6749, section 5):
with `access_token` and `expires_in`, or with `error` and `error_description`. So a `curl` command that requests such an
endpoint can be the token command, and a program can tell the daemon why it failed.
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
"""Time limit of the program; it is generous, because the program may ask a server over the network."""
_REAP_S: Final = 0.1
"""Maximum wait for the end of a killed program. If it ends later, `subprocess` reaps it at the start of another one."""
_MAX_OUTPUT_BYTES: Final = 64 * 1024
"""Limit of the output, because a wrongly configured program may write without end; a token has far fewer bytes."""
_MAX_TEXT_CHARACTERS: Final = 600
"""Maximum length of a server's text in the log."""


def run_token_command(command: Sequence[str]) -> tuple[str, str]:
    """Run the program for at most _TIMEOUT_S; return its output, and an error text, which is "" if it succeeded.

    The error text continues a sentence that begins with the program's name. A failed program may have written output,
    too, such as a JSON object with the error.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own program
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a separate process group, so that `_kill` reaches the program's children
        )
    except OSError as error:
        return "", f"cannot be started: {error.strerror}."
    deadline = time.monotonic() + _TIMEOUT_S
    assert process.stdout is not None
    with process.stdout as pipe:
        output, has_ended = _read_output(pipe.fileno(), deadline)
    if len(output) > _MAX_OUTPUT_BYTES:
        outcome = _kill(process)
        limit_kib = _MAX_OUTPUT_BYTES >> 10
        return "", f"wrote more than {limit_kib} KiB, and {outcome}. Name a program that prints a token."
    if has_ended:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_remaining_s(deadline))
            error_text = f"ended with code {code}. Run it as the daemon's user to see why." if code else ""
            return output.decode("utf-8", "replace").strip(), error_text
    return "", f"did not end within {_TIMEOUT_S:g} s, and {_kill(process)}."


def _remaining_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _read_output(pipe: int, deadline: float) -> tuple[bytes, bool]:
    """Return the output, and True if it is complete; False if it is too long or has not ended before the deadline."""
    output, poller = b"", select.poll()
    poller.register(pipe, select.POLLIN)
    while len(output) <= _MAX_OUTPUT_BYTES and poller.poll(1000 * _remaining_s(deadline)):
        data = os.read(pipe, _MAX_OUTPUT_BYTES)
        if not data:
            return output, True
        output += data
    return output, False


def _kill(process: subprocess.Popen[bytes]) -> str:
    """Kill the program with its children, and return the end of a sentence that says so."""
    try:
        os.killpg(process.pid, signal.SIGKILL)  # the group still exists, because its leader has not been reaped
    except PermissionError:
        return "runs on, because it has changed its user"
    with suppress(subprocess.TimeoutExpired):  # even a killed program does not end while it hangs in a system call
        process.wait(_REAP_S)
    return "was killed"


# --- the output -------------------------------------------------------------------------------------------------------
class BearerToken(NamedTuple):
    """A token and its remaining lifetime, which is 0 if neither the response nor the token states an expiry."""

    text: str
    lifetime_s: float


class TokenResponse(msgspec.Struct):
    """A response of a token endpoint: a token with its lifetime in seconds, or an error."""

    access_token: str = ""
    expires_in: float | None = None
    error: str = ""
    error_description: str = ""


class _Claims(msgspec.Struct):
    """The content of a JSON web token (RFC 7519), of which only the expiry in seconds since the epoch is needed."""

    exp: float


def decode_token(output: str, exit_error: str, now_s: float) -> BearerToken:
    """Return the token in the output of a token command; `exit_error` is "" if the command succeeded.

    Raises ConfigError if there is no token or the command failed. The error text continues a sentence that begins with
    the command's name, and contains no part of a token.
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
    return " ".join("".join(char if char.isprintable() else " " for char in text[:_MAX_TEXT_CHARACTERS]).split())


def _lifetime_of_jwt(token: str, now_s: float) -> float:
    """Return the remaining lifetime that a JSON web token states; 0 if it has expired, or for other tokens."""
    parts = token.split(".")
    if len(parts) != 3:
        return 0.0
    try:
        # A JSON web token omits base64's padding, and the decoder ignores surplus padding: so two "=" always suffice.
        claims = msgspec.json.decode(urlsafe_b64decode(parts[1] + "=="), type=_Claims)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return 0.0
    return max(0.0, claims.exp - now_s)
