"""The process of one broker's dispatcher: calls `core.Dispatcher` and `produce_session.ProduceSession`."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Final

from bruce_mp.config.topics import used_compressions
from bruce_mp.discards.settlement import ProcessReporter
from bruce_mp.dispatcher.compression import Compressor
from bruce_mp.dispatcher.core import Dispatcher
from bruce_mp.dispatcher.encode import BatchEncoder
from bruce_mp.dispatcher.produce_session import ProduceSession
from bruce_mp.ipc.control_messages import DebugTopics
from bruce_mp.ipc.links import COPIES, REPORTS, ROUTER_FROM_DISPATCHERS, dispatcher_link
from bruce_mp.kernels import ProcessRow
from bruce_mp.pipeline.msg_debug import WireTap
from bruce_mp.pipeline.process_shell import ProcessShell
from bruce_mp.protocol.kafka.compression import Codec, load_codecs
from bruce_mp.telemetry.broker_status import PUBLISH_EVERY_S
from bruce_mp.telemetry.clock import steady, steady_ms
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.event_output import EventOutput

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control, ControlMessage, Drain
    from bruce_mp.ipc.frames import Parcel
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab

__all__ = ["main"]

_EXIT_TIMEOUT_S: Final = 0.5
"""The longest wait for outstanding responses after the supervisor has exited, also in an upgrade."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3)."""
_KEPT_BYTES: Final = 8 << 20
"""How much freed memory the process keeps, so that the buffers of the next requests cause no page faults."""


def main(start: Start, slab: Slab, control: Control) -> None:
    _keep_freed_memory()
    _DispatcherProcess(start, slab, control).run()


def _keep_freed_memory() -> None:
    """Keep up to `_KEPT_BYTES` of free memory at the end of the heap; without glibc, do nothing.

    By default, glibc allocates the buffer of a large batch with mmap(), and unmaps it when it is freed.  Each batch
    then causes page faults for all its pages, which takes longer than to fill the pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class _DispatcherProcess(ProcessShell):
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        assert start.broker is not None
        super().__init__(start, control, ProcessRow.recover(slab, start.row))
        config, report_sender = start.config, self._links.sender(REPORTS)
        self._router = self._links.sender(ROUTER_FROM_DISPATCHERS)
        self.serve_frames(dispatcher_link(start.slot), self._on_frame)
        self._reporter = self.add_output(ProcessReporter(config, self._links, self._row))
        self._tap = self.add_output(WireTap(slab, self._links.sender(COPIES), self._row.add))
        self._core = Dispatcher(slab, self._row, config, start.slot, self._reporter, incarnation=self._incarnation)
        load_codecs(_codecs(config))
        self._compressor = Compressor(
            self._row, config.compression_for, config.compression, self._core.uncompressed_partitions
        )
        self.add_output(EventOutput(report_sender, self._compressor.sums))
        keeps_empty_values = config.kafka.empty_values == "empty"
        self._encoder = BatchEncoder(slab, self._row, self._compressor, keeps_empty_values=keeps_empty_values)
        self._traffic_output = EventOutput(report_sender, self._core.traffic)
        self._session = ProduceSession(
            start,
            self._loop,
            self._row,
            slab=slab,
            core=self._core,
            encoder=self._encoder,
            tap=self._tap,
            status_output=self._traffic_output,
        )
        self._is_exiting = False

    def recover(self) -> None:
        """Send HELLO; the core recovers its predecessor's records when the router answers with RESYNC."""
        self._row.add(Counter.StartKafkaDispatcher)
        self._core.send_hello()

    def start(self) -> None:
        self.repeat(PUBLISH_EVERY_S, self._session.publish_status)

    def apply_config(self, config: Config, before: Config) -> None:
        self._reporter.apply_config(config)
        self._core.apply_config(config)
        load_codecs(_codecs(config))
        self._compressor.apply_config(config.compression_for, config.compression)
        self._encoder.keeps_empty_values = config.kafka.empty_values == "empty"
        self._session.apply_config(config, before)

    def drain(self, _: Drain) -> None:
        self._core.drain()

    def on_supervisor_exit(self) -> None:
        """Stop once no response is outstanding, at the latest after `_EXIT_TIMEOUT_S`.

        The process waits for the responses because batches without a response may become duplicates.
        """
        self._is_exiting = True
        self._loop.unwatch(self._control)
        self._loop.call_later(_EXIT_TIMEOUT_S, self._loop.stop)

    def on_control(self, message: ControlMessage) -> None:
        if isinstance(message, DebugTopics):
            self._tap.choose(message)

    def after_round(self, now_ms: int) -> int | None:
        round_start = time.monotonic()
        self._core.flush_due(now_ms)
        deadline_ms = self._core.update_hand_back_deadline()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._session.abandon_responses()
            deadline_ms = None
        if not self._is_exiting:
            self._session.send_requests()
        elif not self._session.requests_in_flight:
            self._loop.stop()
        self._router.send(self._core.drain_outbox())
        return self._next_due_ms(round_start, deadline_ms)

    def _next_due_ms(self, round_start: float, deadline_ms: int | None) -> int | None:
        """Return the time, in ms, at which the next batch, retry or deadline is due; `round_start` is in seconds.

        A retry that was due when the round began is ignored: either the round has sent it, or it waits for a response
        to another request, which starts another round.
        """
        batch_ms, retry_s = self._core.batch_due_ms, self._core.retry_at
        retry_ms = None if retry_s is None or retry_s <= round_start else steady.ms_of(retry_s)
        if deadline_ms is None and retry_ms is None:
            return batch_ms
        return min(due_ms for due_ms in (batch_ms, retry_ms, deadline_ms) if due_ms is not None)

    def close(self) -> int:
        self._traffic_output.close()
        return super().close()

    def _on_frame(self, parcels: list[Parcel]) -> None:
        self._core.on_parcels(parcels, steady_ms())


def _codecs(config: Config) -> set[Codec]:
    return {Codec[rule.type.upper()] for rule in used_compressions(config.compression)}
