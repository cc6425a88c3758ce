"""Counts and refusals of the sink, which match a broker's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from bench.brokers import STUCK, Sink, started_brokers
from bench.cases import Site
from bench.tools import make_tools
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.protocol.kafka.connection_events import MetadataReceived
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer
from support.broker_client import BrokerClient
from support.record_batches import KafkaRecord, batch_of

if TYPE_CHECKING:
    from pathlib import Path

    from bench.tools import Tools

pytestmark = pytest.mark.process

LARGE = b"x" * 300_000


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    made = make_tools(tmp_path_factory.mktemp("tools"))
    assert made.language == "C", "There is no C compiler; on Debian and Ubuntu: apt install gcc"
    return made


def batch(
    topic: bytes, partition: int, producer: Producer, sequence: int, values: list[bytes], *, timestamp: int = 1
) -> PartitionData:
    records = [KafkaRecord(timestamp, None, value) for value in values]
    return PartitionData(topic, partition, batch_of(records, producer=producer._replace(base_sequence=sequence)))


def produce(client: BrokerClient, *data: PartitionData) -> list[tuple[bytes, int, int, int]]:
    client.produce(*data)
    return [(ack.topic, ack.partition, ack.error, ack.base_offset) for ack in client.acks()]


def test_sink_counts_all_records_of_a_client(tools: Tools, tmp_path: Path) -> None:
    with Sink(tools, Site(topics=3, partitions=4, brokers=3), tmp_path) as sink:
        producer = KafkaProducer(bootstrap_servers=sink.bootstrap.split(","), linger_ms=5)
        for number in range(2000):
            producer.send(f"bench-{number % 3}", b"x" * (number * 7 % 5000))
        producer.close()
        counts = sink.wait_until(records=2000, within=10)
    assert (counts.records, counts.refused) == (2000, 0)
    assert counts.batches > 3


def test_a_batch_out_of_order_is_refused(tools: Tools, tmp_path: Path) -> None:
    with Sink(tools, Site(topics=2, partitions=2), tmp_path) as sink, BrokerClient(sink.bootstrap) as client:
        me = client.producer_id()
        first = [batch(b"bench-0", 1, me, 0, [b"a", LARGE, b"b"]), batch(b"bench-1", 0, me, 0, [LARGE])]
        assert produce(client, *first) == [(b"bench-0", 1, 0, 0), (b"bench-1", 0, 0, 0)]
        assert produce(client, first[0]) == [(b"bench-0", 1, 45, -1)]
        assert produce(client, batch(b"bench-0", 1, me, 3, [b"c"])) == [(b"bench-0", 1, 0, 3)]
        assert produce(client, batch(b"bench-9", 0, me, 0, [b"d"])) == [(b"bench-9", 0, 3, -1)]
        assert produce(client, batch(b"bench-1", 7, me, 1, [b"e"])) == [(b"bench-1", 7, 3, -1)]
        assert sink.statistics()[:3] == (5, 3, 3)


def test_sink_measures_the_wait_of_the_records_since_the_last_counts(tools: Tools, tmp_path: Path) -> None:
    with Sink(tools, Site(topics=1, partitions=2), tmp_path) as sink, BrokerClient(sink.bootstrap) as client:
        me, now_ms = client.producer_id(), time.time_ns() // 1_000_000
        produce(client, batch(b"bench-0", 0, me, 0, [b"a"] * 98, timestamp=now_ms))
        produce(client, batch(b"bench-0", 1, me, 0, [b"b"] * 2, timestamp=now_ms - 5_000))
        assert 5_000 <= sink.statistics().wait_ms < 6_000
        produce(client, batch(b"bench-0", 0, me, 98, [b"c"] * 99, timestamp=time.time_ns() // 1_000_000))
        produce(client, batch(b"bench-0", 1, me, 2, [b"d"], timestamp=now_ms - 5_000))
        assert sink.statistics().wait_ms < 1_000


def test_sink_assigns_leaders_round_robin_and_leaves_a_filled_topic_leaderless(tools: Tools, tmp_path: Path) -> None:
    site = Site(topics=2, partitions=3, brokers=2, filled=90)
    with Sink(tools, site, tmp_path) as sink, BrokerClient(sink.bootstrap.split(",")[1]) as client:
        client.send(client.connection.request_metadata(None, time.monotonic()))
        cluster = client.wait(MetadataReceived).metadata
    leaders = {
        topic.decode(): [partition.leader for _, partition in sorted(known.partitions.items())]
        for topic, known in cluster.topics.items()
    }
    assert leaders == {"bench-0": [1, 2, 1], "bench-1": [2, 1, 2], STUCK: [-1]}
    assert [f"{broker.host}:{broker.port}" for _, broker in sorted(cluster.brokers.items())] == sink.bootstrap.split(
        ","
    )


@pytest.mark.parametrize(("topics", "brokers"), [(1, 4), (2, 4), (9, 3)])
def test_a_site_knows_how_many_brokers_of_the_sink_lead(
    topics: int, brokers: int, tools: Tools, tmp_path: Path
) -> None:
    site = Site(topics=topics, partitions=2, brokers=brokers)
    with Sink(tools, site, tmp_path) as sink, BrokerClient(sink.bootstrap.split(",")[0]) as client:
        client.send(client.connection.request_metadata(None, time.monotonic()))
        found = client.wait(MetadataReceived).metadata.topics.values()
    assert len({each.leader for topic in found for each in topic.partitions.values()}) == site.leading_brokers


def test_sink_delays_acks_by_the_configured_time(tools: Tools, tmp_path: Path) -> None:
    site = Site(topics=1, partitions=1, ack_delay_ms=120)
    with Sink(tools, site, tmp_path) as sink, BrokerClient(sink.bootstrap) as client:
        began = time.monotonic()
        assert produce(client, batch(b"bench-0", 0, NO_PRODUCER, -1, [b"a"])) == [(b"bench-0", 0, 0, 0)]
        assert time.monotonic() - began >= 0.119


@pytest.mark.parametrize(("site", "kind"), [(Site(), Sink), (Site(keeps_records=True), DevBroker)])
def test_started_brokers_are_embedded_only_when_records_are_kept(
    tools: Tools, tmp_path: Path, site: Site, kind: type
) -> None:
    with started_brokers(tools, site, tmp_path) as brokers:
        assert isinstance(brokers, kind)


def test_sink_wait_times_out_when_records_are_missing(tools: Tools, tmp_path: Path) -> None:
    with Sink(tools, Site(), tmp_path) as sink, pytest.raises(TimeoutError, match="Of 1 records 0 came"):
        sink.wait_until(records=1, within=0.05)
