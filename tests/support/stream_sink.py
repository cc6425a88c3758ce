"""A replacement of the daemon in tests of the data that a stream client sends.

It answers barriers and inquiries with the functions of the test.
"""

from __future__ import annotations

from collections.abc import Callable
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
from support.stream_daemon import StreamListener

if TYPE_CHECKING:
    from pathlib import Path

    from support.stream_daemon import Connection

Answer = Callable[[Barrier, int], BarrierAnswer]
Inquired = Callable[[Inquiry], InquiryAnswer]


def all_delivered(barrier: Barrier, received: int) -> BarrierAnswer:
    return BarrierAnswer(barrier.token, BarrierStatus.DONE, received, received, 0)


def nothing_known(inquiry: Inquiry) -> InquiryAnswer:
    return InquiryAnswer(inquiry.token, AttemptOutcome.NONE, 0, 2_097_156, 999_974)


class StreamSink(StreamListener):
    """A listener that keeps the frames of each connection, and waits at the end until the clients have closed them."""

    def __init__(self, path: Path, answer: Answer = all_delivered, inquired: Inquired = nothing_known) -> None:
        self.path = str(path)
        self.answer = answer
        self.inquired = inquired
        super().__init__(path)

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

    def _handle_frame(self, connection: Connection, frame: bytes) -> None:
        _, key, _ = FRAME_START.unpack_from(frame)
        if is_inquiry(frame):
            inquiry = decode_inquiry(frame)
            assert inquiry is not None
            connection.client.sendall(encode_inquiry_answer(self.inquired(inquiry)))
        elif key == BARRIER_KEY:
            barrier = decode_barrier(frame)
            assert isinstance(barrier, Barrier)
            connection.barriers.append(barrier)
            connection.client.sendall(encode_answer(self.answer(barrier, len(connection.messages))))
        elif key in {BEGIN_KEY, END_KEY}:
            connection.marks.append(("begin" if key == BEGIN_KEY else "end", len(connection.messages)))
            begin = decode_begin(frame)
            if begin is not None:
                connection.name, connection.keeps_timestamps, connection.is_unique = begin
        else:
            connection.messages.append(frame)
