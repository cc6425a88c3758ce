"""The common shell of input processes: chunks, lanes and quotas, and the publication of runs.

To *publish* a run is to send the router a frame that names the run; the router finds the records in the slab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.discards.settlement import ProcessReporter
from bruce_mp.input.sender_quotas import SenderQuotas
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.ipc.links import CLOSE_TIMEOUT_MS, ROUTER_FROM_INPUTS
from bruce_mp.kernels import ChunkPool, Lanes, ProcessRow
from bruce_mp.pipeline.configured_partitioners import partitioners_of
from bruce_mp.pipeline.process_shell import ProcessShell
from bruce_mp.pipeline.run_linger import lingers_of
from bruce_mp.slab.tables import TopicTable
from bruce_mp.slab.topic_thresholds import TopicThresholds
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bruce_mp.config.inputs import Input
    from bruce_mp.config.model import Config
    from bruce_mp.input.sender_quotas import SenderRules
    from bruce_mp.ipc.control_messages import Control
    from bruce_mp.ipc.links import LinkSender
    from bruce_mp.ipc.start import Start
    from bruce_mp.kernels import WindowOfTopic
    from bruce_mp.slab.chunks import ChunkWatcher
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["InputShell", "RunPublisher"]

_RECLAIM_INTERVAL_S: Final = 1.0
"""Interval at which an input returns its idle chunks to the slab."""
_MAX_CLOSE_MS: Final = 2000
"""Longest time in ms that an input, when it ends, waits for the router to receive the last frames."""


class RunPublisher:
    """Sends the closed runs of an input's lanes to the router, in RUNS frames, and counts them in the input's row."""

    def __init__(self, lanes: Lanes, router: LinkSender, row: ProcessRow) -> None:
        self._lanes = lanes
        self._router = router
        self._row = row

    def publish(self, segments: list[Segment]) -> None:
        """Send the router a RUNS frame with these segments, unless the list is empty."""
        if segments:
            self._router.send([Parcel(ParcelKind.RUNS, segments=segments)])
            self._row.add(Counter.InputRunsPublished, len(segments))

    def flush(self, topics: Iterable[int]) -> None:
        """Ask the router to send the messages of some topics now, including those in the runs of all earlier frames."""
        self._router.send([Parcel(ParcelKind.FLUSH, topic) for topic in topics])

    def publish_closed(self) -> None:
        """Publish all closed runs; the caller has counted their records in the row.

        Otherwise the telemetry could show more delivered messages than received ones.
        """
        self.publish(self._lanes.drain_closed())

    def publish_ready(self, now_ms: int) -> None:
        """Publish all closed runs, but only if it is time to publish (`Lanes.drain_ready`)."""
        self.publish(self._lanes.drain_ready(now_ms))

    def publish_open_runs(self) -> None:
        """Close every open run, and publish all closed runs; the lanes keep their chunks."""
        self._lanes.close_runs()
        self.publish_closed()

    def publish_all(self) -> None:
        """Close every open run, and publish all closed runs; the lanes release their chunks."""
        self._lanes.close_all()
        self.publish_closed()


class InputShell(ProcessShell):
    """The common base class of the datagram input and the stream workers.

    `windows_for` and `rules_for` return the settings for datagrams, or those for streams.  The chunk pool calls the
    `watcher` for each chunk that it opens or releases.
    """

    def __init__(
        self,
        start: Start,
        slab: Slab,
        control: Control,
        *,
        windows_for: Callable[[Config], WindowOfTopic],
        rules_for: Callable[[Input], SenderRules],
        watcher: ChunkWatcher | None = None,
    ) -> None:
        super().__init__(start, control, ProcessRow.recover(slab, start.row))
        config = start.config
        self._windows_for = windows_for
        self._rules_for = rules_for
        self._reporter = self.add_output(ProcessReporter(config, self._links, self._row))
        self._pool = ChunkPool(slab, start.row, start.input_rows, watcher)
        self._topics = TopicTable(slab)
        self._thresholds = TopicThresholds(self._pool, self._topics, config.alpha_for)
        self._lanes = Lanes(
            slab,
            self._pool,
            self._topics,
            lingers_of(config),
            windows=windows_for(config),
            partitioners=partitioners_of(config),
            thresholds=self._thresholds,
        )
        self._quotas = SenderQuotas(rules_for(config.input), slab, start.row, start.input_rows)
        self._router = self._links.sender(ROUTER_FROM_INPUTS)
        self._publisher = RunPublisher(self._lanes, self._router, self._row)
        self._is_replaced = False
        """True if the supervisor has ended: the input of a new supervisor replaces this one."""

    def start(self) -> None:
        self.repeat(_RECLAIM_INTERVAL_S, self._pool.reclaim_idle)  # another input may need the memory

    def after_round(self, now_ms: int) -> int | None:
        self._lanes.close_due(now_ms)
        self._publisher.publish_ready(now_ms)
        return self._lanes.next_due_ms

    def apply_config(self, config: Config, _: Config) -> None:
        self._reporter.apply_config(config)
        self._lanes.apply_lingers(lingers_of(config))
        self._lanes.apply_windows(self._windows_for(config))
        self._lanes.partitioners = partitioners_of(config)
        self._thresholds.apply_config(config.alpha_for)
        self._quotas.apply_config(self._rules_for(config.input))

    def stop(self) -> None:
        self._finish()

    def on_supervisor_exit(self) -> None:
        """End without a drain, because the old router has ended, too."""
        self._is_replaced = True
        self._finish()

    def _finish(self) -> None:
        self._publisher.publish_all()
        self._loop.stop()

    def close(self) -> int:
        """Return the time limit in ms for sending the last frames.

        If the input is replaced, it has no router, and drops the frames: the next router finds the runs in the slab.
        """
        if not self._is_replaced:
            return _MAX_CLOSE_MS
        self._router.close()
        return CLOSE_TIMEOUT_MS
