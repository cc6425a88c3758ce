"""A sans-IO connection to a Kafka broker: bytes in, events out, the time as an argument.

    connection = BrokerConnection("bruce", "b1:9092")
    connection.connecting(now)               DISCONNECTED -> CONNECTING
    write(connection.connected(now))         CONNECTING -> NEGOTIATING
    for event in connection.receive(data, now): ...     Ready: NEGOTIATING -> READY
    write(connection.send_produce(...).buffers)

Invariants:

* A broker responds to a connection's requests one by one and in order.  So a response must have the correlation id of
  the oldest outstanding request.  A request's time begins when it is sent or when the previous response comes,
  whichever is later.  Sending more never moves a deadline.
* A produce response names each partition of its request once; the owner gets the acks in the order of the request.
* A request with acks 0 has no response and is not outstanding.
* The `opening` defines the questions before Ready; the answer to the last one makes the connection ready, or begins a
  configured login.  A login is renewed between requests: no request may be sent until LoggedIn.
* After Failed or Closed no event follows.  Failed or `close` names the outstanding requests, once.

Times are seconds of a monotonic clock.  States and events: `connection_events`.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka import connection_events as ev
from bruce_mp.protocol.kafka import kafka_api
from bruce_mp.protocol.kafka.api_versions import (
    BEFORE_API_VERSIONS,
    DOWNGRADE,
    BrokerAbilities,
    NoCommonVersionError,
    choose_versions,
)
from bruce_mp.protocol.kafka.connection_events import (
    TRANSITIONS,
    Cause,
    ConnectionState,
    ConnectionStep,
    Event,
    SentRequest,
)
from bruce_mp.protocol.kafka.frames import DEFAULT_MAX_FRAME, SMALLEST_FRAME, FrameReader
from bruce_mp.protocol.kafka.login import Login
from bruce_mp.protocol.kafka.opening import ASK, VERSIONS_TIMEOUT_S, Opening, OpeningRequest
from bruce_mp.protocol.kafka.produce_request import encode_produce
from bruce_mp.protocol.kafka.produce_response import decode_produce
from bruce_mp.protocol.kafka.sasl import LoginRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.protocol.kafka.kafka_types import PartitionData, ProduceResponse
    from bruce_mp.protocol.kafka.sasl import Mechanism

__all__ = ["BrokerConnection"]

CORRELATION_ID_MASK: Final = 0x7FFFFFFF
DEFAULT_TIMEOUT_S: Final = 60.0
ASSUMED: Final = (
    " It was taken for older than Kafka 0.10, since it names no versions or kafka.broker_version says so; "
    "a newer one may refuse the old versions."
)


TLS_ALERT: Final = b"\x15\x03"
"""The alert that a TLS listener may send to a client without TLS."""
_TEXT_NO_TLS: Final = (
    "speaks TLS on this port, and we do not. Set kafka.tls.enable, or name the port of its plain listener."
)


class _Outstanding(NamedTuple):
    """An outstanding request; `correlation_id` is None if the response has none.  `is_ours`: not the owner's."""

    correlation_id: int | None
    sent_at: float
    timeout: float
    answered: Callable[[bytes], list[Event]]
    is_ours: bool


class BrokerConnection:
    """One connection.  `broker` is its name in error texts; `timeout` applies to the connect and to each request.

    The version question has the shorter VERSIONS_TIMEOUT_S.
    """

    def __init__(
        self,
        client_id: str,
        broker: str,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_frame: int = DEFAULT_MAX_FRAME,
        opening: Opening = ASK,
    ) -> None:
        self._client_id = client_id
        self._broker = broker
        self._timeout = timeout
        self._opening = opening
        self._asked = 0
        self._frames = FrameReader(max_frame)
        self._state = ConnectionState.DISCONNECTED
        self._outstanding: deque[_Outstanding] = deque()
        self._last_id = 0
        self._progress_at = 0.0
        self._abilities: BrokerAbilities | None = None
        self._mechanism: Mechanism | None = None
        self._login: Login | None = None
        self._was_useful = False
        """True once a request of the owner has a response."""

    # --- looking ------------------------------------------------------------------------------------------------------
    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def abilities(self) -> BrokerAbilities:
        """The agreed API versions; raises LocalProtocolError before Ready."""
        if self._abilities is None:
            raise LocalProtocolError(f"The connection to broker {self._broker} has not agreed on versions yet.")
        return self._abilities

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Correlation ids of the owner's outstanding requests, oldest first."""
        ids = (one.correlation_id for one in self._outstanding if not one.is_ours)
        return tuple(one for one in ids if one is not None)

    def next_deadline(self) -> float | None:
        """The time for the next `check_deadline`; None without an outstanding request."""
        if self._state is ConnectionState.CONNECTING:
            return self._progress_at + self._timeout
        if not self._outstanding:
            return None
        oldest = self._outstanding[0]
        return max(self._progress_at, oldest.sent_at) + oldest.timeout

    def expired(self, now: float) -> bool:
        deadline = self.next_deadline()
        return deadline is not None and now >= deadline

    # --- coming and going ---------------------------------------------------------------------------------------------
    def connecting(self, now: float) -> None:
        """Record that the owner has begun to connect."""
        self._step(ConnectionStep.CONNECT)
        self._progress_at = now

    def connected(self, now: float, mechanism: Mechanism | None = None) -> list[bytes]:
        """Begin the opening on a connected socket, and return the first bytes to send.

        `mechanism` is for the login; None without one.
        """
        self._step(ConnectionStep.CONNECTED)
        self._mechanism = mechanism
        return [self._ask_next(now)]

    def eof(self) -> list[Event]:
        """End the connection after the broker closed it: Closed if it was ready and idle, else Failed."""
        if self._state is ConnectionState.CLOSED:
            return []
        if self._state is ConnectionState.READY and not self._outstanding:
            self._step(ConnectionStep.CLOSE)
            return [ev.Closed()]
        if self._state is ConnectionState.NEGOTIATING:
            return self._not_opened("closed the connection", Cause.CLOSED_BY_BROKER)
        if self._state is ConnectionState.LOGGING_IN:
            return self._closed_in_login()
        text = f"closed the connection with {len(self._outstanding)} requests unanswered; it may be restarting"
        is_stranger = self._mechanism is None and not self._was_useful
        hint = ", or expect a login on this port (kafka.sasl.mechanism)." if is_stranger else "."
        return self._fail(text + hint, Cause.CLOSED_BY_BROKER)

    def _closed_in_login(self) -> list[Event]:
        assert self._login is not None
        cause = Cause.CLOSED_BY_BROKER if self._login.has_headers else Cause.NOT_LET_IN
        return self._fail(self._login.closed_text(), cause)

    def check_deadline(self, now: float) -> list[Event]:
        """Return Failed if a deadline has passed, else no event."""
        if not self.expired(now):
            return []
        if self._state is ConnectionState.NEGOTIATING:
            return self._not_opened(f"did not answer within {self._outstanding[0].timeout:g} s", Cause.SILENT)
        waited_for = "accept a connection" if self._state is ConnectionState.CONNECTING else "answer a request"
        return self._fail(f"did not {waited_for} within {self._timeout:g} s.", Cause.SILENT)

    def close(self) -> tuple[int, ...]:
        """Close the connection, and return the correlation ids of its outstanding requests."""
        unanswered = self.unanswered
        self._step(ConnectionStep.CLOSE)
        self._outstanding.clear()
        return unanswered

    # --- requests -----------------------------------------------------------------------------------------------------
    def send_produce(self, data: Sequence[PartitionData], now: float, *, acks: int, timeout_ms: int) -> SentRequest:
        """Send one batch for each partition, with acks -1, 1 or 0; `timeout_ms` is the broker's time for its replicas.

        ProduceAcked follows, except with acks 0.  Raises LocalProtocolError as `encode_produce` does.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.abilities.produce_version, self._next_id()
        buffers = encode_produce(version, correlation_id, self._client_id, data, acks=acks, timeout_ms=timeout_ms)
        if acks != 0:
            expected = [(one.topic, one.partition) for one in data]
            self._expect(correlation_id, now, partial(self._on_produce, correlation_id, version, expected))
        return SentRequest(correlation_id, buffers)

    def request_metadata(
        self, topics: Sequence[bytes] | None, now: float, *, allow_auto_topic_creation: bool = False
    ) -> SentRequest:
        """Request metadata, of all topics if `topics` is None; MetadataReceived follows.

        Raises LocalProtocolError as `encode_metadata` does.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.abilities.metadata_version, self._next_id()
        data = kafka_api.encode_metadata(
            version, correlation_id, self._client_id, topics, allow_auto_topic_creation=allow_auto_topic_creation
        )
        self._expect(correlation_id, now, partial(self._on_metadata, correlation_id, version))
        return SentRequest(correlation_id, [data])

    def init_producer_id(self, now: float) -> SentRequest:
        """Request a producer id; ProducerIdReceived follows.

        Raises LocalProtocolError if the broker has no producer ids.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.abilities.init_producer_id_version, self._next_id()
        if version is None:
            raise LocalProtocolError(f"Broker {self._broker} knows no producer ids; look at `abilities.idempotence`.")
        data = kafka_api.encode_init_producer_id(version, correlation_id, self._client_id)
        self._expect(correlation_id, now, partial(self._on_producer_id, correlation_id, version))
        return SentRequest(correlation_id, [data])

    def create_topics(
        self, topics: Sequence[bytes], now: float, *, partitions: int, replication: int, timeout_ms: int
    ) -> SentRequest:
        """Request the creation of topics; TopicsMade follows.  -1 leaves a number to the broker.

        Raises LocalProtocolError if `abilities.create_topics_version` is None.
        """
        self._step(ConnectionStep.SEND)
        version, correlation_id = self.abilities.create_topics_version, self._next_id()
        if version is None:
            raise LocalProtocolError(f"Broker {self._broker} cannot be asked to make topics.")
        numbers = {"partitions": partitions, "replication": replication, "timeout_ms": timeout_ms}
        data = kafka_api.encode_create_topics(version, correlation_id, self._client_id, topics, **numbers)
        self._expect(correlation_id, now, partial(self._on_topics, correlation_id, version))
        return SentRequest(correlation_id, [data])

    # --- responses ----------------------------------------------------------------------------------------------------
    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return the events that the bytes complete, in order; Failed reports bad data, which never raises."""
        self._step(ConnectionStep.RECEIVE)
        if self._state is ConnectionState.NEGOTIATING and data.startswith(TLS_ALERT):
            return self._fail(_TEXT_NO_TLS, Cause.NOT_TRUSTED)
        self._frames.feed(data)
        events: list[Event] = []
        try:
            while (frame := self._frames.next_frame(self._smallest_frame())) is not None:
                events += self._answer(frame, now)
        except LoginRefusedError as error:
            events += self._fail(f"refuses the login. {error}", Cause.NOT_LET_IN)
        except NoCommonVersionError as error:
            events += self._fail(f"cannot be used. {error}", Cause.NO_COMMON_VERSION)
        except RemoteProtocolError as error:
            events += self._fail(f"broke the protocol. {error}", Cause.BAD_DATA)
        return events

    def _smallest_frame(self) -> int:
        """The smallest valid size of a frame; a token without a header may be empty."""
        return 0 if self._outstanding and self._outstanding[0].correlation_id is None else SMALLEST_FRAME

    def _answer(self, frame: bytes, now: float) -> list[Event]:
        is_bare = bool(self._outstanding) and self._outstanding[0].correlation_id is None
        oldest = self._outstanding[0] if is_bare else self._oldest(kafka_api.read_correlation_id(frame))
        self._progress_at = now
        events = oldest.answered(frame)
        # Only after decoding: a request with an invalid response counts as outstanding.
        self._outstanding.popleft()
        self._was_useful = self._was_useful or not oldest.is_ours
        return events

    def _oldest(self, correlation_id: int) -> _Outstanding:
        if not self._outstanding:
            raise RemoteProtocolError(f"It sent response {correlation_id}, which answers no request.")
        oldest = self._outstanding[0]
        if correlation_id != oldest.correlation_id:
            raise RemoteProtocolError(f"Response {correlation_id} came where {oldest.correlation_id} was due.")
        return oldest

    def _on_versions(self, version: int, frame: bytes) -> list[Event]:
        answer = kafka_api.decode_api_versions(frame, version)
        lower = [known for known in DOWNGRADE if known < version]
        if answer.error == kafka_api.UNSUPPORTED_VERSION and lower:
            return [ev.Send(self._ask_versions(lower[0], self._progress_at))]
        if answer.error != 0:
            raise RemoteProtocolError(f"It answered error {answer.error} when asked which versions it speaks.")
        return self._agree(choose_versions(answer.apis))

    def _on_first_metadata(self, version: int, frame: bytes) -> list[Event]:
        kafka_api.decode_metadata(frame, version)
        if self._asked < len(self._opening.questions):
            return [ev.Send(self._ask_next(self._progress_at))]
        assert self._opening.assumed is not None
        return self._agree(self._opening.assumed)

    def _agree(self, abilities: BrokerAbilities) -> list[Event]:
        self._abilities = abilities
        if self._mechanism is not None:
            return [ev.Send(self._log_in(self._mechanism, self._progress_at))]
        self._step(ConnectionStep.AGREE)
        return [ev.ConnectionReady(abilities)]

    # --- login --------------------------------------------------------------------------------------------------------
    def renew_login(self, mechanism: Mechanism, now: float) -> list[bytes]:
        """Begin a new login on a ready connection, and return the bytes to send; LoggedIn ends it."""
        return [self._log_in(mechanism, now)]

    def _log_in(self, mechanism: Mechanism, now: float) -> bytes:
        self._step(ConnectionStep.LOG_IN)
        self._login = login = Login(mechanism, self.abilities, self._client_id)
        correlation_id = self._next_id()
        self._expect(correlation_id, now, self._on_login_allowed, is_ours=True)
        return login.request(correlation_id)

    def _on_login_allowed(self, frame: bytes) -> list[Event]:
        assert self._login is not None
        self._login.take_answer(frame)
        return [ev.Send(self._send_token(self._login))]

    def _send_token(self, login: Login) -> bytes:
        correlation_id = self._next_id()
        self._expect(
            correlation_id if login.has_headers else None,
            self._progress_at,
            partial(self._on_token, login),
            is_ours=True,
        )
        return login.next_token(correlation_id)

    def _on_token(self, login: Login, frame: bytes) -> list[Event]:
        if not login.take_token(frame):
            return [ev.Send(self._send_token(login))]
        is_first = self._state is ConnectionState.LOGGING_IN
        self._step(ConnectionStep.ENTER)
        entered: list[Event] = [ev.LoggedIn(login.lifetime_s)]
        return [*entered, ev.ConnectionReady(self.abilities)] if is_first else entered

    def _on_produce(
        self, correlation_id: int, version: int, expected: list[tuple[bytes, int]], frame: bytes
    ) -> list[Event]:
        return [ev.ProduceAcked(correlation_id, _in_order(decode_produce(frame, version), expected))]

    def _on_metadata(self, correlation_id: int, version: int, frame: bytes) -> list[Event]:
        return [ev.MetadataReceived(correlation_id, kafka_api.decode_metadata(frame, version))]

    def _on_producer_id(self, correlation_id: int, version: int, frame: bytes) -> list[Event]:
        return [ev.ProducerIdReceived(correlation_id, kafka_api.decode_producer_id(frame, version))]

    def _on_topics(self, correlation_id: int, version: int, frame: bytes) -> list[Event]:
        return [ev.TopicsMade(correlation_id, kafka_api.decode_create_topics(frame, version))]

    # --- machinery ----------------------------------------------------------------------------------------------------
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

    def _expect(
        self,
        correlation_id: int | None,
        now: float,
        answered: Callable[[bytes], list[Event]],
        timeout: float | None = None,
        *,
        is_ours: bool = False,
    ) -> None:
        self._outstanding.append(_Outstanding(correlation_id, now, timeout or self._timeout, answered, is_ours))

    def _ask_next(self, now: float) -> bytes:
        question = self._opening.questions[self._asked]
        self._asked += 1
        return self._ask_versions(DOWNGRADE[0], now) if question is OpeningRequest.VERSIONS else self._ask_metadata(now)

    def _ask_versions(self, version: int, now: float) -> bytes:
        correlation_id = self._next_id()
        timeout = min(self._timeout, VERSIONS_TIMEOUT_S)
        self._expect(correlation_id, now, partial(self._on_versions, version), timeout, is_ours=True)
        return kafka_api.encode_api_versions(version, correlation_id, self._client_id)

    def _ask_metadata(self, now: float) -> bytes:
        correlation_id = self._next_id()
        version = (self._opening.assumed or BEFORE_API_VERSIONS).metadata_version
        self._expect(correlation_id, now, partial(self._on_first_metadata, version), is_ours=True)
        return kafka_api.encode_metadata(version, correlation_id, self._client_id)

    def _not_opened(self, did: str, cause: Cause) -> list[Event]:
        question = self._opening.questions[self._asked - 1]
        text = f"{did} when asked {question.value}. It may be going down, or may expect TLS on this port."
        return self._fail(text, Cause.NO_API_VERSIONS if question is OpeningRequest.VERSIONS else cause)

    def _fail(self, text: str, cause: Cause) -> list[Event]:
        unanswered = self.close()
        hint = ASSUMED if self._opening.assumed else ""
        return [ev.Failed(RemoteProtocolError(f"Broker {self._broker} {text}{hint}"), cause, unanswered)]


def _in_order(response: ProduceResponse, expected: list[tuple[bytes, int]]) -> ProduceResponse:
    """Return the response with its acks in the order of the request; a broker may use another."""
    acks = {(ack.topic, ack.partition): ack for ack in response.acks}
    if len(response.acks) != len(expected) or acks.keys() != set(expected):
        odd = sorted(acks.keys() ^ set(expected)) or sorted(acks)
        raise RemoteProtocolError(
            f"A produce response does not name the {len(expected)} partitions of its request once each, "
            f"but {len(response.acks)}; look at {odd[0][0]!r} partition {odd[0][1]}."
        )
    return replace(response, acks=tuple([acks[place] for place in expected]))
