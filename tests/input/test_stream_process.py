"""A stream worker between its sockets and the slab, without its loop."""

from __future__ import annotations

import itertools
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
from bruce_mp.input.stream_process import _Worker
from bruce_mp.ipc.control_messages import Control
from bruce_mp.ipc.start import Start
from bruce_mp.protocol.client.barrier import Level, encode_barrier
from bruce_mp.slab.file import Geometry
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
def worker(tmp_path: Path, listener: socket.socket) -> Iterator[_Worker]:
    with a_worker(tmp_path, listener) as made:
        yield made


@contextmanager
def a_worker(directory: Path, listener: socket.socket) -> Iterator[_Worker]:
    ours, theirs = Pipe()
    with new_slab(GEOMETRY) as slab, ours, theirs:
        start = Start("input-1", WORKER_ROW, CONFIG, directory, slab.path, inputs=(WORKER_ROW,), unix_stream=listener)
        made = _Worker(start, slab, Control(theirs))
        made._connections._listen()
        yield made
        for descriptor in list(made._connections._connections):
            made._connections._close(descriptor)
        made._connections._epoll.close()
        made._links.close()


def connect(worker: _Worker, listener: socket.socket) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(listener.getsockname())
    worker._connections.serve()
    return client


def test_only_one_client_is_retried_while_the_slab_has_no_room(
    worker: _Worker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
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
    worker: _Worker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
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


def test_a_sender_removed_from_the_allow_list_is_disconnected(worker: _Worker, listener: socket.socket) -> None:
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
    worker: _Worker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a thousand ready connections, another poll would report other events."""
    monkeypatch.setattr(worker._connections, "serve", lambda: pytest.fail("another poll"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(listener.getsockname())
        worker._connections._on_wakeup()
        assert len(worker._connections._connections) == 1


def test_the_intake_forgets_a_closed_connection(worker: _Worker, listener: socket.socket) -> None:
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
        names = {each.name: worker._row.counters[each] for each in Counter if "SocketRead" not in each.name}
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
