"""The status process: receives the reports of the other processes, and serves the pages. No message passes through it.

The main thread runs the event loop; the HTTP server has other threads. Locks guard the state that the threads share:
the reports, the counters in this process's row, and the sending end of the control pipe.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from bruce_mp.discards.events import DiscardEvent, DiscardReportEvent
from bruce_mp.errors import BruceError, RemoteProtocolError
from bruce_mp.ipc.control_messages import (
    AcceptCluster,
    ActiveConfig,
    DebugTopics,
    LostSocketFiles,
    RefreshMetadata,
    ReloadOutcome,
)
from bruce_mp.ipc.links import COPIES, REPORTS
from bruce_mp.pipeline.process_shell import ProcessShell
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.status.app import DaemonView, create_app
from bruce_mp.status.books_check import BooksCheck
from bruce_mp.status.broker_status import BrokerStatusStore
from bruce_mp.status.event_decoder import decode_events
from bruce_mp.status.event_hook import EventHook
from bruce_mp.status.history.broker_traffic import BrokerHistory
from bruce_mp.status.history.history_recorder import HistoryRecorder, open_history
from bruce_mp.status.history.losses import LossHistory
from bruce_mp.status.history.rates import RateHistory
from bruce_mp.status.history.topic_totals import TopicTotals
from bruce_mp.status.history.topic_traffic import TrafficTable
from bruce_mp.status.pages.compression import CompressionTable
from bruce_mp.status.pages.discards import DiscardReports
from bruce_mp.status.pages.overview import Histories
from bruce_mp.status.pages.reload import ReloadRequests
from bruce_mp.status.reports.copy_writer import CopyWriter, DiscardDestinations, DiscardFile
from bruce_mp.status.reports.dead_letters import DeadLetterTopic
from bruce_mp.status.reports.debug_files import MessageDebug
from bruce_mp.status.reports.rolling_file import RollingFile
from bruce_mp.status.server import HttpServer
from bruce_mp.status.state_watch import HealthWatch, PauseWatch
from bruce_mp.telemetry.broker_status import BrokerStatus, RouterStatus
from bruce_mp.telemetry.clock import monotonic_ms, steady_ms, wall_ms
from bruce_mp.telemetry.compression import CompressionEvent
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.traffic import TrafficEvent

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.ipc.control_messages import Control, ControlMessage
    from bruce_mp.ipc.start import Start
    from bruce_mp.slab.file import Slab
    from bruce_mp.status.pages.held import HeldPage

__all__ = ["main"]

log = logging.getLogger(__name__)
_TICK_S: Final = 1.0
"""Interval of the periodic work in `_tick`."""


def main(start: Start, slab: Slab, control: Control) -> None:
    """Serve the pages on `start.listener` until the supervisor requests a stop."""
    _Status(start, slab, control).run()


class _Status(ProcessShell):
    def __init__(self, start: Start, slab: Slab, control: Control) -> None:
        assert start.listener is not None
        super().__init__(start, control, ProcessRow.recover(slab, start.row))
        self._row_lock = Lock()
        self._control_lock = Lock()
        self._receive_reports = self.serve_bytes(REPORTS, self._on_events)
        report_interval_s = start.config.http.discard_report_interval_s
        debug = MessageDebug(start.config.msg_debug, self.send, self._count, time.monotonic)
        self._writer = CopyWriter(self._destinations(start.config), debug, self._count)
        self._receive_copies = self.serve_bytes(COPIES, self._writer.enqueue)
        rates, traffic = RateHistory(slab, wall_ms()), TrafficTable(steady_ms())
        totals = TopicTotals(slab, start.config.http.metrics_topics)
        open_file = partial(open_history, Path(start.config.history_path), start.run_dir, Path(start.config.slab_path))
        self._recorder = HistoryRecorder(open_file, rates, totals, traffic, self._read_held)
        losses = LossHistory(slab, monotonic_ms)
        self._books_check = BooksCheck(slab)
        self._active_config = ActiveConfig("", 0)  # until the supervisor reports it
        self._lost_socket_files: tuple[str, ...] = ()
        self._view = DaemonView(
            slab=slab,
            reports=DiscardReports(slab, report_interval_s, wall_ms(), lambda: self._count(Counter.NoDiscardQuery)),
            debug=debug,
            compression=CompressionTable(slab),
            broker_status=BrokerStatusStore(),
            histories=Histories(rates, losses, BrokerHistory(slab), traffic, totals, self._recorder),
            reloads=ReloadRequests(self.send),
            config=lambda: self._config,
            active_config=lambda: self._active_config,
            count=self._count,
            refresh_metadata=lambda: self.send(RefreshMetadata()),
            accept_cluster=lambda cluster_id: self.send(AcceptCluster(cluster_id)),
            lost_socket_files=lambda: self._lost_socket_files,
            books_verdict=lambda: self._books_check.verdict,
            now_ms=wall_ms,
            steady_ms=steady_ms,
        )
        self._hook = EventHook(start.config.events)
        self._pauses = PauseWatch(self._hook.post)
        self._health = HealthWatch(self._view.evidence, self._hook)
        app = create_app(self._view)
        self._server = HttpServer(app, start.listener, on_accept_exhausted=lambda: self._count(Counter.AcceptExhausted))

    def start(self) -> None:
        self._writer.start()
        self._server.start()
        self._hook.start()
        self._health.start()
        self._recorder.start()
        self._tick()

    def apply_config(self, config: Config, before: Config) -> None:
        self._view.reports.apply_interval(config.http.discard_report_interval_s)
        self._view.histories.totals.apply_limit(config.http.metrics_topics)
        self._view.debug.apply_config(config.msg_debug)
        self._hook.apply_config(config.events)
        if (config.discard_log, config.discards) != (before.discard_log, before.discards):
            self._writer.replace_destinations(self._destinations(config))

    def on_control(self, message: ControlMessage) -> None:
        if isinstance(message, DebugTopics):
            self._view.debug.restore_selection(message)
        elif isinstance(message, ActiveConfig):
            self._active_config = message
        elif isinstance(message, LostSocketFiles):
            self._lost_socket_files = message.paths
        elif isinstance(message, ReloadOutcome):
            self._view.reloads.on_outcome(message)

    def close(self) -> int:
        self._server.stop()
        while self._receive_reports():  # the reports since the last round of the event loop
            pass
        self._recorder.stop()
        self._health.stop()
        self._hook.stop()
        while self._receive_copies():
            pass
        self._writer.stop()
        return 0

    def send(self, message: ControlMessage) -> None:
        with self._control_lock:
            super().send(message)

    def _destinations(self, config: Config) -> DiscardDestinations:
        settings, file = config.discard_log, None
        if settings.enable:
            rolling = RollingFile(Path(settings.path), settings.max_file_size, settings.max_archive_size, wall_ms)
            file = DiscardFile(rolling, self._count, settings.max_msg_prefix_size)
        return DiscardDestinations(file, DeadLetterTopic(config, self._count) if config.discards.topic else None)

    def _read_held(self) -> HeldPage:
        return self._view.held()  # a method, because the recorder is created before the view that contains it

    def _count(self, counter: Counter, amount: int = 1) -> None:
        with self._row_lock:
            self._row.add(counter, amount)

    def _tick(self) -> None:
        if not self._server.is_alive():
            raise BruceError("The HTTP server ended unexpectedly; the log above has its traceback.")
        self._server.enforce_limits()
        self._view.reports.rotate(wall_ms())
        self._view.histories.rates.sample(steady_ms())
        self._view.histories.losses.sample()
        self._view.histories.brokers.sample(steady_ms())
        self._view.debug.check_deadline()
        self._books_check.step(steady_ms(), wall_ms())
        # Not `call_about`, which may be late: the histories need a sample each second.
        self._loop.call_later(_TICK_S, self._tick)

    def _on_events(self, data: bytes) -> None:
        try:
            events = decode_events(data)
        except RemoteProtocolError as error:
            log.warning("%s  The pages do not include this report.", error)
            return
        steady_now_ms = steady_ms()
        traffic = [event for event in events if isinstance(event, TrafficEvent)]
        self._view.histories.traffic.record(traffic, steady_now_ms)
        self._view.histories.totals.record(traffic, steady_now_ms)
        # The lines below walk the events several times, so drop the traffic events: there may be thousands.
        events = [event for event in events if not isinstance(event, TrafficEvent)]
        self._view.reports.record([event for event in events if isinstance(event, DiscardReportEvent)], wall_ms())
        self._view.compression.record([event for event in events if isinstance(event, CompressionEvent)])
        discards = [event for event in events if isinstance(event, DiscardEvent)]
        self._view.histories.totals.record(discards, steady_now_ms)
        for event in events:
            if isinstance(event, RouterStatus):
                self._pauses.record(event.paused, is_complete=len(event.paused) == event.paused_count)
        statuses = [event for event in events if isinstance(event, BrokerStatus | RouterStatus)]
        self._view.broker_status.record(statuses, steady_now_ms)
