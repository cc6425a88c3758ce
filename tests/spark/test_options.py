"""Options: each is accepted in any case; each wrong value is refused with the allowed values."""

from __future__ import annotations

import re

import pytest

from bruce_mp.protocol.client.key_hashes import Partitioner
from bruce_mp.spark.errors import OptionError
from bruce_mp.spark.options import Acks, OnDiscard, SinkOptions, parse_options


def test_the_defaults_are_safe() -> None:
    parsed = parse_options({"path": "/run/s"})
    assert parsed == SinkOptions("/run/s")
    assert (parsed.acks, parsed.on_discard, parsed.stamp, parsed.fence) == (Acks.DELIVERED, OnDiscard.FAIL, True, True)


def test_options_are_case_insensitive() -> None:
    given = {
        "BRUCE.SOCKET": "/run/s", "Topic": "t", "ACKS": "Received", "ondiscard": "REPORT", "timeoutMS": "7",
        "maxrecordspersecond": "8", "maxRecordBytes": "100", "stamp": "False", "FENCE": "false", "ledger": "/l",
        "deadletterpath": "/d", "connectTimeoutMs": "0", "checkpointLocation": "spark's own",
        "PARTITIONER": "Murmur2",
    }  # fmt: skip
    assert parse_options(given) == SinkOptions(
        "/run/s", "t", Acks.RECEIVED, OnDiscard.REPORT, 7, 8, 100, False, False, "/l", "/d", 0,
        partitioner=Partitioner.MURMUR2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "Name the daemon's socket on each host"),
        ({"topic": "t"}, "input.unix_stream.path"),
        ({"acks": "all"}, "Option 'acks' is 'all': give 'none', 'received' or 'delivered'."),
        ({"onDiscard": "ignore"}, "Option 'onDiscard' is 'ignore': give 'fail' or 'report'."),
        ({"timeoutMs": "1s"}, "Option 'timeoutMs' is '1s': give an integer from 1 to 2147483647."),
        ({"timeoutMs": "0"}, "Option 'timeoutMs' is '0'"),
        ({"maxRecordsPerSecond": "-1"}, "Option 'maxRecordsPerSecond' is '-1'"),
        ({"maxRecordBytes": "63"}, "Option 'maxRecordBytes' is '63'"),
        ({"partitioner": "random"}, "Option 'partitioner' is 'random': give 'murmur2', 'crc32' or 'fnv1a', or leave"),
        ({"stamp": "yes"}, "Option 'stamp' is 'yes': give 'true' or 'false'."),
        ({"ledger": ""}, "Option 'ledger' is empty"),
        ({"topic": ""}, "Option 'topic' has 0 bytes"),
        ({"topic": "é" * 125}, "Option 'topic' has 250 bytes: a Kafka topic has 1 to 249 letters"),
        ({"kafka.bootstrap.servers": "b:9092"}, "Option 'kafka.bootstrap.servers': connections to Kafka belong to"),
        ({"topics": "t"}, "Option 'topics' is not known. Options are bruce.socket, topic, acks,"),
        ({"path": "/a", "bruce.socket": "/b"}, "Option 'bruce.socket' has two values: '/a' and '/b'. Give one."),
        ({"topic": "a", "TOPIC": "b"}, "Option 'topic' has two values: 'a' and 'b'. Give one."),
    ],
)
def test_invalid_options_name_the_expected_value(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=r"^\[BRUCE_OPTION\] ") as caught:
        parse_options(given if {"path", "topic"} & given.keys() or not given else {"path": "/s", **given})
    assert re.search(re.escape(text), str(caught.value))
