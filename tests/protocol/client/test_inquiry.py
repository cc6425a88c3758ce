"""The frames of inquiries: the documented bytes, round trips, refusals, and daemons that do not know them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from bruce_mp.errors import DiscardReason, LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.client.answer_reader import AnswerReader
from bruce_mp.protocol.client.barrier import REASON, BarrierAnswer, BarrierStatus, decode_barrier, encode_answer
from bruce_mp.protocol.client.inquiry import (
    AttemptOutcome,
    Inquiry,
    InquiryAnswer,
    decode_inquiry,
    decode_inquiry_answer,
    encode_inquiry,
    encode_inquiry_answer,
    is_inquiry,
)

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
TOKEN: Final = b"01234567"
REQUEST: Final = encode_inquiry(TOKEN, b"job")
ANSWER: Final = InquiryAnswer(
    TOKEN, AttemptOutcome.SETTLED, 1_700_000_000_000, 2_097_156, 999_974, 5, 3, {DiscardReason.BAD_TOPIC: 2},
    frozenset({"headers", "unique"}),
)  # fmt: skip


def test_frames_equal_the_documented_bytes() -> None:
    page = PAGE.read_text()
    for frame in (REQUEST, encode_inquiry_answer(ANSWER)):
        assert f"`{frame.hex()}`" in page
    section = page.partition("## The inquiry")[2].partition("## Fenced")[0].partition("| state |")[2]
    assert [int(line.split("|")[1]) for line in section.splitlines() if line[2:3].isdigit()] == list(AttemptOutcome)


def test_a_request_and_an_answer_survive_the_round_trip() -> None:
    assert is_inquiry(REQUEST)
    assert decode_inquiry(REQUEST) == Inquiry(TOKEN, b"job")
    assert decode_inquiry_answer(encode_inquiry_answer(ANSWER)) == ANSWER


def test_malformed_frames_are_refused() -> None:
    for cut in (
        REQUEST[:19],
        REQUEST[:-1],
        REQUEST + b"x",
        bytes(4) + REQUEST[4:],
        REQUEST[:8] + b"\0\1" + REQUEST[10:],
    ):
        assert decode_inquiry(cut) is None
    frame = encode_inquiry_answer(ANSWER)
    plain = encode_inquiry_answer(replace(ANSWER, reasons={}, features=frozenset()))
    negative = plain[:-4] + b"\xff\xff" + REASON.size.to_bytes(2)  # counts of reasons and of bytes that add up
    for cut in (frame[:-1], frame + b"x", frame[:16] + b"\0\x09" + frame[18:], frame[:20], negative):
        with pytest.raises(RemoteProtocolError, match="no answer to an inquiry"):
            decode_inquiry_answer(cut)
    with pytest.raises(LocalProtocolError, match="256 bytes"):
        encode_inquiry(TOKEN, bytes(256))
    for token in (TOKEN[:7], TOKEN + b"8"):
        with pytest.raises(LocalProtocolError, match=f"has {len(token)} bytes: give 8"):
            encode_inquiry(token)


def test_a_daemon_without_inquiries_answers_with_a_status() -> None:
    """The decoder of barriers has been the same since the first version."""
    answer = decode_barrier(REQUEST)
    assert answer == BarrierAnswer(TOKEN, BarrierStatus.UNSUPPORTED_VERSION, 0, 0, 0)


def test_a_reader_separates_both_kinds_of_answers_however_they_are_cut() -> None:
    barrier = BarrierAnswer(TOKEN, BarrierStatus.DONE, 5, 5, 0)
    stream = encode_inquiry_answer(ANSWER) + encode_answer(barrier) + encode_inquiry_answer(ANSWER)
    for cut in range(len(stream)):
        reader = AnswerReader()
        assert [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])] == [ANSWER, barrier, ANSWER]
