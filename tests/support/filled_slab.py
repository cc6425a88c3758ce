"""A small slab with messages, stored by the daemon's own kernels."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.pipeline.stage_counts import recount
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry, Slab, create_slab
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.counters import Counter
from support.slabs import set_state

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.slab.runs import Segment

__all__ = ["FilledSlab", "any_partition"]

NOW_MS: Final = 1_800_000_000_000
GEOMETRY: Final = Geometry(chunks=32, topics=256, partitions=64, landing_slots=4, landing_slot_size=1024)


def any_partition(topic: bytes, value: bytes, timestamp: int = NOW_MS) -> bytes:
    """Return an AnyPartition message with an empty key."""
    body = struct.pack(">hh", 0, len(topic)) + topic + struct.pack(">qii", timestamp, 0, len(value)) + value
    return struct.pack(">ihh", 8 + len(body), 256, 0) + body


class FilledSlab:
    """A new slab at `path`; `known` topics have numbers, and 3 partitions each."""

    def __init__(self, path: Path, known: tuple[bytes, ...] = ()) -> None:
        create_slab(path, GEOMETRY, NOW_MS)
        self.slab = Slab(path)
        self.topics = TopicTable(self.slab)
        for topic in known:
            self.topics.add(topic, 3)
        self.input = ProcessRow(self.slab, lay.ROW_FIRST_INPUT)
        self._lanes = kernels.Lanes(
            self.slab, kernels.ChunkPool(self.slab, lay.ROW_FIRST_INPUT), self.topics, lambda _topic: 1000
        )
        self._arrival = 0

    def receive(
        self, topic: bytes, count: int, state: RunState | None = RunState.FILLED, value: bytes = b"value"
    ) -> list[Segment]:
        """Store `count` messages as one run in `state`; None leaves the run open."""
        message = any_partition(topic, value)
        data = memoryview(message * count)
        extents = [(index * len(message), len(message)) for index in range(count)]
        ingested = self._lanes.ingest(data, extents, self._arrival, NOW_MS)
        assert not ingested.no_room, "the slab of the test is too small"
        self._arrival += count
        self.input.commit_landed(0, {Counter.MsgReceived: count})
        if state is None:
            return []
        self._lanes.close_all()
        segments = self._lanes.drain_closed()
        set_state(self.slab, segments, state_word(state, 1))
        recount(self.slab)
        return segments

    def close(self) -> None:
        """Unmap the slab."""
        self.input.counters.release()
        self.slab.close()
