"""A broker that injects all its faults: no message is lost, doubled or reordered.

Most tests share one daemon and one cluster; each has its own topic and compares it message by message.
"""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.tables import PartitionTable, TopicTable
from bruce_mp.telemetry.books import counter_total
from bruce_mp.telemetry.counters import Counter, discarded
from support import processes
from support.daemon import Daemon
from support.daemon_runs import Sender
from support.read_back import read_back
from support.traffic import Load, assert_all_there

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

PARTITIONS: Final = 3
MESSAGES: Final = 400
IDEMPOTENT: Final = 1
AT_LEAST_ONCE: Final = 2


@dataclass
class Stage:
    """A daemon, its cluster, and the counts of messages before a test."""

    daemon: Daemon
    broker: DevBroker

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._before: dict[int, int] = {}

    def load(self, messages: int = MESSAGES, largest: int = 300, keyed: int = 60) -> Load:
        """Return messages for a new topic with a partition on each broker."""
        topic = f"topic-{next(self._numbers)}"
        self.broker.add_topic(topic, PARTITIONS)
        self._before = self._counters()
        return Load((topic,), senders=1, messages=messages, largest=largest, keyed=keyed)

    def connection_of(self, node: int) -> str:
        """Return the state of the connection to a broker, as /brokers shows it."""
        lines = self.daemon.get("/brokers/json")["brokers"]
        return next(str(line["connection"]) for line in lines if line["node"] == node)

    def send(self, load: Load) -> Sender:
        """Start sending."""
        sender = Sender(load, self.daemon.socket_path)
        sender.start()
        return sender

    def delivered(self, load: Load, *, sender: Sender | None = None, missing: int = 0, timeout: float = 60) -> None:
        """Check that the load arrives once and in order, except `missing` discarded messages."""
        sender = sender or self.send(load)
        sender.join()
        assert sender.accepted == load.total
        received = self._before[Counter.MsgReceived] + load.total
        self.daemon.wait_settled(received, timeout)
        records = read_back(self.broker, load.topics)
        if missing:
            with pytest.raises(AssertionError, match=rf"^{missing} of {load.total} messages were not read"):
                assert_all_there(load, records, partitions=PARTITIONS)
        else:
            assert_all_there(load, records, partitions=PARTITIONS)
        assert self.grown(Counter.MsgDelivered) == load.total - missing

    def grown(self, counter: int) -> int:
        """Return the rise of a counter since `load`."""
        return self._counters()[counter] - self._before[counter]

    def before(self, counter: int) -> int:
        """Return a counter at the time of `load`."""
        return self._before[counter]

    def answered(self, code: int) -> int:
        """Return the number of answers with an error code since `load`."""
        return self.grown(Counter.AckErrorFirst + 1 + code)

    def _counters(self) -> dict[int, int]:
        with self.daemon.open_slab() as slab:
            return {index: counter_total(slab, index) for index in range(lay.ROW_COUNTER_CAPACITY)}

    def epochs(self, load: Load) -> list[int]:
        """Return the producer epochs of the partitions of a load."""
        with self.daemon.open_slab() as slab:
            topic = TopicTable(slab).number_of(load.topics[0].encode())
            return [PartitionTable(slab).epoch_and_sequence(topic, partition)[0] for partition in range(PARTITIONS)]

    def idempotence(self) -> int:
        """Return the brokers' idempotence recorded in the slab."""
        with self.daemon.open_slab() as slab:
            return slab.words[lay.SUPER_IDEMPOTENCE >> 2]

    def name_of_dispatcher(self) -> str:
        """Return the name of a running dispatcher."""
        self.daemon.wait_for(lambda: any("dispatcher" in name for name in self.daemon.pids()), "a dispatcher", 20)
        return next(name for name in self.daemon.pids() if "dispatcher" in name)


@contextmanager
def a_stage(directory: Path, broker: DevBroker, settings: dict[str, object] | None = None) -> Iterator[Stage]:
    with Daemon(directory, broker.bootstrap, settings) as daemon:
        yield Stage(daemon, broker)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    settings: dict[str, object] = {
        "delivery.kafka_socket_timeout_s": 5,
        "batching.produce_request_data_limit": "8k",  # many requests, so that some are in flight
    }
    with DevBroker(brokers=3) as broker, a_stage(tmp_path_factory.mktemp("faults"), broker, settings) as made:
        yield made


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    yield shared
    shared.broker.clear_faults()
    processes.long_lived_trees.add(shared.daemon.pid)


# --- connections ------------------------------------------------------------------------------------------------------
BROKEN: Final = (
    FaultAction.ACK_LOST,
    FaultAction.CLOSE,
    FaultAction.HALF_FRAME,
    FaultAction.WRONG_CORRELATION,
    FaultAction.GARBAGE_BODY,
    FaultAction.GARBAGE_FRAME,
)


@pytest.mark.parametrize("action", BROKEN)
def test_a_broken_connection_neither_loses_nor_duplicates_messages(stage: Stage, action: FaultAction) -> None:
    load = stage.load()
    stage.broker.inject(Fault(action=action, topic=load.topics[0], nth=2, every=2, times=4))
    stage.delivered(load)
    assert stage.grown(Counter.PauseStarted) > 0
    assert stage.grown(Counter.PossibleDuplicateMsg) == 0


@pytest.mark.parametrize("victim", ["router", "dispatcher"])
def test_a_process_death_during_lost_acks_loses_nothing(stage: Stage, victim: str) -> None:
    load = stage.load(messages=3000)
    stage.broker.inject(Fault(action=FaultAction.ACK_LOST, topic=load.topics[0], nth=2, every=3, times=12))
    sender = stage.send(load)
    stage.daemon.wait_for(lambda: stage.grown(Counter.MsgDelivered) > 0, "traffic", 20)
    stage.daemon.kill("router" if victim == "router" else stage.name_of_dispatcher())
    stage.delivered(load, sender=sender)


def test_killing_all_processes_during_lost_acks_loses_nothing(stage: Stage) -> None:
    load = stage.load(messages=3000)
    stage.broker.inject(Fault(action=FaultAction.ACK_LOST, topic=load.topics[0], nth=3, every=2, times=5))
    sender = stage.send(load)
    sender.join()
    stage.daemon.wait_for(lambda: stage.grown(Counter.MsgReceived) == load.total, "all to be received", 30)
    stage.daemon.kill_all()
    stage.daemon.start()
    stage.delivered(load, sender=sender)


def test_a_closed_idle_connection_is_opened_again_without_a_pause(stage: Stage) -> None:
    load = stage.load()
    stage.delivered(load)
    load = stage.load()
    for node in (1, 2, 3):
        stage.broker.broker_down(node)
        stage.broker.broker_up(node)
    stage.daemon.wait_for(lambda: stage.grown(Counter.ConnectorSocketBrokerClose) > 0, "the connections to close", 20)
    stage.delivered(load)
    assert stage.grown(Counter.ConnectorConnectSuccess) > 0


def test_a_broker_slow_to_tell_its_versions_is_no_reason_for_duplicates(tmp_path: Path) -> None:
    """It looks like a broker before Kafka 0.10, which has no sequence numbers."""
    with DevBroker(brokers=3) as broker:
        slow = Fault(action=FaultAction.DELAY, api=ApiKey.API_VERSIONS, broker=1, ms=4000, times=4)
        broker.inject(slow)  # two requests of the router, two of the dispatcher
        with a_stage(tmp_path, broker) as stage:
            stage.daemon.wait_for(lambda: stage.idempotence() > 0, "metadata", 20)
            assert stage.idempotence() == IDEMPOTENT
            stage.delivered(stage.load())
            assert "took too long to report its API versions" in stage.daemon.log()


# --- error codes ------------------------------------------------------------------------------------------------------
def test_written_batches_with_a_resend_error_are_resent(stage: Stage) -> None:
    load = stage.load()
    stage.broker.inject(Fault(action=FaultAction.ERROR_APPENDED, code=20, topic=load.topics[0], times=3))
    stage.delivered(load)
    assert stage.answered(20) >= 3
    assert stage.grown(Counter.ConnectorGotResendAck) >= 3
    assert stage.grown(Counter.PauseStarted) == stage.grown(Counter.PossibleDuplicateMsg) == 0


@pytest.mark.parametrize("action", [FaultAction.ERROR, FaultAction.ERROR_APPENDED])
def test_reroute_errors_are_rerouted(stage: Stage, action: FaultAction) -> None:
    load = stage.load()
    stage.broker.inject(Fault(action=action, code=7, topic=load.topics[0], times=3))
    stage.delivered(load)
    assert stage.answered(7) >= 3
    assert stage.grown(Counter.ConnectorGotPauseAck) >= 1
    assert stage.grown(Counter.PauseStarted) == stage.grown(Counter.PauseFinished) >= 1


def test_a_sequence_error_raises_the_epoch(stage: Stage) -> None:
    load = stage.load()
    stage.broker.inject(Fault(action=FaultAction.ERROR, code=45, topic=load.topics[0], nth=2, times=1))
    stage.delivered(load)
    assert stage.answered(45) >= 1
    assert 1 in stage.epochs(load)
    assert stage.grown(Counter.PossibleDuplicateMsg) > 0


def test_a_fatal_error_discards_only_the_refused_batch(stage: Stage) -> None:
    """The error hits the middle of a pipeline: the gap of the discarded batch is closed without duplicates."""
    load = stage.load(messages=2000)
    stage.broker.inject(Fault(action=FaultAction.DELAY, ms=50, topic=load.topics[0], times=None))
    stage.broker.inject(Fault(action=FaultAction.ERROR, code=42, topic=load.topics[0], nth=3, every=4, times=2))
    sender = stage.send(load)
    sender.join()
    stage.daemon.wait_for(lambda: stage.answered(42) == 2, "two answers", 30)
    stage.daemon.wait_for(lambda: stage.grown(discarded(DiscardReason.KAFKA_ERROR_ACK)) > 0, "discards", 10)
    stage.daemon.wait_for(lambda: not sum(stage.daemon.books().held.values()), "the rest", 30)
    stage.delivered(load, sender=sender, missing=stage.grown(discarded(DiscardReason.KAFKA_ERROR_ACK)))


def test_only_oversized_messages_of_a_batch_are_discarded(tmp_path: Path) -> None:
    limit = 20_000
    with DevBroker(brokers=2, message_max_bytes=limit) as broker, a_stage(tmp_path, broker) as stage:
        load = stage.load(messages=600, largest=30_000)
        sender = stage.send(load)
        sender.join()
        stage.daemon.wait_settled(load.total)
        missing = stage.grown(discarded(DiscardReason.KAFKA_ERROR_ACK))
        assert 0 < missing < load.total // 4
        stage.delivered(load, sender=sender, missing=missing)
        assert max(len(seen.value or b"") for seen in read_back(stage.broker, load.topics)[load.topics[0]]) < limit
        assert stage.daemon.log().count("discarded a message of 2") > 0


# --- silence ----------------------------------------------------------------------------------------------------------
def test_a_silent_broker_times_out_and_the_others_keep_delivering(tmp_path: Path) -> None:
    settings: dict[str, object] = {"delivery.kafka_socket_timeout_s": 1}
    with DevBroker(brokers=3) as broker, a_stage(tmp_path, broker, settings) as stage:
        load = stage.load(messages=1500)
        stage.delivered(load)
        silent = stage.load(messages=1500)
        broker.inject(Fault(action=FaultAction.SILENCE, broker=1, ms=10_000, topic=silent.topics[0]))
        sender = stage.send(silent)
        broker.wait_until(faults={"silence": 1})
        noticed = time.monotonic() + 9
        sender.join()
        stage.daemon.wait_for(lambda: "did not answer a request within 1 s" in stage.daemon.log(), "a deadline", 9)
        stage.daemon.wait_for(
            lambda: stage.grown(Counter.MsgDelivered) > silent.total // 4, "traffic of the other brokers", 9
        )
        assert time.monotonic() < noticed
        stage.delivered(silent, sender=sender)


# --- brokers that come, go and move -----------------------------------------------------------------------------------
def test_leader_moves_under_stale_metadata_lose_nothing(stage: Stage) -> None:
    load = stage.load(messages=3000)
    sender = stage.send(load)
    for partition in range(PARTITIONS):
        for broker in (1, 2, 3, 1):
            stage.broker.move_leader(load.topics[0], partition, broker, stale=2)
    stage.delivered(load, sender=sender)


@pytest.mark.parametrize("port", [None, 0])
def test_an_outage_of_one_broker_loses_nothing(stage: Stage, port: int | None) -> None:
    load = stage.load(messages=2000)
    sender = stage.send(load)
    stage.daemon.wait_for(lambda: stage.grown(Counter.MsgDelivered) > 0, "traffic", 20)
    stage.broker.broker_down(2)
    sender.join()
    stage.daemon.wait_for(lambda: stage.grown(Counter.MsgReceived) == load.total, "all to be received", 20)
    stage.broker.broker_up(2, port=port)
    stage.delivered(load, sender=sender)


def test_an_outage_of_all_brokers_loses_nothing_despite_stale_metadata(stage: Stage) -> None:
    load = stage.load(messages=1000)
    for node in (1, 2, 3):
        stage.broker.broker_down(node)
    sender = stage.send(load)
    sender.join()
    stage.daemon.wait_for(lambda: stage.grown(Counter.GetMetadataFail) >= 3, "fetches that fail", 30)
    stage.broker.move_leader(load.topics[0], 0, 1, stale=3)  # the first answers will know of no broker at all
    for node in (1, 2, 3):
        stage.broker.broker_up(node)
    stage.delivered(load, sender=sender)


def test_a_silent_former_leader_delays_messages_only_for_the_configured_time(tmp_path: Path) -> None:
    settings: dict[str, object] = {"delivery.dispatcher_restart_max_delay_ms": 200}
    with DevBroker(brokers=2) as broker, a_stage(tmp_path, broker, settings) as stage:
        load = stage.load()
        stage.delivered(load)
        load = stage.load()
        # Longer than the router's own wait for this broker, which may be the one that it asks for metadata.
        broker.inject(Fault(action=FaultAction.SILENCE, broker=1, ms=60_000, topic=load.topics[0]))
        sender = stage.send(load)
        broker.wait_until(faults={"silence": 1})
        for partition in range(PARTITIONS):
            broker.move_leader(load.topics[0], partition, 2)
        stage.daemon.refresh_metadata()
        stage.daemon.wait_for(
            lambda: "has not answered for partitions" in stage.daemon.log(), "the end of the patience", 40
        )
        stage.delivered(load, sender=sender)
        stage.daemon.wait_for(
            lambda: stage.connection_of(1) == "not connected", "the report of the closed connection", 20
        )


def test_one_down_broker_of_three_neither_delays_others_nor_busies_the_router(stage: Stage) -> None:
    load = stage.load(messages=1000, keyed=100)
    stage.delivered(load)
    load = stage.load(messages=3000, keyed=100)
    stage.broker.broker_down(3, stale=1_000_000)  # the stale metadata still names it as leader
    router = psutil.Process(stage.daemon.pids()["router"])
    sender = stage.send(load)
    sender.join()
    stage.daemon.wait_for(lambda: stage.grown(Counter.MsgDelivered) > load.total * 0.6, "the others' share", 20)
    stage.daemon.wait_for(lambda: stage.grown(Counter.PauseStarted) > 0, "a pause", 20)
    before = cpu_of(router), stage.grown(Counter.StartRefreshMetadata), stage.grown(Counter.PauseStarted)
    began = time.monotonic()
    stage.daemon.wait_for(lambda: time.monotonic() - began > 6, "six seconds", 7)
    assert cpu_of(router) - before[0] < 2
    assert 1 <= stage.grown(Counter.StartRefreshMetadata) - before[1] < 30
    assert 1 <= stage.grown(Counter.PauseStarted) - before[2] < 15
    stage.broker.broker_up(3)
    stage.delivered(load, sender=sender)


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_queued_messages_of_deleted_topics_and_lost_partitions_are_discarded(stage: Stage) -> None:
    deleted, shrunk = loads = stage.load(), stage.load()
    for load in loads:
        stage.broker.inject(Fault(action=FaultAction.ERROR, code=19, topic=load.topics[0], times=None))
        stage.send(load).join()
    stage.broker.wait_until(errors={19: 2 * PARTITIONS})
    for load in loads:
        stage.broker.delete_topic(load.topics[0])
    stage.broker.add_topic(shrunk.topics[0], 1)
    stage.broker.clear_faults()
    stage.daemon.wait_settled(stage.before(Counter.MsgReceived) + deleted.total + shrunk.total, 40)
    built = stage.grown(discarded(DiscardReason.BAD_TOPIC)) - deleted.total
    values = [seen.value for seen in read_back(stage.broker, shrunk.topics)[shrunk.topics[0]]]
    assert built > 0, "no batch of the lost partitions was built"
    assert len(values) == len(set(values)) == shrunk.total - built > 0
    stage.delivered(stage.load())


# --- producer ids -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("code", "outcome"), [(14, IDEMPOTENT), (31, AT_LEAST_ONCE)])
def test_a_refused_producer_id_is_retried_or_disables_idempotence(tmp_path: Path, code: int, outcome: int) -> None:
    with DevBroker(brokers=1) as broker:
        times = 4 if outcome == IDEMPOTENT else None
        broker.inject(Fault(action=FaultAction.ERROR, api=ApiKey.INIT_PRODUCER_ID, code=code, times=times))
        with a_stage(tmp_path, broker) as stage:
            load = stage.load()
            stage.delivered(load)
            assert stage.idempotence() == outcome


# --- less than idempotence --------------------------------------------------------------------------------------------
def test_acks_1_loses_nothing_and_counts_possible_duplicates(tmp_path: Path) -> None:
    with DevBroker(brokers=1) as broker, a_stage(tmp_path, broker, {"kafka.required_acks": 1}) as stage:
        load = stage.load()
        stage.delivered(load)
        load = stage.load()
        broker.inject(Fault(action=FaultAction.ACK_LOST, topic=load.topics[0], times=1))
        stage.send(load).join()
        stage.daemon.wait_settled(stage.before(Counter.MsgReceived) + load.total)
        read = [seen.value for seen in read_back(stage.broker, load.topics)[load.topics[0]]]
        assert len(set(read)) == load.total
        assert 0 < len(read) - load.total <= stage.grown(Counter.PossibleDuplicateMsg)


def test_acks_0_counts_written_messages_as_delivered(tmp_path: Path) -> None:
    with DevBroker(brokers=1) as broker, a_stage(tmp_path, broker, {"kafka.required_acks": 0}) as stage:
        load = stage.load(messages=2000)
        stage.delivered(load)
        assert stage.grown(Counter.AckNotRequired) == load.total
