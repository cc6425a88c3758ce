"""The search for the sender of datagrams with wrong timestamps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from bruce_mp.discards.reporter import PeerCredentials
from bruce_mp.input.timestamps import ClockWatch
from bruce_mp.kernels import TopicReplacements
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter
from support.slabs import INPUT_ROW, new_slab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bruce_mp.kernels import Lanes

LANES = SimpleNamespace(drain_replaced=lambda: [TopicReplacements(b"t", 5, 0, 3)])


@pytest.fixture
def row() -> Iterator[ProcessRow]:
    with new_slab() as slab:
        yield ProcessRow(slab, INPUT_ROW)


def search_of(watch: ClockWatch, now_ms: int, peer: PeerCredentials | None = None) -> list[bool]:
    """Record wrong timestamps; return if credentials are needed at once, at the end of a second and after it."""
    watch.record_replaced_timestamps(lambda _: peer, now_ms)
    return [watch.needs_credentials(now_ms + after_ms) for after_ms in (0, 999, 1000)]


def test_an_unknown_sender_is_searched_for_a_second_in_thirty(row: ProcessRow) -> None:
    watch = ClockWatch(cast("Lanes", LANES), row)
    assert not watch.needs_credentials(0)
    searches = [search_of(watch, now_ms) for now_ms in (0, 29_999, 30_000)]
    assert searches == [[True, True, False], [False, False, False], [True, True, False]]
    assert row.counters[Counter.InputAgentReplaceTimestamp] == 9


def test_a_search_ends_when_the_sender_is_found(row: ProcessRow) -> None:
    watch = ClockWatch(cast("Lanes", LANES), row)
    assert search_of(watch, 0)[0]
    assert search_of(watch, 1, PeerCredentials(2**22, 1)) == [False, False, False]
