"""SASL from the client's side, without the network: what to say to a broker, and what to make of its answers.

    mechanism = Scram("SCRAM-SHA-512", "alice", password, nonce)
    say(mechanism.start())
    while (token := mechanism.answer(hear())) is not None:
        say(token)

One object is one exchange.  Invariants:

* No secret is in an error text, in `who` or in the `repr` of anything.

PLAIN: RFC 4616.  Names and passwords are not prepared (SASLprep): Kafka does not either.  OAUTHBEARER: RFC 7628.
SCRAM is in `scram`.
"""

from __future__ import annotations

from typing import Final, Protocol

from bruce_mp.errors import RemoteProtocolError

__all__ = ["NO_CHANNEL_BINDING", "LoginRefusedError", "Mechanism", "OAuthBearer", "Plain"]

NO_CHANNEL_BINDING: Final = b"n,,"
_KVSEP: Final = b"\x01"


class LoginRefusedError(RemoteProtocolError):
    """The broker does not let us in, or is not to be trusted with a login."""


class Mechanism(Protocol):
    """One exchange.  `who` names the user and the mechanism in error texts."""

    @property
    def name(self) -> str:
        """As Kafka calls it."""

    @property
    def who(self) -> str:
        """For error texts."""

    def start(self) -> bytes:
        """The first thing to say."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The next one; None when we are in.  Raises LoginRefusedError and RemoteProtocolError."""


class Plain:
    """The password itself.  Neither name nor password may hold a NUL; ValueError."""

    name: Final = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        if "\0" in user + password:
            raise ValueError("SASL PLAIN has no way to send a NUL")
        self._user, self._password = user, password
        self.who = f'user "{user}" by PLAIN'

    def start(self) -> bytes:
        """Both at once."""
        return b"\0" + self._user.encode() + b"\0" + self._password.encode()

    def answer(self, challenge: bytes) -> None:
        """A broker has nothing to ask."""
        if challenge:
            raise RemoteProtocolError("It asked something where PLAIN has nothing to ask.")


class OAuthBearer:
    """A token that somebody else has made.  It may hold no control characters; ValueError."""

    name: Final = "OAUTHBEARER"

    def __init__(self, token: str) -> None:
        if not token.isascii() or not token.isprintable():
            raise ValueError("a bearer token is printable ASCII")
        self._token = token
        self._is_refused = False
        self.who = "the holder of the token by OAUTHBEARER"

    def start(self) -> bytes:
        """The token."""
        return b"%sauth=Bearer %s%s" % (NO_CHANNEL_BINDING + _KVSEP, self._token.encode(), _KVSEP + _KVSEP)

    def answer(self, challenge: bytes) -> bytes | None:
        """A broker that refuses the token says why, and wants that acknowledged before it ends the exchange."""
        if not challenge and not self._is_refused:
            return None
        if self._is_refused:
            raise LoginRefusedError("It does not accept the token.")
        self._is_refused = True
        return _KVSEP
