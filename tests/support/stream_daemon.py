"""Fakes of the daemon's stream inputs: one reads messages, answers barriers, and misbehaves on request."""

from __future__ import annotations

import array
import fcntl
import socket
import termios
import threading
import time
from abc import abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bruce_mp.protocol.client.barrier import (
    BARRIER_KEY,
    Barrier,
    BarrierAnswer,
    BarrierStatus,
    decode_barrier,
    encode_answer,
)
from bruce_mp.protocol.client.messages import parse_message
from support import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

    from bruce_mp.errors import DiscardReason
    from bruce_mp.protocol.client.messages import Message, Rejection

WAIT_S: Final = 20.0


@dataclass
class Connection:
    """The frames of one connection, in order."""

    client: socket.socket
    messages: list[bytes] = field(default_factory=list)
    barriers: list[Barrier] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    """("begin" or "end", messages before it)"""
    name: bytes | None = None
    keeps_timestamps: bool = False
    is_unique: bool = False


class StreamListener:
    """A listener at `path` or on a port of 127.0.0.1 that splits what it reads into frames.

    Clear `reading` to stop reading.
    """

    def __init__(self, path: Path | None = None, port: int = 0) -> None:
        self._listener = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if path is not None:
            path.unlink(missing_ok=True)
        self._listener.bind(("127.0.0.1", port) if path is None else str(path))
        self._listener.listen()
        self.port: int = 0 if path is not None else self._listener.getsockname()[1]
        self.connections: list[Connection] = []
        self.reading = threading.Event()
        self.reading.set()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._ended = False
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Wait until the clients have closed their connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(client)
            with self._changed:
                if self._ended:  # `stop` has cut the connections that it saw
                    client.close()
                    return
                self.connections.append(connection)
                self._changed.notify_all()
            self._start(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        data = bytearray()
        with connection.client as client:
            while True:
                self.reading.wait()
                try:
                    some = client.recv(1 << 16)
                except OSError:
                    return
                if not some or self._ended:
                    return
                data += some
                while len(data) >= 8 and len(data) >= (size := int.from_bytes(data[:4], "big")):
                    frame = bytes(data[:size])
                    del data[:size]
                    self._handle_frame(connection, frame)

    @abstractmethod
    def _handle_frame(self, connection: Connection, frame: bytes) -> None: ...


class StreamDaemon(StreamListener):
    """A listener whose `messages` has the received ones, connection after connection.

    Clear `answering` to hold back answers to barriers; `answer` changes the answers.
    """

    def __init__(self, path: Path | None = None, port: int = 0) -> None:
        self.messages: list[Message | Rejection] = []
        self.barriers: list[Barrier] = []
        self.answering = True
        self.status = BarrierStatus.DONE
        self.discards: dict[DiscardReason | int, int] = {}
        self._late: list[tuple[socket.socket, bytes]] = []
        super().__init__(path, port)

    def stop(self) -> None:
        """End like a killed daemon: listener and connections together."""
        with self._changed:
            self._ended = True
        self.reading.set()
        self.cut()
        super().stop()

    def cut(self) -> None:
        """Close all present connections at any point of their data."""
        with self._changed:  # a client that reconnects at once keeps its new connection
            present, self.connections = self.connections, []
        for connection in present:
            with suppress(OSError):
                connection.client.shutdown(socket.SHUT_RDWR)

    def wait(self, messages: int) -> list[Message | Rejection]:
        """Wait for this number of messages and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= messages, WAIT_S), len(self.messages)
            return list(self.messages)

    def wait_barrier(self) -> None:
        """Wait for a barrier."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.barriers, WAIT_S)

    def wait_unread(self, size: int) -> None:
        """Wait until a connection has this number of unread bytes."""
        processes.wait_until(lambda: self._unread() >= size, f"{size} unread bytes", WAIT_S)

    def _unread(self) -> int:
        with self._changed:
            return max((unread_bytes(each.client) for each in self.connections), default=0)

    def _handle_frame(self, connection: Connection, frame: bytes) -> None:
        if int.from_bytes(frame[4:6], "big") != BARRIER_KEY:
            connection.messages.append(frame)
            with self._changed:
                self.messages.append(parse_message(frame))
                self._changed.notify_all()
            return
        barrier = decode_barrier(frame)
        assert isinstance(barrier, Barrier)
        received, discarded = len(connection.messages), sum(self.discards.values())
        counts = (received, received - discarded, discarded, dict(self.discards))
        answer = encode_answer(BarrierAnswer(barrier.token, self.status, *counts))
        at_once = self.answering
        if not at_once:
            self._late.append((connection.client, answer))
        with self._changed:
            self.barriers.append(barrier)
            self._changed.notify_all()
        if at_once:
            connection.client.sendall(answer)

    def answer_late(self) -> None:
        """Send the answers that were held back."""
        for connection, answer in self._late:
            connection.sendall(answer)


@contextmanager
def answering_once(path: Path, answer: bytes) -> Iterator[None]:
    """Accept one connection at `path`, and send `answer` once the client has sent something."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10)
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(WAIT_S)


@contextmanager
def closing_at_once(path: Path) -> Iterator[list[float]]:
    """Accept connections at `path`, and close each at once. Yield the list of their times."""
    connections: list[float] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()
                connections.append(time.monotonic())

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield connections
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(WAIT_S)


def unread_bytes(connection: socket.socket) -> int:
    size = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, size)
    return size[0]
