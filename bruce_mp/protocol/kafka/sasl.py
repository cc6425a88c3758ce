"""The client side of SASL without IO: it builds the client's tokens, and checks the broker's (called challenges).

    mechanism = Scram("SCRAM-SHA-512", "alice", password, nonce)
    send(mechanism.start())
    while (token := mechanism.answer(receive())) is not None:
        send(token)

A mechanism object is used for one login.  No error text, `identity` or `repr` contains a secret.

This module has the mechanisms PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628); `scram` has SCRAM.  As in Kafka, names and
passwords are not normalized by SASLprep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_CHANNEL_BINDING", "LoginRefusedError", "Mechanism", "OAuthBearer", "Plain"]

NO_CHANNEL_BINDING: Final = b"n,,"
"""The header of a first message that has no channel binding and no authorization identity (RFC 5801)."""
_KVSEP: Final = b"\x01"
"""The separator of key-value pairs (RFC 7628); a token that is only this byte acknowledges a refusal."""


class LoginRefusedError(RemoteProtocolError):
    """The broker refuses the login, or does not prove its identity.  In texts, "it" is the broker (see `Login`)."""


class Mechanism(Protocol):
    """One login by a SASL mechanism."""

    @property
    def name(self) -> str:
        """Kafka's name of the mechanism."""

    @property
    def identity(self) -> str:
        """The user and the mechanism, for error texts."""

    def start(self) -> bytes:
        """Return the first token of the client."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the client's next token, or None if the login is complete.

        Raises LoginRefusedError, or RemoteProtocolError for a malformed challenge.
        """


class Plain:
    """PLAIN, which sends name and password.  Raises ValueError if one of them contains a NUL byte."""

    name: Final = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        if "\0" in user + password:
            raise ValueError("SASL PLAIN cannot send a NUL")
        self._user, self._password = user, password
        self.identity = f'user "{user}" by PLAIN'

    def start(self) -> bytes:
        """Return the token with name and password."""
        return b"\0" + self._user.encode() + b"\0" + self._password.encode()

    def answer(self, challenge: bytes) -> None:
        """Check that the broker sent an empty token."""
        if challenge:
            raise RemoteProtocolError("The broker sent a challenge, but PLAIN has none.")


class OAuthBearer:
    """OAUTHBEARER, which sends the bearer token of an external issuer, and `extensions` for the broker (KIP-342).

    Raises ValueError if the bearer token is not printable ASCII.
    """

    name: Final = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        if not token.isascii() or not token.isprintable():
            raise ValueError("the bearer token must be printable ASCII")
        self._pairs = {"auth": f"Bearer {token}", **extensions}
        self._is_refused = False
        self.identity = "the holder of the token (OAUTHBEARER)"

    def start(self) -> bytes:
        """Return the SASL token, which has the bearer token and the extensions as key-value pairs."""
        pairs = b"".join(f"{name}={value}".encode() + _KVSEP for name, value in self._pairs.items())
        return NO_CHANNEL_BINDING + _KVSEP + pairs + _KVSEP

    def answer(self, challenge: bytes) -> bytes | None:
        """Return None if the broker accepts the bearer token.

        If the broker refuses it, return an acknowledgement of the refusal.  The broker then ends the exchange, and the
        second call of this method raises LoginRefusedError.
        """
        if not challenge and not self._is_refused:
            return None
        if self._is_refused:
            raise LoginRefusedError("The broker does not accept the token.")
        self._is_refused = True
        return _KVSEP
