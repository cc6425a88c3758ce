"""Another Kafka cluster at the address of the daemon's cluster, and topics that are created again."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.cli.accept_cluster import main as accept_cluster
from bruce_mp.client import DatagramClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import ExitCode
from bruce_mp.slab import layout as lay
from bruce_mp.slab.producer_id import cluster_of
from bruce_mp.slab.tables import PartitionTable, TopicTable
from support.daemon import Daemon
from support.journals import journaled_messages, lose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

TOPICS: Final = {"clicks": 2}


class Swap:
    """A daemon of cluster-a, and cluster-b, which can take over the address of cluster-a."""

    def __init__(self, ours: DevBroker, other: DevBroker, daemon: Daemon) -> None:
        self.ours = ours
        self.other = other
        self.daemon = daemon
        self.port = int(ours.bootstrap.rpartition(":")[2])
        self.sent = 0

    def send(self, count: int) -> None:
        with DatagramClient(self.daemon.socket_path, timeout=20) as client:
            for _ in range(count):
                client.send("clicks", b"%d" % self.sent, partition_key=self.sent % 2)
                self.sent += 1

    def put_other_in_place(self) -> None:
        self.ours.broker_down(1)
        self.other.broker_down(1)
        self.other.broker_up(1, port=self.port)

    def put_ours_back(self) -> None:
        self.other.broker_down(1)
        self.ours.broker_up(1, port=self.port)

    def wait_refused(self) -> None:
        self.daemon.wait_for(lambda: "cluster-b" in " ".join(self.problems()), "the problem on /healthz", 30)
        self.daemon.wait_for(lambda: self.clusters() == ("cluster-a", "cluster-b"), "both ids on /server_info", 30)
        assert "belongs to the cluster cluster-b" in self.daemon.log()

    def clusters(self) -> tuple[str, str]:
        info = self.daemon.get("/server_info/json")
        return info["cluster_id"], info["foreign_cluster_id"]

    def problems(self) -> list[str]:
        problems: list[str] = self.daemon.get("/overview/json")["health"]["problems"]
        return problems

    def accept(self, cluster_id: str) -> int:
        return accept_cluster(["--url", self.daemon.url("").rstrip("/"), cluster_id])


def values(broker: DevBroker) -> list[list[int]]:
    """Return the values in each partition of the topic, except those of another producer."""
    found = ([record.value or b"" for record in records] for records in broker.fetch("clicks"))
    return [[int(value) for value in partition if value != b"other"] for partition in found]


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[Swap]:
    """Yield a swap in which another producer of cluster-b already has the producer id that our daemon has."""
    with (
        DevBroker(topics=TOPICS, cluster_id="cluster-a") as ours,
        DevBroker(topics=TOPICS, cluster_id="cluster-b") as other,
    ):
        (tmp_path / "theirs").mkdir()
        with Daemon(tmp_path / "theirs", other.bootstrap) as theirs:
            for key in (0, 1):
                theirs.send("clicks", *[b"other"] * 100, partition_key=key)
            theirs.wait_settled(200)
        (tmp_path / "ours").mkdir()
        settings = {"slab.sync": "interval", "slab.sync_interval_ms": 20}
        with Daemon(tmp_path / "ours", ours.bootstrap, settings) as daemon:
            made = Swap(ours, other, daemon)
            made.send(100)
            daemon.wait_settled(100)
            yield made


def test_messages_wait_while_another_cluster_has_the_address(swap: Swap) -> None:
    swap.put_other_in_place()
    swap.send(200)
    swap.wait_refused()
    swap.send(100)
    swap.daemon.wait_received(400)
    books = swap.daemon.wait_consistent()
    assert (books.delivered, books.discarded, sum(books.held.values())) == (100, {}, 300)
    swap.put_ours_back()
    assert swap.daemon.wait_settled(400).delivered == 400
    assert values(swap.ours) == [list(range(key, 400, 2)) for key in (0, 1)]
    assert values(swap.other) == [[], []]
    swap.daemon.wait_for(lambda: not swap.problems(), "no problems", 20)


def test_an_accepted_cluster_gets_the_held_messages_once_and_in_order(
    swap: Swap, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches with sequence numbers, which cluster-a refuses until it is gone, and messages that were never sent."""
    assert swap.accept("cluster-b") == ExitCode.SETUP
    assert "expected cluster cluster-a" in capsys.readouterr().err
    swap.ours.inject(Fault(action=FaultAction.ERROR, code=7, topic="clicks", times=None))
    swap.send(100)
    swap.daemon.wait_for(lambda: "REQUEST_TIMED_OUT" in swap.daemon.log(), "a refused batch", 20)
    swap.put_other_in_place()
    swap.send(100)
    swap.wait_refused()
    with swap.daemon.open_slab() as slab:
        before = slab.read_signed(lay.SUPER_PRODUCER_ID)
        assert swap.accept("cluster-c") == ExitCode.SETUP
        assert "name this id" in capsys.readouterr().err
        assert swap.accept("cluster-b") == ExitCode.OK
        assert swap.daemon.wait_settled(300).delivered == 300
        assert values(swap.other) == [list(range(100 + key, 300, 2)) for key in (0, 1)]
        assert cluster_of(slab) == "cluster-b"
        assert slab.read_signed(lay.SUPER_PRODUCER_ID) != before
        topic = TopicTable(slab).number_of(b"clicks")
        assert [PartitionTable(slab).epoch_and_sequence(topic, each)[0] for each in (0, 1)] == [1, 1]
    assert swap.daemon.books().possible_duplicates == 0


def test_a_killed_daemon_keeps_the_cluster_of_its_messages(swap: Swap) -> None:
    swap.put_other_in_place()
    swap.send(100)
    swap.daemon.wait_received(200)
    swap.daemon.kill_all()
    swap.daemon.start()
    swap.wait_refused()
    assert swap.accept("cluster-b") == ExitCode.OK
    assert swap.daemon.wait_settled(200).delivered == 200
    assert values(swap.other) == [list(range(100 + key, 200, 2)) for key in (0, 1)]


def test_after_a_power_failure_the_restored_messages_keep_their_cluster(swap: Swap) -> None:
    swap.put_other_in_place()
    swap.send(200)
    swap.daemon.wait_received(300)
    swap.daemon.wait_for(lambda: journaled_messages(swap.daemon.slab_path) == 200, "the journal", 20)
    swap.daemon.kill_all()
    lose(swap.daemon.slab_path, Random(1))
    swap.daemon.start()
    assert "Restored 200 messages from the journal" in swap.daemon.log()
    swap.wait_refused()
    swap.put_ours_back()
    assert swap.daemon.wait_settled(200).delivered == 200
    assert values(swap.ours) == [list(range(key, 300, 2)) for key in (0, 1)]
    assert values(swap.other) == [[], []]


def test_a_topic_that_is_created_again_is_reported_and_gets_the_next_messages(tmp_path: Path) -> None:
    with DevBroker(topics={"clicks": 1, "news": 1}) as broker, Daemon(tmp_path, broker.bootstrap) as daemon:
        daemon.send("clicks", b"before")
        daemon.wait_settled(1)
        broker.delete_topic("clicks")
        broker.add_topic("clicks", 1)
        daemon.refresh_metadata()
        daemon.wait_for(lambda: "deleted and created again" in daemon.log(), "the warning", 20)
        daemon.send("clicks", b"after")
        assert daemon.wait_settled(2).delivered == 2
        daemon.wait_for(lambda: warned_of_recreation(daemon) == ["clicks"], "the warning of the health page", 10)
        assert "bruce_recreated_topics_total 1\n" in daemon.get_text("/metrics")
        assert [record.value for record in broker.fetch("clicks")[0]] == [b"after"]
        assert "Topic news was deleted" not in daemon.log()


def warned_of_recreation(daemon: Daemon) -> list[str]:
    """Return the topics that the health page names as created again."""
    return [text.split()[1] for text in daemon.health()["warnings"] if "created again" in text]
