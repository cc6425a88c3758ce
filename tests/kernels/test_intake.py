"""The intake waits for more messages behind the first datagram, never beyond its deadline."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.kernels import (
    ChunkPool,
    Coalescing,
    DatagramIntake,
    DatagramReceiver,
    Failure,
    Lanes,
    PlainCounters,
    ProcessRow,
)
from bruce_mp.slab.landing_zone import landed_lengths
from bruce_mp.slab.tables import TopicTable
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter
from support.slabs import INPUT_ROW, SMALL, datagram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bruce_mp.kernels import RejectedMessage
    from bruce_mp.slab.file import Slab

    Pair = tuple[socket.socket, socket.socket]

COUNTERS: Final = PlainCounters(
    Counter.MsgReceived,
    Counter.UnixDgInputAgentForwardMsg,
    Counter.InputAgentProcessAnyPartitionMsg,
    Counter.InputAgentProcessPartitionKeyMsg,
)
TOO_LATE_S: Final = 5.0
LONG_MS: Final = 20_000
"""Longer than any wait: each ends after a fifth of a second."""


def an_intake(slab: Slab, linger_of: Callable[[bytes], int]) -> tuple[DatagramIntake, Lanes]:
    """Create an intake with the topic of `datagram()`."""
    assert TopicTable(slab).add(b"t1", 1)
    lanes = Lanes(slab, ChunkPool(slab, INPUT_ROW), TopicTable(slab), linger_of)
    largest = SMALL.landing_slot_size
    return DatagramIntake(
        slab, DatagramReceiver(slab), lanes, ProcessRow(slab, INPUT_ROW), max_size=largest, counters=COUNTERS
    ), lanes


@pytest.fixture
def intake(slab: Slab) -> DatagramIntake:
    """Create an intake with a long linger time."""
    return an_intake(slab, lambda _: 60_000)[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Open two sockets, for sender and receiver."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver:
        yield sender, receiver


@contextmanager
def later(delay_s: float, action: Callable[[], object]) -> Iterator[None]:
    """Call a function after a delay in another thread, unless the block ends earlier."""
    timer = Timer(delay_s, action)
    timer.start()
    yield
    timer.cancel()
    timer.join()


@pytest.mark.parametrize("wait_ms", range(7, 14))
def test_the_first_wait_ends_in_time_for_any_duration(pair: Pair, intake: DatagramIntake, wait_ms: int) -> None:
    """A late message is not received; without a timer the call would wait for it."""
    sender, receiver = pair
    sender.send(datagram())
    with later(TOO_LATE_S, lambda: sender.send(datagram())):
        now_ms = steady_ms()
        taken = intake.run(receiver.fileno(), 512, now_ms, now_ms + wait_ms)
    assert taken.committed_count + taken.uncommitted_count == 1


def test_run_never_exceeds_its_message_limit(pair: Pair, intake: DatagramIntake) -> None:
    sender, receiver = pair
    until_ms = steady_ms() + LONG_MS
    taken = 0
    with later(0.1, lambda: [sender.send(datagram()) for _ in range(3)]):
        for _ in range(5):
            sender.send(datagram())
        while taken < 7:
            landed, waiting, _ = intake.run(receiver.fileno(), 7 - taken, steady_ms(), until_ms)
            taken += landed + waiting
    assert taken == 7
    assert receiver.recv(1000) == datagram()


def test_full_runs_wait_only_briefly(pair: Pair, intake: DatagramIntake) -> None:
    sender, receiver = pair
    for _ in range(3):  # two of them fill a chunk
        sender.send(datagram(value=bytes(3000)))
    taken = 0
    with later(TOO_LATE_S, lambda: sender.send(datagram())):
        until_ms = steady_ms() + 60_000
        while taken < 3:
            landed, waiting, _ = intake.run(receiver.fileno(), 512, steady_ms(), until_ms)
            taken += landed + waiting
    assert taken == 3


@pytest.mark.parametrize("linger_ms", [20, 60])
def test_a_run_of_a_lane_that_lingers_again_is_due_in_time(pair: Pair, slab: Slab, linger_ms: int) -> None:
    """The run is due at its own time, not only at the check of idle lanes in each full second."""
    intake, lanes = an_intake(slab, lambda _: linger_ms)
    sender, receiver = pair
    for now_ms in (10_000, 10_500):
        sender.send(datagram())
        intake.run(receiver.fileno(), 512, now_ms, 0)
        lanes.close_due(now_ms + 490)
        assert [segment.records for segment in lanes.drain_closed()] == [1]


def test_a_changed_linger_applies_to_the_next_run_of_a_lane(pair: Pair, slab: Slab) -> None:
    intake, lanes = an_intake(slab, lambda _: 60_000)
    sender, receiver = pair
    sender.send(datagram())
    intake.run(receiver.fileno(), 512, 10_000, 0)
    lanes.close_runs()
    lanes.apply_lingers(lambda _: 20)
    sender.send(datagram())
    intake.run(receiver.fileno(), 512, 10_500, 0)
    lanes.close_due(10_990)
    assert [segment.records for segment in lanes.drain_closed()] == [1, 1]


def test_a_socket_shutdown_is_not_a_datagram(pair: Pair, slab: Slab, intake: DatagramIntake) -> None:
    """When the socket is shut down, a blocking call returns an empty datagram that no sender sent."""
    sender, receiver = pair
    sender.send(datagram())
    with later(0.2, lambda: receiver.shutdown(socket.SHUT_RD)):
        now_ms = steady_ms()
        taken = intake.run(receiver.fileno(), 512, now_ms, now_ms + LONG_MS)
    assert taken.committed_count + taken.uncommitted_count == 1
    assert len(landed_lengths(slab)) == taken.uncommitted_count


def test_an_empty_datagram_that_is_waited_for_is_malformed(pair: Pair, intake: DatagramIntake) -> None:
    sender, receiver = pair
    sender.send(datagram())
    rejections: list[RejectedMessage] = []
    with later(0.2, lambda: sender.send(b"")):
        until_ms = steady_ms() + LONG_MS
        while not rejections and steady_ms() < until_ms:
            taken = intake.run(receiver.fileno(), 512, steady_ms(), until_ms)
            rejections += taken.ingested.rejections if taken.ingested else []
    assert [each.failure for each in rejections] == [Failure.MALFORMED]


@pytest.fixture
def roomy_pair() -> Iterator[Pair]:
    """Open two sockets with a long queue between them."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", 0))
        sender.connect(receiver.getsockname())
        yield sender, receiver


def send_at_a_pace(sender: socket.socket, ticks: int) -> None:
    """Send five messages in each tick of about a millisecond."""
    for _ in range(ticks):
        for _ in range(5):
            sender.send(datagram())
        time.sleep(0.001)


def batches_at_a_pace(pair: Pair, intake: DatagramIntake, lanes: Lanes, row: ProcessRow) -> int:
    """Return the number of batches that the intake makes of the messages of a hundred ticks."""
    sender, receiver = pair
    before, taken, batches = row.version, 0, 0
    with later(0.0, lambda: send_at_a_pace(sender, 100)):
        until_ms = steady_ms() + LONG_MS
        while taken < 500 and steady_ms() < until_ms:
            landed, waiting, _ = intake.run(receiver.fileno(), 500 - taken, steady_ms(), until_ms)
            taken += landed + waiting
            batches += waiting > 0
            lanes.drain_closed()
    assert taken == 500
    return batches + (row.version - before) // 2  # the second term counts batches that the intake landed itself


def test_coalescing_receives_several_messages_at_a_fast_rate(roomy_pair: Pair, slab: Slab) -> None:
    """One of several tries succeeds on a busy machine; without naps each tick has at least one batch."""
    intake, lanes = an_intake(slab, lambda _: 60_000)
    intake.apply_config(Coalescing(max_nap_us=20_000, max_messages=500, max_bytes=1 << 20))
    row = ProcessRow(slab, INPUT_ROW)
    assert any(batches_at_a_pace(roomy_pair, intake, lanes, row) < 60 for _ in range(10))


def test_coalescing_does_not_exceed_the_deadline(pair: Pair, intake: DatagramIntake) -> None:
    """Naps may be long where runs linger long, but this call has an earlier deadline."""
    sender, receiver = pair
    intake.apply_config(Coalescing(max_nap_us=8_000_000, max_messages=1 << 30, max_bytes=1 << 40))
    with later(TOO_LATE_S, lambda: sender.send(datagram())):
        for wait_ms in range(20, 30):
            send_at_a_pace(sender, 1)
            now_ms = steady_ms()
            taken = intake.run(receiver.fileno(), 512, now_ms, now_ms + wait_ms)
            assert taken.committed_count + taken.uncommitted_count == 5
