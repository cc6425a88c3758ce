"""How the connections of a process are secured: TLS, and what to log in with.

What they need is loaded where they are configured: OpenSSL and all around it would be 3 MB of each dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Kafka
    from bruce_mp.config.security import Sasl, Tls
    from bruce_mp.pipes.logins import Logins
    from bruce_mp.pipes.loop import Loop
    from bruce_mp.pipes.tls_context import TlsContexts

__all__ = ["Security", "TlsError", "connection_settings", "security_of"]


class TlsError(RemoteProtocolError):
    """The two sides do not get on.  `is_closed`: the broker just closed the connection, which may pass."""

    def __init__(self, text: str, *, is_closed: bool = False) -> None:
        super().__init__(text)
        self.is_closed = is_closed


class Security(NamedTuple):
    """Each is None where there is none."""

    tls: TlsContexts | None = None
    logins: Logins | None = None


def connection_settings(config: Config) -> tuple[object, ...]:
    """All that a connection to a broker goes by; where it differs, there has to be another one."""
    kafka = config.kafka
    return kafka.client_id, kafka.broker_version, kafka.tls, kafka.sasl, config.delivery.kafka_socket_timeout_s


def security_of(kafka: Kafka, loop: Loop) -> Security:
    """As configured."""
    return Security(
        _contexts(kafka.tls) if kafka.tls.enable else None,
        _logins(kafka.sasl, loop) if kafka.sasl.mechanism is not None else None,
    )


def _contexts(tls: Tls) -> TlsContexts:
    from bruce_mp.pipes.tls_context import TlsContexts  # noqa: PLC0415 - see above

    return TlsContexts(tls)


def _logins(sasl: Sasl, loop: Loop) -> Logins:
    from bruce_mp.pipes.logins import Logins  # noqa: PLC0415 - see above

    return Logins(sasl, loop)
