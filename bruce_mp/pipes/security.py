"""How the connections of a process are secured: TLS, and what to log in with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bruce_mp.pipes.logins import Logins
from bruce_mp.pipes.tls_context import TlsContexts

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Kafka
    from bruce_mp.pipes.loop import Loop

__all__ = ["Security", "connection_settings", "security_of"]


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
        TlsContexts(kafka.tls) if kafka.tls.enable else None,
        Logins(kafka.sasl, loop) if kafka.sasl.mechanism is not None else None,
    )
