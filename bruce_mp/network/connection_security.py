"""Create the TLS contexts and SASL logins of a process's broker connections.

The modules `tls` and `sasl_sessions` are imported only if the configuration needs them, because OpenSSL and its
wrappers add 3 MB to each dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Kafka
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.network.sasl_sessions import SaslSessions
    from bruce_mp.network.tls import TlsContexts

__all__ = ["Security", "connection_settings", "create_security"]


class Security(NamedTuple):
    """TLS contexts and SASL logins of the connections; None = not configured."""

    tls: TlsContexts | None = None
    logins: SaslSessions | None = None


def connection_settings(config: Config) -> tuple[object, ...]:
    """Return the settings of a broker connection; if one of them changes, a new connection is needed."""
    kafka = config.kafka
    return kafka.client_id, kafka.broker_version, kafka.tls, kafka.sasl, config.delivery.kafka_socket_timeout_s


def create_security(kafka: Kafka, loop: Loop) -> Security:
    """Create the TLS contexts and SASL logins that the configuration needs."""
    tls = logins = None
    if kafka.tls.enable:
        from bruce_mp.network.tls import TlsContexts  # noqa: PLC0415 - saves memory, see the docstring

        tls = TlsContexts(kafka.tls)
    if kafka.sasl.mechanism is not None:
        from bruce_mp.network.sasl_sessions import SaslSessions  # noqa: PLC0415 - saves memory, see the docstring

        logins = SaslSessions(kafka.sasl, loop)
    return Security(tls, logins)
