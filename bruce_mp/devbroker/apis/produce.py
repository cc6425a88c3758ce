"""Produce (0), versions 3 to 12: check, append, and respond for each partition.

Like Kafka 4, the development broker advertises versions 0 to 2 too, because old clients derive the supported codecs
from the lowest version; but a request of these versions closes the connection. The development broker does not serve
version 13, which names topics by id.

A request with acks 0 has no response, so the broker reports an error by closing the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from bruce_mp.devbroker.apis.base import Api, Context
from bruce_mp.devbroker.batch import check_batch
from bruce_mp.devbroker.cluster import NO_LEADER, Cluster
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError
from bruce_mp.devbroker.faults import FaultAction, Target
from bruce_mp.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.devbroker.log import AppendResult

__all__ = ["API"]

TopicResponse: Final = ProduceResponse.TopicProduceResponse
PartitionResponse: Final = TopicResponse.PartitionProduceResponse
LeaderIdAndEpoch: Final = PartitionResponse.LeaderIdAndEpoch
NO_OFFSET: Final = -1
VALID_ACKS: Final = (-1, 0, 1)
SEQUENCE_ERRORS: Final = (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH)


def handle(request: Any, context: Context) -> Any:
    context.statistics.timeouts_ms[request.timeout_ms] += 1
    topics = [
        TopicResponse(
            name=topic.name,
            partition_responses=[respond(topic.name, data, request.acks, context) for data in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    partitions = [partition for topic in topics for partition in topic.partition_responses]
    if request.acks == 0:
        raise_first_error(partitions)
        return None
    endpoints = leader_endpoints(partitions, context.cluster)
    return ProduceResponse(version=context.version, responses=topics, node_endpoints=endpoints)


def raise_first_error(partitions: Iterable[Any]) -> None:
    """Raise RemoteProtocolError, which closes the connection, if a partition has an error."""
    failed = next((partition for partition in partitions if partition.error_code), None)
    if failed is not None:
        raise RemoteProtocolError(
            f"Produce with acks 0 failed with error {failed.error_code}; the closed connection tells the client."
        )


def respond(topic: str, data: Any, acks: int, context: Context) -> Any:
    """Append the batch for one partition, and return the partition's part of the response.

    `data` is the partition's part of the request.
    """
    try:
        result = append(topic, data, acks, context)
    except RefusedError as refusal:
        return error_response(topic, data.index, refusal.code, str(refusal), context)
    # A scripted fault can set an error in the response although the batch was appended.
    code = context.triggered.error_code(FaultAction.ERROR_APPENDED, target_of(topic, data))
    if code:
        return error_response(
            topic, data.index, code, "A scripted fault sets this error; the batch was appended.", context
        )
    start = context.cluster.partition(topic, data.index).log.start
    return PartitionResponse(
        index=data.index, error_code=Code.NONE, base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time, log_start_offset=start,
    )  # fmt: skip


def append(topic: str, data: Any, acks: int, context: Context) -> AppendResult:
    """Append the batch for one partition unless it is a duplicate, and count the batch.

    Raise RefusedError if the request or the batch is invalid, if this broker does not lead the partition, or if a
    scripted fault sets an error.
    """
    if acks not in VALID_ACKS:
        raise RefusedError(Code.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {acks}.")
    context.raise_scripted_error(target_of(topic, data))
    partition = context.cluster.partition_led_by(context.broker, topic, data.index)
    head = check_batch(data.records, context.version, context.cluster.limits)
    result = partition.log.append(head, data.records, partition.epoch)
    statistics = context.statistics
    if result.is_duplicate:
        statistics.duplicates += 1
    else:
        statistics.batches += 1
        statistics.records += head.record_count
        statistics.bytes += head.size
    return result


def error_response(topic: str, index: int, code: int, text: str, context: Context) -> Any:
    """Count an error, and return the part of the response that reports it for the partition."""
    context.statistics.errors[code] += 1
    context.statistics.sequence_errors += code in SEQUENCE_ERRORS
    response = PartitionResponse(index=index, error_code=code, base_offset=NO_OFFSET, error_message=text)
    if code == Code.NOT_LEADER_OR_FOLLOWER:
        response.current_leader = leader_of(topic, index, context.cluster)
    return response


def leader_of(topic: str, index: int, cluster: Cluster) -> Any:
    """Return the leader of a partition, so that the client can send to it without a Metadata request (KIP-951).

    For an unknown partition, return `NO_LEADER`.
    """
    try:
        partition = cluster.partition(topic, index)
    except RefusedError:
        return LeaderIdAndEpoch(leader_id=NO_LEADER, leader_epoch=-1)
    return LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.epoch)


def leader_endpoints(partitions: Iterable[Any], cluster: Cluster) -> list[Any]:
    """Return the addresses of the leaders that these parts of the response name (see `leader_of`)."""
    leaders = {p.current_leader.leader_id for p in partitions if p.error_code == Code.NOT_LEADER_OR_FOLLOWER}
    nodes = [node for node in cluster.snapshot().nodes if node.id in leaders]
    return [ProduceResponse.NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=None) for node in nodes]


def targets(request: Any) -> Iterable[Target]:
    return (target_of(topic.name, data) for topic in request.topic_data for data in topic.partition_data)


def target_of(topic: str, data: Any) -> Target:
    return Target(topic, data.index, data.records)


API: Final = Api(ApiKey.PRODUCE, (0, 12), ProduceRequest, handle, served_from=3, targets=targets)
