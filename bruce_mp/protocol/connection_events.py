"""What a broker connection tells its owner, and the table of its states.

The table is the whole of the state machine: what is not in it is refused with LocalProtocolError.  A connection lives
once: after CLOSED its owner makes a new one.
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
    """Where a connection stands."""

    DISCONNECTED = "not connected yet"
    CONNECTING = "connecting"
    NEGOTIATING = "agreeing on versions"
    LOGGING_IN = "logging in"
    READY = "ready"
    RENEWING = "renewing the login"
    CLOSED = "closed"


class Step(Enum):
    """What can happen to a connection."""

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
    """Why a connection failed."""

    BAD_DATA = "bad data"
    CLOSED_BY_BROKER = "closed by the broker"
    SILENT = "silent"
    """A deadline passed: of the connect, or of the oldest request without an answer."""
    NO_API_VERSIONS = "no answer about versions"
    """Closed (as Kafka 0.8 does) or silent (as 0.9 is) when asked for versions: another connection may try the
    `fallback` of the opening."""
    NO_COMMON_VERSION = "no common version"
    NOT_TRUSTED = "TLS cannot be agreed on"
    """One side does not accept the other's certificate, or they share no version of TLS."""
    NOT_LET_IN = "login refused"
    NO_CREDENTIALS = "no credentials"
    """The password, token, certificate or key that we are to use is not to be had."""

    @property
    def needs_operator(self) -> bool:
        """Whether it stays so until somebody changes the set-up."""
        return self in {Cause.NOT_TRUSTED, Cause.NOT_LET_IN, Cause.NO_CREDENTIALS}


class Sent(NamedTuple):
    """A request: the id that its answer will name, and the buffers to write, in order."""

    correlation_id: int
    buffers: list[bytes]


class Send(Struct, frozen=True):
    """These bytes must go out now: part of the opening."""

    data: bytes


class Ready(Struct, frozen=True):
    """Requests may be sent from now on."""

    abilities: BrokerAbilities


class LoggedIn(Struct, frozen=True):
    """The broker let us in, for `lifetime_s`; 0: for as long as the connection lasts.  Comes before Ready."""

    lifetime_s: float


class ProduceAcked(Struct, frozen=True):
    """Names exactly the partitions of the request, each once, in its order."""

    correlation_id: int
    response: ProduceResponse


class MetadataReceived(Struct, frozen=True):
    """An answer to `request_metadata`."""

    correlation_id: int
    metadata: ClusterMetadata


class ProducerIdReceived(Struct, frozen=True):
    """An answer to `init_producer_id`."""

    correlation_id: int
    response: ProducerIdResponse


class TopicsMade(Struct, frozen=True):
    """An answer to `create_topics`: the error code for each topic."""

    correlation_id: int
    errors: dict[bytes, int]


class Closed(Struct, frozen=True):
    """The broker closed an idle connection: no fault, nothing is in doubt."""


class Failed(Struct, frozen=True):
    """The connection is of no more use; close the socket.  What became of the `unanswered` requests is not known."""

    error: RemoteProtocolError
    cause: Cause
    unanswered: tuple[int, ...]


Event: TypeAlias = (
    Send | Ready | LoggedIn | ProduceAcked | MetadataReceived | ProducerIdReceived | TopicsMade | Closed | Failed
)
