"""A stream worker without sockets: clients are objects, and tests feed their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.discards.events import DiscardEvent
from bruce_mp.discards.reporter import DiscardReporter
from bruce_mp.input.barriers import Barriers
from bruce_mp.input.fenced_attempts import FencedAttempts
from bruce_mp.input.flush_groups import FlushGroups, OutcomeCounter
from bruce_mp.input.sender_quotas import SenderQuotas, SenderRules
from bruce_mp.input.spill_feed import SpillFeed
from bruce_mp.input.spills import Spills
from bruce_mp.input.stream_admission import StreamAdmission
from bruce_mp.input.stream_batch import Portion
from bruce_mp.input.stream_client import UNIX, StreamClientState, StreamKind
from bruce_mp.input.unique_attempts import UniqueAttempts
from bruce_mp.kernels import ChunkPool, Lanes
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.pipeline.stream_recovery import recover_stream_input
from bruce_mp.protocol.client.barrier import BarrierAnswer, decode_answer
from bruce_mp.protocol.client.inquiry import InquiryAnswer, decode_inquiry_answer, is_inquiry
from bruce_mp.slab import layout as lay
from bruce_mp.slab.handover_tickets import JournalProgress
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.spill import SpillDirectory
from bruce_mp.slab.tables import TopicTable
from bruce_mp.slab.topic_thresholds import TopicThresholds
from bruce_mp.status.event_decoder import decode_events
from support.links import Keeping

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.kernels import WindowOfTopic
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.books import Books

__all__ = ["NO_RULES", "WORKER_ROW", "StreamInput", "assert_books", "balanced_books"]

WORKER_ROW: Final = lay.ROW_FIRST_INPUT + 1
NO_RULES: Final = SenderRules("input.unix_stream", allow_list=None, limits=None)


def balanced_books(slab: Slab) -> Books:
    """Return the books of a slab, which must be consistent and balanced."""
    books = count_books(slab)
    assert books.consistent
    assert books.balanced, books
    return books


def assert_books(slab: Slab, received: int, **discarded: int) -> None:
    """Assert that the books are balanced with these numbers of messages."""
    books = balanced_books(slab)
    assert (books.received, books.discarded) == (received, discarded)


class StreamInput:
    """A stream worker behind its sockets. Its creation recovers the messages of its predecessor."""

    def __init__(
        self,
        slab: Slab,
        *,
        max_size: int = 2_000_000,
        senders_wait: bool = True,
        topics: Sequence[tuple[bytes, int]] = (),
        linger_ms: int = 1000,
        row: int = WORKER_ROW,
        max_attempt: int = 0,
        rules: SenderRules = NO_RULES,
        peers: Sequence[int] = (),
        windows: WindowOfTopic = lambda _: None,
        alpha: int = 0,
        max_spill: int = 0,
        keeps_journal: bool = False,
    ) -> None:
        self.slab = slab
        table = TopicTable(slab)
        for name, partitions in topics:
            table.add(name, partitions)
        self.row = ProcessRow.recover(slab, row)
        self.flush_groups = FlushGroups()
        self.outcomes = OutcomeCounter(slab, self.flush_groups)
        journal = JournalProgress(slab, row) if keeps_journal else None
        self.waiting = Barriers(self.outcomes, self.flush_groups, self._answer, journal)
        self.inquiries: list[InquiryAnswer] = []
        self.answers: list[tuple[StreamClientState, BarrierAnswer]] = []
        self.pool = ChunkPool(slab, row, [row], self.outcomes)
        thresholds = TopicThresholds(self.pool, table, lambda _: alpha)
        self.lanes = Lanes(slab, self.pool, table, lambda _: linger_ms, windows=windows, thresholds=thresholds)
        self._link = Keeping()
        self.reporter = DiscardReporter(self._link, 100)
        self.barriers: list[tuple[StreamClientState, bytes]] = []
        max_chunks = max_attempt or max(1, slab.geometry.chunks // 2)
        self.spill_directory = SpillDirectory.for_slab(slab, f"{slab.path}.spill")
        self.spills = Spills(slab, self.row, row, self.spill_directory, max_spill)
        self.spill_feed = SpillFeed(
            self.row, self.lanes, self.pool, reporter=self.reporter, spills=self.spills, flush_groups=self.flush_groups
        )
        self.unique = UniqueAttempts(
            slab, row, self.spill_directory, self.outcomes, self.flush_groups, limits=(max_size, 900_000)
        )
        self.attempts = FencedAttempts(
            slab,
            self.pool,
            table,
            thresholds=thresholds,
            row=self.row,
            reporter=self.reporter,
            spills=self.spills,
            unique=self.unique,
            max_chunks=max_chunks,
            max_total_chunks=max_chunks,
        )
        self.completed: list[Segment] = []
        self.admission = StreamAdmission(
            self.row,
            self.lanes,
            self.pool,
            self.reporter,
            self._on_barrier,
            attempts=self.attempts,
            on_completed=self.completed.extend,
            max_size=max_size,
            senders_wait=senders_wait,
            quotas=SenderQuotas(rules, slab, row, [row, *peers]),
        )
        self.now_ms = 1
        self.unique.has_resolved = recover_stream_input(slab, self.row, row, self.spill_directory)
        self.spills.adopt()
        self.pool.allow_reclaim()

    def _on_barrier(self, client: StreamClientState, data: bytes) -> None:
        answer = self.unique.answer(client, data) if is_inquiry(data) else None
        if answer is not None:
            self.inquiries.append(decode_inquiry_answer(answer))
            return
        self.barriers.append((client, data))
        self.waiting.on_barrier(client, data, self.now_ms)

    def _answer(self, client: StreamClientState, data: bytes) -> None:
        self.answers.append((client, decode_answer(data)))

    def reported(self) -> list[DiscardEvent]:
        """Return the reported discards."""
        self.reporter.flush()
        return [event for data in self._link.sent for event in decode_events(data) if isinstance(event, DiscardEvent)]

    def connect(self, kind: StreamKind = UNIX, user: int = 0) -> StreamClientState:
        """Return a new client."""
        return StreamClientState(kind, self.flush_groups.open(), user=user)

    def feed(self, *sent: tuple[StreamClientState, bytes]) -> None:
        """Feed the bytes of these clients in one batch, and publish the closed runs."""
        self.admit(*sent)
        self.lanes.drain_closed()

    def admit(self, *sent: tuple[StreamClientState, bytes]) -> None:
        """Feed the bytes of these clients in one batch."""
        buffer = bytearray()
        portions = []
        for client, data in sent:
            begin = len(buffer)
            buffer += client.unprocessed + data
            portions.append(Portion(client, begin, len(buffer)))
        self.admission.admit(memoryview(buffer), portions, self.now_ms)

    def close_runs(self) -> None:
        """Close all runs and hand them over."""
        self.lanes.close_all()
        self.lanes.drain_closed()
