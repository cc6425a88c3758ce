"""A replacement of the daemon in tests of the data that a stream client sends.

A thread splits the data into frames, and answers barriers and inquiries with the functions of the test.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bruce_mp.protocol.client.barrier import (
    BARRIER_KEY,
    FRAME_START,
    Barrier,
    BarrierAnswer,
    BarrierStatus,
    decode_barrier,
    encode_answer,
)
from bruce_mp.protocol.client.fence import BEGIN_KEY, END_KEY, decode_begin
from bruce_mp.protocol.client.inquiry import (
    AttemptOutcome,
    Inquiry,
    InquiryAnswer,
    decode_inquiry,
    encode_inquiry_answer,
    is_inquiry,
)
from bruce_mp.protocol.client.messages import Message, parse_message

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

Answer = Callable[[Barrier, int], BarrierAnswer]
Inquired = Callable[[Inquiry], InquiryAnswer]


def all_delivered(barrier: Barrier, received: int) -> BarrierAnswer:
    return BarrierAnswer(barrier.token, BarrierStatus.DONE, received, received, 0)


def nothing_known(inquiry: Inquiry) -> InquiryAnswer:
    return InquiryAnswer(inquiry.token, AttemptOutcome.NONE, 0, 2_097_156, 999_974)


@dataclass
class Connection:
    """The frames of one connection, in order."""

    messages: list[bytes] = field(default_factory=list)
    barriers: list[Barrier] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    """("begin" or "end", messages before it)"""
    name: bytes | None = None
    keeps_timestamps: bool = False
    is_unique: bool = False


class StreamSink:
    """A listener at `path` until the `with` block ends."""

    def __init__(self, path: Path, answer: Answer = all_delivered, inquired: Inquired = nothing_known) -> None:
        self.path = str(path)
        self.answer = answer
        self.inquired = inquired
        self.connections: list[Connection] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def messages(self) -> list[bytes]:
        return [message for connection in self.connections for message in connection.messages]

    @property
    def parsed(self) -> list[Message]:
        """Return the messages, all of which must be valid."""
        found = [parse_message(frame) for frame in self.messages]
        good = [message for message in found if isinstance(message, Message)]
        assert len(good) == len(found)
        return good

    @property
    def values(self) -> list[bytes]:
        return [message.value for message in self.parsed]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection()
            self.connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(client, connection)))
            self._threads[-1].start()

    def _serve(self, client: socket.socket, connection: Connection) -> None:
        rest = bytearray()
        with client:
            while data := client.recv(1 << 20):
                rest += data
                at = 0
                while len(rest) - at >= 4 and len(rest) - at >= (size := int.from_bytes(rest[at : at + 4])):
                    self._handle_frame(client, connection, bytes(rest[at : at + size]))
                    at += size
                del rest[:at]

    def _handle_frame(self, client: socket.socket, connection: Connection, frame: bytes) -> None:
        _, key, _ = FRAME_START.unpack_from(frame)
        if is_inquiry(frame):
            inquiry = decode_inquiry(frame)
            assert inquiry is not None
            client.sendall(encode_inquiry_answer(self.inquired(inquiry)))
        elif key == BARRIER_KEY:
            barrier = decode_barrier(frame)
            assert isinstance(barrier, Barrier)
            connection.barriers.append(barrier)
            client.sendall(encode_answer(self.answer(barrier, len(connection.messages))))
        elif key in {BEGIN_KEY, END_KEY}:
            connection.marks.append(("begin" if key == BEGIN_KEY else "end", len(connection.messages)))
            begin = decode_begin(frame)
            if begin is not None:
                connection.name, connection.keeps_timestamps, connection.is_unique = begin
        else:
            connection.messages.append(frame)
