"""The chunks of one input: allocation, sealing, reclaim.

An input fills a chunk of 8 KiB with records.  A *span* of neighboring chunks serves as one, for a large message or a
busy *lane* (a topic or partition for which the input collects messages).  A *share* is a group of chunks that belongs
to one input at a time; `shares.py` divides the shares among the inputs, under a lock.  This module needs no lock,
because only the input that owns a chunk changes the chunk's state.  `free_chunks.py` chooses among the free chunks.

A *sealed* chunk gets no further records.  `ChunkPool` may free (*reclaim*) it when all its records are *settled*:
delivered or discarded.  The pool does so lazily: when it needs memory, it inspects a few of the oldest sealed chunks.
Each allocation gets a *generation* that is unique in the life of the slab, by which a reader recognizes a reference to
an earlier use of the chunk.

A chunk that is not settled some seconds after its opening is *stuck*, for example because its partitions have no
leader.  The pool inspects stuck chunks less often than other sealed chunks, which are likely to be settled soon.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from bruce_mp.errors import SlabError
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.free_chunks import FreeChunks
from bruce_mp.slab.holdings import Holdings
from bruce_mp.slab.layout import ChunkState, RunState
from bruce_mp.slab.runs import read_run, records_of
from bruce_mp.slab.shares import Shares, claimed_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bruce_mp.slab.file import Slab

__all__ = ["ChunkPool", "chunk_headers", "is_settled", "last_arrival", "used_chunk_headers"]

_Queue = OrderedDict[int, None]  # the keys are chunks; the pool inspects the first one next

INSPECTIONS_PER_ALLOCATION: Final = 4
"""Number of sealed chunks that each allocation inspects: more than one, so that reclaiming keeps pace with use."""
INSPECTIONS_WHEN_FULL: Final = 256
"""Number of further inspections, for each chunk of the wanted span, if an allocation finds no room."""
MAX_INSPECTIONS_PER_RECLAIM: Final = 512
"""Limit for one call of `reclaim`, so that the input soon receives again; also the number of freed chunks after which
`_inspect_stuck` ends."""
INSPECTIONS_PER_STEP: Final = 32
"""Number of chunks that `reclaim` inspects before it checks if it has freed enough."""
INSPECTIONS_PER_SECOND: Final = 4096
"""Limit for `reclaim_idle`, which runs once a second beside the traffic."""
SEARCH_PAUSE_MS: Final = 5
"""Pause after a search that found no room: brokers need milliseconds to acknowledge messages, which frees chunks."""
STUCK_AFTER_MS: Final = 5000
"""Time since its opening after which an unsettled chunk counts as stuck."""
STUCK_DIVISOR: Final = 8
"""While there are other sealed chunks, only one of this many inspections inspects a stuck chunk."""
_KEPT_FREE_PART: Final = 0.1
"""Part of the usable chunks that stays free for other topics when a busy lane gets a larger span than it needs."""
_FRAGMENTATION_FACTOR: Final = 1.25
"""Number of free chunks to obtain for each chunk of the wanted spans, because not all free chunks are neighbors."""
_GENERATION_STEP: Final = 32
"""More than the number of input rows: a generation modulo this step is the row of its input, and so never another's."""


class ChunkWatcher(Protocol):
    """A listener for the opening and release of chunks."""

    def on_opened(self, chunk: int) -> None:
        """Handle the opening of a chunk."""

    def on_released(self, chunk: int) -> None:
        """Handle the release of a chunk, before the pool overwrites its records."""


class ChunkPool:
    """The chunks of input row `owner`, restored from their headers.

    `peers` are the rows of all inputs that share the slab.  The pool notifies the `watcher` of each chunk that it
    opens, and of each settled chunk before it frees the chunk.
    """

    free_chunks_type: ClassVar = FreeChunks  # the compiled variant overrides both
    holdings_type: ClassVar = Holdings

    def __init__(self, slab: Slab, owner: int, peers: Sequence[int] = (), watcher: ChunkWatcher | None = None) -> None:
        self._slab = slab
        self.owner = owner
        self._watcher = watcher
        self._shares = Shares(slab, owner, peers)
        self._free = self.free_chunks_type(slab.geometry.chunks)
        self._sealed: _Queue = OrderedDict()  # sealed chunks that are not stuck
        self._stuck: _Queue = OrderedDict()
        self.holdings = self.holdings_type()
        self.stuck_count = 0
        """Number of chunks in stuck spans."""
        self._now_ms = 0
        """Time of the last `allocate`."""
        self._unreclaimable: list[int] = []
        """Sealed chunks that the pool must not reclaim before the next `allow_reclaim`."""
        self._search_pause_ends_ms = 0
        self._reserved, self._reserved_span = 0, 1
        """The arguments of the last `reserve`."""
        self._generation_at = slab.row_at(owner) + lay.ROW_GENERATION
        self._adopt()

    @property
    def own_free_count(self) -> int:
        """Return the number of free chunks in this input's shares."""
        return self._free.count

    @property
    def free_count(self) -> int:
        """Return the number of free chunks in this input's shares, and in shares that it could claim now."""
        return self._free.count + self._shares.division.obtainable_chunk_count

    @property
    def capacity(self) -> int:
        """Return the number of chunks that other inputs' guarantees leave to this input at present."""
        return self._shares.division.capacity

    @property
    def usable(self) -> int:
        """Return the capacity less the stuck chunks; 0 if the capacity has shrunk below their number."""
        return max(0, self.capacity - self.stuck_count)

    def _adopt(self) -> None:
        """Restore the state of a predecessor from the headers of its chunks."""
        for share in self._shares.own_shares:
            self._free.add_share(self._shares.chunks_of(share))
        last_generation = self._slab.words[self._generation_at >> 2]
        largest_generation = 0  # for a slab of release 0.1, which has no last generation in the row
        for chunk, _, span, generation in used_chunk_headers(self._slab):
            largest_generation = max(largest_generation, generation)
            self._free.adopt(chunk, span)
            if self._slab.owner_of(chunk) == self.owner:
                self.seal(chunk)
                self.holdings.adopt(self._slab, chunk, span)
        self._next_generation = self._generation_after(last_generation or largest_generation)
        self._queue_adopted()

    def _queue_adopted(self) -> None:
        """Allow the reclaim of adopted chunks, except chunks with records of datagrams that are in the landing zone."""
        first_landed = self._slab.longs[landing_zone.base_at(self._slab) >> 3]
        adopted, self._unreclaimable = self._unreclaimable, []
        for chunk in adopted:
            # True for all chunks of a stream input, because its arrival numbers exceed the numbers of datagrams.
            if last_arrival(self._slab, chunk) >= first_landed:
                self._unreclaimable.append(chunk)
            else:
                self._sealed[chunk] = None

    def _return_share(self, share: int) -> None:
        """Release a share of this input if none of its chunks is in use."""
        if self._free.remove_unused_share(self._shares.chunks_of(share)):
            self._shares.release(share)

    def _claim_share(self, span: int) -> bool:
        """Claim a share, or all that a span larger than a share needs; return False if that is impossible."""
        if span > self._shares.size:
            return self._claim_shares_for_span(span)
        share = self._shares.claim_one()
        if share is not None:
            self._free.add_share(self._shares.chunks_of(share))
        return share is not None

    def _claim_shares_for_span(self, span: int) -> bool:
        """Claim the free shares that complete the first possible span; return False if there is none."""
        free = list(self._shares.free_runs)
        first = self._free.search_with(map(self._shares.chunks_of_run, free), span)
        if first is None:
            return False
        crossed = range(first // self._shares.size, (first + span - 1) // self._shares.size + 1)
        wanted = [share for run in free for share in run if share in crossed]
        if not wanted or not self._shares.claim(wanted):
            return False
        for share in wanted:
            self._free.add_share(self._shares.chunks_of(share))
        return True

    def allocate(self, span: int, now_ms: int) -> int | None:
        """Open a span of `span` neighboring chunks and return its first chunk; None if there is no room."""
        self._now_ms = now_ms
        self._reclaim(INSPECTIONS_PER_ALLOCATION)
        chunk = self._find_or_extend(span)
        if chunk is None:
            chunk = self._find_after_reclaim(span, now_ms)
        if chunk is not None:
            self._free.use(chunk, span)
            self._open(chunk, span, now_ms)
            if self._watcher is not None:
                self._watcher.on_opened(chunk)
        return chunk

    def _find_after_reclaim(self, span: int, now_ms: int) -> int | None:
        """Reclaim more chunks, then search; for SEARCH_PAUSE_MS after a failure, return None at once, to save CPU."""
        if now_ms < self._search_pause_ends_ms:
            return None
        self._reclaim(INSPECTIONS_WHEN_FULL * span)
        chunk = self._find_or_extend(span)
        if chunk is None:
            self._search_pause_ends_ms = now_ms + SEARCH_PAUSE_MS
        return chunk

    def _find_or_extend(self, span: int) -> int | None:
        """Find a free span, if necessary with chunks of newly claimed shares."""
        chunk = self._free.next_span(span)
        if chunk is None and self._claim_share(span):
            chunk = self._free.next_span(span)
        return chunk

    def _open(self, chunk: int, span: int, now_ms: int) -> None:
        at = self._slab.chunk_at(chunk)
        generation, self._next_generation = self._next_generation, self._generation_after(self._next_generation)
        self._slab.words[self._generation_at >> 2] = generation
        runs = attempt = last_arrival = 0
        # The chunk stays FREE until its header is complete, because a crash may leave a part of the header.
        fields = (generation, ChunkState.FREE, self.owner, 0, span, runs, attempt, now_ms, last_arrival)
        lay.CHUNK.pack_into(self._slab.view, at, lay.CHUNK_MAGIC, *fields)
        self._slab.view[at + lay.CHUNK_STATE] = ChunkState.OPEN

    def seal(self, chunk: int) -> None:
        """Close a chunk to further runs; the pool may reclaim it after the next `allow_reclaim`."""
        self._slab.view[self._slab.chunk_at(chunk) + lay.CHUNK_STATE] = ChunkState.SEALED
        self._unreclaimable.append(chunk)

    def allow_reclaim(self) -> None:
        """Allow the reclaim of the chunks sealed so far, after the commit of the batch in the landing zone.

        If the input dies before the commit, its successor looks for records to see which datagrams of the batch were
        copied to chunks.  So the chunks of these records must stay until the commit, even if all records are settled.
        """
        self._sealed.update(dict.fromkeys(self._unreclaimable))
        self._unreclaimable = []

    def reclaim(self, target_free: int) -> None:
        """Free settled chunks until `target_free` are free; end after about MAX_INSPECTIONS_PER_RECLAIM inspections."""
        inspections = min(len(self._sealed) + len(self._stuck), MAX_INSPECTIONS_PER_RECLAIM)
        while inspections > 0 and self.free_count < target_free:
            self._reclaim(min(inspections, INSPECTIONS_PER_STEP))
            inspections -= INSPECTIONS_PER_STEP

    def reclaim_settled(self, chunks: Iterable[int]) -> None:
        """Inspect these sealed chunks, and free each one in which all records are settled."""
        for queue in (self._sealed, self._stuck):
            inspected: _Queue = OrderedDict((chunk, None) for chunk in chunks if chunk in queue)
            for chunk in inspected:
                del queue[chunk]
            freed = self._inspect_queue(inspected, len(inspected))
            queue.update(inspected)
            self.stuck_count -= freed if queue is self._stuck else 0

    def reclaim_idle(self) -> None:
        """Free settled chunks, and release shares without used chunks when shares are scarce.

        The input calls this once a second, because another input may need the memory.
        """
        self._reclaim(INSPECTIONS_PER_SECOND)
        if self._shares.division.are_scarce:
            for share in self._shares.own_shares:
                self._return_share(share)

    def reserve(self, chunks: int, span: int = 1) -> None:
        """Claim shares, as far as possible, until `chunks` chunks are free, among them a span of `span` neighbors.

        These chunks are reserved for the next messages: `can_spare` does not allow busy lanes to take them.
        """
        self._reserved, self._reserved_span = chunks, span
        self._obtain(chunks)
        if span > 1 and self._free.search(span) is None:
            self._claim_share(span)

    def can_spare(self, span: int) -> bool:
        """Return True if a busy lane may get a span of this size, longer than it needs; claim shares for the span.

        A tenth of the usable chunks must stay free.  The reserved chunks, too, must stay free, each span in one piece.
        """
        if self.free_count - span < self.usable * _KEPT_FREE_PART:
            return False
        if self._reserved_span > 1:
            return self._can_spare_spans(span)
        return self._obtain(self._reserved + span)

    def _can_spare_spans(self, span: int) -> bool:
        """Return True if the reserved spans stay free wherever the pool allocates a span of this size."""
        size = self._reserved_span
        touched_count = (span - 2) // size + 2  # the most spans of `size` chunks that this span can overlap
        wanted_count = self._reserved // size + touched_count
        has_chunks = self._obtain(int(wanted_count * size * _FRAGMENTATION_FACTOR))
        return has_chunks and self.count_free_spans(size, wanted_count) == wanted_count

    def _obtain(self, chunks: int) -> bool:
        """Claim shares until `chunks` chunks in this input's shares are free; return False if that is impossible."""
        while self.own_free_count < chunks and self._claim_share(1):
            pass
        return self.own_free_count >= chunks

    def count_free_spans(self, span: int, limit: int) -> int:
        """Count the disjoint spans of `span` neighboring free chunks in this input's shares, up to `limit`."""
        return self._free.count_spans(span, limit)

    def _reclaim(self, inspections: int) -> None:
        """Inspect the oldest sealed and stuck chunks, and free the settled ones."""
        sealed_inspections = min(len(self._sealed), inspections - inspections // STUCK_DIVISOR)
        self._inspect_queue(self._sealed, sealed_inspections)
        self._inspect_stuck(inspections - sealed_inspections)

    def _inspect_stuck(self, inspections: int) -> None:
        """Inspect the first stuck chunks, and free the settled ones.

        If all of them were settled, inspect more: chunks that got stuck together are often settled together.
        """
        freed = 0
        while inspections and freed < MAX_INSPECTIONS_PER_RECLAIM:
            before = len(self._stuck)
            inspections = min(inspections, before)
            freed += self._inspect_queue(self._stuck, inspections)
            if before - len(self._stuck) < inspections:
                break
        self.stuck_count -= freed

    def _inspect_queue(self, queue: _Queue, inspections: int) -> int:
        """Inspect a queue's first chunks: free the settled ones and queue the others again.

        Return the number of freed chunks; a freed span counts with all its chunks.
        """
        freed = 0
        for _ in range(inspections):
            chunk, _ = queue.popitem(last=False)
            if is_settled(self._slab, chunk):
                freed += self._release(chunk)
            else:
                self._requeue(queue, chunk)
        return freed

    def _requeue(self, queue: _Queue, chunk: int) -> None:
        """Queue an unsettled chunk again, as stuck if it was opened more than STUCK_AFTER_MS ago."""
        at = self._slab.chunk_at(chunk)
        if queue is self._sealed and self._now_ms - self._slab.longs[(at + lay.CHUNK_OPENED_MS) >> 3] > STUCK_AFTER_MS:
            self.stuck_count += self._slab.words[(at + lay.CHUNK_SPAN) >> 2]
            queue = self._stuck
        queue[chunk] = None

    def _release(self, chunk: int) -> int:
        """Free a chunk or span; return its number of chunks."""
        if self._watcher is not None:
            self._watcher.on_released(chunk)
        at = self._slab.chunk_at(chunk)
        span = self._slab.words[(at + lay.CHUNK_SPAN) >> 2]
        # If the process dies after this store, the span without runs counts as settled, and is released again.
        self._slab.words[(at + lay.CHUNK_RUNS) >> 2] = 0
        # In the later chunks of the span, record bytes are in the places of chunk headers.
        for header_at in range(at + lay.CHUNK_BYTES, at + span * lay.CHUNK_BYTES, lay.CHUNK_BYTES):
            self._slab.view[header_at : header_at + lay.CHUNK_HEADER] = bytes(lay.CHUNK_HEADER)
        self._slab.view[at + lay.CHUNK_STATE] = ChunkState.FREE
        self._add_free(chunk, span)
        return span

    def _add_free(self, chunk: int, span: int) -> None:
        """Add a released span to the free chunks; if shares are scarce, also release its empty shares."""
        self._free.release(chunk, span)
        self.holdings.remove(chunk)
        if self._shares.division.are_scarce:
            for share in range(chunk // self._shares.size, (chunk + span - 1) // self._shares.size + 1):
                if self.own_free_count - self._shares.size >= self._reserved:  # else a peer could claim reserved chunks
                    self._return_share(share)

    def _generation_after(self, generation: int) -> int:
        """Return the next generation of this input; never 0, because 0 in the row means that there was none yet."""
        steps = generation // _GENERATION_STEP + 1
        following = steps * _GENERATION_STEP + self.owner % _GENERATION_STEP
        return following & 0xFFFFFFFF or _GENERATION_STEP  # a u32 wraps around


def chunk_headers(slab: Slab) -> Iterator[tuple[int, ChunkState, int, int]]:
    """Yield (first chunk, state, number of chunks, generation) of every span, in order of position.

    A free chunk is yielded as a span of 1, also a chunk with a damaged header, because no field can be trusted.
    """
    chunk = 0
    while chunk < slab.geometry.chunks:
        state, span, generation = _read_header(slab, chunk)
        yield chunk, state, span, generation
        chunk += span


def _read_header(slab: Slab, chunk: int) -> tuple[ChunkState, int, int]:
    """Return (state, number of chunks, generation) of the span that begins with a chunk; (FREE, 1, 0) if damaged."""
    magic, generation, state, _, _, span, *_ = lay.CHUNK.unpack_from(slab.view, slab.chunk_at(chunk))
    is_in_file = 1 <= span <= slab.geometry.chunks - chunk
    if magic != lay.CHUNK_MAGIC or state not in lay.CHUNK_STATES or not is_in_file:
        return ChunkState.FREE, 1, 0
    return ChunkState(state), 1 if state == ChunkState.FREE else span, generation


def used_chunk_headers(slab: Slab) -> Iterator[tuple[int, ChunkState, int, int]]:
    """Yield (first chunk, state, number of chunks, generation) of every span in use.

    A chunk that was opened after the call may be missing.  Chunks in unclaimed shares are not read, because the read of
    a page that was never written would cost memory and a page fault.
    """
    for chunks in claimed_chunks(slab):
        yield from _used_headers_in(slab, chunks)


def _used_headers_in(slab: Slab, chunks: range) -> Iterator[tuple[int, ChunkState, int, int]]:
    first_at, end = (slab.chunks_at + chunk * lay.CHUNK_BYTES for chunk in (chunks.start, chunks.stop))
    states = bytes(slab.view[first_at + lay.CHUNK_STATE : end : lay.CHUNK_BYTES])  # one byte for each chunk
    chunk = chunks.start
    while (found := _NOT_FREE.search(states, chunk - chunks.start)) is not None:
        chunk = chunks.start + found.start()
        state, span, generation = _read_header(slab, chunk)
        if state is not ChunkState.FREE:
            yield chunk, state, span, generation
        chunk += span


_NOT_FREE: Final = re.compile(b"[^%c]" % ChunkState.FREE)


def last_arrival(slab: Slab, chunk: int) -> int:
    """Return an arrival number that no record of the chunk exceeds."""
    return slab.longs[(slab.chunk_at(chunk) + lay.CHUNK_LAST_ARRIVAL) >> 3]


def is_settled(slab: Slab, chunk: int) -> bool:
    """Return True if every record of a chunk is delivered or discarded; False for a damaged chunk.

    The pool calls this several times for each chunk, so the function reads records only in split runs.
    """
    words, start = slab.words, slab.chunk_at(chunk)
    at, end = start + lay.CHUNK_HEADER, start + words[(start + lay.CHUNK_SPAN) >> 2] * lay.CHUNK_BYTES
    if end > slab.geometry.file_size:
        return False
    for _ in range(words[(start + lay.CHUNK_RUNS) >> 2]):
        if at > end - lay.RUN_HEADER or words[(at + lay.RUN_MAGIC_AT) >> 2] != lay.RUN_MAGIC:
            return False
        state, size = words[at >> 2] & 0xFF, words[(at + lay.RUN_SIZE) >> 2]
        if state not in lay.SETTLED and not (state == RunState.SPLIT and _is_split_settled(slab, chunk, at - start)):
            return False
        if size < lay.RUN_HEADER or size & 7:
            return False
        at += size
    return True


def _is_split_settled(slab: Slab, chunk: int, offset: int) -> bool:
    try:
        records = records_of(slab, chunk, offset, read_run(slab, chunk, offset))
        return all(record.word & 0xFF in lay.SETTLED for _, record in records)
    except SlabError:
        return False
