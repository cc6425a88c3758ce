"""Metadata (3): brokers, topics and leaders. If the broker was started with auto-create, it creates unknown topics.

As in a real cluster, the response to the request that creates a topic has the error LEADER_NOT_AVAILABLE for this
topic, and the client repeats the request.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from bruce_mp.devbroker.apis.base import Api, Context, topic_targets
from bruce_mp.devbroker.cluster import NO_LEADER, ClusterSnapshot, PartitionSnapshot, TopicSnapshot, check_topic_name
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError
from bruce_mp.devbroker.faults import WHOLE_REQUEST, Target

__all__ = ["API"]

Topic: Final = MetadataResponse.MetadataResponseTopic
Partition: Final = Topic.MetadataResponsePartition
Broker: Final = MetadataResponse.MetadataResponseBroker
NO_ID: Final = UUID(int=0)
EMPTY_MEANS_ALL_VERSION: Final = 0  # the only version in which an empty list requests all topics
AUTO_CREATE_FIELD_VERSION: Final = 4  # the first version with the field allow_auto_topic_creation


def handle(request: Any, context: Context) -> Any:
    snapshot = context.cluster.next_response_snapshot()
    return MetadataResponse(
        version=context.version,
        brokers=[Broker(node_id=node.id, host=node.host, port=node.port, rack=None) for node in snapshot.nodes],
        cluster_id=context.cluster.cluster_id,
        controller_id=min((node.id for node in snapshot.nodes), default=-1),
        topics=[
            answer(topic, request, snapshot, context) for topic in requested_topics(request, snapshot, context.version)
        ],
    )


def requested_topics(request: Any, snapshot: ClusterSnapshot, version: int) -> list[Any]:
    """Return kafka-python's objects for the requested topics: those of the request, or one for each existing topic."""
    requests_all = request.topics is None or (not request.topics and version == EMPTY_MEANS_ALL_VERSION)
    if not requests_all:
        return list(request.topics)
    return [
        MetadataRequest.MetadataRequestTopic(topic_id=topic.id, name=name) for name, topic in snapshot.topics.items()
    ]


def answer(wanted: Any, request: Any, snapshot: ClusterSnapshot, context: Context) -> Any:
    try:
        context.raise_scripted_error(Target(wanted.name))
        topic = find_topic(wanted, request, snapshot, context)
    except RefusedError as refusal:
        return Topic(error_code=refusal.code, name=wanted.name, topic_id=wanted.topic_id or NO_ID, partitions=[])
    partitions = [describe(number, partition, snapshot) for number, partition in enumerate(topic.partitions)]
    return Topic(error_code=Code.NONE, name=topic.name, topic_id=topic.id, is_internal=False, partitions=partitions)


def find_topic(wanted: Any, request: Any, snapshot: ClusterSnapshot, context: Context) -> TopicSnapshot:
    """Return the topic that the request names, or identifies by its id.

    Raise RefusedError if there is no such topic. If the request and the broker's setting allow it, create the topic
    before, so that the next request finds it.
    """
    if wanted.name is None:
        return find_by_id(wanted.topic_id, snapshot)
    topic = snapshot.topics.get(wanted.name)
    if topic is not None:
        return topic
    check_topic_name(wanted.name)
    is_allowed = context.version < AUTO_CREATE_FIELD_VERSION or request.allow_auto_topic_creation
    if context.cluster.auto_create_partitions and is_allowed:
        with suppress(RefusedError):  # the topic exists already if it is newer than a frozen snapshot
            context.cluster.add_topic(wanted.name, context.cluster.auto_create_partitions)
        raise RefusedError(Code.LEADER_NOT_AVAILABLE, f"Topic {wanted.name!r} has just been created.")
    raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {wanted.name!r}.")


def find_by_id(topic_id: UUID, snapshot: ClusterSnapshot) -> TopicSnapshot:
    found = next((topic for topic in snapshot.topics.values() if topic.id == topic_id), None)
    if found is None:
        raise RefusedError(Code.UNKNOWN_TOPIC_ID, f"There is no topic with the id {topic_id}.")
    return found


def describe(number: int, partition: PartitionSnapshot, snapshot: ClusterSnapshot) -> Any:
    """Return the description of a partition, in which all brokers are in-sync replicas, the leader first."""
    followers = [node.id for node in snapshot.nodes if node.id != partition.leader]
    replicas = followers if partition.leader == NO_LEADER else [partition.leader, *followers]
    return Partition(
        error_code=Code.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else Code.NONE, partition_index=number,
        leader_id=partition.leader, leader_epoch=partition.epoch, replica_nodes=replicas, isr_nodes=replicas,
    )  # fmt: skip


# A request for all topics names none, so faults concern it as a whole.
API: Final = Api(
    ApiKey.METADATA, (0, 13), MetadataRequest, handle, targets=lambda asked: topic_targets(asked) or [WHOLE_REQUEST]
)
