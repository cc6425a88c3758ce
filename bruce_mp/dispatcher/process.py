"""The dispatcher of one broker: its connection, and the loop around `core.Dispatcher`."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import compressions
from bruce_mp.discards.settlement import ProcessReporter
from bruce_mp.dispatcher.compression import Compressor
from bruce_mp.dispatcher.connection_status import PUBLISH_EVERY_S, ConnectionStatus
from bruce_mp.dispatcher.core import REMIND_S, Dispatcher
from bruce_mp.dispatcher.encode import BatchEncoder
from bruce_mp.dispatcher.malloc_tuning import keep_freed_memory
from bruce_mp.errors import SlabError
from bruce_mp.ipc.control_messages import ConfigTaken, DebugTopics, Drain, NewConfig, Ready, Stop
from bruce_mp.ipc.links import LAST_WORDS_MS, REPORTS, ROUTER_FROM_DISPATCHERS, Links, dispatcher_link
from bruce_mp.ipc.loop import Loop
from bruce_mp.kernels import ProcessRow
from bruce_mp.network.broker_socket import BrokerSocket
from bruce_mp.network.connection_security import connection_settings, security_of
from bruce_mp.network.resolver import Resolver
from bruce_mp.network.version_probe import VersionProbes
from bruce_mp.pipeline.msg_debug import tap_for
from bruce_mp.protocol.kafka.compression import Codec, load_codecs
from bruce_mp.protocol.kafka.connection_events import Cause, Closed, ConnectionReady, Failed, ProduceAcked
from bruce_mp.telemetry.clock import steady_ms, wall_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.events import encode_events
from bruce_mp.telemetry.logs import renew_logging
from bruce_mp.telemetry.message_copies import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control
    from bruce_mp.ipc.loop import Timer
    from bruce_mp.ipc.start import Start
    from bruce_mp.protocol.kafka.api_versions import BrokerAbilities
    from bruce_mp.protocol.kafka.connection_events import Event
    from bruce_mp.protocol.kafka.kafka_types import PartitionData, ProduceResponse
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch

__all__ = ["main"]

_LOG = logging.getLogger(__name__)
_MESSAGES_A_ROUND: Final = 64
_REPORT_EVERY_S: Final = 0.5
_FAULTS: Final = {Cause.SILENT: Counter.ConnectorSocketTimeout, Cause.BAD_DATA: Counter.BadProduceResponse}
"""The counter for each cause with which a ready connection fails."""
_LAST_ANSWERS_S: Final = 0.5
"""The wait for outstanding responses before new code replaces this process."""
LONGEST_REST_S: Final = 60.0
"""The longest throttle time that is respected; brokers' quota windows are far shorter by default."""


def main(start: Start, slab: Slab, control: Control) -> None:
    """Serve one broker until told to stop."""
    keep_freed_memory()
    _DispatcherProcess(start, slab, control).run()


class _DispatcherProcess:
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        assert start.broker is not None
        self._name = start.name
        self._broker = start.broker
        self._config = start.config
        self._control = control
        self._row = ProcessRow(slab, start.row)
        incarnation = self._row.begin(os.getpid(), wall_ms())
        self._loop = Loop()
        self._resolver = Resolver(self._loop)
        links = self._links = Links(start.run_dir)
        self._router = links.sender(ROUTER_FROM_DISPATCHERS)
        self._parcels = links.receiver(dispatcher_link(start.slot))
        self._news = links.sender(REPORTS)
        self._reporter = ProcessReporter(start.config, links, self._row)
        self._tap = tap_for(slab, links, self._row)
        self._core = Dispatcher(slab, self._row, start.config, start.slot, self._reporter, incarnation=incarnation)
        load_codecs(_codecs(start.config))
        self._compressor = Compressor(
            self._row, start.config.compression_for, start.config.compression, self._core.uncompressed
        )
        keeps_empty = start.config.kafka.empty_values == "empty"
        self._encoder = BatchEncoder(slab, self._row, self._compressor, keeps_empty=keeps_empty)
        self._prepare_connections()
        self._socket: BrokerSocket | None = None
        self._is_ready = False
        self._is_outdated = False
        """True if the connection was made with settings that have changed since."""
        self._requests: dict[int, list[SentBatch]] = {}
        self._being_written: list[SentBatch] = []
        """With acks 0: batches that the kernel has not accepted yet."""
        self._alarm: Timer | None = None
        self._alarm_at = 0.0
        self._is_reminding = False
        self._is_reporting = False
        self._is_leaving = False
        self._connection_status = ConnectionStatus(start.slot, start.broker, links.sender(REPORTS), wall_ms)

    def _prepare_connections(self) -> None:
        kafka = self._config.kafka
        self._security = security_of(kafka, self._loop)
        self._openings = VersionProbes(kafka.broker_version, logs_in=self._security.logins is not None)

    def apply_config(self, config: Config) -> None:
        """Apply a reloaded config.  Settings that need a restart keep their old values."""
        before, self._config = self._config, config
        renew_logging(before.logging, config.logging, self._name)
        self._reporter.apply_config(config)
        self._core.apply_config(config)
        load_codecs(_codecs(config))
        self._compressor.apply_config(config.compression_for, config.compression)
        self._encoder.keeps_empty = config.kafka.empty_values == "empty"
        if connection_settings(config) != connection_settings(before):
            self._prepare_connections()
            self._is_outdated = self._socket is not None

    def run(self) -> None:
        self._row.add(Counter.StartKafkaDispatcher)
        self._core.send_hello()
        self._loop.watch(self._control, lambda _: self._on_control())
        self._loop.watch(self._parcels.socket, lambda _: self._on_parcels())
        self._row.start_heartbeat(self._loop.call_later, wall_ms)
        self._control.send(Ready())
        self._publish()
        self._after_round()
        self._loop.run(self._after_round)
        self._reporter.flush()
        self._tap.flush()
        self._links.close(LAST_WORDS_MS)

    def _on_control(self) -> None:
        word = self._control.receive()
        if isinstance(word, Drain):
            self._core.drain()
        elif isinstance(word, DebugTopics):
            self._tap.choose(word)
        elif isinstance(word, NewConfig):
            self.apply_config(word.config)
            self._control.send(ConfigTaken(word.number))
        elif isinstance(word, Stop):
            self._loop.stop()
        elif word is None:
            self._make_way()

    def _make_way(self) -> None:
        """Stop after `_LAST_ANSWERS_S`: a broker that recognises no repetitions would double unanswered batches."""
        self._is_leaving = True
        self._loop.unwatch(self._control)
        self._loop.call_later(_LAST_ANSWERS_S, self._loop.stop)

    def _on_parcels(self) -> None:
        for _ in range(_MESSAGES_A_ROUND):
            parcels = self._parcels.receive()
            if not parcels:
                return
            self._core.on_parcels(parcels, steady_ms())

    # --- once a round ------------------------------------------------------------------------------------------------

    def _after_round(self) -> None:
        began = time.monotonic()
        self._core.flush_due(steady_ms())
        ends = self._core.patience_ends_ms
        if ends is not None and ends <= steady_ms():
            self._give_up_waiting()
        if not self._is_leaving:
            self._send_requests()
        elif not self._requests:
            self._loop.stop()
        self._router.send(self._core.drain_outbox())
        self._set_alarm(began)
        if (self._reporter.pending or self._tap.pending or self._compressor.sums) and not self._is_reporting:
            self._is_reporting = True
            self._loop.call_later(_REPORT_EVERY_S, self._report)

    def _publish(self) -> None:
        self._connection_status.publish(len(self._requests), self._core.troubles.listed())
        traffic = self._core.traffic
        if traffic and self._news.send_bytes(encode_events(traffic.events())):
            traffic.clear()
        self._loop.call_later(PUBLISH_EVERY_S, self._publish)

    def _report(self) -> None:
        self._is_reporting = False
        self._reporter.flush()
        self._tap.flush()
        sums = self._compressor.sums
        if sums and self._news.send_bytes(encode_events(sums.rows())):
            sums.clear()

    def _set_alarm(self, began: float) -> None:
        """Set a timer for the next batch or retry, unless the present timer is early enough.

        Work that was due at the beginning of the round had its chance and waits for another event.
        """
        dues_ms = (self._core.gather_due_ms, self._core.patience_ends_ms)
        dues = [time.monotonic() + (due - steady_ms()) / 1000 for due in dues_ms if due is not None]
        if (retry := self._core.retry_at) is not None and retry > began:
            dues.append(retry)
        if not dues or (self._alarm is not None and self._alarm_at <= min(dues)):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = min(dues)
        self._alarm = self._loop.call_at(self._alarm_at, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None

    # --- the broker --------------------------------------------------------------------------------------------------

    def _end_outdated(self, connection: BrokerSocket) -> None:
        """Close an outdated connection once no response is outstanding; until then send nothing on it."""
        if self._requests or connection.is_writing:
            return
        self._core.on_written(self._being_written, time.monotonic())
        connection.close()
        self._connection_status.closed()
        self._forget_connection()

    def _send_requests(self) -> None:
        if self._socket is not None and self._is_outdated:
            self._end_outdated(self._socket)
        if self._is_outdated:
            return
        if self._socket is None:
            if self._core.wants_connection:
                self._connect()
            return
        while self._is_ready and not self._socket.is_writing:
            self._core.on_written(self._being_written, time.monotonic())
            self._being_written = []
            batches = self._core.next_request(len(self._requests), time.monotonic())
            if not batches:
                return
            self._send(batches)

    def _connect(self) -> None:
        self._row.add(Counter.ConnectorStartConnect)
        self._connection_status.connecting()
        self._socket = BrokerSocket(
            self._loop,
            self._resolver,
            host=self._broker.host,
            port=self._broker.port,
            client_id=self._config.kafka.client_id,
            timeout_s=self._config.delivery.kafka_socket_timeout_s,
            on_event=self._on_event,
            openings=self._openings,
            security=self._security,
            keeps_login=True,
        )
        self._socket.open()

    def _send(self, batches: list[SentBatch]) -> None:
        assert self._socket is not None
        batches, data = self._encode(batches, self._socket.connection.abilities)
        if not batches:
            return
        self._copy(Target.MSG_SEND, batches)
        acks, timeout_ms = self._config.kafka.required_acks, self._config.kafka.replication_timeout_ms
        sent = self._socket.connection.send_produce(data, time.monotonic(), acks=acks, timeout_ms=timeout_ms)
        self._row.add(Counter.SerializeProduceRequest)
        self._row.add(Counter.SendProduceRequestOk)
        if acks == 0:
            self._being_written = batches
        else:
            self._requests[sent.correlation_id] = batches
        self._socket.send(sent.buffers)

    def _encode(
        self, batches: Sequence[SentBatch], abilities: BrokerAbilities
    ) -> tuple[list[SentBatch], list[PartitionData]]:
        """Return the readable batches and their encoded data."""
        sound: list[SentBatch] = []
        data: list[PartitionData] = []
        name_of = self._core.topic_name
        encoded = self._encoder.encode([(name_of(batch.topic), batch) for batch in batches], abilities)
        for batch, found in zip(batches, encoded, strict=True):
            if isinstance(found, SlabError):
                self._core.on_rejected(batch, found, time.monotonic())
            else:
                sound.append(batch)
                data.append(found)
        return sound, data

    def _copy(self, target: Target, batches: Iterable[SentBatch]) -> None:
        """Copy batches for message debugging, before they are settled."""
        if self._tap.is_open:
            for batch in batches:
                self._tap.copy(target, self._core.topic_name(batch.topic), batch.segments)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ProduceAcked):
            self._on_acked(event.correlation_id, event.response)
        elif isinstance(event, ConnectionReady):
            self._row.add(Counter.ConnectorConnectSuccess)
            self._core.on_connected(recognises=event.abilities.idempotence)
            ends_s = None if self._socket is None else self._socket.certificate_ends_s
            self._connection_status.connected(exactly_once=self._core.builder.recognised, certificate_ends_s=ends_s)
            self._is_ready = True
        elif isinstance(event, Closed):
            _LOG.info("Broker %s closed an idle connection; the next message opens another.", self._broker.node)
            self._row.add(Counter.ConnectorSocketBrokerClose)
            self._connection_status.closed()
            is_lost = bool(self._being_written)
            self._forget_connection()
            if is_lost:
                self._pause()
        elif isinstance(event, Failed):
            self._on_failed(event)

    def _on_acked(self, correlation_id: int, response: ProduceResponse) -> None:
        batches = self._requests.pop(correlation_id)
        self._row.add(Counter.ConnectorGotOkProduceResponse)
        self._heed_quota(response)
        acks = response.acks
        self._copy(Target.MSG_GOT_ACK, (batch for batch, ack in zip(batches, acks, strict=True) if not ack.error))
        self._core.on_acks(batches, acks, time.monotonic())
        if any(ack.error for ack in acks):
            self._start_reminding()

    def _heed_quota(self, response: ProduceResponse) -> None:
        """Send nothing for the broker's throttle time, during which it reads no requests."""
        assert self._socket is not None
        if response.throttle_ms and self._socket.connection.abilities.leaves_throttling_to_us:
            self._core.throttle_until(time.monotonic() + min(response.throttle_ms / 1000, LONGEST_REST_S))

    def _on_failed(self, event: Failed) -> None:
        _LOG.log(
            logging.ERROR if event.cause.needs_operator else logging.WARNING,
            "%s The dispatcher's messages wait; none is lost.", event.error,
            extra={"about": event.cause},
        )  # fmt: skip
        self._connection_status.failed(str(event.error), needs_operator=event.cause.needs_operator)
        fault = _FAULTS.get(event.cause, Counter.ConnectorSocketError)
        self._row.add(fault if self._is_ready else Counter.ConnectorConnectFail)
        self._forget_connection()
        self._pause()

    def _give_up_waiting(self) -> None:
        """Close the connection of a hand-back past its deadline; the new leaders get the batches in doubt."""
        _LOG.warning(
            "Broker %s owes answers for partitions that it does not lead any more; its connection is given up.",
            self._broker.node,
        )
        if self._socket is not None:
            self._socket.close()
        self._forget_connection()
        self._pause()

    def _pause(self) -> None:
        self._core.on_lost()
        self._start_reminding()

    def _forget_connection(self) -> None:
        self._socket = None
        self._is_ready = self._is_outdated = False
        self._requests.clear()
        self._being_written = []

    def _start_reminding(self) -> None:
        if not self._is_reminding:
            self._is_reminding = True
            self._loop.call_later(REMIND_S, self._remind)

    def _remind(self) -> None:
        self._is_reminding = self._core.repeat_pauses()
        if self._is_reminding:
            self._loop.call_later(REMIND_S, self._remind)


def _codecs(config: Config) -> set[Codec]:
    return {Codec[rule.type.upper()] for rule in compressions(config.compression)}
