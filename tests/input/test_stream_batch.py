"""The messages that are appended together."""

from __future__ import annotations

import pytest

from bruce_mp.input.flush_groups import FlushGroup
from bruce_mp.input.stream_batch import StreamBatch
from bruce_mp.input.stream_client import UNIX, StreamClientState
from bruce_mp.kernels import ChunkPool
from support.slabs import INPUT_ROW, new_slab

SMALL, LARGE = 10, 20_000


@pytest.mark.parametrize("sizes", [[LARGE, SMALL], [SMALL, LARGE]])
def test_each_message_has_room_for_the_largest_of_the_batch(sizes: list[int]) -> None:
    """The next client has only small ones, so they alone would find more room."""
    client = StreamClientState(UNIX, FlushGroup(1))
    mixed, large = StreamBatch(), StreamBatch()
    for size in sizes:
        mixed.add(client, [(0, size)], size)
    large.add(client, [(0, LARGE)] * 2, LARGE)
    with new_slab() as slab:
        pool = ChunkPool(slab, INPUT_ROW)
        more = [(0, SMALL)] * 20
        assert mixed.count_fitting(pool, more, SMALL) == large.count_fitting(pool, more, SMALL) < 20
