"""A stream worker between its sockets and the slab, without its loop."""

from __future__ import annotations

import os
import select
import socket
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from bruce_mp.config.inputs import Input, Streams, UnixStream
from bruce_mp.config.model import Config
from bruce_mp.config.sections import Kafka, TopicShare
from bruce_mp.input.stream_process import _Worker
from bruce_mp.ipc.control_messages import Control
from bruce_mp.ipc.start import Start
from bruce_mp.protocol.client.barrier import Level, encode_barrier
from bruce_mp.slab.file import Geometry
from bruce_mp.telemetry.counters import Counter
from support.slabs import datagram, new_slab
from support.streams import WORKER_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GEOMETRY: Final = Geometry(chunks=16, topics=16, partitions=16, landing_slots=4, landing_slot_size=4096)
CONFIG: Final = Config(
    kafka=Kafka(bootstrap_servers=("broker:9092",)),
    input=Input(streams=Streams(when_full="block")),
    topic_share=TopicShare(alpha=0),
)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        found.bind(str(tmp_path / "s"))
        found.listen()
        yield found


@pytest.fixture
def worker(tmp_path: Path, listener: socket.socket) -> Iterator[_Worker]:
    ours, theirs = Pipe()
    with new_slab(GEOMETRY) as slab, ours, theirs:
        start = Start("input-1", WORKER_ROW, CONFIG, tmp_path, slab.path, inputs=(WORKER_ROW,), unix_stream=listener)
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


def test_a_worker_naps_after_messages_but_not_after_an_answer(
    worker: _Worker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that waits for each answer would otherwise send its next message after the nap."""
    naps: list[int] = []
    monkeypatch.setattr(worker._connections._rate, "nap", lambda: naps.append(1))
    client = connect(worker, listener)
    for sent, expected in ((datagram(), 1), (datagram() + encode_barrier(b"01234567", Level.RECEIVED, 1000), 1)):
        client.sendall(sent)
        worker._connections._on_wakeup()
        assert len(naps) == expected
    client.close()


def allowing(uid: int) -> Config:
    stream = UnixStream(allow_users=(str(uid),))
    return msgspec.structs.replace(CONFIG, input=Input(streams=Streams(when_full="block"), unix_stream=stream))
