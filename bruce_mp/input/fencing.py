"""The assembly of a stream worker's objects for fenced attempts: open attempts, spill files and their feed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.discards.settlement import Discards
from bruce_mp.input.fenced_attempts import FencedAttempts
from bruce_mp.input.spill_feed import SpillFeed, SpillPump
from bruce_mp.input.spills import Spills
from bruce_mp.input.unique_attempts import MessageLimits, SettlementTimer, UniqueAttempts
from bruce_mp.pipeline.pending_batch import SIZE_OVERHEAD
from bruce_mp.pipeline.stream_recovery import recover_stream_input
from bruce_mp.slab.layout import CHUNK_BYTES
from bruce_mp.slab.spill import SpillDirectory

if TYPE_CHECKING:
    from bruce_mp.config.model import Config
    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.input.outcomes import Outcomes, Sections
    from bruce_mp.input.run_publisher import RunPublisher
    from bruce_mp.ipc.loop import Loop
    from bruce_mp.ipc.start import Start
    from bruce_mp.kernels import Lanes
    from bruce_mp.slab.chunks import ChunkPool
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.tables import TopicTable
    from bruce_mp.slab.topic_thresholds import TopicThresholds

__all__ = ["Fencing", "longest_message"]


class Fencing:
    """Owns the open attempts, the spill files and the pump that feeds them into the slab."""

    def __init__(
        self,
        start: Start,
        slab: Slab,
        row: ProcessRow,
        *,
        pool: ChunkPool,
        topics: TopicTable,
        lanes: Lanes,
        thresholds: TopicThresholds,
        reporter: DiscardReporter,
        sections: Sections,
        outcomes: Outcomes,
        loop: Loop,
        publisher: RunPublisher,
    ) -> None:
        self._slab = slab
        self._row = row
        self._index = start.row
        streams = start.config.input.streams
        self._directory = SpillDirectory.for_slab(slab, start.config.spill_path)
        self._spills = Spills(slab, row, start.row, self._directory, streams.max_spill_size)
        feed = SpillFeed(row, lanes, pool, reporter=reporter, spills=self._spills, sections=sections)
        self._pump = SpillPump(loop, feed, publisher.publish_closed)
        self.unique = UniqueAttempts(start.row, self._directory, outcomes, sections, _limits(start.config))
        self.attempts = FencedAttempts(
            slab,
            pool,
            topics,
            thresholds=thresholds,
            row=row,
            discards=Discards(slab, row, reporter),
            reporter=reporter,
            spills=self._spills,
            unique=self.unique,
            max_chunks=streams.max_attempt_size // CHUNK_BYTES,
            max_total_chunks=max(1, slab.geometry.chunks // 2 // max(1, len(start.inputs))),
        )

        self._settlement = SettlementTimer(loop, self.unique)

    def recover(self) -> None:
        """Finish the interrupted steps of this row's last worker, and take over its spill files."""
        recover_stream_input(self._slab, self._row, self._index, self._directory)
        self._spills.adopt()

    def start_feed(self) -> None:
        """Feed the spill files of released attempts; the caller repeats this after each release."""
        self._pump.start()
        self._settlement.start()

    def apply_config(self, config: Config) -> None:
        """Apply a reloaded configuration."""
        streams = config.input.streams
        self.unique.apply_limits(_limits(config))
        self.attempts.apply_limits(streams.max_attempt_size // CHUNK_BYTES)
        self._spills.max_bytes = streams.max_spill_size


def _limits(config: Config) -> MessageLimits:
    return MessageLimits(longest_message(config), config.batching.message_max_bytes - SIZE_OVERHEAD)


def longest_message(config: Config) -> int:
    """Return the largest size of a message with its size field."""
    return config.input.max_stream_size + 4
