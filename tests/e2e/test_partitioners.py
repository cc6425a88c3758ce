"""Record keys choose the partition as Kafka's own producers do, through reloads and deaths of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import StreamClient, partition_key_of
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from support.daemon import Daemon
from support.kafka_dist import NEWEST, ensure
from support.key_traffic import partitions_of_java, partitions_of_librdkafka, random_keys
from support.read_back import read_back, read_back_kafka
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from support.kafka_cluster import KafkaCluster
    from support.traffic import Seen

pytestmark = pytest.mark.process

PARTITIONS: Final = 4
UPDATES: Final = 60
LIBRDKAFKA: Final = {"murmur2": "murmur2_random", "crc32": "consistent_random", "fnv1a": "fnv1a_random"}

Placed = dict[bytes, list[tuple[int, bytes]]]
"""By key: partition and value of its records, in order within a partition."""


def send_round(daemon: Daemon, topic: str, keys: Sequence[bytes], update: int) -> None:
    for key in keys:
        daemon.send(topic, b"%d" % update, key=key)


def placed(records: Sequence[Seen]) -> Placed:
    found: Placed = {}
    for seen in records:
        found.setdefault(seen.key or b"", []).append((seen.partition, seen.value or b""))
    return found


def expect_in_order(found: Placed, partitions: Mapping[bytes, int], updates: Sequence[int]) -> None:
    assert {key: {partition for partition, _ in records} for key, records in found.items()} == {
        key: {partition} for key, partition in partitions.items()
    }
    values = [b"%d" % update for update in updates]
    assert all([value for _, value in records] == values for records in found.values())


def test_updates_of_a_key_are_where_the_java_producer_puts_it(tmp_path: Path, kafka_3: KafkaCluster) -> None:
    """The input and the router are killed in between, and a leader moves."""
    keys = [b"user-7", *random_keys(19)]
    for topic in ("keyed-by-us", "keyed-by-java"):
        kafka_3.create_topic(topic, PARTITIONS, 3)
    settings = {"partitioner.topics.keyed-by-us": "murmur2", "input.unix_datagram.when_full": "block"}
    with Daemon(tmp_path, kafka_3.bootstrap) as daemon:
        daemon.reload(settings)
        for update in range(UPDATES):
            send_round(daemon, "keyed-by-us", keys, update)
            if update == 20:
                daemon.kill("router")
            elif update == 40:
                daemon.kill("input")
                leader = kafka_3.leader("keyed-by-us", 0)
                kafka_3.move_leader("keyed-by-us", 0, [node for node in kafka_3.node_ids if node != leader])
        books = daemon.wait_settled(UPDATES * len(keys))
        assert books.received == books.delivered == UPDATES * len(keys)
        assert daemon.terminate() == 0
    found = placed(read_back_kafka(kafka_3, ["keyed-by-us"])["keyed-by-us"])
    expect_in_order(found, partitions_of_java(ensure(NEWEST), kafka_3.bootstrap, "keyed-by-java", keys), range(UPDATES))


@pytest.mark.parametrize("partitioner", LIBRDKAFKA)
def test_keys_are_where_librdkafka_puts_them(tmp_path: Path, partitioner: str) -> None:
    keys = random_keys(200)
    with DevBroker(brokers=3, topics={"ours": 7, "theirs": 7}, strict=True) as broker:
        expected = partitions_of_librdkafka(broker.bootstrap, "theirs", keys, LIBRDKAFKA[partitioner])
        with daemon_in(tmp_path, broker, **ONE_WORKER, **{"partitioner.default": partitioner}) as daemon:
            send_round(daemon, "ours", keys, 0)
            daemon.wait_settled(len(keys))
            with StreamClient(daemon.stream_path, linger=0.01) as client:
                with client.attempt("fenced"):
                    for key in keys:
                        client.send("ours", b"1", key=key)
                for key in keys:
                    client.send("ours", b"2", key=key)
                assert client.flush(timeout=30).delivered == 2 * len(keys)
            books = daemon.wait_settled(3 * len(keys))
            assert books.received == books.delivered == 3 * len(keys)
        expect_in_order(placed(read_back(broker, ["ours"])["ours"]), expected, range(3))


def test_updates_of_a_key_keep_their_order_through_retries_restarts_and_leader_moves(tmp_path: Path) -> None:
    keys, updates = random_keys(20), 30
    settings = {"partitioner.default": "murmur2", "batching.default.action": "none"}
    with DevBroker(brokers=3, topics={"ours": 4}) as broker, Daemon(tmp_path, broker.bootstrap, settings) as daemon:
        broker.inject(Fault(action=FaultAction.ACK_LOST, nth=2, every=5, times=5))
        broker.inject(Fault(action=FaultAction.ERROR, code=19, nth=3, every=5, times=5))
        broker.inject(Fault(action=FaultAction.ERROR_APPENDED, code=6, nth=4, every=5, times=5))
        for update in range(updates):
            send_round(daemon, "ours", keys, update)
            if update == 10:
                daemon.wait_received((update + 1) * len(keys))
                daemon.kill_all()
                daemon.start()
            elif update == 20:
                for partition in range(4):
                    broker.move_leader("ours", partition, partition % 3 + 1, stale=1)
        books = daemon.wait_settled(updates * len(keys))
        assert books.received == books.delivered == updates * len(keys)
        assert broker.statistics().faults.keys() == {"ack_lost", "error", "error_appended"}
        stored = read_back(broker, ["ours"])["ours"]
    expect_in_order(placed(stored), {key: partition_key_of(key) % 4 for key in keys}, range(updates))


@pytest.mark.parametrize("choice", ["wait", "next"])
def test_keys_without_a_leader_wait_or_go_to_the_next_partition(tmp_path: Path, choice: str) -> None:
    keys = random_keys(20)
    own = {key: partition_key_of(key) % 2 for key in keys}
    leaderless = [key for key in keys if own[key] == 1]
    settings = {"partitioner.default": "murmur2", "partitioner.without_leader": choice}
    with DevBroker(brokers=2, topics={"ours": 2}) as broker, Daemon(tmp_path, broker.bootstrap, settings) as daemon:
        send_round(daemon, "ours", keys, 0)
        daemon.wait_settled(len(keys))
        changes = daemon.counters()["MetadataChangedOnRefresh"]
        broker.broker_down(2)
        daemon.refresh_metadata()
        daemon.wait_for(lambda: daemon.counters()["MetadataChangedOnRefresh"] > changes, "the loss of a leader", 20)
        send_round(daemon, "ours", keys, 1)
        daemon.wait_received(2 * len(keys))
        held = len(leaderless) if choice == "wait" else 0
        daemon.wait_for(lambda: sum(daemon.books().held.values()) == held, f"{held} messages to wait", 20)
        broker.broker_up(2)
        books = daemon.wait_settled(2 * len(keys))
        assert books.received == books.delivered == 2 * len(keys)
        stored = broker.fetch("ours")
    assert 0 < len(leaderless) < len(keys)
    second = {key: 0 if choice == "next" else own[key] for key in keys}
    for partition, records in enumerate(stored):
        found = [(record.key, record.value) for record in records]
        for key in keys:
            expected = [(key, b"0")] * (own[key] == partition) + [(key, b"1")] * (second[key] == partition)
            assert [each for each in found if each[0] == key] == expected
