"""The same random bytes into both variants: the same results, and the same slab to the last byte."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bruce_mp.errors import SlabError
from bruce_mp.kernels import CHOICE, ChosenPartition, DeliveryCounters, RunQueue, TimestampWindow
from bruce_mp.protocol.kafka.message_set import MessageFormat
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.recovery import BuiltBatch
from bruce_mp.slab.rows import Move
from bruce_mp.slab.shares import claimed_chunks
from bruce_mp.slab.tables import PartitionTable, TopicTable
from bruce_mp.slab.topic_thresholds import TopicThresholds
from support.examples import examples
from support.headers import header_lists
from support.slabs import INPUT_ROW, datagram, new_slab, put_in_landing_zone, set_state
from support.variants import KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bruce_mp.slab.chunks import ChunkPool, ChunkWatcher
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

pytestmark = pytest.mark.skipif(not CHOICE.compiled, reason=CHOICE.sentence)
GEOMETRY: Final = Geometry(chunks=24, topics=8, partitions=8, landing_slots=12, landing_slot_size=9000)
MINE: Final = state_word(RunState.ROUTED, 7)
QUEUED: Final = state_word(RunState.QUEUED, 7)
IN_FLIGHT: Final = state_word(RunState.IN_FLIGHT, 7)


class Variant:
    """One variant of the kernels, with its own input."""

    def __init__(
        self,
        package: str,
        slab: Slab,
        linger_ms: int,
        window: TimestampWindow | None = None,
        *,
        alpha: int = 0,
        peers: Sequence[int] = (),
        watcher: ChunkWatcher | None = None,
    ) -> None:
        self.slab = slab
        modules = [vars(import_module(f"bruce_mp.kernels.{package}.{name}")) for name in KERNELS]
        self.kernels: dict[str, Any] = {name: value for module in modules for name, value in module.items()}
        table = TopicTable(slab)
        table.add(b"t1", 3)
        table.add(b"t2", 1)
        self.row = self.kernels["ProcessRow"](slab, INPUT_ROW)
        self.pool = self.kernels["ChunkPool"](slab, INPUT_ROW, peers, watcher)
        self.lanes = self.kernels["Lanes"](
            slab,
            self.pool,
            table,
            lambda _: linger_ms,
            windows=lambda _: window,
            thresholds=TopicThresholds(self.pool, table, lambda _: alpha) if alpha else None,
        )
        self.lanes.wall_offset_ms = 7

    def receive(self, datagrams: Sequence[bytes], now_ms: int) -> tuple[Any, list[Segment]]:
        put_in_landing_zone(self.slab, datagrams)
        self.row.begin_batch()
        ingested = self.lanes.ingest_landed(len(datagrams), 8000, now_ms)
        self.row.commit_landed(
            len(datagrams), {0: len(datagrams), 5: len(ingested.rejections), 6: ingested.any_partition_count}
        )
        self.lanes.close_due(now_ms)
        return ingested, self.lanes.drain_closed()

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return a kernel's result, or SlabError if it refuses."""
        try:
            return self.kernels[name](self.slab, *arguments, **options)
        except SlabError:
            return SlabError


messages = st.builds(
    datagram,
    st.sampled_from([b"t1", b"t2", b"new", b"x" * 260]),
    st.binary(max_size=40) | st.integers(0, 8500).map(bytes),
    st.binary(max_size=6),
    st.none() | st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 500),
    headers=header_lists,
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(messages))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, min(40, len(data) - 1)))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))])


spans = st.integers(0, 300) | st.integers(0, 2**31 - 1)
batches = st.lists(st.lists(messages | damaged() | st.binary(max_size=60), min_size=1, max_size=12), max_size=6)
Action = tuple[str, int, int]
actions = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "split_at split_by_partition split_by_size time_range encode record_batch encode_message_set "
                "read_headers queue_chosen deliver claim claim_runs move bind_partition write_sequence "
                "assign_sequences settle"
            ).split()
        ),
        st.integers(0, 2**16),
        st.integers(0, 2**16),
    ),
    max_size=12,
)


def results(it: Variant, segments: list[Segment], action: Action) -> tuple[Any, list[Segment]]:
    """Return the result of an action on one of the segments, and the segments after it."""
    what, which, amount = action
    segment = segments[which % len(segments)]
    rest = [other for other in segments if other is not segment]
    if what == "split_at":
        found = it.call("split_at", segment, amount % 5, amount)
        return found, rest + ([segment] if found is SlabError else [part for part in found if part])
    if what in {"split_by_partition", "split_by_size"}:
        found = (
            it.call("split_by_partition", segment, [3, 1, 4])
            if what == "split_by_partition"
            else it.call("split_by_size", segment, 20)
        )
        return found, rest + ([segment] if found is SlabError else [part for _, part in found])
    calls: dict[str, Callable[[], Any]] = {
        "time_range": lambda: it.call("time_range", segment),
        "encode": lambda: it.call("encode", segments, keeps_empty_values=bool(amount & 1)),
        "record_batch": lambda: it.call(
            "record_batch", segments, (amount, amount & 0x7FFF, which), keeps_empty_values=bool(amount & 1)
        ),
        "encode_message_set": lambda: it.call(
            "encode_message_set", segments, MessageFormat(amount & 1), keeps_empty_values=bool(amount & 2)
        ),
        "read_headers": lambda: it.call("read_headers", segments),
        "deliver": lambda: _deliver(it, segments, amount),
        "queue_chosen": lambda: _queue(it, segments, which, amount),
        "claim": lambda: it.call("claim", [segment], RunState.FILLED, MINE),
        "claim_runs": lambda: _claim_runs(it, segments),
        "move": lambda: it.row.move([segment, *rest], Move(MINE, QUEUED, 8)),
        "bind_partition": lambda: it.call("bind_partition", segments, range(which, which + len(segments))),
        "write_sequence": lambda: it.call("write_sequence", segments, amount, amount, 3, opens_batch=True),
        "assign_sequences": lambda: _number(it, segments, which, amount),
        "settle": lambda: _settle(it, segment, amount),
    }
    return calls[what](), segments


def _wait_for_both(pure: Variant, compiled: Variant) -> list[Segment]:
    """Return the runs that close in the next two seconds."""
    closed: list[Segment] = []
    while (due_ms := pure.lanes.next_due_ms) is not None and due_ms < 2500:
        for it in (pure, compiled):
            it.lanes.close_due(due_ms)
        assert pure.lanes.next_due_ms == compiled.lanes.next_due_ms
        now_closed = pure.lanes.drain_closed()
        assert compiled.lanes.drain_closed() == now_closed
        closed += now_closed
    return closed


def _queue(it: Variant, segments: list[Segment], which: int, amount: int) -> Any:
    """Queue the segments for topics of which some have choices, and some can be chosen."""
    queue = RunQueue(0, [], [], [])
    choices = {topic: ChosenPartition(topic, queue) for topic in range(4) if which >> topic & 1}
    asked: list[int] = []

    def choose(topic: int) -> ChosenPartition | None:
        asked.append(topic)
        return ChosenPartition(9, queue) if which & 16 else None

    known = dict.fromkeys((1, 2))
    found = it.call("queue_chosen", [*segments, *segments[:2]], choices, choose, amount % 40, known=known)
    return found, queue, choices, asked


def _number(it: Variant, segments: list[Segment], which: int, amount: int) -> Any:
    """Number a batch of each segment separately, and then one batch of all."""
    table = PartitionTable(it.slab)
    table.ensure_entry(1, 2)
    table.store_next_sequence(1, 2, 2**31 - 1 - which % 40, lay.LAST_EPOCH - amount % 3)
    batches = [*([segment] for segment in segments), segments]
    entry = table.entry_at(1, 2)
    return it.call(
        "assign_sequences",
        it.row,
        [(entry, 1, amount, batch) for batch in batches],
        Move(MINE, IN_FLIGHT, lay.FLOW_SENT),
        is_numbered=bool(amount & 1),
    )


def _deliver(it: Variant, segments: list[Segment], amount: int) -> Any:
    """Return how many of the batches are settled, and the sums of their topics."""
    counters, options = DeliveryCounters(7, 20, 40), {"max_topics": 1, "max_segments": 4}
    made = it.kernels["Deliveries"](it.slab, it.row, TopicTable(it.slab), [1, 2 + amount], counters, **options)
    try:
        return made.settle(_batches(segments), amount * 3), made.sums()
    except SlabError:
        return made.sums()


def _claim_runs(it: Variant, segments: list[Segment]) -> Any:
    """Claim segments with the state that they have, and return the runs and the number of errors."""
    runs, errors = it.call("claim_runs", segments, MINE, MINE)
    return runs, len(errors)


def _batches(segments: list[Segment]) -> list[BuiltBatch]:
    """Return batches of two topics, of one and two segments."""
    return [
        BuiltBatch(1 + start % 4 // 3, 0, 0, 0, tuple(segments[start : start + 1 + start % 2]))
        for start in range(len(segments))
    ]


def _settle(it: Variant, segment: Segment, amount: int) -> Any:
    try:
        it.row.settle([segment], RunState.DISCARDED, amount & 0xFF, {7: segment.records})
    except SlabError:
        return SlabError
    return None


@pytest.mark.exhaustive
@examples(30)
@given(
    sent=batches,
    todo=actions,
    linger_ms=st.sampled_from([0, 25]),
    damage=st.none() | st.integers(0, 2**32),
    window=st.none() | st.builds(TimestampWindow, spans, spans, st.booleans()),
)
def test_pure_and_compiled_kernels_produce_equal_slabs(
    sent: list[list[bytes]], todo: list[Action], linger_ms: int, damage: int | None, window: TimestampWindow | None
) -> None:
    with new_slab(GEOMETRY) as first, new_slab(GEOMETRY) as second:
        pure, compiled = Variant("pure", first, linger_ms, window), Variant("compiled", second, linger_ms, window)
        segments: list[Segment] = []
        for number, batch in enumerate(sent):
            said, closed = pure.receive(batch, 100 + number * 10)
            assert compiled.receive(batch, 100 + number * 10) == (said, closed)
            assert compiled.lanes.drain_replaced() == pure.lanes.drain_replaced()
            segments += closed
            assert pure.lanes.next_due_ms == compiled.lanes.next_due_ms
        segments += _wait_for_both(pure, compiled)
        for it in (pure, compiled):
            it.lanes.close_all()
        segments += pure.lanes.drain_closed()
        compiled.lanes.drain_closed()
        assert pure.call("claim", segments, RunState.FILLED, MINE) == compiled.call(
            "claim", segments, RunState.FILLED, MINE
        )
        assert _without_pointers(first) == _without_pointers(second)
        if damage is not None and segments:
            _damage(segments, damage, first, second)
        for action in todo if segments else ():
            found, after = results(pure, segments, action)
            assert results(compiled, segments, action) == (found, after)
            assert _without_pointers(first) == _without_pointers(second)
            segments = after
            if found is SlabError:
                return  # with damage, the stores before its detection may differ


class Step(NamedTuple):
    """Messages of one topic to ingest; before and after that, changes of the memory."""

    topic: bytes
    size: int
    """Size of each message."""
    message_count: int
    """Number of messages."""
    settled_percent: int
    """Part of the held runs that is settled after the messages."""
    pause_ms: int
    reserved_percent: int | None
    """Part of the slab that the input reserves before the messages; None = it leaves its reservation as it is."""
    peer_percent: int
    """Part of the slab that the other input takes before the messages, or, if negative, the part of its chunks that it
    frees."""


steps = st.lists(
    st.builds(
        Step,
        topic=st.sampled_from([b"t1", b"t2", b"new"]),
        size=st.sampled_from([0, 1800, 8990]),
        message_count=st.sampled_from([1, 2, 100]),
        settled_percent=st.sampled_from([0, 10, 100]),
        pause_ms=st.sampled_from([0, 30, 6000]),
        reserved_percent=st.sampled_from([None, None, None, 0, 10, 40]),
        peer_percent=st.sampled_from([0, 0, 10, 50, -50, -100]),
    ),
    min_size=10,
    max_size=60,
)


class Sharer:
    """An input of one variant that records the changes of its chunks, and a peer that takes and frees chunks."""

    def __init__(self, package: str, slab: Slab, alpha: int, peers: Sequence[int]) -> None:
        self.opened_and_released: list[tuple[int, int]] = []
        """Each chunk of the input that was opened or released, with its number of runs at that time."""
        self.it = Variant(package, slab, 25, alpha=alpha, peers=peers, watcher=self)
        self._peer_pools = [self.it.kernels["ChunkPool"](slab, peer, peers) for peer in peers if peer != INPUT_ROW]
        self._taken: list[int] = []
        """The chunks of the peer."""

    def on_opened(self, chunk: int) -> None:
        self._record(chunk)

    def on_released(self, chunk: int) -> None:
        self._record(chunk)

    def _record(self, chunk: int) -> None:
        slab = self.it.slab
        self.opened_and_released.append((chunk, slab.words[(slab.chunk_at(chunk) + lay.CHUNK_RUNS) >> 2]))

    def change_memory(self, step: Step, now_ms: int) -> None:
        """Do all of a step that precedes its messages."""
        chunks = self.it.slab.geometry.chunks
        if step.reserved_percent is not None:
            self.it.pool.reserve(chunks * step.reserved_percent // 100)
        for pool in self._peer_pools:
            if step.peer_percent < 0:
                self._free(pool, len(self._taken) * -step.peer_percent // 100)
            else:
                self._take(pool, chunks * step.peer_percent // 100, now_ms)

    def _take(self, pool: ChunkPool, chunks: int, now_ms: int) -> None:
        span = max(1, chunks // 16)
        found = [pool.allocate(span, now_ms) for _ in range(0, chunks, span)]
        self._taken += [chunk for chunk in found if chunk is not None]

    def _free(self, pool: ChunkPool, count: int) -> None:
        """Release the first chunks of the peer, which have no runs and so count as settled."""
        freed, self._taken = self._taken[:count], self._taken[count:]
        for chunk in freed:
            pool.seal(chunk)
        pool.allow_reclaim()
        pool.reclaim_idle()


@settings(examples(30), phases=set(Phase) - {Phase.explain})  # to explain a failure would take minutes
@given(
    steps=steps,
    chunks=st.sampled_from([24, 1024, 4096]),  # a busy lane gets spans of at most one, two, or eight chunks
    alpha=st.sampled_from([0, 1, 4]),
    peers=st.sampled_from([(), (INPUT_ROW, INPUT_ROW + 1)]),
)
def test_both_variants_give_the_same_chunks_to_lanes(
    steps: list[Step], chunks: int, alpha: int, peers: tuple[int, ...]
) -> None:
    geometry = replace(GEOMETRY, chunks=chunks)
    with new_slab(geometry) as first, new_slab(geometry) as second:
        pure, compiled = Sharer("pure", first, alpha, peers), Sharer("compiled", second, alpha, peers)
        held: list[Segment] = []
        now_ms, used = 100, 0
        for number, step in enumerate(steps):
            message = datagram(step.topic, bytes(step.size), partition_key=step.size or None)
            extents = [(index * len(message), len(message)) for index in range(step.message_count)]
            buffer = memoryview(message * step.message_count)
            found = []
            for sharer in (pure, compiled):
                sharer.change_memory(step, now_ms)
                found.append(_ingest(sharer.it, buffer, extents, number << 10, now_ms))
            assert found[1] == found[0]
            held += found[0][1]
            used = max([used, *(claimed.stop for claimed in claimed_chunks(first))])
            settled_count = len(held) * step.settled_percent // 100
            settled, held = held[:settled_count], held[settled_count:]
            for slab in (first, second):
                set_state(slab, settled, RunState.DELIVERED)
            assert compiled.opened_and_released == pure.opened_and_released
            assert _memory_of(compiled.it) == _memory_of(pure.it)
            now_ms += step.pause_ms
        assert _without_pointers(first, used) == _without_pointers(second, used)


def _ingest(
    it: Variant, buffer: memoryview, extents: list[tuple[int, int]], first_arrival: int, now_ms: int
) -> tuple[Any, list[Segment]]:
    ingested = it.lanes.ingest(buffer, extents, first_arrival, now_ms)
    it.lanes.close_due(now_ms)
    it.pool.allow_reclaim()
    return ingested, it.lanes.drain_closed()


def _memory_of(it: Variant) -> object:
    """Return how a pool has divided its memory."""
    pool, free = it.pool, it.pool._free
    holdings = {topic: list(each.spans.items()) for topic, each in pool.holdings.by_topic.items()}
    counts = [(each.chunk_count, each.freed_span_count) for each in pool.holdings.by_topic.values()]
    return holdings, counts, bytes(free._used), free.count, list(pool._sealed), list(pool._stuck), pool.stuck_count


def _without_pointers(slab: Slab, chunks: int | None = None) -> bytes:
    """Return the slab without the message headers, which have addresses, and without its time of creation.

    If `chunks` is given, return only that many chunks.
    """
    geometry = slab.geometry
    stop = geometry.file_size if chunks is None else slab.chunks_at + chunks * lay.CHUNK_BYTES
    return bytes(slab.view[128 : geometry.landing_at]) + bytes(slab.view[geometry.landing_slots_at : stop])


def _damage(segments: list[Segment], damage: int, *slabs: Slab) -> None:
    """Store a wrong length in the header of a record."""
    segment = segments[damage % len(segments)]
    field = (lay.RECORD_KEY_LENGTH, lay.RECORD_VALUE_LENGTH, lay.RECORD_EPOCH)[damage % 3]
    for slab in slabs:
        slab.words[(slab.chunk_at(segment.chunk) + segment.first + field) >> 2] = damage >> 3 & 0xFFFF
