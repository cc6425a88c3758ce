"""The split of a stream into messages: the parser gets the same messages as from datagrams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import SplitStop, split_stream
from bruce_mp.kernels.pure.parse import parse
from bruce_mp.protocol.client.barrier import BARRIER_KEY, Level, encode_barrier
from bruce_mp.protocol.client.fence import BEGIN_KEY, END_KEY
from bruce_mp.protocol.client.messages import Rejection, encode, parse_message
from kernels.test_parse import as_oracle_says, damaged, good
from support.examples import examples

if TYPE_CHECKING:
    from bruce_mp.kernels import StreamSplit

LONGEST: Final = 100_000
BARRIER: Final = encode_barrier(b"01234567", Level.DELIVERED, 1000)
STREAM_KEYS: Final = {key.to_bytes(2, "big") for key in (BARRIER_KEY, BEGIN_KEY, END_KEY)}
SHORTEST_FENCE: Final = bytes.fromhex("0000000801040000")


def cut_all(data: bytes, max_size: int = LONGEST) -> StreamSplit:
    """Split bytes in the middle of a buffer."""
    found = split_stream(memoryview(b"\xff" * 3 + data + b"\0\0\0\x08" * 3), 3, 3 + len(data), max_size)
    return found._replace(at=found.at - 3, extents=[(at - 3, size) for at, size in found.extents])


def framed(data: bytes) -> bytes:
    """Return a message that a stream can carry: its size agrees, and its ApiKey is that of a message.

    The ApiKeys of barriers and fences exist on streams only; a datagram with one has an unsupported ApiKey.
    """
    data = len(data).to_bytes(4, "big") + data[4:]
    return data[:4] + b"\xff" + data[5:] if data[4:6] in STREAM_KEYS else data


messages = st.lists(
    good | damaged().filter(lambda data: len(data) >= 4).map(framed) | st.binary(min_size=4, max_size=30).map(framed),
    max_size=8,
)


@examples(40)
@given(sent=messages, kept=st.integers(0, 20))
@example(sent=[framed(SHORTEST_FENCE)], kept=0)
def test_whole_messages_are_split_and_a_partial_one_remains(sent: list[bytes], kept: int) -> None:
    data = b"".join(sent)
    beginning = (100).to_bytes(4, "big")[:kept] + bytes(max(0, kept - 4))
    found = cut_all(data + beginning)
    assert [(data + beginning)[at : at + size] for at, size in found.extents] == sent
    assert (found.at, found.stop) == (len(data), SplitStop.MORE)
    assert found.size == (100 if kept >= 4 else 0)


@examples(40)
@given(sent=messages, cuts=st.lists(st.integers(0, 2000), max_size=30), bytewise=st.booleans())
@example(sent=[framed(SHORTEST_FENCE)], cuts=[], bytewise=True)
def test_a_stream_split_anywhere_yields_the_datagrams(sent: list[bytes], cuts: list[int], bytewise: bool) -> None:
    data = b"".join(sent)
    if len(data) > 3000:
        bytewise = False
    ends = range(1, len(data) + 1) if bytewise else sorted({min(at, len(data)) for at in cuts} | {len(data)})
    begin, extents = 0, []
    for end in ends:
        found = split_stream(memoryview(data), begin, end, LONGEST)
        assert found.stop is SplitStop.MORE
        extents += found.extents
        begin = found.at
    assert begin == len(data)
    batch = parse(memoryview(data), extents, 0)
    assert as_oracle_says(batch, data, len(sent), 0) == [parse_message(one) for one in sent]


@pytest.mark.parametrize("size", [3, 2, 1, 0, -1, -(2**31)])
def test_a_size_smaller_than_its_own_field_stops_the_split(size: int) -> None:
    first = encode("t", b"v", timestamp_ms=0)
    found = cut_all(first + size.to_bytes(4, "big", signed=True) + first)
    assert found == ([(0, len(first))], len(first), SplitStop.INVALID_SIZE, size)


@pytest.mark.parametrize("excess", [0, 1])
def test_an_oversized_message_is_detected_by_its_size_field(excess: int) -> None:
    found = cut_all((1000 + excess).to_bytes(4, "big"), max_size=1000)
    assert found.stop is (SplitStop.TOO_LARGE if excess else SplitStop.MORE)


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_messages_too_short_for_a_header_are_split(size: int) -> None:
    short = size.to_bytes(4, "big") + b"\x01\x02\0"[: size - 4]
    found = cut_all(short + short + BARRIER)
    assert found == ([(0, size), (size, size)], 2 * size, SplitStop.BARRIER, len(BARRIER))


@pytest.mark.parametrize("missing", [0, 1, 18, 19, 21])
def test_a_barrier_is_detected_only_when_complete(missing: int) -> None:
    first = encode("t", b"v", timestamp_ms=0)
    found = cut_all((first + BARRIER)[: len(first) + len(BARRIER) - missing])
    stop, size = (SplitStop.MORE, 24 if missing < 21 else 0) if missing else (SplitStop.BARRIER, 24)
    assert found == ([(0, len(first))], len(first), stop, size)


@pytest.mark.parametrize("key", [BEGIN_KEY, END_KEY])
def test_an_empty_fence_stops_a_stream_and_is_unsupported_as_a_datagram(key: int) -> None:
    fence = (8).to_bytes(4, "big") + key.to_bytes(2, "big") + b"\0\0"
    assert cut_all(fence) == ([], 0, SplitStop.FENCE, 8)
    assert parse_message(fence) == Rejection(DiscardReason.UNSUPPORTED_API_KEY, key)
