"""A small slab and a long outage of some topics: stuck messages leave memory for flowing ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.devbroker.control import DevBroker
from bruce_mp.slab.chunks import chunk_headers, is_settled
from bruce_mp.slab.file import Slab
from bruce_mp.slab.layout import ChunkState
from support.daemon import Daemon
from support.read_back import read_back
from support.traffic import Load, assert_all_there, messages_of, start_senders

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

DEAD: Final = "dead"
LIVE: Final = tuple(f"live-{number}" for number in range(6))
SLAB_BYTES: Final = 8 << 20
SETTINGS: Final = {"slab.size": "8m", "input.unix_datagram.when_full": "block"}
DEAD_BROKER: Final = 3


def share_in_use(slab_path: Path) -> float:
    """Return the fraction of chunks that cannot be reclaimed."""
    slab = Slab(slab_path)
    try:
        heads = [(chunk, span) for chunk, state, span, _ in chunk_headers(slab) if state is not ChunkState.FREE]
        return sum(span for chunk, span in heads if not is_settled(slab, chunk)) / slab.geometry.chunks
    finally:
        slab.close()


def test_a_stuck_topic_does_not_fill_the_slab(tmp_path: Path) -> None:
    load = Load((DEAD, *LIVE * 8), senders=2, messages=10_000, largest=20_000)
    sent = [message for sender in range(load.senders) for message in messages_of(load, sender)]
    stuck = [message for message in sent if message.topic == DEAD]
    assert sum(len(message.value) for message in sent) > 5 * SLAB_BYTES
    with DevBroker(brokers=3, topics=dict.fromkeys((DEAD, *LIVE), 2)) as broker:
        for topic in (DEAD, *LIVE):
            for partition in range(2):
                broker.move_leader(topic, partition, DEAD_BROKER if topic == DEAD else partition + 1)
        broker.broker_down(DEAD_BROKER)
        with Daemon(tmp_path, broker.bootstrap, SETTINGS) as daemon:
            for sender in start_senders(load, daemon.socket_path):
                assert sender.wait(120) == 0
            live = load.total - len(stuck)
            daemon.wait_for(lambda: daemon.books().delivered == live, "all but the dead topic", 60)
            books = daemon.wait_consistent()
            assert sum(books.held.values()) == len(stuck)
            stuck_share = sum(len(message.value) for message in stuck) / SLAB_BYTES
            assert stuck_share < share_in_use(daemon.slab_path) < 2 * stuck_share
            broker.broker_up(DEAD_BROKER)
            books = daemon.wait_settled(load.total)
            assert books.delivered == books.received == load.total
        assert_all_there(load, read_back(broker, (DEAD, *LIVE)))
