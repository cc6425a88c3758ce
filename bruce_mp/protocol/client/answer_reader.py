"""Decode the frames that a daemon sends to a stream client: answers to barriers and inquiries, and the ended frame.

An ended frame (`fence`) tells the client that the daemon has ended an attempt that the client had not completed.
"""

from __future__ import annotations

from bruce_mp.errors import AttemptEndedError, RemoteProtocolError
from bruce_mp.protocol.client.barrier import (
    ANSWER_KEY,
    FRAME_START,
    MAX_ANSWER_BYTES,
    MIN_ANSWER_BYTES,
    NOT_ANSWER,
    BarrierAnswer,
    decode_answer,
)
from bruce_mp.protocol.client.fence import ENDED_KEY, MAX_ENDED_BYTES, MIN_ENDED_BYTES, decode_ended
from bruce_mp.protocol.client.inquiry import API_VERSION as INQUIRY_VERSION
from bruce_mp.protocol.client.inquiry import InquiryAnswer, decode_inquiry_answer

__all__ = ["AnswerReader"]

_ALLOWED_SIZES = {
    ANSWER_KEY: range(MIN_ANSWER_BYTES, MAX_ANSWER_BYTES + 1),
    ENDED_KEY: range(MIN_ENDED_BYTES, MAX_ENDED_BYTES + 1),
}
"""The allowed sizes of a frame in bytes by its API key; answers to barriers and to inquiries have the same key."""


class AnswerReader:
    """Decoder of the answers in the bytes that a client receives."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> list[BarrierAnswer | InquiryAnswer]:
        """Append received bytes; return the answers that are complete now.

        Raise RemoteProtocolError for malformed bytes, and AttemptEndedError for an ended frame. If answers precede the
        bytes that cause an error, return these answers; the next call then raises the error, even if `data` is empty.
        """
        self._unread += data
        answers: list[BarrierAnswer | InquiryAnswer] = []
        try:
            while (answer := self._read()) is not None:
                answers.append(answer)
        except RemoteProtocolError:  # or its subclass AttemptEndedError; the bytes that caused it stay in `_unread`
            if not answers:
                raise
        return answers

    def _read(self) -> BarrierAnswer | InquiryAnswer | None:
        """Remove the first answer from the unread bytes and return it; return None if the first frame is incomplete."""
        if len(self._unread) < FRAME_START.size:
            return None
        size, key, version = FRAME_START.unpack_from(self._unread)
        if size not in _ALLOWED_SIZES.get(key, ()):
            raise RemoteProtocolError(NOT_ANSWER)
        if len(self._unread) < size:
            return None
        frame = bytes(self._unread[:size])
        if key == ENDED_KEY:
            raise AttemptEndedError(decode_ended(frame)[1])
        answer = decode_inquiry_answer(frame) if version == INQUIRY_VERSION else decode_answer(frame)
        del self._unread[:size]
        return answer
