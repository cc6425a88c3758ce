"""Frames out of a stream: however it is cut, and in time proportional to its length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.frames import FrameReader
from support.examples import examples


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def drain(reader: FrameReader) -> list[bytes]:
    found = []
    while (frame := reader.next_frame()) is not None:
        found.append(frame)
    return found


@given(frames=st.lists(st.binary(min_size=4, max_size=50), max_size=8), step=st.integers(1, 60))
@examples(50)
def test_frames_are_read_when_the_stream_is_split_anywhere(frames: list[bytes], step: int) -> None:
    stream = b"".join(map(framed, frames))
    reader, found = FrameReader(), []
    for at in range(0, len(stream), step):
        reader.feed(stream[at : at + step])
        found += drain(reader)
    assert found == frames


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3, 101, 2**31 - 1])
def test_an_impossible_size_is_refused_immediately(size: int) -> None:
    reader = FrameReader(max_frame=100)
    reader.feed(size.to_bytes(4, "big", signed=True))
    with pytest.raises(RemoteProtocolError, match=f"{size} bytes"):
        reader.next_frame()


def test_a_frame_of_the_largest_size_is_accepted() -> None:
    reader = FrameReader(max_frame=100)
    reader.feed(framed(bytes(100)))
    assert reader.next_frame() == bytes(100)


def test_a_refusal_shows_the_received_bytes() -> None:
    reader = FrameReader()
    reader.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(RemoteProtocolError, match=r"HTTP/1\.1 400 Bad"):
        reader.next_frame()


def test_many_frames_in_one_read_are_copied_in_linear_time() -> None:
    # With a copy of the rest for each frame this would move 80 GB and hit the test's time limit.
    reader = FrameReader()
    reader.feed(framed(b"1234") * 200_000)
    assert len(drain(reader)) == 200_000
