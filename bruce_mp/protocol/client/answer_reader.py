"""The frames that a daemon sends to a stream client: answers to barriers and inquiries, and the end of an attempt."""

from __future__ import annotations

from bruce_mp.errors import AttemptEndedError, RemoteProtocolError
from bruce_mp.protocol.client.barrier import (
    ANSWER_KEY,
    HEADER,
    MAX_ANSWER_BYTES,
    MIN_ANSWER_BYTES,
    NOT_ANSWER,
    BarrierAnswer,
    decode_answer,
)
from bruce_mp.protocol.client.fence import ENDED_KEY, decode_ended
from bruce_mp.protocol.client.inquiry import API_VERSION as INQUIRY_VERSION
from bruce_mp.protocol.client.inquiry import InquiryAnswer, decode_inquiry_answer

__all__ = ["AnswerReader"]


class AnswerReader:
    """Splits the bytes that a client receives into answers."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> list[BarrierAnswer | InquiryAnswer]:
        """Return the answers that `data` completes.

        Raise RemoteProtocolError for malformed bytes, and AttemptEndedError if the daemon ended an open attempt.
        """
        self._unread += data
        answers: list[BarrierAnswer | InquiryAnswer] = []
        while len(self._unread) >= HEADER.size:
            size, key, version = HEADER.unpack_from(self._unread)
            if key == ENDED_KEY and HEADER.size <= size <= len(self._unread):
                raise AttemptEndedError(decode_ended(self._unread[:size])[1])
            if key == ENDED_KEY:
                break
            if key != ANSWER_KEY or not MIN_ANSWER_BYTES <= size <= MAX_ANSWER_BYTES:
                raise RemoteProtocolError(NOT_ANSWER)
            if len(self._unread) < size:
                break
            decode = decode_inquiry_answer if version == INQUIRY_VERSION else decode_answer
            answers.append(decode(bytes(self._unread[:size])))
            del self._unread[:size]
        return answers
