"""A dispatcher's connection to its broker, with the requests in flight and their responses."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.dispatcher.connection_status import ConnectionStatus
from bruce_mp.dispatcher.core import PAUSE_REPEAT_S
from bruce_mp.errors import RemoteProtocolError, SlabError
from bruce_mp.network.broker_socket import BrokerSocket
from bruce_mp.network.connection_security import connection_settings, create_security
from bruce_mp.network.resolver import Resolver
from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, FIRST_METADATA_WITH_CLUSTER_ID
from bruce_mp.protocol.kafka.connection_events import (
    Closed,
    ConnectionReady,
    Failed,
    FailureCause,
    MetadataReceived,
    ProduceAcked,
)
from bruce_mp.protocol.kafka.version_negotiation import NegotiationCache
from bruce_mp.slab.producer_id import (
    cluster_change_count,
    cluster_of,
    foreign_cluster_sentence,
    is_idempotent,
    is_same_cluster,
)
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.message_copies import CopyTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.config.sections import Kafka
    from bruce_mp.dispatcher.core import Dispatcher
    from bruce_mp.dispatcher.encode import BatchEncoder
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.ipc.start import Start
    from bruce_mp.pipeline.msg_debug import WireTap
    from bruce_mp.protocol.kafka.api_versions import BrokerCapabilities
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.protocol.kafka.kafka_types import EncodedTopics, PartitionData, ProduceResponse
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.telemetry.event_output import EventOutput

__all__ = ["ProduceSession"]

log = logging.getLogger(__name__)
_FAILURE_COUNTERS: Final = {
    FailureCause.TIMED_OUT: Counter.ConnectorSocketTimeout,
    FailureCause.BAD_DATA: Counter.BadProduceResponse,
}
"""The counters for failures of a ready connection, by cause; other causes count as ConnectorSocketError."""
_MAX_THROTTLE_S: Final = 60.0
"""The longest throttle time that the dispatcher obeys; a broker with default settings sends far shorter times."""
_REFUSAL_INTERVAL_S: Final = 60.0
"""Shortest interval between pauses for refused messages with acks = 0: a topic that the broker always refuses must not
delay the others again and again."""
_ENOUGH_OLD_CONNECTIONS: Final = 3
"""The number of successive connections on which a broker must look older than Kafka 0.10, before the dispatcher treats
it as old.  One is not enough: the cluster's producer id shows that the cluster has newer brokers."""


class ProduceSession:
    """Sends produce requests to one broker, over one connection at a time."""

    def __init__(
        self,
        start: Start,
        loop: Loop,
        row: ProcessRow,
        *,
        slab: Slab,
        core: Dispatcher,
        encoder: BatchEncoder,
        tap: WireTap,
        status_output: EventOutput,
    ) -> None:
        assert start.broker is not None
        self._broker = start.broker
        self._config = start.config
        self._loop = loop
        self._row = row
        self._slab = slab
        self._core = core
        self._encoder = encoder
        self._tap = tap
        self._resolver = Resolver(loop)
        self._prepare_connections(start.config.kafka)
        self._socket: BrokerSocket | None = None
        self._is_ready = False
        """True if requests may be sent over the connection."""
        self._cluster_change_count = 0
        """The value of `cluster_change_count` when the connection was opened."""
        self._has_producer_id = True
        """The value of `is_idempotent` when the connection was opened."""
        self._old_connection_count = 0
        """How many connections in succession, up to the last, made the broker look older than Kafka 0.10."""
        self._is_outdated = False
        """True if the connection must be replaced: its settings, the cluster or the producer id have changed."""
        self._requests: dict[int, list[BuiltBatch]] = {}
        """The batches of each request without a response, by correlation id."""
        self._unwritten: list[BuiltBatch] = []
        """The batches of the last request with acks = 0, until the socket has accepted all bytes of the request."""
        self._may_refuse_until = 0.0
        """The time until which the end of a connection may be the answer to a request with acks = 0: a broker that
        refuses such a request closes the connection."""
        self._refusal_due = 0.0
        """The time from which such an end pauses the dispatcher again."""
        self._is_repeat_scheduled = False
        """True if a call of `_repeat_pauses` is scheduled."""
        self._status = ConnectionStatus(
            start.slot, start.broker, status_output, steady_ms, row.counters[Counter.MsgDelivered]
        )

    def _prepare_connections(self, kafka: Kafka) -> None:
        self._security = create_security(kafka, self._loop)
        self._negotiation_cache = NegotiationCache(kafka.broker_version, logs_in=self._security.logins is not None)

    def apply_config(self, config: Config, before: Config) -> None:
        """Apply a reloaded config; changed connection settings replace the connection once it is idle."""
        self._config = config
        if connection_settings(config) != connection_settings(before):
            self._prepare_connections(config.kafka)
            self._status.on_new_settings()
            self._is_outdated = self._socket is not None

    @property
    def requests_in_flight(self) -> int:
        return len(self._requests)

    def publish_status(self) -> None:
        """Send the connection's state and the partitions with errors to the status process."""
        errors, delivered = self._core.partition_errors, self._row.counters[Counter.MsgDelivered]
        self._status.publish(len(self._requests), errors.as_tuple(), delivered, self._core.waiting_queues)
        errors.drop_released()  # this report was the last with the errors of partitions that went back to the router

    def send_requests(self) -> None:
        """Send all batches that may be sent now; if there is no connection, open one to send them later."""
        if self._socket is not None and (self._is_outdated or self._has_changed_identity):
            self._is_outdated = True
            self._close_outdated(self._socket)
        if self._is_outdated:  # `_close_outdated` must wait
            return
        if self._socket is None:
            if self._core.wants_connection:
                self._connect()
            return
        while self._is_ready and not self._socket.is_blocked:
            if self._unwritten:
                self._core.on_written(self._unwritten, time.monotonic())
                self._unwritten = []
            batches = self._core.next_request(len(self._requests), time.monotonic())
            if not batches:
                return
            self._send(batches)

    @property
    def _has_changed_identity(self) -> bool:
        """True if the cluster has changed since the connection was opened, or has given its first producer id."""
        if self._cluster_change_count != cluster_change_count(self._slab):
            return True
        return not self._has_producer_id and is_idempotent(self._slab)

    def abandon_responses(self) -> None:
        """Close the connection after the deadline of a hand-back, so that unanswered batches go to the new leaders."""
        log.warning(
            "Broker %s has not answered for partitions that it no longer leads; the dispatcher closes its connection.",
            self._broker.node,
        )
        if self._socket is not None:
            self._socket.close()
            self._status.on_closed()
        self._clear_connection()
        self._on_lost()

    def _close_outdated(self, socket: BrokerSocket) -> None:
        """Close an outdated connection unless a response is outstanding or bytes are unsent."""
        if self._requests or socket.is_blocked:
            return
        self._core.on_written(self._unwritten, time.monotonic())
        socket.close()
        self._status.on_closed()
        self._clear_connection()

    def _connect(self) -> None:
        self._row.add(Counter.ConnectorStartConnect)
        self._may_refuse_until = 0.0
        self._cluster_change_count = cluster_change_count(self._slab)
        self._has_producer_id = is_idempotent(self._slab)
        self._status.on_connecting()
        self._socket = BrokerSocket(
            self._loop,
            self._resolver,
            host=self._broker.host,
            port=self._broker.port,
            client_id=self._config.kafka.client_id,
            timeout_s=self._config.delivery.kafka_socket_timeout_s,
            on_event=self._on_event,
            negotiation_cache=self._negotiation_cache,
            security=self._security,
            renews_login=True,
        )
        self._socket.open()

    def _send(self, batches: list[BuiltBatch]) -> None:
        assert self._socket is not None
        capabilities = self._socket.connection.capabilities
        names = self._core.topic_names(batches)
        data: Sequence[PartitionData] | EncodedTopics | None
        data = self._encoder.encode_uncompressed(names, batches, capabilities)
        if data is None:  # there is compression, a damaged batch or an old broker
            batches, data = self._encode(names, batches, capabilities)
        if not batches:
            return
        self._copy_for_debugging(CopyTarget.MSG_SEND, batches)
        acks, timeout_ms = self._config.kafka.required_acks, self._config.kafka.replication_timeout_ms
        request = self._socket.connection.request_produce(
            data, time.monotonic(), acks=acks, timeout_ms=timeout_ms, read_accepted=kernels.read_accepted
        )
        self._row.add(Counter.SerializeProduceRequest)
        self._row.add(Counter.SendProduceRequestOk)
        if acks == 0:
            self._unwritten = batches
            self._may_refuse_until = time.monotonic() + self._config.delivery.kafka_socket_timeout_s
        else:
            self._requests[request.correlation_id] = batches
        self._socket.send(request.buffers)

    def _encode(
        self, names: Sequence[bytes], batches: Sequence[BuiltBatch], capabilities: BrokerCapabilities
    ) -> tuple[list[BuiltBatch], list[PartitionData]]:
        """Encode batches one by one; return the undamaged batches and their encoded data."""
        undamaged: list[BuiltBatch] = []
        data: list[PartitionData] = []
        encoded = self._encoder.encode(list(zip(names, batches, strict=True)), capabilities)
        for batch, data_or_error in zip(batches, encoded, strict=True):
            if isinstance(data_or_error, SlabError):
                self._core.on_unreadable(batch, data_or_error, time.monotonic())
            else:
                undamaged.append(batch)
                data.append(data_or_error)
        return undamaged, data

    def _copy_for_debugging(self, target: CopyTarget, batches: Iterable[BuiltBatch]) -> None:
        """Copy batches for message debugging, before they are settled."""
        if self._tap.is_active:
            for batch in batches:
                self._tap.copy(target, self._core.topic_name(batch.topic), batch.segments)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ProduceAcked):
            self._on_acked(event.correlation_id, event.response)
        elif isinstance(event, ConnectionReady):
            self._on_connected(event.capabilities)
        elif isinstance(event, MetadataReceived):
            self._on_metadata(event.metadata.cluster_id)
        elif isinstance(event, Closed):
            self._on_closed_by_broker()
        elif isinstance(event, Failed):
            self._on_failed(event)

    def _on_connected(self, capabilities: BrokerCapabilities) -> None:
        """Ask for the cluster of the broker before the first request: its address may now belong to another cluster."""
        assert self._socket is not None
        is_probably_slow = self._count_connection(capabilities)
        if is_probably_slow:
            self._negotiation_cache.on_failed((self._broker.host, self._broker.port))  # negotiate again
            text = f"Broker {self._broker.host}:{self._broker.port} took too long to report its API versions."
            self._reject(self._socket, text, FailureCause.NO_API_VERSIONS)
            return
        self._core.on_connected(broker_deduplicates=capabilities.has_producer_ids)
        if capabilities.metadata_version >= FIRST_METADATA_WITH_CLUSTER_ID and cluster_of(self._slab):
            self._socket.send(self._socket.connection.request_metadata([], time.monotonic()).buffers)
        else:
            self._on_usable()

    def _count_connection(self, capabilities: BrokerCapabilities) -> bool:
        """Count a connection; return True if the broker looks older than Kafka 0.10, but is probably only slow.

        A slow broker may report its API versions too late.  To treat it as old would be harmful: the dispatcher would
        send no sequence numbers and no record headers.  But a cluster in an upgrade may really have an old broker, so
        the dispatcher treats the broker as old after `_ENOUGH_OLD_CONNECTIONS`.
        """
        looks_old = capabilities == BEFORE_API_VERSIONS and is_idempotent(self._slab)
        self._old_connection_count = self._old_connection_count + 1 if looks_old else 0
        has_configured_version = self._config.kafka.broker_version is not None
        is_believed = self._old_connection_count >= _ENOUGH_OLD_CONNECTIONS or has_configured_version
        return looks_old and not is_believed

    def _on_metadata(self, cluster_id: str) -> None:
        expected_id = cluster_of(self._slab)
        if is_same_cluster(expected_id, cluster_id):
            self._on_usable()
            return
        assert self._socket is not None
        text = foreign_cluster_sentence(f"{self._broker.host}:{self._broker.port}", expected_id, cluster_id)
        self._reject(self._socket, text, FailureCause.FOREIGN_CLUSTER)

    def _reject(self, socket: BrokerSocket, text: str, cause: FailureCause) -> None:
        """Close a connection that must not be used, and treat this as a failure of the connection."""
        socket.close()
        self._on_failed(Failed(RemoteProtocolError(text), cause, ()))

    def _on_usable(self) -> None:
        self._row.add(Counter.ConnectorConnectSuccess)
        ends_s = None if self._socket is None else self._socket.certificate_ends_s
        self._status.on_connected(exactly_once=self._core.is_exactly_once, certificate_ends_s=ends_s)
        self._is_ready = True

    def _on_acked(self, correlation_id: int, response: ProduceResponse) -> None:
        batches = self._requests.pop(correlation_id)
        self._row.add(Counter.ConnectorGotOkProduceResponse)
        self._apply_throttle(response)
        acks = response.acks
        if self._tap.is_active:
            good = [batch for batch, ack in zip(batches, acks, strict=True) if not ack.error] if acks else batches
            self._copy_for_debugging(CopyTarget.MSG_GOT_ACK, good)
        if self._core.on_acks(batches, acks, time.monotonic()):
            self._schedule_repeat()

    def _apply_throttle(self, response: ProduceResponse) -> None:
        """Send no requests for the throttle time of a response, because the broker would not read them."""
        assert self._socket is not None
        if response.throttle_ms and self._socket.connection.capabilities.expects_client_throttling:
            self._core.throttle_until(time.monotonic() + min(response.throttle_ms / 1000, _MAX_THROTTLE_S))

    def _on_closed_by_broker(self) -> None:
        """Open another connection for the next message; get new metadata first if messages wait or may be refused.

        Messages wait at an open connection only in a back-off, or while the broker throttles the dispatcher.  Without
        the new metadata, the dispatcher would connect at once, as often as the broker closes the connection.
        """
        self._row.add(Counter.ConnectorSocketBrokerClose)
        self._status.on_closed()
        is_lost = bool(self._unwritten) or self._may_have_refused
        has_waiting = self._core.wants_connection
        self._clear_connection()
        if is_lost:
            log.warning("Broker %s closed the connection, and may have refused its last messages.", self._broker.node)
        elif has_waiting:
            log.warning("Broker %s closed the connection while messages wait; none is lost.", self._broker.node)
        else:
            log.info("Broker %s closed an idle connection; the next message opens another.", self._broker.node)
        if is_lost or has_waiting:
            self._on_lost()

    @property
    def _may_have_refused(self) -> bool:
        return time.monotonic() < self._may_refuse_until

    def _on_failed(self, event: Failed) -> None:
        log.log(
            logging.ERROR if event.cause.needs_operator else logging.WARNING,
            "%s The dispatcher's messages wait; %s.", event.error,
            "with required_acks = 0, the last ones sent may be lost" if self._may_have_refused else "none is lost",
            extra={"about": event.cause},
        )  # fmt: skip
        self._status.on_failed(str(event.error), needs_operator=event.cause.needs_operator)
        counter = _FAILURE_COUNTERS.get(event.cause, Counter.ConnectorSocketError)
        self._row.add(counter if self._is_ready else Counter.ConnectorConnectFail)
        self._clear_connection()
        self._on_lost()

    def _on_lost(self) -> None:
        may_have_refused = self._may_have_refused and time.monotonic() >= self._refusal_due
        if may_have_refused:
            self._refusal_due = time.monotonic() + _REFUSAL_INTERVAL_S
        self._core.on_connection_lost(may_have_refused=may_have_refused)
        self._schedule_repeat()

    def _clear_connection(self) -> None:
        self._socket = None
        self._is_ready = self._is_outdated = False
        self._requests.clear()
        self._unwritten = []

    def _schedule_repeat(self) -> None:
        """Repeat PAUSED every `PAUSE_REPEAT_S` while a partition or the dispatcher is paused."""
        if not self._is_repeat_scheduled:
            self._is_repeat_scheduled = True
            self._loop.call_later(PAUSE_REPEAT_S, self._repeat_pauses)

    def _repeat_pauses(self) -> None:
        self._is_repeat_scheduled = self._core.repeat_pauses()
        if self._is_repeat_scheduled:
            self._loop.call_later(PAUSE_REPEAT_S, self._repeat_pauses)
