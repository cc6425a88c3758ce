"""The events of a broker connection, and its state machine.

The table is the whole state machine: any other step raises LocalProtocolError.  A connection is used once: after CLOSED
its owner creates a new one.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.errors import RemoteProtocolError
    from bruce_mp.protocol.api_versions import BrokerAbilities
    from bruce_mp.protocol.kafka_types import ClusterMetadata, ProduceResponse, ProducerIdResponse

__all__ = [
    "TRANSITIONS",
    "Cause",
    "Closed",
    "Event",
    "Failed",
    "LoggedIn",
    "MetadataReceived",
    "ProduceAcked",
    "ProducerIdReceived",
    "Ready",
    "Send",
    "Sent",
    "State",
    "Step",
    "TopicsMade",
]


class State(Enum):
    """The state of a connection."""

    DISCONNECTED = "not connected yet"
    CONNECTING = "connecting"
    NEGOTIATING = "agreeing on versions"
    LOGGING_IN = "logging in"
    READY = "ready"
    RENEWING = "renewing the login"
    CLOSED = "closed"


class Step(Enum):
    """A step of a connection."""

    CONNECT = "connect"
    CONNECTED = "be connected"
    AGREE = "agree on versions"
    LOG_IN = "begin to log in"
    ENTER = "be logged in"
    SEND = "send a request"
    RECEIVE = "receive"
    CLOSE = "close"


TRANSITIONS: Final[Mapping[tuple[State, Step], State]] = MappingProxyType(
    {
        (State.DISCONNECTED, Step.CONNECT): State.CONNECTING,
        (State.DISCONNECTED, Step.CLOSE): State.CLOSED,
        (State.CONNECTING, Step.CONNECTED): State.NEGOTIATING,
        (State.CONNECTING, Step.CLOSE): State.CLOSED,
        (State.NEGOTIATING, Step.RECEIVE): State.NEGOTIATING,
        (State.NEGOTIATING, Step.AGREE): State.READY,
        (State.NEGOTIATING, Step.LOG_IN): State.LOGGING_IN,
        (State.NEGOTIATING, Step.CLOSE): State.CLOSED,
        (State.LOGGING_IN, Step.RECEIVE): State.LOGGING_IN,
        (State.LOGGING_IN, Step.ENTER): State.READY,
        (State.LOGGING_IN, Step.CLOSE): State.CLOSED,
        (State.READY, Step.SEND): State.READY,
        (State.READY, Step.RECEIVE): State.READY,
        (State.READY, Step.LOG_IN): State.RENEWING,
        (State.READY, Step.CLOSE): State.CLOSED,
        (State.RENEWING, Step.RECEIVE): State.RENEWING,
        (State.RENEWING, Step.ENTER): State.READY,
        (State.RENEWING, Step.CLOSE): State.CLOSED,
        (State.CLOSED, Step.CLOSE): State.CLOSED,
    }
)


class Cause(Enum):
    """The cause of a failed connection."""

    BAD_DATA = "bad data"
    CLOSED_BY_BROKER = "closed by the broker"
    SILENT = "silent"
    """The deadline of the connect, or of the oldest outstanding request, passed."""
    NO_API_VERSIONS = "no answer about versions"
    """No response to ApiVersions: Kafka 0.8 closes the connection, 0.9 stays silent.  Another connection may try the
    `fallback` of the opening."""
    NO_COMMON_VERSION = "no common version"
    NOT_TRUSTED = "TLS cannot be agreed on"
    """One peer refuses the other's certificate, or the peers share no version of TLS."""
    NOT_LET_IN = "login refused"
    NO_CREDENTIALS = "no credentials"
    """The configured password, token, certificate or key is not available."""

    @property
    def needs_operator(self) -> bool:
        """True if the cause lasts until an operator changes the set-up."""
        return self in {Cause.NOT_TRUSTED, Cause.NOT_LET_IN, Cause.NO_CREDENTIALS}


class Sent(NamedTuple):
    """A request: the correlation id of its response, and the buffers to write, in order."""

    correlation_id: int
    buffers: list[bytes]


class Send(Struct, frozen=True):
    """Bytes of the opening, which the owner must write now."""

    data: bytes


class Ready(Struct, frozen=True):
    """The connection accepts requests."""

    abilities: BrokerAbilities


class LoggedIn(Struct, frozen=True):
    """A login for `lifetime_s`, or for the whole connection if 0.  Comes before Ready."""

    lifetime_s: float


class ProduceAcked(Struct, frozen=True):
    """A produce response, with each partition of the request once and in its order."""

    correlation_id: int
    response: ProduceResponse


class MetadataReceived(Struct, frozen=True):
    """The response to `request_metadata`."""

    correlation_id: int
    metadata: ClusterMetadata


class ProducerIdReceived(Struct, frozen=True):
    """The response to `init_producer_id`."""

    correlation_id: int
    response: ProducerIdResponse


class TopicsMade(Struct, frozen=True):
    """The response to `create_topics`: the error code for each topic."""

    correlation_id: int
    errors: dict[bytes, int]


class Closed(Struct, frozen=True):
    """The broker closed an idle connection, without a fault and without outstanding requests."""


class Failed(Struct, frozen=True):
    """The connection failed; close the socket.  The outcome of the `unanswered` requests is unknown."""

    error: RemoteProtocolError
    cause: Cause
    unanswered: tuple[int, ...]


Event: TypeAlias = (
    Send | Ready | LoggedIn | ProduceAcked | MetadataReceived | ProducerIdReceived | TopicsMade | Closed | Failed
)
