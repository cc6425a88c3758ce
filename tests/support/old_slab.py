"""The slab of a killed daemon of version 0.1.0: its messages, and the program that recorded it.

    PYTHONPATH=tests python -m support.old_slab DIRECTORY

runs the package in DIRECTORY, a checkout of commit 8bc2c39 with built kernels, against an embedded broker that accepts
some messages and refuses others, kills all processes at once, and writes the slab to `IMAGE`.
"""

from __future__ import annotations

import lzma
import os
import signal
import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bruce_mp.client import DatagramClient, StreamClient
from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.protocol.client.fence import encode_begin
from bruce_mp.protocol.client.messages import encode
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.salvage import Salvage
from support.stream_inputs import ONE_WORKER, connect, daemon_in

if TYPE_CHECKING:
    from bruce_mp.client import Client
    from support.daemon import Daemon

__all__ = [
    "ABANDONED",
    "IMAGE",
    "TOPICS",
    "SentMessage",
    "held_states",
    "messages_of",
    "old_daemon",
    "remove_newer_settings",
    "unpack",
]

IMAGE: Final = Path(__file__).parents[1] / "slab/images/0.1.0.xz"

MESSAGES: Final = {
    "delivered": 10,
    "refused": 20,
    "leaderless": 20,
    "in-flight": 20,
    "assigned": 20,
    "datagrams": 20,
    "stream": 20,
    "attempt": 20,
    "abandoned": 5,
}
"""Number of messages by topic; a topic is named after the fate of its messages before the kill."""
TOPICS: Final = tuple(MESSAGES)
ABANDONED: Final = "abandoned"
"""The topic of a fenced attempt without an end."""
_FIRST_MS: Final = 1_700_000_000_000
_NOT_LEADER: Final = 6
_LONG_MS: Final = 60_000
_NEWER_SETTINGS: Final = ("timestamps.",)
"""Settings of the tests' daemons that 0.1.0 does not know."""


class SentMessage(NamedTuple):
    """A message as its client sends it, and as Kafka stores it."""

    key: bytes
    value: bytes
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def messages_of(topic: str) -> list[SentMessage]:
    """Return the messages of a topic, in order; streams have record headers."""
    headers: tuple[tuple[str, bytes | None], ...] = (("unit", b"ms"), ("none", None)) if topic == "stream" else ()
    return [
        SentMessage(b"key %d" % number, b"%b %d" % (topic.encode(), number), _FIRST_MS + number, headers)
        for number in range(MESSAGES[topic])
    ]


def old_daemon(directory: Path, broker: DevBroker) -> Daemon:
    """Return a daemon with the settings of the recorded one, not started."""
    return daemon_in(directory, broker, **ONE_WORKER, **{"slab.size": "8m"})


def unpack(daemon: Daemon) -> None:
    """Put the recorded slab where a daemon adopts it."""
    daemon.slab_path.write_bytes(lzma.decompress(IMAGE.read_bytes()))


def held_states(path: Path) -> dict[str, dict[RunState, int]]:
    """Return the number of messages that a slab holds, by topic and state."""
    salvage = Salvage(path, is_live=True)
    with closing(salvage.slab):
        found = Counter((kept.topic.decode(), kept.state) for kept in salvage.records())
    states: dict[str, dict[RunState, int]] = {}
    for (topic, state), count in sorted(found.items()):
        states.setdefault(topic, {})[state] = count
    return states


# --- recording -------------------------------------------------------------------------------------------------------


def record(package: Path) -> None:
    """Run the old daemon, fill its slab, kill it, and write the image."""
    with tempfile.TemporaryDirectory() as name, DevBroker(brokers=2, topics=dict.fromkeys(TOPICS, 1)) as broker:
        for topic in TOPICS:
            broker.move_leader(topic, 0, 2 if topic == "leaderless" else 1)
        daemon = old_daemon(Path(name), broker)
        daemon.configure({"delivery.min_pause_delay_ms": _LONG_MS, "delivery.pause_rate_limit_initial_ms": _LONG_MS})
        remove_newer_settings(daemon.config_path)
        daemon.start(package)
        try:
            _fill(daemon, broker)
        finally:
            daemon.kill_all()
        print(held_states(daemon.slab_path), daemon.books())
        IMAGE.write_bytes(lzma.compress(daemon.slab_path.read_bytes(), preset=9))


def remove_newer_settings(config: Path) -> None:
    """Make a configuration file one of version 0.1.0."""
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith(_NEWER_SETTINGS)))


def _fill(daemon: Daemon, broker: DevBroker) -> None:
    """Send each topic's messages at the moment that leads to its fate."""
    with DatagramClient(daemon.socket_path) as client:
        _send(client, "delivered")
        daemon.wait_settled(MESSAGES["delivered"])
        broker.broker_down(2)
        _send(client, "leaderless")
        broker.inject(Fault(action=FaultAction.ERROR, topic="refused", code=_NOT_LEADER, times=None))
        _send(client, "refused")
        broker.wait_until(errors={_NOT_LEADER: 1})
        broker.inject(Fault(action=FaultAction.SILENCE, api=ApiKey.PRODUCE, topic="in-flight", ms=_LONG_MS))
        _send(client, "in-flight")
        daemon.wait_for(lambda: _are_all(daemon, "in-flight", RunState.IN_FLIGHT), "a request", 20)
        _suspend(daemon, "dispatcher-0")
        _send(client, "assigned")
        daemon.wait_for(lambda: _are_all(daemon, "assigned", RunState.ASSIGNED), "the router", 20)
        _suspend(daemon, "router")
        _send(client, "datagrams")
    _fill_streams(daemon)
    daemon.wait_received(sum(MESSAGES.values()))


def _fill_streams(daemon: Daemon) -> None:
    with StreamClient(daemon.stream_path) as client:
        _send(client, "stream")
        client.flush(60, "received")
    with StreamClient(daemon.stream_path) as client:
        with client.attempt("complete"):
            _send(client, "attempt")
        client.flush(60, "received")
    connection = connect(daemon)  # stays open until the process ends
    connection.sendall(encode_begin("incomplete"))
    for each in messages_of(ABANDONED):
        connection.sendall(encode(ABANDONED, each.value, each.key, timestamp_ms=each.timestamp))
    connection.detach()


def _send(client: Client, topic: str) -> None:
    for each in messages_of(topic):
        client.send(topic, each.value, each.key, timestamp_ms=each.timestamp, headers=each.headers)


def _are_all(daemon: Daemon, topic: str, state: RunState) -> bool:
    """Return True if all messages of a topic have this state."""
    return held_states(daemon.slab_path).get(topic) == {state: MESSAGES[topic]}


def _suspend(daemon: Daemon, process: str) -> None:
    os.kill(daemon.pids()[process], signal.SIGSTOP)


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
