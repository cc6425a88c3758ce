"""The encoding of a message from its fields, for the pure kernels and for the slow path of `Client.send()`.

This module is not in `pure`, because it has no extension module of the same name: its Cython twin,
`compiled/fields.pxd`, is compiled into other extension modules.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bruce_mp.protocol.client.messages import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.protocol.client.record_headers import Buffer, HeaderInput

__all__ = ["encode_fields"]


def encode_fields(  # noqa: PLR0917  # keywords would cost as much as the rest of the call
    topic: bytes | str,
    value: Buffer | None,
    key: Buffer | None,
    partition_key: int | None,
    timestamp_ms: int | None,
    headers: Sequence[HeaderInput],
    keep_empty: bool,
) -> bytes:
    """Encode a message; if `timestamp_ms` is None, the message gets the present time."""
    stamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    return encode(topic, value, key, partition_key, timestamp_ms=stamp_ms, headers=headers, keep_empty=keep_empty)
