"""Split the bytes of a stream into messages, by their sizes alone.

Barriers and the frames of fenced attempts are not messages.  The split stops before them, so that the caller can
separate earlier messages from later ones.  `parse` then validates the messages, whose bytes are those of a datagram.
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import Final, NamedTuple

__all__ = ["SplitStop", "StreamSplit", "split_stream"]

_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">ihh")
_BARRIER: Final = 258
_FENCE: Final = frozenset({260, 261})


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
    """The next frame begins or ends a fenced attempt, and is complete."""


class StreamSplit(NamedTuple):
    """The offset and length of each whole message, and the offset and reason at which the split stopped.

    `size` is the size of the next message or frame; 0 = unknown.
    """

    extents: list[tuple[int, int]]
    at: int
    stop: SplitStop
    size: int


def split_stream(buffer: memoryview, at: int, end: int, longest: int) -> StreamSplit:
    """Split the bytes from `at` to `end`; a message may have at most `longest` bytes, its size field included."""
    extents: list[tuple[int, int]] = []
    while True:
        at = _split_plain(buffer, at, end, longest, extents)
        stop, size = _inspect(buffer, at, end, longest)
        if stop is not None:
            return StreamSplit(extents, at, stop, size)
        extents.append((at, size))
        at += size


def _split_plain(buffer: memoryview, at: int, end: int, longest: int, extents: list[tuple[int, int]]) -> int:
    """Add whole messages to `extents`; return the offset of the first bytes that are not simply one."""
    unpack, header = _HEADER.unpack_from, _HEADER.size
    while at + header <= end:
        size, api_key, _ = unpack(buffer, at)
        if not header <= size <= longest or at + size > end or api_key == _BARRIER or api_key in _FENCE:
            break
        extents.append((at, size))
        at += size
    return at


def _inspect(buffer: memoryview, at: int, end: int, longest: int) -> tuple[SplitStop | None, int]:
    """Return the reason to stop at `at` and the size there; None for a message too short for a header."""
    if at + _SIZE.size > end:
        return SplitStop.MORE, 0
    (size,) = _SIZE.unpack_from(buffer, at)
    if size < _SIZE.size:
        return SplitStop.INVALID_SIZE, size
    if size > longest:
        return SplitStop.TOO_LARGE, size
    if at + size > end:
        return SplitStop.MORE, size
    if size < _HEADER.size:
        return None, size
    return (SplitStop.FENCE if _HEADER.unpack_from(buffer, at)[1] in _FENCE else SplitStop.BARRIER), size
