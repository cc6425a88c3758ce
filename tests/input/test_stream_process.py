"""A stream worker between its sockets and the slab, without its loop."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import select
import socket
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.config.inputs import Input, Streams, UnixStream
from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka, TopicShare
from bruce_mp.input import stream_connections
from bruce_mp.input.stream_process import _StreamWorker
from bruce_mp.ipc.control_messages import Control
from bruce_mp.ipc.start import Start
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.client.barrier import Level, encode_barrier
from bruce_mp.protocol.client.fence import encode_begin, encode_end
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter
from support.examples import examples
from support.slabs import contents, datagram, new_slab
from support.streams import WORKER_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator

GEOMETRY: Final = Geometry(chunks=16, topics=16, partitions=16, landing_slots=4, landing_slot_size=4096)
CONFIG: Final = Config(
    kafka=Kafka(bootstrap_servers=("broker:9092",)),
    input=Input(streams=Streams(when_full="block")),
    topic_share=TopicShare(alpha=0),
)


@contextmanager
def a_listener(directory: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        found.bind(str(directory / "s"))
        found.listen()
        yield found


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with a_listener(tmp_path) as found:
        yield found


@pytest.fixture
def worker(tmp_path: Path, listener: socket.socket) -> Iterator[_StreamWorker]:
    with a_worker(tmp_path, listener) as made:
        yield made


@contextmanager
def a_worker(directory: Path, listener: socket.socket, geometry: Geometry = GEOMETRY) -> Iterator[_StreamWorker]:
    ours, theirs = Pipe()
    with new_slab(geometry) as slab, ours, theirs:
        start = Start("input-1", WORKER_ROW, CONFIG, directory, input_rows=(WORKER_ROW,), unix_stream=listener)
        made = _StreamWorker(start, slab, Control(theirs))
        made._connections._listeners.listen()
        yield made
        for descriptor in list(made._connections._connections):
            made._connections._close(descriptor)
        made._connections._epoll.close()
        made._links.close()


def connect(worker: _StreamWorker, listener: socket.socket) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(10)
    client.connect(listener.getsockname())
    worker._connections.serve()
    return client


def test_the_buffer_for_reads_begins_at_a_page(worker: _StreamWorker) -> None:
    """Elsewhere, some processors copy slowly into it: see docs/decisions/measurements.md."""
    begin = ctypes.addressof(ctypes.c_char.from_buffer(worker._connections._buffer))
    assert begin % mmap.PAGESIZE == 0


def test_only_one_client_is_retried_while_the_slab_has_no_room(
    worker: _StreamWorker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [connect(worker, listener) for _ in range(3)]
    for client in clients:
        client.sendall(datagram(value=bytes(4000)) * 40)
        worker._connections.serve()
    assert len(worker._connections._paused) == 3
    looked: list[int] = []
    monkeypatch.setattr(worker._connections, "_admit_rest", looked.append)
    worker._connections._retry()
    assert looked == list(worker._connections._connections)[:1]
    for client in clients:
        client.close()


def test_an_event_of_a_closed_connection_is_ignored(
    worker: _StreamWorker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(worker, listener)
    (descriptor,) = worker._connections._connections
    worker._connections._close(descriptor)
    client.close()

    class Epoll:
        def poll(self, *_: object) -> list[tuple[int, int]]:
            return [(descriptor, select.EPOLLHUP)]

    with monkeypatch.context() as context:
        context.setattr(worker._connections, "_epoll", Epoll())
        worker._connections.serve()


def test_a_sender_removed_from_the_allow_list_is_disconnected(worker: _StreamWorker, listener: socket.socket) -> None:
    """This holds also for an old connection, and for one that waits."""
    clients = [connect(worker, listener) for _ in range(2)]
    clients[0].sendall(datagram(value=bytes(4000)) * 40)
    worker._connections.serve()
    assert len(worker._connections._paused) == 1
    worker.apply_config(allowing(os.getuid()), CONFIG)
    assert len(worker._connections._connections) == 2
    worker.apply_config(allowing(os.getuid() + 1), CONFIG)
    assert (len(worker._connections._connections), len(worker._connections._paused)) == (0, 0)
    assert worker._row.counters[Counter.UnixStreamInputNotAllowed] == 2
    assert clients[1].recv(1) == b""
    for client in clients:
        client.close()


_frames = st.one_of(
    st.builds(lambda value: datagram(value=value), st.binary(max_size=60)),
    st.builds(lambda key: datagram(partition_key=key), st.integers(0, 99)),
    st.sampled_from([datagram(b"new"), b"\0\0\0\x08\1\1\0\7", encode_barrier(b"01234567", Level.RECEIVED, 1000)]),
    st.integers(3000, 9000).map(lambda size: datagram(value=bytes(size))),
)


def test_events_that_the_intake_reports_are_served_without_another_poll(
    worker: _StreamWorker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand ready connections, another poll would report other events."""
    monkeypatch.setattr(worker._connections, "serve", lambda: pytest.fail("another poll"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(listener.getsockname())
        worker._connections._on_wakeup()
        assert len(worker._connections._connections) == 1


def test_the_intake_forgets_a_closed_connection(worker: _StreamWorker, listener: socket.socket) -> None:
    """The next connection may get the same descriptor."""
    client = connect(worker, listener)
    client.sendall(datagram())
    worker._connections._on_wakeup()
    assert len(worker._connections._intake._sources) == 1
    client.close()
    worker._connections._on_wakeup()
    assert not worker._connections._intake._sources


@examples(15)
@given(
    streams=st.lists(st.lists(_frames, max_size=12), min_size=1, max_size=3),
    ends=st.lists(st.sampled_from([b"", b"\0\0", b"\0\0\0\1", datagram()[:-1]]), min_size=3, max_size=3),
    cuts=st.lists(st.integers(1, 4000), min_size=1, max_size=8),
)
def test_the_intake_changes_nothing_about_received_messages(
    streams: list[list[bytes]], ends: list[bytes], cuts: list[int]
) -> None:
    """A worker that reads its connections with and without the intake counts and appends the same."""
    sent = [b"".join(frames) + end for frames, end in zip(streams, ends, strict=False)]
    with_intake, without = (outcome_of(sent, cuts, uses_intake=uses_intake) for uses_intake in (True, False))
    assert with_intake == without


def outcome_of(
    sent: list[bytes], cuts: list[int], *, uses_intake: bool
) -> tuple[dict[str, int], list[tuple[int, int, bytes]]]:
    """Return the counters and records of a worker after clients sent these bytes in pieces and disconnected."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        listening = stack.enter_context(a_listener(directory))
        worker = stack.enter_context(a_worker(directory, listening))
        if not uses_intake:
            stack.enter_context(patch.object(worker._connections, "_offer_to_intake"))
        clients = [stack.enter_context(connect(worker, listening)) for _ in sent]
        for client in clients:  # the worker offers a connection to the intake after its first message
            client.sendall(datagram(value=b"first"))
        worker._connections._on_wakeup()
        for number, piece in pieces(sent, cuts):
            with suppress(BrokenPipeError):  # the worker has closed the connection of malformed data
                clients[number].sendall(piece)
            worker._connections._on_wakeup()
        for client in clients:
            client.close()
        worker._connections._on_wakeup()
        worker._lanes.close_all()
        worker._lanes.drain_closed()
        differing = ("SocketRead", "RunsPublished")  # the intake reads and closes in larger portions
        names = {each.name: worker._row.counters[each] for each in Counter if not each.name.endswith(differing)}
        return names, [(each.arrival, each.partition_key, each.value) for each in contents(worker._slab)]


def pieces(sent: list[bytes], cuts: list[int]) -> Iterator[tuple[int, bytes]]:
    """Cut the bytes of each client, and take the pieces of all clients in turn; the later ones are longer."""
    lengths = itertools.chain(itertools.islice(itertools.cycle(cuts), 100), itertools.repeat(4000))
    rests = dict(enumerate(sent))
    while rests:
        for number in list(rests):
            length = next(lengths)
            yield number, rests[number][:length]
            rests[number] = rests[number][length:]
            if not rests[number]:
                del rests[number]


def allowing(uid: int) -> Config:
    stream = UnixStream(allow_users=(str(uid),))
    return msgspec.structs.replace(CONFIG, input=Input(streams=Streams(when_full="block"), unix_stream=stream))


# --- limits -----------------------------------------------------------------------------------------------------------

LONG: Final = 100_000


def limited(max_stream_size: int = LONG, **streams: int) -> Config:
    """A configuration with these limits of streams, for messages of up to `max_stream_size` bytes."""
    found = msgspec.structs.replace(CONFIG.input.streams, workers=1, **streams)
    return msgspec.structs.replace(CONFIG, input=Input(streams=found, max_stream_size=max_stream_size))


def serve_all(worker: _StreamWorker) -> None:
    for _ in range(20):
        worker._connections.serve()


def held_bytes(worker: _StreamWorker) -> int:
    return sum(len(each.client.unprocessed) for each in worker._connections._connections.values())


def test_unfinished_messages_wait_in_turn_when_their_memory_is_used_up(tmp_path: Path, listener: socket.socket) -> None:
    """Every message arrives whole, though its clients send all beginnings first."""
    messages = [datagram(value=bytes([number]) * 90_000) for number in range(8)]
    with a_worker(tmp_path, listener, Geometry(chunks=256, topics=16, partitions=16)) as worker:
        worker.apply_config(limited(max_unfinished_size=200_000, max_unfinished_size_per_user=200_000), CONFIG)
        clients = [connect(worker, listener) for _ in messages]
        for client, message in zip(clients, messages, strict=True):
            client.sendall(message[:10_000])
            serve_all(worker)
        waiting = [each for each in worker._connections._connections.values() if each.awaits_grant]
        assert len(waiting) == 6
        for client, message in reversed([*zip(clients, messages, strict=True)]):
            client.sendall(message[10_000:])
            serve_all(worker)
            assert held_bytes(worker) <= 2 * 200_000
        serve_all(worker)
        assert held_bytes(worker) == 0
        assert worker._row.counters[Counter.MsgReceived] == len(messages)
        found = sorted(content.value for content in contents(worker._slab))
        are_whole = [value == bytes([number]) * 90_000 for number, value in enumerate(found)]
        assert are_whole == [True] * len(messages)
        for client in clients:
            client.close()


def test_a_waiting_message_that_a_reload_forbids_is_refused_and_blocks_no_other(
    tmp_path: Path, listener: socket.socket
) -> None:
    before, after = limited(max_unfinished_size=1), limited(max_stream_size=70_000, max_unfinished_size=1)
    messages = [datagram(value=bytes([number]) * size) for number, size in enumerate((99_000, 98_000, 67_000, 66_000))]
    with a_worker(tmp_path, listener, Geometry(chunks=256, topics=16, partitions=16)) as worker:
        worker.apply_config(before, CONFIG)
        clients = [connect(worker, listener) for _ in messages]
        for client, message in zip(clients, messages, strict=True):
            client.sendall(message[:10_000])
            serve_all(worker)
        assert [each.awaits_grant for each in worker._connections._connections.values()] == [False, True, True, True]
        worker.apply_config(after, before)
        assert clients[1].recv(1) == b""
        for client, message in zip(clients, messages, strict=True):
            if client is not clients[1]:
                client.sendall(message[10_000:])
                serve_all(worker)
        assert clients[0].recv(1) == b""
        assert [content.value[0] for content in contents(worker._slab)] == [2, 3]
        books = count_books(worker._slab)
        assert (books.received, books.discarded, books.balanced) == (4, {"MALFORMED": 2}, True)
        for client in clients:
            client.close()


def test_a_connection_is_closed_when_its_message_stops_for_too_long(
    worker: _StreamWorker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker.apply_config(limited(unfinished_timeout_s=1), CONFIG)
    stopped, unread, whole = (connect(worker, listener) for _ in range(3))
    for client in (stopped, unread):
        client.sendall(datagram()[:-1])
    whole.sendall(datagram())
    serve_all(worker)
    unread.sendall(datagram()[-1:])
    monkeypatch.setattr(stream_connections, "steady_ms", lambda: steady_ms() + 1100)
    worker._connections._close_idle()
    assert len(worker._connections._connections) == 2
    assert stopped.recv(1) == b""
    assert worker._row.counters[Counter.StreamUnfinishedMsgClosed] == 1
    assert f"A connection of user {os.getuid()} (process {os.getpid()}) was closed inside a message" in caplog.text
    serve_all(worker)
    assert worker._row.counters[Counter.MsgReceived] == 3  # two whole messages, and the unfinished one as discarded
    for client in (stopped, unread, whole):
        client.close()


def test_nothing_of_an_attempt_is_delivered_if_its_client_reads_no_answers(
    worker: _StreamWorker, listener: socket.socket
) -> None:
    client = connect(worker, listener)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    barriers = encode_barrier(b"01234567", Level.DELIVERED, 1000) * 3000
    client.sendall(encode_begin("task/7") + datagram(value=b"a") + barriers + datagram(value=b"b") * 5 + encode_end())
    serve_all(worker)
    worker._publisher.publish_all()
    assert [each.state for each in contents(worker._slab)] == [RunState.DISCARDED]
    answers = client.recv(1 << 20)
    serve_all(worker)
    with suppress(OSError):
        while more := client.recv(1 << 20):
            answers += more
    assert b"does not read the answers" in answers
    assert not worker._connections._connections
    client.close()


def test_new_clients_are_counted_by_kind(worker: _StreamWorker, listener: socket.socket) -> None:
    clients = [connect(worker, listener) for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients += [socket.create_connection(server.getsockname()) for _ in range(3)]
        for _ in range(3):
            worker._connections._add_connection(server.accept()[0])
    assert worker._row.counters[Counter.NewUnixClient] == 2
    assert worker._row.counters[Counter.NewTcpClient] == 3
    for client in clients:
        client.close()


def test_the_kernel_reports_a_tcp_client_whose_host_has_vanished_within_minutes(worker: _StreamWorker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        worker._connections._add_connection(server.accept()[0])
        (connection,) = worker._connections._connections.values()
        assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle_s, interval_s, count = (connection.socket.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        assert 60 <= idle_s + interval_s * count <= 600


def test_a_connection_is_closed_at_once_when_its_user_has_too_many(
    worker: _StreamWorker, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    worker.apply_config(limited(max_connections_per_user=2), CONFIG)
    clients = [connect(worker, listener) for _ in range(3)]
    assert clients[2].recv(1) == b""
    assert worker._row.counters[Counter.StreamConnectionOverLimit] == 1
    assert worker._row.counters[Counter.NewUnixClient] == 2
    assert "input.streams.max_connections_per_user" in caplog.text
    clients[0].close()
    serve_all(worker)
    clients.append(connect(worker, listener))
    assert len(worker._connections._connections) == 2
    for client in clients:
        client.close()


def test_a_worker_without_descriptors_pauses_accepting_and_counts_it(
    worker: _StreamWorker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        def fileno(self) -> int:
            return listener.fileno()

    delays: list[float] = []
    monkeypatch.setattr(worker._loop, "call_later", lambda delay, _: delays.append(delay))
    monkeypatch.setitem(worker._connections._listeners._sockets, listener.fileno(), Exhausted())
    client = connect(worker, listener)
    serve_all(worker)
    assert delays == [1.0]  # the epoll set no longer reports the listener
    assert worker._row.counters[Counter.AcceptExhausted] == 1
    client.close()
