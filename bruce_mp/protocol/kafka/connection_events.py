"""The events of a `BrokerConnection`, and its state machine.

`TRANSITIONS` is the whole state machine: a step that it does not list raises LocalProtocolError.  A connection is used
once: after CLOSED, its owner creates a new one.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.errors import RemoteProtocolError
    from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
    from bruce_mp.protocol.kafka.kafka_types import ClusterMetadata, ProduceResponse, ProducerIdResponse

__all__ = [
    "TRANSITIONS",
    "BytesToSend",
    "Closed",
    "ConnectionReady",
    "ConnectionState",
    "ConnectionStep",
    "EncodedRequest",
    "Event",
    "Failed",
    "FailureCause",
    "LoggedIn",
    "MetadataReceived",
    "ProduceAcked",
    "ProducerIdReceived",
    "TopicsCreated",
]


class ConnectionState(Enum):
    __hash__ = object.__hash__  # each request and each response looks in `TRANSITIONS`, and Enum hashes in Python

    DISCONNECTED = "not connected yet"
    CONNECTING = "connecting"
    NEGOTIATING = "agreeing on versions"
    LOGGING_IN = "logging in"
    READY = "ready"
    RENEWING = "renewing the login"
    CLOSED = "closed"


class ConnectionStep(Enum):
    """A step of a connection; the value completes "it cannot ..." in error texts."""

    __hash__ = object.__hash__  # as in `ConnectionState`

    CONNECT = "connect"
    CONNECTED = "be connected"
    AGREE = "agree on versions"
    LOG_IN = "begin to log in"
    LOGGED_IN = "be logged in"
    SEND = "send a request"
    RECEIVE = "receive"
    CLOSE = "close"


TRANSITIONS: Final[Mapping[tuple[ConnectionState, ConnectionStep], ConnectionState]] = MappingProxyType(
    {
        (ConnectionState.DISCONNECTED, ConnectionStep.CONNECT): ConnectionState.CONNECTING,
        (ConnectionState.DISCONNECTED, ConnectionStep.CLOSE): ConnectionState.CLOSED,
        (ConnectionState.CONNECTING, ConnectionStep.CONNECTED): ConnectionState.NEGOTIATING,
        (ConnectionState.CONNECTING, ConnectionStep.CLOSE): ConnectionState.CLOSED,
        (ConnectionState.NEGOTIATING, ConnectionStep.RECEIVE): ConnectionState.NEGOTIATING,
        (ConnectionState.NEGOTIATING, ConnectionStep.AGREE): ConnectionState.READY,
        (ConnectionState.NEGOTIATING, ConnectionStep.LOG_IN): ConnectionState.LOGGING_IN,
        (ConnectionState.NEGOTIATING, ConnectionStep.CLOSE): ConnectionState.CLOSED,
        (ConnectionState.LOGGING_IN, ConnectionStep.RECEIVE): ConnectionState.LOGGING_IN,
        (ConnectionState.LOGGING_IN, ConnectionStep.LOGGED_IN): ConnectionState.READY,
        (ConnectionState.LOGGING_IN, ConnectionStep.CLOSE): ConnectionState.CLOSED,
        (ConnectionState.READY, ConnectionStep.SEND): ConnectionState.READY,
        (ConnectionState.READY, ConnectionStep.RECEIVE): ConnectionState.READY,
        (ConnectionState.READY, ConnectionStep.LOG_IN): ConnectionState.RENEWING,
        (ConnectionState.READY, ConnectionStep.CLOSE): ConnectionState.CLOSED,
        (ConnectionState.RENEWING, ConnectionStep.RECEIVE): ConnectionState.RENEWING,
        (ConnectionState.RENEWING, ConnectionStep.LOGGED_IN): ConnectionState.READY,
        (ConnectionState.RENEWING, ConnectionStep.CLOSE): ConnectionState.CLOSED,
        (ConnectionState.CLOSED, ConnectionStep.CLOSE): ConnectionState.CLOSED,
    }
)


class FailureCause(Enum):
    """The cause of a failed connection; the value names the cause in the log."""

    BAD_DATA = "bad data"
    CLOSED_BY_BROKER = "closed by the broker"
    """The broker ended the connection, or the connection broke or could not be opened."""
    TIMED_OUT = "timed out"
    """The connect, or the oldest outstanding request, exceeded its time limit."""
    NO_API_VERSIONS = "no answer to ApiVersions"
    """The broker did not answer the request ApiVersions: Kafka 0.8 closes the connection, 0.9 never responds.

    The owner may open another connection with the `fallback` of the negotiation."""
    NO_COMMON_VERSION = "no common version"
    TLS_FAILED = "TLS cannot be agreed on"
    """The daemon or the broker refuses the other's certificate, or they support no common version of TLS."""
    LOGIN_REFUSED = "login refused"
    NO_CREDENTIALS = "no credentials"
    """The configured password, token, certificate or key is not available."""
    FOREIGN_CLUSTER = "another cluster"
    """The broker belongs to another cluster than the held messages."""

    @property
    def needs_operator(self) -> bool:
        """True if the cause lasts until an operator changes the set-up."""
        return self in {
            FailureCause.TLS_FAILED,
            FailureCause.LOGIN_REFUSED,
            FailureCause.NO_CREDENTIALS,
            FailureCause.FOREIGN_CLUSTER,
        }


class EncodedRequest(NamedTuple):
    """A request to send: the buffers to write, in order, and the correlation id, which the response will repeat."""

    correlation_id: int
    buffers: list[bytes]


class BytesToSend(Struct, frozen=True):
    """Bytes of the negotiation or of a login, which the owner must write now."""

    data: bytes


class ConnectionReady(Struct, frozen=True):
    """The connection accepts the requests of its owner."""

    capabilities: BrokerCapabilities


class LoggedIn(Struct, frozen=True):
    """The broker accepted a login for `lifetime_s` seconds; 0 means as long as the connection lasts.

    The first LoggedIn precedes ConnectionReady; each later one ends a renewal of the login.
    """

    lifetime_s: float


class ProduceAcked(Struct, frozen=True):
    """A produce response: one ack for each partition of the request, in the request's order, or none: see `acks`."""

    correlation_id: int
    response: ProduceResponse


class MetadataReceived(Struct, frozen=True):
    """The response to `request_metadata`."""

    correlation_id: int
    metadata: ClusterMetadata


class ProducerIdReceived(Struct, frozen=True):
    """The response to `request_producer_id`."""

    correlation_id: int
    response: ProducerIdResponse


class TopicsCreated(Struct, frozen=True):
    """The response to `request_topic_creation`: the error code for each topic, 0 if there is none."""

    correlation_id: int
    errors: dict[bytes, int]


class Closed(Struct, frozen=True):
    """The broker closed an idle connection; this is no fault, and no request was outstanding."""


class Failed(Struct, frozen=True):
    """The connection failed; the owner must close its socket.

    `unanswered` are the correlation ids of the owner's requests without a response; their outcome is unknown.
    """

    error: RemoteProtocolError
    cause: FailureCause
    unanswered: tuple[int, ...]


Event: TypeAlias = (
    BytesToSend
    | ConnectionReady
    | LoggedIn
    | ProduceAcked
    | MetadataReceived
    | ProducerIdReceived
    | TopicsCreated
    | Closed
    | Failed
)
