"""Fetch (1), versions 4 to 12: read whole batches, and wait for more if the client allows it.

The broker does not serve versions 13 and later, which name topics by id. It declines fetch sessions (KIP-227), as Kafka
allows: the session id of each response is 0, so a client must name all its partitions in each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.consumer import FetchRequest, FetchResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError
from bruce_mp.devbroker.faults import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["API"]

TopicResponse: Final = FetchResponse.FetchableTopicResponse
PartitionData: Final = TopicResponse.PartitionData
UNKNOWN_OFFSET: Final = -1  # Kafka's value of the offsets in the response for a refused partition


class Budget:
    """Byte limit of a response. Only the first batch of the response may exceed it (KIP-74)."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes_left = max_bytes
        """Number of bytes that the response may still get; may be negative."""
        self.is_untouched = True
        """True until the response gets its first batch."""

    def read_within(self, partition_max: int, read: Any) -> bytes:
        """Read the batches of one partition, and return them if the limits allow it, else no bytes.

        `read` returns batches of at most the number of bytes that it is called with, or a single larger batch. That
        number is the smaller of `partition_max` and `bytes_left`.
        """
        allowed = min(partition_max, self.bytes_left)
        if not self.is_untouched and allowed <= 0:
            return b""
        records: bytes = read(allowed)
        if not self.is_untouched and len(records) > allowed:
            return b""
        self.bytes_left -= len(records)
        self.is_untouched = self.is_untouched and not records
        return records


def handle(request: Any, context: Context) -> Any:
    if request.session_id != 0:
        return FetchResponse(version=context.version, error_code=Code.FETCH_SESSION_ID_NOT_FOUND, responses=[])
    budget = Budget(request.max_bytes)
    topics = [
        TopicResponse(
            topic=topic.topic, partitions=[answer(topic.topic, part, budget, context) for part in topic.partitions]
        )
        for topic in request.topics
    ]
    return FetchResponse(version=context.version, error_code=Code.NONE, session_id=0, responses=topics)


def answer(topic: str, part: Any, budget: Budget, context: Context) -> Any:
    try:
        context.raise_scripted_error(Target(topic, part.partition))
        partition = context.cluster.partition_led_by(context.broker, topic, part.partition, part.current_leader_epoch)
        log = partition.log
        records = budget.read_within(part.partition_max_bytes, lambda allowed: log.read(part.fetch_offset, allowed))
    except RefusedError as refusal:
        return partition_data(part.partition, refusal.code, UNKNOWN_OFFSET, UNKNOWN_OFFSET, b"")
    return partition_data(part.partition, Code.NONE, log.end, log.start, records)


def partition_data(index: int, code: int, end: int, start: int, records: bytes) -> Any:
    return PartitionData(
        partition_index=index, error_code=code, high_watermark=end, last_stable_offset=end, log_start_offset=start,
        aborted_transactions=None, records=records,
    )  # fmt: skip


def targets(request: Any) -> Iterable[Target]:
    return (Target(topic.topic, part.partition) for topic in request.topics for part in topic.partitions)


def max_wait_s(request: Any) -> float:
    return float(max(0, request.max_wait_ms)) / 1000


def is_sufficient(request: Any, response: Any) -> bool:
    """Return True if the response has an error, no partitions, or at least `min_bytes` of records."""
    partitions = [part for topic in response.responses for part in topic.partitions]
    if response.error_code or not partitions or any(part.error_code for part in partitions):
        return True
    return bool(sum(len(part.records) for part in partitions) >= request.min_bytes)


API: Final = Api(
    ApiKey.FETCH, (4, 12), FetchRequest, handle, targets=targets, max_wait_s=max_wait_s, is_sufficient=is_sufficient
)
