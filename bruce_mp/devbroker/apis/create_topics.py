"""CreateTopics (19), versions 2 to 7: create topics with a name and a number of partitions.

The broker ignores the replicas and configs in a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from bruce_mp.devbroker.apis.base import Api, Context, topic_targets
from bruce_mp.devbroker.codes import ApiKey, Code, RefusedError
from bruce_mp.devbroker.faults import Target

if TYPE_CHECKING:
    from bruce_mp.devbroker.cluster import Cluster

__all__ = ["API"]

Outcome: Final = CreateTopicsResponse.CreatableTopicResult
NO_ID: Final = UUID(int=0)
DEFAULT_PARTITIONS: Final = -1  # number in a request that leaves the number of partitions to the broker


def handle(request: Any, context: Context) -> Any:
    topics = [answer(topic, request.validate_only, context) for topic in request.topics]
    return CreateTopicsResponse(version=context.version, topics=topics)


def answer(wanted: Any, validate_only: bool, context: Context) -> Any:
    try:
        context.raise_scripted_error(Target(wanted.name))
        partition_count = wanted_partition_count(wanted, context.cluster)
        if validate_only:
            context.cluster.check_new_topic(wanted.name, partition_count)
            topic_id = NO_ID
        else:
            topic_id = context.cluster.add_topic(wanted.name, partition_count).id
    except RefusedError as refusal:
        return Outcome(name=wanted.name, topic_id=NO_ID, error_code=refusal.code, error_message=str(refusal))
    return Outcome(
        name=wanted.name, topic_id=topic_id, error_code=Code.NONE, error_message=None, num_partitions=partition_count,
        replication_factor=1, configs=[],
    )  # fmt: skip


def wanted_partition_count(wanted: Any, cluster: Cluster) -> int:
    if wanted.assignments:
        return len(wanted.assignments)
    if wanted.num_partitions == DEFAULT_PARTITIONS:
        return cluster.auto_create_partitions or 1
    return int(wanted.num_partitions)


API: Final = Api(ApiKey.CREATE_TOPICS, (2, 7), CreateTopicsRequest, handle, targets=topic_targets)
