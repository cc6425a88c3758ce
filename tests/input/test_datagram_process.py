"""The real input process: its socket, its control messages, its rest and its end."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bruce_mp import kernels
from bruce_mp.ipc.control_messages import Drain, Stop
from bruce_mp.slab.landing_zone import SO_TIMESTAMP
from bruce_mp.slab.layout import RunState
from support.input_process import WITHIN_S, InputProcess
from support.processes import wait_until
from support.slabs import datagram

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


@pytest.fixture
def process(tmp_path: Path) -> Iterator[InputProcess]:
    with InputProcess(tmp_path) as running:
        yield running


def test_sent_messages_are_published_to_the_router(process: InputProcess) -> None:
    for number in range(5):
        process.sender.send(datagram(b"t", b"%d" % number))
    found = 0
    while found < 5:
        segments = process.next_runs()
        assert len(kernels.claim(process.slab, segments, RunState.FILLED, RunState.DELIVERED)) == len(segments)
        found += sum(segment.records for segment in segments)
    assert found == 5
    assert process.books().held == {"input": 0, "router": 0, "queued": 0, "in_flight": 0, "spill": 0}


def wake_ups(pid: int) -> int:
    """Return the number of voluntary context switches of a process' threads."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(status.split("nonvoluntary")[0].rsplit(":", 1)[1]) for status in statuses)


def test_an_idle_input_wakes_up_only_for_its_heartbeat(process: InputProcess) -> None:
    pid = process.process.pid
    assert pid is not None
    process.sender.send(datagram(b"t", b"x"))
    process.sender.send(b"bad")
    process.next_runs()
    time.sleep(2)  # the idle lane gives up its chunk, the report of discards is sent: then there is nothing to do
    before = wake_ups(pid)
    time.sleep(5)
    assert wake_ups(pid) - before <= 20  # 5 heartbeats, with a margin


# --- the end ---------------------------------------------------------------------------------------------------------


def test_drain_receives_queued_messages_and_ends(process: InputProcess) -> None:
    for number in range(8):
        process.sender.send(datagram(b"t", b"%d" % number))
    process.close_intake()
    process.control.send(Drain())
    assert process.end() == 0
    assert process.deliver_all() == 8
    assert process.books().received == 8


def test_stop_receives_queued_messages_and_ends(process: InputProcess) -> None:
    for number in range(8):
        process.sender.send(datagram(b"t", b"%d" % number))
    process.control.send(Stop())
    assert process.end() == 0
    assert process.deliver_all() == 8


def test_a_full_slab_discards_and_reports(process: InputProcess) -> None:
    for number in range(1000):
        process.sender.send(datagram(b"t", b"%d" % number + bytes(1000)))
    process.wait_received(1000)
    books = process.books()
    assert books.discarded["NO_MEM"] == 1000 - sum(books.held.values()) > 0
    assert process.deliver_all() + books.discarded["NO_MEM"] == 1000
    process.sender.send(datagram(b"t", b"there is room again"))
    process.wait_received(1001)
    assert process.books().discarded == books.discarded


def test_block_mode_discards_nothing_and_receives_everything(tmp_path: Path) -> None:
    with InputProcess(tmp_path, "block") as process:
        sent = process.fill()
        received = process.books().received
        assert received < sent  # the others are in the kernel's queue
        delivered = 0
        for _ in range(3):
            delivered += process.deliver_all()
            sent += process.fill()
        process.close_intake()
        process.control.send(Drain())
        while process.process.is_alive():
            delivered += process.deliver_all()
            process.process.join(0.02)
        delivered += process.deliver_all()
        assert process.end() == 0
        assert delivered == process.books().received == sent
        assert process.books().discarded == {}


def test_a_blocked_drain_waits_for_room_until_stop(tmp_path: Path) -> None:
    """Messages that find no room even then are counted."""
    with InputProcess(tmp_path, "block") as process:
        sent = process.fill()
        received = process.books().received
        process.close_intake()
        process.control.send(Drain())
        process.process.join(0.5)
        assert process.process.is_alive()
        assert process.books().received == received
        process.control.send(Stop())
        assert process.end() == 0
        books = process.books()
        assert books.received == sent
        assert books.balanced
        assert books.discarded.keys() == {"NO_MEM"}


def test_a_large_message_that_waits_does_not_keep_the_process_busy(tmp_path: Path) -> None:
    """With a full slab and a blocked sender, the input only checks a hundred times a second."""
    with InputProcess(tmp_path, "block") as process:
        process.fill(8000)
        pid = process.process.pid
        assert pid is not None
        before = time.monotonic(), cpu_seconds(pid)
        time.sleep(1)
        elapsed, used = time.monotonic() - before[0], cpu_seconds(pid) - before[1]
        assert used / elapsed < 0.3


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_socket_that_cannot_be_read_is_reported_and_does_not_end_the_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with InputProcess(tmp_path, kind=socket.SOCK_STREAM) as process:
        text = ""

        def is_reported() -> bool:
            nonlocal text
            text += capfd.readouterr().err
            return "The datagram socket cannot be read: Invalid argument. The input retries in a second." in text

        wait_until(is_reported, "the report", WITHIN_S)
        process.control.send(Stop())
        assert process.end() == 0
        assert "Traceback" not in text


def test_receive_timestamps_are_replaced_by_sender_credentials(tmp_path: Path) -> None:
    """A service manager can request the time of receipt, but a control message has room for only one of the two."""
    process = InputProcess(tmp_path)
    process.listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    with process:
        assert process.listener.getsockopt(socket.SOL_SOCKET, SO_TIMESTAMP) == 0
        assert process.listener.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED) == 1
