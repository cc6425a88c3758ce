"""Decompression of record batches by kafka-python, the reference for the daemon's codecs."""

from __future__ import annotations

from typing import Final

import kafka.codec

from bruce_mp.protocol.kafka.compression import Codec

__all__ = ["decompress"]

_DECODERS: Final = {
    Codec.NONE: bytes,
    Codec.GZIP: kafka.codec.gzip_decode,
    Codec.SNAPPY: kafka.codec.snappy_decode,
    Codec.LZ4: kafka.codec.lz4_decode,
    Codec.ZSTD: kafka.codec.zstd_decode,
}


def decompress(codec: Codec, data: bytes) -> bytes:
    """Return the records that a batch with this codec holds."""
    records: bytes = _DECODERS[codec](data)
    return records
