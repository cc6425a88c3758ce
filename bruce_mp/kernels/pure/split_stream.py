"""Split the bytes of a stream into messages, by their sizes alone.

A message has the same bytes as in a datagram; `parse` validates it later.  Barriers and the frames of fenced attempts
are not messages.  The split stops before them, because the caller treats messages before and after them differently.
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import Final, NamedTuple

__all__ = ["SplitStop", "StreamSplit", "split_stream"]

_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">ihh")  # size, API key, version
_BARRIER: Final = 258  # API keys
_FENCES: Final = frozenset({260, 261})  # begin and end of a fenced attempt


@unique
class SplitStop(IntEnum):
    """The reason why a split stopped."""

    MORE = 0
    """The remaining bytes are the beginning of a message, or none."""
    INVALID_SIZE = 1
    """The next size is smaller than the size field, so the start of the message after it is unknown."""
    TOO_LARGE = 2
    """The next size is above the limit; the message may be incomplete."""
    BARRIER = 3
    """The next frame is a complete barrier."""
    FENCE = 4
    """The next frame is complete, and begins or ends a fenced attempt."""


class StreamSplit(NamedTuple):
    """(Offset, length) of each whole message, the offset at which the split stopped, and the reason.

    `size` is the size of the message or frame there; 0 = unknown.
    """

    extents: list[tuple[int, int]]
    at: int
    stop: SplitStop
    size: int


def split_stream(buffer: memoryview, at: int, end: int, max_size: int) -> StreamSplit:
    """Split the bytes from `at` to `end`; a message may have at most `max_size` bytes, its size field included."""
    extents: list[tuple[int, int]] = []
    while True:
        at = _split_ordinary(buffer, at, end, max_size, extents)
        stop, size = _find_stop(buffer, at, end, max_size)
        if stop is not None:
            return StreamSplit(extents, at, stop, size)
        extents.append((at, size))
        at += size


def _split_ordinary(buffer: memoryview, at: int, end: int, max_size: int, extents: list[tuple[int, int]]) -> int:
    """Add messages to `extents` up to the first bytes that need `_find_stop`; return the offset of these bytes."""
    unpack, header_size = _HEADER.unpack_from, _HEADER.size
    while at + header_size <= end:
        size, api_key, _ = unpack(buffer, at)
        if not header_size <= size <= max_size or at + size > end or api_key == _BARRIER or api_key in _FENCES:
            break
        extents.append((at, size))
        at += size
    return at


def _find_stop(buffer: memoryview, at: int, end: int, max_size: int) -> tuple[SplitStop | None, int]:
    """Return the reason to stop at `at`, and the size there; no reason for a message that is too short for a header."""
    if at + _SIZE.size > end:
        return SplitStop.MORE, 0
    (size,) = _SIZE.unpack_from(buffer, at)
    if size < _SIZE.size:
        return SplitStop.INVALID_SIZE, size
    if size > max_size:
        return SplitStop.TOO_LARGE, size
    if at + size > end:
        return SplitStop.MORE, size
    if size < _HEADER.size:
        return None, size
    # A barrier or a fence, because `_split_ordinary` has taken all complete messages with a header.
    return (SplitStop.FENCE if _HEADER.unpack_from(buffer, at)[1] in _FENCES else SplitStop.BARRIER), size
