"""Ask the brokers about topics, with the admin client of Spark's Kafka connector in the driver's JVM.

The functions get options of Spark's Kafka source. They return None if the brokers do not answer, and under Spark
Connect, which has no access to the driver's JVM.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

__all__ = ["UNLIMITED", "PartitionOffsets", "count_offsets", "missing_topics", "offsets_of", "retention_ms_of"]

_Answer = TypeVar("_Answer")

_CLIENT_PREFIX: Final = "kafka."
"""Prefix of the options that are settings of the Kafka client."""
_UNKNOWN_TOPIC: Final = "org.apache.kafka.common.errors.UnknownTopicOrPartitionException"
UNLIMITED: Final = -1
"""Kafka's value of `retention.ms` for a topic that keeps messages of any age."""


class PartitionOffsets(NamedTuple):
    """`begin` is the offset of the oldest message of a partition, `end` the offset that the next new message gets."""

    topic: str
    partition: int
    begin: int
    end: int


def count_offsets(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> int | None:
    """Return the number of offsets from the oldest to the newest message, over all partitions of the topics."""
    partitions = offsets_of(spark, options, topics)
    return None if partitions is None else sum(each.end - each.begin for each in partitions)


def offsets_of(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> list[PartitionOffsets] | None:
    """Return the offsets of all partitions of the topics."""

    def read(jvm: Any, admin: Any) -> list[PartitionOffsets]:
        descriptions = admin.describeTopics(list(topics)).allTopicNames().get()
        partitions = [
            jvm.org.apache.kafka.common.TopicPartition(name, info.partition())
            for name, topic in descriptions.items()
            for info in topic.partitions()
        ]
        offset_spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        ends, begins = (
            admin.listOffsets(dict.fromkeys(partitions, spec)).all().get()
            for spec in (offset_spec.latest(), offset_spec.earliest())
        )
        return [
            PartitionOffsets(
                str(each.topic()), int(each.partition()), int(begins[each].offset()), int(ends[each].offset())
            )
            for each in partitions
        ]

    return _request(spark, options, read)


def missing_topics(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> list[str] | None:
    """Return the topics that the brokers do not have."""

    def read(_: Any, admin: Any) -> list[str]:
        answers = admin.describeTopics(list(topics)).topicNameValues()
        return [topic for topic in topics if _is_unknown(answers[topic])]

    return _request(spark, options, read)


def _is_unknown(answer: Any) -> bool:
    """Return True if the answer is that the brokers do not have the topic. Raise Py4JJavaError for another failure."""
    try:
        answer.get()
    except Py4JJavaError as error:
        cause = error.java_exception.getCause()
        if cause is None or cause.getClass().getName() != _UNKNOWN_TOPIC:
            raise
        return True
    return False


def retention_ms_of(spark: SparkSession, options: Mapping[str, str], topic: str) -> int | None:
    """Return the age in ms at which the brokers delete messages of a topic, or `UNLIMITED`.

    The age is that of the message's timestamp. So a topic with `LogAppendTime` counts as `UNLIMITED`: the brokers
    replace old timestamps by the time of arrival.
    """

    def read(jvm: Any, admin: Any) -> int:
        config_resource = jvm.org.apache.kafka.common.config.ConfigResource
        resource = config_resource(config_resource.Type.TOPIC, topic)
        config = admin.describeConfigs([resource]).all().get()[resource]
        # Python cannot iterate over the entries of `config`, a Java object, so it reads each by its name.
        policy, timestamp_type, retention_ms = (
            config.get(name).value() for name in ("cleanup.policy", "message.timestamp.type", "retention.ms")
        )
        return int(retention_ms) if "delete" in policy and timestamp_type == "CreateTime" else UNLIMITED

    return _request(spark, options, read)


def _request(spark: SparkSession, options: Mapping[str, str], request: Callable[[Any, Any], _Answer]) -> _Answer | None:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    try:
        with _open_admin_client(jvm, options) as admin:
            return request(jvm, admin)
    except Py4JJavaError:  # the job also reads or writes the topic, and fails with the reason
        return None


@contextmanager
def _open_admin_client(jvm: Any, options: Mapping[str, str]) -> Iterator[Any]:
    settings = jvm.java.util.Properties()
    for name, value in options.items():
        if name.startswith(_CLIENT_PREFIX):
            settings.setProperty(name.removeprefix(_CLIENT_PREFIX), value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        yield admin
    finally:
        admin.close()
