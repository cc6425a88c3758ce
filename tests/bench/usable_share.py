"""The share of a slab that an outage can use, and the share that a few stuck messages block.

    python -m bench.usable_share

The simulation uses the real ChunkPool and Lanes, and the router's choice of a partition, with simulated time and
traffic, and no processes.  Every case has three phases:

1. No message is acknowledged until one finds no room.  `usable` is the bytes of the held keys and values, divided by
   the bytes of the chunks.
2. All messages but the stuck ones are acknowledged.  `stuck` is the stuck part of the held bytes, `pinned` the share of
   the chunks that stuck messages keep from reuse.
3. As 1, beside the stuck messages: `usable_again`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.config.topics import BUILT_IN_LIMITS, UNBATCHED, BatchingKind, TopicBatching
from bruce_mp.kernels import ChunkPool, Lanes
from bruce_mp.protocol.client.messages import encode
from bruce_mp.router.cluster import TopicView
from bruce_mp.router.topics import Topic
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import read_run
from bruce_mp.slab.tables import TopicTable
from support.slabs import new_slab, set_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["CASES", "Case", "Share", "measure"]

LINGER_MS: Final = 25
TICK_MS: Final = 10
FILLER: Final = random.Random(3).randbytes(256 * 1024)


COMBINED: Final = TopicBatching(BatchingKind.COMBINED, BUILT_IN_LIMITS["standard"])
PER_TOPIC: Final = TopicBatching(BatchingKind.PER_TOPIC, BUILT_IN_LIMITS["standard"])


class Run(NamedTuple):
    """A run as the router sees it."""

    topic: bytes
    partition: int
    segment: Segment


@dataclass(frozen=True)
class Case:
    """`rate` messages a second over all `topics`, each of `smallest` to `largest` bytes of key and value.

    `keyed`: share of PartitionKey messages.  `known`: the topics have numbers; else all go through the shared lane.
    `is_stuck` returns True for a run that no broker acknowledges.
    """

    name: str
    is_stuck: Callable[[Run], bool]
    topics: int = 100
    rate: int = 20_000
    partitions: int = 12
    smallest: int = 20
    largest: int = 10_000
    keyed: float = 0.3
    known: bool = True
    batching: TopicBatching = COMBINED


class Share(NamedTuple):
    """Shares of the slab, from 0 to 1; see above."""

    usable: float
    stuck: float
    pinned: float
    usable_again: float


def topic_0(run: Run) -> bool:
    return run.topic == b"topic-0"


def every_twelfth_partition(run: Run) -> bool:
    return run.partition == 0


def every_third_partition(run: Run) -> bool:
    return run.partition % 3 == 0


SMALL: Final = 200

CASES: Final = (
    Case("20 topics, one stuck", topic_0, topics=20),
    Case("100 topics, one stuck", topic_0),
    Case("1000 topics, one stuck", topic_0, topics=1000),
    Case("100 topics, one partition of one stuck", lambda run: topic_0(run) and run.partition == 0),
    Case("100 topics, up to 200 bytes, one stuck", topic_0, largest=SMALL),
    Case("20 topics, PartitionKey, one broker of 3 stuck", every_third_partition, topics=20, keyed=1.0),
    Case("20 topics, AnyPartition, one broker of 3 stuck", every_third_partition, topics=20, keyed=0.0),
    Case("20 topics, AnyPartition, one broker of 12 stuck", every_twelfth_partition, topics=20, keyed=0.0),
    Case("the same, up to 200 bytes", every_twelfth_partition, topics=20, keyed=0.0, largest=SMALL),
    Case("the same, 2,000 messages/s", every_twelfth_partition, topics=20, keyed=0.0, largest=SMALL, rate=2000),
    Case(
        "the same, batching `none`",
        every_twelfth_partition,
        topics=20,
        keyed=0.0,
        largest=SMALL,
        rate=2000,
        batching=UNBATCHED,
    ),
    Case(
        "the same, batching `per_topic`",
        every_twelfth_partition,
        topics=20,
        keyed=0.0,
        largest=SMALL,
        rate=2000,
        batching=PER_TOPIC,
    ),
    Case("100 topics without metadata, one stuck", topic_0, known=False),
    Case("100 topics without metadata, up to 200 bytes, one stuck", topic_0, known=False, largest=SMALL),
    Case("20 quiet topics, 10 messages/s, one stuck", topic_0, topics=20, rate=10, keyed=0.0),
    Case("1000 quiet topics, 500 messages/s, one stuck", topic_0, topics=1000, rate=500, keyed=0.0),
    Case("1000 quiet topics, up to 200 bytes, one stuck", topic_0, topics=1000, rate=500, keyed=0.0, largest=SMALL),
)


class Simulation:
    """One input, and the router and brokers of its runs."""

    def __init__(self, case: Case, slab: Slab) -> None:
        self._case = case
        self._slab = slab
        table = TopicTable(slab)
        for number in range(case.topics if case.known else 0):
            table.add(b"topic-%d" % number, case.partitions)
        self._pool = ChunkPool(slab, lay.ROW_FIRST_INPUT)
        self._lanes = Lanes(slab, self._pool, table, lambda _: LINGER_MS)
        self._names = {table.number_of(name): name for name in table.partition_counts()}
        self._rng = random.Random(11)
        self._topics: dict[bytes, Topic] = {}
        self._now_ms = 0
        self._arrival = 0
        self.payload = 0
        self.runs: list[Run] = []

    def fill(self) -> None:
        """Receive until a message finds no room."""
        for batch in self._batches():
            extents, at = [], 0
            for message in batch:
                extents.append((at, len(message)))
                at += len(message)
            ingested = self._lanes.ingest(memoryview(b"".join(batch)), extents, self._arrival, self._now_ms)
            self._arrival += len(batch)
            self._take_runs()
            self._flush(everything=False)
            if ingested.no_room:
                self._lanes.close_all()
                self._take_runs()
                self._flush(everything=True)
                return

    def _batches(self) -> Iterator[list[bytes]]:
        due = 0.0
        while True:
            self._now_ms += TICK_MS
            due += self._case.rate * TICK_MS / 1000
            while due >= 1:
                count = min(64, int(due))
                due -= count
                yield [self._message() for _ in range(count)]
            self._lanes.close_due(self._now_ms)

    def _message(self) -> bytes:
        case, rng = self._case, self._rng
        size = int(case.smallest * (case.largest / case.smallest) ** rng.random())
        topic, value = b"topic-%d" % rng.randrange(case.topics), FILLER[:size]
        key = rng.randrange(2**32) if rng.random() < case.keyed else None
        return encode(topic, value, partition_key=key, timestamp_ms=self._now_ms)

    def _take_runs(self) -> None:
        for segment in self._lanes.drain_closed():
            run = read_run(self._slab, segment.chunk, segment.run)
            topic = self._names.get(run.topic) or self._name_after_header(segment, run.name_length)
            self.payload += segment.payload
            if run.partition_count:
                self.runs.append(Run(topic, run.partition_index, segment))
            else:
                self._bind(self._topic(topic), segment)

    def _topic(self, name: bytes) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(self._slab, 0, name, self._case.batching, self._rng)
            partitions = range(self._case.partitions)
            topic.update_view(TopicView(tuple(partitions), dict.fromkeys(partitions, 0)))
        return topic

    def _bind(self, topic: Topic, segment: Segment) -> None:
        for batch in topic.batch.add(segment, self._now_ms) if topic.batch is not None else [[segment]]:
            self._bind_batch(topic, batch)

    def _bind_batch(self, topic: Topic, batch: list[Segment]) -> None:
        partition = topic.next_partition(batch, lambda *_: True, self._now_ms) if batch else None
        self.runs += [Run(topic.name, partition, segment) for segment in batch if partition is not None]

    def _flush(self, *, everything: bool) -> None:
        for topic in self._topics.values():
            due_ms = topic.batch.due_ms if topic.batch is not None else None
            if topic.batch is not None and due_ms is not None and (everything or due_ms <= self._now_ms):
                self._bind_batch(topic, topic.batch.flush())

    def _name_after_header(self, segment: Segment, length: int) -> bytes:
        at = self._slab.chunk_at(segment.chunk) + segment.run + lay.RUN_HEADER
        return bytes(self._slab.view[at : at + length])

    def acknowledge(self) -> None:
        """Settle all messages that are not stuck, and reclaim their chunks."""
        stuck = [run for run in self.runs if self._case.is_stuck(run)]
        settled = [run.segment for run in self.runs if not self._case.is_stuck(run)]
        set_state(self._slab, settled, RunState.DELIVERED)
        self.payload = sum(run.segment.payload for run in stuck)
        self.runs = stuck
        for _ in range(self._slab.geometry.chunks):
            self._pool.reclaim(self._slab.geometry.chunks)

    @property
    def in_use(self) -> float:
        """Share of the chunks that are not free."""
        return 1 - self._pool.free_count / self._slab.geometry.chunks


def measure(case: Case, chunks: int) -> Share:
    """Return the shares of a case in a slab of `chunks` chunks."""
    with new_slab(Geometry(chunks=chunks, topics=2048)) as slab:
        return _measure(Simulation(case, slab), chunks * lay.CHUNK_BYTES)


def _measure(simulation: Simulation, size: int) -> Share:
    simulation.fill()
    held = simulation.payload
    simulation.acknowledge()
    stuck, pinned = simulation.payload, simulation.in_use
    simulation.fill()
    return Share(held / size, stuck / held, pinned, simulation.payload / size)


def main() -> None:
    """Print the table of the documents, for a slab of 64 MiB."""
    print("| traffic | usable | stuck bytes | pinned by them | usable afterwards |\n|---|---|---|---|---|")
    for case in CASES:
        print(f"| {case.name} | " + " | ".join(f"{share:.1%}" for share in measure(case, 8192)) + " |", flush=True)


if __name__ == "__main__":
    main()
