"""The chunks of one input: allocate, seal, reclaim.

Only the input that owns a chunk changes its state, so nothing here needs a lock; which chunks it may use, `shares.py`
says, which does.  A chunk is free again when all its
runs are settled; that is found by looking at the oldest sealed chunks when memory is wanted, a few at a time, never by
counting on every message.  The generation of an allocation is unique in the life of the slab (each input has numbers of
its own), so that a place kept from before is recognised as stale.

A chunk that is not settled seconds after it was opened is *stuck*: nobody leads its partitions, say.  Stuck chunks are
looked at less than the others, among which the memory is that will come free soon.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from bruce_mp.errors import SlabError
from bruce_mp.slab import landing
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import ChunkState, State
from bruce_mp.slab.runs import read_run, records_of
from bruce_mp.slab.shares import Shares
from bruce_mp.slab.topic_shares import Holdings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bruce_mp.slab.file import Slab

__all__ = [
    "ChunkPool",
    "chunk_heads",
    "is_settled",
    "last_arrival",
    "used_heads",
]

_Queue = OrderedDict[int, None]

LOOKS_PER_ALLOCATION: Final = 4
LOOKS_WHEN_EMPTY: Final = 256
LOOKS_UNDER_PRESSURE: Final = 512
LOOKS_AT_ONCE: Final = 32
LOOKS_WHEN_IDLE: Final = 4096
DRY_MS: Final = 5
STUCK_AFTER_MS: Final = 5000
STUCK_LOOKS: Final = 8
"""One look in so many is at a stuck chunk, as long as there are others."""
_KEPT_SHARE: Final = 0.1
_SLACK: Final = 1.25
"""So much more is taken than neighbours need: not all free chunks lie side by side."""
_GENERATION_STEP: Final = 32  # more than there are inputs


class ChunkWatcher(Protocol):
    """Who wants to know of the lives of chunks."""

    def opened(self, chunk: int) -> None:
        """A life begins."""

    def released(self, chunk: int) -> None:
        """It is about to end."""


class ChunkPool:
    """The chunks of input row `owner`, rebuilt from their headers; `allocate` and `seal` work in constant time.

    `peers` are the rows of all inputs among whom the slab is shared.  A `watcher` hears of each chunk that is opened,
    and of each that is about to be free again, whose messages are all settled.
    """

    def __init__(self, slab: Slab, owner: int, peers: Sequence[int] = (), watcher: ChunkWatcher | None = None) -> None:
        self._slab = slab
        self.owner = owner
        self._watcher = watcher
        self._shares = Shares(slab, owner, peers)
        self._used = bytearray(b"\1" * slab.geometry.chunks)  # 0 = free, and ours
        self._free: list[int] = []
        self._sealed: _Queue = OrderedDict()
        self._stuck: _Queue = OrderedDict()
        self.holdings = Holdings()
        self.stuck_count = 0
        """Chunks that are stuck, those of spans included."""
        self._now_ms = 0
        """When `allocate` was called last."""
        self._fresh: list[int] = []
        self._dry_until_ms = 0
        self._secured, self._secured_span = 0, 1
        self.own_free = 0
        """Chunks that are free, and ours."""
        self._next_generation = _GENERATION_STEP + owner % _GENERATION_STEP
        self._adopt()

    @property
    def free_count(self) -> int:
        """Chunks that are free, or could be had."""
        return self.own_free + self._shares.obtainable

    @property
    def capacity(self) -> int:
        """Chunks that this input can have at the most."""
        return self._shares.capacity

    @property
    def usable(self) -> int:
        """How many chunks it could have free now if all went well; what it held when inputs were fewer may be more."""
        return max(0, self.capacity - self.stuck_count)

    def _adopt(self) -> None:
        for share in self._shares.own:
            self._enter(share)
        generations = _free_generations(self._slab)
        for chunk, _, span, generation in used_heads(self._slab):
            generations[chunk : chunk + span] = [generation] * span  # what is within a span may look like a head
            self._mark(chunk, span, used=1)
            if self._slab.view[self._slab.chunk_at(chunk) + lay.CHUNK_OWNER] == self.owner:
                self.seal(chunk)
                self.holdings.adopt(self._slab, chunk, span)
        self._next_generation = max(self._next_generation, self._generation_after(max(generations)))
        self._release_landed()
        self._refill()

    def _release_landed(self) -> None:
        """Of what was adopted, only what the landing zone is done with may be reclaimed before `release_seals`."""
        base = self._slab.longs[landing.base_at(self._slab) >> 3]
        adopted, self._fresh = self._fresh, []
        for chunk in adopted:
            if last_arrival(self._slab, chunk) >= base:
                self._fresh.append(chunk)
            else:
                self._sealed[chunk] = None

    def _mark(self, chunk: int, span: int, used: int) -> None:
        """Say of chunks whether they are free; counts those for which that is news."""
        self.own_free += self._used.count(used ^ 1, chunk, chunk + span) * (-1 if used else 1)
        self._used[chunk : chunk + span] = bytes([used]) * span

    def _enter(self, share: int) -> None:
        """The chunks of a share of ours are free."""
        chunks = self._shares.chunks_of(share)
        self._mark(chunks.start, len(chunks), used=0)
        self._free += reversed(chunks)

    def _leave(self, share: int) -> None:
        """Give a share back if nothing is in it."""
        chunks = self._shares.chunks_of(share)
        if self._used.find(1, chunks.start, chunks.stop) < 0:
            self._mark(chunks.start, len(chunks), used=1)
            self._shares.give(share)

    def _extend(self, span: int) -> bool:
        """Take a share, or those that make room for a span; whether they were to be had."""
        if span > self._shares.size:
            return self._extend_for_span(span)
        share = self._shares.take_one()
        if share is not None:
            self._enter(share)
        return share is not None

    def _extend_for_span(self, span: int) -> bool:
        free, used = self._shares.free, bytearray(self._used)
        for share in free:
            chunks = self._shares.chunks_of(share)
            used[chunks.start : chunks.stop] = bytes(len(chunks))
        at = used.find(bytes(span))
        size = self._shares.size
        wanted = sorted(set(range(at // size, (at + span - 1) // size + 1)).intersection(free)) if at >= 0 else []
        if not wanted or not self._shares.take(wanted):
            return False
        for share in wanted:
            self._enter(share)
        return True

    def _refill(self) -> None:
        self._free = [chunk for chunk in range(len(self._used) - 1, -1, -1) if not self._used[chunk]]

    def allocate(self, span: int, now_ms: int) -> int | None:
        """The first of `span` neighbouring chunks, opened and empty, or None when there is no room."""
        self._now_ms = now_ms
        self._reclaim(LOOKS_PER_ALLOCATION)
        chunk = self._find_or_take(span)
        if chunk is None:
            chunk = self._find_after_a_look(span, now_ms)
        if chunk is not None:
            self._mark(chunk, span, used=1)
            self._open(chunk, span, now_ms)
            if self._watcher is not None:
                self._watcher.opened(chunk)
        return chunk

    def _find_after_a_look(self, span: int, now_ms: int) -> int | None:
        """Look harder, but not again for a while when that was in vain: a full slab must not eat the CPU."""
        if now_ms < self._dry_until_ms:
            return None
        self._reclaim(LOOKS_WHEN_EMPTY * span)
        chunk = self._find_or_take(span)
        if chunk is None:
            self._dry_until_ms = now_ms + DRY_MS
        return chunk

    def _find_or_take(self, span: int) -> int | None:
        """A place for a span, some of which may lie in shares that are taken for it."""
        chunk = self._find(span)
        return self._find(span) if chunk is None and self._extend(span) else chunk

    def _find(self, span: int) -> int | None:
        if span == 1:
            return self._find_one()
        found = self._used.find(bytes(span))
        return None if found < 0 else found

    def _find_one(self) -> int | None:
        # Entries of chunks that a span took meanwhile are stale; a freed span is not listed: it waits for a refill.
        while self._free:
            chunk = self._free.pop()
            if not self._used[chunk]:
                return chunk
        if not self.own_free:
            return None
        self._refill()
        return self._free.pop()

    def _open(self, chunk: int, span: int, now_ms: int) -> None:
        at = self._slab.chunk_at(chunk)
        generation, self._next_generation = self._next_generation, self._generation_after(self._next_generation)
        head = (lay.CHUNK_MAGIC, generation, ChunkState.FREE, self.owner, 0, span, 0, 0, now_ms, 0)
        lay.CHUNK_HEAD.pack_into(self._slab.view, at, *head)
        self._slab.view[at + lay.CHUNK_STATE] = ChunkState.OPEN

    def seal(self, chunk: int) -> None:
        """No run will be added to the chunk: it may be reclaimed after the next `release_seals`."""
        self._slab.view[self._slab.chunk_at(chunk) + lay.CHUNK_STATE] = ChunkState.SEALED
        self._fresh.append(chunk)

    def release_seals(self) -> None:
        """What was sealed may be reclaimed from now on.

        Not before the batch in the landing zone is done with: were its records settled and their chunk reclaimed
        before, a recovery could not tell that they had been copied.
        """
        self._sealed.update(dict.fromkeys(self._fresh))
        self._fresh = []

    def reclaim(self, target_free: int) -> None:
        """Look at sealed chunks until so many chunks are free or a bound is reached."""
        looks = min(len(self._sealed) + len(self._stuck), LOOKS_UNDER_PRESSURE)
        while looks > 0 and self.free_count < target_free:
            self._reclaim(min(looks, LOOKS_AT_ONCE))
            looks -= LOOKS_AT_ONCE

    def reclaim_among(self, chunks: Iterable[int]) -> None:
        """Free those of some chunks that are sealed and settled."""
        for queue in (self._sealed, self._stuck):
            some: _Queue = OrderedDict((chunk, None) for chunk in chunks if chunk in queue)
            for chunk in some:
                del queue[chunk]
            freed = self._look_at(some, len(some))
            queue.update(some)
            self.stuck_count -= freed if queue is self._stuck else 0

    def tidy(self) -> None:
        """Look at sealed chunks though no memory is wanted here, and give back what nobody uses here.

        Meant to be called once a second: somebody else may want it.
        """
        self._reclaim(LOOKS_WHEN_IDLE)
        if self._shares.are_scarce:
            for share in self._shares.own:
                self._leave(share)

    def secure(self, chunks: int, span: int = 1) -> None:
        """Take shares, as far as they are to be had, until so many chunks, and a span of neighbours, are free here.

        They are for what is received next: nobody who could do with less gets them.
        """
        self._secured, self._secured_span = chunks, span
        self._own_at_least(chunks)
        if span > 1 and self._find(span) is None:
            self._extend(span)

    def can_spare(self, span: int) -> bool:
        """Whether a span may go to who could do with less: not of what was secured, nor of the last usable tenth.

        Free chunks that lie apart are of no use to those for whom neighbours were secured.
        """
        if self.free_count - span < self.usable * _KEPT_SHARE:
            return False
        if self._secured_span > 1:
            return self._can_spare_neighbours(span)
        return self._own_at_least(self._secured + span)

    def _can_spare_neighbours(self, span: int) -> bool:
        """Whether what was secured lies side by side even without a span, wherever that is taken."""
        size = self._secured_span
        touched = (span - 2) // size + 2
        spans = self._secured // size + touched
        return self._own_at_least(int(spans * size * _SLACK)) and self.free_spans(size, spans) == spans

    def _own_at_least(self, chunks: int) -> bool:
        """Take shares until so many chunks are free here; whether they are."""
        while self.own_free < chunks and self._extend(1):
            pass
        return self.own_free >= chunks

    def free_spans(self, span: int, limit: int) -> int:
        """How many spans of neighbouring free chunks there are side by side, all ours; counts up to `limit`."""
        wanted, found, at = bytes(span), 0, 0
        while found < limit and (at := self._used.find(wanted, at)) >= 0:
            found, at = found + 1, at + span
        return found

    def _reclaim(self, looks: int) -> int:
        """Look at the oldest sealed chunks and free those that are settled; how many chunks came free."""
        young = min(len(self._sealed), looks - looks // STUCK_LOOKS)
        return self._look_at(self._sealed, young) + self._look_at_stuck(looks - young)

    def _look_at_stuck(self, looks: int) -> int:
        """Free those of the first stuck chunks that are settled; how many came free.

        Where all of them are, it goes on behind them: what got stuck together comes free together.
        """
        freed = 0
        while looks and freed < LOOKS_UNDER_PRESSURE:
            before = len(self._stuck)
            looks = min(looks, before)
            freed += self._look_at(self._stuck, looks)
            if before - len(self._stuck) < looks:
                break
        self.stuck_count -= freed
        return freed

    def _look_at(self, queue: _Queue, looks: int) -> int:
        """Free those of the first chunks of a queue that are settled, and put the others back; how many came free."""
        freed = 0
        for _ in range(looks):
            chunk, _ = queue.popitem(last=False)
            if is_settled(self._slab, chunk):
                freed += self._release(chunk)
            else:
                self._put_back(queue, chunk)
        return freed

    def _put_back(self, queue: _Queue, chunk: int) -> None:
        """A chunk was found not settled."""
        at = self._slab.chunk_at(chunk)
        if queue is self._sealed and self._now_ms - self._slab.longs[(at + lay.CHUNK_OPENED_MS) >> 3] > STUCK_AFTER_MS:
            self.stuck_count += self._slab.words[(at + lay.CHUNK_SPAN) >> 2]
            queue = self._stuck
        queue[chunk] = None

    def _release(self, chunk: int) -> int:
        if self._watcher is not None:
            self._watcher.released(chunk)
        # A crash in between leaves a whole span without runs, which is settled: it is released again.
        at = self._slab.chunk_at(chunk)
        span = self._slab.words[(at + lay.CHUNK_SPAN) >> 2]
        self._slab.words[(at + lay.CHUNK_RUNS) >> 2] = 0
        for body in range(at + lay.CHUNK_BYTES, at + span * lay.CHUNK_BYTES, lay.CHUNK_BYTES):
            self._slab.view[body : body + lay.CHUNK_HEADER] = bytes(lay.CHUNK_HEADER)
        self._slab.view[at + lay.CHUNK_STATE] = ChunkState.FREE
        self._give_up(chunk, span)
        return span

    def _give_up(self, chunk: int, span: int) -> None:
        """Chunks that were released are free."""
        self._mark(chunk, span, used=0)
        self.holdings.remove(chunk)
        if span == 1:
            self._free.append(chunk)
        if self._shares.are_scarce:
            for share in range(chunk // self._shares.size, (chunk + span - 1) // self._shares.size + 1):
                self._leave(share)

    def _generation_after(self, generation: int) -> int:
        """The next one that is this input's own."""
        step = generation // _GENERATION_STEP + 1
        return (step * _GENERATION_STEP + self.owner % _GENERATION_STEP) & 0xFFFFFFFF or _GENERATION_STEP


def chunk_heads(slab: Slab) -> Iterator[tuple[int, ChunkState, int, int]]:
    """(chunk, state, span, generation) of every chunk that has a header of its own, in order of place.

    A header that is not sound counts as free: nothing in it can be trusted.
    """
    chunk = 0
    while chunk < slab.geometry.chunks:
        state, span, generation = _head(slab, chunk)
        yield chunk, state, span, generation
        chunk += span


def _head(slab: Slab, chunk: int) -> tuple[ChunkState, int, int]:
    """(state, span, generation) of a chunk that should have a header of its own."""
    head = lay.CHUNK_HEAD.unpack_from(slab.view, slab.chunk_at(chunk))
    magic, generation, state, _, _, span = head[:6]
    if magic != lay.CHUNK_MAGIC or state not in _HEADED or not 1 <= span <= slab.geometry.chunks - chunk:
        return ChunkState.FREE, 1, 0
    return ChunkState(state), 1 if state == ChunkState.FREE else span, generation


_HEADED: Final = frozenset({ChunkState.FREE, ChunkState.OPEN, ChunkState.SEALED})


def used_heads(slab: Slab) -> Iterator[tuple[int, ChunkState, int, int]]:
    """The same of chunks that are in use, without a look at each that is free.

    One that came into use after the beginning may be missing.
    """
    states = bytes(slab.view[slab.chunks_at + lay.CHUNK_STATE :: lay.CHUNK_BYTES])
    chunk = 0
    while (found := _NOT_FREE.search(states, chunk)) is not None:
        chunk = found.start()
        state, span, generation = _head(slab, chunk)
        if state is not ChunkState.FREE:
            yield chunk, state, span, generation
        chunk += span


def _free_generations(slab: Slab) -> list[int]:
    """By chunk, the generation of its last life if it is free; of others anything."""
    first, step = slab.chunks_at >> 2, lay.CHUNK_BYTES >> 2
    magics = slab.words[first::step].tolist()
    generations = slab.words[first + (lay.CHUNK_GENERATION >> 2) :: step].tolist()
    return [
        generation if magic == lay.CHUNK_MAGIC else 0 for magic, generation in zip(magics, generations, strict=True)
    ]


_NOT_FREE: Final = re.compile(b"[^%c]" % ChunkState.FREE)


def last_arrival(slab: Slab, chunk: int) -> int:
    """An arrival number that no record of the chunk exceeds."""
    return slab.longs[(slab.chunk_at(chunk) + lay.CHUNK_LAST_ARRIVAL) >> 3]


# --- settled or not --------------------------------------------------------------------------------------------------
def is_settled(slab: Slab, chunk: int) -> bool:
    """Whether every record of the chunk is delivered or discarded.  A damaged chunk never is: it is left alone.

    It is asked several times for every chunk that is filled, so it reads no more than the runs' words and sizes.
    """
    words, start = slab.words, slab.chunk_at(chunk)
    at, end = start + lay.CHUNK_HEADER, start + words[(start + lay.CHUNK_SPAN) >> 2] * lay.CHUNK_BYTES
    for _ in range(words[(start + lay.CHUNK_RUNS) >> 2]):
        if at > end - lay.RUN_HEADER or words[(at + lay.RUN_MAGIC_AT) >> 2] != lay.RUN_MAGIC:
            return False
        state, size = words[at >> 2] & 0xFF, words[(at + lay.RUN_SIZE) >> 2]
        if state not in lay.SETTLED and not (state == State.SPLIT and _is_split_settled(slab, chunk, at - start)):
            return False
        if size < lay.RUN_HEADER:
            return False
        at += size
    return True


def _is_split_settled(slab: Slab, chunk: int, offset: int) -> bool:
    try:
        records = records_of(slab, chunk, offset, read_run(slab, chunk, offset))
        return all(record.word & 0xFF in lay.SETTLED for _, record in records)
    except SlabError:
        return False
