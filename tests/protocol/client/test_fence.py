"""The frames of fenced attempts: the vectors of the documentation, round trips, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import AttemptEndedError, LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.client.answer_reader import AnswerReader
from bruce_mp.protocol.client.barrier import BarrierAnswer, BarrierStatus, encode_answer
from bruce_mp.protocol.client.fence import (
    AttemptBegin,
    EndReason,
    decode_begin,
    decode_ended,
    encode_begin,
    encode_end,
    encode_ended,
    is_end,
)

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
ENDED: Final = encode_ended(EndReason.SHUTTING_DOWN, "The daemon shuts down.")


def test_frames_equal_the_documented_bytes() -> None:
    page = PAGE.read_text()
    for frame in (encode_begin("job"), encode_end(), ENDED):
        assert f"`{frame.hex()}`" in page
    assert decode_begin(encode_begin("job")) == AttemptBegin(b"job", keeps_timestamps=False)
    assert is_end(encode_end())
    assert decode_begin(encode_begin("job", is_unique=True)) == AttemptBegin(b"job", False, is_unique=True)
    assert decode_begin(encode_begin("job", keeps_timestamps=True, is_unique=True)) == AttemptBegin(b"job", True, True)
    assert decode_ended(ENDED) == (EndReason.SHUTTING_DOWN, "The daemon shuts down.")


def test_every_end_reason_is_documented() -> None:
    section = PAGE.read_text().partition("may a repetition succeed?")[2].partition("A connection that ends")[0]
    assert [int(line.split("|")[1]) for line in section.splitlines() if line[2:3].isdigit()] == list(EndReason)


@given(st.sampled_from(EndReason), st.text(max_size=2000))
def test_a_reason_survives_and_a_long_text_is_truncated(reason: EndReason, text: str) -> None:
    found, cut = decode_ended(encode_ended(reason, text))
    assert found is reason
    assert text.startswith(cut)


def test_a_truncated_text_ends_with_a_whole_character() -> None:
    assert decode_ended(encode_ended(EndReason.NO_ROOM, "x" + "ä" * 3000))[1] == "x" + "ä" * 1999


def test_an_attempt_name_with_a_nul_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="NUL"):
        encode_begin("a\0name=unique")


def test_an_unknown_reason_is_returned_as_its_number() -> None:
    assert decode_ended(ENDED[:8] + b"\0\x63" + ENDED[10:])[0] == 99


@pytest.mark.parametrize("frame", [ENDED[:-1], ENDED[:8], ENDED + b"x", ENDED[:6] + b"\0\1" + ENDED[8:]])
def test_an_invalid_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_ended(frame)


@pytest.mark.parametrize("cut", range(1, len(ENDED)))
def test_the_answer_reader_raises_the_reason_when_the_frame_is_split(cut: int) -> None:
    reader, answer = AnswerReader(), BarrierAnswer(bytes(8), BarrierStatus.FENCED, 1, 0, 0)
    assert reader.feed(encode_answer(answer) + ENDED[:cut]) == [answer]
    with pytest.raises(AttemptEndedError, match="The daemon shuts down"):
        reader.feed(ENDED[cut:])


def test_answers_before_the_end_of_an_attempt_are_returned_first() -> None:
    reader, answer = AnswerReader(), BarrierAnswer(bytes(8), BarrierStatus.FENCED, 1, 0, 0)
    assert reader.feed(encode_answer(answer) * 2 + ENDED) == [answer, answer]
    with pytest.raises(AttemptEndedError, match="The daemon shuts down"):
        reader.feed(b"")


@pytest.mark.parametrize("size", [-1, 0, 7, 11, 12 + 2**15, 2**31 - 1])
def test_an_ended_frame_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="no answer"):
        AnswerReader().feed(size.to_bytes(4, signed=True) + ENDED[4:8])
