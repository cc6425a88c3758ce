"""The status pages without a daemon: over a slab with messages, and with a clock that only the test advances."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Delivery, Kafka, MsgDebug
from bruce_mp.config.security import Tls
from bruce_mp.ipc.control_messages import ActiveConfig
from bruce_mp.slab import layout as lay
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.status.app import DaemonView, create_app
from bruce_mp.status.books_check import Verdict
from bruce_mp.status.broker_status import BrokerStatusStore
from bruce_mp.status.history.broker_traffic import BrokerHistory
from bruce_mp.status.history.history_file import HistoryFile
from bruce_mp.status.history.history_recorder import HistoryRecorder
from bruce_mp.status.history.losses import LossHistory
from bruce_mp.status.history.rates import RateHistory
from bruce_mp.status.history.topic_totals import TopicTotals
from bruce_mp.status.history.topic_traffic import TrafficTable
from bruce_mp.status.pages.compression import CompressionTable
from bruce_mp.status.pages.discards import DiscardReports
from bruce_mp.status.pages.overview import Histories
from bruce_mp.status.pages.reload import ReloadRequests
from bruce_mp.status.reports.debug_files import MessageDebug
from support.filled_slab import NOW_MS, FilledSlab

if TYPE_CHECKING:
    from pathlib import Path

    from flask.testing import FlaskClient

    from bruce_mp.ipc.control_messages import DebugTopics, ReloadRequest
    from bruce_mp.telemetry.counters import Counter

STARTED_MS = NOW_MS - 100_000
NO_TLS = Tls()


class OfflineStatusPages:
    """The contents and actions of the pages, in one place."""

    def __init__(self, path: Path, tls: Tls = NO_TLS) -> None:
        self.config = Config(
            kafka=Kafka(bootstrap_servers=("b:1",), tls=tls),
            delivery=Delivery(metadata_refresh_interval_min=1),
            msg_debug=MsgDebug(enable=True, path=str(path.parent / "debug")),
        )
        self.active_config = ActiveConfig("", 0)
        self.lost_socket_files: list[str] = []
        self.reload_requests: list[ReloadRequest] = []
        self.reloads = ReloadRequests(self.reload_requests.append)
        self.filled = FilledSlab(path, known=(b"news", b"clicks"))
        self.slab = self.filled.slab
        self.now_ms = self.steady_ms = NOW_MS
        self.verdict = Verdict()
        self.counted: list[Counter] = []
        self.unread: list[int] = []
        self.refreshes = 0
        self.accepted_clusters: list[str] = []
        self.broker_status = BrokerStatusStore()
        rates, traffic = RateHistory(self.slab, NOW_MS), TrafficTable(NOW_MS)
        totals = TopicTotals(self.slab, 100)
        self.history_file = HistoryFile(path.with_name("history"))
        self.recorder = HistoryRecorder(
            lambda: self.history_file, rates, totals, traffic, lambda: self.view().held(), now_ms=lambda: self.steady_ms
        )
        self.recorder.open()
        self.histories = Histories(rates, self.losses(), BrokerHistory(self.slab), traffic, totals, self.recorder)
        self.announced: list[DebugTopics] = []
        self.begin(lay.ROW_SUPERVISOR)
        self.reports = DiscardReports(self.slab, 600, NOW_MS, lambda: self.unread.append(self.now_ms))
        self.debug = MessageDebug(self.config.msg_debug, self.announced.append, lambda *_: None, time.monotonic)
        self.compression = CompressionTable(self.slab)
        self.client: FlaskClient = create_app(self.view()).test_client()

    def close(self) -> None:
        self.history_file.close()
        self.filled.close()

    def losses(self) -> LossHistory:
        """Return the losses as a new status process reads them."""
        return LossHistory(self.slab, lambda: self.steady_ms)

    def view(self) -> DaemonView:
        """Return the data sources and actions as the pages get them."""
        return DaemonView(
            slab=self.slab,
            reports=self.reports,
            debug=self.debug,
            compression=self.compression,
            broker_status=self.broker_status,
            histories=self.histories,
            reloads=self.reloads,
            config=lambda: self.config,
            active_config=lambda: self.active_config,
            lost_socket_files=lambda: self.lost_socket_files,
            count=self.counted.append,
            refresh_metadata=self._refresh,
            accept_cluster=self.accepted_clusters.append,
            books_verdict=lambda: self.verdict,
            now_ms=lambda: self.now_ms,
            steady_ms=lambda: self.steady_ms,
        )

    def _refresh(self) -> None:
        self.refreshes += 1

    def begin(self, row: int, pid: int | None = None, silent_ms: int = 0) -> None:
        """Start the process of a row, with its last heartbeat `silent_ms` ago."""
        ProcessRow(self.slab, row).begin(os.getpid() if pid is None else pid, STARTED_MS)
        at = self.slab.row_at(row) + lay.ROW_HEARTBEAT_MS
        self.slab.store_signed(at, self.steady_ms - silent_ms)

    def fetch_metadata(self, updated_ms: int, modified_ms: int) -> None:
        self.slab.store_signed(lay.SUPER_METADATA_UPDATED_MS, updated_ms)
        self.slab.store_signed(lay.SUPER_METADATA_STEADY_MS, updated_ms - self.now_ms + self.steady_ms)
        self.slab.store_signed(lay.SUPER_METADATA_MODIFIED_MS, modified_ms)

    def json(self, path: str, status: int = 200) -> Any:
        response = self.client.get(path)
        assert (response.status_code, response.mimetype) == (status, "application/json")
        return response.get_json()

    def text(self, path: str) -> str:
        response = self.client.get(path)
        assert (response.status_code, response.mimetype) == (200, "text/plain")
        return response.get_data(as_text=True)
