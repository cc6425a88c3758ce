"""The status process, started for real: its sockets, its pipes, its end."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from bruce_mp.discards.reporter import DiscardReporter
from bruce_mp.errors import DiscardReason
from bruce_mp.ipc.control_messages import Drain, Ready, RefreshMetadata, Stop
from bruce_mp.ipc.links import REPORTS, Links
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.telemetry.counters import Counter
from support.processes import wait_until
from support.status_process import StatusProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.filled_slab import FilledSlab

pytestmark = pytest.mark.process
TIMEOUT_S = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def status(filled: FilledSlab, tmp_path: Path, listener: socket.socket) -> Iterator[StatusProcess]:
    with StatusProcess(filled.slab.path, tmp_path, listener) as started:
        assert started.connection.poll(TIMEOUT_S)
        assert started.control.receive() == Ready()
        yield started


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self.host)


def connect(listener: socket.socket) -> http.client.HTTPConnection:
    if listener.family == socket.AF_UNIX:
        return UnixConnection(listener.getsockname())
    host, port = listener.getsockname()
    return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)


def ask(listener: socket.socket, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = connect(listener)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def ask_json(listener: socket.socket, path: str) -> Any:
    status, body = ask(listener, path)
    assert status == 200, body
    return json.loads(body)


def test_the_process_serves_pages_and_updates_its_row(
    filled: FilledSlab, status: StatusProcess, listener: socket.socket
) -> None:
    filled.receive(b"news", 3, RunState.QUEUED)
    assert ask_json(listener, "/books/json")["held"]["queued"] == 3
    (line,) = ask_json(listener, "/processes/json")["processes"]
    assert (line["name"], line["pid"], line["state"]) == ("status", status.process.pid, "running")
    wait_until(
        lambda: ProcessRow(filled.slab, lay.ROW_STATUS).counters[Counter.MongooseHttpRequest] == 2,
        "both requests counted",
    )


def test_a_discard_report_that_no_client_reads_is_counted(
    filled: FilledSlab, tmp_path: Path, listener: socket.socket
) -> None:
    with StatusProcess(filled.slab.path, tmp_path, listener, report_interval_s=1):
        counters = ProcessRow(filled.slab, lay.ROW_STATUS).counters
        wait_until(lambda: counters[Counter.NoDiscardQuery] > 0, "an unread report")


def test_the_process_writes_its_heartbeat(filled: FilledSlab, status: StatusProcess) -> None:
    at = filled.slab.row_at(lay.ROW_STATUS) + lay.ROW_HEARTBEAT_MS
    first = filled.slab.read_signed(at)
    assert abs(first - time.time() * 1000) < 60_000
    wait_until(lambda: filled.slab.read_signed(at) > first, "another heartbeat")


def test_discards_travel_from_a_reporter_to_the_page(
    status: StatusProcess, listener: socket.socket, tmp_path: Path
) -> None:
    links = Links(tmp_path)
    sender = links.sender(REPORTS)
    sender.send_bytes(b"no events")
    reporter = DiscardReporter(sender, prefix_size=4)
    reporter.record(DiscardReason.MALFORMED, sample=b"rubbish", count=3)
    reporter.flush()

    def report() -> Any:
        return ask_json(listener, "/discards/json")["unfinished_report"]

    wait_until(lambda: report()["malformed_msg_count"] == 3, "the discards are on the page")
    assert report()["recent_malformed"] == ["cnViYg=="]
    links.close()


def test_a_metadata_update_is_forwarded_to_the_supervisor(status: StatusProcess, listener: socket.socket) -> None:
    assert ask(listener, "/metadata_update", "POST")[0] == 200
    assert status.connection.poll(TIMEOUT_S)
    assert status.control.receive() == RefreshMetadata()


def test_stop_ends_the_process_and_the_socket_stays_open(status: StatusProcess, listener: socket.socket) -> None:
    status.control.send(Drain())
    assert ask(listener, "/server_info/json")[0] == 200  # the status process ignores Drain
    status.control.send(Stop())
    status.process.join(TIMEOUT_S)
    assert status.process.exitcode == 0
    waiting = connect(listener)
    waiting.connect()  # for the next process
    waiting.close()


def test_the_process_ends_with_the_supervisor(status: StatusProcess) -> None:
    status.connection.close()
    status.process.join(TIMEOUT_S)
    assert status.process.exitcode == 0


def test_a_second_process_continues_after_a_killed_one(
    filled: FilledSlab, status: StatusProcess, listener: socket.socket, tmp_path: Path
) -> None:
    ask(listener, "/counters/json")
    status.process.kill()
    status.process.join(TIMEOUT_S)
    with StatusProcess(filled.slab.path, tmp_path, listener) as second:
        (line,) = ask_json(listener, "/processes/json")["processes"]
        assert (line["pid"], line["restarts"]) == (second.process.pid, 1)
        counters = {line["name"]: line["value"] for line in ask_json(listener, "/counters/json")["counters"]}
        assert counters["MongooseHttpRequest"] >= 2


def test_the_process_serves_a_unix_socket(filled: FilledSlab, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "http"))
        listener.listen()
        with StatusProcess(filled.slab.path, tmp_path, listener) as status:
            assert ask_json(listener, "/server_info/json")["version"]
            status.control.send(Stop())
            status.process.join(TIMEOUT_S)
            assert status.process.exitcode == 0
        assert (tmp_path / "http").exists()
