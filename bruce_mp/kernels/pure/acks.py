"""Produce responses in which the broker accepts all batches, which is nearly every response."""

from __future__ import annotations

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.produce_request import FIRST_FLEXIBLE_VERSION
from bruce_mp.protocol.kafka.produce_response import decode_produce

__all__ = ["read_accepted"]


def read_accepted(frame: bytes, version: int, topics: list[bytes], partitions: list[int]) -> int | None:
    """Return the throttle time in ms if a produce response accepts each batch of its request once, in any order.

    Batch i of the request is for partition `partitions[i]` of topic `topics[i]`.  None means that `decode_produce` must
    read the response: it has an error, another set of partitions, a rare optional field or a version before 9, or does
    not follow the protocol.
    """
    if version < FIRST_FLEXIBLE_VERSION:
        return None
    try:
        response = decode_produce(frame, version)
    except RemoteProtocolError:
        return None
    expected = set(zip(topics, partitions, strict=True))
    accepted = {(ack.topic, ack.partition) for ack in response.acks if not ack.error}
    is_complete = accepted == expected and len(response.acks) == len(expected) == len(topics)
    return response.throttle_ms if is_complete else None
