"""Slabs for tests: small slabs, datagrams in the landing zone, an input without a socket, and contents of records."""

from __future__ import annotations

import socket
from array import array
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import ChunkPool, Lanes
from bruce_mp.protocol.client.messages import encode
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import all_runs
from bruce_mp.slab.file import Geometry, Slab, create_slab
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.recovery import arrivals_in_chunks, close_open_runs
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import records_of, segment_words
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bruce_mp.kernels import Ingested, WindowOfTopic
    from bruce_mp.protocol.client.record_headers import Header
    from bruce_mp.slab.runs import Segment

SMALL: Final = Geometry(chunks=16, topics=16, partitions=16, landing_slots=16, landing_slot_size=4096)
INPUT_ROW: Final = lay.ROW_FIRST_INPUT
DISPATCHER_ROW: Final = lay.ROW_FIRST_DISPATCHER
CAPACITY: Final = lay.CHUNK_BYTES - lay.CHUNK_HEADER - lay.RUN_HEADER - lay.RECORD_HEADER
"""Most key and value bytes of a record that fits in one chunk."""


@contextmanager
def slab_file(geometry: Geometry = SMALL) -> Iterator[Path]:
    """Yield a new slab file, which is removed at the end."""
    with TemporaryDirectory(prefix="bruce-slab-") as directory:
        path = Path(directory) / "slab"
        create_slab(path, geometry, now_ms=0)
        yield path


@contextmanager
def new_slab(geometry: Geometry = SMALL) -> Iterator[Slab]:
    """Yield a new, mapped slab."""
    with slab_file(geometry) as path:
        slab = Slab(path)
        yield slab
        slab.close()


def datagram(
    topic: bytes = b"t1",
    value: bytes = b"",
    key: bytes = b"",
    partition_key: int | None = None,
    timestamp: int = 0,
    *,
    headers: Sequence[Header] = (),
) -> bytes:
    """Return a valid message."""
    return encode(topic, value, key, partition_key, timestamp_ms=timestamp, headers=headers)


def put_in_landing_zone(slab: Slab, datagrams: Sequence[bytes]) -> None:
    """Store datagrams in the landing zone as `recvmmsg()` does."""
    for slot, whole in enumerate(datagrams):
        data = whole[: slab.geometry.landing_slot_size]
        at = landing_zone.slot_at(slab, slot)
        slab.view[at : at + len(data)] = data
        length_at = slab.geometry.landing_at + lay.LANDING_HEADERS + slot * lay.MMSGHDR_BYTES + lay.MMSGHDR_LENGTH
        slab.words[length_at >> 2] = len(data)


def put_senders(slab: Slab, uids: Sequence[int]) -> None:
    """Store credentials beside datagrams as the kernel does: pids are 1000 + uid, gids 2000 + uid."""
    landing_zone.request_credentials(slab, len(uids))
    for slot, uid in enumerate(uids):
        at = landing_zone.control_at(slab, slot) >> 2
        header = [28, 0, socket.SOL_SOCKET, landing_zone.SCM_CREDENTIALS]  # struct cmsghdr; 28 bytes with the ids
        slab.words[at : at + 7] = memoryview(array("I", [*header, 1000 + uid, uid, 2000 + uid]))


class _NoTopics(TopicTable):
    """A topic table in which an input finds no topic."""

    def number_of(self, name: bytes) -> int:  # noqa: ARG002 - as in the table
        return 0


class Input:
    """An input without a socket. Its creation recovers the messages of its predecessor, as in a real input."""

    def __init__(
        self,
        slab: Slab,
        *,
        linger_ms: int = 1000,
        topics: Sequence[tuple[bytes, int]] = (),
        windows: WindowOfTopic = lambda _: None,
    ) -> None:
        self.slab = slab
        table = TopicTable(slab)
        for name, partitions in topics:
            table.add(name, partitions)
        self.row = ProcessRow.recover(slab, INPUT_ROW)
        self.pool = ChunkPool(slab, INPUT_ROW)
        self.lanes = Lanes(slab, self.pool, table, lambda _: linger_ms, windows=windows)
        self._unnumbered_lanes = Lanes(slab, self.pool, _NoTopics(slab), lambda _: linger_ms, windows=windows)
        self._closed: list[Segment] = []
        """Closed runs that precede those of `lanes`."""
        self.now_ms = 1
        close_open_runs(slab, INPUT_ROW)
        if landing_zone.landed_lengths(slab):
            self.admit(arrivals_in_chunks(slab, self.base))

    @property
    def base(self) -> int:
        return self.slab.longs[landing_zone.base_at(self.slab) >> 3]

    def receive(self, datagrams: Sequence[bytes]) -> Ingested:
        """Receive datagrams, at most as many as the landing zone has slots."""
        put_in_landing_zone(self.slab, datagrams)
        return self.admit()

    def receive_unnumbered(self, datagrams: Sequence[bytes]) -> Ingested:
        """Receive datagrams as before their topics had numbers: the runs have the topics' names."""
        self.lanes.close_runs()
        self._closed += self.lanes.drain_closed()
        numbered, self.lanes = self.lanes, self._unnumbered_lanes
        ingested = self.receive(datagrams)
        self._closed = self.close_all()
        self.lanes = numbered
        return ingested

    def admit(self, skip: frozenset[int] = frozenset()) -> Ingested:
        """Admit the datagrams of the landing zone."""
        extents = landing_zone.landed_extents(self.slab)
        self.row.begin_batch()
        ingested = self.lanes.ingest(self.slab.view, extents, self.base, self.now_ms, skip)
        increments = {int(Counter.MsgReceived): len(extents)}
        if ingested.no_room:
            increments[discarded(DiscardReason.NO_MEM)] = len(ingested.no_room)
        if ingested.rejections:
            increments[discarded(DiscardReason.MALFORMED)] = len(ingested.rejections)
        self.row.commit_landed(len(extents), increments)
        return ingested

    def close_all(self) -> list[Segment]:
        """Close all runs and return those handed over since the last call."""
        self.lanes.close_all()
        closed, self._closed = self._closed, []
        return closed + self.lanes.drain_closed()


class Content(NamedTuple):
    """A record in the slab."""

    topic: int
    arrival: int
    state: RunState
    holder: int
    timestamp: int
    partition_key: int
    key: bytes
    value: bytes


def contents(slab: Slab) -> list[Content]:
    """Return all records in order of their address."""
    found: list[Content] = []
    for chunk, offset, run in all_runs(slab):
        for at, record in records_of(slab, chunk, offset, run):
            word = record.word if run.state is RunState.SPLIT else run.word
            key_at = slab.chunk_at(chunk) + at + lay.RECORD_HEADER
            value_at = key_at + record.key_length
            found.append(
                Content(
                    run.topic,
                    record.arrival,
                    RunState(word & 0xFF),
                    word >> 8,
                    record.timestamp,
                    record.partition_key,
                    bytes(slab.view[key_at:value_at]),
                    bytes(slab.view[value_at : value_at + record.value_length]),
                )
            )
    return found


def set_state(slab: Slab, segments: Iterable[Segment], state_word: int) -> None:
    """Store a state word for segments, in place of the processes that would move them there."""
    for segment in segments:
        for at in segment_words(slab, segment):
            slab.words[at] = state_word
