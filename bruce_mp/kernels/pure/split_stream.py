"""Split the bytes of a stream into messages, by their sizes alone.

Barriers and the frames of fenced attempts are not messages.  The cut stops before them, so that the caller can separate
earlier messages from later ones.  Nothing else is inspected here; `parse` validates the messages and sees the same
bytes as in a datagram.
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import Final, NamedTuple

__all__ = ["SplitStop", "StreamSplit", "split_stream"]

_SIZE: Final = Struct(">i")
_HEAD: Final = Struct(">ihh")
_BARRIER: Final = 258
_FENCE: Final = frozenset({260, 261})


@unique
class SplitStop(IntEnum):
    """The reason for the end of a cut."""

    MORE = 0
    """The rest is empty or the beginning of a message."""
    INVALID_SIZE = 1
    """A size smaller than the size field: the start of the next message is unknown."""
    TOO_LARGE = 2
    """A size above the limit; the message itself may not be there yet."""
    BARRIER = 3
    """A complete barrier."""
    FENCE = 4
    """A complete frame that begins or ends a fenced attempt."""


class StreamSplit(NamedTuple):
    """(offset, length) of each whole message, and the offset and reason of the end.

    `size` is that of the next message or frame, 0 where it is still unknown.
    """

    places: list[tuple[int, int]]
    at: int
    stop: SplitStop
    size: int


def split_stream(buffer: memoryview, at: int, end: int, longest: int) -> StreamSplit:
    """Split the bytes from `at` to `end`; a message may have at most `longest` bytes, its size field included."""
    places: list[tuple[int, int]] = []
    while True:
        at = _cut_plain(buffer, at, end, longest, places)
        stop, size = _look(buffer, at, end, longest)
        if stop is not None:
            return StreamSplit(places, at, stop, size)
        places.append((at, size))
        at += size


def _cut_plain(buffer: memoryview, at: int, end: int, longest: int, places: list[tuple[int, int]]) -> int:
    """Split messages until one needs a closer inspection."""
    unpack, header = _HEAD.unpack_from, _HEAD.size
    while at + header <= end:
        size, api_key, _ = unpack(buffer, at)
        if not header <= size <= longest or at + size > end or api_key == _BARRIER or api_key in _FENCE:
            break
        places.append((at, size))
        at += size
    return at


def _look(buffer: memoryview, at: int, end: int, longest: int) -> tuple[SplitStop | None, int]:
    """Return the reason to stop at `at`, and the size there; no reason for a message too short for a header."""
    if at + _SIZE.size > end:
        return SplitStop.MORE, 0
    (size,) = _SIZE.unpack_from(buffer, at)
    if size < _SIZE.size:
        return SplitStop.INVALID_SIZE, size
    if size > longest:
        return SplitStop.TOO_LARGE, size
    if at + size > end:
        return SplitStop.MORE, size
    if size < _HEAD.size:
        return None, size
    return (SplitStop.FENCE if _HEAD.unpack_from(buffer, at)[1] in _FENCE else SplitStop.BARRIER), size
