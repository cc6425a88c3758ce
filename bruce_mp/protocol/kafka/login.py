"""The SASL login on a connection: the request SaslHandshake selects the mechanism; then client and broker send tokens.

Kafka 1.0 and later support SaslHandshake v1, after which the client sends each token in a SaslAuthenticate request.
Older brokers support only SaslHandshake v0, after which a frame is a bare token, without the header of a request.  They
refuse a login by closing the connection.  Protocol: KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.kafka import kafka_api
from bruce_mp.protocol.kafka.error_actions import error_row
from bruce_mp.protocol.kafka.sasl import LoginRefusedError

if TYPE_CHECKING:
    from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
    from bruce_mp.protocol.kafka.sasl import Mechanism

__all__ = ["Login"]

# Kafka's error codes UNSUPPORTED_SASL_MECHANISM and ILLEGAL_SASL_STATE.
_NO_SUCH_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_VERSION_WITHOUT_HEADERS: Final = 0
_REMEDY: Final = "Correct [kafka.sasl], or the user on the brokers; each login reads the files of that section again."


class Login:
    """One login or one renewal of a login.  Raises LoginRefusedError if the broker supports no logins.

    In error texts, "it" is the broker: `BrokerConnection` puts a text with the broker's name before them.
    """

    def __init__(self, mechanism: Mechanism, capabilities: BrokerCapabilities, client_id: str) -> None:
        if capabilities.sasl_handshake_version is None:
            raise LoginRefusedError("It is older than Kafka 0.10 and has no logins. Remove kafka.sasl.mechanism.")
        self._mechanism = mechanism
        self._client_id = client_id
        self._authenticate_version = capabilities.sasl_authenticate_version or 0  # not used if tokens have no headers
        has_authenticate = capabilities.sasl_authenticate_version is not None
        self._handshake_version = capabilities.sasl_handshake_version if has_authenticate else _VERSION_WITHOUT_HEADERS
        self._token: bytes | None = mechanism.start()
        self.lifetime_s = 0.0
        """The lifetime of the login; 0 means as long as the connection lasts."""

    @property
    def has_headers(self) -> bool:
        """True if each token is in a request with a header."""
        return self._handshake_version != _VERSION_WITHOUT_HEADERS

    def encode_handshake(self, correlation_id: int) -> bytes:
        return kafka_api.encode_sasl_handshake(
            self._handshake_version, correlation_id, self._client_id, self._mechanism.name
        )

    def on_handshake(self, frame: bytes) -> None:
        """Check the SaslHandshake response; raise LoginRefusedError if it is an error."""
        response = kafka_api.decode_sasl_handshake(frame, self._handshake_version)
        if response.error == _NO_SUCH_MECHANISM:
            accepted = ", ".join(response.mechanisms) or "none"
            raise LoginRefusedError(
                f"It does not accept {self._mechanism.name} on this port, but: {accepted}. Set kafka.sasl.mechanism to "
                "one of these, or enable it there (sasl.enabled.mechanisms)."
            )
        if response.error == _ILLEGAL_STATE:
            raise LoginRefusedError(
                "It expects no login on this port. Remove kafka.sasl.mechanism, or name the port of its SASL listener."
            )
        if response.error:
            raise self._refusal(response.error, None)

    def encode_token(self, correlation_id: int) -> bytes:
        """Return the frame with the client's next token."""
        assert self._token is not None
        if self.has_headers:
            return kafka_api.encode_sasl_authenticate(
                self._authenticate_version, correlation_id, self._client_id, self._token
            )
        return len(self._token).to_bytes(4, "big") + self._token

    def on_token(self, frame: bytes) -> bool:
        """Process a frame with the broker's token; return True if the login is complete.

        Raises LoginRefusedError, or RemoteProtocolError for malformed bytes.
        """
        if not self.has_headers:
            return self._answer_challenge(frame)
        response = kafka_api.decode_sasl_authenticate(frame, self._authenticate_version)
        if response.error:
            raise self._refusal(response.error, response.message)
        self.lifetime_s = max(0, response.lifetime_ms) / 1000
        return self._answer_challenge(response.token)

    def _answer_challenge(self, challenge: bytes) -> bool:
        """Let the mechanism compute the next token; return True if there is none, because the login is complete."""
        try:
            self._token = self._mechanism.answer(challenge)
        except LoginRefusedError as error:
            raise LoginRefusedError(f"It refuses the login of {self._mechanism.identity}. {error} {_REMEDY}") from error
        return self._token is None

    def _refusal(self, error: int, message: str | None) -> LoginRefusedError:
        detail = f" It says: {message.rstrip('.')}." if message else ""
        name = error_row(error).name
        return LoginRefusedError(
            f"It refuses the login of {self._mechanism.identity}: {name} ({error}).{detail} {_REMEDY}"
        )

    def describe_close(self) -> str:
        """Return the error text for a connection that the broker closed during the login."""
        if self.has_headers:
            return "closed the connection during the login; it may be shutting down."
        return f"closed the connection: it refuses the login of {self._mechanism.identity}. {_REMEDY}"
