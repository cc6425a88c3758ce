"""A daemon adopts the slab of version 0.1.0, and delivers each of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.slab.file import layout_version_of
from bruce_mp.slab.layout import LAYOUT_VERSION, RunState
from support.old_slab import ABANDONED, TOPICS, SentMessage, held_states, messages_of, old_daemon, unpack
from support.processes import run_bruce
from support.read_back import broker_fixture

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import DevBroker

pytestmark = pytest.mark.process

STATES: Final = {
    "abandoned": {RunState.OPEN: 5},
    "assigned": {RunState.ASSIGNED: 20},
    "attempt": {RunState.FILLED: 20},
    "datagrams": {RunState.FILLED: 20},
    "in-flight": {RunState.IN_FLIGHT: 20},
    "leaderless": {RunState.ROUTED: 20},
    "refused": {RunState.ROUTED_SENT: 20},
    "stream": {RunState.FILLED: 20},
}
"""The messages that the recorded slab holds, by topic and state."""
DELIVERED_BEFORE: Final = len(messages_of("delivered"))
broker = broker_fixture(topics=dict.fromkeys(TOPICS, 1), strict=True)


def stored(broker: DevBroker, topic: str) -> list[SentMessage]:
    """Return the records of a topic's only partition, in order."""
    (records,) = broker.fetch(topic)
    return [SentMessage(each.key or b"", each.value or b"", each.timestamp, each.headers) for each in records]


def test_daemon_delivers_every_message_when_it_adopts_a_slab_of_0_1_0(tmp_path: Path, broker: DevBroker) -> None:
    daemon = old_daemon(tmp_path, broker)
    unpack(daemon)
    assert held_states(daemon.slab_path) == STATES
    held = sum(sum(states.values()) for states in STATES.values())
    abandoned = len(messages_of(ABANDONED))
    with daemon:
        assert f"Adopted the slab {daemon.slab_path} with {held} messages to deliver" in daemon.log()
        books = daemon.wait_settled(DELIVERED_BEFORE + held)
        assert books.received == DELIVERED_BEFORE + held
        assert books.delivered == DELIVERED_BEFORE + held - abandoned
        assert books.discarded == {"ABANDONED_ATTEMPT": abandoned}
        for topic in TOPICS:
            is_held = topic not in ("delivered", ABANDONED)
            assert stored(broker, topic) == (messages_of(topic) if is_held else []), topic
        # An upgrade keeps the slab, in its old layout; the restart after a complete delivery replaces it.
        upgrade = run_bruce("upgrade", "--config", daemon.config_path)
        assert (upgrade.returncode, "first delivers the held messages" in upgrade.stderr) == (0, False)
        assert layout_version_of(daemon.slab_path) == 1
        assert daemon.terminate() == 0
        daemon.start()
        assert layout_version_of(daemon.slab_path) == LAYOUT_VERSION
        assert daemon.terminate() == 0
    assert [path.name for path in tmp_path.glob("slab*")] == ["slab.history"]
