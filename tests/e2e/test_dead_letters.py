"""The dead letter topic, with the whole daemon: each discarded message is there once, and the books balance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp.client import StreamClient
from bruce_mp.devbroker.control import DevBroker
from bruce_mp.devbroker.faults import Fault, FaultAction
from bruce_mp.protocol.client.discard_line import parse_line
from support.daemon import Daemon
from support.read_back import records_in
from support.stream_inputs import ONE_WORKER, daemon_in

if TYPE_CHECKING:
    from pathlib import Path

    from bruce_mp.devbroker.control import StoredRecord

pytestmark = pytest.mark.process

DEAD: Final = "dead"
MESSAGES: Final = 40
STAMP: Final = 1_700_000_000_000


def headers_of(record: StoredRecord) -> dict[str, bytes | None]:
    return {name: value for name, value in record.headers if name not in {"bruce.discarded_ms", "bruce.host"}}


def send(daemon: Daemon, topic: str, values: list[bytes]) -> None:
    for value in values:
        daemon.send(topic, value, key=b"key", timestamp_ms=STAMP, headers=[("trace", value)])


def test_each_discarded_message_is_in_the_dead_letter_topic_once(tmp_path: Path) -> None:
    """Unknown topics, refused and malformed messages; the lines of the discard file are cut, the dead letters not."""
    log = tmp_path / "discard.log"
    settings: dict[str, object] = {"discard_log.path": log, "discard_log.max_msg_prefix_size": 3}
    with (
        DevBroker(topics={"good": 1, "refused": 1, DEAD: 2}) as broker,
        Daemon(tmp_path, broker.bootstrap, {"discard_log.enable": "true", **settings}) as daemon,
    ):
        send(daemon, "nobody's", [b"not sent"])
        daemon.wait_for(lambda: daemon.counters()["DiscardLogLine"] == 1, "the first line", 20)
        daemon.reload({"discards.topic": DEAD})
        broker.inject(Fault(action=FaultAction.ERROR, code=42, topic="refused", times=None))
        values = {topic: [b"%s %d" % (topic.encode(), n) for n in range(MESSAGES)] for topic in ("nobody's", "refused")}
        for topic, sent in values.items():
            send(daemon, topic, sent)
        send(daemon, "good", [b"good"])
        daemon.send_encoded(b"\0garbage")
        discarded = 2 * MESSAGES + 2
        received = discarded + 1 + 2 * MESSAGES + 1
        books = daemon.wait_settled(received)
        daemon.wait_for(lambda: daemon.counters()["DiscardLogLine"] == discarded, "all lines", 20)
        assert books.discarded == {"BAD_TOPIC": MESSAGES + 1, "KAFKA_ERROR_ACK": MESSAGES, "MALFORMED": 1}
        assert (books.received, books.delivered) == (received, 1 + 2 * MESSAGES + 1)
        counters = daemon.counters()
        assert (counters["DeadLetterSent"], counters["DeadLetterLost"]) == (2 * MESSAGES + 1, 0)
        found = records_in(broker, DEAD)
    by_value = {record.value: record for record in found}
    assert len(by_value) == len(found) == 2 * MESSAGES + 1
    for topic, reason in (("nobody's", b"BAD_TOPIC"), ("refused", b"KAFKA_ERROR_ACK")):
        for value in values[topic]:
            record = by_value[value]
            assert record.key == b"key"
            expected = {"bruce.reason": reason, "bruce.topic": topic.encode(), "bruce.timestamp_ms": b"%d" % STAMP}
            assert headers_of(record) == {"trace": value, **expected}
    assert headers_of(by_value[b"\0garbage"]) == {"bruce.reason": b"MALFORMED"}
    lines = [parse_line(line) for line in log.read_bytes().splitlines()]
    assert len(lines) == discarded
    assert max(len(line.value) for line in lines) == 3


def test_a_discarded_dead_letter_is_not_sent_again(tmp_path: Path) -> None:
    """The brokers have no dead letter topic."""
    with (
        DevBroker(topics={"good": 1}) as broker,
        Daemon(tmp_path, broker.bootstrap, {"discards.topic": DEAD}) as daemon,
    ):
        send(daemon, "unknown", [b"%d" % n for n in range(MESSAGES)])
        books = daemon.wait_settled(2 * MESSAGES)
        assert books.discarded == {"BAD_TOPIC": 2 * MESSAGES}
        queued = "DiscardCopyQueued"
        daemon.wait_for(
            lambda: daemon.counters()["DiscardCopySettled"] == daemon.counters()[queued] == 2 * MESSAGES,
            "the copies of the dead letters",
            20,
        )
        daemon.kill("status")
        send(daemon, "good", [b"good"])
        books = daemon.wait_settled(2 * MESSAGES + 1)
        assert (books.received, books.delivered) == (2 * MESSAGES + 1, 1)
        assert daemon.counters()["DeadLetterSent"] == MESSAGES


def test_the_value_of_a_message_too_long_for_kafka_is_cut(tmp_path: Path) -> None:
    limit = 5000
    settings = {"discards.topic": DEAD, "batching.message_max_bytes": limit}
    with (
        DevBroker(topics={"good": 1, DEAD: 1}) as broker,
        daemon_in(tmp_path, broker, **ONE_WORKER, **settings) as daemon,
    ):
        value = bytes(range(256)) * 1000
        with StreamClient(daemon.stream_path, timeout=20) as client:
            client.send("good", value, key=b"key")
            client.send("good", b"fits")
        books = daemon.wait_settled(3)
        assert (books.received, books.delivered, books.discarded) == (3, 2, {"LONG_MSG": 1})
        ((record,),) = broker.fetch(DEAD)
    assert record.value is not None
    assert value.startswith(record.value)
    assert limit - 300 < len(record.value) < limit
    assert headers_of(record)["bruce.value_size"] == b"%d" % len(value)
