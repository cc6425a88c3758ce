"""Codecs of record batches: what Kafka's attributes call 1 to 4, in the forms that every broker and consumer reads.

    gzip    a gzip container, without name and time, so that the same bytes give the same bytes
    snappy  one raw block.  Java's clients write xerial's framing, but their reader takes a block without its magic as
            raw (SnappyInputStream.readFully), librdkafka writes and reads raw ones, and so did our ancestors; framing
            would cost 3 to 4 % in size
    lz4     the frame format with independent blocks: Java's reader refuses dependent ones
    zstd    one frame; only in produce requests from version 7 on (`BrokerAbilities.takes`)

One compressor of zstd is kept for each level, for it allocates its tables when it is made.
Decompression is bounded: its input may come from anybody.
"""

from __future__ import annotations

import zlib
from enum import IntEnum, unique
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import lz4.frame
import snappy
import zstandard

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEVELS", "Codec", "Levels", "choose", "compress", "decompress"]

GZIP_CONTAINER: Final = zlib.MAX_WBITS | 16
DEFAULT_LIMIT: Final = 256 * 1024 * 1024
DECODER_FAILURES: Final = (zlib.error, zstandard.ZstdError, snappy.UncompressError, RuntimeError, EOFError, ValueError)
"""What the libraries raise on damaged input; lz4 raises plain RuntimeError."""


@unique
class Codec(IntEnum):
    """The value is what stands in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Levels(NamedTuple):
    """Levels of a codec, both ends included, and the one to use if none is asked for."""

    lowest: int
    highest: int
    default: int


LEVELS: Final = {
    Codec.GZIP: Levels(0, 9, 6),
    Codec.LZ4: Levels(0, 16, 0),
    Codec.ZSTD: Levels(1, 22, 3),
}
"""Codecs that are not in it have no levels."""


def compress(codec: Codec, level: int | None, data: bytes) -> bytes:
    """`level` None, and any level of a codec without levels, is the codec's own.

    Raises LocalProtocolError for a level out of range.
    """
    return _COMPRESSORS[codec](data, _level(codec, level))


def _level(codec: Codec, level: int | None) -> int:
    levels = LEVELS.get(codec)
    if levels is None:
        return 0
    if level is None:
        return levels.default
    if not levels.lowest <= level <= levels.highest:
        raise LocalProtocolError(
            f"{codec.name.lower()} has the levels {levels.lowest} to {levels.highest}, and not {level}."
        )
    return level


def decompress(codec: Codec, data: bytes, limit: int = DEFAULT_LIMIT) -> bytes:
    """Raises RemoteProtocolError for damaged data and for more than `limit` bytes of output."""
    try:
        return _DECOMPRESSORS[codec](data, limit)
    except DECODER_FAILURES as failure:
        text = f"Records compressed with {codec.name.lower()} cannot be read: {failure or type(failure).__name__}."
        raise RemoteProtocolError(text) from failure


def choose(compressed_len: int, uncompressed_len: int, threshold_percent: int) -> bool:
    """Whether the compressed form is worth sending: not larger than that share of the plain form."""
    return compressed_len * 100 <= uncompressed_len * threshold_percent


# --- the codecs -------------------------------------------------------------------------------------------------------
def _gzip(data: bytes, level: int) -> bytes:
    return zlib.compress(data, level, wbits=GZIP_CONTAINER)


def _lz4(data: bytes, level: int) -> bytes:
    packed: bytes = lz4.frame.compress(data, compression_level=level, block_linked=False)
    return packed


def _snappy(data: bytes, _level: int) -> bytes:
    packed: bytes = snappy.compress(data)
    return packed


@cache
def _zstd_compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level)


def _zstd(data: bytes, level: int) -> bytes:
    return _zstd_compressor(level).compress(data)


_COMPRESSORS: Final[dict[Codec, Callable[[bytes, int], bytes]]] = {
    Codec.NONE: lambda data, _level: data,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}


def _gunzip(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(wbits=GZIP_CONTAINER)
    return _whole(stream.decompress(data, limit + 1), limit, ended=stream.eof)


def _unlz4(data: bytes, limit: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    return _whole(stream.decompress(data, max_length=limit + 1), limit, ended=stream.eof)


def _unsnappy(data: bytes, limit: int) -> bytes:
    # A block starts with the length of its plain form, and the library allocates what that says.
    _bounded(_uvarint(data), limit)
    plain: bytes = snappy.decompress(data)
    return plain


def _unzstd(data: bytes, limit: int) -> bytes:
    declared = zstandard.get_frame_parameters(data).content_size
    if declared != zstandard.CONTENTSIZE_UNKNOWN:
        _bounded(declared, limit)
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit)


def _whole(plain: bytes, limit: int, *, ended: bool) -> bytes:
    _bounded(len(plain), limit)
    if not ended:
        raise EOFError("they end too early")
    return plain


def _bounded(length: int, limit: int) -> None:
    if length > limit:
        raise ValueError(f"they unfold to more than {limit} bytes")


def _uvarint(data: bytes) -> int:
    value = 0
    for position, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value
    raise ValueError("their length is missing")


_DECOMPRESSORS: Final[dict[Codec, Callable[[bytes, int], bytes]]] = {
    Codec.NONE: lambda data, _limit: data,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
