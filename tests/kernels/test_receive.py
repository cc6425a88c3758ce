"""The receiver on real sockets, with kills."""

from __future__ import annotations

import os
import random
import select
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.kernels import DatagramReceiver
from bruce_mp.slab import landing_zone
from bruce_mp.slab.file import Geometry, Slab
from support import processes
from support.children import child
from support.slabs import Input, contents, datagram, new_slab, slab_file

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOT: Final = 4096
GEOMETRY: Final = Geometry(chunks=4096, topics=16, partitions=16, landing_slots=8, landing_slot_size=SLOT)
KILLS: Final = 12
MESSAGES: Final = 48_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver:
        yield sender, receiver


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as made:
        yield made


def landed(slab: Slab) -> list[bytes]:
    found = [bytes(slab.view[at : at + length]) for at, length in landing_zone.landed_extents(slab)]
    landing_zone.empty_slots(slab, len(found))
    return found


def test_bursts_are_received_in_order(slab: Slab, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sender.setblocking(False)
    kernel = DatagramReceiver(slab)
    assert kernel.receive(receiver.fileno(), 99) == 0
    assert landed(slab) == []
    sent: list[bytes] = []
    got: list[bytes] = []
    while len(got) < 500:
        try:
            while True:
                sender.send(b"%d" % len(sent) * 20)
                sent.append(b"%d" % len(sent) * 20)
        except BlockingIOError:
            count = kernel.receive(receiver.fileno(), 99)
        batch = landed(slab)
        assert 0 < len(batch) == count <= GEOMETRY.landing_slots
        got += batch
    assert got == sent[: len(got)]


def test_an_empty_datagram_is_received(slab: Slab, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    for data in (b"", b"x", b""):
        sender.send(data)
    assert DatagramReceiver(slab).receive(receiver.fileno(), 99) == 3
    assert landed(slab) == [b"", b"x", b""]


def test_a_datagram_longer_than_a_slot_is_truncated(slab: Slab, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    for size in (SLOT, SLOT + 1, 3 * SLOT):
        sender.send(b"x" * size)
    sender.send(b"next")
    assert DatagramReceiver(slab).receive(receiver.fileno(), 99) == 4
    assert landed(slab) == [b"x" * SLOT] * 3 + [b"next"]


def test_the_largest_datagram_fits_the_default_send_buffer(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    size = sender.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
    with new_slab(Geometry.for_size(1 << 20, size)) as slab:
        data = os.urandom(size)
        sender.send(data)
        assert DatagramReceiver(slab).receive(receiver.fileno(), 99) == 1
        assert landed(slab) == [data]


def test_a_descriptor_of_a_pipe_is_an_error(slab: Slab) -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError, match="Socket operation on non-socket"):
            DatagramReceiver(slab).receive(read, 1)
    finally:
        os.close(read)
        os.close(write)


def test_a_new_receiver_keeps_landed_datagrams(slab: Slab, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sender.send(b"before the crash")
    DatagramReceiver(slab).receive(receiver.fileno(), 99)
    DatagramReceiver(slab)
    assert landed(slab) == [b"before the crash"]


def test_receive_stops_at_the_limit(slab: Slab, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    for number in range(5):
        sender.send(b"%d" % number)
    kernel = DatagramReceiver(slab)
    assert kernel.receive(receiver.fileno(), 2) == 2
    assert landed(slab) == [b"0", b"1"]
    assert kernel.receive(receiver.fileno(), 99) == 3
    assert landed(slab) == [b"2", b"3", b"4"]


# --- killed ----------------------------------------------------------------------------------------------------------
def take_in(path: Path, receiver: socket.socket) -> None:
    """Run an input process: recover, then receive all messages or until killed."""
    slab = Slab(path)
    process = Input(slab, topics=[(b"t1", 3)])
    kernel = DatagramReceiver(slab)
    while process.base < MESSAGES:
        select.select([receiver], [], [])
        if kernel.receive(receiver.fileno(), 99):
            process.admit()
            process.lanes.drain_closed()
            process.now_ms += 1


def send_all(sender: socket.socket) -> None:
    for number in range(MESSAGES):
        key = None if number % 3 else number
        sender.send(datagram(b"t1" if number % 2 else b"new", b"%d" % number, b"", key))


@pytest.mark.process
def test_kills_under_load_neither_lose_nor_duplicate_datagrams(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    delays = random.Random(7)
    with slab_file(GEOMETRY) as path, child(send_all, sender):
        kills = 0
        while kills < KILLS:
            with child(take_in, path, receiver) as process:
                process.join(delays.uniform(0.005, 0.05))
                if process.exitcode is not None:
                    break
                kills += 1
        assert kills > KILLS // 2  # else this machine ran out of messages too early
        with child(take_in, path, receiver) as process:
            process.join(processes.time_limit(30))
            assert process.exitcode == 0
        slab = Slab(path)
        assert Input(slab).base == MESSAGES
        found = contents(slab)
        assert sorted(content.arrival for content in found) == list(range(MESSAGES))
        assert all(int(content.value) == content.arrival for content in found)  # one sender: the numbers agree
        slab.close()


# --- senders --------------------------------------------------------------------------------------------------------


def test_requested_credentials_name_the_sender(slab: Slab, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    kernel = DatagramReceiver(slab)
    sender.send(b"before the socket passed credentials")
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    sender.send(b"x")
    landing_zone.request_credentials(slab, GEOMETRY.landing_slots)
    assert kernel.receive(receiver.fileno(), 99) == 2
    me = (os.getpid(), os.getuid(), os.getgid())
    senders = landing_zone.senders_of(slab, 2)
    assert senders is not None
    assert senders.pids[0] == 0
    assert senders.uids[0] == senders.gids[0] == 65534
    assert tuple(column[1] for column in senders) == me
    DatagramReceiver(slab)  # a successor's receiver keeps the credentials
    assert landing_zone.senders_of(slab, 2) == senders


def test_credentials_are_absent_unless_requested(slab: Slab, pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    sender.send(b"x")
    assert DatagramReceiver(slab).receive(receiver.fileno(), 99) == 1
    assert landing_zone.senders_of(slab, 1) is None
    assert landed(slab) == [b"x"]


def test_another_control_message_is_not_read_as_credentials(
    slab: Slab, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A service manager may request the time of receipt, which precedes the sender and leaves no room for it."""
    sender, receiver = pair
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    kernel = DatagramReceiver(slab)
    sender.send(b"x")
    landing_zone.request_credentials(slab, GEOMETRY.landing_slots)
    receiver.setsockopt(socket.SOL_SOCKET, landing_zone.SO_TIMESTAMP, 1)
    assert kernel.receive(receiver.fileno(), 1) == 1
    assert landing_zone.senders_of(slab, 1) == ([0], [landing_zone.NO_USER], [landing_zone.NO_USER])


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("asks", [False, True])
def test_passed_descriptors_are_not_accepted(slab: Slab, pair: tuple[socket.socket, socket.socket], asks: bool) -> None:
    """Otherwise any sender could exhaust the daemon's descriptors."""
    sender, receiver = pair
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    kernel = DatagramReceiver(slab)
    before = open_descriptors()
    for _ in range(5):
        socket.send_fds(sender, [b"x"], [0, 1, 2])
        if asks:
            landing_zone.request_credentials(slab, GEOMETRY.landing_slots)
        assert kernel.receive(receiver.fileno(), 99) == 1
        assert landed(slab) == [b"x"]
    assert open_descriptors() <= before  # garbage of an earlier test may be collected meanwhile
    if asks:
        senders = landing_zone.senders_of(slab, 1)
        assert senders is not None
        assert senders.uids == [os.getuid()]
