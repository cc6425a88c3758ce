"""The datagram client against a real socket."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import (
    ClientClosedError,
    DaemonUnreachableError,
    DatagramClient,
    MessageTooLargeError,
    SendError,
    SendTimeoutError,
)
from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.client.messages import Message, Rejection, encode_message, parse_message

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("client_kernels")


def receive(daemon: socket.socket) -> Message | Rejection:
    return parse_message(daemon.recv(1 << 20))


def has_data(opened: socket.socket) -> bool:
    return bool(select.select([opened], [], [], 0)[0])


def fill(path: Path) -> None:
    with DatagramClient(path, timeout=0) as client:
        for _ in range(100_000):
            client.send("t", b"")


def test_a_message_arrives_unchanged(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path) as client:
        client.send("clicks", b"value", b"key", timestamp_ms=17)
        client.send(b"clicks", b"value", partition_key=4294967295, timestamp_ms=-1)
        client.send("clicks", b"", timestamp_ms=0, headers=[("a", "1"), (b"b", None)])
    assert receive(daemon) == Message(b"clicks", b"value", b"key", 17, None)
    assert receive(daemon) == Message(b"clicks", b"value", b"", -1, 4294967295)
    assert receive(daemon) == Message(b"clicks", b"", b"", 0, None, ((b"a", b"1"), (b"b", None)))


def test_send_uses_the_current_time_without_a_timestamp(daemon: socket.socket, path: Path) -> None:
    before = int(time.time() * 1000)
    with DatagramClient(path) as client:
        client.send("t", b"")
    message = receive(daemon)
    assert isinstance(message, Message)
    assert before <= message.timestamp_ms <= int(time.time() * 1000)


def test_the_client_survives_a_daemon_restart(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path) as client:
        client.send("t", b"1")
        daemon.close()
        with pytest.raises(DaemonUnreachableError, match="no process receives"):
            client.send("t", b"2")
        path.unlink()
        with pytest.raises(DaemonUnreachableError, match="no such socket"):
            client.send("t", b"3")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as restarted:
            restarted.bind(str(path))
            client.send("t", b"4")
            assert restarted.recv(100).endswith(b"4")


def test_a_socket_of_a_restarted_daemon_gets_the_next_message(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path) as client:
        for restart in range(3):
            client.send("t", b"%d" % restart)
            assert daemon.recv(100).endswith(b"%d" % restart)
            daemon.close()
            path.unlink()
            daemon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            daemon.bind(str(path))
    daemon.close()


def test_the_path_is_looked_up_again_while_the_old_socket_is_still_open(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path) as client, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        client.send("t", b"old")
        path.unlink()
        other.bind(str(path))
        other.setblocking(False)
        deadline = time.monotonic() + 10
        while not has_data(other):
            assert time.monotonic() < deadline, "all messages went to the socket that had the path before"
            client.send("t", b"new")
            time.sleep(0.3)
        assert other.recv(100).endswith(b"new")


@pytest.mark.process
def test_a_forked_child_uses_a_socket_of_its_own(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path) as client:
        inherited = client._socket
        pid = os.fork()
        if pid == 0:
            client.send("t", b"child")
            os._exit(0 if client._socket is not inherited and inherited.fileno() == -1 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        client.send("t", b"parent")
        assert client._socket is inherited
    assert [daemon.recv(100)[-6:] for _ in range(2)] == [b"\x05child", b"parent"]


def test_a_message_too_large_for_the_kernel_is_explained(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path, send_buffer=8192) as client:
        limit = client._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 32
        client.send("t", bytes(limit - 29))
        with pytest.raises(MessageTooLargeError, match=rf"{limit + 1} bytes.* at most {limit} .*send_buffer"):
            client.send("t", bytes(limit - 28))
    assert len(daemon.recv(1 << 20)) == limit


@pytest.mark.usefixtures("daemon")
def test_send_with_timeout_0_fails_immediately_when_the_queue_is_full(path: Path) -> None:
    with pytest.raises(SendTimeoutError, match="queue"):
        fill(path)


@pytest.mark.usefixtures("daemon")
def test_send_waits_for_a_full_queue_without_spinning(path: Path) -> None:
    with pytest.raises(SendTimeoutError):
        fill(path)
    with DatagramClient(path, timeout=0.3) as client:
        started, cpu = time.monotonic(), time.process_time()
        with pytest.raises(SendTimeoutError, match=r"0\.3 s"):
            client.send("t", b"")
        assert time.monotonic() - started >= 0.29
        assert time.process_time() - cpu < 0.1


@pytest.mark.parametrize("timeout", [4_294_968, 1e10, math.inf])
def test_a_timeout_may_be_longer_than_the_longest_poll(daemon: socket.socket, path: Path, timeout: float) -> None:
    with pytest.raises(SendTimeoutError):
        fill(path)
    timer = threading.Timer(0.1, lambda: daemon.recv(100))
    timer.start()
    with DatagramClient(path, timeout=timeout) as client:
        assert client.send("t", b"")
    timer.join()


@pytest.mark.process
def test_a_blocked_sender_resumes_when_the_queue_has_room(daemon: socket.socket, path: Path) -> None:
    with pytest.raises(SendTimeoutError):
        fill(path)
    script = "import sys; from bruce_mp.client import DatagramClient; DatagramClient(sys.argv[1]).send('t', b'last')"
    with subprocess.Popen([sys.executable, "-c", script, path]) as sender:
        while not daemon.recv(100).endswith(b"last"):
            pass
        assert sender.wait(10) == 0


def test_send_rejects_a_message_that_the_format_does_not_allow(daemon: socket.socket, path: Path) -> None:
    daemon.setblocking(False)
    with DatagramClient(path) as client:
        with pytest.raises(LocalProtocolError):
            client.send("", b"")
        with pytest.raises(LocalProtocolError):
            client.send("t", b"", partition_key=2**32)
    with pytest.raises(BlockingIOError):
        daemon.recv(100)


@pytest.mark.parametrize("path", ["", "/" + "x" * 107])
def test_a_path_that_no_socket_can_have_is_refused(path: str) -> None:
    with pytest.raises(SendError, match="1 to 107 bytes"):
        DatagramClient(path)


def test_a_socket_of_another_type_is_an_error(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, DatagramClient(path) as client:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(SendError, match="wrong type"):
            client.send("t", b"")


def test_no_permission_is_explained(path: Path) -> None:
    with DatagramClient(path) as client:
        text = str(client._explain(PermissionError(13, "Permission denied"), 1))
    assert "input.unix_datagram.mode in the daemon's configuration" in text


def test_send_rejects_a_message_that_the_daemon_would_truncate(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path) as client:
        client.send("t", bytes(65536 - 29))
        with pytest.raises(MessageTooLargeError, match=r"65537 bytes .* at most 65536.*max_datagram_size.*max_message"):
            client.send("t", bytes(65536 - 28))
    with DatagramClient(path, max_message=100_000) as client:
        client.send("t", bytes(65536))
    assert [len(daemon.recv(1 << 20)) for _ in range(2)] == [65536, 65565]


def test_an_encoded_message_of_larger_items_is_sized_by_its_bytes(daemon: socket.socket, path: Path) -> None:
    message = Message(b"t", b"1234567", b"", 1, None)
    encoded = memoryview(encode_message(message)).cast("i")
    with DatagramClient(path, max_message=encoded.nbytes) as client:
        client.send_encoded(encoded)
        assert client.stats().sent_bytes == encoded.nbytes
        assert parse_message(daemon.recv(1 << 20)) == message
    with DatagramClient(path, max_message=encoded.nbytes - 1) as client, pytest.raises(MessageTooLargeError):
        client.send_encoded(encoded)


@pytest.mark.usefixtures("daemon")
def test_dropped_messages_are_counted_by_reason(tmp_path: Path, path: Path) -> None:
    with DatagramClient(path, timeout=0, errors="count") as client:
        sent = 0
        while client.send("t", b"v"):
            sent += 1
        assert not client.send("t", bytes(100_000))
        stats = client.stats()
    assert (stats.sent, stats.sent_bytes, stats.waiting, stats.connections) == (sent, 30 * sent, 0, 0)
    assert dict(stats.dropped) == {"timeout": 1, "too_large": 1}
    with DatagramClient(tmp_path / "nobody", errors="count") as client:
        assert not client.send("t", b"v")
        assert dict(client.stats().dropped) == {"unreachable": 1}


def test_threads_share_a_client(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path, timeout=30) as client:

        def send(name: int) -> None:
            for number in range(100):
                client.send("t", b"%d:%d" % (name, number), timestamp_ms=name)

        with ThreadPoolExecutor(4) as pool:
            sending = [pool.submit(send, name) for name in range(4)]
            received = [receive(daemon) for _ in range(400)]
        assert [each.result() for each in sending] == [None] * 4
        assert client.stats().sent == 400
    values = [message.value for message in received if isinstance(message, Message)]
    for name in range(4):
        assert [value for value in values if value.startswith(b"%d:" % name)] == [
            b"%d:%d" % (name, number) for number in range(100)
        ]


def test_signals_do_not_extend_the_send_timeout(daemon: socket.socket, path: Path) -> None:
    with pytest.raises(SendTimeoutError):
        fill(path)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with DatagramClient(path, timeout=0.3) as client:
            started = time.monotonic()
            with pytest.raises(SendTimeoutError):
                client.send("t", b"")
            assert time.monotonic() - started < 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_send_on_a_closed_client_raises(daemon: socket.socket, path: Path) -> None:
    client = DatagramClient(path)
    client.close()
    with pytest.raises(ClientClosedError, match="closed"):
        client.send("t", b"")


@pytest.mark.process
def test_a_forked_child_resets_counters_and_ignores_locks_of_parent_threads(daemon: socket.socket, path: Path) -> None:
    with DatagramClient(path) as client:
        client.send("t", b"parent")
        with client._count_lock:
            pid = os.fork()
            if pid == 0:
                client.send("t", b"child")
                os._exit(0 if client.stats().sent == 1 else 1)
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.process
def test_the_client_works_without_any_other_package() -> None:
    script = (
        "import sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.partition('.')[0]\n"
        "        if top not in sys.stdlib_module_names and top != 'bruce_mp': raise ImportError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "import bruce_mp.client, bruce_mp.client.log_handler, bruce_mp.client.send\n"
        "print(sorted(n for n in sys.modules if n.startswith('bruce_mp.') and not n.startswith('bruce_mp.client')))"
    )
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    names = ("", ".answer_reader", ".barrier", ".fence", ".inquiry", ".key_hashes", ".messages", ".record_headers")
    parts = [f"client{name}" for name in names]
    modules = ["errors", "kernel_choice", "protocol", *(f"protocol.{part}" for part in parts)]
    assert shown.stdout.strip() == str([f"bruce_mp.{name}" for name in modules])
