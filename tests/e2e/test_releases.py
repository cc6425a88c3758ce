"""The whole daemon against real brokers of each era, from message sets without timestamps to the newest.

The tests cover every codec, keys and timestamps where the format has them, and topics that the daemon creates.

Kafka 0.8 closes a connection after a request for versions, 0.9 never answers: the daemon detects both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from support.daemon import Daemon
from support.endless_senders import UNLIMITED, EndlessSenders
from support.kafka_cluster import KafkaCluster
from support.kafka_dist import NEWEST, TESTED
from support.read_back import read_back_kafka
from support.traffic import EPOCH_MS, Load, Name, assert_all_there, compare, deliver, start_senders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from support.traffic import Seen

pytestmark = [pytest.mark.process, pytest.mark.kafka]

PARTITIONS: Final = 3
TIMEOUT_S: Final = 120.0
BLOCK: Final = {"input.unix_datagram.when_full": "block"}
AUTOCREATE: Final = {
    "delivery.topic_autocreate": "true",
    "delivery.topic_autocreate_partitions": PARTITIONS,
    "delivery.topic_autocreate_replication": 1,
}


class Release(NamedTuple):
    """The abilities of a release, and the guarantees of delivery to it; `magic` is its message format."""

    version: str
    magic: int
    codecs: tuple[str, ...]
    delivery: str


OLDEST: Final = ("none", "gzip", "snappy")
V0_8: Final = Release("0.8.2.2", 0, OLDEST, "at least once")
V0_9: Final = Release("0.9.0.1", 0, OLDEST, "at least once")
V0_10: Final = Release("0.10.2.2", 1, (*OLDEST, "lz4"), "at least once")
V0_11: Final = Release("0.11.0.3", 2, (*OLDEST, "lz4"), "exactly once")
V1_1: Final = Release("1.1.1", 2, (*OLDEST, "lz4"), "exactly once")
CODECS: Final = (*OLDEST, "lz4", "zstd")
V2_8: Final = Release("2.8.2", 2, CODECS, "exactly once")
V3_9: Final = Release("3.9.2", 2, CODECS, "exactly once")
V4: Final = Release(NEWEST, 2, CODECS, "exactly once")
RELEASES: Final = (V0_10, V1_1, V0_8, V0_9, V0_11, V2_8, V3_9, V4)
"""pytest groups tests by the place of their release here, so the first ones are those of the tests of faults."""
ALWAYS: Final = (V0_8, V0_9, V0_10, V0_11, V4)
"""The releases at which versions, message formats or guarantees change, and the newest; the others are soak tests."""
TOLD: Final = (V0_8, V0_9, V0_10, V4)
"""The releases without a request for versions, and one for each message format; the others are soak tests."""
SHARED: Final = (*TESTED, V1_1.version)
"""The versions that other tests use, too."""
SNAPPY: Final = 2
"""Replacement for codecs that are newer than a release."""
DOUBT: Final = "when asked which versions it speaks"


def topic_of(codec: str, prefix: str = "old") -> str:
    return f"{prefix}-{codec}"


def releases(always: Sequence[Release], of: Sequence[Release] = RELEASES) -> pytest.MarkDecorator:
    """Return the parameters of a test of these releases, of which `--soak` runs the others."""
    some = [pytest.param(each, marks=() if each in always else pytest.mark.soak, id=each.version) for each in of]
    return pytest.mark.parametrize("release", some, indirect=True)


@pytest.fixture(scope="module")
def release(request: pytest.FixtureRequest) -> Release:
    assert isinstance(request.param, Release)
    return request.param


@pytest.fixture(scope="module")
def cluster(release: Release, kafka_of: Callable[[str], KafkaCluster]) -> Iterator[KafkaCluster]:
    if release.version in SHARED:
        yield kafka_of(release.version)
    else:
        with KafkaCluster(release.version, config={"num.partitions": str(PARTITIONS)}) as running:
            yield running


def compressed(codecs: Sequence[str]) -> dict[str, object]:
    """Return settings with a topic for each codec and batches worth compressing."""
    settings: dict[str, object] = {"batching.configs.some.time_ms": 20, **BLOCK}
    settings |= {"batching.default.action": "per_topic", "batching.default.config": "some"}
    for codec in codecs:
        settings[f"compression.configs.{codec}.type"] = codec
        settings[f"compression.topics.{topic_of(codec)}"] = codec
    return settings


def compressed_topics(daemon: Daemon) -> set[str]:
    return {row["topic"] for row in daemon.get("/compression/json")["topics"]}


def read_back(cluster: KafkaCluster, topics: Sequence[str], *, has_timestamps: bool) -> dict[str, list[Seen]]:
    """Read all records of these topics."""
    found = read_back_kafka(cluster, topics)
    return found if has_timestamps else {topic: list(map(_dated, records)) for topic, records in found.items()}


def _dated(seen: Seen) -> Seen:
    """Return a record without a timestamp with the one that its value names."""
    assert seen.timestamp_ms == 0
    return seen._replace(timestamp_ms=EPOCH_MS + Name.of(seen.value).number)


def stored(cluster: KafkaCluster, topic: str) -> set[tuple[int, int]]:
    """Return the message formats and codecs of the brokers' stored records of a topic."""
    return {found for file in cluster.log_files(topic) for found in _formats(file.read_bytes())}


def _formats(log: bytes) -> Iterator[tuple[int, int]]:
    """Yield format and codec of each entry: offset i64, size i32, at 16 the format; files may end in zeros."""
    at = 0
    while at + 17 < len(log) and (size := int.from_bytes(log[at + 8 : at + 12], "big")):
        magic = log[at + 16]
        yield magic, log[at + (22 if magic == 2 else 17)] & 7
        at += 12 + size


@releases(ALWAYS)
def test_every_message_arrives_with_every_codec(tmp_path: Path, release: Release, cluster: KafkaCluster) -> None:
    """Codecs unknown to the release are replaced by snappy. The daemon creates all topics but one."""
    topics = tuple(map(topic_of, CODECS))
    cluster.create_topic(topics[0], PARTITIONS)  # 0.8 names no broker until the first topic exists
    # Small ones for their headers, which are all that can be compressed: the values are random.
    load = Load(topics, senders=2, messages=1000, largest=200)
    settings = {**compressed(CODECS), **AUTOCREATE}
    with Daemon(tmp_path, cluster.bootstrap, settings) as daemon:
        assert deliver(load, daemon, TIMEOUT_S).possible_duplicates == 0
        assert daemon.get("/server_info/json")["delivery"] == release.delivery
        for codec in CODECS:
            substituted = f"Topic {topic_of(codec)} is compressed with snappy: its broker is too old for {codec}."
            assert daemon.log().count(substituted) == (codec not in release.codecs)
        daemon.wait_for(lambda: compressed_topics(daemon) == set(topics[1:]), "the page of compression", 10)
        assert daemon.terminate() == 0
    assert_all_there(load, read_back(cluster, topics, has_timestamps=release.magic > 0))
    for number, codec in enumerate(CODECS):
        used = number if codec in release.codecs else SNAPPY
        found = stored(cluster, topic_of(codec))
        assert (release.magic, used) in found <= {(release.magic, 0), (release.magic, used)}


@releases(TOLD)
def test_large_messages_arrive_with_a_configured_broker_version(
    tmp_path: Path, release: Release, cluster: KafkaCluster
) -> None:
    """A release without the request for versions is not asked. An empty value stays a value if configured so."""
    cluster.create_topic("large", PARTITIONS)
    load = Load(("large",), senders=2, messages=150, largest=60_000)
    settings = {"kafka.broker_version": f'"{release.version}"', "kafka.empty_values": "empty"}
    with Daemon(tmp_path, cluster.bootstrap, {**BLOCK, **AUTOCREATE, **settings}) as daemon:
        deliver(load, daemon, TIMEOUT_S)
        daemon.send("hollow", b"", key=b"key")
        assert daemon.wait_settled(load.total + 1).delivered == load.total + 1
        assert DOUBT not in daemon.log()
    assert_all_there(load, read_back(cluster, load.topics, has_timestamps=release.magic > 0))
    [hollow] = [record for records in cluster.read_all("hollow").values() for record in records]
    assert (hollow.key, hollow.value) == (b"key", b"")


# --- faults -----------------------------------------------------------------------------------------------------------


def assert_repeated_at_most(times: int, load: Load, records: dict[str, list[Seen]]) -> None:
    """Check that all records are there, in order except for repetitions."""
    fresh = {
        topic: list({seen.value: seen for seen in reversed(some)}.values())[::-1] for topic, some in records.items()
    }
    assert_all_there(load, fresh)
    assert sum(map(len, records.values())) - sum(map(len, fresh.values())) <= times


@releases((V0_10,), (V0_10,))
def test_a_restart_of_the_broker_loses_nothing(tmp_path: Path, release: Release, cluster: KafkaCluster) -> None:
    cluster.create_topic("restart", PARTITIONS)
    load = Load(("restart",), senders=2, messages=3000, largest=500)
    with Daemon(tmp_path, cluster.bootstrap, BLOCK) as daemon:
        senders = start_senders(load, daemon.socket_path)
        for share in (1, 2):
            goal = load.total * share // 4
            daemon.wait_for(lambda: daemon.books().delivered > goal, f"{goal} to be delivered", TIMEOUT_S)  # noqa: B023
            cluster.restart(1)
        assert [sender.wait(TIMEOUT_S) for sender in senders] == [0, 0]
        books = daemon.wait_settled(load.total, TIMEOUT_S)
    assert books.delivered == load.total
    records = read_back(cluster, load.topics, has_timestamps=release.magic > 0)
    assert_repeated_at_most(books.possible_duplicates, load, records)


@releases((V0_10, V1_1), (V0_10, V1_1))
def test_a_paused_broker_is_not_mistaken_for_an_older_release(
    tmp_path: Path, release: Release, cluster: KafkaCluster
) -> None:
    """The broker is silent after the request for versions, as 0.9 is; later it may read requests that were given up."""
    cluster.create_topic("rest", PARTITIONS)
    load = Load(("rest",), senders=2, messages=UNLIMITED, largest=500)
    settings = {**BLOCK, "delivery.kafka_socket_timeout_s": 3}
    with (
        Daemon(tmp_path, cluster.bootstrap, settings) as daemon,
        EndlessSenders(daemon, load, rate=500) as senders,  # messages must wait, or nobody looks for the broker
    ):
        daemon.wait_for(lambda: daemon.books().delivered > 1000, "a part to be delivered", TIMEOUT_S)
        cluster.suspend(1)
        daemon.wait_for(lambda: DOUBT in daemon.log(), "a connection without an answer about versions", TIMEOUT_S)
        cluster.resume(1)
        senders.stop()
        books = daemon.wait_settled(sum(senders.sent.values()), TIMEOUT_S)
        assert daemon.get("/server_info/json")["delivery"] == release.delivery
    account = compare(load, senders.sent, read_back(cluster, load.topics, has_timestamps=True), {})
    assert (account.read, account.missing) == (books.received, {})
    assert account.repeated.total() <= books.possible_duplicates
    # Chance decides if a request is in flight when the broker stops; with recognised batches none is in doubt.
    assert books.possible_duplicates == 0 or release.delivery == "at least once"
    assert stored(cluster, "rest") == {(release.magic, 0)}
