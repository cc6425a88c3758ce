"""A sans-IO connection to a Kafka broker: the owner of the connection has the socket and the clock.

The owner passes in received bytes and the time, handles the returned events, and writes the returned bytes:

    connection = BrokerConnection("bruce", "b1:9092")
    connection.on_connecting(now)            DISCONNECTED -> CONNECTING
    write(connection.on_connected(now))      CONNECTING -> NEGOTIATING
    for event in connection.receive(data, now): ...     ConnectionReady: NEGOTIATING -> READY
    write(connection.request_produce(...).buffers)

Invariants:

* A broker responds to the requests of a connection in order.  So a response must have the correlation id of the oldest
  outstanding request, that is, of the oldest request without a response.
* The time limit of a request starts when it is sent or when the previous response comes, whichever is later.  So a new
  request never changes the deadline of an older one.
* A produce response names each partition of its request once; the owner gets the acks in the order of the request.
* A produce request with acks 0 has no response, so it is never outstanding.
* The `negotiation` lists the requests before ConnectionReady.  After the response to the last of them, the connection
  is ready, or begins the configured login.  While a login is renewed, no request may be sent until LoggedIn.
* No event follows Failed or Closed.  Failed, and the result of `close`, list the owner's outstanding requests.

Times are in seconds of a monotonic clock.  `connection_events` defines the states and the events.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka import connection_events as ev
from bruce_mp.protocol.kafka import kafka_api
from bruce_mp.protocol.kafka.api_versions import (
    API_VERSIONS_TO_TRY,
    BEFORE_API_VERSIONS,
    BrokerCapabilities,
    NoCommonVersionError,
    choose_versions,
)
from bruce_mp.protocol.kafka.connection_events import (
    TRANSITIONS,
    ConnectionState,
    ConnectionStep,
    EncodedRequest,
    Event,
    FailureCause,
)
from bruce_mp.protocol.kafka.frames import DEFAULT_MAX_FRAME, MIN_FRAME, FrameReader
from bruce_mp.protocol.kafka.kafka_types import EncodedTopics, ProduceResponse
from bruce_mp.protocol.kafka.login import Login
from bruce_mp.protocol.kafka.produce_request import encode_produce
from bruce_mp.protocol.kafka.produce_response import decode_produce
from bruce_mp.protocol.kafka.sasl import LoginRefusedError
from bruce_mp.protocol.kafka.version_negotiation import (
    VERSIONS_FIRST,
    VERSIONS_TIMEOUT_S,
    Negotiation,
    NegotiationRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.protocol.kafka.kafka_types import PartitionData
    from bruce_mp.protocol.kafka.sasl import Mechanism

__all__ = ["BrokerConnection"]

T = TypeVar("T")

AcceptedReader: TypeAlias = "Callable[[bytes, int, list[bytes], list[int]], int | None]"
"""A fast reader of responses that accept all batches, such as `kernels.read_accepted`, which has the parameters."""

CORRELATION_ID_MASK: Final = 0x7FFFFFFF
DEFAULT_TIMEOUT_S: Final = 60.0
"""The default of `delivery.kafka_socket_timeout_s`."""
_ASSUMED_OLD_HINT: Final = (
    " The daemon treats it as older than Kafka 0.10, because it reports no versions or kafka.broker_version says so; "
    "a newer broker may refuse the old versions."
)
_TLS_ALERT: Final = b"\x15\x03"
"""First bytes of a TLS alert (record type 21, version 3.x), which a TLS listener may send to a client without TLS."""
_TLS_EXPECTED: Final = "expects TLS on this port. Set kafka.tls.enable, or name the port of its plaintext listener."


class _Outstanding(NamedTuple):
    """An outstanding request. `correlation_id` is None if the response is a bare SASL token without a correlation id.

    `is_internal` is True for a request of the negotiation or of a login, and False for a request of the owner.
    """

    correlation_id: int | None
    sent_at: float
    timeout: float
    on_response: Callable[[bytes], list[Event]]
    is_internal: bool


class BrokerConnection:
    """One connection.  `broker` is the broker's name in error texts.

    `timeout`, in seconds, applies to the connect and to each request, but for the request ApiVersions it is at most
    VERSIONS_TIMEOUT_S.  `max_frame` is the largest accepted response in bytes.  A method for a request only encodes the
    request: the owner writes the returned bytes.
    """

    def __init__(
        self,
        client_id: str,
        broker: str,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_frame: int = DEFAULT_MAX_FRAME,
        negotiation: Negotiation = VERSIONS_FIRST,
    ) -> None:
        self._client_id = client_id
        self._broker = broker
        self._timeout = timeout
        self._negotiation = negotiation
        self._negotiation_requests_sent = 0
        self._frames = FrameReader(max_frame)
        self._state = ConnectionState.DISCONNECTED
        self._outstanding: deque[_Outstanding] = deque()
        self._last_id = 0
        self._progress_at = 0.0
        """The time of the last response or, before the first response, of the call of `on_connecting`.

        It is set before `on_response` handles a response, and is the `sent_at` of a follow-up request.
        """
        self._capabilities: BrokerCapabilities | None = None
        self._mechanism: Mechanism | None = None
        self._login: Login | None = None
        self._has_answered_owner = False
        """True once the broker has responded to a request of the owner."""

    # --- state --------------------------------------------------------------------------------------------------------
    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def capabilities(self) -> BrokerCapabilities:
        """The agreed API versions; raises LocalProtocolError before ConnectionReady."""
        if self._capabilities is None:
            raise LocalProtocolError(f"The connection to broker {self._broker} has not agreed on versions yet.")
        return self._capabilities

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Correlation ids of the owner's outstanding requests, oldest first."""
        ids = (request.correlation_id for request in self._outstanding if not request.is_internal)
        return tuple(correlation_id for correlation_id in ids if correlation_id is not None)

    def next_deadline(self) -> float | None:
        """Return the time for the next `check_deadline`; None if neither a connect nor a request is outstanding."""
        if self._state is ConnectionState.CONNECTING:
            return self._progress_at + self._timeout
        if not self._outstanding:
            return None
        oldest = self._outstanding[0]
        return max(self._progress_at, oldest.sent_at) + oldest.timeout

    # --- connecting and closing ---------------------------------------------------------------------------------------
    def on_connecting(self, now: float) -> None:
        """Record that the owner has begun to connect."""
        self._step(ConnectionStep.CONNECT)
        self._progress_at = now

    def on_connected(self, now: float, mechanism: Mechanism | None = None) -> list[bytes]:
        """Begin the negotiation on the socket that the owner has connected; return the first bytes to send.

        `mechanism` computes the tokens of the login; it is None if no login is configured.
        """
        self._step(ConnectionStep.CONNECTED)
        self._mechanism = mechanism
        return [self._next_negotiation_request(now)]

    def on_eof(self) -> list[Event]:
        """Close the connection, because the broker has ended the stream.

        Return Closed if the connection was ready and no request was outstanding, otherwise Failed.
        """
        if self._state is ConnectionState.CLOSED:
            return []
        if self._state is ConnectionState.READY and not self._outstanding:
            self._step(ConnectionStep.CLOSE)
            return [ev.Closed()]
        if self._state is ConnectionState.NEGOTIATING:
            return self._fail_negotiation("closed the connection", FailureCause.CLOSED_BY_BROKER)
        if self._state is ConnectionState.LOGGING_IN:
            assert self._login is not None
            # If tokens have no headers, a broker can refuse the login only by closing the connection.
            cause = FailureCause.CLOSED_BY_BROKER if self._login.has_headers else FailureCause.LOGIN_REFUSED
            return self._fail(self._login.describe_close(), cause)
        count = len(self._outstanding)
        requests = f"{count} request{'' if count == 1 else 's'}"
        text = f"closed the connection with {requests} unanswered; it may be restarting"
        may_need_login = self._mechanism is None and not self._has_answered_owner
        hint = ", or expect a login on this port (kafka.sasl.mechanism)." if may_need_login else "."
        return self._fail(text + hint, FailureCause.CLOSED_BY_BROKER)

    def check_deadline(self, now: float) -> list[Event]:
        """Fail the connection if a deadline has passed; return the event Failed, or no event."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        if self._state is ConnectionState.NEGOTIATING:
            return self._fail_negotiation(
                f"did not answer within {self._outstanding[0].timeout:g} s", FailureCause.TIMED_OUT
            )
        act = "accept a connection" if self._state is ConnectionState.CONNECTING else "answer a request"
        return self._fail(f"did not {act} within {self._timeout:g} s.", FailureCause.TIMED_OUT)

    def close(self) -> tuple[int, ...]:
        """Close the connection, and return the correlation ids of the owner's outstanding requests."""
        unanswered = self.unanswered
        self._step(ConnectionStep.CLOSE)
        self._outstanding.clear()
        return unanswered

    # --- requests -----------------------------------------------------------------------------------------------------
    def request_produce(
        self,
        data: Sequence[PartitionData] | EncodedTopics,
        now: float,
        *,
        acks: int,
        timeout_ms: int,
        read_accepted: AcceptedReader | None = None,
    ) -> EncodedRequest:
        """Return a request to append batches, one for each partition.

        ProduceAcked reports the response; with `acks` 0 there is none.  If `read_accepted` can read the response, the
        event has no acks.  `encode_produce` describes the other parameters and the errors.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.capabilities.produce_version, self._next_id()
        buffers = encode_produce(version, correlation_id, self._client_id, data, acks=acks, timeout_ms=timeout_ms)
        if acks != 0:
            if isinstance(data, EncodedTopics):
                names, partitions = data.names, data.partitions
            else:
                names, partitions = [item.topic for item in data], [item.partition for item in data]
            decode = partial(_decode_in_order, version, names, partitions, read_accepted)
            self._expect_owner_response(correlation_id, now, ev.ProduceAcked, decode)
        return EncodedRequest(correlation_id, buffers)

    def request_metadata(
        self,
        topics: Sequence[bytes] | None,
        now: float,
        *,
        allow_auto_topic_creation: bool = False,
        with_operations: bool = False,
    ) -> EncodedRequest:
        """Return a request for metadata, of all topics if `topics` is None; MetadataReceived reports the response.

        `encode_metadata` describes the parameters and the errors.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.capabilities.metadata_version, self._next_id()
        data = kafka_api.encode_metadata(
            version,
            correlation_id,
            self._client_id,
            topics,
            allow_auto_topic_creation=allow_auto_topic_creation,
            with_operations=with_operations,
        )
        decode = partial(kafka_api.decode_metadata, version=version)
        self._expect_owner_response(correlation_id, now, ev.MetadataReceived, decode)
        return EncodedRequest(correlation_id, [data])

    def request_producer_id(self, now: float) -> EncodedRequest:
        """Return a request for a producer id; ProducerIdReceived reports the response.

        Raises LocalProtocolError if the broker has no producer ids.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.capabilities.init_producer_id_version, self._next_id()
        if version is None:
            raise LocalProtocolError(f"Broker {self._broker} has no producer ids; see `capabilities.has_producer_ids`.")
        data = kafka_api.encode_init_producer_id(version, correlation_id, self._client_id)
        decode = partial(kafka_api.decode_producer_id, version=version)
        self._expect_owner_response(correlation_id, now, ev.ProducerIdReceived, decode)
        return EncodedRequest(correlation_id, [data])

    def request_topic_creation(
        self, topics: Sequence[bytes], now: float, *, partitions: int, replication: int, timeout_ms: int
    ) -> EncodedRequest:
        """Return a request to create topics; TopicsCreated reports the response.

        `encode_create_topics` describes the parameters.  Raises LocalProtocolError if
        `capabilities.create_topics_version` is None.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.capabilities.create_topics_version, self._next_id()
        if version is None:
            raise LocalProtocolError(f"Broker {self._broker} has no CreateTopics API.")
        numbers = {"partitions": partitions, "replication": replication, "timeout_ms": timeout_ms}
        data = kafka_api.encode_create_topics(version, correlation_id, self._client_id, topics, **numbers)
        decode = partial(kafka_api.decode_create_topics, version=version)
        self._expect_owner_response(correlation_id, now, ev.TopicsCreated, decode)
        return EncodedRequest(correlation_id, [data])

    # --- responses ----------------------------------------------------------------------------------------------------
    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process received bytes; return the events of all frames that are now complete, in order.

        Bytes that do not follow the protocol cause the event Failed, not an exception.
        """
        self._step(ConnectionStep.RECEIVE)
        if self._state is ConnectionState.NEGOTIATING and data.startswith(_TLS_ALERT):
            return self._fail(_TLS_EXPECTED, FailureCause.TLS_FAILED)
        self._frames.feed(data)
        events: list[Event] = []
        try:
            while (frame := self._frames.next_frame(0 if self._awaits_bare_token() else MIN_FRAME)) is not None:
                events += self._on_frame(frame, now)
        except LoginRefusedError as error:
            events += self._fail(f"refused the login. {error}", FailureCause.LOGIN_REFUSED)
        except NoCommonVersionError as error:
            events += self._fail(f"cannot be used. {error}", FailureCause.NO_COMMON_VERSION)
        except RemoteProtocolError as error:
            events += self._fail(f"broke the protocol. {error}", FailureCause.BAD_DATA)
        return events

    def _awaits_bare_token(self) -> bool:
        """Return True if the next frame is a SASL token without a header; such a frame may be empty."""
        return bool(self._outstanding) and self._outstanding[0].correlation_id is None

    def _on_frame(self, frame: bytes, now: float) -> list[Event]:
        is_bare = self._awaits_bare_token()
        oldest = self._outstanding[0] if is_bare else self._checked_oldest(kafka_api.read_correlation_id(frame))
        self._progress_at = now
        events = oldest.on_response(frame)
        self._outstanding.popleft()  # after `on_response`: if that raises an error, the request stays outstanding
        self._has_answered_owner = self._has_answered_owner or not oldest.is_internal
        return events

    def _checked_oldest(self, correlation_id: int) -> _Outstanding:
        """Return the oldest outstanding request; raise RemoteProtocolError if it does not have this correlation id."""
        if not self._outstanding:
            raise RemoteProtocolError(f"It sent response {correlation_id} without an outstanding request.")
        oldest = self._outstanding[0]
        if correlation_id != oldest.correlation_id:
            raise RemoteProtocolError(
                f"It sent response {correlation_id}, but {oldest.correlation_id} is the oldest request."
            )
        return oldest

    def _on_versions(self, version: int, frame: bytes) -> list[Event]:
        response = kafka_api.decode_api_versions(frame, version)
        lower_versions = [known for known in API_VERSIONS_TO_TRY if known < version]
        if response.error == kafka_api.UNSUPPORTED_VERSION and lower_versions:
            return [ev.BytesToSend(self._request_versions(lower_versions[0], self._progress_at))]
        if response.error != 0:
            raise RemoteProtocolError(f"It answered ApiVersions with error {response.error}.")
        return self._on_versions_agreed(choose_versions(response.apis))

    def _on_negotiation_metadata(self, version: int, frame: bytes) -> list[Event]:
        kafka_api.decode_metadata(frame, version)  # only a check: the negotiation does not use the metadata
        if self._negotiation_requests_sent < len(self._negotiation.requests):
            return [ev.BytesToSend(self._next_negotiation_request(self._progress_at))]
        assert self._negotiation.assumed is not None
        return self._on_versions_agreed(self._negotiation.assumed)

    def _on_versions_agreed(self, capabilities: BrokerCapabilities) -> list[Event]:
        self._capabilities = capabilities
        if self._mechanism is not None:
            return [ev.BytesToSend(self._log_in(self._mechanism, self._progress_at))]
        self._step(ConnectionStep.AGREE)
        return [ev.ConnectionReady(capabilities)]

    # --- login --------------------------------------------------------------------------------------------------------
    def renew_login(self, mechanism: Mechanism, now: float) -> list[bytes]:
        """Begin a new login on a ready connection, and return the bytes to send; LoggedIn reports its success."""
        return [self._log_in(mechanism, now)]

    def _log_in(self, mechanism: Mechanism, now: float) -> bytes:
        self._step(ConnectionStep.LOG_IN)
        self._login = login = Login(mechanism, self.capabilities, self._client_id)
        correlation_id = self._next_id()
        self._expect_response(correlation_id, now, self._on_handshake, is_internal=True)
        return login.encode_handshake(correlation_id)

    def _on_handshake(self, frame: bytes) -> list[Event]:
        assert self._login is not None
        self._login.on_handshake(frame)
        return [ev.BytesToSend(self._send_token(self._login))]

    def _send_token(self, login: Login) -> bytes:
        correlation_id = self._next_id()
        self._expect_response(
            correlation_id if login.has_headers else None,
            self._progress_at,
            partial(self._on_token, login),
            is_internal=True,
        )
        return login.encode_token(correlation_id)

    def _on_token(self, login: Login, frame: bytes) -> list[Event]:
        if not login.on_token(frame):
            return [ev.BytesToSend(self._send_token(login))]
        is_first = self._state is ConnectionState.LOGGING_IN
        self._step(ConnectionStep.LOGGED_IN)
        events: list[Event] = [ev.LoggedIn(login.lifetime_s)]
        return [*events, ev.ConnectionReady(self.capabilities)] if is_first else events

    # --- transitions and requests -------------------------------------------------------------------------------------
    def _step(self, step: ConnectionStep) -> None:
        state = TRANSITIONS.get((self._state, step))
        if state is None:
            raise LocalProtocolError(
                f"The connection to broker {self._broker} is {self._state.value}; it cannot {step.value}."
            )
        self._state = state

    def _next_id(self) -> int:
        self._last_id = (self._last_id + 1) & CORRELATION_ID_MASK
        return self._last_id

    def _expect_response(
        self,
        correlation_id: int | None,
        now: float,
        on_response: Callable[[bytes], list[Event]],
        timeout: float | None = None,
        *,
        is_internal: bool = False,
    ) -> None:
        """Add a request to `_outstanding`; `timeout` is in seconds, by default that of the connection."""
        self._outstanding.append(_Outstanding(correlation_id, now, timeout or self._timeout, on_response, is_internal))

    def _expect_owner_response(
        self, correlation_id: int, now: float, event_type: Callable[[int, T], Event], decode: Callable[[bytes], T]
    ) -> None:
        """Expect the response to a request of the owner; an event of `event_type` reports the response to the owner."""
        self._expect_response(correlation_id, now, lambda frame: [event_type(correlation_id, decode(frame))])

    def _next_negotiation_request(self, now: float) -> bytes:
        request = self._negotiation.requests[self._negotiation_requests_sent]
        self._negotiation_requests_sent += 1
        if request is NegotiationRequest.VERSIONS:
            return self._request_versions(API_VERSIONS_TO_TRY[0], now)
        correlation_id = self._next_id()
        version = (self._negotiation.assumed or BEFORE_API_VERSIONS).metadata_version
        self._expect_response(correlation_id, now, partial(self._on_negotiation_metadata, version), is_internal=True)
        return kafka_api.encode_metadata(version, correlation_id, self._client_id)

    def _request_versions(self, version: int, now: float) -> bytes:
        correlation_id = self._next_id()
        timeout = min(self._timeout, VERSIONS_TIMEOUT_S)
        self._expect_response(correlation_id, now, partial(self._on_versions, version), timeout, is_internal=True)
        return kafka_api.encode_api_versions(version, correlation_id, self._client_id)

    def _fail_negotiation(self, act: str, cause: FailureCause) -> list[Event]:
        """Fail with NO_API_VERSIONS if the last request was ApiVersions, otherwise with `cause`."""
        request = self._negotiation.requests[self._negotiation_requests_sent - 1]
        text = f"{act} when asked {request.value}. It may be shutting down, or may expect TLS on this port."
        return self._fail(text, FailureCause.NO_API_VERSIONS if request is NegotiationRequest.VERSIONS else cause)

    def _fail(self, text: str, cause: FailureCause) -> list[Event]:
        unanswered = self.close()
        hint = _ASSUMED_OLD_HINT if self._negotiation.assumed else ""
        return [ev.Failed(RemoteProtocolError(f"Broker {self._broker} {text}{hint}"), cause, unanswered)]


def _decode_in_order(
    version: int, names: list[bytes], partitions: list[int], read_accepted: AcceptedReader | None, frame: bytes
) -> ProduceResponse:
    """Return the produce response with its acks in the order of the request."""
    throttle_ms = None if read_accepted is None else read_accepted(frame, version, names, partitions)
    if throttle_ms is not None:  # nearly always
        return ProduceResponse((), throttle_ms)
    response, expected = decode_produce(frame, version), list(zip(names, partitions, strict=True))
    acks = {(ack.topic, ack.partition): ack for ack in response.acks}
    if len(response.acks) != len(expected) or acks.keys() != set(expected):
        differing = sorted(acks.keys() ^ set(expected)) or sorted(acks)
        raise RemoteProtocolError(
            f"A produce response does not name the {len(expected)} partitions of its request once each, "
            f"but {len(response.acks)}; see {differing[0][0]!r} partition {differing[0][1]}."
        )
    return replace(response, acks=tuple([acks[partition] for partition in expected]))
