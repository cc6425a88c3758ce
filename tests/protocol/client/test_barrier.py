"""The barrier's request and answer: the vectors of the documentation, round trips, and refused input."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import DiscardReason, LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.client.answer_reader import AnswerReader
from bruce_mp.protocol.client.barrier import (
    Barrier,
    BarrierAnswer,
    BarrierStatus,
    Level,
    decode_answer,
    decode_barrier,
    encode_answer,
    encode_barrier,
)

REQUESTS = [
    pytest.param(
        "00000018010200000000303132333435363700010000ea60", Barrier(b"01234567", Level.DELIVERED, 60_000), id="B1"
    ),
    pytest.param(
        "000000180102000000000000000000000001000000000000", Barrier(bytes(7) + b"\1", Level.RECEIVED, 0), id="B2"
    ),
]
BAD_REQUESTS = [
    pytest.param("00000018010200010000303132333435363700010000ea60", BarrierStatus.UNSUPPORTED_VERSION, id="version 1"),
    pytest.param("00000018010200000001303132333435363700010000ea60", BarrierStatus.MALFORMED, id="flags"),
    pytest.param("00000018010200000000303132333435363700030000ea60", BarrierStatus.MALFORMED, id="level 3"),
    pytest.param("0000001801020000000030313233343536370001ffffffff", BarrierStatus.MALFORMED, id="time -1"),
    pytest.param("00000019010200000000303132333435363700010000ea6000", BarrierStatus.MALFORMED, id="too long"),
    pytest.param("0000000801020000", BarrierStatus.MALFORMED, id="too short"),
]
ANSWERS = [
    pytest.param(
        "0000002c01030000303132333435363700000000000000000005000000000000000500000000000000000000",
        BarrierAnswer(b"01234567", BarrierStatus.DONE, 5, 5, 0),
        id="B3",
    ),
    pytest.param(
        "0000004001030000303132333435363700010000000000000007000000000000000200000000000000030002"
        "0001000000000000000100050000000000000002",
        BarrierAnswer(
            b"01234567",
            BarrierStatus.TIMED_OUT,
            7,
            2,
            3,
            {DiscardReason.MALFORMED: 1, DiscardReason.BAD_TOPIC: 2},
        ),
        id="B4",
    ),
]

counts = st.integers(0, 2**63 - 1)
answers = st.builds(
    BarrierAnswer,
    st.binary(min_size=8, max_size=8),
    st.sampled_from(BarrierStatus),
    counts,
    counts,
    counts,
    st.dictionaries(st.one_of(st.sampled_from(DiscardReason), st.integers(100, 2**15 - 1)), st.integers(1, 2**63 - 1)),
)


@pytest.mark.parametrize(("vector", "request_"), REQUESTS)
def test_requests_equal_the_documented_bytes(vector: str, request_: Barrier) -> None:
    assert decode_barrier(bytes.fromhex(vector)) == request_
    assert encode_barrier(request_.token, request_.level, request_.limit_ms).hex() == vector
    assert vector in page()


@pytest.mark.parametrize(("vector", "status"), BAD_REQUESTS)
def test_invalid_requests_get_an_error_status(vector: str, status: BarrierStatus) -> None:
    answer = decode_barrier(bytes.fromhex(vector))
    assert isinstance(answer, BarrierAnswer)
    assert answer.status is status
    assert answer.token == (b"01234567" if len(vector) > 16 else bytes(8))


@pytest.mark.parametrize(("vector", "answer"), ANSWERS)
def test_answers_equal_the_documented_bytes(vector: str, answer: BarrierAnswer) -> None:
    assert decode_answer(bytes.fromhex(vector)) == answer
    assert encode_answer(answer).hex() == vector
    assert vector in page()


def page() -> str:
    return (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()


@given(found=st.lists(answers, max_size=4), cuts=st.lists(st.integers(0, 400)))
def test_answers_split_anywhere_are_read(found: list[BarrierAnswer], cuts: list[int]) -> None:
    data = b"".join(map(encode_answer, found))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = AnswerReader()
    read = [answer for begin, end in itertools.pairwise(places) for answer in reader.feed(data[begin:end])]
    assert read == found


def test_an_invalid_answer_is_refused() -> None:
    for data in (b"HTTP/1.1 400 Bad Request\r\n", bytes.fromhex("7fffffff01030000"), bytes.fromhex("0000000801030000")):
        with pytest.raises(RemoteProtocolError, match="no answer"):
            AnswerReader().feed(data)
    with pytest.raises(RemoteProtocolError, match="only 3 bytes"):
        decode_answer(b"abc")


@pytest.mark.parametrize(("token", "limit_ms"), [(b"short", 0), (b"01234567", -1), (b"01234567", 2**31)])
def test_invalid_requests_are_not_encoded(token: bytes, limit_ms: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_barrier(token, Level.DELIVERED, limit_ms)


def test_outstanding_counts_messages_without_an_outcome() -> None:
    assert BarrierAnswer(bytes(8), BarrierStatus.TIMED_OUT, 7, 2, 3).outstanding == 2
