from __future__ import annotations

import socket
from multiprocessing import Pipe
from typing import TYPE_CHECKING

import pytest

from bruce_mp.ipc.control_messages import (
    MAX_MESSAGE_BYTES,
    Broker,
    Control,
    ControlMessage,
    Dispatchers,
    Drain,
    PeerDied,
    Ready,
    RefreshMetadata,
    ReloadOutcome,
    Stop,
)
from bruce_mp.ipc.loop import Loop
from support.children import child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

MESSAGES: list[ControlMessage] = [
    Ready(),
    Dispatchers({0: Broker(1, "kafka1", 9092), 63: Broker(2**31 - 1, "b\u00fccher.example", 65535)}),
    PeerDied("input"),
    Drain(),
    Stop(),
    RefreshMetadata(),
]


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


def test_messages_arrive_as_sent(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = map(Control, ends)
    for message in MESSAGES:
        ours.send(message)
    assert [theirs.receive() for _ in MESSAGES] == MESSAGES


def test_receive_returns_none_and_send_is_ignored_after_the_peer_closes(
    ends: tuple[Connection, Connection],
) -> None:
    control = Control(ends[0])
    Control(ends[1]).send(Stop())
    ends[1].close()
    assert control.receive() == Stop()
    assert control.receive() is None
    control.send(Ready())  # the peer is closed, and the message is dropped


def test_send_does_not_wait_for_a_peer_that_reads_no_message(
    ends: tuple[Connection, Connection], caplog: pytest.LogCaptureFixture
) -> None:
    control = Control(ends[0])
    for size in (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES // 2):  # too long with its other fields, and then a full pipe
        for _ in range(3):
            control.send(ReloadOutcome(1, accepted=False, text="x" * size))
    outcome = Control(ends[1]).receive()
    assert isinstance(outcome, ReloadOutcome)
    assert len(outcome.text) == MAX_MESSAGE_BYTES // 2
    assert caplog.text.count("A control message, ReloadOutcome, is lost: it has ") == 3


def test_has_message_tells_if_receive_would_return_at_once(ends: tuple[Connection, Connection]) -> None:
    ours, theirs = map(Control, ends)
    found = [theirs.has_message]
    ours.send(Stop())
    found.append(theirs.has_message)
    theirs.receive()
    found.append(theirs.has_message)
    ends[0].close()
    found.append(theirs.has_message)
    assert found == [False, True, False, True]


@pytest.mark.process
def test_a_loop_is_notified_when_the_peer_is_killed(ends: tuple[Connection, Connection]) -> None:
    control, loop = Control(ends[0]), Loop()
    heard: list[ControlMessage | None] = []

    def on_word(_: int) -> None:
        heard.append(control.receive())
        if heard[-1] is None:
            loop.stop()

    loop.watch(control, on_word)
    with child(_say_ready_and_wait, ends[1]) as process:
        ends[1].close()
        assert ends[0].poll(10)
        process.kill()
        process.join()
        loop.run()
    assert heard == [Ready(), None]


def _say_ready_and_wait(connection: Connection) -> None:
    Control(connection).send(Ready())
    left, _right = socket.socketpair()
    left.recv(1)
