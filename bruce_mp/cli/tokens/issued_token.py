"""The result of an issuer: a token, or the reason why there is none."""

from __future__ import annotations

from typing import NamedTuple

from bruce_mp.errors import BruceError

__all__ = ["IssuedToken", "TokenError"]


class IssuedToken(NamedTuple):
    """A token with its lifetime from now on; None if the issuer does not state one."""

    text: str
    lifetime_s: float | None


class TokenError(BruceError):
    """There is no token; `code` is an error code of RFC 6749 or one of ours, for the error response."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
