"""Links over real ipc: orders of start, death of a side, refused frames."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
import zmq

from bruce_mp.errors import StartError
from bruce_mp.ipc.frames import Parcel, ParcelKind, pack_parcels
from bruce_mp.ipc.links import REPORTS, ROUTER_FROM_INPUTS, Links, dispatcher_link
from bruce_mp.slab.runs import Segment
from support.children import child
from support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bruce_mp.ipc.links import LinkReceiver, LinkSender

LINK = ROUTER_FROM_INPUTS
PARCELS = [
    Parcel(ParcelKind.SENDER, topic=3),
    Parcel(ParcelKind.RUNS, segments=(Segment(1, 2, 3, 4, 5, 6), Segment(7, 8, 9, 10, 11, 12))),
]


class KeptLinks(Links):
    """Links that keep their ends until they are closed, as a process does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._ends: list[LinkSender | LinkReceiver] = []

    def sender(self, name: str) -> LinkSender:
        self._ends.append(made := super().sender(name))
        return made

    def receiver(self, name: str) -> LinkReceiver:
        self._ends.append(made := super().receiver(name))
        return made


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    """Yield links that close at the end of the test without blocking."""
    made = KeptLinks(tmp_path)
    yield made
    made.close()


def receive(receiver: LinkReceiver, within: float = 5.0) -> list[Parcel]:
    """Return the parcels of the next frame; fail without one in time."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if receiver.socket.poll(100) and (parcels := receiver.receive()):
            return [parcel._replace(segments=tuple(parcel.segments)) for parcel in parcels]
    raise AssertionError("Nothing came.")


def number(count: int) -> list[Parcel]:
    return [Parcel(ParcelKind.SENDER, topic=count)]


def test_sent_parcels_are_received(links: Links) -> None:
    receiver = links.receiver(LINK)
    sender = links.sender(LINK)
    sender.send(PARCELS)
    assert receive(receiver) == PARCELS
    assert receiver.receive() is None


def test_a_sender_may_start_before_its_receiver(links: Links) -> None:
    sender = links.sender(LINK)
    for count in range(1000):
        sender.send(number(count))
    receiver = links.receiver(LINK)
    assert [receive(receiver) for _ in range(1000)] == [number(count) for count in range(1000)]


def test_an_empty_send_transmits_nothing(links: Links) -> None:
    receiver = links.receiver(LINK)
    sender = links.sender(LINK)
    sender.send([])
    sender.send(PARCELS)
    assert receive(receiver) == PARCELS


def test_a_frame_without_parcels_does_not_hide_the_next_frame(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = links.receiver(LINK)
    frames = iter([b"", pack_parcels(number(7)), None])
    monkeypatch.setattr(receiver, "receive_bytes", lambda: next(frames))
    assert [parcel.topic for parcel in receiver.receive() or []] == [7]
    assert receiver.receive() is None


def test_the_send_queue_is_unlimited(links: Links) -> None:
    sender = links.sender(LINK)
    for count in range(20_000):
        sender.send(number(count))  # never blocks or refuses
    receiver = links.receiver(LINK)
    assert [receive(receiver) for _ in range(20_000)][-1] == number(19_999)


def test_reports_beyond_the_queue_limit_stay_with_their_sender(links: Links) -> None:
    sender = links.sender(REPORTS)
    taken = 0
    while sender.send_bytes(b"sums"):
        taken += 1
        assert taken < 1000
    receiver = links.receiver(REPORTS)
    for _ in range(taken):
        assert receiver.socket.poll(5000)
        assert receiver.receive_bytes() == b"sums"
    wait_until(lambda: sender.send_bytes(b"again"), "the link to have room again")


def test_a_link_whose_socket_file_was_removed_is_bound_again(
    tmp_path: Path, links: Links, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = links.receiver(LINK)
    earlier = links.sender(LINK)
    earlier.send(number(1))
    assert receive(receiver) == number(1)
    [file] = tmp_path.iterdir()
    for count in range(2, 5):
        file.unlink()
        later = links.sender(LINK)
        later.send(number(count))
        links.restore_files()
        assert receive(receiver) == number(count)
        earlier.send(number(0))
        assert receive(receiver) == number(0)
        assert caplog.text.count(f"The socket file {file} was gone") == count - 1
        links.restore_files()
    file.unlink()
    tmp_path.rename(tmp_path.with_name("moved"))
    links.restore_files()
    tmp_path.with_name("moved").rename(tmp_path)
    assert f"The socket {file} cannot be created: No such file or directory" in caplog.text


@pytest.mark.process
def test_a_sender_reconnects_after_its_receiver_restarts(tmp_path: Path, links: Links) -> None:
    """Frames accepted by the dead receiver are lost, as documented; later frames arrive in order."""
    sender = links.sender(LINK)
    for life in range(2):
        ready = tmp_path / f"ready-{life}"
        with child(_take_one_and_hang, tmp_path, ready) as process:
            deadline = time.monotonic() + 10
            while not ready.exists():
                assert time.monotonic() < deadline
                sender.send(number(life))
                time.sleep(0.01)
            process.kill()
            process.join()
    receiver = links.receiver(LINK)
    sender.send(number(100))
    sender.send(number(101))
    found: list[list[Parcel]] = []
    while not found or found[-1] != number(101):
        found.append(receive(receiver))
    assert found[-2:] == [number(100), number(101)]


def _take_one_and_hang(directory: Path, ready: Path) -> None:
    links = Links(directory)
    receive(links.receiver(LINK))
    ready.touch()
    time.sleep(60)


def test_the_socket_file_of_a_dead_receiver_is_replaced(tmp_path: Path, links: Links) -> None:
    path = tmp_path / f"{LINK}.ipc"
    path.write_bytes(b"")
    receiver = links.receiver(LINK)
    sender = links.sender(LINK)
    sender.send(PARCELS)
    assert receive(receiver) == PARCELS
    assert path.is_socket()


def test_an_impossible_socket_path_is_named(tmp_path: Path, links: Links) -> None:
    (tmp_path / f"{LINK}.ipc").mkdir()
    with pytest.raises(StartError, match=rf"{tmp_path}/{LINK}\.ipc cannot be created: .* Check the path"):
        links.receiver(LINK)


def test_garbage_is_logged_and_skipped(tmp_path: Path, links: Links, caplog: pytest.LogCaptureFixture) -> None:
    receiver = links.receiver(LINK)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PUSH) as stranger:
        stranger.connect(f"ipc://{tmp_path / LINK}.ipc")
        for data in (b"x", b"\x63" + bytes(15), os.urandom(15)):
            stranger.send(data)
        deadline = time.monotonic() + 5
        while len(caplog.records) < 3 and time.monotonic() < deadline:
            receiver.socket.poll(100)
            assert receiver.receive() is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "ends within a parcel's header, after 1 of 16 bytes. The receiver ignores the frame" in caplog.text
    sender = links.sender(LINK)
    sender.send(PARCELS)
    assert receive(receiver) == PARCELS


def test_each_dispatcher_has_a_link_of_its_own(links: Links) -> None:
    receivers = [links.receiver(dispatcher_link(slot)) for slot in range(3)]
    senders = [links.sender(dispatcher_link(slot)) for slot in range(3)]
    for slot, sender in enumerate(senders):
        sender.send(number(slot))
    assert [receive(receiver) for receiver in receivers] == [number(slot) for slot in range(3)]


def test_close_waits_briefly_for_queued_messages(tmp_path: Path) -> None:
    ours, theirs = KeptLinks(tmp_path), KeptLinks(tmp_path)
    receiver = theirs.receiver(LINK)
    sender = ours.sender(LINK)
    for count in range(5000):
        sender.send(number(count))
    ours.close(timeout_ms=5000)
    assert [receive(receiver) for _ in range(5000)][-1] == number(4999)
    theirs.close()


def test_close_does_not_wait_for_an_absent_receiver(tmp_path: Path) -> None:
    links = KeptLinks(tmp_path)
    sender = links.sender(LINK)
    sender.send(PARCELS)
    start = time.monotonic()
    links.close(timeout_ms=200)
    assert time.monotonic() - start < 2
