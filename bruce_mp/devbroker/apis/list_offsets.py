"""ListOffsets (2), versions 1 to 7: the earliest or latest offset of a partition, or the offset for a timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.codes import ApiKey, RefusedError
from bruce_mp.devbroker.faults import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.devbroker.log import PartitionLog

__all__ = ["API"]

TopicResponse: Final = ListOffsetsResponse.ListOffsetsTopicResponse
PartitionResponse: Final = TopicResponse.ListOffsetsPartitionResponse
# Values of a request in place of a timestamp:
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
NOT_FOUND: Final = (-1, -1)  # offset and timestamp if no record has the timestamp or a later one


def handle(request: Any, context: Context) -> Any:
    topics = [
        TopicResponse(name=topic.name, partitions=[answer(topic.name, part, context) for part in topic.partitions])
        for topic in request.topics
    ]
    return ListOffsetsResponse(version=context.version, topics=topics)


def answer(topic: str, part: Any, context: Context) -> Any:
    try:
        context.raise_scripted_error(Target(topic, part.partition_index))
        epoch = part.current_leader_epoch
        partition = context.cluster.partition_led_by(context.broker, topic, part.partition_index, epoch)
        offset, timestamp = find_offset(partition.log, part.timestamp)
    except RefusedError as refusal:
        return PartitionResponse(partition_index=part.partition_index, error_code=refusal.code)
    return PartitionResponse(
        partition_index=part.partition_index, timestamp=timestamp, offset=offset, leader_epoch=partition.epoch
    )


def find_offset(log: PartitionLog, timestamp: int) -> tuple[int, int]:
    """Return (offset, timestamp) for `timestamp`, which is in ms or one of the negative constants."""
    if timestamp == LATEST:
        return log.end, -1
    if timestamp == EARLIEST:
        return log.start, -1
    if timestamp == MAX_TIMESTAMP:
        return log.find_max_timestamp() or NOT_FOUND
    return log.find_timestamp(timestamp) or NOT_FOUND


def targets(request: Any) -> Iterable[Target]:
    return (Target(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions)


API: Final = Api(ApiKey.LIST_OFFSETS, (1, 7), ListOffsetsRequest, handle, targets=targets)
