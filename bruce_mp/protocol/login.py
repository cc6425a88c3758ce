"""The login on a connection: which mechanism, then its tokens, as Kafka wraps them.

A broker since 1.0 is asked with SaslHandshake v1, and each token is a request, SaslAuthenticate.  An older one knows
SaslHandshake v0 only; tokens go to and fro without a header then, and a refusal is a closed connection.
Protocol: KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.protocol import kafka_api
from bruce_mp.protocol.error_actions import action_for
from bruce_mp.protocol.sasl import LoginRefusedError

if TYPE_CHECKING:
    from bruce_mp.protocol.api_versions import BrokerAbilities
    from bruce_mp.protocol.sasl import Mechanism

__all__ = ["Login"]

_NO_SUCH_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_WITHOUT_HEADER: Final = 0
_REMEDY: Final = "Correct [kafka.sasl], or the user on the brokers; what stands in files is read anew at each attempt."


class Login:
    """One login, or the renewal of one.  Raises LoginRefusedError if the broker knows no logins."""

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
        """How long the login holds; 0: as long as the connection."""

    @property
    def has_headers(self) -> bool:
        """Whether tokens are requests like others."""
        return self._version != _WITHOUT_HEADER

    def ask(self, correlation_id: int) -> bytes:
        """The request that comes first."""
        return kafka_api.encode_sasl_handshake(self._version, correlation_id, self._client_id, self._mechanism.name)

    def take_answer(self, frame: bytes) -> None:
        """The answer to it.  Raises LoginRefusedError."""
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
        """The next thing to say, as a frame."""
        assert self._token is not None
        if self.has_headers:
            return kafka_api.encode_sasl_token(self._token_version, correlation_id, self._client_id, self._token)
        return len(self._token).to_bytes(4, "big") + self._token

    def take_token(self, frame: bytes) -> bool:
        """What the broker said; whether we are in.  Raises LoginRefusedError and RemoteProtocolError."""
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
        """What a connection that is closed in the middle of this means."""
        if self.has_headers:
            return "closed the connection during the login; it may be going down."
        return f"closed the connection: it does not let in {self._mechanism.who}. {_REMEDY}"
