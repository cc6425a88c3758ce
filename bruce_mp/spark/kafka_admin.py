"""Ask the brokers about topics with the admin client of Spark's Kafka connector, which runs in the driver's JVM."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

__all__ = ["count_messages_of", "retention_of"]

_PREFIX: Final = "kafka."
_UNLIMITED: Final = -1


def count_messages_of(spark: SparkSession, options: Mapping[str, str], topics: Sequence[str]) -> int | None:
    """Return the number of offsets from the oldest to the newest message of the topics.

    `options` are those of Spark's Kafka source. None under Spark Connect, and if the brokers do not answer.
    """

    def count(jvm: Any, admin: Any) -> int:
        found = admin.describeTopics(list(topics)).allTopicNames().get()
        partitions = [
            jvm.org.apache.kafka.common.TopicPartition(name, info.partition())
            for name, topic in found.items()
            for info in topic.partitions()
        ]
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        ends, begins = (
            admin.listOffsets(dict.fromkeys(partitions, at)).all().get() for at in (spec.latest(), spec.earliest())
        )
        return sum(int(ends[partition].offset()) - int(begins[partition].offset()) for partition in partitions)

    return _request(spark, options, count)


def retention_of(spark: SparkSession, options: Mapping[str, str], topic: str) -> int | None:
    """Return the age in ms at which the brokers delete messages of a topic, -1 if at none.

    -1 also if the brokers replace timestamps (`LogAppendTime`). None as in `count_messages_of`.
    """

    def read(jvm: Any, admin: Any) -> int:
        config = jvm.org.apache.kafka.common.config.ConfigResource
        resource = config(config.Type.TOPIC, topic)
        found = admin.describeConfigs([resource]).all().get()[resource]  # Python cannot iterate over its entries
        policy, times, age = (
            found.get(name).value() for name in ("cleanup.policy", "message.timestamp.type", "retention.ms")
        )
        return int(age) if "delete" in policy and times == "CreateTime" else _UNLIMITED

    return _request(spark, options, read)


def _request(spark: SparkSession, options: Mapping[str, str], request: Callable[[Any, Any], int]) -> int | None:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    try:
        with _admin(jvm, options) as admin:
            return request(jvm, admin)
    except Py4JJavaError:  # reading or writing the topic will fail too, with the reason
        return None


@contextmanager
def _admin(jvm: Any, options: Mapping[str, str]) -> Iterator[Any]:
    settings = jvm.java.util.Properties()
    for name, value in options.items():
        if name.startswith(_PREFIX):
            settings.setProperty(name.removeprefix(_PREFIX), value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        yield admin
    finally:
        admin.close()
