"""The client `DevBroker`: start, read-back, waits and damage."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest

from bruce_mp.devbroker.control import CommandError, ControlChannel, DevBroker, StoredRecord, connect
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.errors import StartError
from devbroker.kit import RawClient, make_batch, produce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker() -> Iterator[DevBroker]:
    with DevBroker(topics={"hits": 2}, strict=True, message_max_bytes=5_000_000) as started:
        yield started


def send(broker: DevBroker, topic: str, partition: int, *batches: bytes) -> None:
    with RawClient(broker.bootstrap) as client:
        for batch in batches:
            client.send(produce([(topic, partition, batch)]))
            client.frame()


@pytest.mark.parametrize("codec", range(5))
def test_fetched_records_are_complete(broker: DevBroker, codec: int) -> None:
    topic = f"codec-{codec}"
    broker.add_topic(topic, 2)
    send(broker, topic, 1, make_batch(2, producer=(5, 1, 2**31 - 1), codec=codec), make_batch(1, codec=codec))
    first, second = broker.fetch(topic)
    common: dict[str, Any] = {"value": b"value", "headers": (("header", b"h"),)}
    assert first == []
    assert second == [
        StoredRecord(0, 1000, b"key0", producer_id=5, producer_epoch=1, sequence=2**31 - 1, **common),
        StoredRecord(1, 1001, b"key1", producer_id=5, producer_epoch=1, sequence=0, **common),
        StoredRecord(2, 1000, b"key0", producer_id=-1, producer_epoch=-1, sequence=-1, **common),
    ]


def test_appended_batches_are_returned_with_their_append_times(broker: DevBroker) -> None:
    broker.add_topic("timed", 1)
    before = time.monotonic_ns()
    send(broker, "timed", 0, make_batch(2, value=b"first"))
    between = time.monotonic_ns()
    send(broker, "timed", 0, make_batch(1, value=b"second"))
    (first_ns, first), (second_ns, second) = broker.appended_since(before)
    assert before <= first_ns <= between <= second_ns <= time.monotonic_ns()
    assert [record.value for record in (*first, *second)] == [b"first", b"first", b"second"]
    assert [records[0].value for _, records in broker.appended_since(between)] == [b"second"]


def test_a_large_partition_is_fetched_in_pieces(broker: DevBroker) -> None:
    broker.add_topic("much", 1)
    send(broker, "much", 0, *(make_batch(2, value=b"x" * 700_000) for _ in range(4)))
    assert [record.offset for record in broker.fetch("much")[0]] == list(range(8))


def test_batches_can_be_dropped_doubled_and_swapped(broker: DevBroker) -> None:
    broker.add_topic("damaged", 1)
    send(broker, "damaged", 0, *(make_batch(1, value=b"%d" % number) for number in range(4)))
    broker.drop_batch("damaged", 0, 1)
    broker.double_batch("damaged", 0, 0)
    broker.swap_batches("damaged", 0, 2)
    assert [(r.offset, r.value) for r in broker.fetch("damaged")[0]] == [(0, b"0"), (2, b"3"), (3, b"2"), (4, b"0")]


def test_wait_until_returns_when_reached_and_times_out_otherwise(broker: DevBroker) -> None:
    before = broker.statistics().records
    send(broker, "hits", 0, make_batch(3))
    assert broker.wait_until(records=before + 3).records == before + 3
    with pytest.raises(TimeoutError, match="did not reach"):
        broker.wait_until(records=before + 4, within=0.05)


def test_statistics_count_batches_bytes_and_duplicates(broker: DevBroker) -> None:
    before = broker.statistics()
    batch = make_batch(3, producer=(77, 0, 0))
    send(broker, "hits", 0, batch, batch, make_batch(1, producer=(77, 0, 9)))
    after = broker.statistics()
    assert after.batches - before.batches == 1
    assert after.records - before.records == 3
    assert after.bytes - before.bytes == len(batch)
    assert after.duplicates - before.duplicates == 1
    assert after.sequence_errors - before.sequence_errors == 1
    assert after.errors.get(45, 0) - before.errors.get(45, 0) == 1
    assert after.requests["Produce"] - before.requests.get("Produce", 0) == 3


def test_an_impossible_command_is_an_error(broker: DevBroker) -> None:
    with pytest.raises(CommandError, match="no topic 'nothing'"):
        broker.fetch("nothing")
    with pytest.raises(CommandError, match="There is no broker 9"):
        broker.broker_down(9)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CommandError, match="in use"):
            broker.broker_up(1, port=taken.getsockname()[1])
    broker.broker_up(1)
    for port in (-1, 65536):
        with pytest.raises(CommandError, match=r"port"):
            broker.broker_up(1, port=port)
    assert broker.fetch("hits") is not None  # the control connection stays open


def test_an_address_with_an_impossible_port_is_refused() -> None:
    with pytest.raises(CommandError, match="99999 is neither HOST:PORT"):
        ControlChannel("127.0.0.1:99999")


def test_the_control_channel_accepts_lines_of_json(broker: DevBroker) -> None:
    with connect(broker.control) as channel, channel.makefile("rb") as lines:
        channel.sendall(b'{"do":"add_topic","topic":"by-hand","partitions":3}\n{"do":"nonsense"}\nno json\n')
        answers = [msgspec.json.decode(lines.readline()) for _ in range(3)]
    assert [answer["ok"] for answer in answers] == [True, False, False]
    assert "nonsense" in answers[1]["error"]
    assert len(broker.fetch("by-hand")) == 3


def test_a_line_that_is_too_long_is_refused_and_the_next_one_executed(broker: DevBroker) -> None:
    with connect(broker.control) as channel, channel.makefile("rb") as lines:
        channel.sendall(b"x" * 5_000_000 + b'\n{"do":"get_statistics"}\n')
        answers = [msgspec.json.decode(lines.readline()) for _ in range(2)]
    assert [answer["ok"] for answer in answers] == [False, True]
    assert answers[0]["error"] == "A command has at most 1048576 bytes."


def test_a_command_to_a_broker_that_has_ended_fails() -> None:
    with DevBroker() as broker:
        psutil.Process(broker.pid).kill()
        for _ in range(2):
            with pytest.raises(CommandError, match="control connection"):
                broker.statistics()


def test_faults_are_listed_with_their_counts_and_removed(broker: DevBroker) -> None:
    numbers = [broker.inject(Fault(action=FaultAction.DELAY, topic=topic, times=2)) for topic in ("hits", "other")]
    send(broker, "hits", 0, make_batch())
    assert [(some.number, some.fault.topic, some.triggered) for some in broker.faults()] == [
        (numbers[0], "hits", 1),
        (numbers[1], "other", 0),
    ]
    broker.clear_faults(numbers[0])
    assert [some.number for some in broker.faults()] == numbers[1:]
    broker.clear_faults()
    assert broker.faults() == []


def test_resident_memory_is_bounded() -> None:
    with DevBroker(topics={"hits": 1}, max_bytes=8 << 20) as broker:
        batch = make_batch(10, value=b"x" * 10_000)
        send(broker, "hits", 0, *([batch] * 20))
        memory = psutil.Process(broker.pid).memory_info
        before = memory().rss
        send(broker, "hits", 0, *([batch] * 600))
        statistics = broker.statistics()
        assert statistics.held_bytes <= 8 << 20
        assert statistics.dropped_batches > 500
        assert memory().rss - before < 24 << 20
        assert broker.fetch("hits")[0][-1].offset == 6199


def test_ack_delay_slows_every_ack() -> None:
    with DevBroker(topics={"hits": 1}, ack_delay_ms=150) as broker:
        started = time.monotonic()
        send(broker, "hits", 0, make_batch(), make_batch())
        assert time.monotonic() - started >= 0.3


def test_close_ends_the_process_without_leftovers() -> None:
    broker = DevBroker()
    process = psutil.Process(broker.pid)
    broker.close()
    assert not process.is_running()
    assert broker._process.returncode == 0
    broker.close()


def test_a_failed_start_is_explained(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StartError):
        DevBroker(topics={"a/b": 1})
    assert "'a/b' is not a topic name" in capfd.readouterr().err


def test_an_existing_path_needs_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="control is neither HOST:PORT nor an existing path"):
        connect("control")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("control")
        listener.listen()
        connect("control").close()
