"""Cut what came on a stream into messages, by their sizes alone.

A barrier is not a message, nor are the frames of a fenced attempt: the cut stops before them, so that what follows can
be told from what went before.  Nothing
else is looked at here; what a message says is for `parse`, which sees the same bytes that a datagram would have had.
"""

from __future__ import annotations

from enum import IntEnum, unique
from struct import Struct
from typing import Final, NamedTuple

__all__ = ["Cut", "Stop", "cut"]

_SIZE: Final = Struct(">i")
_HEAD: Final = Struct(">ihh")
_BARRIER: Final = 258
_FENCE: Final = frozenset({260, 261})


@unique
class Stop(IntEnum):
    """Why a cut stopped where it did."""

    MORE = 0
    """What is left is the beginning of a message, or nothing."""
    INVALID_SIZE = 1
    """A size that is less than its own length: nobody knows where the next message begins."""
    TOO_LARGE = 2
    """A size that is more than is allowed; the message need not have come."""
    BARRIER = 3
    """A barrier, complete."""
    FENCE = 4
    """A frame that begins or ends a fenced attempt, complete."""


class Cut(NamedTuple):
    """(offset, length) of each whole message, where the cut stopped and why.

    `size` is that of what begins there, 0 where it is not known yet.
    """

    places: list[tuple[int, int]]
    at: int
    stop: Stop
    size: int


def cut(buffer: memoryview, at: int, end: int, longest: int) -> Cut:
    """Cut the bytes from `at` to `end`; a message may have at most `longest` bytes, its size included."""
    places: list[tuple[int, int]] = []
    while True:
        at = _cut_plain(buffer, at, end, longest, places)
        stop, size = _look(buffer, at, end, longest)
        if stop is not None:
            return Cut(places, at, stop, size)
        places.append((at, size))
        at += size


def _cut_plain(buffer: memoryview, at: int, end: int, longest: int, places: list[tuple[int, int]]) -> int:
    """Cut as long as nothing needs a second look."""
    unpack, header = _HEAD.unpack_from, _HEAD.size
    while at + header <= end:
        size, api_key, _ = unpack(buffer, at)
        if not header <= size <= longest or at + size > end or api_key == _BARRIER or api_key in _FENCE:
            break
        places.append((at, size))
        at += size
    return at


def _look(buffer: memoryview, at: int, end: int, longest: int) -> tuple[Stop | None, int]:
    """What begins at `at`: its size, and why the cut stops there; no reason for a message too short for a header."""
    if at + _SIZE.size > end:
        return Stop.MORE, 0
    (size,) = _SIZE.unpack_from(buffer, at)
    if size < _SIZE.size:
        return Stop.INVALID_SIZE, size
    if size > longest:
        return Stop.TOO_LARGE, size
    if at + size > end:
        return Stop.MORE, size
    if size < _HEAD.size:
        return None, size
    return (Stop.FENCE if _HEAD.unpack_from(buffer, at)[1] in _FENCE else Stop.BARRIER), size
