"""Links between real sockets: orders of start, death of a side, full queues, refused frames."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections import deque
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from bruce_mp.errors import StartError
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.ipc.links import READ_BYTES, REPORTS, ROUTER_FROM_INPUTS, Links, dispatcher_link
from bruce_mp.ipc.loop import Loop
from bruce_mp.slab.runs import Segment
from support.children import child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.ipc.links import LinkSender

LINK = ROUTER_FROM_INPUTS
PARCELS = [
    Parcel(ParcelKind.SENDER, topic=3),
    Parcel(ParcelKind.RUNS, segments=(Segment(1, 2, 3, 4, 5, 6), Segment(7, 8, 9, 10, 11, 12))),
]
WITHIN_S = 5.0


class Process:
    """The links and the loop of one process, with the parcels and bytes that have arrived."""

    def __init__(self, directory: Path) -> None:
        self.loop = Loop()
        self.links = Links(directory, self.loop)
        self._parcels: deque[list[Parcel]] = deque()
        self.data: list[bytes] = []

    def bind(self, name: str = LINK) -> None:
        self.links.parcel_receiver(name, self._parcels.append)

    def bind_bytes(self, name: str) -> None:
        self.links.receiver(name, self.data.append)

    def sender(self, name: str = LINK) -> LinkSender:
        return self.links.sender(name)

    def serve(self, seconds: float = 0.05) -> None:
        """Serve for a time."""
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run()

    def receive(self) -> list[Parcel]:
        """Return the parcels of the next frame; fail without one in time."""
        if not self._parcels:
            timer = self.loop.call_later(WITHIN_S, self.loop.stop)
            self.loop.run(lambda: self.loop.stop() if self._parcels else None)
            timer.cancel()
        assert self._parcels, "Nothing came."
        return [parcel._replace(segments=tuple(parcel.segments)) for parcel in self._parcels.popleft()]

    @property
    def has_parcels(self) -> bool:
        self.serve()
        return bool(self._parcels)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """Yield a process whose links close at the end of the test without waiting."""
    made = Process(tmp_path)
    yield made
    made.links.close()


def number(count: int) -> list[Parcel]:
    return [Parcel(ParcelKind.SENDER, topic=count)]


def test_sent_parcels_are_received(process: Process) -> None:
    process.bind()
    process.sender().send(PARCELS)
    assert process.receive() == PARCELS
    assert not process.has_parcels


def test_a_sender_may_start_before_its_receiver(process: Process) -> None:
    sender = process.sender()
    for count in range(1000):
        sender.send(number(count))
    process.serve()
    process.bind()
    assert [process.receive() for _ in range(1000)] == [number(count) for count in range(1000)]


def test_an_empty_send_transmits_nothing(process: Process) -> None:
    process.bind()
    sender = process.sender()
    sender.send([])
    sender.send(PARCELS)
    assert process.receive() == PARCELS


def test_the_send_queue_is_unlimited(process: Process) -> None:
    process.bind()
    sender = process.sender()
    for count in range(20_000):
        sender.send(number(count))  # never blocks or refuses, although the receiver takes nothing
    assert [process.receive() for _ in range(20_000)] == [number(count) for count in range(20_000)]
    sender.send(PARCELS)
    assert process.receive() == PARCELS


def test_a_sender_that_has_sent_everything_does_not_wake_its_process(process: Process) -> None:
    process.bind()
    sender = process.sender()
    for count in range(2000):  # more than the receiver's queue takes, so that the loop watches the connection
        sender.send(number(count))
    for _ in range(2000):
        process.receive()
    rounds: list[None] = []
    process.loop.call_later(0.1, process.loop.stop)
    process.loop.run(lambda: rounds.append(None))
    assert len(rounds) <= 3


def test_frames_of_any_size_arrive_whole(process: Process) -> None:
    sizes = [0, 1, READ_BYTES - 5, READ_BYTES - 4, READ_BYTES, 3_000_000, 7]
    process.bind_bytes("bytes")
    sender = process.sender("bytes")
    for size in sizes:
        assert sender.send_bytes(bytes([size % 251]) * size)
    process.serve(0.3)
    assert process.data == [bytes([size % 251]) * size for size in sizes]


def test_a_busy_sender_leaves_time_for_other_sources(process: Process) -> None:
    process.bind_bytes("bytes")
    sender = process.sender("bytes")
    for _ in range(20):
        sender.send_bytes(bytes(READ_BYTES // 4))
    rounds = [0]
    process.loop.call_later(0.2, process.loop.stop)
    process.loop.run(lambda: rounds.append(len(process.data)))
    assert rounds[-1] == 20
    assert max(after - before for before, after in pairwise(rounds)) <= 4


def test_reports_beyond_the_queue_limit_stay_with_their_sender(process: Process) -> None:
    sender = process.sender(REPORTS)
    taken = 0
    while sender.send_bytes(b"sums"):
        taken += 1
        assert taken < 1000
    process.bind_bytes(REPORTS)
    process.serve()
    assert process.data == [b"sums"] * taken
    assert sender.send_bytes(b"again")


@pytest.mark.process
def test_a_sender_reconnects_after_its_receiver_restarts(tmp_path: Path, process: Process) -> None:
    """Frames accepted by the dead receiver are lost, as documented; later frames arrive in order."""
    sender = process.sender()
    for life in range(2):
        ready = tmp_path / f"ready-{life}"
        with child(_take_one_and_hang, tmp_path, ready) as receiver:
            deadline = time.monotonic() + 10
            while not ready.exists():
                assert time.monotonic() < deadline
                sender.send(number(life))
                process.serve(0.01)
            receiver.kill()
            receiver.join()
    process.bind()
    sender.send(number(100))
    sender.send(number(101))
    found: list[list[Parcel]] = []
    while not found or found[-1] != number(101):
        found.append(process.receive())
    assert found[-2:] == [number(100), number(101)]


def _take_one_and_hang(directory: Path, ready: Path) -> None:
    process = Process(directory)
    process.bind()
    process.receive()
    ready.touch()
    time.sleep(60)


def test_a_frame_of_which_a_dead_receiver_had_a_part_is_repeated(tmp_path: Path, process: Process) -> None:
    dead = Process(tmp_path)
    dead.bind_bytes("bytes")
    sender = process.sender("bytes")
    large = b"l" * 3_000_000
    sender.send_bytes(large)  # more than the queue of a receiver takes
    dead.links.close()
    process.serve()
    process.bind_bytes("bytes")
    sender.send_bytes(b"next")
    process.serve(0.3)
    assert process.data == [large, b"next"]


def test_the_end_of_a_sender_does_not_end_its_receiver(tmp_path: Path, process: Process) -> None:
    process.bind()
    for life in range(3):
        other = Process(tmp_path)
        other.sender().send(number(life))
        other.links.close()
        assert process.receive() == number(life)


def test_a_receiver_without_a_free_descriptor_accepts_its_senders_later(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bruce_mp.ipc.links._ACCEPT_RETRY_S", 0.02)
    process.bind()
    process.sender().send(PARCELS)
    accept, failures = socket.socket.accept, iter([OSError(errno.EMFILE, "Too many open files")])

    def fail_once(listener: socket.socket) -> tuple[socket.socket, object]:
        for error in failures:
            raise error
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    assert process.receive() == PARCELS
    assert "cannot accept a process: Too many open files" in caplog.text


def test_the_socket_file_of_a_dead_receiver_is_replaced(tmp_path: Path, process: Process) -> None:
    path = tmp_path / f"{LINK}.ipc"
    path.write_bytes(b"")
    process.bind()
    process.sender().send(PARCELS)
    assert process.receive() == PARCELS
    assert path.is_socket()


def test_an_impossible_socket_path_is_named(tmp_path: Path, process: Process) -> None:
    (tmp_path / f"{LINK}.ipc").mkdir()
    with pytest.raises(StartError, match=rf"{tmp_path}/{LINK}\.ipc cannot be created: .* Check that path"):
        process.bind()


def test_garbage_is_logged_and_skipped(tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture) -> None:
    process.bind()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / f"{LINK}.ipc"))
        for data in (b"x", b"\x63" + bytes(15), bytes(range(15))):
            stranger.sendall(struct.pack("<I", len(data)) + data)
        assert not process.has_parcels
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "ends within a parcel's header (1 bytes). The receiver ignores the frame" in caplog.text
    process.sender().send(PARCELS)
    assert process.receive() == PARCELS


def test_each_dispatcher_has_a_link_of_its_own(tmp_path: Path) -> None:
    receivers = [Process(tmp_path) for _ in range(3)]
    for slot, receiver in enumerate(receivers):
        receiver.bind(dispatcher_link(slot))
    router = Process(tmp_path)
    for slot in range(3):
        router.sender(dispatcher_link(slot)).send(number(slot))
    assert [receiver.receive() for receiver in receivers] == [number(slot) for slot in range(3)]
    for end in (router, *receivers):
        end.links.close()


def test_close_waits_briefly_for_queued_messages(tmp_path: Path, process: Process) -> None:
    ours = Process(tmp_path)
    process.bind()
    sender = ours.sender()
    for count in range(5000):
        sender.send(number(count))
    closing = Thread(target=ours.links.close, args=(5000,))
    closing.start()
    assert [process.receive() for _ in range(5000)] == [number(count) for count in range(5000)]
    closing.join()


def test_close_does_not_wait_for_an_absent_receiver(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.sender().send(PARCELS)
    start = time.monotonic()
    process.links.close(timeout_ms=200)
    assert 0.2 <= time.monotonic() - start < 2
