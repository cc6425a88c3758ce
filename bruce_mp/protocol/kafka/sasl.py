"""The client side of SASL as a sans-IO core: it builds tokens and checks the broker's challenges.

    mechanism = Scram("SCRAM-SHA-512", "alice", password, nonce)
    send(mechanism.start())
    while (token := mechanism.answer(receive())) is not None:
        send(token)

One object is one exchange.  No error text, `identity` or `repr` contains a secret.

PLAIN: RFC 4616.  As in Kafka, names and passwords are not prepared (SASLprep).  OAUTHBEARER: RFC 7628.
SCRAM is in `scram`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_CHANNEL_BINDING", "LoginRefusedError", "Mechanism", "OAuthBearer", "Plain"]

NO_CHANNEL_BINDING: Final = b"n,,"
"""The header of a first message without channel binding and authorization identity (RFC 5801)."""
_KVSEP: Final = b"\x01"
"""The separator of pairs (RFC 7628); alone, it acknowledges a refusal."""


class LoginRefusedError(RemoteProtocolError):
    """The broker refuses the login, or failed to prove its own identity."""


class Mechanism(Protocol):
    """One exchange."""

    @property
    def name(self) -> str:
        """Kafka's name of the mechanism."""

    @property
    def identity(self) -> str:
        """The user and the mechanism, for error texts."""

    def start(self) -> bytes:
        """Return the first token."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the next token; None once the login is complete.

        Raises LoginRefusedError and RemoteProtocolError.
        """


class Plain:
    """PLAIN, which sends the password.  Raises ValueError for a NUL in name or password."""

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
            raise RemoteProtocolError("It sent a challenge, but PLAIN has none.")


class OAuthBearer:
    """OAUTHBEARER with a token of an external issuer, and SASL extensions (KIP-342).

    Raises ValueError for a token that is not printable ASCII.
    """

    name: Final = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        if not token.isascii() or not token.isprintable():
            raise ValueError("a bearer token is printable ASCII")
        self._pairs = {"auth": f"Bearer {token}", **extensions}
        self._is_refused = False
        self.identity = "the holder of the token by OAUTHBEARER"

    def start(self) -> bytes:
        pairs = b"".join(f"{name}={value}".encode() + _KVSEP for name, value in self._pairs.items())
        return NO_CHANNEL_BINDING + _KVSEP + pairs + _KVSEP

    def answer(self, challenge: bytes) -> bytes | None:
        """Return None if the broker accepts the token, else the acknowledgement of its refusal.

        The broker ends the exchange only after this acknowledgement.
        """
        if not challenge and not self._is_refused:
            return None
        if self._is_refused:
            raise LoginRefusedError("It does not accept the token.")
        self._is_refused = True
        return _KVSEP
