"""The result of an issuer: a token or an error."""

from __future__ import annotations

from typing import NamedTuple

from bruce_mp.errors import BruceError

__all__ = ["IssuedToken", "TokenError"]


class IssuedToken(NamedTuple):
    """A token; `lifetime_s` is the time from its issue to its expiry, or None if the issuer does not state it."""

    text: str
    lifetime_s: float | None


class TokenError(BruceError):
    """The issuer returned no token. `code` is the error code in the error response: from RFC 6749, or one of ours."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
