"""The SASL login on a connection: the choice of the mechanism, then its tokens, as Kafka frames them.

Brokers since 1.0 support SaslHandshake v1; each token is then a SaslAuthenticate request.  Older ones support only
SaslHandshake v0: tokens have no header, and the broker refuses a login by closing the connection.
Protocol: KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.kafka import kafka_api
from bruce_mp.protocol.kafka.error_actions import action_for
from bruce_mp.protocol.kafka.sasl import LoginRefusedError

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.api_versions import BrokerAbilities
    from bruce_mp.protocol.kafka.sasl import Mechanism

__all__ = ["Login"]

_NO_SUCH_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_WITHOUT_HEADER: Final = 0
_REMEDY: Final = "Correct [kafka.sasl], or the user on the brokers; each attempt reads its files again."


class Login:
    """One login, or its renewal.  Raises LoginRefusedError if the broker supports no logins."""

    def __init__(self, mechanism: Mechanism, abilities: BrokerAbilities, client_id: str) -> None:
        if abilities.sasl_handshake_version is None:
            raise LoginRefusedError("It knows no logins: it is older than Kafka 0.10. Remove kafka.sasl.mechanism.")
        self._mechanism = mechanism
        self._client_id = client_id
        self._token_version = abilities.sasl_authenticate_version or 0
        is_wrapped = abilities.sasl_authenticate_version is not None
        self._version = abilities.sasl_handshake_version if is_wrapped else _WITHOUT_HEADER
        self._token: bytes | None = mechanism.start()
        self.lifetime_s = 0.0
        """The lifetime of the login; 0 stands for the whole connection."""

    @property
    def has_headers(self) -> bool:
        """True if each token is a request with a header."""
        return self._version != _WITHOUT_HEADER

    def request(self, correlation_id: int) -> bytes:
        """Return the first request, SaslHandshake."""
        return kafka_api.encode_sasl_handshake(self._version, correlation_id, self._client_id, self._mechanism.name)

    def take_answer(self, frame: bytes) -> None:
        """Process the SaslHandshake response; raise LoginRefusedError."""
        answer = kafka_api.decode_sasl_handshake(frame, self._version)
        if answer.error == _NO_SUCH_MECHANISM:
            known = ", ".join(answer.mechanisms) or "none"
            raise LoginRefusedError(
                f"It does not take {self._mechanism.name} on this port, but: {known}. Set kafka.sasl.mechanism to one "
                "of these, or enable it there (sasl.enabled.mechanisms)."
            )
        if answer.error == _ILLEGAL_STATE:
            raise LoginRefusedError(
                "It expects no login on this port. Remove kafka.sasl.mechanism, or name the port of its SASL listener."
            )
        if answer.error:
            raise self._refused(answer.error, None)

    def next_token(self, correlation_id: int) -> bytes:
        """Return the next token as a frame."""
        assert self._token is not None
        if self.has_headers:
            return kafka_api.encode_sasl_token(self._token_version, correlation_id, self._client_id, self._token)
        return len(self._token).to_bytes(4, "big") + self._token

    def take_token(self, frame: bytes) -> bool:
        """Process the broker's token; return True if the login is complete.

        Raises LoginRefusedError and RemoteProtocolError.
        """
        if not self.has_headers:
            return self._go_on(frame)
        got = kafka_api.decode_sasl_token(frame, self._token_version)
        if got.error:
            raise self._refused(got.error, got.message)
        self.lifetime_s = max(0, got.lifetime_ms) / 1000
        return self._go_on(got.token)

    def _go_on(self, challenge: bytes) -> bool:
        try:
            self._token = self._mechanism.answer(challenge)
        except LoginRefusedError as error:
            raise LoginRefusedError(f"It does not let in {self._mechanism.who}. {error} {_REMEDY}") from error
        return self._token is None

    def _refused(self, error: int, message: str | None) -> LoginRefusedError:
        said = f" It says: {message.rstrip('.')}." if message else ""
        name = action_for(error).name
        return LoginRefusedError(f"It does not let in {self._mechanism.who}: {name} ({error}).{said} {_REMEDY}")

    def closed_text(self) -> str:
        """Return the explanation of a connection that the broker closed during the login."""
        if self.has_headers:
            return "closed the connection during the login; it may be going down."
        return f"closed the connection: it does not let in {self._mechanism.who}. {_REMEDY}"
