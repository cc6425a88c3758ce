"""Topics, leaders, and their metadata."""

from __future__ import annotations

import pytest

from bruce_mp.devbroker.cluster import NO_LEADER, Cluster
from bruce_mp.devbroker.codes import Code, RefusedError


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3, max_bytes=1 << 20)
    for broker in made.broker_ids:
        made.register(broker, "127.0.0.1", 9000 + broker)
    made.add_topic("one", 4)
    return made


def leaders(cluster: Cluster, topic: str = "one") -> list[int]:
    return [partition.leader for partition in cluster.snapshot().topics[topic].partitions]


def test_leaders_are_assigned_round_robin(cluster: Cluster) -> None:
    cluster.add_topic("two", 3)
    assert (leaders(cluster), leaders(cluster, "two")) == ([1, 2, 3, 1], [2, 3, 1])


@pytest.mark.parametrize(
    ("name", "partitions", "code"),
    [
        ("one", 1, Code.TOPIC_ALREADY_EXISTS),
        ("zero", 0, Code.INVALID_PARTITIONS),
        ("", 1, Code.INVALID_TOPIC_EXCEPTION),
        (".", 1, Code.INVALID_TOPIC_EXCEPTION),
        ("..", 1, Code.INVALID_TOPIC_EXCEPTION),
        ("a/b", 1, Code.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, Code.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_an_invalid_topic_is_refused(cluster: Cluster, name: str, partitions: int, code: Code) -> None:
    with pytest.raises(RefusedError) as refusal:
        cluster.add_topic(name, partitions)
    assert refusal.value.code == code


def test_unusual_topic_names_are_accepted(cluster: Cluster) -> None:
    for name in ("...", ".a", "x" * 249, "A_b-9"):
        cluster.add_topic(name, 1)


def test_leaders_of_added_partitions_continue_the_round_robin(cluster: Cluster) -> None:
    cluster.add_partitions("one", 6)
    assert leaders(cluster) == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "partitions", "code"),
    [("one", 4, Code.INVALID_PARTITIONS), ("one", 3, Code.INVALID_PARTITIONS), ("two", 1, 3)],
)
def test_a_topic_never_loses_partitions(cluster: Cluster, name: str, partitions: int, code: int) -> None:
    with pytest.raises(RefusedError) as refusal:
        cluster.add_partitions(name, partitions)
    assert refusal.value.code == code
    assert leaders(cluster) == [1, 2, 3, 1]


def test_leadership_and_epochs_are_checked(cluster: Cluster) -> None:
    cluster.move_leader("one", 0, 2)

    def code(*arguments: object) -> int:
        with pytest.raises(RefusedError) as refusal:
            cluster.partition_led_by(*arguments)  # type: ignore[arg-type]
        return refusal.value.code

    assert cluster.partition_led_by(2, "one", 0, 1) is cluster.partition_led_by(2, "one", 0)
    assert code(1, "one", 0) == Code.NOT_LEADER_OR_FOLLOWER
    assert code(2, "one", 0, 0) == Code.FENCED_LEADER_EPOCH
    assert code(2, "one", 0, 2) == Code.UNKNOWN_LEADER_EPOCH
    assert code(2, "one", 4) == code(2, "none", 0) == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_down_broker_leads_no_partition_until_it_returns(cluster: Cluster) -> None:
    cluster.unregister(1)
    assert leaders(cluster) == [NO_LEADER, 2, 3, NO_LEADER]
    cluster.register(1, "127.0.0.1", 9009)
    assert leaders(cluster) == [1, 2, 3, 1]
    assert [node.port for node in cluster.snapshot().nodes] == [9009, 9002, 9003]


def test_an_election_chooses_live_leaders(cluster: Cluster) -> None:
    cluster.unregister(1, elect=True)
    assert set(leaders(cluster)) == {2, 3}
    assert [partition.epoch for partition in cluster.snapshot().topics["one"].partitions] == [1, 0, 0, 1]


def test_stale_metadata_lasts_for_the_given_number_of_answers(cluster: Cluster) -> None:
    cluster.freeze(2)
    cluster.move_leader("one", 0, 3)
    seen = [cluster.next_response_snapshot().topics["one"].partitions[0].leader for _ in range(3)]
    assert seen == [1, 1, 3]


@pytest.mark.parametrize(("first", "later", "expected"), [(2, 0, [1, 1, 2]), (1000, 1, [3, 2, 2])])
def test_a_later_change_replaces_a_freeze_unless_it_names_no_responses(
    cluster: Cluster, first: int, later: int, expected: list[int]
) -> None:
    cluster.freeze(first)
    cluster.move_leader("one", 0, 3)
    cluster.freeze(later)
    cluster.move_leader("one", 0, 2)
    seen = [cluster.next_response_snapshot().topics["one"].partitions[0].leader for _ in range(3)]
    assert seen == expected


def test_a_deleted_topic_gives_its_memory_back_and_gets_a_new_id(cluster: Cluster) -> None:
    before = cluster.topic("one").id
    cluster.delete_topic("one")
    with pytest.raises(RefusedError):
        cluster.topic("one")
    assert cluster.add_topic("one", 1).id != before


def test_unknown_brokers_are_refused(cluster: Cluster) -> None:
    with pytest.raises(RefusedError):
        cluster.move_leader("one", 0, 4)
