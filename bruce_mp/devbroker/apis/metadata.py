"""Metadata (3): brokers, topics and leaders. It creates topics on demand if that is enabled.

The first response for a topic created on demand is LEADER_NOT_AVAILABLE, as from a real cluster; the client retries.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from bruce_mp.devbroker.apis.base import Api, Context, topic_targets
from bruce_mp.devbroker.cluster import NO_LEADER, PartitionView, TopicSnapshot, View, check_topic_name
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError
from bruce_mp.devbroker.faults import WHOLE_REQUEST, Target

__all__ = ["API"]

Topic: Final = MetadataResponse.MetadataResponseTopic
Partition: Final = Topic.MetadataResponsePartition
Broker: Final = MetadataResponse.MetadataResponseBroker
NO_ID: Final = UUID(int=0)
EMPTY_MEANS_ALL_UNTIL: Final = 0  # versions in which an empty list requests all topics
AUTO_CREATE_ASKED_SINCE: Final = 4  # versions with the field allow_auto_topic_creation


def handle(request: Any, context: Context) -> Any:
    view = context.cluster.next_view()
    return MetadataResponse(
        version=context.version,
        brokers=[Broker(node_id=node.id, host=node.host, port=node.port, rack=None) for node in view.nodes],
        cluster_id=context.cluster.id,
        controller_id=min((node.id for node in view.nodes), default=-1),
        topics=[answer(topic, request, view, context) for topic in requested_topics(request, view, context.version)],
    )


def requested_topics(request: Any, view: View, version: int) -> list[Any]:
    """Return the requested topics, as the request names them."""
    requests_all = request.topics is None or (not request.topics and version == EMPTY_MEANS_ALL_UNTIL)
    if not requests_all:
        return list(request.topics)
    return [MetadataRequest.MetadataRequestTopic(topic_id=topic.id, name=name) for name, topic in view.topics.items()]


def answer(wanted: Any, request: Any, view: View, context: Context) -> Any:
    try:
        context.check_fault(Target(wanted.name))
        topic = find_topic(wanted, request, view, context)
    except RefusedError as refusal:
        return Topic(error_code=refusal.code, name=wanted.name, topic_id=wanted.topic_id or NO_ID, partitions=[])
    partitions = [describe(number, partition, view) for number, partition in enumerate(topic.partitions)]
    return Topic(error_code=Code.NONE, name=topic.name, topic_id=topic.id, is_internal=False, partitions=partitions)


def find_topic(wanted: Any, request: Any, view: View, context: Context) -> TopicSnapshot:
    """Return a topic by name or id, and create it if that is enabled. Raise RefusedError for an unknown one."""
    if wanted.name is None:
        return find_by_id(wanted.topic_id, view)
    topic = view.topics.get(wanted.name)
    if topic is not None:
        return topic
    check_topic_name(wanted.name)
    if context.cluster.auto_create and (request.allow_auto_topic_creation or context.version < AUTO_CREATE_ASKED_SINCE):
        with suppress(RefusedError):  # the topic may be newer than the view
            context.cluster.add_topic(wanted.name, context.cluster.auto_create)
        raise RefusedError(Code.LEADER_NOT_AVAILABLE, f"Topic {wanted.name!r} has just been created.")
    raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {wanted.name!r}.")


def find_by_id(topic_id: UUID, view: View) -> TopicSnapshot:
    found = next((topic for topic in view.topics.values() if topic.id == topic_id), None)
    if found is None:
        raise RefusedError(Code.UNKNOWN_TOPIC_ID, f"There is no topic with the id {topic_id}.")
    return found


def describe(number: int, partition: PartitionView, view: View) -> Any:
    """Describe a partition with every broker as an in-sync replica, the leader first."""
    others = [node.id for node in view.nodes if node.id != partition.leader]
    replicas = others if partition.leader == NO_LEADER else [partition.leader, *others]
    return Partition(
        error_code=Code.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else Code.NONE, partition_index=number,
        leader_id=partition.leader, leader_epoch=partition.epoch, replica_nodes=replicas, isr_nodes=replicas,
    )  # fmt: skip


API: Final = Api(
    ApiKey.METADATA, (0, 13), MetadataRequest, handle, targets=lambda asked: topic_targets(asked) or [WHOLE_REQUEST]
)
