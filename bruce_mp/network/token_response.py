"""Decode the output of `kafka.sasl.token_command`.

The output is a token, or a JSON object as the token endpoint of an OAuth server returns it (RFC 6749, section 5): with
`access_token` and `expires_in`, or with `error` and `error_description`. So `curl` at such an endpoint is a token
command too, and a command can state why it failed.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from typing import Final, NamedTuple

import msgspec

from bruce_mp.errors import ConfigError

__all__ = ["BearerToken", "TokenResponse", "decode_token", "printable_text"]

_MAX_TEXT: Final = 600
"""Limit for the characters of a server's text in the log."""


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
