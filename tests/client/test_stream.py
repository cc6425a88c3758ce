"""The stream clients against a stand-in for the daemon."""

from __future__ import annotations

import gc
import math
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from bruce_mp.client import (
    AttemptLostError,
    ClientClosedError,
    DaemonUnreachableError,
    FlushError,
    MessageRefusedError,
    MessageTooLargeError,
    Outcome,
    SendError,
    SendTimeoutError,
    StreamClient,
    TcpClient,
)
from bruce_mp.client.stream import MAX_BREAKS
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.client.barrier import BarrierStatus, Level
from bruce_mp.protocol.client.messages import Message
from support.processes import wait_until
from support.stream_daemon import StreamDaemon, answering_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bruce_mp.client.deadline import Deadline
    from bruce_mp.client.lock_hold import LockHold

pytestmark = pytest.mark.usefixtures("client_kernels")

LARGE = bytes(1 << 20)
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
"""Python 3.12 and later warn of forks with threads, which these tests use deliberately."""


@pytest.fixture
def daemon(path: Path) -> Iterator[StreamDaemon]:
    with StreamDaemon(path) as daemon:
        yield daemon


@contextmanager
def run_later(work: Callable[[], object]) -> Iterator[None]:
    """Run `work` in another thread 0.1 s after the start of the `with` block."""
    timer = threading.Timer(0.1, work)
    timer.start()
    yield
    timer.join()


def send_without_end(client: StreamClient) -> None:
    while True:
        client.send("t", LARGE)


def fails_with(kind: type[Exception], work: Callable[[], object]) -> Callable[[], None]:
    """Return work for a thread that must fail with this error."""

    def run() -> None:
        with pytest.raises(kind):
            work()

    return run


def values(messages: Sequence[object]) -> list[bytes]:
    return [message.value for message in messages if isinstance(message, Message)]


class Interrupted(Exception):  # noqa: N818  # as the exception of a signal handler
    pass


@contextmanager
def interrupt_after(name: str) -> Iterator[None]:
    """Raise Interrupted when the next call of a C function of this name returns, as a signal handler might."""

    def on_event(_: object, event: str, called: object) -> None:
        if event == "c_return" and getattr(called, "__name__", "") == name:
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(on_event)
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        sys.setprofile(None)


def test_an_interrupted_write_is_uncertain(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, timeout=10) as client:
        client.send("t", b"1")
        client.flush(10)
        with interrupt_after("send"):
            client.send("t", b"2")
        client.send("t", b"3")
        with pytest.raises(FlushError, match="1 messages"):
            client.flush(10)
        assert client.flush(10) == Outcome(1, 1, 0)
        assert client.stats().sent == 3
    assert sorted(values(daemon.wait(3))) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["acquire", "extend", "__exit__", "release"])
def test_an_interrupted_call_leaves_the_lock_free(daemon: StreamDaemon, path: Path, name: str) -> None:
    with StreamClient(path, timeout=10) as client:
        with suppress(pytest.fail.Exception), interrupt_after(name):  # the function may not be called
            client.send("t", b"1")
        assert not client._lock.locked()
        client.send("t", b"2")
    wait_until(lambda: b"2" in values(daemon.messages), "message 2")  # message 1 may have arrived or not


def test_a_flush_ends_in_time_while_another_thread_waits(daemon: StreamDaemon, path: Path) -> None:
    daemon.answering = False
    client = StreamClient(path)
    errors: list[Exception] = []

    def flush() -> None:
        try:
            client.flush(1)
        except FlushError as error:
            errors.append(error)

    threads = [threading.Thread(target=flush, daemon=True)]
    threads[0].start()
    daemon.wait_barrier()
    daemon.reading.clear()
    threads.append(threading.Thread(target=fails_with(SendError, lambda: send_without_end(client)), daemon=True))
    threads[1].start()
    threads[0].join(10)
    assert len(errors) == 1
    daemon.reading.set()
    client.timeout = 0
    client._link.interrupt()
    threads[1].join(10)
    with suppress(SendError):
        client.close()


def test_messages_arrive_unchanged(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path) as client:
        assert client.send("clicks", b"value", b"key", timestamp_ms=17)
        assert client.send(b"clicks", LARGE, partition_key=4294967295, timestamp_ms=-1)
    assert daemon.wait(2) == [
        Message(b"clicks", b"value", b"key", 17, None),
        Message(b"clicks", LARGE, b"", -1, 4294967295),
    ]
    stats = client.stats()
    assert (stats.sent, stats.waiting, dict(stats.dropped), stats.connections) == (2, 0, {}, 1)
    assert stats.sent_bytes == len(LARGE) + (28 + 6 + 5 + 3) + (32 + 6)


def test_tcp_client_delivers_messages_and_flushes() -> None:
    with StreamDaemon() as daemon, TcpClient(daemon.port) as client:
        client.send("t", b"v")
        assert values(daemon.wait(1)) == [b"v"]
        assert client.flush(10).delivered == 1


@pytest.mark.parametrize("port", [0, 65536])
def test_an_invalid_port_is_refused(port: int) -> None:
    with pytest.raises(SendError, match="1 to 65535"):
        TcpClient(port)


def test_the_client_does_not_connect_before_the_first_message(path: Path) -> None:
    with StreamClient(path) as client:
        assert client.stats().connections == 0


def test_no_daemon_is_explained_and_counted(path: Path) -> None:
    with StreamClient(path, timeout=0) as client, pytest.raises(DaemonUnreachableError, match="no such socket"):
        client.send("t", b"")
    with StreamClient(path, timeout=0, errors="count") as client:
        assert not client.send("t", b"")
        assert not client.send("t", b"")
        assert dict(client.stats().dropped) == {"unreachable": 2}


def test_connect_reports_an_absent_daemon_immediately(path: Path) -> None:
    with StreamClient(path, timeout=60, linger=1) as client:
        with pytest.raises(DaemonUnreachableError, match="no such socket"):
            client.connect(0.01)
        with StreamDaemon(path):
            client.connect(10)
            assert client.stats().connections == 1


def test_a_text_value_raises_a_type_error(path: Path) -> None:
    with StreamClient(path) as client, pytest.raises(TypeError, match="encode them"):
        client.send("t", "text")  # type: ignore[arg-type]


def test_send_waits_for_a_daemon_that_starts_late(path: Path) -> None:
    started: list[StreamDaemon] = []
    timer = threading.Timer(0.2, lambda: started.append(StreamDaemon(path)))
    timer.start()
    with StreamClient(path, timeout=10) as client:
        client.send("t", b"v")
    timer.join()
    with started[0] as daemon:
        assert values(daemon.wait(1)) == [b"v"]


def test_a_message_over_the_daemons_limit_is_not_sent(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, max_message=40) as client:
        client.send("t", bytes(11))
        with pytest.raises(MessageTooLargeError, match=r"41 bytes .* at most 40.*max_stream_size"):
            client.send("t", bytes(12))
        assert dict(client.stats().dropped) == {"too_large": 1}
    assert len(daemon.wait(1)) == 1


# --- back-pressure ---------------------------------------------------------------------------------------------------


def test_a_daemon_that_does_not_read_blocks_send_only_for_the_timeout(daemon: StreamDaemon, path: Path) -> None:
    daemon.reading.clear()
    with StreamClient(path, timeout=0.2, errors="count") as client:
        sent = 0
        while client.send("t", LARGE):
            sent += 1
        started, cpu = time.monotonic(), time.process_time()
        assert not client.send("t", b"late")
        assert time.monotonic() - started >= 0.19
        assert time.process_time() - cpu < 0.1
        assert dict(client.stats().dropped)["timeout"] >= 1
        assert client.stats().waiting <= 1  # partly written, so it must be completed
        daemon.reading.set()
        assert client.send("t", b"last")
        received = values(daemon.wait(sent + 1))
    assert received == [LARGE] * sent + [b"last"]


def test_send_with_timeout_0_drops_immediately_when_the_connection_is_full(daemon: StreamDaemon, path: Path) -> None:
    daemon.reading.clear()
    client = StreamClient(path, timeout=0)
    with pytest.raises(SendTimeoutError, match="did not read"):
        send_without_end(client)
    with pytest.raises(ClientClosedError, match=r"1 message was not sent.*did not read"):  # partly written
        client.close()


@pytest.mark.parametrize("timeout", [2_147_484, 1e10, math.inf])
def test_a_timeout_may_be_longer_than_the_longest_poll(daemon: StreamDaemon, path: Path, timeout: float) -> None:
    daemon.reading.clear()
    with StreamClient(path, timeout=timeout) as client, run_later(daemon.reading.set):
        client.send("t", LARGE)
        assert client.flush(timeout).received == 1


def test_a_wait_continues_after_the_longest_poll(
    daemon: StreamDaemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bruce_mp.client.deadline.MAX_POLL_MS", 10)
    with StreamClient(path, timeout=20) as client:
        daemon.reading.clear()
        with run_later(daemon.reading.set):
            client.send("t", LARGE)
        daemon.reading.clear()
        with run_later(daemon.reading.set):
            assert client.flush(20).received == 1


def test_send_without_a_time_limit_blocks_until_close(daemon: StreamDaemon, path: Path) -> None:
    daemon.reading.clear()
    client = StreamClient(path)
    sender = threading.Thread(target=fails_with(ClientClosedError, lambda: send_without_end(client)))
    sender.start()
    daemon.wait_unread(1)
    client.timeout = 0.1
    with suppress(ClientClosedError):  # of the message that was partly written
        client.close()
    sender.join(20)
    assert not sender.is_alive()
    with pytest.raises(ClientClosedError, match="client is closed"):
        client.send("t", b"")


# --- breaks ----------------------------------------------------------------------------------------------------------


def test_the_client_survives_a_daemon_restart(path: Path) -> None:
    with StreamClient(path, timeout=10) as client:
        with StreamDaemon(path) as daemon:
            client.send("t", b"1")
            daemon.wait(1)
        with StreamDaemon(path) as daemon:
            client.send("t", b"2")
            assert values(daemon.wait(1)) == [b"2"]
        assert client.stats().connections == 2


def test_tcp_client_sends_no_message_on_a_closed_connection() -> None:
    with StreamDaemon() as first:
        client = TcpClient(first.port, timeout=10)
        client.send("t", b"1")
        first.wait(1)
    with client, StreamDaemon(port=first.port) as second:
        client.send("t", b"2")
        assert values(second.wait(1)) == [b"2"]


def test_a_message_that_was_partly_written_is_sent_again_whole(daemon: StreamDaemon, path: Path) -> None:
    daemon.reading.clear()
    with StreamClient(path, timeout=0.1) as client:
        client.send("t", LARGE)
        with pytest.raises(SendTimeoutError):
            client.send("t", b"behind")
        daemon.cut()
        daemon.reading.set()
        client.timeout = 10
        client.send("t", b"after")
        assert values(daemon.wait(2)) == [LARGE, b"after"]


def test_a_partly_written_message_is_completed_without_a_further_call(daemon: StreamDaemon, path: Path) -> None:
    daemon.reading.clear()
    with StreamClient(path, timeout=0.1) as client:
        assert client.send("t", LARGE)
        assert client.stats().waiting == 1
        daemon.reading.set()
        assert values(daemon.wait(1)) == [LARGE]


def test_all_messages_of_a_lost_attempt_are_counted_as_dropped(daemon: StreamDaemon, path: Path) -> None:
    daemon.reading.clear()
    with StreamClient(path, timeout=0.1) as client:
        attempt = client.attempt()
        attempt.__enter__()
        assert client.send("t", LARGE)  # partly written
        daemon.cut()
        with pytest.raises(AttemptLostError):
            client.send("t", b"behind")
        stats = client.stats()
        assert (stats.sent, stats.waiting, dict(stats.dropped)) == (0, 0, {AttemptLostError.reason: 2})


def test_no_message_is_accepted_after_the_loss_of_an_attempt_with_linger(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, linger=60, timeout=10) as client:
        client.send("t", b"before")
        client.flush(10)
        attempt = client.attempt()
        attempt.__enter__()
        daemon.cut()
        while not client.stats().dropped:  # until the buffer is full enough for a write
            client.send("t", bytes(1000))
        with pytest.raises(AttemptLostError):
            client.send("t", b"behind")
        with pytest.raises(AttemptLostError):
            attempt.__exit__(None, None, None)
        client.send("t", b"after")
    assert values(daemon.wait(2)) == [b"before", b"after"]


@pytest.mark.parametrize("linger", [0.0, 0.01])
def test_a_message_that_always_breaks_the_connection_is_dropped(path: Path, linger: float) -> None:
    with socket.socket(socket.AF_UNIX) as listener, StreamClient(path, timeout=30, linger=linger) as client:
        listener.bind(str(path))
        listener.listen()

        def refuse() -> None:
            for _ in range(MAX_BREAKS):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)

        daemon = threading.Thread(target=refuse)
        daemon.start()
        if linger:  # `send()` only buffers the message
            client.send("t", LARGE)
        else:
            with pytest.raises(MessageRefusedError, match="closed 5 connections"):
                client.send("t", LARGE)
        daemon.join(20)
        wait_until(lambda: bool(client.stats().dropped), "the drop of the message", 20)
        assert dict(client.stats().dropped) == {"refused": 1}
        assert (client.stats().sent, client.stats().waiting) == (0, 0)


# --- lingering -------------------------------------------------------------------------------------------------------


def test_lingering_messages_are_sent_when_the_linger_expires(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, linger=0.02, timeout=10) as client:
        client.send("t", b"1")
        client.send("t", b"2")
        assert values(daemon.wait(2)) == [b"1", b"2"]
        client.send("t", b"3")
        assert values(daemon.wait(3)) == [b"1", b"2", b"3"]


def test_lingering_messages_are_written_together(
    daemon: StreamDaemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StreamClient(path, linger=60) as client:
        writes: list[int] = []
        write = client._link.write

        def note(data: memoryview, deadline: Deadline) -> int:
            writes.append(len(data))
            return write(data, deadline)

        monkeypatch.setattr(client._link, "write", note)
        for _ in range(100):
            client.send("t", b"v")
        assert client.stats().waiting == 100
        assert client.flush(10).received == 100
    assert len(writes) == 1


def test_close_writes_lingering_messages(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, linger=60) as client:
        client.send("t", b"v")
    assert values(daemon.wait(1)) == [b"v"]


def test_close_reports_and_counts_unsent_messages(path: Path) -> None:
    client = StreamClient(path, linger=60, timeout=0)
    client.send("t", b"v")
    with pytest.raises(ClientClosedError, match=r"1 message was not sent.*no such socket"):
        client.close()
    assert dict(client.stats().dropped) == {"closed": 1}
    client.close()


def test_an_error_in_the_with_block_is_not_hidden_by_close(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), StreamClient(path, linger=60, timeout=0) as client:
        assert client.send("t", b"v") / 0


def test_a_full_buffer_drops_new_messages_and_keeps_buffered_ones(path: Path) -> None:
    with StreamClient(path, linger=0.01, timeout=0, buffer=100, errors="count") as client:
        assert [client.send("t", b"%d" % number, timestamp_ms=0) for number in range(5)] == [True] * 3 + [False] * 2
        assert client.stats().waiting == 3
        with StreamDaemon(path) as daemon:
            assert values(daemon.wait(3)) == [b"0", b"1", b"2"]


@pytest.mark.process
def test_lingering_messages_are_written_at_interpreter_exit(daemon: StreamDaemon, path: Path) -> None:
    script = (
        "import sys; from bruce_mp.client import StreamClient; StreamClient(sys.argv[1], linger=60).send('t', b'last')"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True, timeout=30)
    assert values(daemon.wait(1)) == [b"last"]


# --- threads and forks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linger", [0.0, 0.005])
def test_threads_share_a_client(daemon: StreamDaemon, path: Path, linger: float) -> None:
    with StreamClient(path, linger=linger, timeout=30) as client:

        def send(name: int) -> None:
            for number in range(1000):
                client.send("t", b"%d:%d" % (name, number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, range(4)))
        assert client.flush(20).delivered == 4000
    received = values(daemon.wait(4000))
    for name in range(4):
        assert [value for value in received if value.startswith(b"%d:" % name)] == [
            b"%d:%d" % (name, number) for number in range(1000)
        ]


def test_a_client_with_timeout_0_waits_for_the_lock_of_another_thread(
    daemon: StreamDaemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bruce_mp.client.lock_hold.MIN_LOCK_WAIT_S", 20.0)
    with StreamClient(path, timeout=0) as client:
        with client._lock:
            sender = threading.Thread(target=lambda: client.send("t", b"v"))
            sender.start()
        sender.join(20)
        assert client.stats().sent == 1


@pytest.mark.process
@FORKS
def test_a_forked_child_reconnects_and_sends_no_message_of_its_parent(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, linger=60) as client:
        client.send("t", b"first")
        client.flush(10)
        client.send("t", b"parent")
        with client._lock:  # as another thread might at that moment
            pid = os.fork()
            if pid == 0:
                try:
                    client.send("t", b"child")
                    client.close()
                    os._exit(0 if client.stats().sent == 1 else 2)
                finally:
                    os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        daemon.wait(2)
    assert values(daemon.wait(3)) == [b"first", b"child", b"parent"]
    assert client.stats().connections == 1


@pytest.mark.process
@FORKS
def test_a_closed_client_stays_closed_in_a_child(daemon: StreamDaemon, path: Path) -> None:
    client = StreamClient(path)
    client.close()
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.raises(ClientClosedError):
                client.send("t", b"")
            with pytest.raises(FlushError, match="closed"):
                client.flush(1)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    gc.collect()


# --- flush -----------------------------------------------------------------------------------------------------------


def test_flush_returns_the_outcome_of_messages_since_the_previous_flush(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path) as client:
        for _ in range(3):
            client.send("t", b"")
        daemon.discards = {DiscardReason.BAD_TOPIC: 1, 99: 1}
        first = client.flush(10)
        assert (first.received, first.delivered, first.discarded) == (3, 1, 2)
        assert dict(first.reasons) == {"BAD_TOPIC": 1, "REASON_99": 1}
        client.send("t", b"")
        second = client.flush(10, level="received")
        assert (second.received, second.delivered, second.discarded, dict(second.reasons)) == (1, 1, 0, {})
        assert [barrier.level for barrier in daemon.barriers] == [Level.DELIVERED, Level.RECEIVED]
        assert 5_000 < daemon.barriers[0].limit_ms < 10_000
    assert client.stats().sent == 4


def test_flush_without_messages_returns_zero_counts(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path) as client:
        assert client.flush(10).received == 0


@pytest.mark.parametrize(
    ("status", "words"),
    [(BarrierStatus.TIMED_OUT, "time limit passed"), (BarrierStatus.SHUTTING_DOWN, "is shutting down")],
)
def test_an_incomplete_flush_raises_with_the_known_counts(
    daemon: StreamDaemon, path: Path, status: BarrierStatus, words: str
) -> None:
    with StreamClient(path) as client:
        client.send("t", b"")
        daemon.status = status
        with pytest.raises(FlushError, match=words) as raised:
            client.flush(10)
        assert raised.value.outcome is not None
        assert raised.value.outcome.received == 1
        daemon.status = BarrierStatus.DONE
        assert client.flush(10).received == 1


def test_a_late_answer_is_not_matched_with_the_next_flush(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path) as client:
        client.send("t", b"")
        daemon.answering = False
        with pytest.raises(FlushError, match="did not answer in time"):
            client.flush(0.1)
        daemon.answering = True
        client.send("t", b"")
        daemon.wait(2)
        daemon.answer_late()
        assert client.flush(10).received == 2


def test_flush_raises_when_the_connection_breaks(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, timeout=10) as client:
        client.send("t", b"1")
        daemon.wait(1)
        daemon.cut()
        client.send("t", b"2")
        with pytest.raises(FlushError, match=r"connection broke\. Of the 1 messages"):
            client.flush(10)
        client.send("t", b"3")
        assert client.flush(10).received == 2  # the second message and the third
        daemon.answering = False
        client.send("t", b"4")
        timer = threading.Timer(0.1, daemon.cut)
        timer.start()
        with pytest.raises(FlushError, match=r"connection broke\. Of the 1 messages"):
            client.flush(10)
        timer.join()
        daemon.answering = True
        assert client.flush(10).received == 0


def test_other_threads_send_while_a_flush_waits(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, timeout=10) as client:
        daemon.answering = False
        client.send("t", b"1")
        flushing = threading.Thread(target=fails_with(FlushError, lambda: client.flush(20)))
        flushing.start()
        daemon.wait_barrier()
        client.send("t", b"2")
        assert values(daemon.wait(2)) == [b"1", b"2"]
        with pytest.raises(FlushError, match="other threads"):
            client.flush(0.05)
        daemon.cut()
        flushing.join(20)
        assert not flushing.is_alive()


def test_all_flushes_that_wait_during_a_break_fail(
    daemon: StreamDaemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold(deadline: Deadline) -> LockHold:
        calls.release()
        return flush_lock_hold(deadline)

    with StreamClient(path, timeout=10) as client, ThreadPoolExecutor() as pool:
        calls, flush_lock_hold = threading.Semaphore(0), client._flush_lock_hold
        monkeypatch.setattr(client, "_flush_lock_hold", hold)
        daemon.answering = False
        client.send("t", b"1")
        flushes = [pool.submit(client.flush, 20) for _ in range(2)]
        for _ in flushes:
            calls.acquire()
        daemon.wait_barrier()
        daemon.answering = True
        daemon.cut()
        for flush in flushes:
            with pytest.raises(FlushError, match="Of the 1 messages"):
                flush.result()
        assert client.flush(20).received == 0


def test_a_flush_does_not_count_messages_sent_during_its_wait(daemon: StreamDaemon, path: Path) -> None:
    with StreamClient(path, timeout=10) as client:
        daemon.answering = False
        client.send("t", b"1")
        outcomes: list[Outcome] = []
        flushing = threading.Thread(target=lambda: outcomes.append(client.flush(20)))
        flushing.start()
        daemon.wait_barrier()
        client.send("t", b"2")
        daemon.wait(2)
        daemon.answer_late()
        flushing.join(20)
        assert [outcome.received for outcome in outcomes] == [1]
        daemon.cut()
        with pytest.raises(FlushError, match=r"connection broke\. Of the 1 messages"):
            client.flush(10)


def test_flush_without_a_daemon_raises(path: Path) -> None:
    with StreamClient(path) as client, pytest.raises(FlushError, match="no such socket"):
        client.flush(0.01)


def test_flush_rejects_an_invalid_answer(path: Path) -> None:
    with (
        answering_once(path, b"HTTP/1.1 400 Bad Request"),
        StreamClient(path) as client,
        pytest.raises(FlushError, match="no answer to a barrier"),
    ):
        client.flush(10)


def test_an_exception_does_not_wait_for_a_missing_daemon(path: Path) -> None:
    client = StreamClient(str(path), linger=0.01)
    client.send("clicks", b"value")
    with pytest.raises(FlushError), client:
        client.flush(timeout=0.1)
    assert client.stats().dropped == {"closed": 1}
